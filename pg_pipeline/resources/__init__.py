"""Dagster resources and I/O manager: thin, configuration only. Imported on first use: Dagster and Spark take seconds,
and `up`, which only writes `dagster.yaml`, needs neither."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pg_pipeline.resources.coordination import CoordinationResource
    from pg_pipeline.resources.postgres_io import PostgresIOManager
    from pg_pipeline.resources.spark import SparkResource

__all__ = ["CoordinationResource", "PostgresIOManager", "SparkResource"]

_MODULES = {"CoordinationResource": "coordination", "PostgresIOManager": "postgres_io", "SparkResource": "spark"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
