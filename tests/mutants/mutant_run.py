"""`make mutants`: puts small faults into modules, one at a time, and reports those that no test noticed.

    python tests/mutants/mutant_run.py --module writer --count 6 --seed 1

The working tree is not changed. A temporary folder holds the module with the fault and links to the rest of its
package. The folder comes first on PYTHONPATH for the tests and for every process that they start. MUTANTS.md has the
details.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import equivalents
import msgspec
from mutations import mutations_of, sampled

ROOT = Path(__file__).resolve().parent.parent.parent
KEPT = ROOT / ".cache" / "mutants.jsonl"
TEST_SECONDS = 60
"""The limit for one test, for mutants that hang. The lists below have no slower tests."""
RUN_SECONDS = 900


class Module(msgspec.Struct, frozen=True):
    """A module and the tests that should notice its faults, the quickest files first."""

    path: str
    tests: tuple[str, ...]


MODULES = {
    "commit": Module(
        "journal/alpheus_journal/commit/committer.py",
        (
            "tests/journal/commit/test_committer.py",
            "tests/journal/commit/test_publish.py",
            "tests/journal/commit/test_commit.py",
            "tests/daemon/serve/test_group_commit.py",
        ),
    ),
    "judge": Module(
        "journal/alpheus_journal/commit/judge.py",
        (
            "tests/journal/commit/test_judge.py",
            "tests/journal/commit/test_distributed.py",
            "tests/journal/commit/test_retry_keys.py",
            "tests/journal/commit/test_commit.py",
            "tests/daemon/serve/test_group_commit.py",
        ),
    ),
    "executor": Module(
        "journal/alpheus_journal/commit/executor.py",
        (
            "tests/journal/commit/test_judge.py",
            "tests/journal/commit/test_stage.py",
            "tests/journal/commit/test_commit.py",
            "tests/journal/commit/test_distributed.py",
            "tests/journal/execute/test_change_rows.py",
        ),
    ),
    "stage": Module(
        "journal/alpheus_journal/commit/stage.py",
        (
            "tests/journal/commit/test_stage.py",
            "tests/journal/commit/test_commit.py",
            "tests/journal/commit/test_publish.py",
        ),
    ),
    "publish": Module(
        "journal/alpheus_journal/commit/publish.py",
        (
            "tests/journal/commit/test_publish.py",
            "tests/journal/commit/test_commit.py",
            "tests/journal/log/test_witnesses.py",
            "tests/faults/test_commit_faults.py",
        ),
    ),
    "follower": Module(
        "journal/alpheus_journal/replay/follower.py",
        (
            "tests/journal/replay/test_follower.py",
            "tests/journal/test_repair.py",
            "tests/journal/log/test_unlinked_head.py",
            "tests/journal/log/test_witnesses.py",
            "tests/journal/commit/test_retry_keys.py",
            "tests/faults/test_fault_rows.py",
            "tests/journal/log/test_lost_head.py",
            "tests/journal/replay/test_checkpoint.py",
            "tests/daemon/serve/test_reads.py",
            "tests/journal/test_journal.py",
        ),
    ),
    "conflicts": Module(
        "journal/alpheus_journal/conflicts/rules.py",
        (
            "tests/journal/conflicts/test_conflict_words.py",
            "tests/journal/conflicts/test_conflicts.py",
            "tests/journal/commit/test_commit.py",
            "tests/journal/execute/test_change_rows.py",
        ),
    ),
    "watch": Module(
        "daemon/alpheus_daemon/serve/watch.py",
        (
            "tests/daemon/serve/test_watch.py",
            "tests/daemon/serve/test_write_deadlines.py",
            "tests/daemon/serve/test_service.py",
        ),
    ),
    "writer": Module(
        "daemon/alpheus_daemon/serve/writer.py",
        ("tests/daemon/serve/test_writer.py", "tests/daemon/serve/test_group_commit.py"),
    ),
    "subscriptions": Module(
        "clients/alpheus/events/subscriptions.py",
        (
            "tests/clients/events/test_subscription_entries.py",
            "tests/clients/events/test_consumer.py",
            "tests/clients/events/test_subscriptions.py",
        ),
    ),
    "consumer": Module(
        "clients/alpheus/events/consumer.py",
        ("tests/clients/events/test_consumer.py", "tests/clients/events/test_subscriptions.py"),
    ),
    "positions": Module(
        "clients/alpheus/pipeline/positions.py",
        (
            "tests/clients/pipeline/test_positions.py",
            "tests/clients/pipeline/test_declarations.py",
            "tests/clients/pipeline/test_pipeline.py",
            "tests/clients/cli/test_cli_pipelines.py",
            "tests/clients/pipeline/test_runner_jobs.py",
        ),
    ),
    "leases": Module(
        "journal/alpheus_journal/log/leases.py",
        (
            "tests/journal/log/test_leases.py",
            "tests/clients/session/test_reader_leases.py",
            "tests/faults/test_lease_faults.py",
        ),
    ),
}


class Result(msgspec.Struct, frozen=True):
    """The result for one mutant. `of` is a digest of the files on which its fate depends."""

    module: str
    key: str
    of: str
    fate: str  # "caught", "too long", "survived"
    by: str = ""  # the test that failed
    seconds: float = 0.0


class Kept:
    """Results of earlier runs, so that an interrupted run resumes where it was."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[tuple[str, str, str], Result] = {}
        if path.exists():
            for line in path.read_bytes().splitlines():
                result = msgspec.json.decode(line, type=Result)
                self._found[result.module, result.key, result.of] = result

    def get(self, module: str, key: str, of: str) -> Result | None:
        return self._found.get((module, key, of))

    def put(self, result: Result) -> None:
        self._found[result.module, result.key, result.of] = result
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(result) + b"\n")


