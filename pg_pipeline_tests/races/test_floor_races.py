"""Claims start at a floor. Nothing may become ready, or be leased, below one: not even what commits late."""

from collections.abc import Callable

from pg_pipeline.coordination import submission
from pg_pipeline.coordination.database import Database
from pg_pipeline_tests.races.sessions import Session

Open = Callable[[], Session]
ENTRY = "select * from pipeline.send('default', jsonb_build_array(jsonb_build_object('key', %s::text, 'kind', 'job')))"


def floors(db: Database) -> list[str]:
    return [row["floor"] for row in db.rows("select floor::text from pipeline.lane where kind = 'job'")]


def busy(one: Session, db: Database) -> None:
    """A worker at work in the lane: its beats move the floors."""
    submission.send(db, "default", [{"key": "busy", "kind": "job"}])
    (lease,) = one.claim()
    one.beat(lease)


def test_a_busy_lane_has_a_floor(db: Database, session: Open) -> None:
    busy(session().register(), db)
    assert floors(db) != ["-infinity"]


def test_p1_a_task_that_is_committed_after_the_floor_moved_is_claimed(db: Database, session: Open) -> None:
    late, one = session(), session().register()
    submission.send(db, "default", [{"key": "first", "kind": "job"}])
    late.begin()
    late.rows(ENTRY, ("late",))
    (lease,) = one.claim()
    one.beat(lease)
    late.commit()
    assert len(one.claim(10)) == 1


def test_p1_a_transaction_that_began_before_the_floor_moved_sends_above_it(db: Database, session: Open) -> None:
    late, one = session(), session().register()
    late.begin()
    late.rows("select now()")  # its clock stands still from here on
    busy(one, db)
    late.rows(ENTRY, ("late",))
    late.commit()
    assert len(one.claim(10)) == 1


def test_p1_a_task_that_is_handed_back_while_the_floor_moves_is_claimed(db: Database, session: Open) -> None:
    other, one = session().register(), session().register()
    submission.send(db, "default", [{"key": key, "kind": "job"} for key in ("a", "b")])
    (mine,), (lease,) = other.claim(), one.claim()
    other.begin()
    other.release(mine)
    one.beat(lease)
    other.commit()
    assert [task["task_id"] for task in one.claim(10)] == [mine["task_id"]]


def test_p1_whoever_makes_a_task_ready_waits_for_a_floor_that_is_moving(db: Database, session: Open) -> None:
    late, one = session(), session().register()
    submission.send(db, "default", [{"key": "first", "kind": "job"}])
    (lease,) = one.claim()
    one.begin()
    one.beat(lease)
    sent = late.start(late.rows, ENTRY, ("late",))
    late.seen_waiting(sent)
    one.commit()
    assert [row["outcome"] for row in sent.result(timeout=30)] == ["created"]
    assert len(one.claim(10)) == 1


def test_p1_a_claim_under_way_is_not_passed_by_the_floor_of_its_worker(db: Database, session: Open) -> None:
    one, heart, heir = session().register(), session(), session().register()
    heart.id = one.id
    submission.send(db, "default", [{"key": "a", "kind": "job"}])
    one.begin()
    (lease,) = one.claim()
    heart.beat()
    one.commit()
    one.vanish()
    assert [task["task_id"] for task in heir.claim()] == [lease["task_id"]]
