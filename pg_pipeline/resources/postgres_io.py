"""An I/O manager for tables in Postgres: Spark, pandas, Polars and Arrow in, and whichever is asked for out."""

import re
from typing import Any

import dagster as dg
import psycopg
from psycopg import sql
from pydantic import Field

from pg_pipeline.coordination.connect import connect
from pg_pipeline.embedded.postgres import ensure_running
from pg_pipeline.errors import ConfigurationError
from pg_pipeline.resources.frames import from_arrow, to_arrow
from pg_pipeline.resources.tables import copy_in, create_like, postgres_columns
from pg_pipeline.settings import get_settings
from pg_pipeline.sinks.reading import query

PARTITION = "_partition"
_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")


class PostgresIOManager(dg.ConfigurableIOManager):
    """Keeps each asset in a table named after it (`metadata={"table": "schema.name"}` names another).

    Rows are staged first; then one short transaction replaces the partitions, so readers see the old rows or the new
    ones. A partitioned asset's table has a column `_partition`; readers don't see it.
    """

    dsn: str | None = Field(default=None, description="Your Postgres; the one of the settings without it.")
    schema_name: str = Field(default="public", description="The schema of tables whose asset key has one part.")

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        if obj is None:
            return
        rows = to_arrow(obj)
        partitions = list(context.asset_partition_keys) if context.has_asset_partitions else None
        if partitions is not None and PARTITION not in rows.column_names:
            if len(partitions) != 1:
                raise ConfigurationError(
                    f"{context.asset_key.to_user_string()} wrote {len(partitions)} partitions at once: give its rows a "
                    f"column {PARTITION} that names the partition of each."
                )
            import pyarrow as pa

            rows = rows.append_column(PARTITION, pa.array([partitions[0]] * rows.num_rows, pa.string()))
        table = self._table(context)
        with self._connect() as conn:
            columns = postgres_columns(rows.schema)
            create_like(conn, sql.Identifier("pg_temp", "staged_rows"), columns, temporary=True)
            copy_in(conn, sql.Identifier("pg_temp", "staged_rows"), rows)
            with conn.transaction():
                self._publish(conn, table, columns, partitions)
        context.add_output_metadata(
            {
                "dagster/row_count": rows.num_rows,
                "dagster/relation_identifier": ".".join(table),
                "dagster/column_schema": dg.TableSchema(
                    columns=[dg.TableColumn(column, kind) for column, kind in columns.items() if column != PARTITION]
                ),
            }
        )

    def _publish(
        self,
        conn: psycopg.Connection[Any],
        table: tuple[str, str],
        columns: dict[str, str],
        partitions: list[str] | None,
    ) -> None:
        # Two runs of one partition, or two that both find no table, take turns.
        conn.execute("select pg_advisory_xact_lock(hashtextextended(%s, 4))", (f"pg_pipeline.io.{table}",))
        target = sql.Identifier(*table)
        create_like(conn, target, columns, index=PARTITION if partitions is not None else None)
        if partitions is None:
            conn.execute(sql.SQL("delete from {}").format(target))
        else:
            gone = sql.SQL("delete from {} where {} = any (%s)").format(target, sql.Identifier(PARTITION))
            conn.execute(gone, (partitions,))
        names = sql.SQL(", ").join(sql.Identifier(name) for name in columns)
        conn.execute(sql.SQL("insert into {} ({}) select {} from pg_temp.staged_rows").format(target, names, names))

    def load_input(self, context: dg.InputContext) -> Any:
        table = sql.Identifier(*self._table(context))
        with self._connect() as conn, conn.transaction():
            described = conn.execute(sql.SQL("select * from {} limit 0").format(table)).description or ()
            names = sql.SQL(", ").join(sql.Identifier(c.name) for c in described if c.name != PARTITION)
            statement = sql.SQL("select {} from {}").format(names, table)
            if context.has_asset_partitions:
                keys = list(context.asset_partition_keys)
                conn.execute("select set_config('pg_pipeline.partitions', %s::text[]::text, true)", (keys,))
                wanted = sql.SQL(" where {} = any (current_setting('pg_pipeline.partitions')::text[])")
                statement = sql.SQL("{}{}").format(statement, wanted.format(sql.Identifier(PARTITION)))
            rows = query(conn, statement)
        return from_arrow(rows, context.dagster_type.typing_type)

    def _table(self, context: dg.InputContext | dg.OutputContext) -> tuple[str, str]:
        output = context.upstream_output if isinstance(context, dg.InputContext) else context
        named = (output.definition_metadata or {}).get("table") if output is not None else None
        parts = str(named).split(".") if named else list(context.asset_key.path)
        schema, name = (parts[-2] if len(parts) > 1 else self.schema_name), parts[-1]
        if not (_NAME.match(schema) and _NAME.match(name)):
            raise ConfigurationError(
                f"{context.asset_key.to_user_string()} has no table name in Postgres: name one in its metadata, "
                'such as {"table": "analytics.orders"}.'
            )
        return schema, name

    def _connect(self) -> psycopg.Connection[Any]:
        settings = get_settings(dsn=self.dsn)
        return connect(ensure_running(settings), timeout=settings.connect_timeout, autocommit=True)
