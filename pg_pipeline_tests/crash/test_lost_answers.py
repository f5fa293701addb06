"""The connection is cut around a commit; asked again, every operation returns its first answer (P7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from pg_pipeline.coordination import dead_letters, executions, submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.worker import Worker
from pg_pipeline.errors import NotFound
from pg_pipeline_tests.coordination.conftest import files
from pg_pipeline_tests.crash import actor
from pg_pipeline_tests.crash.proxy import Proxy, When
from pg_pipeline_tests.crash.recovery import go_on, whole


@dataclass
class World:
    """`direct` prepares, `far` asks through the proxy; the worker's heartbeat goes another way."""

    direct: Database
    far: Database
    worker: Worker
    claim_id: UUID
    request_id: UUID
    given: Any = None

    def lease(self) -> Any:
        submission.submit(self.direct, "orders", files(2), request_key="k")
        (lease,) = self.worker.claim()
        return lease

    def job(self) -> Any:
        submission.send(self.direct, "default", [{"key": key, "kind": "job"} for key in "ab"])
        (lease,) = self.worker.claim()
        return lease

    def letter(self) -> int:
        letter = self.worker.fail(self.lease(), "boom", retryable=False).dead_letter
        assert letter is not None
        return letter

    def finished(self) -> str:
        execution = submission.submit(self.direct, "orders", files(2), request_key="k").execution
        actor.drain(self.direct)
        return execution


@dataclass(frozen=True)
class Operation:
    """`reads` is how many calls it makes before the one that matters."""

    prepare: Callable[[World], Any]
    ask: Callable[[World], Any]
    reads: int = 0


def submit(world: World) -> Any:
    return submission.submit(world.far, "orders", files(4), request_key="k").execution


OPERATIONS = {
    "submit": Operation(lambda _w: None, submit, reads=1),
    "send": Operation(
        lambda _w: None,
        lambda w: [sent.task_id for sent in submission.send(w.far, "default", [{"key": "a", "kind": "job"}])],
    ),
    "claim": Operation(
        lambda w: submission.submit(w.direct, "orders", files(4), request_key="k"),
        lambda w: [lease.token for lease in w.worker.claim(1, claim_id=w.claim_id)],
    ),
    "note_output": Operation(World.lease, lambda w: w.worker.note_output(w.given, "sink", {})),
    "finish": Operation(World.lease, lambda w: w.worker.finish(w.given, {"rows_in": 2}, insert(w.given)).result),
    "finish_and_claim": Operation(
        World.job, lambda w: [x.token for x in w.worker.finish_and_claim(w.given, {}, claim_id=w.claim_id)[1]]
    ),
    "fail": Operation(World.lease, lambda w: w.worker.fail(w.given, "boom", retryable=False)),
    "fail, to be tried again": Operation(World.lease, lambda w: w.worker.fail(w.given, "boom")),
    "release": Operation(World.lease, lambda w: w.worker.release(w.given)),
    "replay": Operation(World.letter, lambda w: dead_letters.replay(w.far, w.given, request_id=w.request_id)),
    "discard": Operation(World.letter, lambda w: dead_letters.discard(w.far, w.given, "x", request_id=w.request_id)),
    "cancel": Operation(
        # Nobody holds a batch of it: a holder's heartbeat would hand it back at a moment of its own.
        lambda w: submission.submit(w.direct, "orders", files(2), request_key="k").execution,
        lambda w: executions.cancel(w.far, w.given, "x", request_id=w.request_id),
    ),
    "rerun": Operation(World.finished, lambda w: executions.rerun(w.far, w.given, request_id=w.request_id)),
    "seal": Operation(
        lambda w: submission.submit(w.direct, "orders", files(4), request_key="k", seal=False).execution,
        lambda w: submission.seal(w.far, w.given),
    ),
    "stop": Operation(
        World.lease, lambda w: w.far.value("select pipeline.stop_worker(%s) is not null", (w.worker.id,))
    ),
}


def insert(lease: Any) -> Callable[[Any], None]:
    """Two rows that a second publish would double."""

    def publish(conn: Any) -> None:
        for file in files(2):
            conn.execute("insert into public.sink values (%s, 1, %s, %s)", (lease.execution, lease.batch, file.path))

    return publish


@pytest.fixture
def proxy(brisk: Database) -> Iterator[Proxy]:
    one = Proxy(brisk.dsn)
    yield one
    one.close()


