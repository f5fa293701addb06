"""Executors that lack something: one sentence that says what, before anything is claimed."""

import re
from typing import Any

import pytest

import pg_pipeline
from pg_pipeline.spark import executors, failures
from pg_pipeline.spark.errors import ClusterNotReady
from pg_pipeline.spark.executors import check_executors


def lacks(spark: Any, match: str) -> None:
    with pytest.raises(ClusterNotReady, match=match) as caught:
        check_executors(spark)
    assert "\n" not in str(caught.value)


def test_executors_that_have_everything_are_fine(spark: Any) -> None:
    check_executors(spark)


def test_executors_that_lack_a_package_say_which(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "NEEDED", ("pg_pipeline", "not_there"))
    lacks(spark, r"can't import not_there .*spark\.archives")


def test_executors_of_another_release_say_so(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = pg_pipeline.__version__
    monkeypatch.setattr(pg_pipeline, "__version__", "99.0")
    lacks(spark, f"have pg_pipeline {re.escape(theirs)} and this worker has 99.0")


def test_executors_with_another_python_say_so(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonVer", "3.9")
    lacks(spark, r"run Python 3\.\d+ and this worker 3\.9: .*spark\.pyspark\.python")


def test_executors_without_python_say_so(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/nowhere/python")
    lacks(spark, "have no Python at /nowhere/python")


def test_a_cluster_that_gives_no_executor_is_not_waited_for_without_end(spark: Any) -> None:
    """Nobody takes the task: here it is cancelled before it could be taken."""
    with pytest.raises(ClusterNotReady, match="took a task within 0 s: see that its workers"):
        check_executors(spark, patience=0)


def test_a_module_that_only_the_driver_has_is_not_the_transforms_fault(spark: Any) -> None:
    """As an executor that came later would say it, in the middle of a batch."""
    text = "File \"/x/pyspark.zip/pyspark/serializers.py\", line 1\nModuleNotFoundError: No module named 'my_project'"
    found = failures.from_running(RuntimeError(text), "batch 0")
    assert isinstance(found, ClusterNotReady)
    assert "can't import my_project" in str(found)
    mine = RuntimeError(text.replace("/x/pyspark.zip/pyspark/", "/x/my_project/"))
    assert failures.from_running(mine, "batch 0") is mine
