"""Paths, keys, names and limits: every constant of the format (FORMAT.md).

This module handles only text. Every name and path from storage or from a caller is checked here before any I/O: a name
cannot steer a path, and a pointer cannot leave the prefix.

The module is long because the rules of the format refer to one another and are read beside FORMAT.md.
"""

from __future__ import annotations

import enum
import functools
import re
import unicodedata
from collections.abc import Iterator
from typing import NewType
from uuid import UUID, uuid5

import msgspec

from alpheus_journal.errors import Corrupt, InvalidInput, NotFound

Version = NewType("Version", int)
Key = NewType("Key", str)
"""A padded tree key as stored. Python compares `str` by code point, which is the order of UTF-8 bytes."""
NodePath = NewType("NodePath", str)

FORMAT_REVISION = 2
"""The newest revision of this project's extensions that this software reads and writes. A reader refuses a root with a
larger one."""
MAJOR_VERSION = 0

ORDER_DEFAULT = 128
ORDER_MIN = 3
ORDER_MAX = 1024
NAME_SIZE_BYTES_DEFAULT = 100
NAME_SIZE_BYTES_MAX = 1024
EXTENSION_NAME_SIZE_BYTES = 100
JOB_TABLES_MAX = 1000
"""The most inputs that a job declares, and the most outputs."""
NODE_FILE_SIZE_BYTES_DEFAULT = 1 << 20
NODE_FILE_SIZE_BYTES_MAX = 1 << 26
NODE_FILE_SIZE_BYTES_SLACK = 64 << 10
NODE_FILE_SIZE_BYTES_JAVA = 512 << 10
"""The limit for node files in the 64-digit dialect, because the Java reader's lookups fail in larger ones."""
TXN_TTL_MILLIS_DEFAULT = 259_200_000
DEFINITION_SIZE_BYTES_MAX = 1 << 20
ACTION_ROW_SIZE_BYTES_MAX = 16 << 10
"""A larger action is stored in a separate file, and its row holds path and SHA-256."""
EXTERNAL_ACTIONS_SIZE_BYTES_MAX = 16 << 20
"""All action files of one root together. A byte of protobuf can take forty bytes in memory."""
DEFINITIONS_SIZE_BYTES_MAX = 256 << 20
"""All definitions that one version writes, together."""
MANIFEST_SIZE_BYTES_MAX = 256 << 20
SEGMENTS_MADE_SIZE_BYTES_MAX = 256 << 20
"""All manifest segments that one version merges from others, together."""
TAG_OBJECTS_MAX = 1_000
"""The most names that a tag of chosen objects may choose, and the most that it may leave out."""
KEYS_COUNT_MAX = 32
"""The most keys of a table's partitions, and of its sort order."""
DEPTH_MAX = 16
HINT_SIZE_BYTES_MAX = 64
RUN_LEASE_SIZE_BYTES_MAX = 1024
POINTER_SIZE_BYTES_MAX = 4096
CLOCK_SKEW_MILLIS_MAX = 60_000
TIME_MILLIS_MAX = 253_402_300_799_999
"""The end of the year 9999."""

# System rows of a node file.
ROW_CATALOG_DEF = "catalog_def"
ROW_PREVIOUS_ROOT = "previous_root"
ROW_ROLLBACK_FROM_ROOT = "rollback_from_root"
ROW_CREATED_AT_MILLIS = "created_at_millis"
ROW_N_KEYS = "n_keys"
ROW_N_ACTIONS = "n_actions"
ROW_N_ACTIONS_64 = ".n_actions"
ROW_COMMIT_ID = ".commit_id"
ROW_PREVIOUS_COMMIT_ID = ".previous_commit_id"
ROW_CATALOG_ID = ".catalog_id"
ROW_CHECKSUM = ".crc32"
ROW_VERSION = ".version"
ROW_FORMAT_REVISION = ".format_revision"
ROW_EXPIRED_AT_MILLIS = ".expired_at_millis"
ROW_CHOSEN = ".chosen"
ROW_LEASE_MILLIS = ".lease_millis"
ROW_LEASE_HOLDER = ".lease_holder"
ROW_LEASE_TRANSACTION = ".lease_transaction"

