"""The coordination fixtures, for input that nobody in their right mind would send."""

from pg_pipeline_tests.coordination.conftest import db, worker  # noqa: F401 - fixtures
