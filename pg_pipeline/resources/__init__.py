"""Dagster resources and I/O manager: thin, configuration only."""
