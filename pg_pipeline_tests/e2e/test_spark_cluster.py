"""The same pipelines on a real Spark cluster, while its processes are killed: each row is there once."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pg_pipeline.coordination import executions, submission
from pg_pipeline.coordination.database import Database
from pg_pipeline_tests.e2e.cluster import BARE_PYTHON, HOME, Cluster, pack, packages_for_executors
from pg_pipeline_tests.e2e.site import SINKS, Site
from pg_pipeline_tests.helpers import ChildProcess, wait_until

MINUTES = 5 * 60.0
ON_EXECUTORS = ("sinks.copying", "sinks.parquet", "spark.arrow_reader", "spark.probe", "spark.spark_reader")


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack(tmp_path_factory.mktemp("archive") / "environment.tar.gz")


@pytest.fixture
def cluster(tmp_path: Path, child: Callable[..., ChildProcess]) -> Cluster:
    return Cluster(tmp_path, child)


@pytest.fixture
def site(
    dsn: str, tmp_path: Path, archive: Path, cluster: Cluster, child: Callable[..., ChildProcess]
) -> Iterator[Site]:
    with Database(dsn) as db:
        submission.configure_queue(db, "default", backoff_base="0 s", backoff_cap="0 s")
        steps = {"spark.submit.pyFiles": str(tmp_path / "project" / "cluster_steps.py")}
        yield Site(tmp_path, db, child, {**cluster.config(archive), **steps})
        assert executions.audit(db) == []


def test_what_executors_run_needs_only_what_they_get(tmp_path: Path) -> None:
    for name, path in packages_for_executors():
        link = tmp_path / Path(name).parts[0]
        if not link.exists():
            link.symlink_to(path.parents[len(Path(name).parts) - 2] if len(Path(name).parts) > 1 else path)
    paths = [str(tmp_path), *map(str, (HOME / "python" / "lib").glob("*.zip"))]
    code = f"import sys, importlib; sys.path[:0] = {paths}\n"
    code += "".join(f"importlib.import_module('pg_pipeline.{name}')\n" for name in ON_EXECUTORS)
    done = subprocess.run([BARE_PYTHON, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert sys.executable != BARE_PYTHON


@pytest.mark.long
@pytest.mark.parametrize("pipeline", SINKS)
def test_p2_an_executor_and_then_a_spark_worker_killed_in_the_middle_of_their_writing_double_nothing(
    site: Site, cluster: Cluster, pipeline: str
) -> None:
    execution = site.submit(pipeline)
    hold = site.hold()
    run = site.run()

    def two_write() -> set[str]:
        assert run.alive, run.stdout + run.stderr
        now = site.writers(pipeline)
        return now if len(now) >= 2 else set()

    first = wait_until(two_write, timeout=MINUTES, what="two tasks in the middle of their writing")
    (victim,) = cluster.executors("127.0.0.1")
    victim.kill()
    gone = len(first) - 1

    def again() -> bool:
        now = site.writers(pipeline)
        return len(now - first) >= 1 and (pipeline == "parquet" or len(now) >= 1 + gone)

    wait_until(again, timeout=MINUTES, what="another executor to write what the dead one did")
    worker = cluster.workers["127.0.0.2"]
    (orphan,) = cluster.executors("127.0.0.2")
    worker.kill9()
    wait_until(lambda: not orphan.is_running(), what="the executor of the dead Spark worker to end")
    hold.unlink()
    assert run.wait(MINUTES) == 0, run.stdout + run.stderr
    assert executions.get(site.db, execution)["status"] == "finished"
    assert site.wrong(pipeline) == {}


@pytest.mark.long
def test_p2_of_a_task_that_ran_twice_at_once_each_row_is_visible_once(site: Site) -> None:
    """Speculative execution: the first attempt and its double both give all their rows to the sink's task."""
    keys = [site.submit(pipeline, files=4) for pipeline in SINKS]
    impatient = {"spark.speculation": True, "spark.speculation.quantile": 0.5, "spark.speculation.interval": "200ms"}
    run = site.run({"TEST_STRAGGLE": "1"}, slots=1, **impatient)
    assert run.wait(2 * MINUTES) == 0, run.stdout + run.stderr
    doubled = [len(list(stage.iterdir())) for stage in (site.folder / "stragglers").iterdir()]
    assert len(doubled) == len(SINKS)
    assert min(doubled) >= 2, "no task ran twice"
    assert {executions.get(site.db, key)["status"] for key in keys} == {"finished"}
    for pipeline in SINKS:
        assert site.wrong(pipeline) == {}


@pytest.mark.long
def test_executors_that_lack_our_packages_end_the_run_with_a_sentence_and_cost_no_attempt(site: Site) -> None:
    execution = site.submit("postgres", files=4)
    run = site.run(**{"spark.executorEnv.PYTHONPATH": "elsewhere"})
    assert run.wait(2 * MINUTES) != 0
    assert "can't import pg_pipeline" in run.stderr
    assert "spark.archives" in run.stderr
    assert executions.attempts(site.db, execution) == []