@pytest.fixture
def world(brisk: Database, proxy: Proxy) -> Iterator[World]:
    submission.configure_queue(brisk, "default", lease="1 min", grace="1 min")
    # No beat between a lost answer and the second asking: it would rightly hand back what a claim was given.
    with Database(proxy.dsn, idle=0) as far, Worker(brisk, heartbeat_interval=30) as worker:
        worker._db = far  # only what it asks is cut, not its heart
        yield World(brisk, far, worker, uuid4(), uuid4())


@pytest.mark.parametrize("when", ["before", pytest.param("during", marks=pytest.mark.long), "after"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_p7_asked_again_after_a_lost_answer_the_first_answer_comes_back(
    world: World, proxy: Proxy, name: str, when: When
) -> None:
    """On a fresh connection the error is raised, and the caller asks again."""
    operation = OPERATIONS[name]
    world.given = operation.prepare(world)
    nothing = everything(world.direct)
    proxy.cut(when, skip=operation.reads)
    with pytest.raises(psycopg.OperationalError):
        operation.ask(world)
    assert proxy.cuts == 1
    first = everything(world.direct)
    if when != "during":
        assert (first == nothing) == (when == "before")
    again = operation.ask(world)
    if when == "after":
        assert everything(world.direct) == first
    second = everything(world.direct)
    assert operation.ask(world) == again, "asking a third time changes nothing either"
    assert everything(world.direct) == second
    settle(world, name)


@pytest.mark.parametrize("name", OPERATIONS)
def test_lesson_c2_a_reused_connection_that_died_is_asked_again_by_itself(
    world: World, proxy: Proxy, name: str
) -> None:
    operation = OPERATIONS[name]
    world.given = operation.prepare(world)
    warm(world)
    proxy.cut("after", skip=operation.reads)
    answer = operation.ask(world)
    assert proxy.cuts == 1
    done = everything(world.direct)
    assert operation.ask(world) == answer
    assert everything(world.direct) == done
    settle(world, name)


def warm(world: World) -> None:
    """From now on there is a connection to reuse."""
    world.far._idle_limit = 1
    world.far.value("select 1 as warm")


def everything(db: Database) -> dict[str, list[str]]:
    """All that the tables say, but for who was last heard of."""
    tables = ("execution", "file", "batch", "task", "attempt", "attempt_output", "receipt", "dead_letter", "outbox")
    return {
        table: [row["row"] for row in db.rows(f"select t::text as row from pipeline.{table} t order by 1")]
        for table in (*tables, "action")
    }


def settle(world: World, name: str) -> None:
    """Whatever was asked twice happened once, and the rest goes on."""
    for lease in world.worker.held:
        world.worker.release(lease)
    world.worker.stop()
    dead_letters.replay_many(world.direct)
    go_on(world.direct)
    whole(world.direct, state="cancelled" if name == "cancel" else "finished")


def test_lesson_c2_it_is_asked_again_once_and_a_second_failure_is_raised(world: World, proxy: Proxy) -> None:
    warm(world)
    proxy.cut("after", skip=1)
    connect = world.far.connect

    def cut_again() -> Any:
        conn = connect()
        proxy.cut("after")
        return conn

    world.far.connect = cut_again  # type: ignore[method-assign]
    with pytest.raises(psycopg.OperationalError):
        submit(world)
    world.far.connect = connect  # type: ignore[method-assign]
    assert proxy.cuts == 2
    assert submission.submit(world.direct, "orders", files(4), request_key="k").taken == 4


def test_lesson_c2_inside_a_callers_transaction_nothing_is_asked_again(world: World, proxy: Proxy) -> None:
    """An injected connection is the caller's: only the caller can say whether its transaction still makes sense."""
    conn = world.far.connect()
    conn.execute("begin")
    assert submission.send(conn, "default", [{"key": "a", "kind": "job"}])[0].outcome == "created"
    proxy.cut("before")
    with pytest.raises(psycopg.OperationalError):
        conn.execute("commit")
    assert proxy.cuts == 1
    assert world.direct.value("select count(*) from pipeline.task") == 0


def test_a_replay_of_many_says_what_is_left_when_it_is_asked_again(world: World, proxy: Proxy) -> None:
    """It takes no request id: asked again it finds nothing to replay, and replays nothing twice."""
    letter = world.letter()
    proxy.cut("after")
    with pytest.raises(psycopg.OperationalError):
        dead_letters.replay_many(world.far)
    assert dead_letters.replay_many(world.far).replayed == []
    with pytest.raises(NotFound):
        world.direct.value("select pipeline.replay(%s)", (letter,))
    settle(world, "replay")
