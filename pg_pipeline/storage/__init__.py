"""Where files lie: their names, versions and listings, and how they are opened. No Dagster, Spark or Postgres here."""

from pg_pipeline.storage.entry import Entry
from pg_pipeline.storage.store import Storage

__all__ = ["Entry", "Storage"]
