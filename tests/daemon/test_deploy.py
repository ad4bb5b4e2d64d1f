"""Checks of the deployment files without deploying them: unit, image, compose file and manual.

`python tests/daemon/test_deploy.py` rewrites the generated tables of deploy/OPERATIONS.md.
"""

from __future__ import annotations

import ast
import asyncio
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from prometheus_client.metrics_core import Metric

from alpheus_daemon.config import (
    ARGUMENTS,
    RELOADABLE,
    Config,
    flag_name,
    key_name,
    read_config,
    read_settings,
    variable_name,
)
from alpheus_daemon.instrumented import TimedStorage
from alpheus_daemon.main import COMMAND, running
from alpheus_daemon.telemetry.metrics import Metrics
from alpheus_daemon.telemetry.tracing import Tracer
from alpheus_journal.journal import Journal
from alpheus_journal.storage.memory import MemoryStorage

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
MANUAL = DEPLOY / "OPERATIONS.md"
UNIT = DEPLOY / "systemd" / "alpheus.service"

EXPOSURE_MAX = 2.0
"""The maximum for `systemd-analyze security`: 0 is best, 10 is worst, "OK" begins at 5."""


# --- the tables of the manual ----------------------------------------------------------------------


def _cell(text: object) -> str:
    return str(text).replace("|", "\\|")


def settings_table() -> str:
    lines = ["| Setting | Default | Bounds | | |", "| --- | --- | --- | --- | --- |"]
    for field in msgspec.structs.fields(Config):
        meta = next(item for item in field.type.__metadata__ if isinstance(item, msgspec.Meta))
        bounds = f"{meta.ge} to {meta.le}" if meta.ge is not None else ""
        default = "" if field.default in ("", msgspec.NODEFAULT) else f"`{field.default}`"
        reload = "reload" if field.name in RELOADABLE else ""
        cells = (f"`{key_name(field.name)}`", default, bounds, reload, meta.description)
        lines.append("| " + " | ".join(map(_cell, cells)) + " |")
    return "\n".join(lines)


async def metrics_of_a_daemon() -> tuple[list[Metric], dict[str, tuple[str, ...]]]:
    """Return the metrics of a daemon that has just started, and the label names of each metric."""
    metrics = Metrics()
    journal = await Journal.create(TimedStorage(MemoryStorage(), metrics, Tracer()))
    await journal.load_state()
    config = Config(url="memory://x", listen="127.0.0.1:0")
    async with running(config, journal, metrics=metrics):
        metrics.sample()
        families = await asyncio.to_thread(lambda: list(metrics.registry.collect()))  # it reads files
        labels = metrics.labels()
    await journal.close()
    return families, labels


async def metrics_table() -> str:
    families, labels = await metrics_of_a_daemon()
    families = [family for family in families if family.name.startswith("alpheus_")]
    lines = ["| Metric | Kind | Labels | |", "| --- | --- | --- | --- |"]
    for family in sorted(families, key=lambda family: family.name):
        name = family.name + ("_total" if family.type == "counter" else "")
        cells = (f"`{name}`", family.type, ", ".join(labels[name]), family.documentation)
        lines.append("| " + " | ".join(map(_cell, cells)) + " |")
    return "\n".join(lines)


def with_table(manual: str, name: str, table: str) -> str:
    begin, end = (
        f"<!-- {name}: python tests/daemon/test_deploy.py writes this table -->",
        f"<!-- end of {name} -->",
    )
    before, _, rest = manual.partition(begin)
    _, _, after = rest.partition(end)
    assert rest
    assert after
    return f"{before}{begin}\n{table}\n{end}{after}"


def test_the_settings_of_the_manual_are_those_of_the_daemon() -> None:
    manual = MANUAL.read_text()
    assert with_table(manual, "settings", settings_table()) == manual, (
        "run python tests/daemon/test_deploy.py"
    )


async def test_the_metrics_of_the_manual_are_those_of_the_daemon() -> None:
    manual = await asyncio.to_thread(MANUAL.read_text)
    table = await metrics_table()
    assert with_table(manual, "metrics", table) == manual, "run python tests/daemon/test_deploy.py"


def _section(title: str) -> str:
    return MANUAL.read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]


