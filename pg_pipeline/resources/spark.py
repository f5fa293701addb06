"""dagster-pyspark's session with our defaults, started when it is first used."""

from typing import Any

from dagster_pyspark import LazyPySparkResource
from pydantic import Field

from pg_pipeline.embedded.java import ensure_java
from pg_pipeline.spark.session import session


class SparkResource(LazyPySparkResource):
    """One Spark session per process; `spark_config` wins over our defaults."""

    spark_config: dict[str, Any] = Field(default={}, description="Spark settings, flat, such as spark.master.")

    @classmethod
    def _is_dagster_maintained(cls) -> bool:
        return False

    def _init_session(self) -> None:
        if self._spark_session is None:
            ensure_java()
            self._spark_session = session(self.spark_config)
