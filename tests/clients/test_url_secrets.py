"""URLs that are refused may hold secrets. No error, hint, representation, traceback, line or log repeats them."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click
import msgspec
import pyarrow as pa
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import alpheus
from alpheus import aio, cli
from alpheus.rows.foreign_file import locate
from alpheus.session.remote import RemoteAccess
from alpheus.spark.streams.options import options_of
from alpheus.spark.streams.source import AlpheusSource, check_stream
from alpheus_daemon.config import read_config
from alpheus_daemon.main import main as daemon_main
from alpheus_daemon.telemetry.tracing import _Seldom
from alpheus_journal.errors import AlpheusError
from alpheus_journal.execute.rules.tables import _check_location
from alpheus_journal.journal import Journal
from alpheus_journal.storage import open_storage
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.urls import redact_text, redact_url

CANARY = "PW7canary"
pytestmark = pytest.mark.slow  # a full run tries all URLs
FULL = os.environ.get("ALPHEUS_SLOW", "") == "1"
URLS = [
    url.replace("PW", CANARY)
    for url in (
        "grpc://u:PW@h", "grpc://u:PW@h:7480", "grpc://PW@h:7480", "grpc://u:a/PW@h:7480", "grpc://u:a#PW@h:7480",
        "grpc://h:7480?token=PW", "grpc://h:7480/?PW", "grpc://h:7480#PW", "grpc://h:PW", "grpc://[u:PW@h",
        "grpcs://u:PW@h:7480", "unix:///s?token=PW", "unix://u:PW@/s", "unix:///s#PW",
        "u:PW@h:7480", "grpc:/u:PW@h:7480", "ftp://u:PW@h/x", "http://u:PW@h/?a=1&token=PW",
        "lmdb://u:PW@", "lmdb://u:PW@/x", "lmdb:///x?token=PW", "lmdb:///x#PW",
        "s3://b/p#PW", "s3://k:PW@b/p", "s3://b/p?secret_access_key=PW", "s3://b/p?token=PW", "s3://b/p?PW",
        "s3://b/p?region=eu&PW", "s3://k:PW/p", "s3://b/p?endpoint_url=http://u:PW@h", "s3://b/p?region=eu;token=PW",
        "s3://b/p?client=obstore&secret=PW", "s3://k:PW@b/p?client=obstore", "s3://b/p?client=obstore#PW",
        "s3://k:PW/p?client=obstore", "s3://b/p?client=obstore&endpoint_url=http://u:PW@h",
        "gs://k:PW@b/p", "gs://b/p?token=PW", "gs://b/p?PW", "gs://b/p#PW", "az://k:PW@c/p?account=a",
        "az://c/p?account=a&sas_token=PW", "az://c/p?account=PW%20", "file://u:PW@h/x", "file:///x?token=PW", "file:///x#PW",
        "memory://x?token=PW", "memory://x#PW", "memory://u:PW@x",
        "s3a://k:PW@b/x.parquet", "postgres://u:PW@h/db", "s3://[PW", "grpc://u:PW@[::1", "s3://[PW]/p", " grpc://u:PW@h",
        "s3://b/p?endpoint_url=http%3A%2F%2Fu%3APW%40h", "s3://b/p?endpoint_url=http%253A%252F%252Fu%253APW%2540h",
        "s3://b/p?region=eu%40PW", "s3://k:PW@b.eu/p.x",
    )
]  # fmt: skip


def some_urls() -> list[str]:
    """Return every fourth URL from a random one on, and in a full run all."""
    return URLS if FULL else URLS[random.randrange(4) :: 4]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ALPHEUS_CATALOG", "ALPHEUS_CONFIG", "ALPHEUS_DEBUG"):
        monkeypatch.delenv(name, raising=False)


def told(error: BaseException) -> str:
    """Return all texts of an error that a program may print."""
    texts = [str(error), repr(error), repr(vars(error)), "".join(traceback.format_exception(error))]
    return "\n".join(texts)


async def connected(url: str) -> None:
    await (await aio.connect(url, timeout=0.1)).close()


async def reach_storage(wanted: str | None, told: str) -> None:
    """Open storage as a client of a daemon does when it first needs data files."""
    journal = await Journal.create(MemoryStorage())
    access = RemoteAccess("grpc://127.0.0.1:1", timeout=0.1, storage=wanted)
    access._info = msgspec.structs.replace(await journal.info(), storage_url=told)
    try:
        await access.open_storage()
    finally:
        await access.close()
        await journal.close()


def configured(url: str) -> None:
    """Read a configuration file whose `catalog` is a list instead of a text."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(f"catalog = [{json.dumps(url)}]\n")
        file.flush()
        read_config({"config": file.name}, {})


