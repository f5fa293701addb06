"""`<pipeline>/enqueued`: files in, executions out. Asked twice (a retried run), it is asked once."""

from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg
from pydantic import Field

from pg_pipeline.assets.keys import Registrar
from pg_pipeline.assets.report import report_link
from pg_pipeline.coordination import partitions, submission
from pg_pipeline.coordination.submission import Submission
from pg_pipeline.errors import InvalidInput, SubmissionConflict
from pg_pipeline.pipelines import landing
from pg_pipeline.pipelines.arrival import has_new, submit_found
from pg_pipeline.pipelines.pipeline import FilePipeline
from pg_pipeline.resources import CoordinationResource

REQUEST_TAG = "pg_pipeline/enqueue"


class EnqueueConfig(dg.Config):
    paths: list[str] = Field(default=[], description="Files or folders; none: what is new in the landing folder.")
    since: str | None = Field(
        default=None, description="Of the landing folder only what sorts after this path in it; the sensor sets it."
    )
    request_key: str | None = Field(
        default=None, description="Asking again with it is asking once; the run's by default."
    )
    tenant: str = Field(default="", description="Tenants take turns.")
    priority: int = Field(default=0, description="Higher goes first.")
    released: bool = Field(default=False, description="Also take files that a cancelled execution released.")


def enqueued_asset(pipeline: FilePipeline) -> dg.AssetsDefinition:
    @dg.asset(
        key=[pipeline.name, "enqueued"],
        group_name=pipeline.name,
        kinds={"postgres"},
        metadata={"landing": str(pipeline.landing_place or "none"), "delivery": pipeline.delivery},
        description=f"Files handed to {pipeline.name}: one execution per delivery, in batches for Spark.",
        op_tags={REQUEST_TAG: pipeline.name},
    )
    def enqueued(
        context: dg.AssetExecutionContext, config: EnqueueConfig, coordination: CoordinationResource
    ) -> dg.MaterializeResult[Any]:
        db = coordination.db
        submission.register_pipeline(db, pipeline.name, **pipeline.registration)
        run = context.run
        root = config.request_key or f"run:{run.root_run_id or run.run_id}"
        try:
            if config.paths:
                made = [_submit(coordination, pipeline, config, root)]
            else:
                made = list(_submit_landed(coordination, pipeline, config, again=run.root_run_id is not None))
        except (InvalidInput, SubmissionConflict) as error:
            raise dg.Failure(str(error), allow_retries=False) from None  # a sentence, and no stack around it
        keys = Registrar(context.instance, db)
        for one in made:
            found = partitions.execution(db, one.execution) if one.batches else None
            # Asked again for what ended long ago: its keys may be gone, and would bring their old status back.
            if found is not None and (one.created or found.ended_at is None):
                keys.execution(pipeline.name, one.execution, found.generation)
        for one in made:
            context.log.info(_sentence(one))
        if not made:
            context.log.info("Nothing new has landed: no execution was made.")
        return dg.MaterializeResult(metadata=_metadata(made))

    return enqueued


def _submit(
    coordination: CoordinationResource, pipeline: FilePipeline, config: EnqueueConfig, request_key: str
) -> Submission:
    return submission.submit(
        coordination.db,
        pipeline.name,
        lambda: landing.under(pipeline, config.paths),
        request_key=request_key,
        request={"paths": list(config.paths)},
        tenant=config.tenant,
        priority=config.priority,
        released=config.released,
    )


def _submit_landed(
    coordination: CoordinationResource, pipeline: FilePipeline, config: EnqueueConfig, *, again: bool
) -> Iterator[Submission]:
    """One execution per delivery; the delivery is the request. `again`, in a retried run, also answers known ones."""
    if pipeline.landing_place is None:
        raise dg.Failure(
            f"{pipeline.name} has no landing folder: name the files in the run's config, under paths.",
            allow_retries=False,
        )
    db = coordination.db
    found = list(landing.everything(pipeline, config.since))
    known = partitions.known_requests(db, pipeline.name, [f.request_key for f in found])
    for one in found:
        asked = one.request_key in known
        if (asked and not again) or not (asked or has_new(db, pipeline, one.files, released=config.released)):
            continue
        yield submit_found(db, pipeline, one, tenant=config.tenant, priority=config.priority, released=config.released)


def _sentence(one: Submission) -> str:
    left = ", ".join(f"{count} {why}" for why, count in one.left_out.items())
    return (
        f"Execution {one.execution}{'' if one.created else ' (asked before)'}: "
        f"{one.taken} files in {one.batches} batches{f'; left out: {left}' if left else ''}."
    )


def _metadata(made: Sequence[Submission]) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "executions": len(made),
        "files": sum(one.taken for one in made),
        "bytes": sum(one.bytes for one in made),
        "batches": sum(one.batches for one in made),
        "left_out": sum(sum(one.left_out.values()) for one in made),
    }
    if len(made) == 1:
        shown["execution"] = made[0].execution
        shown["report"] = report_link(made[0].execution)
    if made:
        rows = [
            dg.TableRecord(
                {
                    "execution": one.execution,
                    "state": one.state,
                    "files": one.taken,
                    "batches": one.batches,
                    "left_out": sum(one.left_out.values()),
                    "new": one.created,
                }
            )
            for one in made[:100]
        ]
        shown["submissions"] = dg.MetadataValue.table(records=rows)
    return shown
