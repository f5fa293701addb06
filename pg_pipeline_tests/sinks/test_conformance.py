"""The built-in sinks pass the suite that users' own sinks pass."""

from pathlib import Path
from typing import Any

import pytest
from psycopg import sql

from pg_pipeline.sinks.conformance import SinkConformance
from pg_pipeline.sinks.parquet import ParquetDataset
from pg_pipeline.sinks.postgres import PostgresTable


class _Postgres(SinkConformance):
    def visible_rows(self, sink: Any, _spark: Any, conn: Any) -> list[tuple[int, str | None]]:
        return conn.execute(sql.SQL("select id, name from {}").format(sql.Identifier(sink.table))).fetchall()


class TestPostgresThroughTheDriver(_Postgres):
    @pytest.fixture
    def sink(self) -> PostgresTable:
        return PostgresTable("orders")


class TestPostgresThroughStagingTables(_Postgres):
    @pytest.fixture
    def sink(self) -> PostgresTable:
        return PostgresTable("orders", inline_bytes=0)


class TestPostgresUpsert(_Postgres):
    @pytest.fixture
    def sink(self) -> PostgresTable:
        return PostgresTable("orders", mode="upsert", key="id", order="name")


class TestParquet(SinkConformance):
    @pytest.fixture
    def sink(self, tmp_path: Path) -> ParquetDataset:
        return ParquetDataset(str(tmp_path / "dataset"))

    def visible_rows(self, sink: Any, spark: Any, conn: Any) -> list[tuple[int, str | None]]:
        return [(row.id, row.name) for row in sink.read(spark, conn).collect()]
