"""Rules of the repository that a reviewer would otherwise have to check: layers, places, sizes, words.

`python -m alpheus_pb --check` finds drift of generated code. `make test` runs it separately, because the check needs
its own environment.
"""

from __future__ import annotations

import ast
import asyncio
import re
import subprocess
from collections import Counter
from collections.abc import Collection, Iterator
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from blockbuster import BlockingError

ROOT = Path(__file__).resolve().parent.parent

PACKAGES = {
    "alpheus_pb": ROOT / "protos" / "alpheus_pb",
    "alpheus_journal": ROOT / "journal" / "alpheus_journal",
    "alpheus_daemon": ROOT / "daemon" / "alpheus_daemon",
    "alpheus": ROOT / "clients" / "alpheus",
    "pyspark_alpheus": ROOT / "clients" / "pyspark_alpheus",
}

# The packages of ours that each package may import, besides itself.
MAY_IMPORT = {
    "alpheus_pb": set[str](),
    "alpheus_journal": {"alpheus_pb"},
    "alpheus_daemon": {"alpheus_journal", "alpheus_pb"},
    "alpheus": {"alpheus_journal", "alpheus_pb"},
    "pyspark_alpheus": {"alpheus"},  # an entry point for Spark, which looks for modules of that name
}

GROUND = {
    "alpheus_journal": "errors format clock data_roots failpoints mmap_file urls",
    "alpheus_daemon": "config tag_rules",
    "alpheus": "models model_conversions errors closing display callables",
}
"""Modules that every room of their package may import. They do not import each other in a ring."""

ARROWS = {
    "alpheus_journal": {
        "repair": "journal replay log model storage",
        "journal": (
            "check collect create_catalog wire commit execute.rules workspace tags replay conflicts log tree model"
            " storage"
        ),
        "access": "replay model storage",
        "check": "execute workspace tags replay log tables tree model rooted_storage storage",
        "collect": "commit wire workspace tags replay log tables tree model rooted_storage storage",
        "wire": "replay model",
        "create_catalog": "commit workspace log tree model storage",
        "commit": "execute execute.rules workspace tags replay conflicts log tables tree model rooted_storage storage",
        "execute": "execute.rules workspace tables model",
        "execute.rules": "workspace predicate tables model",
        "workspace": "conflicts tables tree model",
        "tags": "replay log tree model",
        "replay": "conflicts log tree model rooted_storage storage",
        "conflicts": "predicate model",
        "predicate": "tables model",
        "log": "tree model storage",
        "tables": "tree model",
        "tree": "model storage",
        "model": "",
        "rooted_storage": "storage",
        "storage": "",
    },
    "alpheus_daemon": {
        "__main__": "main",
        "main": "gauges instrumented maintenance retention serve tag_upkeep telemetry",
        "gauges": "instrumented maintenance retention serve tag_upkeep telemetry",
        "instrumented": "serve telemetry",
        "maintenance": "retention tag_upkeep telemetry",
        "tag_upkeep": "telemetry",
        "serve": "retention telemetry",
        "retention": "telemetry",
        "telemetry": "",
    },
    "alpheus": {
        "__main__": "cli",
        "demo": "alpheus pipeline spark",
        "cli": "alpheus catalog cli.text events importing pipeline session spark spark.workers sync transactions",
        "cli.text": "catalog importing pipeline transactions",
        "spark": (
            "alpheus catalog feed importing pipeline rows session spark.files spark.streams spark.tables"
            " spark.workers sync transactions"
        ),
        "spark.streams": (
            "alpheus aio catalog feed rows rows.arrow session spark.files spark.tables spark.workers sync transactions"
        ),
        "spark.tables": "catalog rows session spark.files sync transactions where",
        "spark.workers": "spark.files",
        "spark.files": "rows rows.arrow sync",
        "pipeline": "aio catalog events feed session sync",
        "feed": "aio catalog events rows session sync",
        "alpheus": "aio catalog session sync transactions",
        "catalog": "aio events importing rows session sync transactions",
        "aio": "admin events importing rows session transactions",
        "sync": "admin events rows session transactions",
        "admin": "events rows session",
        "importing": "events rows rows.arrow session transactions",
        "events": "session",
        "transactions": "rows rows.arrow session",
        "session": "rows",
        "rows": "rows.arrow where",
        "rows.arrow": "",
        "where": "",
    },
}
"""The rooms of each package, upper rooms first, and the rooms that each room may import besides the ground. Imports
inside functions and below TYPE_CHECKING count. A room is a folder; a module outside of folders is a room by itself."""

