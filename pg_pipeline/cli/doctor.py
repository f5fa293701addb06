"""`pg-pipeline doctor`: is everything here that a pipeline needs, and how is each thing mended?"""

import importlib
import importlib.util
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from psycopg.rows import namedtuple_row

from pg_pipeline import __version__
from pg_pipeline.cli.findings import Finding, tell
from pg_pipeline.cli.output import AsJson
from pg_pipeline.coordination import migrations
from pg_pipeline.coordination.connect import connect
from pg_pipeline.embedded.java import ensure_java, java_version
from pg_pipeline.embedded.postgres import embedded_server, ensure_running
from pg_pipeline.errors import PgPipelineError
from pg_pipeline.settings import Settings, get_settings
from pg_pipeline.sqlfiles import read_sql
from pg_pipeline.storage.urls import EXTRAS, url_of

PACKAGES = ("dagster", "dagster-webserver", "dagster-postgres", "dagster-pyspark", "psycopg", "pyspark", "pyarrow")
LOW_ROOM = 2**30
PACKAGES_OF = {"s3": "s3fs", "gs": "gcsfs", "abfs": "adlfs", "sftp": "paramiko"}


def doctor(as_json: AsJson = False) -> None:
    """Check Postgres, Java, Spark, versions, rights, folders and clocks; exit 3 where something needs mending."""
    settings = get_settings()
    findings = [finding for check in CHECKS for finding in _run(check, settings)]
    tell(findings, as_json)


def _run(check: Callable[[Settings], Iterator[Finding]], settings: Settings) -> Iterator[Finding]:
    """One check that cannot go on must not hide the others."""
    name = (check.__doc__ or "").rstrip(".")
    try:
        yield from check(settings)
    except PgPipelineError as error:
        what, _, fix = str(error).rpartition(": ")
        yield Finding(name, what or str(error), fix or "see above")


def _versions(_: Settings) -> Iterator[Finding]:
    """Versions."""
    yield Finding("Python", f"{sys.version.split()[0]} at {sys.executable}")
    yield Finding("pg_pipeline", __version__)
    for package in PACKAGES:
        try:
            yield Finding(package, version(package))
        except PackageNotFoundError:
            yield Finding(package, "not installed", f"pip install {package}")


def _variables(_: Settings) -> Iterator[Finding]:
    """Variables."""
    known = {f"PG_PIPELINE_{name}".upper() for name in Settings.model_fields}
    given = sorted(name for name in os.environ if name.upper().startswith("PG_PIPELINE_"))
    for name in given:
        if name.upper() not in known:
            yield Finding("Settings", f"{name} is set and means nothing", "check its spelling in docs/settings.md")
    yield Finding("Settings", ", ".join(given) or "all at their defaults")


def _data_folder(settings: Settings) -> Iterator[Finding]:
    """Data folder."""
    folder = settings.state_dir.expanduser().absolute()
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        yield Finding(
            "Data folder", f"{folder} cannot be written", f"make {nearest} writable or set PG_PIPELINE_STATE_DIR"
        )
        return
    free = shutil.disk_usage(nearest).free
    yield Finding(
        "Data folder",
        f"{folder}, {free // 2**20} MB free",
        "free some room or set PG_PIPELINE_STATE_DIR to another disk" if free < LOW_ROOM else "",
    )
    data = folder / f"postgres{settings.postgres_version}" / "data"
    if not settings.dsn and data.exists():
        mode = stat.S_IMODE(data.stat().st_mode)
        yield Finding("Data is private", f"{data} is {mode:04o}", f"chmod 0700 {data}" if mode & 0o077 else "")


