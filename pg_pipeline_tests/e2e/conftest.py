from pg_pipeline_tests.e2e.stack import up

__all__ = ["up"]
