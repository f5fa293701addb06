"""Dagster's storage: on the same Postgres, in a database of its own, in the form that its web server can use."""

import stat
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest
import yaml

from pg_pipeline.embedded.postgres import database_dsn
from pg_pipeline.resources.instance import dagster_home, instance_config
from pg_pipeline.settings import get_settings
from pg_pipeline_tests.helpers import ChildProcess


@pytest.fixture(autouse=True)
def _no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    monkeypatch.delenv("DAGSTER_POSTGRES_PASSWORD", raising=False)


def test_the_generated_instance_works_and_keeps_apart_from_the_ledger(dsn: str, tmp_path: Path) -> None:
    home = dagster_home(get_settings(dsn=dsn, state_dir=str(tmp_path)))
    written = yaml.safe_load((home / "dagster.yaml").read_text())
    storage = written["storage"]["postgres"]["postgres_db"]
    assert storage["scheme"] == "postgresql+psycopg2"
    assert storage["db_name"] == "dagster"
    assert written["run_retries"] == {"enabled": True, "max_retries": 3, "retry_on_asset_or_op_failure": False}
    assert written["run_monitoring"]["enabled"] is True
    assert written["concurrency"] == {"pools": {"granularity": "run"}}
    assert written["run_queue"] == {"dequeue_interval_seconds": 1}
    assert (written["telemetry"], written["nux"]) == ({"enabled": False}, {"enabled": False})
    assert stat.S_IMODE((home / "dagster.yaml").stat().st_mode) == 0o600
    with dg.DagsterInstance.from_config(str(home)) as instance:
        instance.add_dynamic_partitions("things", ["a"])
        assert instance.get_dynamic_partitions("things") == ["a"]
        instance.delete_dynamic_partition("things", "a")
    assert dagster_home(get_settings(dsn=dsn, state_dir=str(tmp_path))) == home


def test_a_users_own_dagster_home_is_left_alone(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "mine"))
    assert dagster_home(get_settings(dsn=dsn, state_dir=str(tmp_path))) == tmp_path / "mine"
    assert not (tmp_path / "mine").exists()
    assert not (tmp_path / "dagster").exists()


def test_up_imports_neither_dagster_nor_spark_before_it_starts_dagster(child: Callable[..., ChildProcess]) -> None:
    code = "import sys, pg_pipeline.cli.up; print({'dagster', 'pyspark', 'pyarrow'} & set(sys.modules))"
    process = child(code)
    assert process.wait() == 0, process.stderr
    assert process.stdout.strip() == "set()"


def test_a_password_is_named_and_not_written() -> None:
    dsn = database_dsn("postgresql://me:secret@db.example:5433/other?sslmode=require", "dagster")
    storage = instance_config(dsn)["storage"]["postgres"]["postgres_db"]
    assert "secret" not in yaml.safe_dump(storage)
    assert storage["password"] == {"env": "DAGSTER_POSTGRES_PASSWORD"}
    assert (storage["hostname"], storage["port"], storage["params"]) == ("db.example", 5433, {"sslmode": "require"})