LATEST_HINT = "vn/latest"
OLDEST_HINT = "vn/oldest"


class Kind(enum.IntEnum):
    """Kinds of objects; the values are the type ids of the format and the numbers of `ObjectType`."""

    CATALOG = 0
    NAMESPACE = 1
    TABLE = 2
    VIEW = 3
    TAG = 100
    BRANCH = 101
    PIPELINE = 102
    SUBSCRIPTION = 103

    @property
    def label(self) -> str:
        """The name that people read, such as `table`."""
        return self._name_.lower()


_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-"


def type_id(kind: Kind) -> str:
    """Return the four characters that begin the keys of a kind: the number in base64, padded with `=` (`B===`,
    `Bk==`)."""
    value, digits = int(kind), ""
    while value:
        digits = _ALPHABET[value % 64] + digits
        value //= 64
    return (digits or "A").ljust(4, "=")


TYPE_IDS: dict[Kind, str] = {kind: type_id(kind) for kind in Kind if kind is not Kind.CATALOG}
_KINDS_BY_TYPE_ID = {text: kind for kind, text in TYPE_IDS.items()}

_DEFINITION_FOLDERS = {
    Kind.CATALOG: "catalog",
    Kind.NAMESPACE: "ns",
    Kind.TABLE: "table",
    Kind.VIEW: "view",
    Kind.TAG: "tag",
    Kind.BRANCH: "branch",
    Kind.PIPELINE: "pipeline",
    Kind.SUBSCRIPTION: "subscription",
}


class ObjectName(msgspec.Struct, frozen=True, order=True, gc=False):
    """The name of an object: its kind, its `namespace` (namespaces, tables and views have one) and its `name` (all
    kinds except catalog and namespace have one). The catalog itself has neither."""

    kind: Kind
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        if self.kind is Kind.CATALOG:
            return "the catalog"
        return f"{self.kind.label} {self.full_name}"

    @property
    def full_name(self) -> str:
        """`namespace.name`, `namespace` or `name`; empty for the catalog."""
        return (
            f"{self.namespace}.{self.name}" if self.namespace and self.name else self.namespace or self.name
        )


CATALOG = ObjectName(Kind.CATALOG)


def namespace_name(name: str) -> ObjectName:
    return ObjectName(Kind.NAMESPACE, name)


def table_name(namespace: str, name: str) -> ObjectName:
    return ObjectName(Kind.TABLE, namespace, name)


def pipeline_name(name: str) -> ObjectName:
    return ObjectName(Kind.PIPELINE, "", name)


def subscription_name(name: str) -> ObjectName:
    return ObjectName(Kind.SUBSCRIPTION, "", name)


def tag_name(name: str) -> ObjectName:
    return ObjectName(Kind.TAG, "", name)


