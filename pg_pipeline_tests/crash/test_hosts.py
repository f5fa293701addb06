"""Several hosts on one queue: each with a home, a clock and a network of its own, and nothing shared but Postgres."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from pg_pipeline.coordination.database import Database
from pg_pipeline_tests.crash.link import Link
from pg_pipeline_tests.crash.recovery import answer, leases, outcomes, whole
from pg_pipeline_tests.helpers import ChildProcess, wait_until

ACTOR = """
import runpy, time
print("clock", time.time(), flush=True)
runpy.run_module("pg_pipeline_tests.crash.actor", run_name="__main__", alter_sys=True)
"""
Host = Callable[..., tuple[ChildProcess, Link]]


@pytest.fixture
def host(brisk: Database, tmp_path: Path, child: Callable[..., ChildProcess]) -> Iterator[Host]:
    """Starts a worker on a host of its own; `clock` is how far its time is off, as faketime takes it."""
    links: list[Link] = []

    def start(name: str, *, clock: str | None = None, cut_before: str | None = None) -> tuple[ChildProcess, Link]:
        link = Link(brisk.dsn)
        links.append(link)
        if cut_before is not None:
            link.cut_before(cut_before)
        home = tmp_path / name
        home.mkdir()
        dsn = f"{link.dsn}&options={quote('-c idle_in_transaction_session_timeout=300')}"
        command = [sys.executable, "-c", ACTOR, "drain", dsn, json.dumps({"tolerant": True, "limit": 1})]
        return child(
            command=[*(("faketime", "-f", clock) if clock else ()), *command],
            env={"HOME": str(home), "TMPDIR": str(home), "FAKETIME_DONT_FAKE_MONOTONIC": "1"},
            cwd=home,
        ), link

    yield start
    for link in links:
        link.close()


@pytest.mark.parametrize("said", ["pipeline.batch_files(", "pipeline.lock_leases(", "pipeline.finish("])
def test_p3_a_host_whose_network_was_cut_loses_its_lease_and_says_nothing_new_when_it_heals(
    brisk: Database, submit: Any, host: Host, said: str
) -> None:
    """Its session stays open and holds its lock: a half-open connection never extends a lease. One that is cut with
    the task locked is ended by Postgres, here soon."""
    submit(6)
    lonely, link = host("a", cut_before=said)
    wait_until(lambda: link.is_cut, what="the network to be cut in the middle of the work")
    others = [host(name)[0] for name in ("b", "c")]
    assert [one.wait() for one in others] == [0, 0], [one.stderr for one in others]
    wait_until(lambda: _take_over(brisk, host), what="another host to take over what the cut one held")
    assert outcomes(brisk)["lost"] == 1
    link.heal()
    assert lonely.wait() == 0, lonely.stderr
    assert "lost " in lonely.stdout
    assert answer(lonely) == 0
    assert outcomes(brisk)["fenced"] == 1
    whole(brisk)


def _take_over(db: Database, host: Host) -> bool:
    process, _ = host(f"more-{db.value('select count(*) from pipeline.worker')}")
    assert process.wait() == 0, process.stderr
    return bool(db.value("select count(*) from pipeline.task") == 0)


@pytest.mark.system("faketime")
def test_p9_hosts_whose_clocks_differ_by_minutes_share_a_queue(brisk: Database, submit: Any, host: Host) -> None:
    """Only the database's time counts: nobody's lease ends early, and nobody's lasts longer."""
    submit(24)
    ahead, link = host("ahead", clock="+9m", cut_before="pipeline.lock_leases(")
    wait_until(lambda: link.is_cut, what="the network to be cut in the middle of a finish")
    hosts = [host(name, clock=clock)[0] for name, clock in (("behind", "-7m"), ("far", "-90m"), ("right", None))]
    assert [one.wait() for one in hosts] == [0, 0, 0], [one.stderr for one in hosts]
    wait_until(lambda: _take_over(brisk, host), what="another host to take over what the cut one held")
    link.heal()
    assert ahead.wait() == 0, ahead.stderr
    clocks = [float(one.stdout.split()[1]) for one in (ahead, *hosts)]
    assert max(clocks) - min(clocks) > 90 * 60, "the clocks did not differ"
    assert sum(bool(leases(one)) for one in hosts) > 0
    counts = outcomes(brisk)
    assert counts.pop("fenced") == 1
    assert counts == {"committed": brisk.value("select count(*) from pipeline.batch")}
    apart = "select count(*) from pipeline.attempt where abs(extract(epoch from now() - claimed_at)) > 120"
    assert brisk.value(apart) == 0
    whole(brisk)
