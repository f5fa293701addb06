"""The thin slice: submit, claim, finish, callback."""

from collections.abc import Callable
from typing import Any

from pg_pipeline.coordination import submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.lease import CallbackResult
from pg_pipeline.coordination.worker import Worker
from pg_pipeline_tests.coordination.conftest import files


def test_a_delivery_goes_from_submit_to_one_callback(db: Database, submit: Any, worker: Callable[..., Worker]) -> None:
    execution = submit(5)
    one = worker()
    leases = one.claim(10)
    assert [lease.batch for lease in leases] == [0, 1, 2]
    assert [file.path for file in one.files(leases[0])] == [f.path for f in files(5, "k")[:2]]
    for lease in leases[:-1]:
        assert not one.finish(lease, {"rows_in": 1}).callback_created
    assert one.finish(leases[-1], {"rows_in": 1}).callback_created
    (callback,) = one.claim(10)
    assert callback.kind == "callback"
    one.finish(callback, CallbackResult(summary={"rows": 3}))
    (row,) = db.rows("select * from pipeline.execution_status where execution = %s", (execution,))
    assert (row["status"], row["remaining"], row["summary"]) == ("finished", 0, {"rows": 3})
    assert one.claim(10) == []


def test_p7_asking_twice_is_asking_once(db: Database) -> None:
    first = submission.submit(db, "orders", files(3), request_key="a")
    again = submission.submit(db, "orders", files(3), request_key="a")
    assert first.created
    assert not again.created
    assert again.execution == first.execution
    assert again.taken == first.taken == 3


def test_p2_a_file_belongs_to_one_execution(db: Database) -> None:
    first = submission.submit(db, "orders", files(3), request_key="a")
    second = submission.submit(db, "orders", files(5), request_key="b")
    assert second.taken == 2
    assert second.left_out == {"known": 3}
    assert second.left_out_examples[0]["execution"] == first.execution
