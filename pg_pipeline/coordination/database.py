"""How the protocol is asked: a small pool, one retry on a dead reused connection, typed errors.

No session state: no prepared statements, every name schema-qualified, so that a transaction pooler may sit between.
"""

from __future__ import annotations

import dataclasses
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import set_json_dumps

from pg_pipeline.coordination import failpoints
from pg_pipeline.coordination.connect import connect
from pg_pipeline.errors import (
    InvalidInput,
    LeaseLost,
    NotFound,
    PgPipelineError,
    SubmissionConflict,
    WorkerUnknown,
    WrongState,
)

Connection = psycopg.Connection[dict[str, Any]]
Value = TypeVar("Value")

_ERRORS: dict[str, type[PgPipelineError]] = {
    "PP001": LeaseLost,
    "PP002": SubmissionConflict,
    "PP003": NotFound,
    "PP004": InvalidInput,
    "PP005": WrongState,
    "PP006": WorkerUnknown,
}


_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")


def dumps(value: Any) -> str:
    """JSON that Postgres takes: no NaN, no NUL and no half characters, whatever an error or a file name holds."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, default=str)
    except (ValueError, RecursionError) as error:  # NaN, infinity, a value inside itself
        raise InvalidInput(f"This is not JSON ({error}): use numbers, text, lists and objects.") from None
    return _NUL.sub(r"\1\\ufffd", clean(text))


def clean(text: str) -> str:
    """Text that Postgres takes."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "\ufffd")


set_json_dumps(dumps)


def made(kind: type[Value], row: Mapping[str, Any]) -> Value:
    """An object of a row. Columns that it does not know are left alone: a newer schema may have more."""
    return kind(**{field.name: row[field.name] for field in dataclasses.fields(kind) if field.name in row})  # type: ignore[arg-type]


def typed(error: psycopg.Error) -> Exception:
    """Our own error for what our functions raise or our constraints refuse; anything else as it is."""
    state = error.sqlstate or ""
    if state in _ERRORS:
        message = error.diag.message_primary or str(error)
        hint = f": {error.diag.message_hint}" if error.diag.message_hint else ""
        return _ERRORS[state](f"{message}{hint}.")
    if state.startswith("22") or state == "23514":  # data exceptions, check constraints
        return InvalidInput(f"Postgres refuses the value: {error.diag.message_primary}.")
    if not state and isinstance(error, psycopg.DataError):  # psycopg itself: a NUL, a date before Christ
        return InvalidInput(f"Postgres does not take the value: {error}.")
    return error


class Database:
    """Connections to the coordination database, shared by the threads of a process."""

    def __init__(self, dsn: str, *, timeout: int = 10, idle: int = 4) -> None:
        self.dsn = dsn
        self._timeout = timeout
        self._idle_limit = idle
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        self._closed = False

    def connect(self) -> Connection:
        """A fresh autocommit connection of the caller's own."""
        conn: Connection = connect(
            self.dsn, timeout=self._timeout, autocommit=True, row_factory=dict_row, prepare_threshold=None
        )
        conn.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        return conn

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """One call. Postgres commits it by itself: a process that dies or stops here leaves no lock behind."""
        failpoints.around(statement, "before_call")
        rows = self._once_more(lambda conn: conn.execute(statement.encode(), parameters).fetchall())
        failpoints.around(statement, "after_commit")
        return rows

    def value(self, statement: str, parameters: Sequence[Any] = ()) -> Any:
        rows = self.rows(statement, parameters)
        return next(iter(rows[0].values())) if rows else None

    def write(self, work: Callable[[Connection], Value]) -> Value:
        """Do `work` in one transaction."""

        def whole(conn: Connection) -> Value:
            with conn.transaction():
                return work(conn)

        return self._once_more(whole)

    def _once_more(self, work: Callable[[Connection], Value]) -> Value:
        """Every write of the protocol is idempotent, so one that met a dead *reused* connection is asked again, once,
        on a fresh one; a fresh connection's failure and any other error is raised."""
        with self._borrow() as (conn, reused):
            try:
                return work(conn)
            except psycopg.Error as error:
                if not (reused and conn.broken):
                    raise typed(error) from error
            except UnicodeEncodeError as error:
                raise InvalidInput(f"{error.object!r} is not valid text in UTF-8: rename it.") from None
        with self._borrow(fresh=True) as (conn, _):
            try:
                return work(conn)
            except psycopg.Error as error:
                raise typed(error) from error

    @contextmanager
    def _borrow(self, *, fresh: bool = False) -> Iterator[tuple[Connection, bool]]:
        with self._lock:
            conn = self._idle.pop() if self._idle and not fresh else None
        reused = conn is not None
        if conn is None:
            conn = self.connect()
        try:
            yield conn, reused
        finally:
            with self._lock:
                keep = not (self._closed or conn.closed) and len(self._idle) < self._idle_limit
                if keep:
                    self._idle.append(conn)
            if not keep:
                conn.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for conn in idle:
            conn.close()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
