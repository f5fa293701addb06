"""Fuzzed payloads, paths, keys and settings, through the real functions: a typed error or a dead letter, never a crash,
never a lost task."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pg_pipeline.coordination import dead_letters, executions, submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.lease import Lease
from pg_pipeline.coordination.types import FileVersion
from pg_pipeline.coordination.worker import Worker
from pg_pipeline.errors import InvalidInput, PgPipelineError
from pg_pipeline_tests.coordination.conftest import audit, files
from pg_pipeline_tests.fuzz.inputs import almost, fuzzed, numbers, texts, values

KINDS = st.sampled_from(["batch", "callback", "job", "of.tomorrow"])
ENTRIES = st.lists(
    st.one_of(
        almost(
            "key",
            "kind",
            key=st.sampled_from(["a", "b", "c"]) | texts,
            kind=KINDS,
            payload=values,
            pipeline=st.sampled_from(["orders", ""]) | texts,
            priority=st.integers(-5, 5),
            tenant=texts,
            execution_id=st.integers(0, 3),
            generation=st.integers(0, 2),
            batch=st.integers(0, 2),
            delay_seconds=st.just(0),
        ),
        values,
    ),
    max_size=5,
)


def drain(worker: Worker, result: Callable[[Lease], Any] = lambda _lease: None) -> list[int]:
    """Take everything that there is, malformed or not; what a result is refused for is failed for good."""
    seen = []
    while leases := worker.claim(100):
        for lease in leases:
            seen.append(lease.task_id)
            try:
                worker.finish(lease, result(lease))
            except InvalidInput as error:
                worker.fail(lease, error, retryable=False)
    return seen


class Places:
    """Where each task is that was ever accepted."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def of(self, task_id: int) -> list[str]:
        rows = self._db.rows(
            """select 'waiting' as place from pipeline.task where id = %(id)s
               union all select 'done' from pipeline.attempt where task_id = %(id)s and outcome = 'committed'
               union all select 'dead' from pipeline.dead_letter where task_id = %(id)s and resolution is null""",
            {"id": task_id},  # type: ignore[arg-type]
        )
        return [row["place"] for row in rows]


def test_whatever_is_sent_is_answered_and_never_lost(db: Database, worker: Any) -> None:
    one, places = worker(), Places(db)
    submission.submit(db, "orders", files(4), request_key="k")
    outcomes: set[str] = set()

    @fuzzed(150)
    @given(entries=ENTRIES, queue=st.just("default") | texts)
    def check(entries: list[Any], queue: str) -> None:
        try:
            sent = submission.send(db, queue, entries)
        except PgPipelineError:
            return
        assert len(sent) == len(entries)
        outcomes.update(entry.outcome for entry in sent)
        for entry in sent:
            assert (entry.task_id is None) == (entry.outcome == "rejected")
            assert (entry.reason is None) == (entry.outcome != "rejected")
        drain(one)
        for entry in sent:
            if entry.task_id is not None:
                assert len(places.of(entry.task_id)) == 1, entry

    check()
    assert outcomes == {"created", "duplicate", "conflict", "rejected"}
    assert executions.listed(db)[0]["status"] == "finished", "what was sent does not touch what was submitted"


@pytest.mark.parametrize("entries", ["null", "1", '"x"', "{}", "[null]", "[[]]", '[{"key": {}}]', '[{"key": 1}]'])
def test_json_of_any_shape_from_plain_sql(db: Database, entries: str) -> None:
    try:
        rows = db.rows("select * from pipeline.send('default', %s::jsonb)", (entries,))
    except InvalidInput as refused:
        rows = [{"outcome": "rejected"}] if "json array" in str(refused) else []
    assert [row["outcome"] for row in rows] == ["rejected"]


def _is_text(text: str) -> bool:
    return "\x00" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)


def test_whatever_files_are_submitted_each_is_taken_or_left_out(db: Database, worker: Any) -> None:
    one = worker()
    taken = [0]
    paths = texts.map(lambda name: f"/in/{name}.json")
    fine = st.builds(FileVersion, path=paths.filter(_is_text), version=st.just("1"), size=st.integers(0, 100))
    odd = st.builds(FileVersion, path=paths | texts, version=texts, size=st.integers())
    listing = st.lists(fine, max_size=6) | st.lists(fine | odd, max_size=4)
    mostly = st.integers(0, 9).flatmap

    @fuzzed(150)
    @given(
        wanted=listing,
        key=st.uuids().map(str) | texts,
        pipeline=mostly(lambda n: texts if n == 0 else st.just("orders")),
        tenant=mostly(lambda n: texts if n < 3 else st.just("")),
        priority=mostly(lambda n: st.integers() if n == 0 else st.just(0)),
        request=st.none() | values,
    )
    def check(wanted: list[FileVersion], pipeline: str, key: str, tenant: str, priority: int, request: Any) -> None:
        ask: dict[str, Any] = {"request_key": key, "tenant": tenant, "priority": priority, "request": request}
        try:
            answer = submission.submit(db, pipeline, wanted, **ask)
        except PgPipelineError:
            return
        if answer.created:
            assert answer.taken + sum(answer.left_out.values()) == len(wanted)
        again = submission.submit(db, pipeline, wanted, **ask)
        assert (again.execution, again.taken, again.created) == (answer.execution, answer.taken, False)
        drain(one)
        status = executions.get(db, answer.execution)
        assert status["status"] == "finished"
        taken[0] += answer.taken * answer.created

    check()
    assert taken[0] > 10
    assert db.value("select count(*) from pipeline.file_status where place = 'committed'") == taken[0]
    assert audit(db) == []


