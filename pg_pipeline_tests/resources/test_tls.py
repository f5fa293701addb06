"""Every way to Postgres over TLS that checks whom it talks to: ours, Dagster's storage, and the executors' COPY."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import certifi
import dagster as dg
import psycopg
import pytest

from pg_pipeline.coordination import executions, submission
from pg_pipeline.coordination.connect import connect
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.lease import Finish
from pg_pipeline.coordination.worker import Worker
from pg_pipeline.errors import DatabaseUnreachable
from pg_pipeline.resources.instance import dagster_home
from pg_pipeline.settings import get_settings
from pg_pipeline.sinks.postgres import PostgresTable
from pg_pipeline_tests.coordination.conftest import files
from pg_pipeline_tests.sinks.test_postgres import staging_tables, write

pytest_plugins = ["pg_pipeline_tests.tls"]

Secured = Callable[..., str]


def test_the_protocol_with_its_heartbeat_works(dsn: str, secured: Secured) -> None:
    with Database(secured(dsn)) as db:
        submission.register_pipeline(db, "orders", batch_files=2)
        execution = submission.submit(db, "orders", files(4), request_key="k").execution
        with Worker(db) as worker:
            while leases := worker.claim(10):
                worker.finish_many([Finish(lease) for lease in leases])
        assert executions.get(db, execution)["status"] == "finished"


def test_dagsters_storage_works(dsn: str, secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    home = dagster_home(get_settings(dsn=secured(dsn), state_dir=str(tmp_path)))
    with dg.DagsterInstance.from_config(str(home)) as instance:
        instance.add_dynamic_partitions("tls", ["a"])
        assert instance.get_dynamic_partitions("tls") == ["a"]
        instance.delete_dynamic_partition("tls", "a")


def test_the_executors_copy_works(spark: Any, dsn: str, conn: Any, secured: Secured) -> None:
    assert write(PostgresTable("t", inline_bytes=0), spark.range(0, 1000, 1, 2), secured(dsn)) == 1000
    assert conn.execute("select count(*) from t").fetchone() == (1000,)
    assert staging_tables(conn) == []


def test_a_server_of_another_authority_is_refused_in_a_sentence(dsn: str, secured: Secured) -> None:
    with pytest.raises(
        DatabaseUnreachable, match=r"does not prove who it is \(.*certificate verify failed.*sslrootcert"
    ):
        connect(secured(dsn, authority=Path(certifi.where())))


def test_a_server_of_another_name_is_refused(dsn: str, secured: Secured) -> None:
    with pytest.raises(DatabaseUnreachable, match=r"does not prove who it is \(.*does not match host name"):
        connect(secured(dsn, host="db.example"))
    with connect(secured(dsn, host="localhost")) as conn:
        assert conn.execute("select 1").fetchone() == (1,)


def test_in_clear_nobody_is_let_in(dsn: str, secured: Secured) -> None:
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(secured(dsn), sslmode="disable")
