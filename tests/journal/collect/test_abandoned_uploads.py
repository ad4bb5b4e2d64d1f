"""Collections abort uploads that were begun on S3 and that nobody will end (FORMAT.md, "Open uploads")."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest
from alpheus_test_servers import S3Server
from upkeep_lake import append, collect, commit_rows

from alpheus_journal import failpoints
from alpheus_journal import format as fmt
from alpheus_journal.clock import RandomIdentities
from alpheus_journal.collect import collection, open_uploads
from alpheus_journal.collect.open_uploads import OpenUploads
from alpheus_journal.collect.store_time import read_store_time
from alpheus_journal.errors import (
    AlpheusError,
    Corrupt,
    Denied,
    Exhausted,
    InvalidInput,
    OutcomeUnknown,
    Unavailable,
)
from alpheus_journal.journal import Journal
from alpheus_journal.log import leases
from alpheus_journal.model.answers import UploadTotals
from alpheus_journal.model.operations import AppendFiles, CreateNamespace
from alpheus_journal.storage import OpenUpload, Storage, open_storage
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import Lake, TcpProxy, put_rows, raises
from alpheus_journal.testing.proxy import Forward, Match, s3_error

LATER_MILLIS = 10_000
LISTING: Match = lambda r: r.method == "GET" and "uploads" in r.query  # noqa: E731
ABORT: Match = lambda r: r.method == "DELETE" and "uploadId=" in r.query  # noqa: E731
IDENTITIES = RandomIdentities()


@pytest.fixture(autouse=True)
def store_time(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Set the store's clock ahead of its files and uploads, by the number in the list."""
    ahead = [LATER_MILLIS]

    async def read_later(*given: object) -> int:
        return await read_store_time(*given) + ahead[0]  # type: ignore[arg-type]

    monkeypatch.setattr(collection, "read_store_time", read_later)
    monkeypatch.setattr(leases, "ID_AHEAD_MILLIS_MAX", 0)
    return ahead


class Place:
    """A catalog on S3 with a table, behind a proxy, and the uploads that writers begin in it."""

    def __init__(self, lake: Lake, journal: Journal, proxy: TcpProxy, s3: Any, table_id: str) -> None:
        self.lake = lake
        self.journal = journal
        self.proxy = proxy
        self.s3 = s3
        self.table_id = table_id

    def data_path(self, transaction_id: str = "", table_id: str = "") -> str:
        names = (table_id or self.table_id, transaction_id or IDENTITIES.uuid7(), IDENTITIES.uuid4())
        return f"data/{'/'.join(names)}/part-0.parquet"

    async def begin(self, path: str = "", storage: Storage | None = None) -> str:
        """Begin an upload, send a part, and leave it open. Return its path."""
        path = path or self.data_path()
        address = unquote((storage or self.lake.storage).uri(path))
        bucket, _, key = address.removeprefix("s3://").partition("/")

        def send() -> None:
            upload_id = self.s3.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
            self.s3.upload_part(Bucket=bucket, Key=key, UploadId=upload_id, PartNumber=1, Body=b"part")

        await asyncio.to_thread(send)
        return path

    async def open(self, storage: Storage | None = None) -> set[str]:
        """Return the paths of all open uploads below a prefix."""
        store = storage or self.lake.storage
        return {upload.path async for upload in store.list_uploads("")}

    async def collect(self, *, dry_run: bool = False) -> UploadTotals:
        return (await collect(self.journal, age=0, dry_run=dry_run)).uploads


@asynccontextmanager
async def opened(server: S3Server) -> AsyncIterator[Place]:
    async with TcpProxy("127.0.0.1", server.port) as proxy:
        url = server.url(endpoint=proxy.endpoint, deadline="0.5", self_test="false")
        storage = open_storage(url)
        lake = Lake(storage)
        journal = await Journal.create(storage)
        lake.clock, lake.identities = journal._clock, journal._identities  # type: ignore[assignment]
        await lake.commit(journal, lake.namespace("a"))
        table = lake.table("a", "t")
        await lake.commit(journal, table)
        await commit_rows(lake, journal)
        await collect(journal, age=0)
        with server.client() as s3:
            yield Place(lake, journal, proxy, s3, table.table_id)
        await journal.detach()
        await storage.close()


