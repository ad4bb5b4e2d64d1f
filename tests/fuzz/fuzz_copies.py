"""Fuzz targets: copies of roots, which are leases and pins."""

from __future__ import annotations

from fuzz_targets import MIB, NodeTarget, Target, lakes, require, safe_path

from alpheus_journal.format import NodePath
from alpheus_journal.log.copies import Copy
from alpheus_journal.log.leases import Lease, decode_lease, encode_lease
from alpheus_journal.log.pins import decode_pin, encode_pin
from alpheus_journal.tree.node import decode_node


def copies_of_roots() -> list[Copy]:
    found = []
    for version, data in lakes().roots[:20]:
        file = decode_node(data, "x", root=True, size_max=MIB)
        copy = Copy(
            version=version,
            commit_id=file.commit_id or "sha256-0",
            created_at_millis=file.created_at_millis or 0,
            catalog_def=file.catalog_def,
            root=file.node,
        )
        found.append(copy)
    return found


class LeaseTarget(NodeTarget):
    """Leases of readers, through `decode_lease`."""

    name = "lease"
    weight = 1.0
    path = NodePath("lease/00000000-0000-4000-8000-000000000009.arrow")

    def seeds(self) -> list[bytes]:
        return [
            encode_lease(Lease(copy=copy, lease_millis=60_000 + copy.version, holder="ana@x"))
            for copy in copies_of_roots()
        ]

    def run(self, data: bytes) -> None:
        lease = decode_lease(data, self.path)
        self.keeps(lease.copy.root)
        require(1_000 <= lease.lease_millis <= 86_400_000, "a time to live")
        require(lease.copy.version >= 0 and lease.copy.created_at_millis >= 0, "a version and its time")
        require(bool(lease.copy.commit_id), "a commit id")
        require(safe_path(lease.copy.catalog_def), f"a path: {lease.copy.catalog_def!r}")
        require(len(lease.holder.encode()) <= 1024, "a holder")
        if "" not in lease.copy.root.values:
            require(decode_lease(encode_lease(lease), self.path) == lease, "written as read")


class PinTarget(NodeTarget):
    """Pins of tags, through `decode_pin`. Half of the inputs are of revision 1 and have no checksum, which would hide
    all other faults."""

    name = "pin"
    weight = 1.0
    path = NodePath("pin/00000000-0000-4000-8000-000000000009.arrow")

    def seeds(self) -> list[bytes]:
        copies = copies_of_roots()
        whole = [encode_pin(copy, "cat") for copy in copies]
        bare = [encode_lease(Lease(copy=copy, lease_millis=60_000)) for copy in copies]
        return whole + bare

    def run(self, data: bytes) -> None:
        copy = decode_pin(data, self.path, "cat")
        self.keeps(copy.root)
        require(copy.version >= 0 and copy.created_at_millis >= 0, "a version and its time")
        require(bool(copy.commit_id), "a commit id")
        require(safe_path(copy.catalog_def), f"a path: {copy.catalog_def!r}")
        if "" not in copy.root.values:
            require(decode_pin(encode_pin(copy, "cat"), self.path, "cat") == copy, "written as read")


COPY_TARGETS: dict[str, Target] = {target.name: target for target in (LeaseTarget(), PinTarget())}
