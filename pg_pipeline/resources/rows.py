"""A pipeline's committed rows as the input of a downstream asset, just by naming `<pipeline>/batches`."""

from functools import reduce
from typing import Any

import dagster as dg

from pg_pipeline.resources.coordination import CoordinationResource
from pg_pipeline.resources.frames import from_spark
from pg_pipeline.resources.spark import SparkResource
from pg_pipeline.sinks.base import Sink
from pg_pipeline.sinks.reading import read


class RowsIOManager(dg.IOManager):
    """Reads what the sink shows. Rows are written by the finish transaction, never through here."""

    def __init__(self, sink: Sink, coordination: CoordinationResource, pyspark: SparkResource) -> None:
        self._sink = sink
        self._coordination = coordination
        self._pyspark = pyspark

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:  # noqa: ARG002
        raise dg.DagsterInvariantViolationError(
            f"{context.asset_key.to_user_string()} is written by its workers, not through an I/O manager."
        )

    def load_input(self, context: dg.InputContext) -> Any:
        """The batches of the reader's partitions, or the executions' rows for one partitioned so, or else every row:
        an unpartitioned reader must not miss rows whose partitions were removed from Dagster."""
        from pyspark.sql import DataFrame

        spark, dsn = self._pyspark.spark_session, self._coordination.db.dsn
        wanted = _reader_keys(context)
        if wanted is None:
            frame = read(spark, self._sink, dsn)
        elif all("~" not in key.split("~g")[0] for key in wanted):
            executions = dict.fromkeys(key.split("~")[0] for key in wanted)
            frame = reduce(DataFrame.unionByName, (read(spark, self._sink, dsn, execution=one) for one in executions))
        else:
            parts = [key.split("~") for key in wanted]
            frame = read(spark, self._sink, dsn, batches=[(part[0], int(part[1])) for part in parts])
        return from_spark(frame, context.dagster_type.typing_type)


def _reader_keys(context: dg.InputContext) -> list[str] | None:
    """The partitions of the asset that reads, None when it has none."""
    step = context.step_context
    if not step.has_partition_key and not step.has_partition_key_range:
        return None
    if step.has_partition_key_range:
        definition = step.entity_partitions_def
        assert definition is not None, "what runs for a range of partitions has some"
        listed = list(definition.get_partition_keys(dynamic_partitions_store=step.instance))
        span = step.partition_key_range
        return listed[listed.index(span.start) : listed.index(span.end) + 1]
    return [step.partition_key]


def rows_io(sink: Sink) -> dg.IOManagerDefinition:
    @dg.io_manager(required_resource_keys={"coordination", "pyspark"})
    def make(context: dg.InitResourceContext) -> RowsIOManager:
        return RowsIOManager(sink, context.resources.coordination, context.resources.pyspark)

    return make
