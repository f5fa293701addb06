"""What can go wrong between a row and its reader. `retryable` tells the worker how to fail the task."""

from __future__ import annotations

from pg_pipeline.errors import PgPipelineError


class SinkError(PgPipelineError):
    """The base of this room's errors."""

    retryable = True


class SinkSchemaMismatch(SinkError):
    """The target and the rows do not have the same columns, or not the same types."""

    retryable = False


class StagedRowsMissing(SinkError):
    """What was staged is not what the executors reported; nothing was published."""


class SinkKeyMissing(SinkError):
    """A row to upsert has no key."""

    retryable = False


class ValueRefused(SinkError):
    """The target cannot hold one of the values."""

    retryable = False