async def test_abandoned_uploads_go_and_all_others_stay(s3_server: S3Server, store_time: list[int]) -> None:
    async with opened(s3_server) as place:
        uuids = [IDENTITIES.uuid4() for _ in range(4)]
        abandoned = {
            await place.begin(path)
            for path in (
                "", "", f"manifest/{place.table_id}/{IDENTITIES.uuid7()}.arrow", f"node/{uuids[0]}.arrow",
                f"action/{uuids[0]}.binpb", f"checkpoint/{'0' * 32}-{uuids[0]}.arrow",
                f"checkpoint/{'0' * 32}-{uuids[0]}.index.arrow", f"data/selftest/{uuids[0]}/x",
            )
        }  # fmt: skip
        foreign = {
            await place.begin(path)
            for path in (
                f"data/{place.table_id}/{uuids[0]}/{uuids[1]}/README.md", f"data/{place.table_id}/{uuids[0]}/x.parquet",
                f"data/{place.table_id}/{uuids[0]}/{uuids[1]}/_x.parquet", f"vn/{'0' * 32}", "vn/latest",
                f"data/{uuids[0]}.parquet", f"other/{uuids[0]}.arrow", "data/catalog", "checkpoint/x.arrow",
            )
        }  # fmt: skip
        sibling = open_storage(place.lake.storage.url.replace("?", "2?"))
        for path in abandoned:
            await place.begin(path, sibling)
        before = place.journal.head.version

        plan = await place.collect(dry_run=True)
        assert plan == UploadTotals(abandoned=len(abandoned))
        assert await place.open() == abandoned | foreign
        assert place.journal.head.version == before

        store_time[0] = -LATER_MILLIS
        done = await collect(place.journal, age=0)
        assert done.uploads == UploadTotals(young=len(abandoned))
        assert done.fence_version is None
        assert await place.open() == abandoned | foreign

        store_time[0] = LATER_MILLIS
        done = await collect(place.journal, age=0)
        assert done.uploads == UploadTotals(abandoned=len(abandoned), aborted=len(abandoned))
        assert done.fence_version == before + 1, "uploads are judged as files are"
        assert await place.open() == foreign
        assert await place.open(sibling) == abandoned
        await sibling.close()


async def test_leases_of_writers_keep_their_open_uploads(s3_server: S3Server) -> None:
    async with opened(s3_server) as place:
        lake, journal = place.lake, place.journal
        transaction = lake.transaction(journal)
        held = await leases.take(
            journal.follower.log,
            transaction.begin_version,
            new_id=IDENTITIES.uuid4,
            transaction_id=transaction.id,
        )
        theirs = {
            await place.begin(place.data_path(transaction.id)),
            await place.begin(place.data_path(transaction.id)),
            await place.begin(f"manifest/{place.table_id}/{IDENTITIES.uuid7()}.arrow"),
        }
        other = await place.begin()
        done = await place.collect()
        assert done == UploadTotals(abandoned=1, aborted=1, kept=3)
        assert await place.open() == theirs
        operation = await append(lake, journal, fmt.table_name("a", "t"), id=transaction.id)
        whole = msgspec.structs.replace(transaction, operations=(operation,), lease_path=held.path)
        await journal.commit(whole)  # the fence of the collection is below it
        assert other not in theirs
        await held.release()
        assert await place.collect() == UploadTotals(abandoned=3, aborted=3)
        assert await place.open() == set()


async def test_uploads_at_data_roots_go_where_the_root_is_ours(s3_server: S3Server) -> None:
    async with opened(s3_server) as place:
        lake, journal = place.lake, place.journal
        bare = s3_server.url().partition("?")[0]
        url = f"{bare}/root"
        table = lake.table("r", "t")
        id = lake.identities.uuid4()
        await lake.commit(journal, CreateNamespace(name="r", namespace_id=id, data_root=url), table)
        store = journal.follower.data_roots.of(url)
        root = open_storage(store.url)
        unknown = await place.begin(place.data_path(table_id=table.table_id), root)
        assert (await place.collect()).abandoned == 0, "a root without a table of ours"
        transaction = lake.transaction(journal)
        segment = await put_rows(
            store, lake.identities, table_id=table.table_id, transaction_id=transaction.id
        )
        foreign = await place.begin(place.data_path(table_id=IDENTITIES.uuid4()), root)
        no_data = await place.begin(f"node/{IDENTITIES.uuid4()}.arrow", root)
        await place.begin(place.data_path(table_id=table.table_id))  # the table is at home elsewhere
        beside = open_storage(store.url.replace("/root", "/root2"))
        await place.begin(unknown, beside)
        await journal.commit(
            msgspec.structs.replace(
                transaction,
                operations=(
                    AppendFiles(
                        namespace="r", name="t", table_id=table.table_id, segments=(segment,), data_root=url
                    ),
                ),
            )
        )
        assert (await place.collect(dry_run=True)).abandoned == 1
        assert await place.collect() == UploadTotals(abandoned=1, aborted=1)
        assert len(await place.open()) == 1
        assert await place.open(root) == {foreign, no_data}
        assert await place.open(beside) == {unknown}
        await root.close()
        await beside.close()


