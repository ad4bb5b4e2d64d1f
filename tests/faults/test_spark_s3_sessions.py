"""Spark with the credentials of real sessions of MinIO, which end after 900 s. MinIO gives no shorter ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import botocore.exceptions
import botocore.session
import pyarrow as pa
import pytest
from alpheus_test_servers import S3Server, reachable
from session_driver import ROWS
from spark_marks import SPARK_MARKS
from sts_process import SESSION_SECONDS, assume_role

import alpheus

pytestmark = [*SPARK_MARKS, pytest.mark.slow]  # they belong to the lane spark_s3

PATIENCE_SECONDS = 2 * SESSION_SECONDS
DRIVERS = Path(__file__).parent / "drivers"


class Application:
    """One Spark application with the credentials of its environment, which begins when it is made. The test makes the
    catalog with its own credentials, by `own_url`."""

    def __init__(
        self, name: str, folder: Path, own_url: str, url: str, jars: list[Path], environment: dict[str, str]
    ) -> None:
        self.name = name
        self.folder = folder / name
        self.folder.mkdir()
        with alpheus.create(own_url) as catalog:
            catalog.create_namespace("s")
            catalog.create_table("s.t", pa.schema([("id", pa.int64())]))
        plain = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
        command = [
            sys.executable,
            str(DRIVERS / "session_driver.py"),
            url,
            str(self.folder),
            ",".join(map(str, jars)),
        ]
        self._log = (self.folder / "log").open("wb")
        self._process = subprocess.Popen(
            command, env=plain | environment, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        self.told: dict[str, tuple[str, str]] = {}
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found = json.loads(line)
            print(self.folder.name, datetime.now(UTC).isoformat(), line.strip())
            self.told[found["step"]] = (found["outcome"], found["message"])

    def wait_for(self, step: str) -> None:
        end = time.monotonic() + 300
        while step not in self.told:
            assert self._process.poll() is None, (self.folder / "log").read_text(errors="replace")[-3000:]
            assert time.monotonic() < end, f"the application does not reach the step {step}"
            time.sleep(0.1)

    def end_session(self) -> None:
        """Tell the application that its first credentials have ended."""
        (self.folder / "ended").touch()

    def wait(self) -> None:
        self._process.wait(PATIENCE_SECONDS)
        self._reader.join()
        self._log.close()
        assert self._process.returncode == 0, (self.folder / "log").read_text(errors="replace")[-3000:]

    def kill(self) -> None:
        self._process.kill()
        self._log.close()


def wait_for_end(server: S3Server, given: dict[str, Any]) -> None:
    """Return when the server refuses the token of a session."""
    session = botocore.session.Session()
    session.set_credentials(given["AccessKeyId"], given["SecretAccessKey"], given["SessionToken"])
    client = session.create_client("s3", region_name=server.region, endpoint_url=server.endpoint)
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        try:
            client.list_objects_v2(Bucket=server.bucket, MaxKeys=1)
        except botocore.exceptions.ClientError as error:
            print(datetime.now(UTC).isoformat(), "the token is refused:", error)
            return
        time.sleep(2)
    raise AssertionError("the session does not end")


def write_profile(folder: Path, server: S3Server) -> dict[str, str]:
    """Write a profile `renewed`, whose program asks for a session each time, into both files of AWS. Return the
    variables that name the files. For a profile in the URL, Hadoop's provider reads the file of credentials only."""
    config, credentials = folder / "config", folder / "credentials"
    words = [
        sys.executable,
        DRIVERS / "sts_process.py",
        server.endpoint,
        server.access_key,
        server.secret_key,
    ]
    line = f"credential_process = {' '.join(map(str, [*words, folder / 'calls']))}\n"
    config.write_text(f"[profile renewed]\n{line}")
    credentials.write_text(f"[renewed]\n{line}")
    return {"AWS_CONFIG_FILE": str(config), "AWS_SHARED_CREDENTIALS_FILE": str(credentials)}


@pytest.mark.usefixtures("only_slow")
def test_a_real_session_ends(
    hadoop_aws_jars: list[Path],
    shared_s3: Callable[[str], S3Server],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Three applications outlive their first session. The one with a token in its environment is refused by name, and
    commits nothing more. A program that gives credentials is asked again by the library, by pyarrow and by S3A, whether
    the environment or the URL names its profile. The test waits for the end of a session, fifteen minutes."""
    server = reachable(shared_s3("minio"), monkeypatch)
    fixed = {"AWS_DEFAULT_REGION": server.region, "AWS_EC2_METADATA_DISABLED": "true"}
    first = assume_role(server.endpoint, server.access_key, server.secret_key)
    token = {
        "AWS_ACCESS_KEY_ID": first["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": first["SecretAccessKey"],
        "AWS_SESSION_TOKEN": first["SessionToken"],
    }
    files = write_profile(tmp_path, server)
    started: dict[str, Application] = {}
    try:
        for name, more, profile in (
            ("token", token, {}),
            ("environment", files | {"AWS_PROFILE": "renewed"}, {}),
            ("url", files, {"profile": "renewed"}),
        ):
            prefix = f"sessions/{name}"
            started[name] = Application(
                name,
                tmp_path,
                server.url(prefix),
                server.url(prefix, **profile),
                hadoop_aws_jars,
                fixed | more,
            )
        for application in started.values():
            application.wait_for("read")
        wait_for_end(server, assume_role(server.endpoint, server.access_key, server.secret_key))
        for application in started.values():
            application.end_session()
        for application in started.values():
            application.wait()
    finally:
        for application in started.values():
            application.kill()
    check_refused(started.pop("token"), server)
    for application in started.values():
        assert {outcome for outcome, _ in application.told.values()} == {"done"}, application.told
        assert count_rows(application, server) == 3 * ROWS
    assert len({*(tmp_path / "calls").read_text().split()}) > 6, (
        "each library asked before the end and after it"
    )


def count_rows(application: Application, server: S3Server) -> int:
    with alpheus.connect(server.url(f"sessions/{application.name}")) as catalog:
        assert catalog.admin.check().ok
        ids = catalog.read("s.t")["id"].to_pylist()
    assert len(ids) == len(set(ids))
    return len(ids)


def check_refused(application: Application, server: S3Server) -> None:
    """Check what an application is told whose token ended: at its start, and in the midst of its work."""
    told = application.told
    assert told["serve"][0] == "InvalidInput"
    assert "nobody renews a token" in told["serve"][1]
    assert {told["append"][0], told["read"][0]} == {"done"}
    late = {step: found for step, found in told.items() if step.endswith("the end")}
    assert len(late) == 4
    assert {outcome for outcome, _ in late.values()} == {"Denied"}, late
    assert "a task could not store a file" in told["a write over the end"][1]
    assert "renew the credentials" in told["a write over the end"][1]
    assert count_rows(application, server) == ROWS
