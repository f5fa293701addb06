"""Submit, add, seal and send, at the same moment."""

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from pg_pipeline.coordination import executions, submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.types import FileVersion
from pg_pipeline.errors import SubmissionConflict, WrongState
from pg_pipeline_tests.coordination.conftest import files, state
from pg_pipeline_tests.races.sessions import Session, at_once, callbacks, drain, places

Open = Callable[[], Session]
ROUNDS = 10
SUBMIT = "select pipeline.submit(%s, %s, %s, %s, %s)"


def asked(key: str, wanted: list[FileVersion]) -> tuple[Any, ...]:
    return "orders", key, [f.path for f in wanted], [f.version for f in wanted], [f.size for f in wanted]


def owners(db: Database) -> Counter[str]:
    return Counter(row["path"] for row in db.rows("select path from pipeline.file"))


def test_p7_the_second_submit_of_a_key_waits_and_gets_the_first_answer(db: Database, session: Open) -> None:
    one, two = session(), session()
    one.begin()
    first = one.value(SUBMIT, asked("k", files(3)))
    second = two.start(two.value, SUBMIT, asked("k", files(3)))
    two.seen_waiting(second)
    one.commit()
    assert second.result(10) == {**first, "created": False}


def test_p7_a_submit_that_waited_for_one_that_failed_is_the_first(db: Database, session: Open) -> None:
    one, two = session(), session()
    one.begin()
    one.value(SUBMIT, asked("k", files(3)))
    second = two.start(two.value, SUBMIT, asked("k", files(3)))
    two.seen_waiting(second)
    one.rollback()
    assert second.result(10)["created"] is True
    assert second.result()["taken"] == 3


def test_p7_eight_submits_with_one_key_make_one_execution(db: Database) -> None:
    for number in range(ROUNDS):
        key = f"k{number}"
        answers = at_once(
            *(lambda key=key: submission.submit(db, "orders", files(5, key), request_key=key) for _ in range(8))
        )
        assert [a.created for a in answers].count(True) == 1, answers
        assert len({(a.execution, a.taken, a.batches) for a in answers}) == 1


def test_p7_one_key_with_two_contents_is_one_execution_and_a_conflict(db: Database) -> None:
    for number in range(ROUNDS):
        key = f"k{number}"
        answers = at_once(
            lambda key=key: submission.submit(db, "orders", files(2, key), request_key=key),
            lambda key=key: submission.submit(db, "orders", files(3, key), request_key=key),
        )
        assert sorted(type(a).__name__ for a in answers) == ["Submission", SubmissionConflict.__name__]
        (won,) = [a for a in answers if not isinstance(a, Exception)]
        assert sum(places(db, won.execution).values()) == won.taken


def test_p2_a_submit_that_waited_for_another_leaves_its_files_out_and_says_whose_they_are(
    db: Database, session: Open
) -> None:
    one, two = session(), session()
    one.begin()
    first = one.value(SUBMIT, asked("a", files(3)))
    second = two.start(two.value, SUBMIT, asked("b", files(5)))
    two.seen_waiting(second)
    one.commit()
    answer = second.result(10)
    assert (answer["taken"], answer["left_out"]) == (2, {"known": 3})
    assert {example["execution"] for example in answer["left_out_examples"]} == {first["execution"]}


def test_a_submit_with_an_old_snapshot_is_refused_and_does_not_look_for_ever(db: Database, session: Open) -> None:
    opened = submission.submit(db, "orders", files(1, "first"), request_key="b", seal=False).execution
    one, two = session(), session()
    one.begin()
    one.value(SUBMIT, asked("a", files(3)))
    two.rows("begin isolation level repeatable read")
    (file, *_) = files(3)
    add = "select pipeline.add_files(%s, %s, %s, %s)"
    second = two.start(two.value, add, (opened, [file.path], [file.version], [file.size]))
    two.seen_waiting(second)
    one.commit()
    with pytest.raises(psycopg.errors.UniqueViolation):
        second.result(10)


def test_p2_overlapping_submits_in_opposite_order_don_t_deadlock_and_share_nothing(db: Database) -> None:
    for number in range(ROUNDS):
        wanted = files(200, f"r{number}")
        answers = at_once(
            lambda n=number, w=wanted: submission.submit(db, "orders", w, request_key=f"up{n}"),
            lambda n=number, w=wanted: submission.submit(db, "orders", w[::-1], request_key=f"down{n}"),
            lambda n=number, w=wanted: submission.submit(db, "orders", w[50:150], request_key=f"middle{n}"),
        )
        assert not any(isinstance(a, Exception) for a in answers), answers
        assert sum(a.taken for a in answers) == 200
        assert all(a.taken + sum(a.left_out.values()) in (100, 200) for a in answers)
    assert set(owners(db).values()) == {1}


