"""Runs whose process is gone. Dagster's default launcher has no health check: a killed run stays "started" for ever."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta

import dagster as dg

from pg_pipeline.assets.enqueue import REQUEST_TAG
from pg_pipeline.assets.process import WORKER_TAG
from pg_pipeline.coordination import partitions
from pg_pipeline.coordination.database import Database

GOING = [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.CANCELING]
NOT_STARTED = dg.DagsterRunStatus.NOT_STARTED
WAITING = [dg.DagsterRunStatus.QUEUED, NOT_STARTED]
YOUNG = timedelta(seconds=120)  # a run needs this long at most from its start to its worker's row
LAUNCHED = timedelta(minutes=10)  # a run that was made is launched within moments, or by the next daemon
EVERY_LOOP = 4  # the daemon looks every 5 s: an interval of 5 is often missed by a moment, and becomes 10
WHY = "Its process is gone: its worker sends no heartbeat, and what it held was or will be taken over."


def report_lost_runs(instance: dg.DagsterInstance, db: Database, name: str, pipelines: Sequence[str] = ()) -> list[str]:
    """Report runs as failed of which a worker died without a word and none lives, and worker runs and submissions of
    the landing sensors that never had one or were never launched: they would be waited for."""
    lives = partitions.run_lives(db)
    lost = [run_id for run_id, life in lives.items() if life.live is False]
    found = {run.run_id: run for run in instance.get_runs(dg.RunsFilter(run_ids=lost, statuses=GOING))} if lost else {}
    submitting = dg.RunsFilter(tags={REQUEST_TAG: list(pipelines)}, statuses=[*GOING, NOT_STARTED])
    submissions = instance.get_run_records(submitting, limit=100) if pipelines else []
    silent = {}
    for record in [*worker_runs(instance, name), *submissions]:
        run = record.dagster_run
        life = lives.get(run.run_id)
        age = timedelta(seconds=time.time() - (record.start_time or record.update_timestamp.timestamp()))
        heard = age if life is None else min(age, life.quiet)
        quiet = heard > YOUNG and not (life and life.live)
        if quiet if run.status in GOING else run.status == NOT_STARTED and age > LAUNCHED:
            silent[run.run_id] = run
    waiting = waiting_for_slots(instance) if silent else set()
    found |= {run_id: run for run_id, run in silent.items() if run_id not in waiting}
    for run in found.values():
        instance.report_run_failed(run, WHY)
        _free_slots(instance, run)
    return list(found)


def _free_slots(instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
    """What it held of its pools, and its place in their queues: Dagster itself does it where run monitoring is on."""
    if instance.event_log_storage.supports_global_concurrency_limits:
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)


def waiting_for_slots(instance: dg.DagsterInstance) -> set[str]:
    """Runs that have started and whose step waits for a slot of its pool: in a process of its own for each step they
    have no worker's row yet."""
    storage = instance.event_log_storage
    if not storage.supports_global_concurrency_limits:
        return set()
    pools = [storage.get_concurrency_info(pool) for pool in storage.get_concurrency_keys()]
    return {run_id for pool in pools for run_id in pool.pending_run_ids}


def worker_runs(instance: dg.DagsterInstance, name: str) -> list[dg.RunRecord]:
    """Worker runs of these definitions that wait or go on."""
    wanted = dg.RunsFilter(tags={WORKER_TAG: name}, statuses=[*GOING, *WAITING])
    return list(instance.get_run_records(wanted, limit=100))
