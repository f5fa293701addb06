"""What can go wrong between a file and its rows. `retryable` tells the worker how to fail the task."""

from __future__ import annotations

from collections.abc import Sequence

from pg_pipeline.errors import PgPipelineError


class SparkError(PgPipelineError):
    """The base of this room's errors."""

    retryable = True


class TransformFailed(SparkError):
    """The pipeline's transform raised; the message begins with the user's own traceback."""

    retryable = False


class SchemaDrift(SparkError):
    """Files do not have the pipeline's schema, and the pipeline says that this fails the batch."""

    retryable = False


class BadFiles(SparkError):
    """Some files are bad, and the pipeline says that this fails the batch."""

    retryable = False

    def __init__(self, message: str, files: Sequence[tuple[str, str]]) -> None:
        super().__init__(message)
        self.files = tuple(files)


class BatchCancelled(SparkError):
    """The attempt's Spark jobs were cancelled, because its lease was lost or its run was stopped."""


class UnsteadyFiles(SparkError):
    """Two readings of one file within one attempt gave different answers."""


class RecipeError(SparkError):
    """A recipe asks for something that does not exist or does not fit together."""

    retryable = False


class ClusterNotReady(SparkError):
    """The cluster gives no executors, or they lack what tasks need."""


class SparkDied(SparkError):
    """The session ended under its worker, which is over with it: another takes its batches, as after a crash."""
