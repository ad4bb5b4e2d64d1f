"""Real S3 servers for tests: processes of their own, on a loopback port, with their data in a temporary folder.

ministack comes from a package index (`.ci/servers`, some seconds, done when needed). versitygw is built from source
(`make versitygw`, some minutes, once) and the one to trust: it checks signatures and permissions, and what it
acknowledged survives `kill -9`. Where it was not built, tests run on ministack, and those that need it are skipped.
Where neither can be had, all of them are; a run that is killed leaves its servers to the next one to end.
rclone breaks the rule that all rests on: several racing creates succeed.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import psutil
import pytest

ROOT = Path(__file__).resolve().parent.parent
SERVERS = ROOT / ".cache" / "servers" / "bin"
VERSITYGW = ROOT / ".cache" / "versitygw" / "v1.8.0" / "versitygw"
READY_SECONDS_MAX = 60.0
OWNER_VARIABLE = "ALPHEUS_TEST_OWNER"
REQUIRED = os.environ.get("ALPHEUS_REQUIRE_SERVERS", "") == "1"
"""Where servers must be there (CI), a test that lacks one fails; else it is skipped, and the end of the run says so."""

BUCKET = "alpheus-test"
ACCESS_KEY = "AKALPHEUSTEST"
SECRET_KEY = "a-secret-of-the-tests"
REGION = "us-east-1"

_prefixes = itertools.count()


class S3Server:
    """A running server. `kind` is ministack, versitygw or rclone; `environment` holds its credentials."""

    def __init__(
        self, kind: str, folder: Path, *flags: str, bucket: str = BUCKET, region: str = REGION
    ) -> None:
        self.kind = kind
        self.folder = folder
        self.bucket = bucket
        self.region = region
        self.access_key, self.secret_key = ACCESS_KEY, SECRET_KEY
        self._flags = flags
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.start()
        try:
            with self.client() as s3:
                s3.create_bucket(Bucket=bucket)
        except BaseException:
            self.kill()
            raise

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to reach it, and nothing that the machine has of its own."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    def url(self, prefix: str | None = None, *, endpoint: str = "", **options: str) -> str:
        """A catalog's URL; without `prefix` one that nobody else got. `endpoint`: of a proxy in front."""
        prefix = f"fresh/{os.getpid()}-{next(_prefixes)}" if prefix is None else prefix
        query = urlencode({"endpoint_url": endpoint or self.endpoint} | options, quote_via=quote, safe=":/")
        return f"s3://{self.bucket}/{quote(prefix)}?{query}"

    @contextmanager
    def client(self, access_key: str = "", secret_key: str = "") -> Iterator[Any]:
        """botocore's own client, blocking, for what the driver does not do."""
        import botocore.config  # slow, and most test runs need none of it
        import botocore.session

        client = botocore.session.Session().create_client(
            "s3",
            region_name=self.region,
            endpoint_url=self.endpoint,
            aws_access_key_id=access_key or self.access_key,
            aws_secret_access_key=secret_key or self.secret_key,
            config=botocore.config.Config(signature_version="s3v4", s3={"addressing_style": "path"}),
        )
        try:
            yield client
        finally:
            client.close()

    # -- the process

    def start(self, *flags: str) -> None:
        """Begin to serve, after a `kill` on the same port and data. Returns when the port is this process's.

        `flags` of the server come in the place of those that it was made with.
        """
        self._flags = flags or self._flags
        data = self.folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        log = (self.folder / "log").open("ab")
        with log:
            self.process = subprocess.Popen(
                self._command(data), env=self._environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        end = time.monotonic() + READY_SECONDS_MAX
        while not self._listens():
            if self.process.poll() is not None or time.monotonic() > end:
                self.kill()
                raise AssertionError(
                    f"{self.kind} did not start:\n{(self.folder / 'log').read_text()[-2000:]}"
                )
            time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL. What was acknowledged must be there after `start`."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.kill()

    def _listens(self) -> bool:
        """Whether the port is this very process's: another program may have taken it."""
        try:
            connections = psutil.Process(self.process.pid).net_connections("tcp4")
        except psutil.Error:
            return False
        return any(c.status == psutil.CONN_LISTEN and c.laddr.port == self.port for c in connections)

    def _command(self, data: Path) -> list[str]:
        address = f"127.0.0.1:{self.port}"
        match self.kind:
            case "ministack":
                return [str(SERVERS / "ministack"), *self._flags]
            case "versitygw":
                serve = ["--quiet", "--keep-alive", "--port", address, "--region", self.region]
                return [str(VERSITYGW), *serve, *self._flags, "posix", str(data)]
            case "rclone":
                keys = ["--auth-key", f"{self.access_key},{self.secret_key}"]
                return [
                    str(SERVERS / "rclone"),
                    "serve",
                    "s3",
                    "--addr",
                    address,
                    *keys,
                    *self._flags,
                    str(data),
                ]
        raise AssertionError(self.kind)

    def _environment(self) -> dict[str, str]:
        own = {
            "ministack": {
                "AWS_ACCESS_KEY_ID": self.access_key,
                "AWS_SECRET_ACCESS_KEY": self.secret_key,
                "GATEWAY_PORT": str(self.port),
                "EDGE_PORT": str(self.port),
                "BIND_HOST": "127.0.0.1",
                "S3_PERSIST": "1",
                "S3_DATA_DIR": str(self.folder / "data"),
                "PERSIST_STATE": "1",
                "STATE_DIR": str(self.folder / "state"),
            },
            "versitygw": {"ROOT_ACCESS_KEY": self.access_key, "ROOT_SECRET_KEY": self.secret_key},
            "rclone": {"RCLONE_CONFIG": os.devnull},
        }
        plain = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        return plain | own[self.kind] | {OWNER_VARIABLE: f"{os.getpid()}:{_born(os.getpid())}"}


def has_versitygw() -> bool:
    return VERSITYGW.is_file()


def default_kind() -> str:
    """The server of `s3_server`: versitygw where it was built, unless ALPHEUS_S3_SERVER says otherwise."""
    return os.environ.get("ALPHEUS_S3_SERVER") or ("versitygw" if has_versitygw() else "ministack")


NOT_INSTALLED = "S3 servers could not be installed (.ci/servers); their tests are skipped"


@functools.cache
def install() -> str:
    """ministack and rclone, when they are not there. Why not, when that fails."""
    done = subprocess.run(
        [ROOT / ".ci" / "servers"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    return "" if done.returncode == 0 else f"{done.stdout}{done.stderr}".strip() or "it says nothing"


def end_orphans() -> None:
    """Servers of runs that were killed: those that say in their environment which process started them, and it is
    gone."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ValueError):
            owner, _, born = process.environ().get(OWNER_VARIABLE, "").partition(":")
            if owner and _born(int(owner)) != born:
                process.kill()


def _born(pid: int) -> str:
    """Which process of that number it is: numbers come again."""
    try:
        process = psutil.Process(pid)
        return "" if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.2f}"
    except psutil.Error:
        return ""


Start = Callable[..., S3Server]


@pytest.fixture(scope="session")
def start_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """`start_s3(kind, *flags, region=...)`: a server of one's own, stopped when the run ends."""
    end_orphans()
    started: list[S3Server] = []

    def start(kind: str, *flags: str, **options: str) -> S3Server:
        if kind == "versitygw" and not has_versitygw():
            pytest.skip("versitygw is not built: make versitygw")
        if kind != "versitygw" and (failure := install()):
            if REQUIRED:
                pytest.fail(f"{NOT_INSTALLED}:\n{failure}")
            pytest.skip(f"{NOT_INSTALLED}: {failure.splitlines()[0]}")
        server = S3Server(kind, tmp_path_factory.mktemp(kind), *flags, **options)
        started.append(server)
        return server

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def shared_s3(start_s3: Start) -> Callable[[str], S3Server]:
    """The run's one server of a kind."""
    running: dict[str, S3Server] = {}

    def shared(kind: str) -> S3Server:
        if kind not in running:
            running[kind] = start_s3(kind)
        return running[kind]

    return shared


def reachable(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, its credentials in this process's environment for one test, and no others."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server


@pytest.fixture
def s3_server(shared_s3: Callable[[str], S3Server], monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """A server for any test, shared by the run: `s3_server.url()` gives a fresh prefix."""
    return reachable(shared_s3(default_kind()), monkeypatch)


@pytest.fixture
def rclone_server(shared_s3: Callable[[str], S3Server], monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """A server on which several racing creates succeed: no catalog may be put there."""
    return reachable(shared_s3("rclone"), monkeypatch)


@pytest.fixture
def crash_s3(start_s3: Start, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A versitygw of the test's own, to `kill` and `start` again. Skipped where it was not built."""
    server = reachable(start_s3("versitygw"), monkeypatch)
    yield server
    server.stop()
