"""The embedded server: shared by all, alive while one of them needs it, intact whoever is killed."""

import contextlib
import os
import re
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from pg_pipeline.embedded.account import server_account
from pg_pipeline.embedded.server import EmbeddedServer
from pg_pipeline.errors import ConfigurationError
from pg_pipeline_tests.conftest import POSTGRES_VERSION
from pg_pipeline_tests.helpers import ChildProcess, wait_until

StartChild = Callable[..., ChildProcess]

USE = """
import sys
from pathlib import Path
from pg_pipeline.embedded.server import EmbeddedServer
server = EmbeddedServer(Path(sys.argv[1]), version=int(sys.argv[2]), linger=0)
server.attach()
print("attached", server.postmaster().pid, flush=True)
if len(sys.argv) > 3:
    import time
    while True: time.sleep(60)
"""


class Project:
    """A project folder with an embedded server that other processes use."""

    def __init__(self, folder: Path, start: StartChild) -> None:
        self.server = EmbeddedServer(folder, version=POSTGRES_VERSION, linger=0)
        self.started: list[ChildProcess] = []
        self._start_child = start

    def user(self) -> ChildProcess:
        """A process that uses the server until it is ended."""
        process = self.begin("stay")
        process.wait_for_output("attached")
        return process

    def begin(self, *arguments: str) -> ChildProcess:
        return self._start(USE, str(self.server.folder), str(POSTGRES_VERSION), *arguments)

    def _start(self, *arguments: str) -> ChildProcess:
        self.started.append(self._start_child(*arguments))
        return self.started[-1]

    @property
    def postmaster(self) -> psutil.Process:
        process = self.server.postmaster()
        assert process is not None
        return process

    @property
    def keeper(self) -> psutil.Process:
        found = [
            process
            for process in psutil.process_iter(["cmdline"])
            if {"pg_pipeline.embedded.keeper", str(self.server.folder)} <= set(process.info["cmdline"] or ())
        ]
        assert len(found) == 1, found
        return found[0]

    def initdb(self) -> list[psutil.Process]:
        found = [process for process in psutil.process_iter(["name", "cmdline"]) if process.info["name"] == "initdb"]
        return [
            process for process in found if any(str(self.server.folder) in word for word in process.info["cmdline"])
        ]

    def wait_until_stopped(self) -> None:
        wait_until(lambda: self.server.postmaster() is None, what="the server to stop")
        assert not (self.server.data / "postmaster.pid").exists(), "it did not stop cleanly"

    def query(self, text: bytes) -> object:
        with psycopg.connect(self.server.dsn(), autocommit=True) as conn:
            row = conn.execute(text).fetchone()
        assert row is not None
        return row[0]

    def execute(self, text: bytes) -> None:
        with psycopg.connect(self.server.dsn(), autocommit=True) as conn:
            conn.execute(text)

    def begin_query(self, text: bytes) -> ChildProcess:
        """A process whose query is seen running in the server."""
        code = "import psycopg, sys; psycopg.connect(sys.argv[1]).execute(sys.argv[2].encode())"
        process = self._start(code, self.server.dsn(), text.decode())
        running = b"select count(*) from pg_stat_activity where pid <> pg_backend_pid() and state = 'active'"
        wait_until(lambda: self.query(running) == 1, what="the query to run")
        return process

    def answers(self) -> bool:
        with contextlib.suppress(psycopg.OperationalError):
            return self.query(b"select 1") == 1
        return False


def is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def kill9(process: psutil.Process) -> None:
    process.kill()
    wait_until(lambda: not is_alive(process), what="the killed to be gone")


@pytest.fixture
def project(child: StartChild, session_dir: Path) -> Iterator[Project]:
    folder = Path(tempfile.mkdtemp(prefix="pgp-", dir=session_dir))
    project = Project(folder / "pg", child)
    yield project
    for process in project.started:
        process.kill9()
    if project.server.folder.exists():
        if not project.server.held("keeper.lock"):
            project.server.stop()
        wait_until(lambda: not project.server.held("keeper.lock"), what="the keeper to stop the server and go")
    shutil.rmtree(folder)


def test_first_starts_at_the_same_moment_make_one_server(project: Project) -> None:
    starters = [project.begin("stay") for _ in range(4)]
    for starter in starters:
        starter.wait_for_output("attached")
    assert len({starter.stdout for starter in starters}) == 1
    assert len(list(project.server.folder.glob("data"))) == 1
    assert list(project.server.folder.glob("new-*")) == []
    assert project.keeper.is_running()


