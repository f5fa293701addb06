"""Frames of every make that an asset may take or give: Spark, pandas, Polars, Arrow. Arrow is the middle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pg_pipeline.embedded.java import ensure_java
from pg_pipeline.errors import InvalidInput
from pg_pipeline.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def from_spark(frame: DataFrame, wanted: Any) -> Any:
    """A Spark frame as the type that the asset asks for; Spark's own where it asks for none."""
    kind = _kind(wanted)
    return frame if kind == "spark" else from_arrow(frame.toArrow(), wanted)


def from_arrow(table: pa.Table, wanted: Any) -> Any:
    kind = _kind(wanted)
    if kind == "pandas":
        return table.to_pandas()
    if kind == "polars":
        import polars as pl

        return pl.from_arrow(table)
    if kind == "arrow":
        return table
    ensure_java()
    return session().createDataFrame(table)


def to_arrow(frame: Any) -> pa.Table:
    kind = _kind(type(frame))
    if kind == "pandas":
        return pa.Table.from_pandas(frame, preserve_index=False)
    if kind == "polars":
        return frame.to_arrow()
    if kind == "arrow":
        return frame
    if kind == "spark" and hasattr(frame, "toArrow"):
        return frame.toArrow()
    raise InvalidInput(
        f"{type(frame).__name__} can't be written: return a Spark, pandas or Polars DataFrame or an Arrow table."
    )


def _kind(wanted: Any) -> str:
    module = getattr(wanted, "__module__", "") or ""
    for kind, prefix in (("pandas", "pandas."), ("polars", "polars."), ("arrow", "pyarrow.")):
        if module.startswith(prefix):
            return kind
    return "spark"