def test_p2_files_go_in_in_the_order_of_their_keys(db: Database, session: Open) -> None:
    first, middle, last = sorted(
        files(3), key=lambda f: db.value("select pipeline.file_key('orders', %s, %s)", (f.path, f.version))
    )
    submission.submit(db, "orders", files(1, "before"), request_key="before")  # the lane is there
    one, two, three = session(), session(), session()
    one.begin()
    one.value(SUBMIT, asked("a", [middle]))
    second = two.start(two.value, SUBMIT, asked("b", [last, middle, first]))
    two.seen_waiting(second)
    three.rows("set lock_timeout = '2 s'")
    assert three.value(SUBMIT, asked("c", [last]))["taken"] == 1  # `two` has not come that far
    one.commit()
    assert second.result(10)["taken"] == 1


def test_p2_chunked_submits_against_small_ones(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "CHUNK", 7)
    for number in range(ROUNDS):
        wanted = files(40, f"r{number}")
        answers = at_once(
            lambda n=number, w=wanted: submission.submit(db, "orders", w, request_key=f"up{n}"),
            lambda n=number, w=wanted: submission.submit(db, "orders", w[::-1], request_key=f"down{n}"),
            *(
                lambda n=number, i=i, w=wanted: submission.submit(db, "orders", w[i : i + 5], request_key=f"s{i}-{n}")
                for i in (0, 18, 35)
            ),
        )
        assert not any(isinstance(a, Exception) for a in answers), answers
        assert sum(a.taken for a in answers) == 40


def test_a_chunked_add_against_small_ones_to_the_same_execution(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "CHUNK", 5)
    execution = submission.submit(db, "orders", [], request_key="k", request="open", seal=False).execution
    for number in range(ROUNDS):
        answers = at_once(
            lambda n=number: submission.add(db, "orders", execution, files(20, f"large{n}")),
            *(
                lambda n=number, i=i: submission.add(db, "orders", execution, files(3, f"small{i}-{n}"))
                for i in range(3)
            ),
        )
        assert not any(isinstance(a, Exception) for a in answers), answers
    assert submission.seal(db, execution).taken == ROUNDS * 29


def test_a_small_add_waits_for_a_chunked_one_without_holding_the_execution(db: Database, session: Open) -> None:
    """Ledger first, then the execution, in both: otherwise each holds what the other wants."""
    execution = submission.submit(db, "orders", [], request_key="k", request="open", seal=False).execution
    add = "select pipeline.add_files(%s, %s, %s, %s)"
    large, small = session(), session()
    large.begin()
    large.rows("select pipeline.lock_ledger('orders')")
    waiting = small.start(small.value, add, (execution, ["/in/b"], ["1"], [1]))
    small.seen_waiting(waiting)
    assert large.value(add, (execution, ["/in/a"], ["1"], [1]))["taken"] == 1
    large.commit()
    assert waiting.result(10)["taken"] == 1


def test_pruning_waits_for_a_submit_only_when_it_moves_the_horizon(db: Database, session: Open) -> None:
    prune = "select pipeline.prune_ledger('orders', %s)"
    db.value(prune, ("2026-01-01",))
    one, two = session(), session()
    one.begin()
    one.value(SUBMIT, asked("a", files(3)))
    two.rows("set lock_timeout = '2 s'")
    assert two.value(prune, ("2026-01-01",)) == 0
    moves = two.start(two.value, prune, ("2026-01-02",))
    two.seen_waiting(moves)  # the submit has judged its files by the old one
    one.commit()
    assert moves.result(10) == 0


def test_p4_seal_against_the_last_finish(db: Database, session: Open) -> None:
    one, sealer = session().register(), session()
    for number in range(ROUNDS):
        opened = submission.submit(db, "orders", files(2, f"k{number}"), request_key=f"k{number}", seal=False)
        (lease,) = one.claim()
        (finished, sealed) = at_once(
            lambda x=lease: one.finish(x),
            lambda x=opened.execution: sealer.value("select pipeline.seal(%s)", (x,)),
        )
        assert finished[0]["outcome"] == "committed"
        assert sealed["state"] == "sealed"
        assert callbacks(db, opened.execution) == 1
        assert drain(one, db) == 1