def test_both_databases_are_there(server: EmbeddedServer) -> None:
    for name in ("pg_pipeline", "dagster"):
        with psycopg.connect(server.dsn(name)) as conn:
            assert conn.info.dbname == name


def test_server_stops_when_its_last_user_leaves(project: Project) -> None:
    stays = project.user()
    assert project.begin().wait() == 0
    assert project.answers(), "one user left, and another still needs it"
    stays.signal(signal.SIGTERM)
    project.wait_until_stopped()


def test_server_stops_when_its_last_user_is_killed(project: Project) -> None:
    project.user().kill9()
    project.wait_until_stopped()


def test_a_killed_starter_takes_nobody_along(project: Project) -> None:
    starter = project.user()
    other = project.user()
    before = project.postmaster.pid
    starter.kill9_group()
    assert other.alive
    # The keeper, which looks twice a second, gets its chance to be wrong.
    looks = project.keeper.num_ctx_switches().voluntary + 4
    wait_until(lambda: project.keeper.num_ctx_switches().voluntary > looks, what="the keeper to look again")
    assert project.answers()
    assert project.postmaster.pid == before


def test_ctrl_c_in_the_starters_terminal_does_not_reach_the_server(project: Project) -> None:
    starter = project.user()
    other = project.user()
    before = project.postmaster.pid
    os.killpg(starter.pid, signal.SIGINT)
    starter.wait()
    assert other.alive
    assert project.answers()
    assert project.postmaster.pid == before


def test_killed_server_comes_back_by_itself_with_every_commit(project: Project) -> None:
    project.user()
    project.execute(b"create table kept as select 42 as answer")
    before = project.postmaster
    kill9(before)
    wait_until(project.answers, what="the keeper to restart the server")
    assert project.postmaster.pid != before.pid
    assert project.query(b"select answer from kept") == 42


def test_killed_server_with_a_busy_backend_comes_back(project: Project) -> None:
    """A backend in a long computation outlives its server, and Postgres refuses to start beside it."""
    project.user()
    busy = project.begin_query(b"select count(*) from generate_series(1, 100000000000)")
    kill9(project.postmaster)
    wait_until(project.answers, timeout=60, what="the server to come back")
    busy.kill9()


def test_killed_keeper_is_replaced_by_the_next_user(project: Project) -> None:
    first = project.user()
    kill9(project.keeper)
    second = project.user()
    assert project.keeper.is_running()
    first.kill9()
    second.kill9()
    project.wait_until_stopped()


def test_last_user_stops_the_server_where_the_keeper_was_killed(project: Project, child: StartChild) -> None:
    leaver = child(
        USE.replace(
            "if len(sys.argv)", "import os\nwhile not os.path.exists(sys.argv[3]): pass\nserver.detach()\nif 0"
        ),
        *(str(project.server.folder), str(POSTGRES_VERSION), str(project.server.folder / "leave")),
    )
    leaver.wait_for_output("attached")
    kill9(project.keeper)
    (project.server.folder / "leave").touch()
    assert leaver.wait() == 0
    project.wait_until_stopped()


def test_everything_killed_at_once_is_recovered_by_the_next_user(project: Project) -> None:
    user = project.user()
    project.execute(b"create table kept as select 42 as answer")
    kill9(project.keeper)
    kill9(project.postmaster)
    user.kill9()
    project.user()
    assert project.query(b"select answer from kept") == 42


def test_a_pid_file_that_names_somebody_elses_process_is_seen_through(project: Project) -> None:
    """After a reboot or in a container, the pid of the old server is soon another process's."""
    user = project.user()
    kill9(project.keeper)
    kill9(project.postmaster)
    user.kill9()
    account = server_account()
    other = {"user": account.uid, "group": account.gid, "extra_groups": []} if os.geteuid() == 0 else {}
    innocent = subprocess.Popen(["sleep", "600"], **other)
    try:
        pid_file = project.server.data / "postmaster.pid"
        pid_file.write_text(re.sub(r"\A\d+", str(innocent.pid), pid_file.read_text()))
        project.user()
        assert project.answers()
        assert innocent.poll() is None, "somebody else's process was ended"
    finally:
        innocent.kill()
        innocent.wait()