class Keys(msgspec.Struct, frozen=True):
    """The rules by which names become keys in one catalog: its limits in bytes and its dialect.

    With `version_digits` 32 padding is counted in bytes, with 64 in UTF-16 units as the Java SDK does (FORMAT.md,
    "Dialects"). `takes_unseen` accepts names with invisible characters, for operations recorded by an earlier release
    that allowed them.
    """

    version_digits: int = 32
    namespace_size_max: int = NAME_SIZE_BYTES_DEFAULT
    table_size_max: int = NAME_SIZE_BYTES_DEFAULT
    view_size_max: int = NAME_SIZE_BYTES_DEFAULT
    takes_unseen: bool = False

    def size_max(self, kind: Kind) -> int:
        """Return the size limit of the last name of a kind, in bytes."""
        if kind is Kind.NAMESPACE:
            return self.namespace_size_max
        if kind is Kind.TABLE:
            return self.table_size_max
        if kind is Kind.VIEW:
            return self.view_size_max
        return EXTENSION_NAME_SIZE_BYTES

    def longest_key_size(self) -> int:
        """Return the size of the longest key that this catalog can hold, in bytes."""
        last = max(self.table_size_max, self.view_size_max)
        return 4 + max(self.namespace_size_max + last, EXTENSION_NAME_SIZE_BYTES)

    def pad(self, name: str, size: int) -> str:
        if name.isascii():
            return name.ljust(size)
        length = len(name.encode()) if self.version_digits == 32 else utf16_length(name)
        return name + " " * (size - length)

    def key(self, name: ObjectName) -> Key:
        """Return the padded key of an object. The name must have passed `check_name` or come from a key."""
        kind = name.kind
        if kind is Kind.CATALOG:
            raise AssertionError("the catalog has no key")
        if kind is Kind.NAMESPACE:
            return Key(TYPE_IDS[kind] + self.pad(name.namespace, self.namespace_size_max))
        if kind is Kind.TABLE or kind is Kind.VIEW:
            last = self.table_size_max if kind is Kind.TABLE else self.view_size_max
            if name.namespace.isascii() and name.name.isascii():  # nearly all
                return Key(
                    TYPE_IDS[kind] + name.namespace.ljust(self.namespace_size_max) + name.name.ljust(last)
                )
            return Key(
                TYPE_IDS[kind] + self.pad(name.namespace, self.namespace_size_max) + self.pad(name.name, last)
            )
        return Key(TYPE_IDS[kind] + self.pad(name.name, EXTENSION_NAME_SIZE_BYTES))

    def other_padding(self) -> Keys:
        """Return the same limits in the other dialect, where only names outside ASCII have other keys."""
        return msgspec.structs.replace(self, version_digits=96 - self.version_digits)

    def bounds(self, kind: Kind, namespace: str = "", prefix: str = "", after: str = "") -> tuple[Key, Key]:
        """Return the half-open key range [low, high) of names of a kind that begin with `prefix` and are above `after`.
        For tables and views the range may be limited to one namespace."""
        start = TYPE_IDS[kind]
        if kind in (Kind.TABLE, Kind.VIEW) and namespace:
            start += self.pad(namespace, self.namespace_size_max)
        low = start + prefix
        high = Key(after_prefix(low))
        if after:
            # Skip the last name under both paddings, so that it is not listed again.
            size = self.size_max(kind)
            last = start + max(self.pad(after, size), self.other_padding().pad(after, size))
            low = max(low, last + "\0")
        return Key(low), high

    def ranges(
        self, kind: Kind, namespace: str = "", prefix: str = "", after: str = ""
    ) -> tuple[tuple[Key, Key], ...]:
        """Return the ranges of `bounds`, one for each padding that the namespace may have: two for tables or views in a
        namespace outside ASCII.

        The ranges do not overlap, and each is in order of names. Keys of objects in a longer namespace may lie in a
        range, so the caller uses `parse` to find the keys of this namespace.
        """
        if kind not in (Kind.TABLE, Kind.VIEW) or namespace.isascii():
            return (self.bounds(kind, namespace, prefix, after),)
        found = []
        for keys in (self, self.other_padding()):
            low, high = keys.bounds(kind, namespace, prefix, after)
            if keys.version_digits == 32:
                # This padding has fewer spaces than the UTF-16 padding, so this range would hold the other range. No
                # name begins with a space, so the range may begin above it.
                low = max(low, Key(TYPE_IDS[kind] + keys.pad(namespace, self.namespace_size_max) + "!"))
            found.append((low, high))
        return tuple(found)

    def parse(self, key: str) -> ObjectName:
        """Return the object that a stored key names. Accepts both paddings (FORMAT.md, "Dialects").

        Raises Corrupt for an unknown type id, and for a length that fits neither padding.
        """
        kind = _KINDS_BY_TYPE_ID.get(key[:4])
        if kind is None:
            raise Corrupt(f"key {key!r} begins with no known type id", kind="corrupt_tree")
        if kind is Kind.TABLE or kind is Kind.VIEW:  # a fast path for nearly all keys
            middle = 4 + self.namespace_size_max
            last = self.table_size_max if kind is Kind.TABLE else self.view_size_max
            if len(key) == middle + last and key.isascii():
                namespace, name = key[4:middle].rstrip(" "), key[middle:].rstrip(" ")
                if namespace and name:
                    return ObjectName(kind, namespace, name)
        rest = key[4:]
        if kind in (Kind.TABLE, Kind.VIEW):
            sizes = [self.namespace_size_max, self.size_max(kind)]
        else:
            sizes = [self.size_max(kind)]
        for units in (_byte_units, _utf16_units):
            parts = _split(rest, sizes, units)
            if parts is not None and all(parts):
                if kind is Kind.NAMESPACE:
                    return ObjectName(kind, parts[0])
                if len(parts) == 2:
                    return ObjectName(kind, parts[0], parts[1])
                return ObjectName(kind, "", parts[0])
        raise Corrupt(f"key {key!r} does not have the length of a {kind.label} key", kind="corrupt_tree")


