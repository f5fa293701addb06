"""One Postgres server, shared by every process of a project.

Its users are counted by the kernel and not by a list of pids: each holds a shared `flock` on `users.lock`, which ends
with the process however it ends. A small keeper process (`keeper.py`) restarts the server when it dies under its
users and stops it when the last one is gone. Only the holder of `start.lock` starts or stops anything.

This module keeps to the standard library and psutil, so that the keeper stays small.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psutil

from pg_pipeline.embedded.account import Account, server_account
from pg_pipeline.embedded.cluster import check_data, make_data, open_to, remove_half_made, run_program
from pg_pipeline.embedded.processes import is_postgres, poll
from pg_pipeline.errors import ConfigurationError, DatabaseUnreachable

DATABASES = ("pg_pipeline", "dagster")
SOCKET_NAME = ".s.PGSQL.5432"
SOCKET_PATH_LIMIT = 107 if sys.platform == "linux" else 103
START_TIMEOUT = 120.0
LOG_LIMIT = 8 * 2**20

_SETTINGS = """\
# Written at every start; change the server through your own Postgres and PG_PIPELINE_DSN instead.
listen_addresses = ''
unix_socket_directories = {socket_dir}
unix_socket_permissions = 0700
port = 5432
max_connections = 200
shared_buffers = 256MB
fsync = on
synchronous_commit = on
full_page_writes = on
timezone = 'UTC'
log_timezone = 'UTC'
log_line_prefix = '%m [%p] '
"""


class EmbeddedServer:
    """The server whose files live in `folder`; attach() makes this process one of its users."""

    def __init__(
        self, folder: Path, *, version: int = 18, socket_dir: Path | None = None, linger: float = 10.0
    ) -> None:
        self.folder = Path(os.path.abspath(folder))
        self.version = version
        self.linger = linger
        self.data = self.folder / "data"
        self.log = self.data / "server.log"
        self._asked_socket_dir = socket_dir
        self.socket_dir = self._choose_socket_dir()
        self._mutex = threading.RLock()
        self._use: int | None = None

    def dsn(self, database: str = "pg_pipeline") -> str:
        return f"postgresql://postgres@/{quote(database, safe='')}?host={quote(str(self.socket_dir), safe='')}"

    @property
    def attached(self) -> bool:
        return self._use is not None

    def attach(self) -> None:
        """Become a user of a server that accepts connections, making and starting it as needed."""
        with self._mutex:
            if self.attached and self.accepts_connections():
                return
            self._make_folder()
            with self.starting():
                if self._use is None:
                    self._use = self._open("users.lock")
                    fcntl.flock(self._use, fcntl.LOCK_SH)
                try:
                    remove_half_made(self.folder)
                    if not check_data(self.data, self.version):
                        make_data(self.data, self.version, server_account())
                    if self.postmaster() is None:
                        self.start()
                    self._wait_until_ready()
                    self._ensure_databases()
                    self._ensure_keeper()
                except BaseException:
                    self._close()
                    raise

    def detach(self) -> None:
        """Stop being a user. The keeper stops the server; where the keeper was killed, the last user does."""
        with self._mutex:
            if self._use is None:
                return
            self._close()
            if self.folder.is_dir() and not self.held("keeper.lock"):
                with self.starting():
                    if not self.held("users.lock"):
                        self.stop()

    def _close(self) -> None:
        # Closed, never LOCK_UN: a forked child shares this lock and may still need the server.
        if self._use is not None:
            os.close(self._use)
            self._use = None

    # Locks

    def _open(self, name: str) -> int:
        return os.open(self.folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Hold the right to start or stop the server."""
        handle = self._open("start.lock")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def held(self, name: str) -> bool:
        """Whether any process holds this lock."""
        handle = self._open(name)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    # Folders

    def _make_folder(self) -> None:
        try:
            self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.folder.mkdir(mode=0o700, exist_ok=True)
            handle = self._open("start.lock")
        except OSError as error:
            raise ConfigurationError(
                f"No permission to keep data in {self.folder} ({error.strerror}): "
                "make it writable, or set PG_PIPELINE_STATE_DIR to another folder."
            ) from None
        os.close(handle)

    def _choose_socket_dir(self) -> Path:
        """Beside the data, or, where that path is too long for a socket, a private folder under /tmp."""
        if self._asked_socket_dir is not None:
            asked = Path(os.path.abspath(self._asked_socket_dir))
            if _socket_fits(asked):
                return asked
            raise ConfigurationError(
                f"The socket folder {asked} is too long ({len(os.fsencode(asked))} bytes, at most "
                f"{SOCKET_PATH_LIMIT - len(SOCKET_NAME) - 1}): set PG_PIPELINE_SOCKET_DIR to a shorter one."
            )
        beside = self.folder / "socket"
        if _socket_fits(beside):
            return beside
        # A fixed name, whatever TMPDIR says, so that every process finds it; its owner is checked before use.
        digest = hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:12]
        return Path("/tmp") / f"pg_pipeline-{os.geteuid()}-{digest}"  # noqa: S108

    def _make_socket_dir(self, account: Account) -> None:
        try:
            self.socket_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = self.socket_dir.lstat()
            # Under /tmp somebody else may have made it first, to listen in.
            if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (os.geteuid(), account.uid):
                raise ConfigurationError(
                    f"The socket folder {self.socket_dir} belongs to somebody else: "
                    "remove it, or set PG_PIPELINE_SOCKET_DIR to a folder of your own."
                )
            os.chown(self.socket_dir, account.uid, account.gid)
            self.socket_dir.chmod(0o700)
        except OSError as error:
            raise ConfigurationError(
                f"No permission to make the socket folder {self.socket_dir} ({error.strerror}): "
                "set PG_PIPELINE_SOCKET_DIR to a folder of your own."
            ) from None

    # The server process

    def postmaster(self) -> psutil.Process | None:
        """The living server on our data. A pid file may name a process that is long gone, or somebody else's."""
        try:
            pid = int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])
        except (OSError, ValueError):
            return None
        return self._ours(pid)

    def _ours(self, pid: int) -> psutil.Process | None:
        if not is_postgres(pid):
            return None
        try:
            process = psutil.Process(pid)
            return process if Path(process.cwd()) == self.data.resolve() else None
        except psutil.Error:
            return None

    def start(self) -> None:
        """Start the server on existing data. The caller holds start.lock and has seen that none runs."""
        account = server_account()
        open_to(account, self.version, self.data, self.socket_dir)
        self._make_socket_dir(account)
        self._end_orphans()
        self._disown_dead_pids()
        self.bound_log()
        conf = self.data / "pg_pipeline.conf"
        quoted = "'\"" + str(self.socket_dir).replace("'", "''") + "\"'"
        logged = self.log.stat().st_size if self.log.exists() else 0
        try:
            conf.write_text(_SETTINGS.format(socket_dir=quoted))
            run_program(
                account,
                self.version,
                *("pg_ctl", "start", "--silent", "--wait", "--timeout", str(int(START_TIMEOUT))),
                *("--pgdata", str(self.data), "--log", str(self.log)),
            )
        except (DatabaseUnreachable, OSError) as error:
            raise DatabaseUnreachable(
                f"The embedded Postgres did not start ({self._last_words(logged) or error}): see {self.log}."
            ) from None

    def stop(self) -> None:
        """Stop the server, if it runs. The caller holds start.lock."""
        process = self.postmaster()
        if process is None:
            return
        for way in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):  # fast, immediate, by force
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(way)
            if poll(lambda: self._ours(process.pid) is None, timeout=30):
                return

    def _end_orphans(self) -> None:
        """End backends that outlived a killed server: the next one must not start while they can write."""

        def orphans() -> list[psutil.Process]:
            named = [process.pid for process in psutil.process_iter(["name"]) if process.info["name"] == "postgres"]
            return [process for process in map(self._ours, named) if process is not None]

        for way in (signal.SIGQUIT, signal.SIGKILL):
            for process in orphans():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(way)
            if poll(lambda: not orphans(), timeout=5):
                return

    def _disown_dead_pids(self) -> None:
        """Let lock files that name a process which is no server of ours name nobody.

        The pid may be reused since, or be a zombie that nobody reaps, as in a container; Postgres would take either
        for a server and refuse to start. Removing postmaster.pid would also remove its memory of the shared memory
        segment, by which Postgres notices backends still running; so only the pid is replaced.
        """
        for lock in (self.data / "postmaster.pid", self.socket_dir / f"{SOCKET_NAME}.lock"):
            try:
                pid, rest = lock.read_text().split("\n", 1)
                os.kill(int(pid), 0)
            except (OSError, ValueError):
                continue  # no file, no such process, or one of another user, which Postgres knows not to be its own
            if lock.parent == self.socket_dir and is_postgres(int(pid)):
                continue  # somebody else's server in a socket folder that two projects share: Postgres must refuse
            gone = subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.DEVNULL)
            gone.wait()
            lock.write_text(f"{gone.pid}\n{rest}")

    def accepts_connections(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(5)
            try:
                probe.connect(str(self.socket_dir / SOCKET_NAME))
            except OSError:
                return False
        return True

    def _wait_until_ready(self) -> None:
        """Wait out a start or a recovery that is under way."""
        ended = poll(lambda: self._is_ready() or self.postmaster() is None, START_TIMEOUT)
        if not ended or not self._is_ready():
            raise DatabaseUnreachable(
                f"The embedded Postgres ended, or did not accept connections within {START_TIMEOUT:.0f} s: "
                f"see {self.log}."
            )

    def _ensure_databases(self) -> None:
        marker = self.data / "pg_pipeline.databases"
        if marker.exists():
            return
        for database in DATABASES:
            try:
                run_program(server_account(), self.version, "createdb", *self._address(), database)
            except DatabaseUnreachable as error:
                if "already exists" not in str(error):
                    raise
        marker.touch()

    def _ensure_keeper(self) -> None:
        if self.held("keeper.lock"):
            return
        here = Path(__file__).resolve().parents[2]
        path = os.pathsep.join(filter(None, (str(here), os.environ.get("PYTHONPATH"))))
        command = [sys.executable, "-m", "pg_pipeline.embedded.keeper", str(self.folder)]
        command += [str(self.version), str(self.socket_dir), str(self.linger)]
        made = subprocess.run(
            command,
            cwd="/",
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if made.returncode:
            raise DatabaseUnreachable(f"The embedded Postgres has no keeper ({made.stderr.strip()[-300:]}).")

    def bound_log(self) -> None:
        """Keep the log under its limit; the server appends, so it can be cut under its feet."""
        with contextlib.suppress(FileNotFoundError):
            if self.log.stat().st_size > LOG_LIMIT:
                shutil.copyfile(self.log, self.log.with_suffix(".log.1"))
                os.truncate(self.log, 0)

    def _last_words(self, offset: int) -> str:
        try:
            with self.log.open(errors="replace") as log:
                log.seek(offset)
                lines = [line.split("FATAL:", 1)[1].strip() for line in log if "FATAL:" in line]
        except OSError:
            return ""
        return lines[-1] if lines else ""

    def _address(self) -> tuple[str, ...]:
        return "--host", str(self.socket_dir), "--username", "postgres"

    def _is_ready(self) -> bool:
        try:
            run_program(server_account(), self.version, "pg_isready", *self._address(), "--quiet")
        except DatabaseUnreachable:
            return False
        return True


def _socket_fits(folder: Path) -> bool:
    return len(os.fsencode(folder / SOCKET_NAME)) <= SOCKET_PATH_LIMIT
