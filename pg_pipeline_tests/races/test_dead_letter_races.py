"""Replay, replay-all and discard of one letter, at the same moment."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from pg_pipeline.coordination import dead_letters, submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.errors import NotFound
from pg_pipeline_tests.races.sessions import Session, at_once, dead_letter, drain, places

Open = Callable[[], Session]
ROUNDS = 10
REPLAY = "select pipeline.replay(%s)"
DISCARD = "select pipeline.discard(%s, 'test')"


def bury(db: Database, one: Session, *keys: str) -> list[int]:
    submission.send(db, "default", [{"key": key, "kind": "job"} for key in keys])
    return [dead_letter(db, one) for _ in keys]


def tasks(db: Database) -> int:
    return int(db.value("select count(*) from pipeline.task"))


def test_lesson_e1_the_second_replay_is_seen_waiting_and_then_finds_no_letter(db: Database, session: Open) -> None:
    one, two = session().register(), session()
    (letter,) = bury(db, one, "a")
    one.begin()
    one.value(REPLAY, (letter,))
    second = two.start(two.value, REPLAY, (letter,))
    two.seen_waiting(second)
    one.commit()
    with pytest.raises(NotFound, match=f"^dead letter {letter} not found"):
        second.result(10)
    assert tasks(db) == 1


def test_lesson_e1_a_replay_that_waited_for_one_that_was_rolled_back_wins(db: Database, session: Open) -> None:
    one, two = session().register(), session()
    (letter,) = bury(db, one, "a")
    one.begin()
    one.value(REPLAY, (letter,))
    second = two.start(two.value, REPLAY, (letter,))
    two.seen_waiting(second)
    one.rollback()
    assert second.result(10)["dead_letter"] == letter
    assert tasks(db) == 1


def test_lesson_e1_of_eight_replays_of_one_letter_one_wins(db: Database, session: Open) -> None:
    one = session().register()
    for number in range(ROUNDS):
        (letter,) = bury(db, one, f"k{number}")
        answers = at_once(*(lambda n=letter: dead_letters.replay(db, n) for _ in range(8)))
        assert sorted(type(answer).__name__ for answer in answers) == ["NotFound"] * 7 + ["dict"], answers
        assert tasks(db) == 1
        drain(one, db)


def test_p7_replays_with_one_request_id_get_one_answer(db: Database, session: Open) -> None:
    one = session().register()
    for number in range(ROUNDS):
        (letter,) = bury(db, one, f"k{number}")
        asked = uuid4()
        answers = at_once(*(lambda n=letter, r=asked: dead_letters.replay(db, n, request_id=r) for _ in range(4)))
        assert all(answer == answers[0] and answer["dead_letter"] == letter for answer in answers), answers
        assert tasks(db) == 1
        drain(one, db)


def test_lesson_e2_replay_all_passes_over_what_a_replay_holds(db: Database, session: Open) -> None:
    one, all_of_them = session().register(), session()
    letters = bury(db, one, "a", "b", "c")
    one.begin()
    one.value(REPLAY, (letters[1],))
    all_of_them.rows("set lock_timeout = '100 ms'")  # waiting at all is the failure
    assert all_of_them.value("select pipeline.replay_many()")["replayed"] == [letters[0], letters[2]]
    one.commit()
    assert tasks(db) == 3


def test_lesson_e2_what_the_other_rolls_back_stays_for_the_next_pass(db: Database, session: Open) -> None:
    one, all_of_them = session().register(), session()
    letters = bury(db, one, "a", "b")
    one.begin()
    one.value(REPLAY, (letters[0],))
    assert all_of_them.value("select pipeline.replay_many()")["replayed"] == [letters[1]]
    one.rollback()
    assert all_of_them.value("select pipeline.replay_many()")["replayed"] == [letters[0]]


def test_lesson_e2_replay_all_against_replays_brings_each_letter_back_once(db: Database, session: Open) -> None:
    one = session().register()
    for number in range(ROUNDS):
        letters = bury(db, one, *(f"k{number}-{i}" for i in range(6)))
        answers = at_once(
            lambda: list(dead_letters.replay_many(db).replayed),
            lambda: list(dead_letters.replay_many(db).replayed),
            *(lambda n=letter: [dead_letters.replay(db, n)["dead_letter"]] for letter in letters[::2]),
        )
        assert all(isinstance(answer, list | NotFound) for answer in answers), answers
        replayed = [letter for answer in answers if isinstance(answer, list) for letter in answer]
        assert sorted(replayed) == letters
        assert drain(one, db) == 6


def test_replay_against_discard(db: Database, submit: Any, session: Open) -> None:
    one, person = session().register(), session()
    for number in range(ROUNDS):
        execution = submit(4, key=f"k{number}")
        letter = dead_letter(db, one)
        replayed, discarded = at_once(
            lambda n=letter: one.value(REPLAY, (n,)), lambda n=letter: person.value(DISCARD, (n,))
        )
        assert sorted([isinstance(replayed, NotFound), isinstance(discarded, NotFound)]) == [False, True]
        drain(one, db)
        left = {"committed": 2, "discarded": 2} if isinstance(replayed, NotFound) else {"committed": 4}
        assert places(db, execution) == left


def test_replay_all_over_many_executions_against_finishes_of_them(db: Database, submit: Any, session: Open) -> None:
    """It locks executions by id, as the finishes do."""
    one, two, person = session().register(), session().register(), session()
    for number in range(ROUNDS // 2):
        for i in range(4):
            submit(6, key=f"k{number}-{i}")
        leases = one.claim(4)
        for lease in two.claim(4):
            two.fail(lease, retryable=False)
        rest = two.claim(4)
        answers = at_once(
            lambda x=leases: one.finish(*x),
            lambda x=rest: two.finish(*x[::-1]),
            lambda: person.value("select pipeline.replay_many()"),
        )
        assert not any(isinstance(answer, Exception) for answer in answers), answers
        drain(one, db)