UNDRAWN = {"__main__", "alpheus", "alpheus_journal"}
"""Rooms that the picture of rooms need not name."""

SPARK = "alpheus.spark"  # the only place that imports pyspark

LINES_MAX = 1000
LONGER_FOR_A_REASON: dict[str, str] = {  # path -> reason
    "tests/journal/conflicts/test_conflicts.py": "the two tables of pairs are read, and checked for gaps, as one",
}

PRIVATE_NAMES_OF_OTHERS = {  # names of other libraries that offer no public way
    "_replace": "namedtuple",
    "_jdf": "PySpark",
    "_jsc": "PySpark",
    "_jsparkSession": "PySpark",
    "_jvm": "PySpark",
    "_spark": "PySpark",
    "_df": "PySpark",
    "_name": "prometheus_client",
    "_labelnames": "prometheus_client",
    "_SimpleCData": "ctypes",
    "_retry_connection": "aiohttp",
}

VAGUE_NAMES = {"util", "utils", "helper", "helpers", "manager", "managers"}

# Each pattern is spelt so that it does not match its own source.
FORBIDDEN = {
    "a package index": r"(?i)\b(?:(?:pypi|pythonhosted|npmjs)[.]org|crates[.]io|repo1?[.]maven|goproxy[.])",
    "a path of one machine": r"(?<![\w.})-])/(?:work|root)/",
    "an unfinished place": r"\b(?:TOD[O]|FIXM[E]|XX[X])\b",
}

ALLOWED = {  # path -> the forbidden thing that it may hold
    "clients/alpheus/spark/hadoop_aws.lock": "a package index",  # the public one of jars; ALPHEUS_MAVEN replaces it
}


