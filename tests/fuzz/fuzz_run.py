"""Fuzzing in forked children, with capped memory and a time limit. Every failing input is kept and can be replayed.

    python tests/fuzz/fuzz_run.py --count 20000 --seed 7          all targets, by weight
    python tests/fuzz/fuzz_run.py --target node --count 100000
    python tests/fuzz/fuzz_run.py --replay node FILE              one input, with its traceback
    python tests/fuzz/fuzz_run.py --corpus                        every kept input

`--progress FILE` records each part that passed, and the same command resumes after these parts. `--plant NAME` first
breaks a gate, to show that the fuzzing finds the fault. Failing inputs are stored in `--out` (default .cache/fuzz).
"""

from __future__ import annotations

import argparse
import ctypes
import gzip
import hashlib
import inspect
import mmap
import os
import random
import resource
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # the other allocators reserve address space ahead
_M_ARENA_MAX = -8
ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1) if sys.platform == "linux" else None

from fuzz_copies import COPY_TARGETS  # noqa: E402 - after the allocator is chosen
from fuzz_hints import HINT_TARGETS  # noqa: E402
from fuzz_targets import TARGETS, Flaw, Target  # noqa: E402

TARGETS |= COPY_TARGETS | HINT_TARGETS

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CORPUS = HERE / "corpus"

PART_INPUTS = 2_000
"""The inputs of one child."""
INPUT_CPU_SECONDS_MAX = 12.0
"""The limit for one input. The slowest known takes one to two seconds, and twice that where two threads share a
core."""
PATIENCE_CPU_SECONDS = 30.0
"""The limit for a child that finishes no input. Then the child is stopped."""
INPUT_BYTES_MAX = 8 << 20

# Gates that are broken on purpose: (module, function, text, replacement, the target that must find the fault).
PLANTS = {
    "unvalidated": ("tree.node", "_columns", "batch.validate(full=True)", "pass", "node"),
    "bomb": ("tree.node", "rows_claimed", "if _field(data, batch, 3):", "if False:", "node"),
    "pointers": ("tree.node", "_children", "map(fmt.check_node_pointer, pnodes)", "pnodes", "node"),
    "order": (
        "tree.node",
        "_pivot_table",
        "if not all(map(operator.lt, own, own[1:])):",
        "if False:",
        "node",
    ),
    "hang": (
        "tree.node",
        "_columns",
        "rows = rows_claimed(data)",
        "rows = rows_claimed(data)\n        while rows < 0: pass",
        "root",
    ),
    "definition_cap": (
        "model.definition_messages",
        "decode_definition",
        "if len(data) > fmt.DEFINITION_SIZE_BYTES_MAX:",
        "if False:",
        "definition",
    ),
    "decode_error": (
        "model.definition_messages",
        "decode_definition",
        "except (DecodeError, UnicodeDecodeError)",
        "except KeyError",
        "definition",
    ),
    "column_ids": (
        "model.definition_messages",
        "_decode_table",
        "if len(set(ids)) != len(ids) or",
        "if",
        "definition",
    ),
    "tombstones": ("log.versions", "Log._check", "if file.is_tombstone:", "if False:", "tombstone"),
    "footer_gate": (
        "tables.parquet_guard",
        "_parse_footer",
        "check_footer(end[:-TAIL_SIZE_BYTES])",
        "pass",
        "footer",
    ),
    "checkpoint_order": (
        "replay.checkpoint",
        "decode_checkpoint",
        "if not flat.keys.is_ascending() or (rows and not flat.keys[0]):",
        "if False:",
        "checkpoint",
    ),
    "checkpoint_text": (
        "replay.checkpoint",
        "decode_checkpoint",
        "column.cast(pa.large_string())",
        "pass",
        "checkpoint",
    ),
    "checkpoint_facts": (
        "replay.checkpoint",
        "_facts",
        'if not re.fullmatch("[0-9]{1,18}", text):',
        "if False:",
        "checkpoint",
    ),
    "run_order": (
        "log.index_runs",
        "_check_batch",
        "if not pc.all(",
        "if False and not pc.all(",
        "index_run",
    ),
    "run_bounds": (
        "log.index_runs",
        "_check_batch",
        'if extremes["min"] < first or extremes["max"] > last:',
        "if False:",
        "index_run",
    ),
    "segment_nulls": ("tables.manifest", "_open_batch", "_refuse_nulls(array, field)", "pass", "manifest"),
}


