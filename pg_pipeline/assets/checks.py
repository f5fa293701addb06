"""Asset checks of `<pipeline>/batches`, over its newest executions. Workers report them too, after each callback."""

from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

import dagster as dg

from pg_pipeline.assets.report import batches_asset
from pg_pipeline.coordination import dead_letters, executions, partitions
from pg_pipeline.coordination.database import Database
from pg_pipeline.pipelines.pipeline import FilePipeline
from pg_pipeline.resources import CoordinationResource
from pg_pipeline.sinks.reading import column_names, count

NEWEST = 10
Check = Callable[[FilePipeline, Database, Sequence[str]], dg.AssetCheckResult]


def checks_of(pipeline: FilePipeline) -> dg.AssetChecksDefinition:
    key = batches_asset(pipeline.name)

    @dg.multi_asset_check(
        name=f"{pipeline.name}_checks",
        specs=[dg.AssetCheckSpec(name, asset=key, description=check.__doc__) for name, check in CHECKS.items()],
        can_subset=True,  # without it the UI lets nobody execute them
    )
    def checks(
        context: dg.AssetCheckExecutionContext, coordination: CoordinationResource
    ) -> Iterator[dg.AssetCheckResult]:
        wanted = {check.name for check in context.selected_asset_check_keys}
        yield from evaluate(pipeline, coordination.db, wanted)

    return checks


def evaluate(
    pipeline: FilePipeline, db: Database, wanted: Container[str] | None = None
) -> Iterator[dg.AssetCheckResult]:
    newest = [found["execution"] for found in executions.listed(db, pipeline=pipeline.name, limit=NEWEST)]
    for name, check in CHECKS.items():
        if wanted is not None and name not in wanted:
            continue
        result = check(pipeline, db, newest)
        yield dg.AssetCheckResult(
            check_name=name,
            asset_key=batches_asset(pipeline.name),
            passed=result.passed,
            severity=result.severity,
            description=result.description,
            metadata=result.metadata,
        )


def report(instance: dg.DagsterInstance, pipeline: FilePipeline, db: Database) -> None:
    """What the checks find, without a run of their own."""
    for result in evaluate(pipeline, db):
        assert result.asset_key is not None
        assert result.check_name is not None
        instance.report_runless_asset_event(
            dg.AssetCheckEvaluation(
                asset_key=result.asset_key,
                check_name=result.check_name,
                passed=result.passed,
                severity=result.severity,
                description=result.description,
                metadata=result.metadata,
            )
        )


def _result(problems: Sequence[Any], good: str, *, warn: bool = False, **metadata: Any) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        passed=not problems,
        severity=dg.AssetCheckSeverity.WARN if warn else dg.AssetCheckSeverity.ERROR,
        description="; ".join(str(problem) for problem in problems[:5]) or good,
        metadata={"problems": len(problems), **metadata},
    )


def _audit(_pipeline: FilePipeline, db: Database, newest: Sequence[str]) -> dg.AssetCheckResult:
    """The ledger keeps its promises: nothing lost, nothing doubled, the barrier exact."""
    violations = [violation for key in newest for violation in executions.audit(db, key)]
    said = [f"{v.promise} {v.execution} {v.subject}: {v.violation}" for v in violations]
    return _result(said, "The audit is clean.", executions=len(newest))


def _dead(pipeline: FilePipeline, db: Database, _newest: Sequence[str]) -> dg.AssetCheckResult:
    """No batch and no callback waits as a dead letter."""
    letters = dead_letters.listed(db, pipeline=pipeline.name)
    said = [
        f"dead letter {d['id']} ({d['execution']}, {d['reason']}): pg-pipeline dlq replay {d['id']}" for d in letters
    ]
    return _result(said, "No dead letters.")


def _quarantine(pipeline: FilePipeline, db: Database, newest: Sequence[str]) -> dg.AssetCheckResult:
    """The share of quarantined files is within the pipeline's tolerance."""
    said, worst = [], 0.0
    for key in newest:
        found = partitions.execution(db, key)
        share = found.quarantined / found.files if found.files else 0.0
        worst = max(worst, share)
        if share > pipeline.tolerance:
            said.append(f"{key}: {found.quarantined} of {found.files} files ({share:.1%})")
    return _result(said, f"At most {worst:.1%} of an execution's files.", warn=True, worst_share=worst)


def _rows(pipeline: FilePipeline, db: Database, newest: Sequence[str]) -> dg.AssetCheckResult:
    """Rows add up: the files' to the batch's, in = out + filtered, and the sink shows what was committed."""
    said = []
    for key in newest:
        said += [f"{key} batch {row['number']}: files and batch differ" for row in partitions.unbalanced(db, key)]
        found = partitions.execution(db, key)
        shown = count(pipeline.sink, db.dsn, key)
        if shown is not None and shown != found.rows_out:
            said.append(f"{key}: {found.rows_out} rows committed, {shown} in the sink")
    return _result(said, "Every row is accounted for.", executions=len(newest))


def _schema(pipeline: FilePipeline, db: Database, newest: Sequence[str]) -> dg.AssetCheckResult:
    """Batches have the columns of their neighbours, and the target has them."""
    seen: dict[tuple[tuple[str, str], ...], str] = {}
    for key in newest:
        for report in partitions.batches(db, key):
            columns = report.metadata.get("columns")
            if report.state == "committed" and columns:
                seen.setdefault(tuple((name, kind) for name, kind in columns), f"{key} batch {report.number}")
    said = []
    if len(seen) > 1 and not getattr(pipeline.sink, "evolve", False):
        said.append(f"{len(seen)} different sets of columns, such as in {' and '.join(list(seen.values())[:2])}")
    shown = column_names(pipeline.sink, db.dsn) if seen else None
    if shown is not None:
        lacking = sorted({name for columns in seen for name, _ in columns} - set(shown))
        said += [f"the target lacks {', '.join(lacking)}"] if lacking else []
    return _result(said, "The output is as declared.")


CHECKS: dict[str, Check] = {
    "audit_clean": _audit,
    "no_dead_letters": _dead,
    "quarantine_within_tolerance": _quarantine,
    "rows_add_up": _rows,
    "schema_as_declared": _schema,
}