def options(url: str) -> None:
    chosen = options_of({"catalog": url, "table": "a.b"})
    alpheus.connect(chosen.catalog, timeout=0.1)


ENTRIES: dict[str, Callable[[str], object]] = {
    "connect": lambda url: alpheus.connect(url, timeout=0.1),
    "aio.connect": lambda url: asyncio.run(connected(url)),
    "create": alpheus.create,
    "open": open_storage,
    "storage of a daemon": lambda url: asyncio.run(reach_storage(url, "file:///x")),
    "storage told by a daemon": lambda url: asyncio.run(reach_storage(None, url)),
    "storage of storage": lambda url: alpheus.connect("memory://x", storage=url),
    "where a daemon listens": lambda url: read_config({"url": "file:///x", "listen": url}, {}),
    "where a daemon shows metrics": lambda url: read_config({"url": "/x"}, {"ALPHEUS_METRICS_LISTEN": url}),
    "a file of settings": configured,
    "the options of Spark": options,
    "the metadata of a table": lambda url: _check_location(f"{url}\n", "the metadata location"),
}  # fmt: skip


@pytest.mark.parametrize("entry", ENTRIES)
def test_no_error_repeats_a_secret(entry: str) -> None:
    for url in some_urls():
        with pytest.raises(AlpheusError) as caught:
            ENTRIES[entry](url)
        assert CANARY not in told(caught.value), (entry, url)


SCHEMA = pa.schema([("a", pa.int64())])


@pytest.fixture(scope="module")
def catalog() -> Iterator[alpheus.Catalog]:
    with alpheus.create("memory://of-secrets") as catalog:
        catalog.create_namespace("s")
        catalog.create_table("s.t", SCHEMA)
        catalog.create_table("s.u", SCHEMA)
        yield catalog


def in_transaction(catalog: alpheus.Catalog, url: str) -> None:
    with catalog.transaction() as tx:
        tx.append_files("s.t", [url])


def listed(rows: Iterable[object]) -> list[object]:
    """Return all rows of a listing, which raises its errors only when its rows are read."""
    return [*rows]


VERBS: dict[str, Callable[[alpheus.Catalog, str], object]] = {
    "append_files": lambda catalog, url: catalog.append_files("s.t", [url]),
    "append_files, one": lambda catalog, url: catalog.append_files("s.t", url),
    "append_files, twice": lambda catalog, url: catalog.append_files("s.t", [url, url]),
    "append_files, bytes": lambda catalog, url: catalog.append_files("s.t", [url.encode()]),  # type: ignore[list-item]
    "append_files of a transaction": in_transaction,
    "append_files, the name": lambda catalog, url: catalog.append_files(url, ["/nowhere.parquet"]),
    "import_table": lambda catalog, url: catalog.import_table("s.new", url),
    "import_table, delta": lambda catalog, url: catalog.import_table("s.new", url, format="delta"),
    "import_table, iceberg": lambda catalog, url: catalog.import_table("s.new", url, format="iceberg"),
    "import_table, the name": lambda catalog, url: catalog.import_table(url, "/nowhere"),
    "import_table, bytes": lambda catalog, url: catalog.import_table("s.new", url.encode()),  # type: ignore[arg-type]
    "read": lambda catalog, url: catalog.read(url),
    "read, at": lambda catalog, url: catalog.read("s.t", at=url),
    "read, columns": lambda catalog, url: catalog.read("s.t", columns=[url]),
    "read, where": lambda catalog, url: catalog.read("s.t", where=url),
    "scan": lambda catalog, url: catalog.scan(url),
    "at": lambda catalog, url: catalog.at(url),
    "load_table": lambda catalog, url: catalog.load_table(url),
    "load_view": lambda catalog, url: catalog.load_view(url),
    "append": lambda catalog, url: catalog.append(url, [{"a": 1}]),
    "append, the rows": lambda catalog, url: catalog.append("s.t", url),
    "overwrite": lambda catalog, url: catalog.overwrite(url, [{"a": 1}]),
    "merge": lambda catalog, url: catalog.merge(url, [{"a": 1}], on="a"),
    "merge, on": lambda catalog, url: catalog.merge("s.t", [{"a": 1}], on=url),
    "delete": lambda catalog, url: catalog.delete(url, where="a = 1"),
    "update": lambda catalog, url: catalog.update(url, {"a": "1"}, where="a = 1"),
    "compact": lambda catalog, url: catalog.compact(url),
    "create_table": lambda catalog, url: catalog.create_table(url, SCHEMA),
    "create_namespace": lambda catalog, url: catalog.create_namespace(url),
    "update_table": lambda catalog, url: catalog.update_table(url, set={"a": "b"}),
    "rename_table": lambda catalog, url: catalog.rename_table("s.u", url),
    "drop_table": lambda catalog, url: catalog.drop_table(url),
    "drop_namespace": lambda catalog, url: catalog.drop_namespace(url),
    "list_tables": lambda catalog, url: listed(catalog.list_tables(url)),
    "restore_table": lambda catalog, url: catalog.restore_table("s.t", url),
    "undrop": lambda catalog, url: catalog.undrop(url),
    "diff": lambda catalog, url: catalog.diff(url, "latest"),
    "events, after": lambda catalog, url: next(catalog.events(after=url)),
}


