"""Without root: the whole suite, where somebody else runs it; and here, where root does, as `nobody`."""

import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pg_pipeline.embedded.account import Account, let_pass
from pg_pipeline.embedded.server import EmbeddedServer
from pg_pipeline_tests.helpers import PROJECT, ChildProcess, wait_until
from pg_pipeline_tests.not_run import NOT_RUN

USE = """
import os, psycopg, stat, sys
from pathlib import Path
from pg_pipeline.embedded.postgres import embedded_server, ensure_running
from pg_pipeline.settings import get_settings
dsn = ensure_running()
server = embedded_server(get_settings())
assert os.geteuid() == int(sys.argv[1])
assert psycopg.connect(dsn).execute("select 42").fetchone() == (42,)
assert server.postmaster().uids().effective == os.geteuid()
for folder in (server.folder, server.data, server.socket_dir):
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder
    assert folder.stat().st_uid == os.geteuid()
print("good")
"""


@pytest.fixture
def nobody() -> Account:
    entry = pwd.getpwnam("nobody")
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


@pytest.fixture
def packages(nobody: Account) -> Iterator[str]:
    """Our installed packages, which `nobody` may reach while the test lasts."""
    place = Path(sysconfig.get_paths()["purelib"])
    name = "system.posix_acl_access"
    before = [(folder, folder.stat().st_mode, name in os.listxattr(folder)) for folder in place.parents]
    let_pass(nobody, place)
    yield str(place)
    for folder, mode, had_acl in before:
        if not had_acl and name in os.listxattr(folder):
            os.removexattr(folder, name)
            folder.chmod(mode & 0o7777)


def interpreter(account: Account) -> str:
    """This Python, from a place that the account may run it from."""
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for candidate in (os.path.realpath(sys.executable), f"/usr/bin/{name}", f"/usr/local/bin/{name}"):
        try:
            subprocess.run([candidate, "-c", ""], user=account.uid, group=account.gid, cwd="/", check=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return candidate
    pytest.skip(f"{NOT_RUN}there is no {name} here that another user may run")


@pytest.mark.system("root", "setpriv")
def test_a_user_without_rights_gets_a_server_of_their_own(
    child: Callable[..., ChildProcess], nobody: Account, packages: str
) -> None:
    python = interpreter(nobody)
    home = Path(tempfile.mkdtemp(prefix="pgp-"))
    try:
        for name in ("pg_pipeline", "sql"):
            shutil.copytree(PROJECT / name, home / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(PROJECT / "pyproject.toml", home)
        subprocess.run(["chown", "-R", str(nobody.uid), home], check=True)
        as_nobody = ("setpriv", "--reuid", str(nobody.uid), "--regid", str(nobody.gid), "--clear-groups")
        environment = {
            "HOME": str(home),
            "PYTHONPATH": os.pathsep.join((str(home), packages)),
            "PG_PIPELINE_STATE_DIR": None,
            "PG_PIPELINE_EMBEDDED_LINGER": "0",
        }
        command = (*as_nobody, python, "-c", USE, str(nobody.uid))
        process = child(command=command, env=environment, cwd=home)
        assert process.wait() == 0, process.stderr
        assert process.stdout == "good\n"
        server = EmbeddedServer(home / ".pg_pipeline" / "postgres18")
        assert server.data.is_dir()
        wait_until(lambda: not server.held("keeper.lock"), what="the keeper to stop the server and go")
    finally:
        shutil.rmtree(home)
