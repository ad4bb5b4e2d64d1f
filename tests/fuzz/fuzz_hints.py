"""Fuzzing of a catalog's files that only save time: checkpoints and index runs."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from fuzz_arrow import anatomy, hostile_text, mutate_arrow, mutate_bytes
from fuzz_seeds import hints
from fuzz_targets import (
    ArrowTarget,
    Flaw,
    Target,
    arrow_file,
    require,
    run,
    safe_path,
    storage_of,
    with_refusal,
)

from alpheus_journal import format as fmt
from alpheus_journal.errors import AlpheusError, Corrupt
from alpheus_journal.log import index_runs
from alpheus_journal.replay import checkpoint
from alpheus_journal.replay.flat import Flat, column_of
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import Lake


class _HintTarget(ArrowTarget):
    """A file that is alone in `checkpoint/`. The first byte tells which seed it replaces.

    Half of the inputs have correct checksums and wrong content, which a reader takes for whole.
    """

    def files(self) -> dict[str, bytes]:
        raise NotImplementedError

    def forged(self, data: bytes, rng: random.Random) -> bytes:
        raise NotImplementedError

    def healed(self, seed: bytes, data: bytes, bodies: list[bytes]) -> bytes:
        """Return `data`, made of `seed` without moving anything, with correct checksums of its changed buffers."""
        raise NotImplementedError

    def seeds(self) -> list[bytes]:
        return [bytes([place]) + data for place, data in enumerate(self.files().values())]

    def make(self, rng: random.Random) -> bytes:
        seeds = list(self.files().values())
        if not self._parts:
            self._parts = [anatomy(seed) for seed in seeds]
        index = rng.randrange(len(seeds))
        if rng.random() < 0.5:
            data = self.forged(seeds[index], rng)
        else:
            data = mutate_arrow(seeds[index], self._parts[index], rng, seeds)
            if len(data) == len(seeds[index]) and rng.random() < 0.6:
                data = self.healed(
                    seeds[index], data, [data[at : at + n] for at, n in self._parts[index].bodies]
                )
        return bytes([index if rng.random() < 0.95 else rng.randrange(8)]) + data

    def path(self, data: bytes) -> str:
        paths = list(self.files())
        return paths[(data[0] if data else 0) % len(paths)]

    async def lake(self, path: str, data: bytes) -> Lake:
        lake = Lake(storage=MemoryStorage())
        lake.clock.millis = hints().millis
        for other, stored in {**hints().files, path: data}.items():
            await lake.storage.put(other, stored)
        return lake


def rewritten_arrow(columns: Sequence[pa.Array], schema: pa.Schema, metadata: dict[Any, Any]) -> bytes:
    """Return valid Arrow. Columns of different lengths are cut to the shortest."""
    rows = min(map(len, columns))
    columns = [pa.concat_arrays([column.slice(0, rows)]) for column in columns]
    return arrow_file(pa.record_batch(columns, schema=schema.with_metadata(metadata)))


def mutated_values(values: list[Any], rng: random.Random, other: Callable[[Any], Any]) -> None:
    """Change one cell, the order, or the number of values."""
    place = rng.randrange(len(values)) if values else 0
    match rng.randrange(6) if values else 5:
        case 0 | 1 | 2:
            values[place] = other(values[place])
        case 3:
            far = rng.randrange(len(values))
            values[place], values[far] = values[far], values[place]
        case 4:
            del values[place]
        case _:
            values.insert(place, values[place] if values else other(None))


class CheckpointTarget(_HintTarget):
    """Checkpoints through `open_checkpoint`, then a start of the catalog from them, whether they were refused or
    not."""

    name = "checkpoint"

    def files(self) -> dict[str, bytes]:
        return hints().checkpoints

    def forged(self, data: bytes, rng: random.Random) -> bytes:
        facts, flat = checkpoint.decode_checkpoint(data)
        columns: list[list[bytes | None]] = [
            column.array.to_pylist() for column in (flat.keys, flat.paths, flat.definitions)
        ]

        def cell(value: bytes | None) -> bytes | None:
            if value is None or rng.random() < 0.2:
                return rng.choice(
                    (None, b"", b"\xff", b"\xed\xa0\x80", b" ", b"B=== !", b"C===n }}0 }", b"x" * 9000)
                )
            changed = bytearray(value)
            if rng.random() < 0.5:
                text = hostile_text(rng, value.decode("latin-1"))
                return None if text is None else text.encode()
            mutate_bytes(changed, rng, [value])
            return bytes(changed)

        for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
            mutated_values(rng.choice(columns), rng, cell)
        arrays = [column_of(values) for values in columns]
        rows = min(map(len, arrays))
        arrays = [pa.concat_arrays([array.slice(0, rows)]) for array in arrays]
        facts = msgspec.structs.replace(facts, objects=rows)
        metadata = checkpoint._metadata(facts, checkpoint._checksums(Flat(*arrays), rows))
        if rng.random() < 0.4:
            name = rng.choice(sorted(metadata))
            metadata[name] = hostile_text(rng, metadata[name]) or ""
            if rng.random() < 0.3:
                metadata[name] = rng.choice(("-1", "+1", "1_0", " 1", "٣", "9" * 18, "9" * 19, "9" * 5000))
            elif rng.random() < 0.3:
                del metadata[name]
            if rng.random() < 0.8:
                metadata[checkpoint._METADATA_CHECKSUM] = checkpoint._metadata_checksum(metadata)
        return rewritten_arrow(arrays, checkpoint.SCHEMA, metadata)

    def healed(self, seed: bytes, data: bytes, bodies: list[bytes]) -> bytes:
        facts, flat = checkpoint.decode_checkpoint(seed)
        rows, sums = len(flat), []
        validities = [b""] * 3
        if len(bodies) == 7:
            validities[2] = bodies.pop(4)[: (rows + 7) // 8]
        for validity, offsets, values in zip(validities, bodies[::2], bodies[1::2], strict=True):
            offsets = offsets[: 8 * (rows + 1)]
            end = int.from_bytes(offsets[-8:], "little", signed=True)
            sums += [zlib.crc32(part) for part in (validity, offsets, values[:end])]
        before = checkpoint._metadata(facts, checkpoint._checksums(flat, rows))
        after = checkpoint._metadata(facts, ",".join(f"{number:08x}" for number in sums))
        for name in (checkpoint._CHECKSUMS, checkpoint._METADATA_CHECKSUM):
            data = data.replace(before[name].encode(), after[name].encode())
        return data

    def run(self, data: bytes) -> None:
        path = self.path(data)
        refusal: AlpheusError | None = None
        try:
            opened = run(checkpoint.open_checkpoint(storage_of({path: data[1:]}), path))
        except AlpheusError as error:
            refusal = error
        else:
            self.keeps(opened)
        if refusal is None or data[-20:-10].count(0) % 4 == 1:  # a start costs more than a refusal
            run(self._start(path, data[1:]))
        if refusal is not None:
            raise refusal

    def keeps(self, opened: checkpoint.Opened) -> None:
        """Check the properties that a state relies on."""
        flat, facts = opened.flat, opened.facts
        keys = [flat.keys[row] for row in range(len(flat))]
        require(keys == sorted(set(keys)) and b"" not in keys, "keys ascend strictly")
        require(flat.keys.slice(0, len(keys)) == keys, "rows as a slice")
        require(len(keys) == facts.objects == len(flat.paths) == len(flat.definitions), "all columns")
        require(safe_path(facts.catalog_def), f"a path: {facts.catalog_def!r}")
        numbers = (facts.version, facts.created_at_millis, facts.version_created_at_millis, facts.objects)
        require(all(0 <= number < 10**18 for number in numbers), "numbers")
        require(facts.catalog_def_bytes != b"", "a catalog definition, or none")
        for row, key in enumerate(keys):
            require(flat.keys.find(key) == row == flat.keys.position(key), "a key is found")
            require(isinstance(flat.path(row), str), "a path is text")
            with_refusal(Corrupt, lambda row=row: fmt.Keys().parse(flat.keys.key(row)))  # type: ignore[misc]
        again = checkpoint.encode_checkpoint(flat, facts)
        same, other = checkpoint.decode_checkpoint(again)
        require(same == facts, "facts as they were read")
        require([other.keys[row] for row in range(len(other))] == keys, "written as read")

    async def _start(self, path: str, data: bytes) -> None:
        """Check that a start raises nothing and has nothing that the tree does not have. A bad checkpoint only costs
        time."""
        journal = await (await self.lake(path, data)).open()
        try:
            state = await journal.load_state()
            found = dict(state.entries())
            require(found.items() <= hints().objects.items(), "what the tree does not say")
            counts = journal.replay.counts
            if counts.loads_from_tree:
                require(found == hints().objects, "all that the tree says")
                require(journal.replay.skipped, "why it was passed over")
        except Exception as error:
            raise Flaw(f"a start with it: {type(error).__name__}: {str(error)[:200]}") from error
        finally:
            await journal.close()


class IndexRunTarget(_HintTarget):
    """Index runs through `decode_run`, then a search and a new run over them, whether they were refused or not."""

    name = "index_run"

    def files(self) -> dict[str, bytes]:
        return hints().runs

    def forged(self, data: bytes, rng: random.Random) -> bytes:
        batch = pa.ipc.open_file(data).get_batch(0)
        metadata: dict[bytes, bytes] = dict(batch.schema.metadata)
        columns = [column.to_pylist() for column in batch.columns]

        def cell(value: int | None) -> int:
            now = value or 0
            return (
                rng.choice((0, 1, now + 1, max(now - 1, 0), now ^ 1 << rng.randrange(64), 2**64 - 1)) % 2**64
            )

        for _ in range(rng.choice((0, 1, 1, 2))):
            mutated_values(rng.choice(columns), rng, cell)
        rows = min(map(len, columns))
        arrays = [pa.array(values[:rows], pa.uint64()) for values in columns]
        if rng.random() < 0.5:
            name = rng.choice(sorted(metadata))
            text = hostile_text(rng, metadata[name].decode())
            metadata[name] = (text or "").encode() if rng.random() < 0.5 else b"%d" % rng.randrange(9)
            if text is None:
                del metadata[name]
        if rng.random() < 0.95:
            views = [memoryview(array.buffers()[1] or b"")[: 8 * rows] for array in arrays]
            metadata[index_runs._CRC] = index_runs._crc(metadata, views)
        return rewritten_arrow(arrays, index_runs.SCHEMA, metadata)

    def healed(self, seed: bytes, data: bytes, bodies: list[bytes]) -> bytes:
        metadata = pa.ipc.open_file(seed).schema.metadata
        after = index_runs._crc(metadata, map(memoryview, bodies))
        return data.replace(metadata[index_runs._CRC], after)

    def run(self, data: bytes) -> None:
        path = self.path(data)
        refusal: AlpheusError | None = None
        try:
            found = index_runs.decode_run(data[1:], path, catalog_id=hints().catalog_id)
        except AlpheusError as error:
            refusal = error
        else:
            self.keeps(found, path)
        if refusal is None or data[-20:-10].count(0) % 4 == 1:
            run(self._search(path, data[1:]))
        if refusal is not None:
            raise refusal

    def keeps(self, found: index_runs.Run, path: str) -> None:
        numbers, versions = found.fingerprints.tolist(), found.versions.tolist()
        require(numbers == sorted(numbers), "fingerprints ascend")
        require(len(numbers) == len(versions) == len(found), "a version for each")
        require(0 <= found.first <= found.last == index_runs.last_version(path), "bounds, as the path says")
        require(all(found.first <= version <= found.last for version in versions), "versions within them")
        for number in numbers:
            require(
                sorted(found.find(number))
                == sorted(at for other, at in zip(numbers, versions, strict=True) if other == number),
                "what is sought is found",
            )
        require(index_runs.clip_run(found, found.first, found.last).versions.tolist() == versions, "clipped")
        merged = index_runs.merge_runs([found, found])
        pairs = sorted(set(zip(numbers, versions, strict=True)))
        require(
            list(zip(merged.fingerprints.tolist(), merged.versions.tolist(), strict=True)) == pairs, "merged"
        )

    async def _search(self, path: str, data: bytes) -> None:
        """Check that a refused run only costs time, and that an accepted one at most hides versions."""
        journal = await (await self.lake(path, data)).open()
        try:
            for version, id in enumerate(hints().ids, 1):
                outcome = await journal.outcome(id, since=0)
                trusts_checkpoint = outcome.commit is not None and outcome.commit.version == version
                require(trusts_checkpoint or outcome.state == "unknown", "the right version, or none")
                require(trusts_checkpoint or journal.index.runs_count, "an id is found without runs")
            await journal.write_index()
            head = journal.head.version
            require(not index_runs.gaps(journal.index._stored.values(), 0, head), "all is covered")
        except Flaw:
            raise
        except Exception as error:
            raise Flaw(f"a search with it: {type(error).__name__}: {str(error)[:200]}") from error
        finally:
            await journal.close()


HINT_TARGETS: dict[str, Target] = {target.name: target for target in (CheckpointTarget(), IndexRunTarget())}
