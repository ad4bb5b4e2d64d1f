"""Unpack the packages of a worker package where a Python first imports one of them.

`package` puts this module into the file as `alpheus_worker_package`, beside a stub for each of our packages. A stub
calls `replace_stub`. Python cannot import C extensions from within an archive, so all packages are unpacked once for
each executor, into a folder beside the file, which Spark removes with the application.

Any Python may run this module, so it uses nothing newer than Python 3.7 and nothing but the standard library.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import platform
import shutil
import socket
import sys
import sysconfig
import tempfile
import zipfile

RECORD = "alpheus_worker_package.json"
SITE = "site/"
"""The folder of the file that holds the packages."""


def describe_python() -> dict[str, str]:
    """Return what packages with C extensions depend on."""
    return {
        "python": "{} {}.{}".format(platform.python_implementation(), *sys.version_info[:2]),
        "platform": f"{sys.platform}-{platform.machine()}",
        "abi": sysconfig.get_config_var("SOABI") or "",  # also tells glibc from musl
    }


def _join(found: dict[str, str]) -> str:
    return "{python}, {platform}, {abi}".format(**found)


def replace_stub(name: str) -> None:
    """Put the folder of the unpacked packages first on sys.path, and the package `name` in place of its stub.

    Raises ImportError that names both sides for another Python or platform, and where the file cannot be unpacked.
    """
    folder = _unpack(os.path.dirname(os.path.abspath(__file__)))
    if folder not in sys.path:
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
    sys.modules.pop(name, None)
    importlib.import_module(name)


def _unpack(archive: str) -> str:
    record = json.loads(pkgutil.get_data(__name__, RECORD) or b"{}")
    mine = describe_python()
    if any(record[key] != value for key, value in mine.items()):
        raise ImportError(
            f"{os.path.basename(archive)} holds packages for {_join(record)}, but {sys.executable} on"
            f" {socket.gethostname()} is {_join(mine)}: make the file again with `alpheus spark package` in an"
            " environment of that Python and platform"
        )
    if os.path.isdir(archive):  # unpacked by somebody else
        return os.path.join(archive, SITE.rstrip("/"))
    parent = os.path.dirname(archive)
    folder = os.path.join(parent, ".alpheus-" + record["digest"][:16])
    if os.path.isdir(folder):
        return folder
    try:
        scratch = tempfile.mkdtemp(prefix=".alpheus-", dir=parent)
        try:
            with zipfile.ZipFile(archive) as packed:
                packed.extractall(scratch, [name for name in packed.namelist() if name.startswith(SITE)])
            try:
                os.rename(os.path.join(scratch, SITE), folder)
            except OSError:
                if not os.path.isdir(folder):  # else another worker was faster
                    raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise ImportError(
            f"{archive} cannot be unpacked beside itself on {socket.gethostname()}: {error}"
        ) from error
    return folder