@cache
def repository_files() -> tuple[Path, ...]:
    """Return every file that is or would be committed; without git, every file except the output of runs."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    names = listed.stdout.decode().split("\0") if listed.returncode == 0 else []
    if "pyproject.toml" not in names:
        left_behind = {".venv", ".git", ".cache", "__pycache__", "artifacts", "dist", "spark-warehouse"}
        left_behind |= {".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", "metastore_db"}
        names = [
            str(path.relative_to(ROOT))
            for path in ROOT.rglob("*")
            if not left_behind & set(path.relative_to(ROOT).parts)
        ]
    return tuple(sorted(ROOT / name for name in names if name and (ROOT / name).is_file()))


def is_generated(path: Path) -> bool:
    return path.parent == PACKAGES["alpheus_pb"] / "v1"


def module_name(path: Path, package: str) -> str:
    parts = path.relative_to(PACKAGES[package].parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def our_modules() -> dict[str, ast.Module]:
    return {
        module_name(path, package): ast.parse(path.read_bytes(), str(path))
        for package, directory in PACKAGES.items()
        for path in sorted(directory.rglob("*.py"))
    }


def imports(tree: ast.AST, *, at_import_time: bool = False) -> Iterator[tuple[str, int]]:
    """Yield the names that the code imports, with lines. `from a import b` gives `a` and `a.b`; a relative import gives
    `.`.

    With `at_import_time` function bodies and `if TYPE_CHECKING:` are skipped.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((name.name, node.lineno) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield ".", node.lineno
            else:
                yield node.module or "", node.lineno
                yield from ((f"{node.module}.{name.name}", node.lineno) for name in node.names)
        elif at_import_time and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        elif at_import_time and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                yield from imports(ast.Module([other], []), at_import_time=True)
        else:
            yield from imports(node, at_import_time=at_import_time)


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def wrong_arrows(module: str, tree: ast.AST) -> list[str]:
    """Return the imports of `module` that are relative, point up, or import Spark outside of its package."""
    package = module.partition(".")[0]
    found = set()
    for name, line in imports(tree):
        top = name.partition(".")[0]
        if name == ".":
            found.add(f"{module}:{line}: relative import")
        elif top in PACKAGES and top != package and top not in MAY_IMPORT[package]:
            found.add(f"{module}:{line}: {package} must not import {top}")
        elif top in {"pyspark", "py4j"} and not is_within(module, SPARK):
            found.add(f"{module}:{line}: only {SPARK} imports {top}")
    return sorted(found)


def room_of(module: str) -> str:
    """Return the room of a module, without the name of its package: `commit` for `alpheus_journal.commit.judge`."""
    package, _, rest = module.partition(".")
    if not rest:
        return package
    path = PACKAGES[package] / Path(*rest.split("."))
    return rest if path.is_dir() else rest.rpartition(".")[0] or rest


@cache
def import_statements(tree: ast.AST) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Return all imports of a module, also those inside functions."""
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))


def siblings_of(module: str, tree: ast.AST, modules: Collection[str]) -> Iterator[tuple[str, int]]:
    """Yield the modules of its own package that a module imports, with lines."""
    for node in import_statements(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [name.name for name in node.names]
        elif node.module:
            full = [f"{node.module}.{name.name}" for name in node.names]
            names = [name if name in modules else node.module for name in full]
        for name in names:
            if name in modules and name.partition(".")[0] == module.partition(".")[0]:
                yield name, node.lineno


def wrong_rooms(module: str, tree: ast.AST, modules: Collection[str]) -> list[str]:
    """Return the imports of rooms that the room of `module` may not know."""
    package, room = module.partition(".")[0], room_of(module)
    ground = set(GROUND[package].split())
    allowed = ground | ({room} if room in ground else {room, *ARROWS[package].get(room, "").split()})
    return sorted(
        {
            f"{module}:{line}: {room} must not import {room_of(other)}"
            for other, line in siblings_of(module, tree, modules)
            if room_of(other) not in allowed
        }
    )


def roomed_modules() -> dict[str, ast.Module]:
    """Return all modules that belong to rooms. The testing package, which ships for tests, may import everything."""
    return {
        module: tree
        for module, tree in our_modules().items()
        if module.partition(".")[0] in ARROWS and not is_within(module, "alpheus_journal.testing")
    }


@pytest.mark.parametrize("package", ARROWS)
def test_arrows_between_rooms_point_down(package: str) -> None:
    """A room imports only rooms that stand below it in the table. So there is no ring of rooms."""
    rooms = [*ARROWS[package]]
    for place, (room, known) in enumerate(ARROWS[package].items()):
        assert set(known.split()) <= set(rooms[place + 1 :]), room


def test_rooms_import_what_the_table_says() -> None:
    modules = our_modules()
    faults = [
        fault for module, tree in roomed_modules().items() for fault in wrong_rooms(module, tree, modules)
    ]
    assert faults == []


def test_the_table_of_rooms_names_no_more_than_there_is() -> None:
    modules = our_modules()
    used = {package: {room: set[str]() for room in rooms} for package, rooms in ARROWS.items()}
    for module, tree in roomed_modules().items():
        package, room = module.partition(".")[0], room_of(module)
        if room in used[package]:
            used[package][room] |= {room_of(name) for name, _ in siblings_of(module, tree, modules)} - {room}
    for package, rooms in ARROWS.items():
        for room, known in rooms.items():
            assert set(known.split()) <= used[package][room], f"{package}: {room} has arrows that nobody uses"


def test_no_module_imports_itself_in_a_ring() -> None:
    modules = our_modules()
    imported = {
        module: {name for name, _ in siblings_of(module, tree, modules)} - {module}
        for module, tree in roomed_modules().items()
    }
    while imported:  # remove the modules that import no remaining module
        free = [module for module, names in imported.items() if not names & imported.keys()]
        assert free, f"a ring among {sorted(imported)}"
        for module in free:
            del imported[module]


def test_a_wrong_room_is_found() -> None:
    modules = {"alpheus_journal.model.answers", "alpheus_journal.commit.judge", "alpheus_journal.commit"}
    tree = ast.parse(
        "def f():\n    from alpheus_journal.commit import judge\nfrom alpheus_journal import model"
    )
    assert wrong_rooms("alpheus_journal.model.answers", tree, modules) == [
        "alpheus_journal.model.answers:2: model must not import commit"
    ]
    assert wrong_rooms("alpheus_journal.commit.stage", tree, modules) == []


def reaches_spark(module: str, imported: dict[str, list[str]]) -> list[str]:
    """Return the chain of imports from `module` to pyspark; empty when there is none. `imported`: see `imports_of`."""
    chains = [[module]]
    seen = {module}
    while chains:
        chain = chains.pop()
        for name in imported[chain[-1]]:
            if is_within(name, "pyspark"):
                return [*chain, name]
            if name not in seen:
                seen.add(name)
                chains.append([*chain, name])
    return []


def imports_of(modules: dict[str, ast.Module]) -> dict[str, list[str]]:
    """Return what the import of each module imports: our modules, packages included, and names within pyspark."""
    found = {}
    for module, tree in modules.items():
        names = [name for name, _ in imports(tree, at_import_time=True)]
        packages = [part for name in names for part in accumulate(name.split("."), "{}.{}".format)]
        found[module] = [name for name in names if is_within(name, "pyspark")]
        found[module] += [name for name in packages if name in modules]
    return found


def defined_names(tree: ast.AST) -> set[str]:
    """Return the names that the module gives to classes, functions, fields and attributes of its own objects."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node.value):
            found.add(node.attr)
    return found


def is_own(node: ast.expr) -> bool:
    """Return whether the expression is `self`, `cls` or `super()`."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "super"
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def private_reads(tree: ast.AST) -> list[str]:
    """Return attributes `x._name` of another module: `x` is not the object itself, and this module does not define the
    name."""
    known = defined_names(tree) | set(PRIVATE_NAMES_OF_OTHERS)
    return [
        f"{node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and re.match(r"_[^_]", node.attr)
        and node.attr not in known
        and not is_own(node.value)
    ]


def strangers(root: Path, *packages: Path) -> list[str]:
    """Return the code files in a root that are outside of its packages."""
    return [
        str(path.relative_to(root))
        for path in sorted(root.rglob("*.py*"))
        if path.suffix in {".py", ".pyi"} and not set(packages) & set(path.parents)
    ]


def forbidden_text(text: str) -> list[str]:
    there = {what: pattern for what, pattern in FORBIDDEN.items() if re.search(pattern, text)}
    if not there:
        return []
    return [
        f"{number}: {what}: {found[0]}"
        for number, line in enumerate(text.splitlines(), 1)
        for what, pattern in there.items()
        if (found := re.search(pattern, line))
    ]


def test_imports_point_one_way() -> None:
    assert [fault for name, tree in our_modules().items() for fault in wrong_arrows(name, tree)] == []


def test_no_module_reads_private_names_of_another() -> None:
    assert [
        f"{name}:{fault}"
        for name, tree in our_modules().items()
        if not is_within(name, "alpheus_pb") and not is_within(name, "alpheus_journal.testing")
        for fault in private_reads(tree)
    ] == []


def test_a_private_read_is_found() -> None:
    tree = ast.parse(
        "class A:\n  _x = 1\n  def f(self, b): return self._y, super()._z, b._x, b._w, b.__len__"
    )
    assert private_reads(tree) == ["3: b._w"]


def test_importing_anything_but_the_spark_package_leaves_spark_alone() -> None:
    """No module outside of the Spark package imports pyspark. So a pipeline is declared, tested and listed without
    Spark."""
    modules = our_modules()
    imported = imports_of(modules)
    own = (SPARK, "pyspark_alpheus")
    chains = {
        name: reaches_spark(name, imported)
        for name in modules
        if not any(is_within(name, package) for package in own)
    }
    assert {name: chain for name, chain in chains.items() if chain} == {}


def test_each_room_tells_its_modules() -> None:
    """The docstring of a room names its modules. The picture in ARCHITECTURE.md names the rooms of a package."""
    picture = (ROOT / "daemon" / "ARCHITECTURE.md").read_text()

    def is_told(path: Path) -> bool:
        room = ast.get_docstring(ast.parse((path.parent / "__init__.py").read_text())) or ""
        return bool(re.search(rf"\b{path.stem}\b", room))

    for package in GROUND:
        modules = [path for path in PACKAGES[package].rglob("*.py") if not path.name.startswith("__")]
        inside = [path for path in modules if path.parent != PACKAGES[package]]
        assert [str(path) for path in inside if not is_told(path)] == []
        rooms = [room for room in ARROWS[package] if "." not in room and room not in UNDRAWN]
        assert [room for room in rooms if not re.search(rf"\b{room}\b", picture)] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_a_root_holds_its_packages_alone(package: str) -> None:
    directory = PACKAGES[package]
    assert (directory / "__init__.py").is_file()
    here = [other for other in PACKAGES.values() if other.parent == directory.parent]
    assert strangers(directory.parent, *here) == []


def test_test_files_have_unique_names() -> None:
    names = Counter(path.name for path in (ROOT / "tests").rglob("*.py"))
    del names["conftest.py"]  # pytest's name, used once a directory
    assert [name for name, count in names.items() if count > 1] == []


def test_long_files_have_a_reason() -> None:
    long = {
        str(path.relative_to(ROOT))
        for path in repository_files()
        if path.suffix == ".py" and not is_generated(path) and len(path.read_bytes().splitlines()) > LINES_MAX
    }
    assert long == set(LONGER_FOR_A_REASON), "add a reason, or take away one that no longer holds"


def test_modules_are_named_for_what_they_are() -> None:
    vague = [
        str(path.relative_to(ROOT))
        for path in repository_files()
        if path.suffix == ".py" and VAGUE_NAMES & set(re.split(r"[/_.]", str(path.relative_to(ROOT))))
    ]
    assert vague == []


def test_no_file_holds_forbidden_text() -> None:
    faults = [
        f"{path.relative_to(ROOT)}:{fault}"
        for path in repository_files()
        for fault in forbidden_text(path.read_bytes().decode(errors="replace"))
        if f": {ALLOWED.get(str(path.relative_to(ROOT)))}: " not in fault
    ]
    assert faults == []


def sections_of_the_format() -> set[str]:
    """Return the names of FORMAT.md's parts: headings, and the words that begin entries of its lists."""
    text = (ROOT / "journal" / "FORMAT.md").read_text()
    return set(re.findall(r"^(?:#+ |\* \*\*)(.+?)(?:\.?\*\*.*)?$", text, re.MULTILINE))


def cited_sections(text: str) -> list[str]:
    """Return the parts of FORMAT.md that a text cites by name. A name may continue on the next line."""
    found = re.findall(r'FORMAT\.md[`)]*,?\s+"([^"]+)"', text)
    return [re.sub(r"\s+(?:[#/]+ )?", " ", name) for name in found]


def test_cited_sections_of_the_format_are_there() -> None:
    known = sections_of_the_format()
    lost = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in repository_files()
        if path.suffix in {".py", ".proto", ".md"} and path != Path(__file__)
        for name in cited_sections(path.read_text())
        if name not in known
    ]
    assert lost == []