def utf16_length(text: str) -> int:
    """Return the length in UTF-16 units, as the Java SDK counts."""
    return len(text) + sum(1 for character in text if ord(character) > 0xFFFF)


def has_surrogate(text: str) -> bool:
    """Return whether `text` holds half of a surrogate pair, which Python's text can hold and UTF-8 cannot."""
    return any(0xD800 <= ord(character) <= 0xDFFF for character in text)


def _byte_units(character: str) -> int:
    code = ord(character)
    return 1 if code < 0x80 else 2 if code < 0x800 else 3 if code < 0x10000 else 4


def _utf16_units(character: str) -> int:
    return 2 if ord(character) > 0xFFFF else 1


def _split(text: str, sizes: list[int], units: object) -> list[str] | None:
    """Cut `text` into parts of exactly `sizes` units and strip their padding. Return None when the lengths do not
    fit."""
    count = _byte_units if units is _byte_units else _utf16_units
    if text.isascii():
        if len(text) != sum(sizes):
            return None
        parts, position = [], 0
        for size in sizes:
            parts.append(text[position : position + size].rstrip(" "))
            position += size
        return parts
    parts, position = [], 0
    for size in sizes:
        taken, start = 0, position
        while taken < size and position < len(text):
            taken += count(text[position])
            position += 1
        if taken != size:
            return None
        parts.append(text[start:position].rstrip(" "))
    return parts if position == len(text) else None


def after_prefix(prefix: str) -> str:
    """Return the smallest text above every text that begins with `prefix`, which is not empty."""
    for index in range(len(prefix) - 1, -1, -1):
        code = ord(prefix[index])
        if code < 0x10FFFF:
            successor = 0xE000 if code == 0xD7FF else code + 1
            return prefix[:index] + chr(successor)
    raise AssertionError("no text above it")


# --- names -----------------------------------------------------------------------------------------

_CONTROL = re.compile(r"[\x00-\x20\x7f]")
_FORBIDDEN_NEW = frozenset("*?%/\\")
NAMES_CHECKED_MAX = 8192
"""Size of the cache of checked names. One transaction checks the same few names many times."""
_BIDI_CONTROLS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_JOINERS = "\u200c\u200d"
_SELECTORS = "\u180b-\u180d\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef"
# The sets are fixed here, so that they do not depend on the interpreter's Unicode tables: all writers of a catalog
# treat a code point alike, even one that Unicode assigns later. Unicode keeps both sets stable: characters ignored in
# display are always in these ranges (Default_Ignorable_Code_Point), and 66 code points are never characters.
_UNSEEN = re.compile(
    f"[\\x80-\\x9f\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180e\u200b{_JOINERS}\u2028\u2029\u2060-\u206f\u2800\u3164"
    "\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff\ufdd0-\ufdef"
    + "".join(f"{chr(plane + 0xFFFE)}{chr(plane + 0xFFFF)}" for plane in range(0, 0x110000, 0x10000))
    + f"{_SELECTORS}]"
)
_SELECTOR = re.compile(f"[{_SELECTORS}]")