def _postgres(settings: Settings) -> Iterator[Finding]:
    """Postgres."""
    dsn = ensure_running(settings)
    with connect(dsn, timeout=settings.connect_timeout, row_factory=namedtuple_row) as conn:
        server = conn.execute(read_sql("doctor.sql").encode()).fetchone()
    assert server is not None
    where = "yours, from PG_PIPELINE_DSN" if settings.dsn else f"embedded, at {embedded_server(settings).socket_dir}"
    yield Finding("Postgres", f"{server.version} ({where}), as {server.login}")
    apart = abs((datetime.now(UTC) - server.clock).total_seconds())
    yield Finding(
        "Clock",
        f"{apart:.1f} s from Postgres's",
        "set this machine's clock: every time that matters is Postgres's, but logs would mislead" if apart > 5 else "",
    )
    durable = server.fsync and server.synchronous_commit
    yield Finding(
        "Durability",
        f"fsync {_on(server.fsync)}, synchronous_commit {_on(server.synchronous_commit)}",
        "" if durable else "turn both on: without them a crash of Postgres loses committed work",
    )
    yield _dagster_storage(server.dagster_database, server.may_create_databases)
    state = migrations.check(dsn, timeout=settings.connect_timeout)
    may_migrate = server.may_create_roles and server.may_create_schemas
    yield Finding(
        "Rights",
        "may migrate" if may_migrate else "may not create roles or schemas",
        "" if may_migrate or state.current else "migrate with a login that has CREATEROLE and CREATE on the database",
    )
    yield Finding(
        "Schema",
        "current" if state.current else f"missing {', '.join(state.pending)}",
        "" if state.current else "pg-pipeline migrate",
    )


def _dagster_storage(exists: bool, may_create: bool) -> Finding:
    """One's own DAGSTER_HOME, or a database beside ours, made on first use."""
    home = os.environ.get("DAGSTER_HOME")
    if home:
        lacking = not (Path(home).expanduser() / "dagster.yaml").is_file()
        fix = "put a dagster.yaml there, or unset DAGSTER_HOME to keep its runs in Postgres" if lacking else ""
        return Finding("Dagster storage", f"yours, {home}{', without a dagster.yaml' if lacking else ''}", fix)
    if exists:
        return Finding("Dagster storage", "the database dagster of this server")
    if may_create:
        return Finding("Dagster storage", "the database dagster, which is made on first use")
    return Finding(
        "Dagster storage",
        "there is no database dagster, and this login may not create it",
        "create the database dagster on this server, or set DAGSTER_HOME to an instance of your own",
    )


def _java(_: Settings) -> Iterator[Finding]:
    """Java."""
    home = ensure_java()
    yield Finding("Java", f"{java_version(home)} at {home}")


def _spark(_: Settings) -> Iterator[Finding]:
    """Spark."""
    try:
        importlib.import_module("pyspark.sql")
    except ImportError as error:
        yield Finding("Spark", f"cannot be imported ({error})", "pip install --force-reinstall pyspark")
        return
    yield Finding("Spark", f"can be imported, workers run {os.environ.get('PYSPARK_PYTHON', Path(sys.executable))}")


def _stores(_: Settings) -> Iterator[Finding]:
    """Stores."""
    from pg_pipeline.cli.recipes import known
    from pg_pipeline.spark.hadoop import jar, missing

    wanted: dict[str, set[str]] = {}  # protocol to the readers of the pipelines that use it
    for pipeline in known().values():
        for url in filter(None, map(url_of, pipeline.allowed_roots)):
            wanted.setdefault(url.protocol, set()).add(pipeline.reader)
    for protocol in sorted({"s3", *wanted}):
        there = importlib.util.find_spec(PACKAGES_OF[protocol]) is not None if protocol in PACKAGES_OF else True
        extra = EXTRAS[protocol]
        yield Finding(
            f"{protocol}://",
            "can be read" if there else f"cannot be read without {PACKAGES_OF[protocol]}",
            "" if there or protocol not in wanted else f"pip install 'pg-pipeline[{extra}]'",
        )
    found = jar("s3")
    yield Finding(
        "S3 by Spark's own reader",
        str(found) if found else "no jar hadoop-aws in Spark's folder; the Arrow reader needs none",
        "" if found or "spark" not in wanted.get("s3", ()) else f"give Spark {missing('s3')}, or set reader to arrow",
    )


def _on(value: bool) -> str:
    return "on" if value else "off"


CHECKS = (_versions, _variables, _data_folder, _postgres, _java, _spark, _stores)