def test_a_citation_is_found_over_two_lines() -> None:
    assert cited_sections('(FORMAT.md, "What\n# the Java SDK writes"), `FORMAT.md`,\n"Feeds", FORMAT.md') == [
        "What the Java SDK writes",
        "Feeds",
    ]
    assert {"Feeds", "Binding", "What the Java SDK writes"} <= sections_of_the_format()


def test_locked_requirements_name_no_index_and_hash_everything() -> None:
    for path in sorted((ROOT / "requirements").glob("*.txt")):
        text = path.read_text().replace("\\\n", " ")
        entries = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
        assert entries, path
        assert [
            entry for entry in entries if not re.match(r"[\w.-]+==[^ ]+ .*--hash=sha256:", entry)
        ] == [], path


@pytest.mark.parametrize("package", ["alpheus_journal", "alpheus_daemon", "alpheus"])
@pytest.mark.parametrize(
    "call", ["time.sleep(0)", "open(__file__)", "pathlib.Path(__file__).read_bytes()", "os.stat(__file__)"]
)
async def test_a_blocking_call_of_ours_fails_in_the_loop_and_not_in_a_thread(package: str, call: str) -> None:
    place = PACKAGES[package] / "__init__.py"
    names: dict[str, Any] = {"__file__": str(place)}
    exec(compile(f"import os, pathlib, time\ndef block(): {call}", str(place), "exec"), names)
    with pytest.raises(BlockingError):
        names["block"]()
    if "open(" not in call:  # the call would leave its file open
        await asyncio.to_thread(names["block"])