def unseen_places(name: str) -> Iterator[int]:
    """Yield the positions of invisible characters in `name`: controls, line separators, characters shown as nothing or
    as a gap, and code points that are not characters.

    U+200C and U+200D between two letters are visible, because they change the letters' shapes. A variation selector is
    visible after a character that may have variants: a character outside ASCII, a digit, or `#`.
    """
    for found in _UNSEEN.finditer(name):
        place = found.start()
        before, after = name[place - 1 : place], name[place + 1 : place + 2]
        if found[0] in _JOINERS:
            if not (_is_letter(before) and _is_letter(after)):
                yield place
        elif (
            _SELECTOR.match(found[0]) is None
            or not before
            or _UNSEEN.match(before) is not None
            or (before.isascii() and before not in "0123456789#")
        ):
            yield place


def _is_letter(character: str) -> bool:
    """Return whether `character` is a letter or a combining mark, by a version of Unicode that every interpreter has. A
    character unknown to that version counts as a letter."""
    if not character or _UNSEEN.match(character) is not None:
        return False
    category = unicodedata.ucd_3_2_0.category(character)
    return category[0] in "LM" or category == "Cn"


def check_name(
    name: str, size_max: int, what: str, *, creating: bool = False, takes_unseen: bool = False
) -> str:
    """Return `name` when it may name a `what` ("table"). Raise InvalidInput, which names the wrong character and its
    position.

    `creating` applies the additional rules for new names; objects with older names stay usable. `takes_unseen` means
    the same as in `Keys`.
    """

    def refuse(reason: str) -> InvalidInput:
        return InvalidInput(
            f"{what} name {name[:120]!r} {reason}",
            kind="bad_name",
            hint=f"use a name of 1 to {size_max} bytes of UTF-8 in normal form C, without spaces, control characters"
            " and * ? % / \\",
        )

    if not isinstance(name, str):
        raise InvalidInput(f"{what} name must be text, not {type(name).__name__}", kind="bad_name")
    if not name:
        raise refuse("is empty")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise refuse(f"holds a lone surrogate at position {error.start}") from None
    if size > size_max:
        raise refuse(f"takes {size} bytes, {size_max} at most")
    control = _CONTROL.search(name)
    if control is not None:
        raise refuse(f"holds the character U+{ord(control[0]):04X} at position {control.start()}")
    if not creating:
        return name
    for position, character in enumerate(name):
        if character in _FORBIDDEN_NEW:
            raise refuse(f"holds {character!r} at position {position}")
        if character in _BIDI_CONTROLS:
            raise refuse(f"holds the bidirectional control U+{ord(character):04X} at position {position}")
    for unseen in () if takes_unseen else unseen_places(name):
        raise refuse(f"holds the invisible character U+{ord(name[unseen]):04X} at position {unseen}")
    if name in (".", ".."):
        raise refuse("is a dot segment")
    normal = unicodedata.normalize("NFC", name)
    if normal != name:
        position = next(
            (i for i, (a, b) in enumerate(zip(name, normal, strict=False)) if a != b), len(normal)
        )
        raise refuse(f"is not in Unicode normal form C (from position {position})")
    return name


@functools.lru_cache(NAMES_CHECKED_MAX)
def _is_plain(name: str, size_max: int, creating: bool) -> bool:
    """Return whether `name` is printable ASCII that every rule accepts: a fast check that nearly all names pass."""
    return (
        0 < len(name) <= size_max
        and name.isascii()
        and name.isprintable()
        and " " not in name
        and (not creating or (_FORBIDDEN_NEW.isdisjoint(name) and name not in (".", "..")))
    )


def check_object_name(name: ObjectName, keys: Keys, *, creating: bool = False) -> ObjectName:
    """Return `name` when its parts may name an object of its kind, else raise InvalidInput.

    In a catalog of the Java SDK's dialect any characters are accepted, unless `creating`.
    """
    kind = name.kind
    if kind is Kind.NAMESPACE:
        check_known_name(name.namespace, keys, kind, creating=creating)
    elif kind is not Kind.CATALOG:
        if kind is Kind.TABLE or kind is Kind.VIEW:
            check_known_name(name.namespace, keys, Kind.NAMESPACE)
        check_known_name(name.name, keys, kind, creating=creating)
    return name


