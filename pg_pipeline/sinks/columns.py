"""Spark types as Postgres types, and rows as the bytes of a binary COPY."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pgpq
import pyarrow as pa
from pgpq import encoders, schema

from pg_pipeline.sinks.base import quoted, visible
from pg_pipeline.sinks.errors import SinkSchemaMismatch

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the target; `as_json` columns travel as text and land as jsonb."""

    name: str
    type: str
    as_json: bool = False


def columns_of(struct: StructType) -> list[Column]:
    return [_column(f.name, f.dataType) for f in visible(struct).fields]


def _column(name: str, kind: DataType) -> Column:
    if len(name.encode()) > 63:
        raise SinkSchemaMismatch(f"The column name {name!r} is longer than the 63 bytes Postgres keeps: shorten it.")
    simple = _simple(kind)
    if simple is not None:
        return Column(name, simple)
    from pyspark.sql import types as t

    if isinstance(kind, t.ArrayType):
        # The encoder writes instants in arrays as timestamps without a zone, which Postgres refuses.
        inner = None if isinstance(kind.elementType, t.TimestampType) else _simple(kind.elementType)
        return Column(name, f"{inner}[]") if inner else Column(name, "jsonb", as_json=True)
    if isinstance(kind, t.StructType | t.MapType | t.VariantType):
        return Column(name, "jsonb", as_json=True)
    raise SinkSchemaMismatch(
        f"The column {name!r} is {kind.simpleString()}, which has no type in Postgres: cast it in the transform."
    )


def _simple(kind: DataType) -> str | None:
    from pyspark.sql import types as t

    if isinstance(kind, t.DecimalType):
        return f"numeric({kind.precision},{kind.scale})"
    if isinstance(kind, t.StringType):
        return "text"
    if isinstance(kind, t.DayTimeIntervalType):
        return "interval"
    return _NAMES.get(kind.typeName())


_NAMES = {
    "boolean": "boolean",
    "byte": "smallint",
    "short": "smallint",
    "integer": "integer",
    "long": "bigint",
    "float": "real",
    "double": "double precision",
    "binary": "bytea",
    "date": "date",
    "timestamp": "timestamp with time zone",
    "timestamp_ntz": "timestamp without time zone",
}


# Without formats of our own, microseconds would be cut to milliseconds.
_JSON = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def sendable(df: DataFrame) -> DataFrame:
    """The same rows with the types that the COPY encoder knows: nested values as JSON, bytes as shorts."""
    from pyspark.sql import functions as f

    json_columns = {column.name for column in columns_of(df.schema) if column.as_json}
    return df.select(
        [
            _send(f.col(quoted(field.name)), field.dataType, field.name in json_columns).alias(field.name)
            for field in df.schema.fields
        ]
    )


def _send(column: SparkColumn, kind: DataType, as_json: bool) -> SparkColumn:
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    if as_json:
        return f.to_json(column, _JSON)
    if isinstance(kind, t.ByteType):
        return column.cast("smallint")
    if isinstance(kind, t.CharType | t.VarcharType):
        return column.cast("string")
    if isinstance(kind, t.ArrayType) and isinstance(kind.elementType, t.ByteType):
        return column.cast("array<smallint>")
    return column


def encoder(arrow: pa.Schema, columns: Sequence[Column]) -> pgpq.ArrowToPostgresBinaryEncoder:
    """An encoder of COPY tuples for batches of this schema."""
    json_columns = {column.name for column in columns if column.as_json}
    chosen = {
        field.name: encoders.StringEncoderBuilder.new_with_output(field, schema.Jsonb())
        if field.name in json_columns
        else pgpq.ArrowToPostgresBinaryEncoder.infer_encoder(field)
        for field in arrow
    }
    return pgpq.ArrowToPostgresBinaryEncoder.new_with_encoders(arrow, chosen)