@pytest.mark.parametrize(
    ("module", "code", "fault"),
    [
        ("alpheus_journal.tree.btree", "from alpheus_daemon import writer", "must not import alpheus_daemon"),
        ("alpheus_pb.v1", "import alpheus_journal.tree.btree", "must not import alpheus_journal"),
        ("alpheus_daemon.main", "def f():\n    import alpheus.cli", "must not import alpheus"),
        ("alpheus.cli", "if TYPE_CHECKING:\n    import alpheus_daemon", "must not import alpheus_daemon"),
        ("alpheus.cli", "from . import catalog", "relative import"),
        (
            "alpheus.pipeline",
            "def f():\n    from pyspark.sql import types",
            "only alpheus.spark imports pyspark",
        ),
        ("alpheus.sparkles", "import pyspark", "only alpheus.spark imports pyspark"),
    ],
)
def test_a_wrong_arrow_is_found(module: str, code: str, fault: str) -> None:
    [found] = wrong_arrows(module, ast.parse(code))
    assert fault in found


def test_right_arrows_pass() -> None:
    assert (
        wrong_arrows(
            "alpheus.cli", ast.parse("import alpheus_journal.tree.btree, alpheus_pb, alpheus.catalog, os")
        )
        == []
    )
    assert wrong_arrows("alpheus.spark.read", ast.parse("from pyspark.sql import DataFrame")) == []


