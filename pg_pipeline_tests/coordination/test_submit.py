"""Submit: files, batches, barrier and tasks as one (P1, P2, P7; lessons D2, D4, D7)."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pg_pipeline.coordination import executions, submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.types import FileVersion
from pg_pipeline.errors import InvalidInput, NotFound, SubmissionConflict, WrongState
from pg_pipeline_tests.coordination.conftest import HandWorker, files, state

Hand = Callable[..., HandWorker]


def batches(db: Database, execution: str) -> list[tuple[int, int]]:
    return [
        (row["files"], row["bytes"])
        for row in db.rows(
            "select b.files, b.bytes from pipeline.batch b join pipeline.execution x on x.id = b.execution_id "
            "where x.key = %s order by b.number",
            (execution,),
        )
    ]


def test_batches_are_cut_by_number_of_files(db: Database, submit: Any) -> None:
    assert batches(db, submit(5)) == [(2, 20), (2, 20), (1, 10)]


def test_batches_are_cut_by_bytes_and_a_big_file_is_alone(db: Database) -> None:
    submission.register_pipeline(db, "orders", batch_files=100, batch_bytes=100)
    wanted = [FileVersion(f"/f{n}", "1", size) for n, size in enumerate([60, 30, 20, 500, 50, 50, 1])]
    execution = submission.submit(db, "orders", wanted, request_key="k").execution
    assert batches(db, execution) == [(2, 90), (1, 20), (1, 500), (2, 100), (1, 1)]


def test_the_files_are_listed_only_when_the_request_is_new(db: Database) -> None:
    listed = []

    def listing() -> Iterator[FileVersion]:
        listed.append(1)
        yield from files(2)

    first = submission.submit(db, "orders", listing, request_key="k", request="a folder")
    again = submission.submit(db, "orders", listing, request_key="k", request="a folder")
    assert again.execution == first.execution
    assert len(listed) == 1


def test_the_same_key_with_another_request_is_a_conflict_and_overwrites_nothing(db: Database) -> None:
    first = submission.submit(db, "orders", files(2), request_key="k")
    with pytest.raises(SubmissionConflict, match=first.execution):
        submission.submit(db, "orders", files(3), request_key="k")
    assert state(db, first.execution)["files"] == 2


def test_files_from_a_generator_survive_a_dead_connection_whole(db: Database, dsn: str) -> None:
    killed = []

    def listing() -> Iterator[FileVersion]:
        for number, file in enumerate(files(50)):
            if number == 25 and not killed:
                import psycopg

                with psycopg.connect(dsn, autocommit=True) as other:
                    killed.append(
                        other.execute(
                            "select count(pg_terminate_backend(pid)) from pg_stat_activity "
                            "where datname = current_database() and pid <> pg_backend_pid()"
                        ).fetchone()
                    )
            yield file

    db.value("select 1")
    for how in (listing, listing()):
        assert submission.submit(db, "orders", how, request_key=f"k{how}", request="r").taken in (50, 0)
    assert db.value("select count(*) from pipeline.file") == 50


def test_a_request_is_found_again_without_its_files(db: Database) -> None:
    assert submission.find(db, "orders", "k", "a folder") is None
    first = submission.submit(db, "orders", files(2), request_key="k", request="a folder", tenant="acme")
    found = submission.find(db, "orders", "k", "a folder", tenant="acme")
    assert found is not None
    assert found.execution == first.execution
    with pytest.raises(SubmissionConflict):
        submission.find(db, "orders", "k", "a folder")


def test_a_new_version_of_a_file_is_another_file(db: Database) -> None:
    submission.submit(db, "orders", [FileVersion("/f", "1", 1)], request_key="a")
    assert submission.submit(db, "orders", [FileVersion("/f", "2", 1)], request_key="b").taken == 1


def test_a_file_named_twice_in_a_request_is_taken_once(db: Database) -> None:
    answer = submission.submit(db, "orders", [*files(2), *files(1)], request_key="a")
    assert (answer.taken, answer.left_out) == (2, {"repeated": 1})


def test_a_submission_whose_files_are_all_known_ends_at_once_without_a_callback(db: Database, hand: Hand) -> None:
    submission.submit(db, "orders", files(2), request_key="a")
    again = submission.submit(db, "orders", files(2), request_key="b")
    assert (again.state, again.batches) == ("finished", 0)
    assert [lease["execution"] for lease in hand().claim(10)] != [again.execution]
    assert "known" in state(db, again.execution)["ended_reason"]


def test_an_execution_is_opened_added_to_and_sealed_later(db: Database, hand: Hand) -> None:
    opened = submission.submit(db, "orders", files(2), request_key="k", seal=False)
    assert opened.state == "open"
    one = hand()
    (lease,) = one.claim(10)
    one.finish(lease)
    assert one.claim(10) == []  # nothing remains, but it is not sealed: no callback yet
    added = submission.add(db, "orders", opened.execution, files(4))
    assert (added.taken, added.left_out) == (4, {"known": 2})
    (lease,) = one.claim(10)
    one.finish(lease)
    sealed = submission.seal(db, opened.execution)
    assert sealed.state == "sealed"
    (callback,) = one.claim(10)
    assert callback["kind"] == "callback"
    with pytest.raises(WrongState, match="sealed"):
        submission.add(db, "orders", opened.execution, files(6))
    assert submission.seal(db, opened.execution).state == "sealed"


def test_a_preview_says_what_would_be_taken_and_changes_nothing(db: Database) -> None:
    first = submission.submit(db, "orders", files(1), request_key="a")
    verdicts = list(submission.preview(db, "orders", files(2)))
    assert [(v.verdict, v.execution) for v in verdicts] == [("known", first.execution), ("take", None)]
    assert submission.submit(db, "orders", files(2), request_key="b").taken == 1


def test_released_files_are_taken_again_only_when_asked_for(db: Database, hand: Hand) -> None:
    first = submission.submit(db, "orders", files(4), request_key="a")
    one = hand()
    one.finish(*one.claim(1))
    executions.cancel(db, first.execution, "wrong folder")
    left = submission.submit(db, "orders", files(4), request_key="b")
    assert (left.taken, left.left_out) == (0, {"known": 2, "released": 2})
    again = submission.submit(db, "orders", files(4), request_key="c", released=True)
    assert (again.taken, again.left_out, again.batches) == (2, {"known": 2}, 1)
    assert any(reason.what == "released" for reason in executions.explain(db, first.execution)) is False
    places = db.rows("select place, count(*) as n from pipeline.file_status group by place order by place")
    assert {row["place"]: row["n"] for row in places} == {"committed": 2, "waiting": 2}


def test_a_large_submission_goes_in_chunks_and_in_one_transaction(db: Database, monkeypatch: Any) -> None:
    monkeypatch.setattr(submission, "CHUNK", 7)

    def listing() -> Iterator[FileVersion]:
        yield from files(20)
        raise OSError("the listing broke")

    with pytest.raises(OSError, match="listing broke"):
        submission.submit(db, "orders", listing, request_key="k", request="r")
    assert db.value("select count(*) from pipeline.file") == 0
    assert db.value("select count(*) from pipeline.execution") == 0
    answer = submission.submit(db, "orders", files(20), request_key="k")
    assert (answer.taken, answer.batches) == (20, 11)


def test_d2_an_aborted_request_key_can_be_followed_by_a_new_one(db: Database, hand: Hand) -> None:
    first = submission.submit(db, "orders", files(2), request_key="a")
    executions.cancel(db, first.execution, "stop")
    second = submission.submit(db, "orders", files(2), request_key="b", released=True)
    one = hand()
    (lease,) = one.claim(10)
    assert lease["execution"] == second.execution
    one.finish(lease)
    (callback,) = one.claim(10)
    one.finish(callback)
    assert state(db, second.execution)["status"] == "finished"


@pytest.mark.parametrize(
    "bad",
    [
        FileVersion("", "1", 1),
        FileVersion("/f", "v" * 501, 1),
        FileVersion("/f", "1", -1),
        FileVersion("/" + "f" * 4096, "1", 1),
        FileVersion("/nul\x00", "1", 1),
        FileVersion("/half\udce9", "1", 1),
    ],
)
def test_a_file_that_the_ledger_refuses_refuses_the_submission_whole(db: Database, bad: FileVersion) -> None:
    with pytest.raises(InvalidInput):
        submission.submit(db, "orders", [*files(2), bad], request_key="k")
    assert db.value("select count(*) from pipeline.execution") == 0


def test_an_unknown_pipeline_is_named(db: Database) -> None:
    with pytest.raises(NotFound, match="pipeline nowhere not found"):
        submission.submit(db, "nowhere", files(1), request_key="k")


def test_odd_names_are_data(db: Database, hand: Hand) -> None:
    odd = ["/a'b", '/a"b', "/a\\b", "/a\nb", "/a,b", "/{a}", "/a%sb", "/ünï", "/a;drop table x", "/NULL", "/ a "]
    submission.submit(db, "orders", [FileVersion(path, "1", 1) for path in odd], request_key="k'; --")
    one = hand()
    found = []
    while leases := one.claim(10):
        for lease in leases:
            if lease["kind"] == "batch":
                rows = db.rows("select * from pipeline.batch_files(%s, %s)", (lease["execution_id"], lease["batch"]))
                found += [row["path"] for row in rows]
        one.finish(*leases)
    assert found == odd
