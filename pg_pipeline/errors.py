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