RESULTS = st.one_of(
    almost(
        rows_in=st.integers(0, 9) | numbers,
        rows_out=st.integers(0, 9) | numbers,
        rows_rescued=numbers,
        files=almost(rows_in=st.lists(numbers, max_size=3), rows_out=st.just([1, 1])),
        quarantined=st.lists(
            almost(ordinal=st.integers(-1, 3) | numbers, reason=st.just("bad") | texts, detail=texts), max_size=3
        ),
        metadata=values,
        summary=values,
        outbox=st.lists(almost(event=texts, destination=texts, payload=values), max_size=3),
    ),
    values,
)


def test_whatever_a_result_holds_the_task_is_done_or_dead(db: Database, worker: Any) -> None:
    one, places = worker(), Places(db)
    number = [0]
    seen: set[str] = set()

    @fuzzed(120)
    @given(result=RESULTS)
    def check(result: Any) -> None:
        number[0] += 1
        submission.submit(db, "orders", files(2, str(number[0])), request_key=str(number[0]))
        for task in drain(one, lambda _lease: result):
            (place,) = places.of(task)
            seen.add(place)

    check()
    assert seen == {"done", "dead"}
    assert audit(db) == []


def test_whatever_an_error_says_the_task_is_handed_back_or_buried_with_it(db: Database, worker: Any) -> None:
    one = worker()

    @fuzzed(80)
    @given(error=texts, reason=texts, retryable=st.booleans(), why=texts, sink=texts, location=values)
    def check(error: str, reason: str, retryable: bool, why: str, sink: str, location: Any) -> None:
        (sent,) = submission.send(db, "default", [{"key": str(uuid4()), "kind": "job"}])
        (lease,) = one.claim()
        with suppress(InvalidInput):
            one.note_output(lease, sink, location)
        one.release(lease, why)
        (lease,) = one.claim()
        answer = one.fail(lease, error, reason=reason, retryable=retryable)
        if answer.dead_letter is None:
            (lease,) = one.claim()
            one.finish(lease)
            assert lease.task_id == sent.task_id
            return
        assert dead_letters.show(db, answer.dead_letter)["task_id"] == sent.task_id
        try:
            dead_letters.discard(db, answer.dead_letter, why)
        except PgPipelineError:
            assert dead_letters.show(db, answer.dead_letter)["resolution"] is None

    check()
    assert db.rows("select 1 from pipeline.task") == []


def test_whatever_settings_are_given_they_are_taken_or_refused_whole(db: Database) -> None:
    duration = st.sampled_from(["1 s", "5 min", "-1 s", "0", "P1D", "infinity", "1e9 years"]) | texts
    count = st.integers(0, 50) | numbers
    queue = almost(
        lease=duration,
        grace=duration,
        max_attempts=count,
        max_run=duration,
        backoff_base=duration,
        backoff_cap=duration,
        max_payload_bytes=count,
        breaker_after=count,
        receipt_retention=duration,
        history_retention=duration,
        **{"wrong name": values},
    )
    pipeline = almost(
        queue=st.just("default") | texts,
        policy=st.sampled_from(["strict", "partial", "abort"]) | texts,
        bad_files=st.sampled_from(["quarantine", "fail"]),
        batch_files=count,
        batch_bytes=count,
        deadline=duration,
        notify=st.lists(texts, max_size=3),
        horizon=st.just("2026-01-01") | texts,
    )

    def said() -> list[dict[str, Any]]:
        return [
            *db.rows("select to_jsonb(q) from pipeline.queue q order by name"),
            *db.rows("select to_jsonb(p) from pipeline.pipeline p order by name"),
        ]

    taken = [0]

    @fuzzed(150)
    @given(name=st.sampled_from(["orders", "other"]) | texts, queue=queue, pipeline=pipeline)
    def check(name: str, queue: dict[str, Any], pipeline: dict[str, Any]) -> None:
        for verb, given_settings in ((submission.configure_queue, queue), (submission.register_pipeline, pipeline)):
            before = said()
            try:
                verb(db, name, **given_settings)
                taken[0] += 1
            except PgPipelineError:
                assert said() == before

    check()
    assert taken[0] > 10


def test_whatever_an_operator_asks_is_answered_or_refused(db: Database) -> None:
    execution = submission.submit(db, "orders", files(2), request_key="k").execution
    named = st.just(execution) | texts

    @fuzzed(80)
    @given(name=named, why=texts, number=st.integers(), batches=st.none() | st.lists(st.integers(), max_size=3))
    def check(name: str, why: str, number: int, batches: list[int] | None) -> None:
        asked: tuple[Callable[[], Any], ...] = (
            lambda: executions.get(db, name),
            lambda: executions.explain(db, name),
            lambda: executions.audit(db, name),
            lambda: executions.attempts(db, name),
            lambda: executions.quarantined(db, name, limit=number),
            lambda: executions.listed(db, pipeline=name, status=why, limit=number),
            lambda: executions.rerun(db, name, batches),
            lambda: executions.pause(db, name, why),
            lambda: executions.resume(db, name),
            lambda: executions.replace_file(db, name, FileVersion(why, why, number)),
            lambda: dead_letters.show(db, number),
            lambda: dead_letters.listed(db, queue=name, pipeline=why, execution=name, limit=number),
            lambda: dead_letters.replay(db, number, by=why),
            lambda: dead_letters.discard(db, number, why),
            lambda: dead_letters.replay_many(db, queue=name, execution=why, limit=number),
        )
        for ask in asked:
            with suppress(PgPipelineError):
                ask()

    check()
    assert executions.get(db, execution)["status"] == "sealed"
