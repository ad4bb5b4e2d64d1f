"""Regenerate the committed protobuf code, or compare it with what the generator gives.

    python -m alpheus_pb            write alpheus_pb/v1/*_pb2*.py and .pyi
    python -m alpheus_pb --check    exit 1 and name the files that differ, are missing, or are left over

The generator runs in a throw-away environment: in the project's it would hold protobuf back. It is pinned in
requirements/generator.txt and checked against the hashes there, which `uv run --with-requirements` does not
do. Runs in a checkout only.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parent
CHECKOUT = ROOT.parent
GENERATOR = CHECKOUT / "requirements" / "generator.txt"
GENERATED = re.compile(r".*_pb2(_grpc)?\.pyi?")


def protos() -> tuple[list[str], list[str]]:
    """The .proto files as protoc names them, and those among them that declare a service."""
    files = sorted(ROOT.glob("alpheus_pb/v*/*.proto"))
    names = [path.relative_to(ROOT).as_posix() for path in files]
    services = [
        name
        for name, path in zip(names, files, strict=True)
        if re.search(r"^service\s", path.read_text(), re.MULTILINE)
    ]
    return names, services


def find_uv() -> str:
    """The uv on the PATH, beside this interpreter, or where .ci/setup puts it."""
    places = [os.environ.get("PATH", ""), str(Path(sys.executable).parent)]
    places.append(str(CHECKOUT / ".cache" / "bootstrap" / "bin"))
    uv = shutil.which("uv", path=os.pathsep.join(places))
    if uv is None:
        raise SystemExit("uv is missing: `make setup` brings it")
    return uv


def generate(target: Path) -> None:
    """Write the generated files of every .proto below `target`, as alpheus_pb/v1/..."""
    if not GENERATOR.is_file():
        raise SystemExit(f"{GENERATOR} is missing: the generator runs in a checkout, not in an installation")
    uv = find_uv()
    names, services = protos()
    with tempfile.TemporaryDirectory() as scratch:
        programs = Path(scratch) / "bin"
        python = str(programs / "python")
        run(uv, "venv", "--quiet", "--python", sys.executable, scratch)
        run(uv, "pip", "install", "--quiet", "--python", python, "--require-hashes", "-r", str(GENERATOR))
        # protoc looks for its plugins on the PATH
        environ = {**os.environ, "PATH": os.pathsep.join([str(programs), os.environ.get("PATH", "")])}
        protoc = [python, "-m", "grpc_tools.protoc", f"-I{ROOT}"]
        run(*protoc, f"--python_out={target}", f"--pyi_out={target}", *names, environ=environ)
        if services:
            outputs = [f"--grpc_python_out={target}", f"--mypy_grpc_out=quiet:{target}"]
            run(*protoc, *outputs, *services, environ=environ)


def run(*command: str, environ: dict[str, str] | None = None) -> None:
    status = subprocess.run(command, env=environ, check=False).returncode
    if status != 0:
        raise SystemExit(f"status {status} of: {' '.join(command)}")


def generated(root: Path) -> dict[str, bytes]:
    """Generated files below `root` by their path there."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.glob("alpheus_pb/v*/*"))
        if GENERATED.fullmatch(path.name)
    }


def drift(committed: dict[str, bytes], fresh: dict[str, bytes]) -> list[str]:
    """One line for each file in which the two differ."""
    return [
        f"{name}: {'missing' if name not in committed else 'left over' if name not in fresh else 'differs'}"
        for name in sorted(committed.keys() | fresh.keys())
        if committed.get(name) != fresh.get(name)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m alpheus_pb",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        fresh = generated(Path(scratch))
    committed = generated(ROOT)
    faults = drift(committed, fresh)
    if not options.check:
        for name in committed.keys() - fresh.keys():
            (ROOT / name).unlink()
        for name, content in fresh.items():
            if committed.get(name) != content:
                (ROOT / name).write_bytes(content)
        print(f"{len(fresh)} files, {len(faults)} written or removed")
        return 0
    if faults:
        print("generated code differs from the .proto files; run `python -m alpheus_pb`:", file=sys.stderr)
        print("\n".join(f"  {fault}" for fault in faults), file=sys.stderr)
        return 1
    print(f"generated code agrees ({len(fresh)} files)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
