"""Submit: files in, one execution out, asked once or twice."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from pg_pipeline.coordination import failpoints
from pg_pipeline.coordination.database import Connection, Database, dumps
from pg_pipeline.coordination.types import JSON, FileVersion

CHUNK = 10_000
Files = Iterable[FileVersion] | Callable[[], Iterable[FileVersion]]


@dataclass(frozen=True, slots=True)
class Submission:
    """The lasting answer to a submit."""

    execution: str
    created: bool
    state: str
    taken: int
    bytes: int
    batches: int
    left_out: Mapping[str, int] = field(default_factory=dict)
    left_out_examples: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def of(cls, answer: Mapping[str, Any], *, created: bool) -> Submission:
        return cls(
            execution=answer["execution"],
            created=created,
            state=answer["state"],
            taken=answer.get("taken", 0),
            bytes=answer.get("bytes", 0),
            batches=answer.get("batches", 0),
            left_out=answer.get("left_out", {}),
            left_out_examples=answer.get("left_out_examples", ()),
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a submit would do with a file."""

    path: str
    version: str
    verdict: Literal["take", "known", "released", "too_old"]
    execution: str | None


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of one entry of a `send`."""

    key: str | None
    outcome: Literal["created", "duplicate", "conflict", "rejected"]
    task_id: int | None
    reason: str | None


def register_pipeline(db: Database, name: str, **settings: JSON) -> None:
    db.rows("select pipeline.register_pipeline(%s, %s)", (name, Jsonb(settings)))


def configure_queue(db: Database, name: str, **settings: JSON) -> None:
    db.rows("select pipeline.configure_queue(%s, %s)", (name, Jsonb(settings)))


def fingerprint(request: JSON) -> bytes:
    """Of the request as it was asked, not of the files that were found."""
    return hashlib.sha256(dumps(request).encode()).digest()


def find(
    db: Database,
    pipeline: str,
    request_key: str,
    request: JSON,
    *,
    tenant: str = "",
    priority: int = 0,
    released: bool = False,
) -> Submission | None:
    """The answer that this request got before, if it was asked before."""
    mark = fingerprint([request, tenant, priority, released])
    answer = db.value("select pipeline.find_submission(%s, %s, %s)", (pipeline, request_key, mark))
    return Submission.of(answer, created=False) if answer else None


def submit(
    db: Database,
    pipeline: str,
    files: Files,
    *,
    request_key: str,
    request: JSON = None,
    tenant: str = "",
    priority: int = 0,
    released: bool = False,
    seal: bool = True,
) -> Submission:
    """Execution, files, batches, barrier and tasks, in one transaction. `files` may be a function that lists them: it
    is called only when the request is new. `request` is what was asked for, such as a folder; files by default."""
    if request is None:
        if callable(files):
            raise TypeError("a submit whose files are listed later needs `request`: what was asked for")
        files = list(files)
        request = [[file.path, file.version, file.size] for file in files]
    found = find(db, pipeline, request_key, request, tenant=tenant, priority=priority, released=released)
    if found:
        return found
    mark = fingerprint([request, tenant, priority, released])
    files = _repeatable(files)

    def work(conn: Connection) -> Submission:
        opened = _call(
            conn,
            "select pipeline.open_execution(%s, %s, %s, %s, %s::smallint)",
            (pipeline, request_key, mark, tenant, priority),
        )
        if not opened["created"]:
            return Submission.of(opened, created=False)
        _add(conn, pipeline, opened["execution"], files, released)
        failpoints.hit("submit.after_files")
        statement = "select pipeline.seal(%s)" if seal else "select pipeline.submission(%s)"
        answer = _call(conn, statement, (opened["execution"],))
        failpoints.hit("submit.before_commit")
        return Submission.of(answer, created=True)

    submission = db.write(work)
    failpoints.hit("submit.after_commit")
    return submission


def add(db: Database, pipeline: str, execution: str, files: Files, *, released: bool = False) -> Submission:
    """More files for an open execution."""
    files = _repeatable(files)

    def work(conn: Connection) -> Submission:
        _add(conn, pipeline, execution, files, released)
        answer = _call(conn, "select pipeline.submission(%s)", (execution,))
        failpoints.hit("add.before_commit")
        return Submission.of(answer, created=False)

    submission = db.write(work)
    failpoints.hit("add.after_commit")
    return submission


def seal(db: Database, execution: str) -> Submission:
    return Submission.of(db.value("select pipeline.seal(%s)", (execution,)), created=False)


def preview(db: Database, pipeline: str, files: Files, *, released: bool = False) -> Iterator[Verdict]:
    """What a submit would take and leave out; changes nothing."""
    for chunk in _chunks(files):
        for row in db.rows(
            "select * from pipeline.preview_files(%b, %b, %b, %b::timestamptz[], %b)",
            (pipeline, [f.path for f in chunk], [f.version for f in chunk], [f.modified_at for f in chunk], released),
        ):
            yield Verdict(row["path"], row["version"], row["verdict"], row["owner"])


def send(db: Database | psycopg.Connection[Any], queue: str, entries: Sequence[Mapping[str, JSON]]) -> list[Sent]:
    """Idempotent enqueue: an outcome per entry, in order. Given a connection, works in the caller's transaction."""
    call = ("select * from pipeline.send(%s, %s)", (queue, Jsonb(list(entries))))
    rows = db.rows(*call) if isinstance(db, Database) else db.cursor(row_factory=dict_row).execute(*call).fetchall()
    return [Sent(row["key"], row["outcome"], row["task_id"], row["reason"]) for row in rows]


def _add(conn: Connection, pipeline: str, execution: str, files: Files, released: bool) -> None:
    chunks = _chunks(files)
    first = next(chunks, None)
    second = next(chunks, None)
    if second is not None:
        conn.execute("select pipeline.lock_ledger(%s)", (pipeline,))
    for chunk in itertools.chain((c for c in (first, second) if c is not None), chunks):
        conn.execute(
            "select pipeline.add_files(%b, %b, %b, %b::bigint[], %b::timestamptz[], %b)",
            (
                execution,
                [f.path for f in chunk],
                [f.version for f in chunk],
                [f.size for f in chunk],
                [f.modified_at for f in chunk],
                released,
            ),
        )


def _repeatable(files: Files) -> Files:
    """A submit that met a dead connection is asked again: what can be read only once would be half gone by then."""
    return files if callable(files) or isinstance(files, Sequence) else list(files)


def _chunks(files: Files) -> Iterator[list[FileVersion]]:
    iterator = iter(files() if callable(files) else files)
    while chunk := list(itertools.islice(iterator, CHUNK)):
        yield chunk


def _call(conn: Connection, statement: str, parameters: Sequence[Any]) -> dict[str, Any]:
    row = conn.execute(statement.encode(), parameters).fetchone()
    assert row is not None
    answer: dict[str, Any] = next(iter(row.values()))
    return answer