def test_p1_seal_against_add_takes_the_files_or_refuses_them(db: Database) -> None:
    for number in range(ROUNDS):
        key = f"k{number}"
        opened = submission.submit(db, "orders", files(2, key), request_key=key, seal=False)
        (added, sealed) = at_once(
            lambda x=opened.execution, k=key: submission.add(db, "orders", x, files(2, f"{k}-more")),
            lambda x=opened.execution: submission.seal(db, x),
        )
        assert not isinstance(sealed, Exception)
        taken = 2 if isinstance(added, WrongState) else 4
        assert isinstance(added, WrongState) or added.taken == 4, added
        assert sum(places(db, opened.execution).values()) == taken


def test_p2_released_files_are_retaken_by_one_of_two(db: Database, submit: Any) -> None:
    for number in range(ROUNDS):
        execution = submit(20, key=f"k{number}")
        executions.cancel(db, execution, "test")
        wanted = files(20, f"k{number}")
        answers = at_once(
            lambda n=number, w=wanted: submission.submit(db, "orders", w, request_key=f"up{n}", released=True),
            lambda n=number, w=wanted: submission.submit(db, "orders", w[::-1], request_key=f"down{n}", released=True),
        )
        assert sorted(a.taken for a in answers) == [0, 20], answers


def test_b1_eight_sends_of_one_entry_store_it_once(db: Database) -> None:
    for number in range(ROUNDS):
        entries = [{"key": f"k{number}-{i}", "kind": "job", "payload": {"n": number}} for i in range(5)]
        answers = at_once(*(lambda e=entries: submission.send(db, "default", e) for _ in range(8)))
        for sent in zip(*answers, strict=True):
            assert [one.outcome for one in sent].count("created") == 1, sent
            assert {one.outcome for one in sent} == {"created", "duplicate"}
            assert len({one.task_id for one in sent}) == 1


def test_sends_for_new_tenants_in_opposite_order_don_t_deadlock(db: Database) -> None:
    for number in range(ROUNDS):

        def call(tag: str, tenants: list[int], number: int = number) -> Any:
            return submission.send(
                db,
                "default",
                [
                    {"key": f"{tag}-{number}-{i:03}", "kind": "job", "tenant": f"t{number}-{t}"}
                    for i, t in enumerate(tenants)
                ],
            )

        answers = at_once(
            lambda: call("up", list(range(40))),
            lambda: call("down", list(range(40))[::-1]),
            lambda: call("odd", list(itertools.chain(range(1, 40, 2), range(0, 40, 2)))),
        )
        assert not any(isinstance(a, Exception) for a in answers), answers


def test_finishes_for_new_tenants_in_opposite_order_don_t_deadlock(db: Database, session: Open) -> None:
    """The first callback of a tenant needs a lane; two finishes must not make them crosswise."""
    one, two = session().register(), session().register()
    for number in range(ROUNDS):
        a, b = f"a{number}", f"b{number}"
        made = [
            submission.submit(db, "orders", files(1, f"{t}{i}"), request_key=f"{t}{i}", tenant=t).execution
            for i, t in enumerate([a, b, b, a])
        ]
        leases = {lease["execution"]: lease for lease in one.claim(4)}
        answers = at_once(
            lambda x=leases, m=made: one.finish(x[m[0]], x[m[2]]),
            lambda x=leases, m=made: two.finish(x[m[1]], x[m[3]]),
        )
        assert not any(isinstance(answer, Exception) for answer in answers), answers
        drain(one, db)
        assert all(state(db, execution)["status"] == "finished" for execution in made)


def test_the_first_callback_of_a_tenant_makes_no_other_finish_wait(db: Database, session: Open) -> None:
    for key in ("one", "two"):
        submission.submit(db, "orders", files(1, key), request_key=key, tenant="new")
    one, two = session().register(), session().register()
    (first,), (second,) = one.claim(), two.claim()
    one.begin()
    assert one.finish(first)[0]["callback"] is True
    two.rows("set lock_timeout = '100 ms'")  # waiting at all is the failure
    assert two.finish(second)[0]["callback"] is True
    one.commit()


def test_p2_a_replacement_that_meets_a_submit_of_the_same_version_is_a_conflict(
    db: Database, submit: Any, session: Open
) -> None:
    execution = submit(2)
    one, person, other = session().register(), session(), session()
    one.finish(*one.claim(), result={"quarantined": [{"ordinal": 0, "reason": "corrupt"}]})
    drain(one, db)
    mended = FileVersion(files(1, "k")[0].path, "2", 10)
    other.begin()
    other.value(SUBMIT, asked("other", [mended]))
    replace = person.start(
        person.value, "select pipeline.replace_file(%s, %s, %s, %s)", (execution, mended.path, "2", 10)
    )
    person.seen_waiting(replace)
    other.commit()
    with pytest.raises(SubmissionConflict, match="taken by another execution"):
        replace.result(10)