@pytest.mark.parametrize("verb", VERBS)
def test_no_error_of_a_verb_repeats_a_secret(catalog: alpheus.Catalog, verb: str) -> None:
    for url in some_urls():
        if ":/" not in url and not verb.startswith(("append_files", "import_table")):
            continue  # a name may have any of these characters
        with pytest.raises(AlpheusError) as caught:
            VERBS[verb](catalog, url)
        assert CANARY not in told(caught.value), (verb, url)


def begin(given: dict[str, str]) -> None:
    """Do what Spark does where a frame is made, and where a stream begins."""
    source = AlpheusSource(given)
    with source._options.connect() as catalog:
        check_stream(catalog, "s.t", "rows", source._options.start)
    source.schema()


@pytest.mark.parametrize(
    "option",
    ["path", "table", "versionAsOf", "timestampAsOf", "feed", "start", "startingVersion", "maxFilesPerTrigger",
     "maxVersionsPerTrigger", "outageSeconds", "onDelete", "onExpired", "at", "storage"],
)  # fmt: skip
def test_no_option_of_spark_is_repeated(option: str, tmp_path: Path) -> None:
    with alpheus.create(f"file://{tmp_path}/lake") as catalog:
        catalog.create_namespace("s")
        catalog.create_table("s.t", SCHEMA)
        given = {"catalog": catalog.url} | ({"table": "s.t"} if option not in ("path", "table") else {})
    for url in some_urls():
        with pytest.raises(AlpheusError) as caught:
            begin(given | {option: url})
        assert CANARY.lower() not in told(caught.value).lower(), (option, url)
        with pytest.raises(AlpheusError) as caught:
            AlpheusSource(given | {url: "1"})
        assert CANARY.lower() not in told(caught.value).lower(), url


def test_no_error_of_an_import_repeats_a_secret() -> None:
    for url in some_urls():
        if "://" in url and not url.startswith(("file:///", "memory", "unix", "lmdb")):
            with pytest.raises(AlpheusError) as caught:
                locate(url)
            assert CANARY not in told(caught.value), url


def test_no_variable_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    for url in some_urls():
        monkeypatch.setenv("ALPHEUS_CATALOG", url)
        with pytest.raises(AlpheusError) as caught:
            alpheus.connect(timeout=0.1)
        assert CANARY not in told(caught.value), url
        with pytest.raises(AlpheusError) as caught:
            options_of({"table": "a.b", "catalog": ""}) and alpheus.connect(timeout=0.1)
        assert CANARY not in told(caught.value), url