def plant(name: str) -> None:
    """Replace the code of one function by a broken one. The objects of the module stay the same."""
    module_name, function, text, other, _ = PLANTS[name]
    module = import_module(f"alpheus_journal.{module_name}")
    assert module.__file__ is not None
    find = attrgetter(function)
    source, whole = inspect.getsource(find(module)), Path(module.__file__).read_text()
    if source.count(text) != 1:
        raise SystemExit(f"plant {name}: {text!r} is there {source.count(text)} times")
    names: dict[str, Any] = {"__name__": module.__name__, "__file__": module.__file__}
    exec(compile(whole.replace(source, source.replace(text, other)), module.__file__, "exec"), names)
    find(module).__code__ = find(SimpleNamespace(**names)).__code__


# --- one input -------------------------------------------------------------------------------------


def _out_of_memory(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, MemoryError):
            return True
        error = error.__cause__ or error.__context__
    return False


def judge(target: Target, data: bytes) -> str:
    """Return `accepted` or the class of the refusal. Raise Flaw for everything else."""
    started = time.process_time()
    try:
        target.run(data)
        verdict = "accepted"
    except Flaw:
        raise
    except Exception as error:
        if _out_of_memory(error):
            raise Flaw(f"takes more than {target.memory >> 20} MiB") from error
        if not target.allows(error):
            raise Flaw(f"{type(error).__name__}: {str(error)[:300]}") from error
        verdict = type(error).__name__
    took = time.process_time() - started
    if took > INPUT_CPU_SECONDS_MAX:
        raise Flaw(f"took {took:.1f} s of CPU time")
    return verdict


def make(target: Target, seed: int, index: int) -> bytes:
    """Return input `index` of a seed, the same in every process."""
    rng = random.Random(f"{target.name}/{seed}/{index}")
    return target.make(rng)[:INPUT_BYTES_MAX]


def cap_memory(target: Target) -> None:
    """Limit this process's address space to `target.memory` above its use after it has run all intact seeds."""
    for data in target.whole():
        try:
            target.run(data)
        except Exception as error:
            if not target.allows(error):
                raise
    for index in range(5):
        target.make(random.Random(index))  # builds the data that later inputs are made of
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + target.memory
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


# --- children --------------------------------------------------------------------------------------


class Part(NamedTuple):
    """A range of inputs of one target."""

    target: str
    seed: int
    first: int
    count: int

    def __str__(self) -> str:
        return f"{self.target} {self.seed} {self.first} {self.count}"


