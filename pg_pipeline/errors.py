"""Typed errors: each message is one sentence that says what happened, to what, and what to do next."""


class PgPipelineError(Exception):
    """The base of every error that a user can act on."""


class ConfigurationError(PgPipelineError):
    """A setting, a folder or a right is not as it must be."""


class DatabaseUnreachable(PgPipelineError):
    """No connection to Postgres could be made."""


class MigrationError(PgPipelineError):
    """The database's schema and this code's SQL files do not fit together."""


class JavaNotFound(PgPipelineError):
    """There is no Java that Spark can run on."""


class LeaseLost(PgPipelineError):
    """The task went to another worker, or its execution ended: nothing of this attempt became visible."""


class SubmissionConflict(PgPipelineError):
    """A key was used before for something else; nothing was overwritten."""


class NotFound(PgPipelineError):
    """There is no such thing, or it is no longer waiting."""


class InvalidInput(PgPipelineError):
    """What was handed in is refused; nothing was stored."""


class WrongState(PgPipelineError):
    """The thing exists, but this can't be done to it now."""


class WorkerUnknown(PgPipelineError):
    """The worker was never registered, has stopped, or was pruned; its leases are lost."""
