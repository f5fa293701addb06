"""Dagster's worker runs on several hosts: each with a home, a clock, a Spark and a network of its own."""

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest

from pg_pipeline.coordination import executions, submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.embedded.java import ensure_java
from pg_pipeline_tests.crash.link import Link
from pg_pipeline_tests.e2e.site import SINKS, Site
from pg_pipeline_tests.helpers import ChildProcess, wait_until

MINUTES = 5 * 60.0
# Under faketime some of Python's sleeps fail, and Java may not start at all: its clock is left alone.
SLEEP = "import threading, time\ntime.sleep = lambda seconds: threading.Event().wait(seconds) and None\n"
JAVA = '#!/bin/sh\nunset LD_PRELOAD\nexec {java} "$@"\n'
Host = Callable[..., tuple[ChildProcess, Link]]


@pytest.fixture
def site(dsn: str, tmp_path: Path, child: Callable[..., ChildProcess]) -> Iterator[Site]:
    with Database(dsn) as db:
        submission.configure_queue(db, "default", lease="5 s", grace="1 s", backoff_base="0 s", backoff_cap="0 s")
        yield Site(tmp_path, db, child, {"spark.master": "local[1]"})
        assert executions.audit(db) == []


@pytest.fixture
def host(site: Site) -> Iterator[Host]:
    """Starts a worker run there; `clock` is how far its time is off, as faketime takes it."""
    links: list[Link] = []

    def start(name: str, clock: str, *, cut_before: str | None = None) -> tuple[ChildProcess, Link]:
        links.append(Link(site.db.dsn))
        if cut_before is not None:
            links[-1].cut_before(cut_before)
        home = site.folder / name
        (home / "java" / "bin").mkdir(parents=True)
        real = Path(ensure_java())
        (home / "java" / "release").write_text((real / "release").read_text())
        java = home / "java" / "bin" / "java"
        java.write_text(JAVA.format(java=real / "bin" / "java"))
        java.chmod(0o755)
        (site.code / "sitecustomize.py").write_text(SLEEP)
        own = {"HOME": str(home), "TMPDIR": str(home), "JAVA_HOME": str(home / "java")}
        own |= {"PG_PIPELINE_STATE_DIR": str(home / "state")}
        own |= {"PG_PIPELINE_DSN": links[-1].dsn, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        return site.run(own, slots=1, under=("faketime", "-f", clock)), links[-1]

    yield start
    for link in links:
        link.close()


def clock_of(run: ChildProcess) -> float:
    """What time it was there when Dagster said its first word."""
    said = re.search(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \+0000) - dagster", run.stderr, re.MULTILINE)
    assert said is not None, run.stderr
    return datetime.strptime(said[1], "%Y-%m-%d %H:%M:%S %z").timestamp()


@pytest.mark.long
@pytest.mark.system("faketime")
def test_p2_p9_worker_runs_of_hosts_with_other_clocks_and_a_network_that_is_cut_do_each_batch_once(
    site: Site, host: Host
) -> None:
    """Nothing is shared but Postgres, the landed files, and the folder that is the sink of one of the pipelines."""
    keys = [site.submit(pipeline, rows=50) for pipeline in SINKS]
    ahead, link = host("ahead", "+9m", cut_before="pipeline.note_output(")
    wait_until(
        lambda: link.is_cut or not ahead.alive, timeout=MINUTES, what="the network to be cut once a batch is claimed"
    )
    assert ahead.alive, ahead.stderr
    others = [host("behind", "-7m")[0], host("right", "+0m")[0]]
    assert [run.wait(MINUTES) for run in others] == [0, 0], [run.stderr for run in others]

    def all_done() -> bool:
        more, _ = host(f"more-{len(list(site.folder.iterdir()))}", "-2m")
        assert more.wait(MINUTES) == 0, more.stderr
        return {executions.get(site.db, key)["status"] for key in keys} == {"finished"}

    wait_until(all_done, timeout=MINUTES, what="the others to take over what the cut host held")
    link.heal()
    assert ahead.wait(MINUTES) == 0, ahead.stderr
    assert "lost" in ahead.stderr
    clocks = [clock_of(run) for run in (ahead, *others)]
    assert max(clocks) - min(clocks) > 10 * 60, "the clocks did not differ"
    for pipeline in SINKS:
        assert site.wrong(pipeline) == {}
    outcomes = [a["outcome"] for key in keys for a in executions.attempts(site.db, key) if a["kind"] == "batch"]
    # Told by its next beat, or by what it wanted to say: whichever came first.
    assert sorted(outcomes) in (["committed"] * 4 + [end] for end in ("lost", "fenced"))
