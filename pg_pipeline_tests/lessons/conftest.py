"""The fixtures of the coordination tests."""

from pg_pipeline_tests.coordination.conftest import db, hand, submit, worker  # noqa: F401
