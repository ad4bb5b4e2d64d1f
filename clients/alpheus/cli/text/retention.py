"""What an expiry and a collection did, or would do, in plain words."""

from __future__ import annotations

from alpheus.cli.text.output import columns_text
from alpheus.display import count_text, printable, size_text, time_text
from alpheus.models import Collection, Expiry, FileTotals

KEEPERS = {
    "versions": "kept versions",
    "pins": "tags that are being made",
    "leases": "leases of readers",
    "transactions": "saved transactions",
    "exports": "exports of another writer",
}


def expiry_text(expiry: Expiry) -> str:
    """Return what expires, what is kept, and who holds versions back."""
    lines = []
    if expiry.planned:
        does = "would expire" if expiry.dry_run else "expired"
        span = _versions_text(expiry.first_version, expiry.oldest_version - 1).partition(" ")[2]
        lines.append(f"{count_text(expiry.planned, 'version')} {does}: {span}")
    else:
        lines.append("nothing to do: no version may expire")
    kept = "stay" if expiry.version > expiry.oldest_version else "stays"
    lines.append(f"{_versions_text(expiry.oldest_version, expiry.version)} {kept}")
    if expiry.oldest_version < expiry.wanted_version:
        held = _versions_text(expiry.oldest_version, expiry.wanted_version - 1)
        lines.append(f"old enough but held back: {held}")
    for hold in expiry.holds:
        if hold.let_go:
            lines.append(
                f"let go: {_holder_text(hold.kind, hold.name)} needs version {hold.version} and later,"
                " but has waited for too long"
            )
        elif hold.kind in ("table", "namespace"):
            lines.append(
                f"held back by {_holder_text(hold.kind, hold.name)}, whose rules of history keep version {hold.version}"
                " and later"
            )
        else:
            lines.append(
                f"held back by {_holder_text(hold.kind, hold.name)}, which needs version {hold.version} and later"
            )
    return "\n".join(printable(line) for line in lines)


def _holder_text(kind: str, name: str) -> str:
    what = {"pipeline": "the job of a pipeline", "transaction": "the saved transaction"}
    return f"{what.get(kind, f'the {kind}')} {name}"


def _versions_text(first: int, last: int) -> str:
    return f"version {first}" if first == last else f"versions {first} to {last}"


def collection_text(collection: Collection) -> str:
    """Return what goes, what is kept and why."""
    lines = []
    shown = collection.unreferenced if collection.dry_run else collection.deleted
    total = collection.unreferenced_total if collection.dry_run else collection.deleted_total
    if total.files:
        does = "would be deleted" if collection.dry_run else "deleted"
        lines.append(f"{_totals_text(total)} {does}")
        rows = [(f"  {kind}", each.files, size_text(each.size_bytes)) for kind, each in shown.items()]
        lines.append(columns_text(["  KIND", "FILES", "SIZE"], rows))
    elif not collection.uploads.abandoned:
        lines.append("nothing to do: every file that is old enough is needed")
    for one in collection.earlier:
        does = "would go" if collection.dry_run else "went"
        lines.append(
            printable(
                f"of table {one.table} {_totals_text(one.files)} {does} by its rules of history: it cannot be read"
                f" below version {one.start_version}"
            )
        )
    lines += _uploads_lines(collection)
    for by, totals in collection.kept_by.items():
        if by.startswith("data root "):
            lines.append(printable(f"skipped: {by}"))
            continue
        who = f"{by} alone" if by.startswith("tag ") else KEEPERS.get(by, by)
        lines.append(printable(f"kept for {who}: {_totals_text(totals)}"))
    versions = _versions_text(collection.first_version, collection.last_version)
    lines.append(f"kept versions: {versions}")
    if collection.young.files:
        lines.append(
            f"too young to judge, written since {time_text(collection.cutoff)}: {_totals_text(collection.young)}"
        )
    if collection.fence_version is not None:
        lines.append(f"the collection committed version {collection.fence_version}")
    return "\n".join(lines)


def _uploads_lines(collection: Collection) -> list[str]:
    """Return what becomes of open uploads, in lines; none where there are no such uploads."""
    uploads, lines = collection.uploads, []
    if uploads.abandoned:
        count = uploads.abandoned if collection.dry_run else uploads.aborted
        does = "would be aborted" if collection.dry_run else "aborted"
        lines.append(f"{count_text(count, 'open upload')} {does}")
    if uploads.kept:
        lines.append(f"kept for leases of writers: {count_text(uploads.kept, 'open upload')}")
    if uploads.young:
        lines.append(f"too young to judge: {count_text(uploads.young, 'open upload')}")
    lines += [printable(f"skipped: {text}") for text in uploads.skipped]
    return lines


def _totals_text(totals: FileTotals) -> str:
    return f"{count_text(totals.files, 'file')}, {size_text(totals.size_bytes)}"
