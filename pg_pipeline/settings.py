"""Every setting in one place: from `PG_PIPELINE_*` variables, overridden by Dagster resource config."""

from pathlib import Path
from typing import Any, Literal

import platformdirs
from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from pg_pipeline.errors import ConfigurationError
from pg_pipeline.sqlfiles import checkout_root


def default_state_dir() -> Path:
    """`.pg_pipeline/` of the checkout; the user's state folder when installed from a wheel."""
    root = checkout_root()
    return root / ".pg_pipeline" if root else platformdirs.user_state_path("pg_pipeline")


class Settings(BaseSettings):
    """What can be configured. `docs/settings.md` is kept equal to this class by a test."""

    model_config = SettingsConfigDict(env_prefix="PG_PIPELINE_", frozen=True, extra="forbid", env_ignore_empty=True)

    dsn: str | None = Field(
        default=None,
        description="Your own Postgres (16 or newer), as a URI or key=value string; nothing embedded is started then.",
    )
    read_dsn: str | None = Field(
        default=None,
        description="Where commands that only look ask, a streaming replica for one; the DSN without it.",
    )
    pipelines: str | None = Field(
        default=None,
        description="Module with your FilePipelines (and `defs`, for `up`); the examples without it.",
    )
    pages_url: str | None = Field(
        default=None,
        pattern=r"^https?://",
        description="Where browsers reach `pg-pipeline serve`; Dagster's runs link to the reports there. `up` sets it.",
    )
    state_dir: Path = Field(
        default_factory=default_state_dir,
        description="Where the embedded Postgres and other local state live.",
    )
    postgres_version: Literal[16, 18] = Field(
        default=18,
        description="Major version of the embedded Postgres.",
    )
    socket_dir: Path | None = Field(
        default=None,
        description="Folder for the embedded server's private socket, when the default does not suit.",
    )
    embedded_linger: float = Field(
        default=10.0,
        ge=0,
        description="Seconds that the embedded server stays up after its last user has gone.",
    )
    connect_timeout: int = Field(
        default=10,
        ge=1,
        description="Seconds to wait for a connection to Postgres.",
    )
    heartbeat_interval: float = Field(
        default=0.5,
        gt=0,
        description="Seconds between two heartbeats of a worker; well below the queue's grace and lease.",
    )
    pooled: bool = Field(
        default=False,
        description="The DSN leads through a transaction pooler (PgBouncer): lease time alone tells who is gone.",
    )
    webhook_secret: SecretStr | None = Field(
        default=None,
        description="Signs webhooks (HMAC-SHA256), so that receivers know them; a `dg.EnvVar` in Dagster does too.",
    )
    webhook_allow_private: bool = Field(
        default=False,
        description="Webhooks may also go to addresses that are not on the public Internet.",
    )


def get_settings(**overrides: Any) -> Settings:
    """Read the settings now; `overrides` (Dagster resource config) win over the environment, None means unset."""
    try:
        return Settings(**{name: value for name, value in overrides.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        name = "PG_PIPELINE_" + "_".join(str(part) for part in first["loc"]).upper()
        raise ConfigurationError(
            f"{name} is not valid ({first['msg']}; it is {first['input']!r}): see docs/settings.md."
        ) from None
