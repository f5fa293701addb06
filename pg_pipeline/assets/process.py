"""`<pipeline>/batches`: the Spark work. Two ways in, one code path: a worker run drains whatever is ready, a
targeted run takes exactly the batches that it was asked for."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager

import dagster as dg
from pydantic import Field

from pg_pipeline.assets import checks
from pg_pipeline.assets.events import Context, report_planned
from pg_pipeline.assets.report import Reporter, batches_asset
from pg_pipeline.assets.work import Bench, Outcome, drain
from pg_pipeline.coordination import partitions, submission
from pg_pipeline.pipelines.pipeline import FilePipeline
from pg_pipeline.resources import CoordinationResource, SparkResource
from pg_pipeline.spark.progress import Progress

WORKER_TAG = "pg_pipeline/worker"
QUEUE_TAG = "pg_pipeline/queue"
DEAD_TAG = "pg_pipeline/dead_letters"
DRAINED = ("batch", "callback")
REPORT_EVERY = 100
REPORT_SECONDS = 2.0
PROGRESS_SECONDS = 10.0
SLOTS = "Batches at a time in the one Spark session; found from cores and memory when not set."


class WorkerConfig(dg.Config):
    queue: str = Field(default="default", description="The queue to drain.")
    slots: int | None = Field(default=None, ge=1, le=64, description=SLOTS)
    max_seconds: float = Field(default=3600.0, gt=0, description="Take nothing new after this long.")
    linger_seconds: float = Field(default=3.0, ge=0, description="Wait this long for more before ending.")


@contextmanager
def bench_of(
    context: Context,
    pipelines: Mapping[str, FilePipeline],
    queue: str,
    coordination: CoordinationResource,
    pyspark: SparkResource,
    kinds: Sequence[str] = ("targeted",),
) -> Iterator[Bench]:
    """A worker with its Spark session. Its row is there before Spark starts, so a run killed early is seen.

    `kinds` is what it takes unasked; a targeted run takes nothing unasked and does not count as a drain.
    """
    db = coordination.db
    for pipeline in pipelines.values():
        submission.register_pipeline(db, pipeline.name, **pipeline.registration)
    benches: list[Bench] = []
    worker = coordination.worker(
        queue,
        pipelines=list(pipelines),
        kinds=kinds,
        run_id=context.run.run_id,
        on_lost=lambda lease, why: benches[0].lost(lease, why),  # noqa: PLW0108 - the bench is made from the worker
    )

    def waits() -> bool:
        depth = partitions.depth(db, queue, list(pipelines))
        return bool(depth.batches or depth.callbacks)

    known = waits if kinds is DRAINED else lambda: True  # a targeted run knows that what it wants is there
    benches.append(Bench(worker, pipelines, lambda: pyspark.spark_session, db.dsn, known))
    with worker:
        yield benches[0]


def work(
    context: Context,
    pipelines: Mapping[str, FilePipeline],
    coordination: CoordinationResource,
    outcomes: Iterator[Outcome | None],
    under_way: Callable[[], Progress | None] = lambda: None,
) -> list[Outcome]:
    """Follow a drain: tell Dagster of what committed, some at a time and soon, and now and then how far the rest is;
    return what did not commit."""
    reporter = Reporter.of_run(context, pipelines, coordination.db)
    untold: list[Outcome] = []
    troubled: list[Outcome] = []

    def tell() -> None:
        _tell(context, reporter, pipelines, coordination, untold)
        untold.clear()

    told, said = 0.0, time.monotonic()
    try:
        for outcome in outcomes:
            if time.monotonic() - said > PROGRESS_SECONDS and (progress := under_way()):
                context.log.info(f"{progress.batches} under way: {progress}.")
                said = time.monotonic()
            if outcome is None:
                tell()
                continue
            lease = outcome.lease
            if outcome.status != "committed":
                troubled.append(outcome)
                context.log.warning(sentence(outcome))
                continue
            done = f": {outcome.progress}" if outcome.progress else ""
            context.log.info(f"{lease} committed (attempt {lease.attempt}){done}.")
            untold.append(outcome)
            now = time.monotonic()
            if len(untold) >= REPORT_EVERY or lease.kind == "callback" or now - told > REPORT_SECONDS:
                tell()
                told = now
    finally:
        tell()
    return troubled


def _tell(
    context: Context,
    reporter: Reporter,
    pipelines: Mapping[str, FilePipeline],
    coordination: CoordinationResource,
    outcomes: Sequence[Outcome],
) -> None:
    numbers: dict[str, list[int]] = {}
    callbacks = []
    for outcome in outcomes:
        assert outcome.lease.execution is not None
        if outcome.lease.kind == "callback":
            callbacks.append(outcome.lease.execution)
        else:
            numbers.setdefault(outcome.lease.execution, []).append(outcome.lease.batch or 0)
    reports = [r for key, some in numbers.items() for r in partitions.batches(coordination.db, key, some)]
    reporter.batches([report for report in reports if report.state == "committed"])
    for execution in callbacks:
        reporter.summary(execution)
    for pipeline in {outcome.lease.pipeline for outcome in outcomes if outcome.lease.kind == "callback"}:
        checks.report(context.instance, pipelines[pipeline], coordination.db)
    if callbacks:
        coordination.dispatcher(timeout=5.0).dispatch()  # the sensor does the rest


def worker_job(pipelines: Sequence[FilePipeline], name: str, pool: str | None) -> dg.JobDefinition:
    """A run that drains whatever is ready for these pipelines, by priority and fairness, in one Spark session."""
    known = {pipeline.name: pipeline for pipeline in pipelines}

    @dg.op(name=f"{name}_drain", pool=pool)
    def drain_queue(
        context: dg.OpExecutionContext,
        config: WorkerConfig,
        coordination: CoordinationResource,
        pyspark: SparkResource,
    ) -> None:
        with bench_of(context, known, config.queue, coordination, pyspark, DRAINED) as bench:
            going = drain(bench, slots=config.slots, seconds=config.max_seconds, linger=config.linger_seconds)
            with closing(going):
                troubled = work(context, known, coordination, going, bench.under_way)
        fail_for(context, known, coordination, troubled)

    @dg.job(
        name=f"{name}_worker",
        executor_def=dg.in_process_executor,
        # The depth sensor starts another when there is work; a retry would be one too many.
        tags={WORKER_TAG: name, "dagster/max_retries": "0"},
        description=f"Drains the queue for {', '.join(known)}: started by the depth sensor, or by hand.",
    )
    def worker() -> None:
        drain_queue()

    return worker


def fail_for(
    context: Context,
    pipelines: Mapping[str, FilePipeline],
    coordination: CoordinationResource,
    troubled: Sequence[Outcome],
    *,
    planned: bool = False,
) -> None:
    """Dead letters turn the run and exactly their partitions red; what will be tried again does not."""
    dead = [outcome for outcome in troubled if outcome.dead_letter is not None]
    if not dead:
        return
    # The run did its work: the depth sensor must not take it for one that can't.
    context.instance.add_run_tags(context.run.run_id, {DEAD_TAG: str(len(dead))})
    reporter = Reporter.of_run(context, pipelines, coordination.db)
    for outcome in dead:
        lease = outcome.lease
        if lease.kind == "batch" and not planned:
            key = reporter.keys.batch(lease.pipeline, lease.execution or "", lease.generation or 1, lease.batch or 0)
            report_planned(context.instance, context.run, _step(context), batches_asset(lease.pipeline), key)
    raise dg.Failure(
        f"{len(dead)} dead letter(s): {'; '.join(sentence(outcome) for outcome in dead[:5])} "
        "Fix the cause, then materialise the partition again, or: pg-pipeline dlq replay.",
        metadata={"dead_letters": dg.MetadataValue.json([outcome.dead_letter for outcome in dead])},
        allow_retries=False,
    )


def _step(context: Context) -> str:
    step: str = context.get_step_execution_context().step.key
    return step


def sentence(outcome: Outcome) -> str:
    """What became of a lease, for a person."""
    what = f"{outcome.lease}: {outcome.status}"
    if outcome.dead_letter is not None:
        what += f", dead letter {outcome.dead_letter}"
    elif outcome.retry_at:
        what += f", tried again at {outcome.retry_at}"
    return f"{what} ({outcome.error})." if outcome.error else f"{what}."
