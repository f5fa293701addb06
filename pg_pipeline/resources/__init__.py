"""Dagster resources and I/O manager: thin, configuration only."""

from pg_pipeline.resources.coordination import CoordinationResource
from pg_pipeline.resources.postgres_io import PostgresIOManager
from pg_pipeline.resources.spark import SparkResource

__all__ = ["CoordinationResource", "PostgresIOManager", "SparkResource"]
