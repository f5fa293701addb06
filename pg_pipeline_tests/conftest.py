"""Fixtures for every room: a database of one's own in milliseconds, one Spark session, real child processes."""

import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from psycopg import sql

from pg_pipeline.coordination.migrations import migrate
from pg_pipeline.embedded.java import ensure_java
from pg_pipeline.embedded.server import EmbeddedServer
from pg_pipeline_tests import quick_java
from pg_pipeline_tests.helpers import ChildProcess, wait_until

pytest_plugins = ["pg_pipeline_tests.not_run", "pg_pipeline_tests.pooler"]

POSTGRES_VERSION = int(os.environ.get("TEST_POSTGRES", "18"))

quick_java.use()

# Settings of the person who runs the tests must not leak into them.
for _name in [name for name in os.environ if name.startswith("PG_PIPELINE_") and "TEST" not in name]:
    del os.environ[_name]

# No test speaks with anybody's real cloud; set before Java starts, so that Spark's workers have it too.
os.environ.update(AWS_ACCESS_KEY_ID="testing", AWS_SECRET_ACCESS_KEY="testing", AWS_DEFAULT_REGION="us-east-1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One process has Spark's tests, since a second session costs more than it saves; theirs and the longest first, so
    that no process waits for another at the end."""
    on_spark = [item for item in items if "spark" in getattr(item, "fixturenames", ())]
    for item in on_spark:
        item.add_marker(pytest.mark.xdist_group("spark"))
    first = set(on_spark)
    items.sort(key=lambda item: (item not in first, "/e2e/" not in item.path.as_posix()))


@pytest.fixture(scope="session", autouse=True)
def session_dir() -> Iterator[Path]:
    """A short, private folder for this run, away from the project's own state."""
    folder = Path(tempfile.mkdtemp(prefix="pgp-", dir=_memory()))
    os.environ["PG_PIPELINE_STATE_DIR"] = str(folder / "state")
    yield folder
    del os.environ["PG_PIPELINE_STATE_DIR"]
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def server(session_dir: Path) -> Iterator[EmbeddedServer]:
    """One embedded server for the whole run."""
    server = EmbeddedServer(session_dir / f"postgres{POSTGRES_VERSION}", version=POSTGRES_VERSION, linger=0)
    server.attach()
    yield server
    server.detach()
    wait_until(lambda: not server.held("keeper.lock"), what="the keeper to stop the server and go")


@pytest.fixture(scope="session")
def new_database(server: EmbeddedServer) -> Iterator[Callable[..., str]]:
    """Makes databases: `new_database()` is empty, `new_database(template=…)` a copy. All go at the end."""
    made: list[str] = []

    def make(template: str = "template0") -> str:
        name = f"test_{uuid.uuid4().hex[:12]}"
        _administer(server, sql.SQL("create database {} template {} strategy file_copy"), name, template)
        made.append(name)
        return name

    yield make
    for name in made:
        _administer(server, sql.SQL("drop database if exists {} with (force)"), name)


@pytest.fixture(scope="session")
def template(server: EmbeddedServer, new_database: Callable[..., str]) -> str:
    """The name of a migrated database, which others are copied from; nobody connects to it."""
    name = new_database()
    migrate(server.dsn(name))
    return name


@pytest.fixture
def dsn(
    server: EmbeddedServer, template: str, new_database: Callable[..., str], request: pytest.FixtureRequest
) -> Iterator[str]:
    """A fresh, migrated database for this test alone."""
    name = new_database(template)
    direct = server.dsn(name)
    yield request.getfixturevalue("pooled")(direct) if os.environ.get("TEST_THROUGH_POOLER") else direct
    _administer(server, sql.SQL("drop database if exists {} with (force)"), name)


@pytest.fixture
def empty_dsn(server: EmbeddedServer, new_database: Callable[..., str]) -> Iterator[str]:
    """A fresh database with nothing in it."""
    name = new_database()
    yield server.dsn(name)
    _administer(server, sql.SQL("drop database if exists {} with (force)"), name)


@pytest.fixture
def conn(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def child() -> Iterator[Callable[..., ChildProcess]]:
    """Starts real processes (see ChildProcess) and leaves none behind."""
    started: list[ChildProcess] = []

    def start(*arguments: Any, **options: Any) -> ChildProcess:
        started.append(ChildProcess(*arguments, **options))
        return started[-1]

    yield start
    for process in started:
        process.close()


@pytest.fixture(scope="session")
def spark(session_dir: Path) -> Iterator[Any]:
    """One Spark session for the whole run: starting one costs ten seconds and more."""
    ensure_java()
    from pg_pipeline.spark.session import session as our_session

    session = our_session({"spark.sql.warehouse.dir": session_dir / "warehouse"}, master="local[2,3]")
    yield session
    session.stop()


def _memory() -> Path | None:
    """A file system in memory with plenty of room: a database is copied there in a tenth of the time."""
    place = Path("/dev/shm")
    roomy = place.is_dir() and os.access(place, os.W_OK) and shutil.disk_usage(place).free > 8 << 30
    return place if roomy and psutil.virtual_memory().available > 12 << 30 else None


def _administer(server: EmbeddedServer, statement: sql.SQL, *names: str) -> None:
    with psycopg.connect(server.dsn("postgres"), autocommit=True) as connection:
        connection.execute(statement.format(*(sql.Identifier(name) for name in names)))