async def test_uploads_below_another_catalogs_root_stay(s3_server: S3Server) -> None:
    async with opened(s3_server) as place:
        await place.begin()
        node = await place.begin(f"node/{IDENTITIES.uuid4()}.arrow")
        await place.lake.storage.put("data/catalog", f"{IDENTITIES.uuid4()}\n".encode())
        assert await place.collect() == UploadTotals(abandoned=1, aborted=1)
        assert node not in await place.open()
        assert len(await place.open()) == 1


async def test_uploads_that_cannot_be_listed_stop_no_collection(s3_server: S3Server) -> None:
    async with opened(s3_server) as place:
        upload = await place.begin()
        where = place.lake.storage.url.partition("?")[0]
        for status, code, what in [
            (403, "AccessDenied", "allow s3:ListBucketMultipartUploads on the bucket"),
            (501, "NotImplemented", "the server does not know this request"),
            (405, "MethodNotAllowed", "the server does not know this request"),
            (503, "SlowDown", "SlowDown"),
        ]:
            await place.lake.storage.put(f"node/{IDENTITIES.uuid4()}.arrow", b"left behind")
            place.proxy.always(LISTING, s3_error(status, code))
            done = await collect(place.journal, age=0)
            assert done.deleted["node"].files == 1
            (text,) = done.uploads.skipped
            assert text.startswith(f"open uploads at {where} were not all looked at: list uploads"), text
            assert what in text
            assert done.uploads == UploadTotals(skipped=(text,))
            place.proxy.clear()
        assert await place.open() == {upload}


async def test_uploads_that_may_not_be_aborted_stop_no_collection(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_uploads, "ABORTED_AT_ONCE", 2)
    async with opened(s3_server) as place:
        uploads = {await place.begin() for _ in range(5)}
        await place.lake.storage.put(f"node/{IDENTITIES.uuid4()}.arrow", b"left behind")
        place.proxy.always(ABORT, s3_error(403, "AccessDenied"))
        done = await collect(place.journal, age=0)
        assert done.deleted["node"].files == 1
        (text,) = done.uploads.skipped
        assert "were not all aborted: abort upload of data/" in text
        assert text.endswith("; allow s3:AbortMultipartUpload")
        assert done.uploads == UploadTotals(abandoned=5, skipped=(text,))
        assert place.proxy.count(ABORT) == 2, "the first batch tells enough"
        before = place.journal.head.version
        again = await collect(place.journal, age=0)
        assert again.uploads.abandoned == 5
        assert "; allow s3:AbortMultipartUpload" in again.uploads.skipped[0]
        assert (again.fence_version, place.journal.head.version) == (None, before), "a version for nothing"
        place.proxy.clear()
        assert await place.open() == uploads
        place.proxy.script(ABORT, Forward(), s3_error(403, "AccessDenied"))
        done = await collect(place.journal, age=0)
        assert (done.uploads.aborted, len(done.uploads.skipped)) == (4, 1), "one failure stops no others"
        assert (await place.collect()).aborted == 1


async def test_a_collection_that_was_killed_between_aborts_is_finished_by_the_next(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_uploads, "ABORTED_AT_ONCE", 2)
    async with opened(s3_server) as place:
        for _ in range(5):
            await place.begin()
        with failpoints.armed("collect.aborting", "raise@2"), pytest.raises(failpoints.FailpointError):
            await collect(place.journal, age=0)
        assert len(await place.open()) == 3
        assert await place.collect() == UploadTotals(abandoned=3, aborted=3)
        assert await place.open() == set()


async def test_a_store_that_was_put_back_stops_the_aborts(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_uploads, "ABORTED_AT_ONCE", 2)
    async with opened(s3_server) as place:
        for _ in range(5):
            await place.begin()
        aborted = []

        async def put_back() -> None:
            async for step in place.journal.collect(minimum_age_millis=0):
                aborted.append(step.uploads.aborted)
                if step.uploads.aborted == 2:
                    await place.lake.storage.delete(fmt.version_file(place.journal.head.version, 32))

        await raises(Corrupt, put_back(), kind="history_replaced")
        assert aborted == [0, 2]
        assert len(await place.open()) == 3


# -- numbers and failures, without a server


class Listed(MemoryStorage):
    """A store with open uploads, which may refuse to abort."""

    def __init__(self, uploads: list[OpenUpload], failure: AlpheusError | None = None) -> None:
        super().__init__()
        self.uploads = uploads
        self.failure = failure
        self.aborted: list[OpenUpload] = []
        self.at_work = self.at_work_max = 0

    async def list_uploads(self, prefix: str) -> AsyncIterator[OpenUpload]:
        for upload in self.uploads:
            if upload.path.startswith(prefix):
                yield upload

    async def abort_upload(self, upload: OpenUpload) -> None:
        self.at_work += 1
        self.at_work_max = max(self.at_work_max, self.at_work)
        await asyncio.sleep(0)
        self.at_work -= 1
        if self.failure is not None:
            raise self.failure
        self.aborted.append(upload)