WORDS: dict[str, Callable[[str], tuple[list[str], dict[str, str]]]] = {
    "the option": lambda url: (["--catalog", url, "--timeout", "0.1", "info"], {}),
    "the variable": lambda url: (["--timeout", "0.1", "table", "list"], {"ALPHEUS_CATALOG": url}),
    "json": lambda url: (["--output", "json", "--catalog", url, "--timeout", "0.1", "info"], {}),
    "create": lambda url: (["create", url], {}),
    "one word too many": lambda url: (["info", url], {}),
    "a word too many in json": lambda url: (["--output", "json", "info", url], {}),
    "repair": lambda url: (["repair", "--catalog", url, "--yes"], {}),
    "follow": lambda url: (["--catalog", url, "--timeout", "0.1", "events", "--follow"], {}),
    "subscription": lambda url: (["--catalog", url, "--timeout", "0.1", "subscription", "list"], {}),
    "traceback": lambda url: (["--catalog", url, "--timeout", "0.1", "info"], {"ALPHEUS_DEBUG": "1"}),
}  # fmt: skip


@pytest.mark.parametrize("entry", WORDS)
def test_no_command_prints_a_secret(entry: str) -> None:
    for url in some_urls():
        words, variables = WORDS[entry](url)
        done = CliRunner().invoke(cli.cli, words, env=variables)
        assert done.exit_code in (1, 2), (words, done.output)
        assert CANARY not in done.output + done.stderr, words


def _commands(
    group: click.Group, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _commands(command, (*words, name))
        else:
            yield (*words, name), command


COMMANDS = {
    " ".join(words): command for words, command in _commands(cli.cli) if words[0] not in ("serve", "demo")
}
OF_SHELL = [f"s3://k:{CANARY}@b.eu/p.x", f"s3://[{CANARY}"]
NAMED_TYPES = ("--column", "--add-column", "--retype-column", "--partition-type")
"""Options in which a colon separates a name from a type."""


def _lines(command: click.Command, url: str) -> Iterator[list[str]]:
    """Yield the words of a command, in which each word that is typed freely is the URL once."""
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    fills = ["s.t" for each in arguments if each.required]
    for index in range(len(arguments)):
        yield [*fills[:index], url, *fills[index + 1 :]]
    for option in command.params:
        if isinstance(option, click.Option) and not option.is_flag and option.opts[0] not in NAMED_TYPES:
            yield [*fills, option.opts[0], *[url] * option.nargs]


@pytest.mark.parametrize("words", COMMANDS)
def test_no_option_of_a_command_is_repeated(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No error repeats an option of a command. A command that succeeds may report the names that it was given."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ALPHEUS_DEBUG", "1")
    with alpheus.create(f"file://{tmp_path}/lake") as catalog:
        catalog.create_namespace("s")
        catalog.create_table("s.t", SCHEMA)
    refused = 0
    for url in OF_SHELL if FULL else OF_SHELL[1:]:
        for line in _lines(COMMANDS[words], url):
            done = CliRunner().invoke(cli.cli, ["--catalog", catalog.url, *words.split(), *line], input="")
            refused += done.exit_code != 0
            assert done.exit_code == 0 or CANARY not in done.output + done.stderr, line
    assert refused or not COMMANDS[words].params


@pytest.mark.parametrize("path", ["/nope?token=PW", "s3://k:PW@b/c.toml", "file:///x?secret=PW"])
def test_no_place_of_a_configuration_is_repeated(path: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert daemon_main(["/lake", "--config", path.replace("PW", CANARY)]) == 2
    assert daemon_main([f"--confg={path.replace('PW', CANARY)}", "/lake"]) == 2
    out, err = capfd.readouterr()
    assert "cannot be read" in err
    assert CANARY not in out + err


def test_no_variable_is_shown_when_a_daemon_fails_before_its_settings_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "import alpheus_daemon.main as m\n"
        "def fail(flags, environment):\n    url = environment['ALPHEUS_CATALOG']\n    raise RuntimeError('broken')\n"
        "m.read_settings = fail\nraise SystemExit(m.main([]))"
    )
    monkeypatch.setenv("ALPHEUS_CATALOG", f"s3://k:{CANARY}@b/p")
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, "broken" in done.stderr) == (1, True)
    assert CANARY not in done.stdout + done.stderr


