"""Who may do what, as it is meant; writes the table of docs/security.md.

python -m pg_pipeline_tests.security.matrix

`sql/grants.sql` is what is done; this is what is wanted, said a second time. A test holds the database against it.
"""

from __future__ import annotations

import re

from pg_pipeline_tests.helpers import PROJECT

PAGE = PROJECT / "docs" / "security.md"
BEGIN, END = "<!-- roles: generated -->", "<!-- end of roles -->"
ROLES = ("pipeline_reader", "pipeline_submitter", "pipeline_worker", "pipeline_operator")

# Role to the functions that are doors to it, beside those of the reader, which all of them are.
DOORS: dict[str, set[str]] = {
    "pipeline_reader": {
        *("audit", "explain", "file_key", "executions", "dead_letters", "show_dead_letter", "quarantined_files"),
        *("metrics", "worker_health", "health_limit", "parquet_files", "unreported_batches", "unreported_summaries"),
        *("batch_places", "callback_holder", "depth", "waiting_callbacks", "run_lives", "known_requests"),
        *("ended_before", "dead_letter_news", "quarantine_news", "unbalanced_batches"),
    },
    "pipeline_submitter": {
        *("send", "find_submission", "open_execution", "preview_files", "lock_ledger", "add_files", "seal", "submit"),
        "submission",
    },
    "pipeline_worker": {
        *("register_worker", "beat", "stop_worker", "claim", "lock_leases", "finish", "finish_and_claim", "fail"),
        *("release", "note_output", "batch_files", "pin_schema", "claim_outbox", "settle_outbox", "reap"),
        *("expire_executions", "orphaned_outputs", "forget_output", "mark_reported", "mark_summary_reported"),
        *("publish_parquet", "parquet_columns", "compact"),
    },
    "pipeline_operator": {
        *("configure_queue", "register_pipeline", "pause", "resume", "cancel", "rerun", "replay", "replay_many"),
        *("discard", "replay_outbox", "reap", "expire_executions", "compact", "replace_file", "prune_ledger"),
        "unpin_schema",
    },
}
# What not even those who may look may see: whoever has a living lease's token can finish it.
HIDDEN = {
    "task": {"token", "claim_id"},
    "outbox": {"token"},
    "attempt_output": {"token", "location"},
}


def may_call(role: str, function: str) -> bool:
    return function in DOORS[role] | DOORS["pipeline_reader"]


def table() -> str:
    """A row for every door, a column for every role."""
    lines = [
        BEGIN,
        "",
        "| | " + " | ".join(f"`{role}`" for role in ROLES) + " |",
        "|---|" + "---|" * len(ROLES),
        "| read the tables, but for " + ", ".join(f"`{t}.{c}`" for t in sorted(HIDDEN) for c in sorted(HIDDEN[t])) +
        " | yes | yes | yes | yes |",
        "| write a table | no | no | no | no |",
        "| make tables in `pipeline_staging` | no | no | yes | no |",
    ]  # fmt: skip
    for function in sorted(set.union(*DOORS.values())):
        cells = " | ".join("yes" if may_call(role, function) else "no" for role in ROLES)
        lines.append(f"| `{function}` | {cells} |")
    return "\n".join([*lines, "", END])


def page(text: str) -> str:
    return re.sub(f"{BEGIN}.*{END}", lambda _: table(), text, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
