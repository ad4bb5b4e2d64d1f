"""Pins: copies of roots, which keep what their versions reach as long as a tag names them.

FORMAT.md, "Tags and pins", says in which order a pin is made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

from alpheus_journal import failpoints
from alpheus_journal import format as fmt
from alpheus_journal.errors import AlpheusError, Corrupt, NotFound
from alpheus_journal.log.copies import Copy, copy_in, copy_of, verify_kept
from alpheus_journal.log.versions import Log, root_rows
from alpheus_journal.tree.node import decode_node, encode_node

PIN_REVISION = 2
"""The revision of the format that brought pins. Each pin is written in it."""


def encode_pin(copy: Copy, catalog_id: str) -> bytes:
    chosen = {fmt.ROW_CHOSEN: "1"} if copy.is_chosen else {}
    return encode_node(
        copy.root,
        order=len(copy.root.keys) + 1,  # without padding, because the node belongs to no tree
        created_at_millis=copy.created_at_millis,
        size_max=fmt.NODE_FILE_SIZE_BYTES_MAX,
        system=root_rows(
            copy.version,
            catalog_def=copy.catalog_def,
            catalog_id=catalog_id,
            commit_id=copy.commit_id,
            revision=PIN_REVISION,
        )
        | chosen,
    )


def decode_pin(data: bytes, path: str, catalog_id: str) -> Copy:
    """Decode the file of a pin of this catalog; an empty id stands for any catalog.

    Raises Corrupt (`corrupt_node`) and InvalidInput (`newer_format`).
    """
    file = decode_node(data, path, root=True, size_max=fmt.NODE_FILE_SIZE_BYTES_MAX)
    copy = copy_in(file, path, "a pin")
    if catalog_id and file.catalog_id not in ("", catalog_id):
        raise Corrupt(f"{path} is a pin of catalog {file.catalog_id}", kind="corrupt_node", path=path)
    return copy


async def create_pin(log: Log, version: int, *, new_id: Callable[[], str]) -> tuple[str, Copy]:
    """Pin a version. Return the path of the pin and what it holds. From now on everything that the version reaches
    stays, until no tag names the pin and the pin is old.

    Raises Expired for an expired version, NotFound (`no_version`), Corrupt, and the errors of `Storage.put`. After an
    error no pin is left, or one that no tag names.
    """
    copy = copy_of(await log.read(version, bare=True))
    return await put_pin(log, copy, lambda: verify_kept(log, copy), new_id=new_id), copy


async def put_pin(
    log: Log, copy: Copy, verify: Callable[[], Awaitable[None]], *, new_id: Callable[[], str]
) -> str:
    """Store a pin, and then call `verify`, which raises where something that the pin reaches may have been deleted
    before the pin was stored. After an error the pin is deleted, as far as the store allows it."""
    path = fmt.pin_path(new_id())
    await log.storage.put(path, encode_pin(copy, log.catalog_id))
    try:
        await failpoints.reached("pin.written")
        await verify()
    except BaseException:
        with contextlib.suppress(AlpheusError):
            await log.storage.delete(path)
        raise
    return path


async def copy_pin(log: Log, path: str, *, new_id: Callable[[], str]) -> tuple[str, Copy]:
    """Pin the version of a pin, whose slot may have expired. The caller then checks that a tag still names the pin at
    `path`, as `create_pin` reads the slot again."""
    copy = await read_pin(log, path)
    new = fmt.pin_path(new_id())
    await log.storage.put(new, encode_pin(copy, log.catalog_id))
    return new, copy


async def read_pin(log: Log, path: str) -> Copy:
    """Read a pin. Raises Corrupt (`corrupt_node`) for a pin that is missing or damaged."""
    fmt.check_pin_pointer(path)
    try:
        data = await log.storage.read(path, size_max=fmt.NODE_FILE_SIZE_BYTES_MAX)
    except NotFound:
        raise Corrupt(f"the pin {path} is missing", kind="corrupt_node", path=path) from None
    return decode_pin(data, path, log.catalog_id)