def test_a_first_start_killed_half_way_leaves_nothing_in_the_way(project: Project) -> None:
    starter = project.begin("stay")
    initdb = wait_until(project.initdb, what="initdb to be under way")[0]
    initdb.suspend()  # it is still there when the next one starts, ready to go on filling its folder
    starter.kill9_group()
    assert not project.server.data.exists()
    project.user()
    assert project.answers()
    assert not is_alive(initdb)
    assert list(project.server.folder.glob("new-*")) == []


def test_server_ends_when_its_folder_is_gone(project: Project) -> None:
    """`make clean`, or a person with mv, must not leave a server that nobody can find."""
    project.user()
    running = project.postmaster
    folder = project.server.folder
    folder.rename(folder.with_name("elsewhere"))
    wait_until(lambda: not is_alive(running), what="the server to end")


def test_only_its_owner_can_reach_it(server: EmbeddedServer) -> None:
    for folder in (server.data, server.socket_dir):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    process = server.postmaster()
    assert process is not None
    assert process.net_connections("inet") == []
    assert process.uids().effective != 0


@pytest.mark.parametrize("setting", ["fsync", "synchronous_commit", "full_page_writes", "data_checksums"])
def test_it_keeps_what_it_confirmed(server: EmbeddedServer, setting: str) -> None:
    with psycopg.connect(server.dsn("postgres")) as conn:
        assert conn.execute("select current_setting(%s)", (setting,)).fetchone() == ("on",)


def test_folders_above_the_data_stay_closed_to_others(session_dir: Path) -> None:
    """As root the server's own user is let through, and nobody else."""
    assert session_dir.stat().st_mode & 0o007 == 0


def test_a_long_path_gets_a_short_private_socket(project: Project) -> None:
    long = project.server.folder / ("long" * 30)
    server = EmbeddedServer(long, version=POSTGRES_VERSION, linger=0)
    assert len(str(server.socket_dir)) < 60
    server.attach()
    try:
        assert stat.S_IMODE(server.socket_dir.stat().st_mode) == 0o700
        with psycopg.connect(server.dsn()) as conn:
            assert conn.execute("select 1").fetchone() == (1,)
    finally:
        server.detach()
        wait_until(lambda: server.postmaster() is None, what="the server to stop")
        server.socket_dir.rmdir()


def test_a_socket_folder_that_others_could_own_is_refused(tmp_path: Path) -> None:
    """Whoever makes the folder under /tmp first could listen in our server's place."""
    target = tmp_path / "theirs"
    target.mkdir()
    link = tmp_path / "socket"
    link.symlink_to(target)
    server = EmbeddedServer(tmp_path / "pg", version=POSTGRES_VERSION, socket_dir=link, linger=0)
    with pytest.raises(ConfigurationError, match="belongs to somebody else"):
        server.attach()


def test_the_log_cannot_grow_without_end(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path)
    server.data.mkdir()
    server.log.write_bytes(b"x" * (9 * 2**20))
    server.bound_log()
    assert server.log.stat().st_size == 0
    assert server.log.with_suffix(".log.1").stat().st_size == 9 * 2**20


def test_a_data_folder_of_another_version_is_left_alone(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path / "pg", version=POSTGRES_VERSION)
    server.data.mkdir(parents=True)
    (server.data / "PG_VERSION").write_text("9\n")
    with pytest.raises(ConfigurationError, match="made by Postgres 9"):
        server.attach()
    assert sorted(path.name for path in server.data.iterdir()) == ["PG_VERSION"]


def test_nothing_embedded_is_started_for_a_server_of_ones_own(server: EmbeddedServer, child: StartChild) -> None:
    folder = Path(tempfile.mkdtemp(prefix="pgp-"))
    user = child(
        "from pg_pipeline.embedded.postgres import ensure_running; print(ensure_running())",
        env={"PG_PIPELINE_DSN": server.dsn(), "PG_PIPELINE_STATE_DIR": str(folder)},
    )
    assert user.wait() == 0
    assert user.stdout.strip() == server.dsn()
    assert list(folder.iterdir()) == []
    folder.rmdir()


def test_second_use_finds_the_running_server(server: EmbeddedServer, child: StartChild) -> None:
    again = child(USE, str(server.folder), str(POSTGRES_VERSION))
    assert again.wait() == 0
    assert f"attached {server.postmaster().pid}" in again.stdout  # type: ignore[union-attr]
