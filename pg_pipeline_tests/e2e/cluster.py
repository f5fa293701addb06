"""A real Spark cluster, from the pip distribution: a master and two workers, whose executors know nothing of ours."""

from __future__ import annotations

import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import pyspark
from packaging.requirements import Requirement

from pg_pipeline.embedded.java import ensure_java
from pg_pipeline_tests.e2e.stack import free_ports
from pg_pipeline_tests.helpers import PROJECT, ChildProcess, wait_until

HOME = Path(pyspark.__file__).parent
REQUIREMENTS = PROJECT / "deploy" / "executors.txt"
# Without a virtual environment around it: it has none of our packages.
BARE_PYTHON = str(getattr(sys, "_base_executable", sys.executable))
DEPLOY = "org.apache.spark.deploy"


class Cluster:
    """Two hosts of one core each, as Spark sees it: it starts no second copy of a task on the host of the first."""

    def __init__(self, folder: Path, child: Callable[..., ChildProcess]) -> None:
        self.folder = folder
        self._child = child
        (port,) = free_ports(1)
        self.url = f"spark://127.0.0.1:{port}"
        self.environment: dict[str, str | None] = {
            "SPARK_HOME": str(HOME),
            "JAVA_HOME": str(ensure_java()),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_NO_DAEMONIZE": "1",
        }
        self.master = self._start("master.Master", "--host", "127.0.0.1", "--port", str(port))
        self.workers = {host: self.start_worker(host) for host in ("127.0.0.1", "127.0.0.2")}
        wait_until(lambda: self.master.stderr.count("Registering worker") == 2, timeout=120, what="two Spark workers")

    def start_worker(self, host: str) -> ChildProcess:
        work = self.folder / f"work-{host}"
        place = ("--host", host, "--cores", "1", "--memory", "1g", "--work-dir", str(work))
        return self._start("worker.Worker", *place, self.url, SPARK_LOCAL_IP=host)

    def _start(self, what: str, *arguments: str, **variables: str) -> ChildProcess:
        bare = {"PYTHONPATH": None, "VIRTUAL_ENV": None, "SPARK_LAUNCHER_OPTS": None, "SPARK_SUBMIT_OPTS": None}
        command = (str(HOME / "bin" / "spark-class"), f"{DEPLOY}.{what}", *arguments[:4], "--webui-port", "0")
        return self._child(
            command=(*command, *arguments[4:]), env={**self.environment, **bare, **variables}, cwd=self.folder
        )

    def executors(self, host: str) -> list[psutil.Process]:
        """The executors of a worker, which are its children."""
        if not self.workers[host].alive:
            return []
        found = []
        for one in psutil.Process(self.workers[host].pid).children(recursive=True):
            with suppress(psutil.Error):  # one that has just ended
                if "CoarseGrainedExecutorBackend" in " ".join(one.cmdline()):
                    found.append(one)
        return found

    def config(self, archive: Path, **more: Any) -> dict[str, Any]:
        """What a user sets: the master, the archive, and where the executors' Python is."""
        return {
            "spark.master": self.url,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.archives": f"{archive}#environment",
            "spark.executorEnv.PYTHONPATH": "environment",
            "spark.pyspark.python": BARE_PYTHON,
            # Rows reach the sink's task before all of them are there.
            "spark.sql.execution.arrow.maxRecordsPerBatch": 50,
            **more,
        }


def packages_for_executors() -> Iterator[tuple[str, Path]]:
    """Names and files of what deploy/executors.txt asks for, from this environment, and of pg_pipeline."""
    lines = [line for line in REQUIREMENTS.read_text().splitlines() if line and not line.startswith("#")]
    wanted, seen = [Requirement(line) for line in lines], set()
    while wanted:
        one = wanted.pop()
        if (one.name, *sorted(one.extras)) in seen:
            continue
        seen.add((one.name, *sorted(one.extras)))
        found = metadata.distribution(one.name)
        for needed in map(Requirement, found.requires or ()):
            extras = [{"extra": extra} for extra in one.extras] or [{"extra": ""}]
            if needed.marker is None or any(needed.marker.evaluate(extra) for extra in extras):
                wanted.append(needed)
        for file in found.files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                yield str(file), Path(str(found.locate_file(file)))
    for path in (PROJECT / "pg_pipeline").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield str(path.relative_to(PROJECT)), path


def pack(archive: Path) -> Path:
    """What `pip install --target` and `tar` make, out of what is installed here."""
    with tarfile.open(archive, "w:gz", compresslevel=1) as out:
        for name, path in packages_for_executors():
            if path.exists():
                out.add(path, name)
    return archive
