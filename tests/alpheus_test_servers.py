"""Real S3 servers for tests. They are separate processes on a loopback port, with their data in a temporary folder.

- ministack comes from a package index. `.ci/servers` installs it in some seconds, when it is needed.
- versitygw is built from source once, in some minutes (`make versitygw`). It is the server to trust: it checks
  signatures and permissions, and the writes that it acknowledged survive `kill -9`.
- rclone breaks the rule that catalogs need: several racing creates succeed.
- MinIO gives sessions that end (AssumeRole), and encrypts with a key. It is built like versitygw (`make minio`).

Without versitygw, tests run on ministack. Tests that need versitygw or MinIO are skipped where it was not built.
Without versitygw and ministack, all these tests are skipped. Tests of Spark on S3 also need the jars of hadoop-aws,
which `.ci/hadoop-aws` downloads. A run that is killed leaves its servers running, and the next run ends them.
"""

from __future__ import annotations

import base64
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
MINIO = ROOT / ".cache" / "minio" / "v0.0.0-20260212201848-7aac2a2c5b7c" / "minio"
BUILT = {"versitygw": VERSITYGW, "minio": MINIO}
"""The servers that are built from source, by `make NAME`."""
HADOOP_AWS = ROOT / ".cache" / "hadoop-aws"
READY_SECONDS_MAX = 60.0
OWNER_VARIABLE = "ALPHEUS_TEST_OWNER"
REQUIRED = os.environ.get("ALPHEUS_REQUIRE_SERVERS", "") == "1"
"""With ALPHEUS_REQUIRE_SERVERS=1 (CI) a test fails when its server is missing. Otherwise the test is skipped, and the
end of the run says so."""

BUCKET = "alpheus-test"
ACCESS_KEY = "AKALPHEUSTEST"
SECRET_KEY = "a-secret-of-the-tests"
KMS_KEY = "alpheus-test-key"
"""The name of the one key of MinIO's own key management."""
REGION = "us-east-1"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": ACCESS_KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    "AWS_DEFAULT_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
"""The variables by which a process reaches the servers. No setting of this machine is included."""

_prefixes = itertools.count()


class S3Server:
    """A running server. `kind` is ministack, versitygw, rclone or minio; `environment` holds its credentials."""

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
        """Return the variables that a process needs to reach the server. No setting of this machine is included."""
        return ENVIRONMENT | {"AWS_DEFAULT_REGION": self.region}

    def url(self, prefix: str | None = None, *, endpoint: str = "", **options: str) -> str:
        """Return a catalog's URL. Without `prefix` the prefix is unused. `endpoint` names a proxy in front of the
        server."""
        prefix = f"fresh/{os.getpid()}-{next(_prefixes)}" if prefix is None else prefix
        query = urlencode({"endpoint_url": endpoint or self.endpoint} | options, quote_via=quote, safe=":/")
        return f"s3://{self.bucket}/{quote(prefix)}?{query}"

    @contextmanager
    def client(self, access_key: str = "", secret_key: str = "") -> Iterator[Any]:
        """Open botocore's own blocking client, for calls that the driver does not offer."""
        import botocore.config  # slow to import, and few test runs need it
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
        """Start the server, again after a `kill`, on the same port and data. Return when the server listens on the
        port.

        `flags` replace the flags that the server was made with.
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
        """Send SIGKILL. Acknowledged writes must exist after `start`."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.kill()

    def _listens(self) -> bool:
        """Return whether this process listens on the port: another program may have taken the port."""
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
            case "minio":
                return [str(MINIO), "server", "--quiet", "--address", address, *self._flags, str(data)]
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
            "minio": {
                "MINIO_ROOT_USER": self.access_key,
                "MINIO_ROOT_PASSWORD": self.secret_key,
                "MINIO_BROWSER": "off",
                "MINIO_KMS_SECRET_KEY": f"{KMS_KEY}:{base64.b64encode(bytes(32)).decode()}",
            },
        }
        plain = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        return plain | own[self.kind] | {OWNER_VARIABLE: f"{os.getpid()}:{_born(os.getpid())}"}


def has_versitygw() -> bool:
    return VERSITYGW.is_file()


def default_kind() -> str:
    """Return the kind of `s3_server`: versitygw where it was built, unless ALPHEUS_S3_SERVER names another kind."""
    return os.environ.get("ALPHEUS_S3_SERVER") or ("versitygw" if has_versitygw() else "ministack")


NOT_INSTALLED = "S3 servers could not be installed (.ci/servers); their tests are skipped"


@functools.cache
def install() -> str:
    """Install ministack and rclone when they are missing. Return why this failed, or an empty text."""
    done = subprocess.run(
        [ROOT / ".ci" / "servers"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    return "" if done.returncode == 0 else f"{done.stdout}{done.stderr}".strip() or "it says nothing"


NO_JARS = "the jars of hadoop-aws are missing (.ci/hadoop-aws); tests of Spark on S3 are skipped"


def find_jars() -> list[Path]:
    """Return the jars with which the installed PySpark reads and writes s3a://, or an empty list if one is missing."""
    from alpheus.spark import packages  # few test runs need it

    wanted = packages()
    jars = [HADOOP_AWS / wanted.hadoop_version / jar.name for jar in wanted.jars]
    return jars if all(jar.is_file() for jar in jars) else []


def end_orphans() -> None:
    """End the servers of killed runs: servers whose environment names an owner process that no longer exists."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ValueError):
            owner, _, born = process.environ().get(OWNER_VARIABLE, "").partition(":")
            if owner and _born(int(owner)) != born:
                process.kill()


def _born(pid: int) -> str:
    """Return the start time of a process, because process numbers are reused. Empty when the process has ended."""
    try:
        process = psutil.Process(pid)
        return "" if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.2f}"
    except psutil.Error:
        return ""


Start = Callable[..., S3Server]


@pytest.fixture(scope="session")
def start_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """`start_s3(kind, *flags, region=...)` starts a server for the caller alone. It stops when the run ends."""
    end_orphans()
    started: list[S3Server] = []

    def start(kind: str, *flags: str, **options: str) -> S3Server:
        if kind in BUILT and not BUILT[kind].is_file():
            pytest.skip(f"{kind} is not built: make {kind}")
        if kind not in BUILT and (failure := install()):
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
    """`shared_s3(kind)` returns the one server of this kind in the run."""
    running: dict[str, S3Server] = {}

    def shared(kind: str) -> S3Server:
        if kind not in running:
            running[kind] = start_s3(kind)
        return running[kind]

    return shared


def reachable(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """Put the server's credentials, and no others, into this process's environment for one test. Return the server."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server


@pytest.fixture
def s3_server(shared_s3: Callable[[str], S3Server], monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """A server that all tests of the run share: `s3_server.url()` gives a fresh prefix."""
    return reachable(shared_s3(default_kind()), monkeypatch)


@pytest.fixture
def rclone_server(shared_s3: Callable[[str], S3Server], monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """A server on which several racing creates succeed: a catalog must not be created there."""
    return reachable(shared_s3("rclone"), monkeypatch)


@pytest.fixture
def crash_s3(start_s3: Start, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A versitygw for one test alone, to `kill` and `start` again. The test is skipped where versitygw was not
    built."""
    server = reachable(start_s3("versitygw"), monkeypatch)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def hadoop_aws_jars() -> list[Path]:
    """The jars with which Spark reads and writes s3a://. The session of the fixture `spark` has them."""
    jars = find_jars()
    if not jars:
        if REQUIRED:
            pytest.fail(NO_JARS)
        pytest.skip(NO_JARS)
    return jars