def _logged_events() -> set[str]:
    """Return the event names of all logger calls in the daemon's source."""
    found = set()
    for source in (ROOT / "daemon" / "alpheus_daemon").rglob("*.py"):
        for node in ast.walk(ast.parse(source.read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            called = ast.unparse(node.func)
            if not re.fullmatch(
                r"log\.(debug|info|warning|error|exception)|level|structlog\.get_logger\(\)\.log", called
            ):
                continue
            event = node.args[1 if called.endswith(".log") else 0]
            if isinstance(event, ast.Constant):
                found.add(str(event.value))
            elif isinstance(event, ast.JoinedStr):  # f"{self.name}_failed"
                parts = (part.value if isinstance(part, ast.Constant) else "<job>" for part in event.values)
                found.add("".join(map(str, parts)))
            else:
                pytest.fail(f"{source.name}, line {node.lineno}: an event name is a constant")
    return found


def test_every_log_event_is_in_the_manual_and_none_besides() -> None:
    explained = re.findall(r"^\| `([^`]+)` \|", _section("Logs"), re.MULTILINE)
    assert len(explained) == len(set(explained))
    assert set(explained) == _logged_events()


Alarmed = tuple[str, dict[str, frozenset[str]]]
"""A metric and the label values that an alarm uses."""


def alarmed(section: str) -> list[Alarmed]:
    """Return everything that alarms use. Raise AssertionError for a condition that is not understood."""
    found: list[Alarmed] = []
    for name, braces in re.findall(r"((?:alpheus|process)_[a-z_]+)(?:\{([^}]*)\})?", section):
        conditions = dict[str, frozenset[str]]()
        for condition in filter(None, braces.split(",")):
            parts = re.fullmatch(r'(\w+)(=~?)"([^"]+)"', condition)
            assert parts, condition
            label, operator, value = parts.groups()
            # In a table `|` is written with a backslash.
            conditions[label] = frozenset(value.split("\\|") if operator == "=~" else [value])
        found.append((name, conditions))
    return found


async def test_alarms_can_ring() -> None:
    """Alarms use series that exist from the daemon's start, because the growth of a later series is not seen. Their
    label values are those of the series."""
    families, _ = await metrics_of_a_daemon()
    samples = [sample for family in families for sample in family.samples]
    looked_at = alarmed(_section("Alarms"))
    assert len(looked_at) > 12
    assert sum(bool(conditions) for _, conditions in looked_at) >= 5
    for name, conditions in looked_at:
        series = [sample.labels for sample in samples if sample.name in (name, f"{name}_count")]
        assert series, f"{name} is not there"
        for label, values in conditions.items():
            assert values <= {labels.get(label) for labels in series}, f"{name}: {label} is none of {values}"
            series = [labels for labels in series if labels.get(label) in values]


def test_alarms_are_understood() -> None:
    line = 'x `increase(alpheus_a_total{kind=~"b\\|c",d="e"}[5m]) > process_f` `alpheus_g`'
    assert alarmed(line) == [
        ("alpheus_a_total", {"kind": frozenset({"b", "c"}), "d": frozenset({"e"})}),
        ("process_f", {}),
        ("alpheus_g", {}),
    ]
    with pytest.raises(AssertionError):
        alarmed('`alpheus_a{kind!="b"}`')


def test_alarms_and_bounds_name_what_there_is() -> None:
    manual = MANUAL.read_text()
    metrics = set(re.findall(r"^\| `(alpheus_[a-z_]+)` \|", manual, re.MULTILINE))
    for name in re.findall(r"alpheus_[a-z_]+", _section("Alarms")):
        assert name.removesuffix("_count") in metrics, name
    fields = set(Config.__struct_fields__)
    for row in re.findall(r"^\| [^|]+ \| ([^|]*`[^|]*) \|", _section("What bounds what"), re.MULTILINE):
        for name in re.findall(r"`([a-z_]+)`", row):
            assert name in fields, name
    titles = set(re.findall(r"^### (.+)$", manual, re.MULTILINE))
    for named in re.findall(
        r"\*([A-Z][^*]+|history_replaced)\*[,:. |)]", _section("Alarms") + _section("Logs")
    ):
        assert named in titles, named


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", MANUAL.read_text()):
        assert (DEPLOY / target).exists(), target
    assert "deploy/OPERATIONS.md" in (ROOT / "README.md").read_text()


# --- the unit --------------------------------------------------------------------------------------

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="systemd-analyze is not installed: the unit is not checked",
)


def _unit(folder: Path) -> Path:
    """Write the unit with a program that exists, because only the unit's own lines are checked."""
    unit = folder / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/alpheus/bin/alpheus-daemon", sys.executable))
    return unit


@needs_systemd
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(_unit(tmp_path))],
        capture_output=True,
        text=True,
        check=False,
    )
    ours = [line for line in done.stderr.splitlines() if "alpheus" in line]
    assert not ours
    assert done.returncode == 0, done.stderr


@needs_systemd
def test_the_unit_is_hardened(tmp_path: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(_unit(tmp_path))],
        capture_output=True,
        text=True,
        check=False,
    )
    (exposure,) = re.findall(r"Overall exposure level .*: ([0-9.]+)", done.stdout)
    assert float(exposure) <= EXPOSURE_MAX, done.stdout


