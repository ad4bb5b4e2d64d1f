"""What does a tag name, and what keeps it readable?

    reader     tags at the head: find one, list them, find the nearest; pin a version; open what a pin keeps
    pinning    make a pin: of a version, of another tag's version, or of chosen objects
    chosen     the tree of a tag of chosen objects; pure
    counts     objects, tables and rows of a version, where counting is cheap

A tag is an object of the tree at the head. A pin is a copy of a version's root file under another name (`log.pins`),
and `collect.collection` leaves what a pin reaches. FORMAT.md tells the order: the pin is written first, and the tag
names it.
"""
