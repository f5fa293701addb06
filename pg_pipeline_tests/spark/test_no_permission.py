"""A file that the worker may not read: root may read everything, so here `nobody` works."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pg_pipeline.embedded.account import Account
from pg_pipeline.embedded.server import EmbeddedServer
from pg_pipeline_tests.embedded.test_other_user import interpreter, nobody, packages
from pg_pipeline_tests.helpers import PROJECT, ChildProcess, wait_until
from pg_pipeline_tests.spark.landing import lines

__all__ = ["nobody", "packages"]

WORK = """
import uuid
from pathlib import Path
from pg_pipeline.coordination.migrations import migrate
from pg_pipeline.coordination.types import AttemptRef, BatchFile
from pg_pipeline.embedded.java import ensure_java
from pg_pipeline.embedded.postgres import ensure_running
from pg_pipeline.sinks.postgres import PostgresTable
from pg_pipeline.spark.files import file_version
from pg_pipeline.spark.process import process_batch
from pg_pipeline.spark.recipe import Recipe
from pg_pipeline.spark.session import session
dsn = ensure_running()
migrate(dsn)
ensure_java()
spark = session()
found = [file_version(str(path)) for path in sorted(Path("landing").absolute().iterdir())]
files = [BatchFile(n, f.path, f.version, f.size) for n, f in enumerate(found)]
for reader in ("arrow", "spark"):
    attempt = AttemptRef("p", "e", 1, 0, uuid.uuid4())
    done = process_batch(spark, Recipe("json", "id long", reader=reader), files, attempt, PostgresTable("t"), dsn)
    print(reader, done.result.rows_out, [outcome.reason for outcome in done.result.files])
spark.stop()
"""


@pytest.mark.system("root", "setpriv")
def test_a_file_that_may_not_be_read_is_set_aside_by_either_reader(
    child: Callable[..., ChildProcess], nobody: Account, packages: str
) -> None:
    python = interpreter(nobody)
    home = Path(tempfile.mkdtemp(prefix="pgp-"))
    try:
        for name in ("pg_pipeline", "sql"):
            shutil.copytree(PROJECT / name, home / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(PROJECT / "pyproject.toml", home)
        (home / "landing").mkdir()
        for name in ("a.json", "secret.json", "z.json"):
            (home / "landing" / name).write_bytes(lines([{"id": 1}]))
        subprocess.run(["chown", "-R", str(nobody.uid), home], check=True)
        secret = home / "landing" / "secret.json"
        os.chown(secret, 0, 0)
        secret.chmod(0)
        as_nobody = ("setpriv", "--reuid", str(nobody.uid), "--regid", str(nobody.gid), "--clear-groups")
        environment = {
            "HOME": str(home),
            "PYTHONPATH": os.pathsep.join((str(home), packages)),
            "PG_PIPELINE_STATE_DIR": None,
            "PG_PIPELINE_EMBEDDED_LINGER": "0",
            "PYSPARK_PYTHON": python,
            "SPARK_LOCAL_DIRS": str(home),
        }
        process = child(command=(*as_nobody, python, "-c", WORK), env=environment, cwd=home)
        assert process.wait(300) == 0, process.stderr
        said = "[None, 'no_permission', None]"
        assert process.stdout.splitlines() == [f"arrow 2 {said}", f"spark 2 {said}"]
        server = EmbeddedServer(home / ".pg_pipeline" / "postgres18")
        wait_until(lambda: not server.held("keeper.lock"), what="the keeper to stop the server and go")
    finally:
        shutil.rmtree(home)