def test_the_unit_starts_what_there_is() -> None:
    text = UNIT.read_text()
    (start,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    program, *words = start.split()
    assert program.endswith("/alpheus-daemon")
    assert 'alpheus-daemon = "alpheus_daemon.main:main"' in (ROOT / "pyproject.toml").read_text()
    known = {option for parameter in COMMAND.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known
    for line in (
        "Type=notify",
        "ExecReload=/bin/kill -HUP $MAINPID",
        "WatchdogSec=30s",
        "RestartPreventExitStatus=2",
    ):
        assert line in text.splitlines()


def test_the_example_file_is_valid() -> None:
    settings = read_settings({"config": str(DEPLOY / "alpheus.toml")}, {})
    assert settings.config.url == "file:///var/lib/alpheus/catalog"


# --- image and compose file ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compose() -> Any:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def _dockerfile() -> list[list[str]]:
    """Return the instructions as words, with continued lines joined."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    return [line.split() for line in re.sub(r"\\\n", " ", text).splitlines() if line.strip()]


def test_the_image_copies_what_there_is_and_runs_as_nobody() -> None:
    stages: list[str] = []
    users: dict[str, str] = {}
    for word, *rest in _dockerfile():
        if word == "FROM":
            assert len(rest) == 3
            assert rest[0] in stages or re.fullmatch(r"python:3\.1[1-4]-slim-\w+", rest[0])
            stages.append(rest[2])
        elif word == "COPY" and rest[0].startswith("--from="):
            assert rest[0].removeprefix("--from=") in stages
        elif word == "COPY":
            for source in rest[:-1]:
                assert (ROOT / source).exists(), source
        elif word == "USER":
            users[stages[-1]] = rest[0]
        elif word == "RUN":
            command = " ".join(rest)
            for install in re.findall(r"pip install [^&]+", command):
                assert "--require-hashes" in install or "--no-index" in install, install
        elif word == "ENV":
            for pair in rest:
                name, _, value = pair.partition("=")
                if name.startswith("ALPHEUS_"):
                    assert read_config({"url": "/lake"}, {name: value})
                    assert name in map(variable_name, Config.__struct_fields__)
    assert users == {"spark": "65532:65532", "daemon": "65532:65532"}
    assert stages[-1] == "daemon", "what a plain docker build makes"


@pytest.mark.parametrize(("name", "extras"), [("daemon", "DAEMON_EXTRAS"), ("spark", "SPARK_EXTRAS")])
def test_the_locked_requirements_are_whole(name: str, extras: str) -> None:
    lines = (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()
    pinned = {line.split("==")[0] for line in lines if "==" in line and not line.startswith(" ")}
    hashed = sum(line.lstrip().startswith("--hash=sha256:") for line in lines)
    assert hashed >= len(pinned) > 0
    (wanted,) = re.findall(rf"^{extras} := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    project = msgspec.toml.decode((ROOT / "pyproject.toml").read_bytes())["project"]
    needed = list(project["dependencies"])
    for extra in wanted.split():
        needed += project["optional-dependencies"][extra]
    for requirement in needed:
        name_of = re.split(r"[\[<>=,]", requirement)[0].strip().lower()
        assert name_of in pinned, f"{requirement}: run make lock"


def test_the_compose_file_names_what_there_is(compose: Any) -> None:
    services = compose["services"]
    stages = {words[3] for words in _dockerfile() if words[0] == "FROM"}
    built = set()
    for name, service in services.items():
        if "build" in service:
            place = (DEPLOY / service["build"]["context"]).resolve()
            assert (place / service["build"]["dockerfile"]).exists()
            assert service["build"]["target"] in stages
            built.add(service["image"])
        for other in service.get("depends_on", []):
            assert other in services
        for volume in service.get("volumes", []):
            assert volume.split(":")[0] in compose["volumes"]
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), "not for other machines"
        if name != "storage":
            assert service["read_only"]
            assert service["cap_drop"] == ["ALL"]
    assert {service["image"] for service in services.values()} - built == {"versity/versitygw:v1.8.0"}


def test_the_compose_file_configures_the_daemon(compose: Any) -> None:
    environment = {key: str(value) for key, value in compose["services"]["daemon"]["environment"].items()}
    known = {variable_name(name) for name in Config.__struct_fields__}
    assert {name for name in environment if name.startswith("ALPHEUS_")} <= known
    config = read_config({}, environment)
    assert config.url.startswith("s3://lake/")
    host = re.search(r"http://(\w+):(\d+)", config.url)
    assert host
    assert host[1] in compose["services"]
    assert f":{host[2]}" in compose["services"]["storage"]["command"]
    assert compose["services"]["job"]["environment"]["ALPHEUS_CATALOG"] == "grpc://daemon:7480"


def test_the_procfile_starts_the_daemon_with_options_that_there_are() -> None:
    (line,) = (ROOT / "Procfile").read_text().splitlines()
    name, command = line.split(": ", 1)
    assert name == "catalog"
    assert command.startswith(".venv/bin/alpheus serve ")
    flags = {flag_name(name) for name in Config.__struct_fields__ if name not in ARGUMENTS}
    assert set(re.findall(r"--[a-z-]+", command)) <= flags


def test_the_job_uses_what_there_is() -> None:
    """The job calls only methods that exist. Only names are checked: no Spark is started."""
    tree = ast.parse((DEPLOY / "job.py").read_text())
    import alpheus

    called = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert {"create_namespace", "log", "connect"} <= called
    for name in ("create_namespace", "log"):
        assert hasattr(alpheus.Catalog, name)
    assert msgspec.structs.fields(alpheus.LogEntry)[2].name == "transaction"


if __name__ == "__main__":
    text = with_table(MANUAL.read_text(), "settings", settings_table())
    MANUAL.write_text(with_table(text, "metrics", asyncio.run(metrics_table())))
