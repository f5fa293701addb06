"""`pg-pipeline report`: one execution as one page that needs nothing else: no network, no scripts."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from pg_pipeline.cli.charts import histogram, throughput, timeline
from pg_pipeline.cli.database import opened
from pg_pipeline.cli.executions import Execution
from pg_pipeline.cli.output import Yes, agreed, cell, say, visible
from pg_pipeline.coordination import executions, partitions
from pg_pipeline.coordination.database import Database
from pg_pipeline.errors import ConfigurationError

FILES = 1000  # quarantined files that the page lists


def report(
    execution: Execution,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write it; report-EXECUTION.html by default.")
    ] = None,
    yes: Yes = False,
) -> None:
    """Write one self-contained HTML page: attempt timeline, throughput, durations, quarantine and audit."""
    with opened(reading=True) as db:
        page = render(gathered(db, execution))
    target = output or Path(f"report-{execution}.html")
    if target.exists():
        agreed(f"Replace {target}?", yes)
    try:
        written = target.with_name(f".{target.name}.{os.getpid()}")
        written.write_text(page, encoding="utf-8")
        os.replace(written, target)
    except OSError as error:
        raise ConfigurationError(f"{target} cannot be written ({error.strerror}): choose another --output.") from None
    say(f"Wrote {target}.")


def gathered(db: Database, execution: str) -> dict[str, Any]:
    """All that the page shows."""
    row = executions.get(db, execution)
    now = datetime.now(UTC)
    attempts = executions.attempts(db, execution)
    batches = partitions.batches(db, execution)
    return {
        "execution": row,
        "made_at": now,
        "attempts": attempts,
        "timeline": timeline(attempts, now),
        "throughput": throughput(batches),
        "histogram": histogram(
            [
                (a["ended_at"] - a["claimed_at"]).total_seconds()
                for a in attempts
                if a["kind"] == "batch" and a["outcome"] == "committed"
            ]
        ),
        "quarantined": executions.quarantined(db, execution, limit=FILES),
        "violations": executions.audit(db, execution),
        "reasons": executions.explain(db, execution),
    }


def render(facts: dict[str, Any]) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("pg_pipeline.cli", ""), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {"cell": cell, "visible": visible, "number": lambda n: f"{int(n):,}"}
    return environment.get_template("report.html").render(facts)
