"""A catalog on S3 from the shell: credentials are in the environment, and none are in the URL."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from alpheus_test_servers import S3Server
from click.testing import CliRunner
from store_proxy import StoreProxy, begins_an_object

import alpheus
from alpheus import cli
from alpheus_journal.storage.s3 import S3Url


class Shell:
    """Runs `alpheus` on one URL in this process, and asserts that the exit status is `status`."""

    def __init__(self, url: str) -> None:
        self.url = url

    def run(self, *words: str, input: str = "", status: int = 0) -> str:
        command = ["--output", "json", "--timeout", "20", *words]
        done = CliRunner().invoke(cli.cli, command, input=input, env={"ALPHEUS_CATALOG": self.url})
        assert done.exit_code == status, done.output
        return done.stdout if status == 0 else done.stderr

    def json(self, *words: str, input: str = "") -> Any:
        return json.loads(self.run(*words, input=input))

    def lines(self, *words: str) -> list[Any]:
        return [json.loads(line) for line in self.run(*words).splitlines()]


@pytest.fixture
def shell(s3_server: S3Server) -> Shell:
    return Shell(s3_server.url())


def test_a_session_on_s3(shell: Shell) -> None:
    error = json.loads(shell.run("info", status=1))
    assert error["kind"] == "no_catalog"
    created = shell.json("create", shell.url, "--property", "owner=ann")
    assert created["version"] == 0
    error = json.loads(shell.run("create", shell.url, status=1))
    assert error["kind"] == "catalog_exists"
    document = {
        "message": "first load",
        "operations": [
            {"create_namespace": {"name": "sales"}},
            {"create_table": {"name": "sales.orders", "columns": [{"name": "id", "type": "int64"}]}},
            {"append": {"name": "sales.orders", "rows": [{"id": 1}, {"id": 2}]}},
        ],
    }
    committed = shell.json("apply", "-", input=json.dumps(document))
    assert committed["version"] == 1
    assert [entry["version"] for entry in shell.lines("log")] == [1, 0]
    assert shell.json("info")["version"] == 1
    assert [table["name"] for table in shell.json("table", "list", "sales")] == ["orders"]
    shell.run("check")


def test_no_credentials_and_no_bucket(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Shell(shell.url.replace("//alpheus-test/", "//no-such-bucket/"))
    error = json.loads(missing.run("create", missing.url, status=1))
    assert error["kind"] == "no_bucket"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    error = json.loads(shell.run("info", status=1))
    assert error["kind"] == "no_credentials"
    assert "AWS_ACCESS_KEY_ID" in error["hint"]


def test_a_daemon_serves_a_catalog_on_s3(s3_server: S3Server, start_daemon: Callable[..., Any]) -> None:
    daemon = start_daemon(s3_server.url(), "--create")
    with alpheus.connect(daemon.url) as catalog:
        catalog.create_namespace("sales")
    assert daemon.stop() == 0
    with alpheus.connect(s3_server.url(S3Url.parse(daemon.storage_url).prefix)) as catalog:
        assert [namespace.name for namespace in catalog.list_namespaces()] == ["sales"]


def test_a_daemon_names_the_key_of_its_store(s3_server: S3Server, start_daemon: Callable[..., Any]) -> None:
    """Each object that a daemon and its clients begin carries the key of KMS that the URL names."""
    with StoreProxy(s3_server.port) as store:
        daemon = start_daemon(
            s3_server.url(endpoint=store.endpoint, kms_key_id="alias/lake", self_test="false"), "--create"
        )
        with alpheus.connect(daemon.url) as catalog:
            catalog.create_namespace("sales")
            catalog.create_table("sales.orders", pa.table({"id": [1, 2]}))
        assert daemon.stop() == 0
        begun = store.find_requests(begins_an_object)
    assert {"vn", "def", "manifest", "data"} <= {sent.path.split("/")[4] for sent in begun}
    for sent in begun:
        assert sent.headers["x-amz-server-side-encryption-aws-kms-key-id"] == "alias/lake", sent.path
