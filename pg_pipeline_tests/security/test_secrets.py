"""Nothing that a run leaves behind has a secret in it: databases, logs, files, pages."""

import logging
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pg_pipeline.coordination import executions
from pg_pipeline.coordination.database import Database
from pg_pipeline.embedded.postgres import database_dsn
from pg_pipeline.pipelines import FilePipeline
from pg_pipeline.pipelines.build import definitions
from pg_pipeline.resources.instance import dagster_home
from pg_pipeline.settings import get_settings
from pg_pipeline.sinks.postgres import PostgresTable
from pg_pipeline_tests.helpers import ChildProcess

# Of the connection, of signing, of an address that is itself a secret, and of one that was given as text.
SECRETS = ("pw-0b51c7f3", "hmac-55f09ea1", "path-c04d77aa", "query-91ee6d20")
MARK = "not-a-secret-7d2f"  # must be found everywhere, or the search proves nothing

COLUMNS = """
select n.nspname, c.relname, array_agg(a.attname::text), array_agg(a.atttypid = 'bytea'::regtype)
from pg_class c join pg_namespace n on n.oid = c.relnamespace
join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
where c.relkind in ('r', 'p', 'm') and n.nspname not in ('pg_catalog', 'information_schema')
  and n.nspname !~ '^pg_toast'
group by 1, 2
"""


@pytest.fixture
def home(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Dagster's storage in Postgres, and each secret where it belongs: in the environment."""
    password, signing, path, query = SECRETS
    monkeypatch.setenv("PG_PIPELINE_DSN", make_conninfo(dsn, password=password))
    monkeypatch.setenv("PG_PIPELINE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("PG_PIPELINE_WEBHOOK_SECRET", signing)
    monkeypatch.setenv("PG_PIPELINE_WEBHOOK_ALLOW_PRIVATE", "true")
    monkeypatch.setenv("WEBHOOK_ORDERS", f"http://127.0.0.1:1/{path}?key={query}")
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    monkeypatch.setenv("DAGSTER_POSTGRES_PASSWORD", "")  # so that it goes with the test
    return dagster_home(get_settings())


def run(home: Path, pipeline: FilePipeline, *files: Path) -> str:
    """Submitted, worked on, failed, called back, delivered in vain and cleaned up, by the assets and sensors."""
    made = definitions(pipeline, name="secrets")
    with dg.DagsterInstance.from_config(str(home)) as instance:
        repository = made.get_repository_def()
        config = {"ops": {"orders__enqueued": {"config": {"paths": [str(file) for file in files]}}}}
        dg.materialize(
            list(made.assets or ()),  # type: ignore[arg-type]
            selection=dg.AssetSelection.assets(dg.AssetKey(["orders", "enqueued"])),
            run_config=config,
            instance=instance,
            resources=dict(made.resources or {}),
        )
        job = repository.get_job("secrets_worker")
        drain = {"ops": {"secrets_drain": {"config": {"linger_seconds": 0.0}}}}
        job.execute_in_process(run_config=drain, instance=instance, raise_on_error=False)
        for sensor in made.sensors or ():
            if isinstance(sensor, dg.SensorDefinition) and not isinstance(sensor, dg.RunStatusSensorDefinition):
                with dg.build_sensor_context(
                    instance=instance,
                    repository_def=repository,
                    sensor_name=sensor.name,
                    resources=dict(made.resources),
                ) as context:
                    sensor(context)
        with Database(get_settings().dsn or "") as db:
            return str(executions.listed(db)[0]["execution"])


def everything(*places: str) -> Iterator[tuple[str, str]]:
    """Every row of every table, as text; what Dagster compressed is unpacked."""
    for dsn in places:
        with psycopg.connect(dsn) as conn:
            for schema, table, names, packed in conn.execute(COLUMNS).fetchall():
                columns = [
                    sql.SQL("{}" if raw else "{}::text").format(sql.Identifier(name))
                    for name, raw in zip(names, packed, strict=True)
                ]
                look = sql.SQL("select {} from {}").format(sql.SQL(", ").join(columns), sql.Identifier(schema, table))
                for row in conn.execute(look):
                    yield f"{schema}.{table}", " ".join(map(_text, row))


def _text(value: str | bytes | None) -> str:
    if not isinstance(value, bytes):
        return str(value)
    with suppress(zlib.error):
        value = zlib.decompress(value)
    return value.decode(errors="replace")


def test_no_secret_is_in_what_a_run_leaves_behind(
    home: Path,
    dsn: str,
    spark: Any,
    tmp_path: Path,
    child: Callable[..., ChildProcess],
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG, "pg_pipeline")
    landing = tmp_path / f"{MARK}"
    landing.mkdir()
    (landing / "a.json").write_text('{"id": 1}\n')
    (landing / "bad.json").write_text('{"id": ')
    (landing / "dies.json").write_text('{"id": 2}\n')

    def transform(rows: Any, batch: Any) -> Any:
        if any("dies" in file.path for file in batch.files):
            try:
                psycopg.connect(get_settings().dsn or "", port=1)
            except psycopg.Error as error:  # of a library that knows the password
                raise RuntimeError(MARK) from error
        return rows

    orders = FilePipeline(
        name="orders",
        format="json",
        schema="id long",
        sink=PostgresTable("public.orders"),
        transform=transform,
        callback=lambda _spark, execution: {"rows": execution.rows_out, "mark": MARK},
        landing=landing,
        policy="partial",
        batch_files=1,
        notify=["env:WEBHOOK_ORDERS"],
    )
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("select pipeline.configure_queue('default', %s)", ('{"max_attempts": 1, "breaker_after": 0}',))
    execution = run(home, orders, landing)

    with psycopg.connect(dsn) as conn:
        assert conn.execute(
            "select state, attempts > 0, error <> '' from pipeline.outbox where destination <> ''"
        ).fetchall() == [("pending", True, True)]
        assert conn.execute("select count(*) from pipeline.dead_letter").fetchone() == (1,)
    said = []
    for words in (
        *(("report", execution, "--output", str(tmp_path / "page.html")), ("status",), ("explain", execution)),
        *(("attempts", execution), ("dlq", "list"), ("doctor",), ("metrics",), ("audit",)),
    ):
        process = child(None, *words, module="pg_pipeline")
        process.wait()
        said.append(("pg-pipeline " + " ".join(words), process.stdout + process.stderr))
    said.append(("logs", caplog.text))
    said.append(("terminal", "".join(capfd.readouterr())))
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.parent != landing]
    found = [
        *everything(dsn, database_dsn(dsn, "dagster")),
        *((str(path), path.read_text(errors="replace")) for path in files),
        *said,
    ]
    assert [(where, secret) for where, text in found for secret in SECRETS if secret in text] == []

    marked = {where for where, text in found if MARK in text}
    assert {"pipeline.file", "pipeline.dead_letter", "public.event_logs", "public.runs"} <= marked
    assert "public.snapshots" in {where for where, text in found if "secrets_drain" in text}, "unpacked"
    assert any(where.endswith("page.html") for where in marked)
    assert any("/storage/" in str(path) for path in files), "Dagster's compute logs were looked at"