def check_known_name(name: str, keys: Keys, kind: Kind, *, creating: bool = False) -> str:
    """Return `name` when an object of `kind` may have it as its last name, else raise InvalidInput.

    The Java SDK accepts any characters, and counts UTF-16 units. So in a catalog of its dialect a caller may ask for
    every name that can be in a key; only new objects follow the rules. Tables and views share one space of names, so
    whoever makes a table asks for the view of that name, which may be longer than a view's name can be.
    """
    size_max = keys.size_max(kind)
    if not creating and (kind is Kind.TABLE or kind is Kind.VIEW):
        size_max = max(keys.table_size_max, keys.view_size_max)
    if isinstance(name, str) and _is_plain(name, size_max, creating):
        return name
    foreign = not creating and keys.version_digits == 64 and isinstance(name, str)
    if foreign and name and name[-1] != " " and not has_surrogate(name) and utf16_length(name) <= size_max:
        return name
    return check_name(name, size_max, kind.label, creating=creating, takes_unseen=keys.takes_unseen)


# --- version references ----------------------------------------------------------------------------

LATEST = "latest"
_NUMBER = re.compile(r"-?[0-9]+")
_LIKE_A_TIME = re.compile(r"[0-9]{4}-[0-9]{2}(-[0-9]{2}.*)?", re.DOTALL)


def reads_as_number(text: str) -> bool:
    """Return whether a reader takes the text for the number of a version."""
    return _NUMBER.fullmatch(text) is not None


def reads_as_time(text: str) -> bool:
    """Return whether a reader takes the text for a month, a day or a time, complete or not."""
    return _LIKE_A_TIME.fullmatch(text) is not None


VERSION_MAX_EXCLUSIVE = 1 << 32


def version_file(version: int, digits: int) -> str:
    """Return `vn/` and the binary digits of the version, least significant first, padded with zeros to `digits`."""
    if not 0 <= version < VERSION_MAX_EXCLUSIVE:
        raise InvalidInput(f"version {version} is outside 0 to 2^32 - 1", kind="bad_version")
    return "vn/" + format(version, "b")[::-1].ljust(digits, "0")


def parse_version_file(path: str) -> tuple[int, int]:
    """Return (version, digits) of a version file's path. Raises Corrupt for any other path."""
    match = _VERSION_FILE.fullmatch(path)
    if match is None:
        raise Corrupt(f"{path[:200]!r} is not the path of a version file", path=path[:200])
    digits = match.group(1)
    return int(digits[::-1], 2), len(digits)


# --- paths -----------------------------------------------------------------------------------------

_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_VERSION_FILE = re.compile(r"vn/([01]{32}|[01]{64})")
_NODE = re.compile(rf"node/{_UUID}\.arrow")
_DEFINITION = re.compile(r"def/([a-z]+)/([^\x00-\x1f\x7f]+)\.binpb")
_ACTION = re.compile(rf"action/{_UUID}\.binpb")
_MANIFEST = re.compile(rf"manifest/({_UUID})/{_UUID}\.arrow")
_DATA = re.compile(rf"data/({_UUID})/({_UUID})/({_UUID})/([A-Za-z0-9][A-Za-z0-9._=+-]*\.parquet)")
_POSITION = re.compile(rf"sub/{_UUID}")
_LEASE = re.compile(rf"lease/{_UUID}\.arrow")
_PIN = re.compile(rf"pin/{_UUID}\.arrow")
_UUID_TEXT = re.compile(_UUID)
_COLLECTED = {
    "node": _NODE,
    "definition": re.compile(
        rf"def/(?:catalog|ns|table|view|pipeline|subscription|tag)/{_UUID}(?:-[^/\x00-\x1f\x7f]*)?\.binpb"
    ),
    "action": _ACTION,
    "manifest": _MANIFEST,
    "data": _DATA,
    "position": _POSITION,
    "pin": _PIN,
    "lease": _LEASE,
    "saved": re.compile(rf"def/dtxn/{_UUID}\.binpb"),
    "scratch": re.compile(
        rf"(?:selftest|data/selftest)/{_UUID}/[^\x00-\x1f\x7f]+|run/{_UUID}|collect/{_UUID}\.arrow"
    ),
}
"""The files that a collection may delete, by kind. A file of any other name is not ours."""
_COLLECTED_IN = {
    "node/": ("node",), "def/": ("definition", "saved"), "action/": ("action",), "manifest/": ("manifest",),
    "data/": ("data", "scratch"), "sub/": ("position",), "pin/": ("pin",), "lease/": ("lease",),
    "selftest/": ("scratch",), "run/": ("scratch",), "collect/": ("scratch",),
}  # fmt: skip
COLLECTED_FOLDERS = tuple(_COLLECTED_IN)
COLLECTED_KINDS = tuple(_COLLECTED)


