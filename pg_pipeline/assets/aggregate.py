"""`<pipeline>/summary`: the callback of an execution, once, when all of it is in."""

import time
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import dagster as dg
from pydantic import Field

from pg_pipeline.assets import keys
from pg_pipeline.assets.process import bench_of, fail_for, sentence, work
from pg_pipeline.assets.report import Reporter
from pg_pipeline.assets.work import drain
from pg_pipeline.coordination import dead_letters, executions, partitions
from pg_pipeline.coordination.database import Database
from pg_pipeline.errors import NotFound
from pg_pipeline.pipelines.pipeline import FilePipeline
from pg_pipeline.resources import CoordinationResource, SparkResource

POLL = 1.0


class SummaryConfig(dg.Config):
    wait: float = Field(default=0.0, ge=0, description="Seconds to wait for a callback that a live worker runs.")


def summary_asset_of(pipeline: FilePipeline, pool: str | None) -> dg.AssetsDefinition:
    known = {pipeline.name: pipeline}

    @dg.asset(
        key=[pipeline.name, "summary"],
        group_name=pipeline.name,
        kinds={"spark"},
        partitions_def=keys.executions_partitions(pipeline.name),
        deps=[dg.AssetDep(dg.AssetKey([pipeline.name, "batches"]), partition_mapping=dg.AllPartitionMapping())],
        output_required=False,
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=pool,
        description=f"What {pipeline.name} runs once per execution, when all of it is in.",
    )
    def summary(
        context: dg.AssetExecutionContext,
        config: SummaryConfig,
        coordination: CoordinationResource,
        pyspark: SparkResource,
    ) -> Iterator[Any]:
        db = coordination.db
        reporter = Reporter.of_run(context, known, db)
        wanted = [keys.parse(key).execution for key in context.partition_keys]
        ready = [execution for execution in wanted if _is_ready(context, db, reporter, execution)]
        if ready:
            with bench_of(context, known, pipeline.queue, coordination, pyspark) as bench:
                for execution in ready:
                    until = time.monotonic() + config.wait
                    while True:
                        claim = _claim_of(execution)
                        with closing(drain(bench, slots=1, claim=claim)) as going:
                            troubled = work(context, known, coordination, going)
                        fail_for(context, known, coordination, troubled)
                        if any(outcome.status == "failed" for outcome in troubled):
                            raise dg.Failure(" ".join(sentence(o) for o in troubled), allow_retries=False)
                        place = partitions.callback_place(db, execution)
                        if not place.live or time.monotonic() >= until:
                            break
                        bench.worker.wait(POLL)
                    _say_end(context, db, reporter, execution)
        yield from ()

    return summary


def _claim_of(execution: str) -> Any:
    asked: list[bool] = []

    def claim(worker: Any) -> Any:
        if asked:
            return []
        asked.append(True)
        return worker.claim(1, execution=execution, kind="callback")

    return claim


def _is_ready(context: dg.AssetExecutionContext, db: Database, reporter: Reporter, execution: str) -> bool:
    """True when its callback can run; done already: skipped; otherwise a failure that names what is missing."""
    try:
        report = partitions.execution(db, execution)
    except NotFound as error:
        raise dg.Failure(str(error), allow_retries=False) from None
    if report.status == "finished":
        event = reporter.skipped_summary(report)
        context.log.info(f"{event.partition} {event.metadata['skipped'].value}")
        return False
    place = partitions.callback_place(db, execution)
    if place.dead_letter is not None:
        with suppress(NotFound):  # another replayed it first
            dead_letters.replay(db, place.dead_letter, by=f"run {context.run.run_id}")
        return True
    if report.status not in ("sealed", "blocked") or report.remaining:
        reasons = [f"{r.what}: {r.detail}" for r in executions.explain(db, execution)]
        raise dg.Failure(
            f"The callback of execution {execution} can't run yet: {report.remaining} of {report.expected} batches are "
            f"missing. {'; '.join(reasons)}.",
            metadata={"remaining": report.remaining, "expected": report.expected},
            allow_retries=False,
        )
    return True


def _say_end(context: dg.AssetExecutionContext, db: Database, reporter: Reporter, execution: str) -> None:
    report = partitions.execution(db, execution)
    place = partitions.callback_place(db, execution)
    if report.status == "finished":
        reporter.summary(execution)
    elif place.live:
        who = f"{place.holder}" + (f" (run {place.holder_run})" if place.holder_run else "")
        context.log.warning(f"The callback of {execution} is run by {who} since {place.since}: not touched.")
    else:
        reasons = "; ".join(f"{r.what}: {r.detail}" for r in executions.explain(db, execution))
        raise dg.Failure(f"The callback of {execution} could not be claimed. {reasons}.", allow_retries=False)
