"""The way to Postgres: the user's own where there is one, the embedded one otherwise, migrated on first use."""

import threading
from collections.abc import Sequence
from typing import Any

import dagster as dg
from pydantic import Field, PrivateAttr

from pg_pipeline.coordination import migrations, submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.outbox import Dispatcher
from pg_pipeline.coordination.worker import OnLost, Worker
from pg_pipeline.embedded.postgres import ensure_running
from pg_pipeline.settings import Settings, get_settings

_migrated: set[str] = set()
_guard = threading.Lock()


class CoordinationResource(dg.ConfigurableResource[Any]):
    """Connections to the coordination database. What is not set here comes from `PG_PIPELINE_*` variables."""

    dsn: str | None = Field(
        default=None,
        description="Your own Postgres; the embedded one is started without it. With a password in it: a dg.EnvVar.",
    )
    state_dir: str | None = Field(default=None, description="Where the embedded Postgres lives.")
    heartbeat_interval: float | None = Field(default=None, description="Seconds between two heartbeats of a worker.")
    pooled: bool | None = Field(default=None, description="The DSN leads through a transaction pooler.")

    webhook_secret: str | None = Field(
        default=None,
        repr=False,
        description="Signs webhooks: a dg.EnvVar, or leave it to PG_PIPELINE_WEBHOOK_SECRET. Never the text itself.",
    )
    webhook_allow_private: bool | None = Field(
        default=None, description="Also deliver to addresses that are not on the public Internet."
    )

    _db: Database | None = PrivateAttr(default=None)
    _life: Worker | None = PrivateAttr(default=None)

    def settings(self) -> Settings:
        return get_settings(
            dsn=self.dsn,
            state_dir=self.state_dir,
            heartbeat_interval=self.heartbeat_interval,
            pooled=self.pooled,
            webhook_secret=self.webhook_secret,
            webhook_allow_private=self.webhook_allow_private,
        )

    @property
    def db(self) -> Database:
        """The database: running, and with our schema in it."""
        if self._db is None:
            settings = self.settings()
            dsn = ensure_running(settings)
            with _guard:
                if dsn not in _migrated:
                    if not migrations.check(dsn, timeout=settings.connect_timeout).current:
                        migrations.migrate(dsn, timeout=settings.connect_timeout)
                    _migrated.add(dsn)
            self._db = Database(dsn, timeout=settings.connect_timeout)
        return self._db

    def worker(
        self,
        queue: str,
        *,
        pipelines: Sequence[str],
        kinds: Sequence[str] | None = None,
        run_id: str | None = None,
        on_lost: OnLost | None = None,
    ) -> Worker:
        """A registered worker."""
        settings = self.settings()
        return Worker(
            self.db,
            queue,
            pipelines=pipelines,
            kinds=kinds,
            run_id=run_id,
            on_lost=on_lost,
            heartbeat_interval=settings.heartbeat_interval,
            pooled=settings.pooled,
        )

    def dispatcher(self, *, timeout: float = 10.0) -> Dispatcher:
        """Delivers the outbox."""
        settings = self.settings()
        secret = settings.webhook_secret.get_secret_value() if settings.webhook_secret else None
        return Dispatcher(self.db, secret=secret, timeout=timeout, allow_private=settings.webhook_allow_private)

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Of a run: a row that says that its process lives, from before its steps wait for their pools and Spark starts
        until its end. It takes no work."""
        run = context.run
        if run is not None:
            submission.configure_queue(self.db, "default")  # made if it is not there yet, else left as it is
            self._life = self.worker("default", pipelines=[], kinds=["run"], run_id=run.run_id)

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:  # noqa: ARG002
        self.close()

    def close(self) -> None:
        if self._life is not None:
            self._life.stop()
            self._life = None
        if self._db is not None:
            self._db.close()
            self._db = None
