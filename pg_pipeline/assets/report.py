"""What Dagster is told, from the ledger: one code path for a worker that commits and for a sensor that comes later."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dagster as dg

from pg_pipeline.assets.events import Context, log_events
from pg_pipeline.assets.keys import Registrar
from pg_pipeline.coordination import executions, partitions
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.partitions import BatchReport, ExecutionReport
from pg_pipeline.pipelines.pipeline import FilePipeline
from pg_pipeline.settings import get_settings
from pg_pipeline.sinks.parquet import ParquetDataset
from pg_pipeline.sinks.postgres import PostgresTable

QUARANTINE_ROWS = 50
TOKEN = "token"  # noqa: S105 - the attempt's name in the metadata, by which a report is known again


def batches_asset(pipeline: str) -> dg.AssetKey:
    return dg.AssetKey([pipeline, "batches"])


def summary_asset(pipeline: str) -> dg.AssetKey:
    return dg.AssetKey([pipeline, "summary"])


class Reporter:
    """Tells Dagster of committed batches and finished executions, and notes in the ledger that it did."""

    def __init__(
        self,
        pipelines: Mapping[str, FilePipeline],
        db: Database,
        instance: dg.DagsterInstance,
        write: Callable[[Sequence[dg.AssetMaterialization]], None],
    ) -> None:
        self._pipelines = pipelines
        self._db = db
        self._instance = instance
        self._write = write
        self.keys = Registrar(instance, db)

    @classmethod
    def of_run(cls, context: Context, pipelines: Mapping[str, FilePipeline], db: Database) -> Reporter:
        return cls(pipelines, db, context.instance, lambda events: log_events(context, events))

    def batches(self, reports: Sequence[BatchReport]) -> list[dg.AssetMaterialization]:
        """Report these committed batches, then mark them; a crash in between is found by the token."""
        if not reports:
            return []
        events = [self.materialization(report) for report in reports]
        self._write(events)
        partitions.mark_reported(self._db, reports)
        return events

    def skipped(self, reports: Sequence[BatchReport]) -> list[dg.AssetMaterialization]:
        """The committed result as it stands, for a run that was asked for it again."""
        events = []
        for report in reports:
            by = f"run {report.run_id}" if report.run_id else "another worker"
            why = f"skipped: already committed by {by}"
            events.append(self.materialization(report).with_metadata({**self.metadata(report), "skipped": why}))
        if events:
            self._write(events)
            partitions.mark_reported(self._db, reports)
        return events

    def skipped_summary(self, report: ExecutionReport) -> dg.AssetMaterialization:
        event = self.summary_materialization(report)
        event = event.with_metadata({**event.metadata, "skipped": "skipped: its callback has run"})
        self._write([event])
        partitions.mark_summary_reported(self._db, report)
        return event

    def late(self, reports: Sequence[BatchReport]) -> int:
        """Report what a dead process committed and may have told already: each once. Returns how many were told."""
        untold = [report for report in reports if not self._was_told(report)]
        told = [report for report in reports if report not in untold]
        if told:
            partitions.mark_reported(self._db, told)
        self.batches(untold)
        return len(untold)

    def summary(self, execution: str) -> dg.AssetMaterialization:
        report = partitions.execution(self._db, execution)
        event = self.summary_materialization(report)
        latest = self._latest(summary_asset(report.pipeline), event.partition)
        if latest is None or _text(latest, "generation") != str(report.generation):
            self._write([event])
        partitions.mark_summary_reported(self._db, report)
        return event

    def materialization(self, report: BatchReport) -> dg.AssetMaterialization:
        key = self.keys.batch(report.pipeline, report.execution, report.generation, report.number)
        return dg.AssetMaterialization(
            batches_asset(report.pipeline),
            partition=key,
            metadata=self.metadata(report),
            tags={"pg_pipeline/execution": report.execution},
        )

    def metadata(self, report: BatchReport) -> dict[str, Any]:
        """What people look at; numbers plot over time."""
        rows_in, rows_out = report.rows_in or 0, report.rows_out or 0
        seconds = report.seconds or 0.0
        shown: dict[str, Any] = {
            "files": report.files,
            "bytes": report.bytes,
            "rows_in": rows_in,
            "rows_out": rows_out,
            "rows_filtered": max(rows_in - rows_out, 0),
            "rows_rescued": report.rows_rescued or 0,
            "dagster/row_count": rows_out,
            "quarantined": report.quarantined,
            "attempts": report.attempts or 1,
            "duration_seconds": round(seconds, 3),
            "rows_per_second": round(rows_out / seconds, 1) if seconds else 0.0,
            "generation": report.generation,
            "execution": report.execution,
            "report": report_link(report.execution),
            TOKEN: str(report.token),
            **relation(self._pipelines[report.pipeline]),
        }
        if report.worker:
            shown["worker"] = report.worker
        if report.run_id:
            shown["committed_by_run"] = dg.MetadataValue.dagster_run(report.run_id)
        if report.metadata.get("columns"):
            columns = [dg.TableColumn(name, kind) for name, kind in report.metadata["columns"]]
            shown["dagster/column_schema"] = dg.TableSchema(columns=columns)
        if report.quarantined:
            shown["quarantined_files"] = self._quarantined(report)
        return shown

    def summary_materialization(self, report: ExecutionReport) -> dg.AssetMaterialization:
        key = self.keys.execution(report.pipeline, report.execution, report.generation)
        shown: dict[str, Any] = {
            "execution": report.execution,
            "generation": str(report.generation),
            "status": report.status,
            "batches": report.expected,
            "files": report.files,
            "rows_in": report.rows_in,
            "rows_out": report.rows_out,
            "quarantined": report.quarantined,
            "report": report_link(report.execution),
        }
        if report.ended_at is not None:
            shown["duration_seconds"] = round((report.ended_at - report.created_at).total_seconds(), 3)
        summary = report.summary
        if isinstance(summary, dict) and isinstance(summary.get("rows"), list) and summary["rows"]:
            shown["summary"] = _table(summary["rows"], summary.get("columns"))
        elif summary is not None:
            shown["summary"] = dg.MetadataValue.json(summary)
        return dg.AssetMaterialization(summary_asset(report.pipeline), partition=key, metadata=shown)

    def _quarantined(self, report: BatchReport) -> dg.TableMetadataValue:
        files = executions.quarantined(self._db, report.execution, limit=10_000)
        mine = [f for f in files if f["batch"] == report.number][:QUARANTINE_ROWS]
        return _table([{"path": f["path"], "reason": f["reason"], "detail": f["detail"] or ""} for f in mine])

    def _was_told(self, report: BatchReport) -> bool:
        key = self.keys.batch(report.pipeline, report.execution, report.generation, report.number)
        latest = self._latest(batches_asset(report.pipeline), key)
        return latest is not None and _text(latest, TOKEN) == str(report.token)

    def _latest(self, asset: dg.AssetKey, partition: str | None) -> dg.AssetMaterialization | None:
        assert partition is not None
        records = self._instance.fetch_materializations(
            dg.AssetRecordsFilter(asset, asset_partitions=[partition]), limit=1
        ).records
        return records[0].asset_materialization if records else None


def report_link(execution: str) -> dg.MetadataValue[Any]:
    """The execution's report page, where pages are served; the command that writes it elsewhere."""
    pages = get_settings().pages_url
    if pages is None:
        return dg.MetadataValue.md(f"`pg-pipeline report {execution}`")
    return dg.MetadataValue.url(f"{pages.rstrip('/')}/report/{execution}")


def kinds(pipeline: FilePipeline) -> set[str]:
    """What Dagster draws beside the asset."""
    known = isinstance(pipeline.sink, PostgresTable | ParquetDataset)
    return {"spark", pipeline.sink.name} if known else {"spark"}


def relation(pipeline: FilePipeline) -> dict[str, Any]:
    """Where the rows are, in the words of the sink."""
    if isinstance(pipeline.sink, PostgresTable):
        return {"dagster/relation_identifier": pipeline.sink.table}
    if isinstance(pipeline.sink, ParquetDataset):
        return {"dagster/uri": pipeline.sink.path}
    return {}


def _text(event: dg.AssetMaterialization, name: str) -> str | None:
    value = event.metadata.get(name)
    return None if value is None else str(value.value)


def _table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> dg.TableMetadataValue:
    names = columns or list(rows[0])
    records = [dg.TableRecord({name: _cell(row.get(name)) for name in names}) for row in rows]
    return dg.MetadataValue.table(records=records, schema=dg.TableSchema([dg.TableColumn(name) for name in names]))


def _cell(value: Any) -> str | int | float | bool:
    return value if isinstance(value, str | int | float | bool) else "" if value is None else str(value)
