"""Write one file with all that Spark's Python workers need for the data source "alpheus", for Spark to send.

The file is a zip for `spark.submit.pyFiles`. Spark puts it on sys.path in each Python process that it starts, on the
driver's machine too, and a stub in it unpacks the packages at the first import (`unpack`). So one setting works with
each kind of cluster. Rejected: an archive for `spark.archives`, which is unpacked to a place that differs between
local mode and clusters, so that it would need a PYTHONPATH for each kind; and a whole Python environment, which is ten
times as large, and brings a second PySpark.

The packages are those of the environment that runs this, which is why the file fits one version of Python and one
platform. Nothing is downloaded.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path

import msgspec

from alpheus.spark.workers import unpack
from alpheus_journal.errors import AlreadyExists, InvalidInput
from alpheus_journal.journal import software_version

OURS = ("alpheus", "alpheus_journal", "alpheus_pb", "pyspark_alpheus")

EXTRAS = ("s3", "object-store", "lmdb")
"""The extras of this distribution that bring storage. Those that are installed go into the file."""

LEFT_OUT = ("pyspark", "py4j", "pyarrow", "numpy", "pandas")
"""What every cluster that runs PySpark has, and what must fit its Spark."""

BOTOCORE_SERVICES = ("s3", "sts", "sso", "sso-oidc", "signin")
"""Descriptions of AWS services that go into the file: S3, and those that give credentials. The others take 18 MB."""

STUB = """import alpheus_worker_package

alpheus_worker_package.replace_stub(__name__)
"""

_DATE = (1980, 1, 1, 0, 0, 0)  # one for all entries, so that equal contents are equal files
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][\w.-]*)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")


class WorkerPackage(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was written. `python` and `platform` are those that it fits; `packages` has the versions of the
    distributions in it."""

    path: str
    size_bytes: int
    alpheus: str
    python: str
    platform: str
    packages: dict[str, str]

    @property
    def settings(self) -> dict[str, str]:
        """The settings with which a new Spark session sends the file to its workers."""
        return {"spark.submit.pyFiles": self.path}


def default_name() -> str:
    """Return the name of the file for this Python and platform."""
    found = unpack.describe_python()
    python = found["python"].replace(" ", "").lower()
    return f"alpheus-{software_version()}-workers-{python}-{found['platform']}.zip"


def write_package(path: Path) -> WorkerPackage:
    """Write the file, first under a temporary name beside `path`.

    Raises AlreadyExists when there is something at `path`, and InvalidInput (`bad_argument`) for a name that Spark does
    not take, a folder that cannot be written, and an environment in which a package is missing or cannot be copied.
    """
    if path.suffix != ".zip":
        raise InvalidInput(f"{path} does not end in .zip, by which Spark knows an archive of Python code")
    if any(character in path.name for character in ",#%") or path.name != path.name.strip():
        raise InvalidInput(f"{path.name!r} has a character that has a meaning in Spark's list of files")
    if os.path.lexists(path):
        raise AlreadyExists(f"{path} exists", hint="remove the file, or give another name")
    found = distributions()
    record = unpack.describe_python() | {"alpheus": software_version()}
    try:
        descriptor, scratch = tempfile.mkstemp(prefix=".alpheus-", suffix=".zip", dir=path.parent)
    except OSError as error:
        raise InvalidInput(f"{path.parent} cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(descriptor, "wb") as sink:
            _write(sink, found, record)
        Path(scratch).chmod(0o644)
        size = Path(scratch).stat().st_size
        Path(scratch).rename(path)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(FileNotFoundError):
            Path(scratch).unlink()
    return WorkerPackage(
        path=str(path.resolve()),
        size_bytes=size,
        alpheus=record["alpheus"],
        python=record["python"],
        platform=record["platform"],
        packages={name: each.version for name, each in found.items()},
    )


def distributions() -> dict[str, Distribution]:
    """Return the distributions that go into the file by their names: this one and what it needs, `LEFT_OUT` left out.

    An optional requirement, or one for other platforms, is in the file if the environment has it. Raises InvalidInput
    that names a missing distribution.
    """
    found: dict[str, Distribution] = {}
    waiting: list[tuple[str, frozenset[str], bool]] = [("alpheus", frozenset(EXTRAS), True)]
    while waiting:
        name, extras, is_required = waiting.pop()
        if name in found or name in LEFT_OUT:
            continue
        try:
            found[name] = importlib.metadata.distribution(name)
        except PackageNotFoundError:
            if is_required:
                raise InvalidInput(
                    f"{name} is not installed here, so workers would lack it",
                    hint="install alpheus completely, and run the command there",
                ) from None
            continue
        for text in found[name].requires or ():
            requirement, _, marker = text.partition(";")
            asked = _EXTRA.search(marker)
            if asked is not None and _normalize(asked[1]) not in extras:
                continue
            parts = _REQUIREMENT.match(requirement)
            assert parts is not None, text
            more = frozenset(_normalize(extra) for extra in (parts[2] or "").split(",") if extra.strip())
            waiting.append((_normalize(parts[1]), more, not marker.strip()))
    return dict(sorted(found.items()))


def _normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def _write(sink: object, found: dict[str, Distribution], record: dict[str, str]) -> None:
    digest = hashlib.sha256()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:  # type: ignore[call-overload]

        def add(name: str, data: bytes) -> None:
            info = zipfile.ZipInfo(name, _DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            archive.writestr(info, data)

        for name, source in sorted(_files(found)):
            data = source if isinstance(source, bytes) else source.read_bytes()
            digest.update(name.encode() + b"\0" + hashlib.sha256(data).digest())
            add(unpack.SITE + name, data)
        for name in OURS:
            add(f"{name}/__init__.py", STUB.encode())
        metadata = f"Metadata-Version: 2.1\nName: alpheus\nVersion: {record['alpheus']}\n"
        add(f"alpheus-{record['alpheus']}.dist-info/METADATA", metadata.encode())
        add("alpheus_worker_package.py", Path(unpack.__file__).read_bytes())
        digest.update(repr(sorted(record.items())).encode())
        add(unpack.RECORD, json.dumps(record | {"digest": digest.hexdigest()}, indent=1).encode())


def _files(found: dict[str, Distribution]) -> Iterator[tuple[str, Path | bytes]]:
    """Yield the names of the files below site-packages, with where each file is or what it holds."""
    for package in OURS:
        spec = importlib.util.find_spec(package)
        assert spec is not None, package
        assert spec.origin is not None, package
        root = Path(spec.origin).parent
        for path in root.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield f"{package}/{path.relative_to(root).as_posix()}", path
    for name, each in found.items():
        if name == "alpheus":  # may be installed for editing, with its files elsewhere
            yield f"alpheus-{each.version}.dist-info/METADATA", (each.read_text("METADATA") or "").encode()
            continue
        if each.files is None:
            raise InvalidInput(
                f"the environment does not say which files belong to {name}",
                hint="install the packages with pip or uv, and run the command there",
            )
        for file in each.files:
            if not _is_left_behind(file.parts):
                yield file.as_posix(), Path(str(each.locate_file(file)))


def _is_left_behind(parts: tuple[str, ...]) -> bool:
    """Return whether a file of a distribution is of no use to workers."""
    if parts[0] == ".." or parts[-1].endswith((".pyc", ".pth", ".pyi")):
        return True
    is_data = parts[:2] == ("botocore", "data") and len(parts) > 3
    return is_data and parts[2] not in BOTOCORE_SERVICES