def digest_of(root: Path, module: Module) -> str:
    """Return a digest of the module and its tests."""
    found = hashlib.sha256()
    for path in (module.path, *module.tests):
        found.update((root / path).read_bytes())
    return found.hexdigest()[:16]


@contextmanager
def overlaid(root: Path, module: Module) -> Iterator[tuple[Path, Path]]:
    """Yield a folder for PYTHONPATH and the module's file in it. The folder links the package; the module is a file
    to write."""
    package = (root / module.path).parent
    while (package.parent / "__init__.py").exists():
        package = package.parent
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        for path in package.rglob("*"):
            if path.is_dir() or "__pycache__" in path.parts:
                continue
            link = Path(folder) / path.relative_to(package.parent)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
        mutated = Path(folder) / (root / module.path).relative_to(package.parent)
        mutated.unlink()
        yield Path(folder), mutated


def tested(
    root: Path, folder: Path, tests: Sequence[str], *, test_seconds: float, run_seconds: float
) -> tuple[str, str]:
    """Test the package in `folder`. Return the mutant's fate and the test that failed. Raise RuntimeError if nothing
    was tested."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-n",
        "0",
        "--no-header",
        "--tb=no",
        "-p",
        "no:cacheprovider",
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")])),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / ".hypothesis"),
    }
    environment.pop("ALPHEUS_SLOW", None)
    try:
        done = subprocess.run(
            [*command, f"--timeout={test_seconds}", *tests],
            cwd=root, env=environment, capture_output=True, text=True, timeout=run_seconds, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "too long", ""
    if done.returncode == 0:
        return "survived", ""
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if done.returncode > 2 and not failed:
        raise RuntimeError(
            f"pytest ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return "caught", failed[0].split(" - ")[0] if failed else ""


class Runner:
    """Runs tests against mutants. `tell` gets lines for the user. `kept` holds the results of this and earlier runs."""

    def __init__(
        self,
        root: Path,
        modules: dict[str, Module],
        kept: Kept,
        *,
        tell: Callable[[str], object] = print,
        test_seconds: float = TEST_SECONDS,
        run_seconds: float = RUN_SECONDS,
    ) -> None:
        self._root = root
        self._modules = modules
        self._kept = kept
        self._tell = tell
        self._test_seconds = test_seconds
        self._run_seconds = run_seconds

    def run(self, names: Sequence[str], *, count: int, seed: int) -> dict[str, list[Result]]:
        """Return the results by module. Raise RuntimeError if tests fail without a mutant."""
        results = {name: self._of_module(name, count, f"{seed} {name}") for name in names}
        for name, found in results.items():
            same = sum(is_equivalent(name, result.key) for result in found)
            noticed = sum(result.fate != "survived" for result in found)
            more = f", {same} equivalent" if same else ""
            self._tell(f"{name:14}{noticed:4} of {len(found) - same} noticed{more}")
        self._tell(f"seed {seed}: {score(results):.1%}")
        return results

    def _of_module(self, name: str, count: int, seed: str) -> list[Result]:
        module = self._modules[name]
        source = (self._root / module.path).read_text()
        chosen = sampled(source, count, seed)
        self._tell(f"{name}: {len(chosen)} of {len(mutations_of(source))} mutants")
        with overlaid(self._root, module) as (folder, file):

            def look(changed: str, key: str, what: str) -> Result:
                result = self._look(name, key, changed, folder, file)
                self._tell(f"  {result.fate:9}{result.seconds:7.1f} s  {what}  {result.by}")
                return result

            whole = look(source, "", "without a mutant")
            if whole.fate != "survived":
                raise RuntimeError(f"{name}: {whole.by or 'the tests'}: {whole.fate} without a mutant")
            found = [
                look(mutation.applied(source), mutation.key(source), f"line {mutation.line}, {mutation.what}")
                for mutation in chosen
            ]
        for mutation, result in zip(chosen, found, strict=True):
            if result.fate == "survived":
                reason = equivalents.REASONS.get(name, {}).get(result.key, "")
                self._tell(f"\n{f'equivalent: {reason}' if reason else 'survived'}\n{result.key}")
                self._tell(mutation.diff(source, module.path))
        return found

    def _look(self, name: str, key: str, changed: str, folder: Path, file: Path) -> Result:
        module = self._modules[name]
        of = digest_of(self._root, module)
        result = self._kept.get(name, key, of)
        if result is None:
            began = time.monotonic()
            for compiled in file.parent.glob(f"__pycache__/{file.stem}.*.pyc"):
                compiled.unlink()
            file.write_text(changed)
            fate, by = tested(
                self._root,
                folder,
                module.tests,
                test_seconds=self._test_seconds,
                run_seconds=self._run_seconds,
            )
            result = Result(name, key, of, fate, by, round(time.monotonic() - began, 1))
            self._kept.put(result)
        return result


def is_equivalent(name: str, key: str) -> bool:
    return key in equivalents.REASONS.get(name, {})


def score(results: dict[str, list[Result]]) -> float:
    """Return the share of mutants that were noticed, without the equivalents."""
    counted = [r for name, found in results.items() for r in found if not is_equivalent(name, r.key)]
    return sum(result.fate != "survived" for result in counted) / max(len(counted), 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Return 1 if the score is below the required one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--module", action="append", choices=[*MODULES], help="again for more; all by default"
    )
    parser.add_argument("--count", type=int, default=6, help="mutants of each module (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (%(default)s)")
    parser.add_argument(
        "--least", type=float, default=0.92, help="share that has to be noticed (%(default)s)"
    )
    parser.add_argument("--kept", type=Path, default=KEPT, help="results of earlier runs (%(default)s)")
    asked = parser.parse_args(arguments)
    runner = Runner(ROOT, MODULES, Kept(asked.kept))
    results = runner.run(asked.module or [*MODULES], count=asked.count, seed=asked.seed)
    return int(score(results) < asked.least)


if __name__ == "__main__":
    sys.exit(main())