def kind_of_file(path: str) -> str:
    """Return the kind of a file that a collection may delete, such as `node`; empty for a file of any other name."""
    for kind in _COLLECTED_IN.get(path[: path.find("/") + 1], ()):
        if _COLLECTED[kind].fullmatch(path) is not None:
            return kind
    return ""


_CHECKPOINT = re.compile(rf"checkpoint/(?:[01]{{32}}|[01]{{64}})-{_UUID}(?:\.index)?\.arrow")
UPLOADED_FOLDERS = ("data/", "manifest/", "node/", "action/", "lease/", "pin/", "checkpoint/")
"""The folders of files that may be large enough for an upload in parts."""
UPLOADED_KINDS = (*COLLECTED_KINDS, "checkpoint")


def kind_of_upload(path: str) -> str:
    """Return the kind of a file whose upload a collection may abort; empty for a file of any other name. Checkpoints
    and index runs are never collected, but their uploads are abandoned as others are."""
    return kind_of_file(path) or ("checkpoint" if _CHECKPOINT.fullmatch(path) else "")


def is_uuid(text: str) -> bool:
    return _UUID_TEXT.fullmatch(text) is not None


def _refuse(path: str, what: str) -> Corrupt:
    return Corrupt(f"{path[:200]!r} is not the path of {what}", kind="corrupt_tree", path=path[:200])


def check_node_pointer(path: str) -> NodePath:
    """Check a pointer to a child node, as read from a node file. Raises Corrupt before any I/O."""
    if _NODE.fullmatch(path) is None:
        raise _refuse(path, "a node")
    return NodePath(path)


def check_root_pointer(path: str) -> NodePath:
    """Check a pointer to a root: a version file, or an ordinary node file (a branch's root). Raises Corrupt."""
    if _VERSION_FILE.fullmatch(path) is None and _NODE.fullmatch(path) is None:
        raise _refuse(path, "a root")
    return NodePath(path)


def check_definition_pointer(path: str, kind: Kind) -> str:
    """Check a pointer to a definition of `kind`. Raises Corrupt.

    The Java SDK puts raw names into these paths, with slashes as folders, so several segments are accepted. No segment
    may be empty, `.` or `..`, or hold a control character.
    """
    match = _DEFINITION.fullmatch(path)
    if (
        match is None
        or len(path) > POINTER_SIZE_BYTES_MAX
        or match.group(1) != _DEFINITION_FOLDERS[kind]
        or any(segment in ("", ".", "..") for segment in match.group(2).split("/"))
    ):
        raise _refuse(path, f"a {kind.label} definition")
    return path


def check_action_pointer(path: str) -> str:
    if _ACTION.fullmatch(path) is None:
        raise _refuse(path, "an action")
    return path


def check_manifest_pointer(path: str, table_id: str) -> str:
    """Check a pointer to a manifest segment of one table. Raises Corrupt."""
    match = _MANIFEST.fullmatch(path)
    if match is None or match.group(1) != table_id:
        raise _refuse(path, f"a manifest of table {table_id}")
    return path