def test_no_daemon_prints_or_logs_a_secret(capfd: pytest.CaptureFixture[str]) -> None:
    for url in some_urls():
        ways = [[url], ["file:///nowhere-at-all", "--listen", url], ["file:///nowhere-at-all", "--trace-endpoint", url],
                [url, url], ["--print-config", "--listen", url, url]]  # fmt: skip
        for words in ways:
            assert daemon_main(words) in (1, 2), words
            out, err = capfd.readouterr()
            assert CANARY not in out + err, words
        assert daemon_main(["--print-config", "/lake", "--trace-endpoint", f"http://u:{CANARY}@h:4317"]) == 0
        assert CANARY not in capfd.readouterr().out


@pytest.mark.parametrize("place", [f"u:{CANARY}@h:4317", f"http://u:{CANARY}@h:4317/x"])
def test_a_complaint_about_the_collector_of_traces_holds_no_secret(place: str) -> None:
    record = logging.LogRecord(
        "otlp", logging.WARNING, "x.py", 1, "Failed to export %s to %s, error", ("traces", place), None
    )
    assert _Seldom().filter(record)
    assert record.getMessage().startswith("Failed to export traces to ")
    assert CANARY not in record.getMessage()
    assert record.getMessage().endswith(", error")


# --- the one function ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("grpc://127.0.0.1:7480", "grpc://127.0.0.1:7480"),
        ("grpc://[::1]:7480", "grpc://[::1]:7480"),
        ("unix:///run/a.sock", "unix:///run/a.sock"),
        ("file:///home/ana@corp/a:b/lake", "file:///home/ana@corp/a:b/lake"),
        ("/home/ana@corp/lake", "/home/ana@corp/lake"),
        ("./a:b@c", "./a:b@c"),
        ("s3://bucket/a@b/lake", "s3://bucket/a@b/lake"),
        ("s3://bucket/lake?region=eu-central-1&x", "s3://bucket/lake?region=…&…"),
        ("s3://key:secret@bucket/lake", "s3://…@bucket/lake"),
        ("grpc://user:p/a#s?s@host:7480/x", "grpc://…@host:7480/x"),
        ("grpc://host:secret/x", "grpc://host:…/x"),
        ("user:secret@host", "…@host"),
        ("", ""),
    ],
)
def test_a_url_as_it_is_shown(url: str, expected: str) -> None:
    assert redact_url(url) == expected
    assert redact_url(redact_url(url)) == expected


def test_of_what_is_no_text_the_type_is_shown() -> None:
    assert redact_url([f"grpc://u:{CANARY}@h"]) == "<list>"
    assert redact_url(None) == "<NoneType>"


@given(st.text(max_size=80), st.sampled_from(["grpc://", "s3://", "file:///", "lmdb:", "", "/"]))
def test_any_text_can_be_shown(text: str, scheme: str) -> None:
    redact_url(scheme + text)
    redact_text(scheme + text)


@given(
    st.sampled_from(["grpc", "s3", "gs", "https", "ftp"]),
    st.text(st.characters(exclude_characters="@"), max_size=20),
    st.sampled_from(["h", "h:1", "[::1]:1", "h/p", "h/p?a=b"]),
)
def test_no_password_of_any_form_is_shown(scheme: str, text: str, host: str) -> None:
    assert CANARY not in redact_url(f"{scheme}://u:{text}{CANARY}@{host}")
    assert CANARY not in redact_url(f"{scheme}://{host.partition('?')[0]}?x={text}{CANARY}")


@pytest.mark.parametrize("part", ["a:", "a", "a://", ":", "a@", "a:b@"])
def test_a_hostile_text_is_read_once(part: str) -> None:
    """A hostile text is read once. Going back for each of its characters would take hours."""
    redact_text(part * (20_000 // len(part)))


def test_urls_in_texts_of_others_are_shown() -> None:
    text = f"cannot open 'grpc://u:{CANARY}@h:1/x', (s3://b/p?token={CANARY}), u:{CANARY}@h. See https://example.org/a."
    assert (
        redact_text(text)
        == "cannot open 'grpc://…@h:1/x', (s3://b/p?token=…), …@h. See https://example.org/a."
    )
