"""The way to Postgres for commands: the user's own where there is one, the embedded one otherwise."""

from collections.abc import Iterator
from contextlib import contextmanager

from pg_pipeline.coordination import migrations
from pg_pipeline.coordination.database import Database
from pg_pipeline.embedded.postgres import ensure_running
from pg_pipeline.settings import get_settings


@contextmanager
def opened(*, reading: bool = False) -> Iterator[Database]:
    """A database of one's own is never migrated by the way: the error says how. Commands that only look are `reading`,
    and content with a replica."""
    settings = get_settings()
    if reading and settings.read_dsn:
        with Database(settings.read_dsn, timeout=settings.connect_timeout) as db:
            yield db
        return
    dsn = ensure_running(settings)
    if settings.dsn is None and not migrations.check(dsn, timeout=settings.connect_timeout).current:
        migrations.migrate(dsn, timeout=settings.connect_timeout)
    with Database(dsn, timeout=settings.connect_timeout) as db:
        yield db