def check_position_pointer(path: str) -> str:
    """Check a pointer to the position of one epoch of a subscription. Raises Corrupt."""
    if _POSITION.fullmatch(path) is None:
        raise _refuse(path, "a subscription's position")
    return path


def check_lease_path(path: str) -> str:
    """Check that a path below `lease/` has the name of a lease. Raises Corrupt."""
    if not is_lease_path(path):
        raise _refuse(path, "a lease")
    return path


def is_lease_path(path: str) -> bool:
    return _LEASE.fullmatch(path) is not None


def check_pin_pointer(path: str) -> str:
    """Check a pointer to a pin. Raises Corrupt."""
    if _PIN.fullmatch(path) is None:
        raise _refuse(path, "a pin")
    return path


def parse_data_path(path: str) -> tuple[str, str, str, str]:
    """Return (table id, transaction id, write id, file name) of a native table's data file. Raises Corrupt.

    The file name must be one that Spark reads and must not be a glob: it begins with a letter or digit.
    """
    match = _DATA.fullmatch(path)
    if match is None:
        raise Corrupt(
            f"{path[:200]!r} is not the path of a data file that every engine reads",
            kind="corrupt_manifest",
            path=path[:200],
            hint="use data/<table id>/<transaction id>/<write id>/<name>.parquet, where <name> begins with a letter or"
            " digit",
        )
    return match.group(1), match.group(2), match.group(3), match.group(4)


_UNSAFE = re.compile(r"[^A-Za-z0-9_]")


def _tidy(name: str) -> str:
    if not (name.isascii() and name.isidentifier()):  # nearly all names are
        name = _UNSAFE.sub("_", name)
    return name[:40]


def definition_path(name: ObjectName, uuid: str) -> str:
    """Return the path of a new definition. The names in the path only help people: each character outside
    `[A-Za-z0-9_]` becomes `_`, and each name is cut at 40 characters."""
    namespace = f"-{_tidy(name.namespace)}" if name.namespace else ""
    last = f"-{_tidy(name.name)}" if name.name else ""
    return f"def/{_DEFINITION_FOLDERS[name.kind]}/{uuid}{namespace}{last}.binpb"


DTXN_FOLDER = "def/dtxn/"


def dtxn_path(transaction_id: str) -> str:
    return f"{DTXN_FOLDER}{transaction_id}.binpb"


def position_path(uuid: str) -> str:
    return f"sub/{uuid}"


def run_lease_path(pipeline: str, job: str) -> str:
    """Return the path of the lease that the process which calls a job holds. A name holds no slash."""
    return f"run/{uuid5(UUID(int=0), f'{pipeline}/{job}')}"


LEASE_FOLDER = "lease/"


def lease_path(uuid: str) -> str:
    return f"{LEASE_FOLDER}{uuid}.arrow"


PIN_FOLDER = "pin/"


def pin_path(uuid: str) -> str:
    return f"{PIN_FOLDER}{uuid}.arrow"


def node_path(uuid: str) -> NodePath:
    return NodePath(f"node/{uuid}.arrow")


def action_path(uuid: str) -> str:
    return f"action/{uuid}.binpb"


def manifest_path(table_id: str, uuid: str) -> str:
    return f"manifest/{table_id}/{uuid}.arrow"


def data_folder(table_id: str, transaction_id: str, write_id: str) -> str:
    """Return the folder of one write, with a slash at its end."""
    return f"data/{table_id}/{transaction_id}/{write_id}/"


def node_size_read_max(size_max: int) -> int:
    """Return the size of the largest node file that is read in a catalog whose limit is `size_max`. Other software may
    exceed the catalog's own limit, and files up to the default limit are always read."""
    return max(size_max, NODE_FILE_SIZE_BYTES_DEFAULT) + NODE_FILE_SIZE_BYTES_SLACK


def version_not_there(version: int, head: int) -> NotFound:
    return NotFound(
        f"there is no version {version}; the newest is {head}", kind="no_version", version=version
    )
