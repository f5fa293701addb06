"""`<pipeline>/batches` in a targeted run: exactly these batches. Safe to repeat, and it says what it did."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid5

import dagster as dg
from pydantic import Field

from pg_pipeline.assets import keys
from pg_pipeline.assets.process import SLOTS, bench_of, fail_for, sentence, work
from pg_pipeline.assets.report import Reporter, kinds, relation
from pg_pipeline.assets.work import Outcome, drain
from pg_pipeline.coordination import dead_letters, executions, partitions
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.lease import Lease
from pg_pipeline.coordination.partitions import Place
from pg_pipeline.coordination.worker import Worker
from pg_pipeline.errors import NotFound, PgPipelineError
from pg_pipeline.pipelines.pipeline import FilePipeline
from pg_pipeline.resources import CoordinationResource, SparkResource

POLL = 1.0
ABOUT = (
    "A partition per batch of files. Worker runs make them, which the depth sensor starts. Materialising one by hand "
    "is safe: what is committed stays as it is, and what somebody works on is left to them."
)
_RERUN = UUID("5b1b9d8e-6f0a-4c57-9c55-0a7f4e0a9c11")


class BatchesConfig(dg.Config):
    rerun: bool = Field(default=False, description="Run committed batches again, as a new generation.")
    wait: float = Field(default=0.0, ge=0, description="Seconds to wait for batches that a live worker holds.")
    slots: int | None = Field(default=None, ge=1, le=64, description=SLOTS)


def batches_asset_of(pipeline: FilePipeline, pool: str | None) -> dg.AssetsDefinition:
    known = {pipeline.name: pipeline}

    @dg.asset(
        key=[pipeline.name, "batches"],
        group_name=pipeline.name,
        kinds=kinds(pipeline),
        metadata=relation(pipeline),
        partitions_def=keys.batches_partitions(pipeline.name),
        deps=[dg.AssetKey([pipeline.name, "enqueued"])],
        output_required=False,
        backfill_policy=dg.BackfillPolicy.single_run(),
        io_manager_key=f"{pipeline.name}_rows",
        pool=pool,
        description=f"{pipeline.description or f'Rows of {pipeline.name}.'}\n\n{ABOUT}",
    )
    def batches(
        context: dg.AssetExecutionContext,
        config: BatchesConfig,
        coordination: CoordinationResource,
        pyspark: SparkResource,
    ) -> Iterator[Any]:
        target = _Target(coordination.db, Reporter.of_run(context, known, coordination.db), context, config)
        until = time.monotonic() + config.wait
        troubled: list[Outcome] = []
        with bench_of(context, known, pipeline.queue, coordination, pyspark) as bench:
            while target.look():
                if target.free:
                    with closing(drain(bench, slots=config.slots, claim=target.claim)) as going:
                        troubled += target.settle(work(context, known, coordination, going, bench.under_way))
                elif time.monotonic() < until:
                    bench.worker.wait(POLL)
                else:
                    target.say_held()
                    break
        fail_for(context, known, coordination, troubled, planned=True)
        target.raise_for(troubled)
        yield from ()

    return batches


@dataclass
class _Target:
    """The batches of a run that are not dealt with yet."""

    db: Database
    reporter: Reporter
    context: dg.AssetExecutionContext
    config: BatchesConfig
    wanted: dict[str, set[int]] = field(default_factory=dict)
    free: dict[str, set[int]] = field(default_factory=dict)
    held: list[tuple[str, Place]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    claimed: set[tuple[str, int]] = field(default_factory=set)
    missed: int = 0
    lock: Any = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        for key in self.context.partition_keys:
            named = keys.parse(key)
            if named.number is None:
                raise dg.Failure(f"{key} names an execution: its batches look like {key}~00000.", allow_retries=False)
            self.wanted.setdefault(named.execution, set()).add(named.number)
        if self.config.rerun:
            self._rerun()

    def look(self) -> bool:
        """Sort what is left: skip what is committed, replay what is dead. False when nothing is left."""
        self.free, self.held = {}, []
        for execution, numbers in self.wanted.items():
            for place in self._places(execution, numbers):
                if place.state == "dead" and place.dead_letter is not None:
                    self._replay(execution, place)
                if place.state == "waiting" and place.live:
                    self.held.append((execution, place))
                elif place.state in ("waiting", "dead"):
                    self.free.setdefault(execution, set()).add(place.number)
                elif place.state != "committed":
                    self._refuse(execution, place.number, f"is {place.state}: submit its files again")
            committed = numbers - self.free.get(execution, set()) - {p.number for e, p in self.held if e == execution}
            self._skip(execution, committed)
        self._give_up_when_nothing_moves()
        return bool(self.free or self.held)

    def claim(self, worker: Worker) -> Sequence[Lease]:
        """One of those that were free, for a thread that has nothing to do."""
        with self.lock:
            for execution, numbers in self.free.items():
                if numbers and (leases := worker.claim(1, execution=execution, batches=sorted(numbers))):
                    numbers.discard(leases[0].batch or 0)
                    self.claimed.add((execution, leases[0].batch or 0))
                    return leases
        return []

    def settle(self, troubled: Sequence[Outcome]) -> Sequence[Outcome]:
        """What was claimed is dealt with, but for what was lost: look again who has it."""
        lost = {(o.lease.execution, o.lease.batch) for o in troubled if o.status == "lost"}
        self.missed = 0 if self.claimed else self.missed + 1
        for execution, number in self.claimed - lost:
            self.wanted[execution].discard(number)
        self.claimed.clear()
        return [outcome for outcome in troubled if outcome.status != "lost"]

    def say_held(self) -> None:
        for execution, place in self.held:
            key = self.reporter.keys.batch(self.pipeline, execution, place.generation, place.number)
            since = "" if place.since is None else f"{place.since:%Y-%m-%d %H:%M:%S}"
            who = f"{place.holder}" + (f" (run {place.holder_run})" if place.holder_run else "")
            self.context.log.warning(f"{key} is held by {who} since {since}: not touched.")
            said = {"held_by": who, "held_since": since}
            self.context.log_event(dg.AssetObservation(self.context.asset_key, partition=key, metadata=said))

    def raise_for(self, troubled: Sequence[Outcome]) -> None:
        said = [*self.refused, *(sentence(outcome) for outcome in troubled if outcome.status == "failed")]
        if said:
            raise dg.Failure(" ".join(said), allow_retries=False)

    @property
    def pipeline(self) -> str:
        return str(self.context.asset_key.path[0])

    def _places(self, execution: str, numbers: set[int]) -> list[Place]:
        if not numbers:
            return []
        try:
            places = partitions.places(self.db, execution, sorted(numbers))
        except NotFound as error:
            raise dg.Failure(str(error), allow_retries=False) from None
        for number in sorted(numbers - {place.number for place in places}):
            self._refuse(execution, number, "does not exist")
        return places

    def _rerun(self) -> None:
        """Asked once per root run and execution: a retried run does not make another generation."""
        root = self.context.run.root_run_id or self.context.run.run_id
        for execution, numbers in self.wanted.items():
            done = [p.number for p in self._places(execution, numbers) if p.state == "committed"]
            if done:
                request = uuid5(_RERUN, f"{root}:{execution}")
                try:
                    answer = executions.rerun(self.db, execution, done, request_id=request)
                except PgPipelineError as error:
                    raise dg.Failure(str(error), allow_retries=False) from None
                self.context.log.info(f"{execution} runs {done} again, as generation {answer['generation']}.")

    def _replay(self, execution: str, place: Place) -> None:
        try:
            dead_letters.replay(self.db, place.dead_letter or 0, by=f"run {self.context.run.run_id}")
            self.context.log.info(f"Dead letter {place.dead_letter} (batch {place.number} of {execution}) is replayed.")
        except NotFound:
            pass  # another replayed it first
        except PgPipelineError as error:
            self._refuse(execution, place.number, str(error))

    def _skip(self, execution: str, numbers: set[int]) -> None:
        """Report the committed result as it stands."""
        reports = [r for r in partitions.batches(self.db, execution, sorted(numbers)) if r.state == "committed"]
        for event in self.reporter.skipped(reports):
            self.context.log.info(f"{event.partition} {event.metadata['skipped'].value}")
        self.wanted[execution] -= {report.number for report in reports}

    def _refuse(self, execution: str, number: int, why: str) -> None:
        self.refused.append(f"Batch {number} of execution {execution} {why}.")
        self.wanted[execution].discard(number)
        self.free.get(execution, set()).discard(number)

    def _give_up_when_nothing_moves(self) -> None:
        """Free, and yet not to be had: a paused queue, mostly."""
        if self.missed < 3:
            return
        for execution, numbers in self.free.items():
            why = "; ".join(r.detail for r in executions.explain(self.db, execution) if r.what in ("paused", "state"))
            for number in sorted(numbers):
                self._refuse(execution, number, f"could not be claimed ({why})")
        self.free = {}
