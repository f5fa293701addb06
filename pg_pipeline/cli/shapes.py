"""What `--json` gives: field by field, in this order. docs/cli.md is made from it."""

EXECUTION = {
    "execution": "its key",
    "pipeline": "the pipeline's name",
    "generation": "1, and one more with each re-run",
    "status": "open, sealed, blocked, finished, cancelled, aborted or expired",
    "policy": "strict, partial or abort",
    "tenant": "whose it is; tenants take turns",
    "priority": "higher goes first",
    "expected": "batches",
    "settled": "batches that need nothing more",
    "remaining": "expected less settled: the barrier",
    "dead_letters": "letters of this generation that wait for a person",
    "files": "files taken",
    "bytes": "their size",
    "rows_in": "rows read by committed batches",
    "rows_out": "rows visible in the sink",
    "rows_rescued": "rows that did not fit the schema and were kept beside",
    "quarantined": "files set aside",
    "request_key": "the submission's key",
    "created_at": "time, as are all fields that end in _at (ISO 8601, UTC)",
    "sealed_at": "null while open",
    "ended_at": "null while it lives",
    "ended_reason": "why it ended, when not by its callback",
    "deadline": "when it ends by itself; null: never",
    "summary": "what the callback returned",
}
REASON = {"what": "the kind of thing", "detail": "in plain words", "next_step": "what to do; null: nothing"}
ATTEMPT = {
    "kind": "batch or callback",
    "generation": "of the execution",
    "batch": "its number; null for a callback",
    "number": "the how-manieth attempt at it",
    "worker": "the worker's id",
    "worker_name": "host and process; null when its row is gone",
    "run_id": "the Dagster run",
    "alone": "whether it ran alone, as a suspect of a crash",
    "claimed_at": "when the lease began",
    "ended_at": "null while it lives",
    "outcome": "committed, failed, released, lost or fenced; null while it lives",
    "error_class": "of a failed one",
    "error": "its text",
}
LEASE = {"execution": "its execution", **ATTEMPT}
VIOLATION = {
    "promise": "P1 to P5",
    "execution": "its key, or null",
    "subject": "which file, batch, task or barrier",
    "violation": "what is not as promised",
}
LETTER = {
    "id": "the letter's number",
    "queue": "the queue it was in",
    "pipeline": "the pipeline's name",
    "kind": "batch, callback or a kind of your own",
    "execution": "its key, or null",
    "generation": "of the execution",
    "batch": "its number, or null",
    "tenant": "whose it is",
    "attempts": "how often it was tried",
    "reason": "why it will not be tried again: error, attempts_exhausted, malformed, …",
    "error_class": "of the last error",
    "error": "its text",
    "died_at": "when",
}
LETTER_WHOLE = {
    **LETTER,
    "payload": "the task's own, if any",
    "resolution": "null while it waits; replayed, discarded, superseded or ended",
    "resolved_at": "when",
    "resolved_by": "by whom",
    "resolved_why": "the reason that was given",
    "files": "paths of the batch's files",
    "history": "its attempts, oldest first",
}
QUARANTINED = {
    "pipeline": "the pipeline's name",
    "execution": "its key",
    "batch": "number of its batch",
    "ordinal": "its place in the batch",
    "path": "where it is",
    "version": "as it was submitted",
    "size": "in bytes",
    "reason": "what is wrong with it, in a word",
    "detail": "in full",
    "seen_at": "when it was submitted",
}
QUEUE = {
    "queue": "its name",
    "paused_at": "null while it runs",
    "paused_by": "person or breaker",
    "pause_reason": "why",
    "ready": "tasks that could be claimed now",
    "delayed": "tasks that back off",
    "leased": "tasks being worked on",
    "suspects": "tasks whose last worker died: they run alone",
    "oldest_ready_at": "since when the oldest ready task waits",
    "dead_letters": "letters that wait for a person",
    "workers": "living workers",
}
WORKER = {
    "id": "never reused",
    "name": "host and process",
    "queue": "which it serves",
    "run_id": "the Dagster run",
    "pipelines": "which it takes; null: any",
    "kinds": "which it takes; null: any",
    "started_at": "when",
    "beat_at": "last heard of",
    "status": "alive, late, gone or stopped",
    "leases": "tasks it holds",
}
SUBMISSION = {
    "execution": "its key",
    "created": "false when this was asked before, or added to",
    "state": "open, sealed or finished",
    "taken": "files taken",
    "bytes": "their size",
    "batches": "batches made",
    "left_out": "files left out, counted by reason: known, released, repeated, too_old",
    "left_out_examples": "up to twenty of them: path, why, execution",
}
PREVIEW = {
    "pipeline": "the pipeline's name",
    "counts": "files by verdict: take, known, released, too_old, repeated",
    "files": "each file: path, version, verdict, execution that has it",
}
RERUN = {
    "execution": "its key",
    "outcome": "re-run, asked before, or refused",
    "generation": "the new one, or null",
    "batches": "how many run again, or null",
    "why": "of a refusal, or null",
}
STATUS = {
    "queues": "as in queue list",
    "executions": "the living ones, as in executions",
    "workers": "workers that have not stopped",
    "leases": "living attempts, with their execution",
    "dead_letters": "as in dlq list",
}
RECEIVED = {
    "submissions": "as in submit",
    "ignored": "how many events brought no file to submit, by what they were",
    "refused": "sentences, one for each message that can't be submitted",
}
REPLAYED = {"replayed": "numbers of the letters that are back", "refused": "those that are not: dead_letter, why"}
REAPED = {"leader": "false while another process leads: nothing was done then", "counts": "what each chore did"}

FINDING = {"name": "what was looked at", "found": "what was found", "fix": "how to mend it; empty where all is well"}

MIGRATED = {
    "current": "whether the schema is what this release needs, now",
    "applied": "what was applied just now",
    "pending": "what is missing",
}
SAMPLE = {"name": "the metric, without pg_pipeline_", "labels": "its labels", "value": "a number"}

# What each command that reads, or answers, gives: (an array of them, the shape).
BY_COMMAND = {
    "submit": (False, SUBMISSION),
    "submit --dry-run": (False, PREVIEW),
    "receive": (False, RECEIVED),
    "status": (False, STATUS),
    "executions": (True, EXECUTION),
    "explain": (True, REASON),
    "attempts": (True, ATTEMPT),
    "audit": (True, VIOLATION),
    "rerun": (True, RERUN),
    "dlq list": (True, LETTER),
    "dlq show": (False, LETTER_WHOLE),
    "dlq replay": (False, REPLAYED),
    "quarantine list": (True, QUARANTINED),
    "quarantine show": (False, QUARANTINED),
    "quarantine replay": (True, RERUN),
    "queue list": (True, QUEUE),
    "reap": (False, REAPED),
    "health": (True, FINDING),
    "metrics": (True, SAMPLE),
    "migrate": (False, MIGRATED),
    "doctor": (True, FINDING),
}
# Parts of these.
PARTS = {"receive: submissions": SUBMISSION, "status: workers": WORKER, "status: leases": LEASE}