def upload_of(number: int, initiated_at_millis: int | None = 1) -> OpenUpload:
    name = f"{number:012x}"
    uuid = f"00000000-0000-4000-8000-{name}"
    return OpenUpload(f"data/{uuid}/{uuid}/{uuid}/x.parquet", f"id/{number}", initiated_at_millis)


async def run(storage: Listed, cutoff: int = 5) -> tuple[OpenUploads, int]:
    """List and abort, and return also how often the head was looked at."""
    found, heads = OpenUploads(), 0

    async def check_head() -> None:
        nonlocal heads
        heads += 1

    await found.find("", storage, fmt.UPLOADED_FOLDERS, cutoff)
    async for _ in found.abort(lambda _: storage, check_head):
        pass
    return found, heads


@pytest.mark.parametrize("in_memory", [0, 1 << 20])
async def test_thousands_of_uploads_go_in_batches(
    in_memory: int, monkeypatch: pytest.MonkeyPatch, lane_count: Callable[[int, int], int]
) -> None:
    monkeypatch.setattr("alpheus_journal.collect.candidates.PATHS_SIZE_BYTES_MAX", in_memory)
    count = lane_count(2_300, 100_000)
    storage = Listed([upload_of(number) for number in range(count)])
    found, heads = await run(storage)
    expected = [msgspec.structs.replace(one, initiated_at_millis=None) for one in storage.uploads]
    assert sorted(storage.aborted, key=lambda one: one.path) == expected
    assert found.count() == UploadTotals(abandoned=count, aborted=count)
    assert heads >= count / open_uploads.ABORTED_AT_ONCE
    assert storage.at_work_max <= open_uploads.REQUESTS_AT_ONCE
    found.close()


async def test_times_decide() -> None:
    storage = Listed([upload_of(n, time) for n, time in enumerate([4, 5, 6, None, 1 << 60])])
    found, _ = await run(storage)
    assert found.count() == UploadTotals(abandoned=1, aborted=1, young=4)
    assert [upload.upload_id for upload in storage.aborted] == ["id/0"]


@pytest.mark.parametrize(
    "failure", [Unavailable("away"), OutcomeUnknown("cut off"), Exhausted("full", kind="no_space")]
)
async def test_a_store_that_is_away_ends_the_aborts(failure: AlpheusError) -> None:
    storage = Listed([upload_of(number) for number in range(2_000)], failure)
    found, heads = await run(storage)
    assert heads == 1
    assert found.count() == UploadTotals(
        abandoned=2_000, skipped=(f"open uploads at {storage.url} were not all aborted: {failure.message}",)
    )


@pytest.mark.parametrize(
    ("failure", "may_abort"),
    [(None, True), (Denied("no"), False), (InvalidInput("what?"), True), (Unavailable("away"), True)],
)
async def test_a_permission_is_looked_for_without_an_abort(
    failure: AlpheusError | None, may_abort: bool
) -> None:
    node = OpenUpload(f"node/{IDENTITIES.uuid4()}.arrow", "id", 1)
    storage = Listed([upload_of(1), upload_of(2), node], failure)
    found = OpenUploads()
    await found.find("", storage, fmt.UPLOADED_FOLDERS, 5)
    assert await found.may_abort(lambda _: storage) == may_abort
    assert [upload.upload_id for upload in storage.aborted] == [open_uploads.NO_UPLOAD_ID] * (failure is None)
    assert len(found.count().skipped) == (0 if may_abort else 1)


async def test_a_policy_may_tell_folders_apart() -> None:
    class DataOnly(Listed):
        async def abort_upload(self, upload: OpenUpload) -> None:
            if not upload.path.startswith("data/"):
                raise Denied("no")

    storage = DataOnly([OpenUpload(f"node/{IDENTITIES.uuid4()}.arrow", "id", 1), upload_of(1)])
    found = OpenUploads()
    await found.find("", storage, fmt.UPLOADED_FOLDERS, 5)
    assert await found.may_abort(lambda _: storage)
    assert found.count().skipped == ()


async def test_uploads_of_tables_with_another_place_are_left_to_that_place() -> None:
    storage = Listed([upload_of(1), upload_of(2)])
    found = OpenUploads()
    await found.find("", storage, fmt.UPLOADED_FOLDERS, 5)
    await found.keep_elsewhere({storage.uploads[0].path.split("/")[1]: {"s3://bucket/root"}})
    assert found.count() == UploadTotals(abandoned=1)


async def test_stores_without_uploads_answer_nothing() -> None:
    lake = Lake()
    journal = await lake.create()
    done = await collect(journal)
    assert done.uploads == UploadTotals()
    await raises(AlpheusError, lake.storage.abort_upload(OpenUpload("/a", "x", 1)), kind="bad_argument")
    await journal.close()