class Child:
    """A forked process that works on a part. Its current input is in shared memory, which survives the process."""

    # Shared memory: index of the input, its size, inputs done, size of the report; the input; the report.
    HEAD = 32
    REPORT_MAX = 64 << 10

    def __init__(self, part: Part, patience: float) -> None:
        self.part = part
        self.patience = patience
        self.shared = mmap.mmap(-1, self.HEAD + INPUT_BYTES_MAX + self.REPORT_MAX)
        self.seen = (-1, 0.0)
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            code = 3
            try:
                code = self._work()
            except BaseException:
                self._report(traceback.format_exc())
            finally:
                os._exit(code)

    def _put(self, place: int, number: int) -> None:
        self.shared[8 * place : 8 * place + 8] = number.to_bytes(8, "little")

    def _get(self, place: int) -> int:
        return int.from_bytes(self.shared[8 * place : 8 * place + 8], "little")

    def _report(self, text: str) -> None:
        data = text.encode("utf-8", "replace")[-self.REPORT_MAX :]
        start = self.HEAD + INPUT_BYTES_MAX
        self.shared[start : start + len(data)] = data
        self._put(3, len(data))

    def _work(self) -> int:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # for libraries that write messages before they crash
        target = TARGETS[self.part.target]
        cap_memory(target)
        verdicts: Counter[str] = Counter()
        for index in range(self.part.first, self.part.first + self.part.count):
            data = make(target, self.part.seed, index)
            self._put(0, index)
            self._put(1, len(data))
            self.shared[self.HEAD : self.HEAD + len(data)] = data
            try:
                verdicts[judge(target, data)] += 1
            except Flaw as flaw:
                self._report(f"{flaw}\n{''.join(traceback.format_exception(flaw))}")
                return 2
            self._put(2, index - self.part.first + 1)
        self._report(" ".join(f"{verdict}={count}" for verdict, count in sorted(verdicts.items())))
        return 0

    def poll(self) -> int | None:
        """Return the exit status (negative: a signal), or None while the child works. Stop a child that hangs."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        done, cpu = self._get(2), self._cpu_seconds()
        if done != self.seen[0]:
            self.seen = (done, cpu)
        elif cpu - self.seen[1] > self.patience:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            return 124
        return None

    def _cpu_seconds(self) -> float:
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except OSError:
            return time.monotonic()

    @property
    def report(self) -> str:
        start = self.HEAD + INPUT_BYTES_MAX
        return self.shared[start : start + self._get(3)].decode("utf-8", "replace")

    @property
    def input(self) -> tuple[int, bytes]:
        return self._get(0), self.shared[self.HEAD : self.HEAD + self._get(1)]

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def parts(names: list[str], count: int, seed: int) -> Iterator[Part]:
    """Divide `count` inputs among the targets by weight."""
    total = sum(TARGETS[name].weight for name in names)
    for name in names:
        share = max(1, round(count * TARGETS[name].weight / total))
        for first in range(0, share, PART_INPUTS):
            yield Part(name, seed, first, min(PART_INPUTS, share - first))


class Campaign:
    def __init__(
        self, todo: list[Part], out: Path, progress: Path | None, failures_max: int, patience: float
    ) -> None:
        self.out = out
        self.patience = patience
        self.progress = progress
        self.failures_max = failures_max
        self.failures = 0
        self.verdicts: dict[str, Counter[str]] = {}
        done = self._done()
        self.todo = [part for part in todo if str(part) not in done]
        for line in done.values():
            self._count(line)

    def _done(self) -> dict[str, str]:
        """Return the parts that passed in an earlier run of the same code."""
        if self.progress is None or not self.progress.exists():
            return {}
        lines = self.progress.read_text().splitlines()
        if not lines or lines[0] != code_digest():
            return {}
        return {line.split(": ")[0]: line for line in lines[1:] if ": " in line}

    def _count(self, line: str) -> None:
        part, _, verdicts = line.partition(": ")
        counter = self.verdicts.setdefault(part.split()[0], Counter())
        for entry in verdicts.split():
            verdict, _, count = entry.partition("=")
            counter[verdict] += int(count)

    def run(self, jobs: int) -> None:
        if self.progress is not None and not self._done():
            self.progress.parent.mkdir(parents=True, exist_ok=True)
            self.progress.write_text(code_digest() + "\n")
        children: list[Child] = []
        try:
            while (self.todo or children) and self.failures < self.failures_max:
                while self.todo and len(children) < jobs:
                    children.append(Child(self.todo.pop(0), self.patience))
                time.sleep(0.01)
                for child in list(children):
                    status = child.poll()
                    if status is not None:
                        children.remove(child)
                        self._ended(child, status)
                        child.shared.close()
        finally:
            for child in children:
                child.stop()

    def _ended(self, child: Child, status: int) -> None:
        if status == 0:
            line = f"{child.part}: {child.report}"
            self._count(line)
            if self.progress is not None:
                with self.progress.open("a") as file:
                    file.write(line + "\n")
            return
        self.failures += 1
        index, data = child.input
        part = child.part
        name = f"{part.target}-{part.seed}-{index}"
        self.out.mkdir(parents=True, exist_ok=True)
        path = self.out / f"{name}.bin"
        path.write_bytes(data)
        reason = child.report
        if status < 0:
            reason = f"killed by {signal.Signals(-status).name}"
        elif status == 124:
            reason = f"hangs: {child.patience:.0f} s of CPU time without an end"
        print(f"FLAW in {part.target}, seed {part.seed}, input {index}, {len(data)} bytes: {reason.rstrip()}")
        print(f"  replay: {sys.executable} {HERE / 'fuzz_run.py'} --replay {part.target} {path}")
        rest = part.first + part.count - index - 1
        if rest > 0 and data:  # else the child ended before it made an input
            self.todo.insert(0, Part(part.target, part.seed, index + 1, rest))


def prove(out: Path, seed: int, passed_over: list[str]) -> int:
    """Break each gate in turn, but those that are passed over, and run a small fuzzing. Return how many broken gates
    were not found."""
    missed = 0
    for name, (*_, target) in PLANTS.items():
        if name in passed_over:
            continue
        TARGETS[target].whole()
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            plant(name)
            campaign = Campaign(list(parts([target], 8_000, seed)), out / name, None, 1, patience=3.0)
            campaign.run(1)
            sys.stdout.flush()
            os._exit(0 if campaign.failures else 1)
        _, status = os.waitpid(pid, 0)
        print(f"plant {name}: {'NOT FOUND' if status else 'found'}")
        missed += status != 0
    return missed


def code_digest() -> str:
    """Return a digest of the code. Counts of inputs are valid only for the same code."""
    digest = hashlib.sha256()
    for folder in (HERE, ROOT / "journal" / "alpheus_journal", ROOT / "protos" / "alpheus_pb"):
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def kept(path: Path) -> bytes:
    """Return a kept input. Long and repetitive inputs are stored packed."""
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def replay_corpus(left_out: list[str]) -> int:
    """Run every kept input but those that are left out, the inputs of one target in one child. Return how many targets
    failed."""
    files = sorted(path for path in CORPUS.glob("*/*") if path.is_file() and path.name not in left_out)
    failures = 0
    for name in sorted({path.parent.name for path in files}):
        TARGETS[name].whole()
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                cap_memory(TARGETS[name])
                for path in files:
                    if path.parent.name == name:
                        # The name is written first, so that the last line names the input that ended the process.
                        os.write(1, f"{path.relative_to(CORPUS)} ".encode())
                        os.write(1, judge(TARGETS[name], kept(path)).encode() + b"\n")
                code = 0
            except BaseException:
                os.write(1, traceback.format_exc().encode())
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        if status:
            failures += 1
            print(f"\nFLAW in {name}: ends with {os.waitstatus_to_exitcode(status)}")
    print(f"corpus: {len(files)} inputs, {failures} failures")
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", action="append", choices=TARGETS, help="repeated; all without it")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--out", type=Path, default=ROOT / ".cache" / "fuzz")
    parser.add_argument("--progress", type=Path, default=None)
    parser.add_argument("--failures", type=int, default=5, help="stop after so many")
    parser.add_argument("--patience", type=float, default=PATIENCE_CPU_SECONDS, help="CPU seconds")
    parser.add_argument("--plant", choices=PLANTS)
    parser.add_argument("--prove", action="store_true", help="every plant in turn must be found")
    parser.add_argument("--pass-over", action="append", default=[], choices=PLANTS, help="not this one")
    parser.add_argument("--replay", nargs=2, metavar=("TARGET", "FILE"))
    parser.add_argument("--corpus", action="store_true")
    parser.add_argument("--leave-out", action="append", default=[], help="not this file of the corpus")
    options = parser.parse_args()
    threading.stack_size(1 << 20)
    if options.plant:
        plant(options.plant)
    if options.replay:
        target = TARGETS[options.replay[0]]
        cap_memory(target)
        print(judge(target, kept(Path(options.replay[1]))))
        return 0
    if options.corpus:
        return 1 if replay_corpus(options.leave_out) else 0
    seed = random.randrange(1 << 31) if options.seed is None else options.seed
    if options.prove:
        return 1 if prove(options.out, seed, options.pass_over) else 0
    names = options.target or list(TARGETS)
    for name in names:
        TARGETS[name].whole()
    started = time.monotonic()
    todo = list(parts(names, options.count, seed))
    random.Random(seed).shuffle(todo)  # so that a stopped run has tried some inputs of all targets
    campaign = Campaign(todo, options.out, options.progress, options.failures, options.patience)
    campaign.run(options.jobs)
    took = time.monotonic() - started
    total = 0
    for name, verdicts in sorted(campaign.verdicts.items()):
        total += verdicts.total()
        print(f"{name:16} {verdicts.total():9,}  {dict(sorted(verdicts.items()))}")
    print(f"seed {seed}: {total:,} inputs passed, {campaign.failures} flaws, {took:.0f} s")
    return 1 if campaign.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