def test_a_way_to_spark_is_found_through_other_modules() -> None:
    modules = {
        "alpheus": ast.parse(""),
        "alpheus.pipeline": ast.parse("from alpheus import catalog"),
        "alpheus.catalog": ast.parse("class A:\n    import alpheus.spark.read"),
        "alpheus.cli": ast.parse("if TYPE_CHECKING:\n    import pyspark\ndef f():\n    import alpheus.spark"),
        "alpheus.spark": ast.parse("import pyspark.sql"),
        "alpheus.spark.read": ast.parse(""),
    }
    imported = imports_of(modules)
    assert reaches_spark("alpheus.pipeline", imported) == [
        "alpheus.pipeline", "alpheus.catalog", "alpheus.spark", "pyspark.sql",
    ]  # fmt: skip
    assert reaches_spark("alpheus.cli", imported) == []


def test_a_stranger_in_a_root_is_found(tmp_path: Path) -> None:
    for name in ("ours/__init__.py", "ours/deep/module.py", "FORMAT.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert strangers(tmp_path, tmp_path / "ours") == []
    (tmp_path / "loose.py").touch()
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "__init__.py").touch()
    assert strangers(tmp_path, tmp_path / "ours") == ["loose.py", "second/__init__.py"]


@pytest.mark.parametrize(
    "text",
    [
        "https://PyPI." + "org/simple",
        "https://files.pythonhosted." + "org/packages",
        "file:///wo" + "rk/lake",
        'open("/ro' + 'ot/lake")',
        "# TO" + "DO: later",
        "FIX" + "ME",
    ],
)
def test_forbidden_text_is_found(text: str) -> None:
    assert forbidden_text(f"fine\n{text}\n")[0].startswith("2: ")


@pytest.mark.parametrize(
    "text", ["artifacts/work/x", "$HOME/work/x", "{base}/work/", "mktemp -t XXXXXX", "ROOT / 'work'"]
)
def test_fine_text_passes(text: str) -> None:
    assert forbidden_text(text) == []
