"""The ledger's upkeep: mended files come back, old ones are forgotten and refused (P1, P2)."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pg_pipeline.coordination import executions, submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.types import FileVersion
from pg_pipeline.errors import InvalidInput, NotFound, SubmissionConflict, WrongState
from pg_pipeline_tests.coordination.conftest import HandWorker, files, state

Hand = Callable[..., HandWorker]
OLD = datetime.now(UTC) - timedelta(days=400)
HORIZON = datetime.now(UTC) - timedelta(days=365)


def dated(count: int, prefix: str, modified_at: datetime | None) -> list[FileVersion]:
    return [FileVersion(f.path, f.version, f.size, modified_at) for f in files(count, prefix)]


def finish_all(one: HandWorker, **result: Any) -> None:
    while leases := one.claim(10):
        one.finish(*leases, result=result)


def test_a_mended_file_takes_the_place_of_the_quarantined_one_and_the_summary_heals(db: Database, hand: Hand) -> None:
    execution = submission.submit(db, "orders", files(2), request_key="k").execution
    one = hand()
    one.finish(*one.claim(), result={"quarantined": [{"ordinal": 1, "reason": "corrupt"}]})
    (bad,) = executions.quarantined(db, execution)
    mended = FileVersion(bad["path"], "2", 99)
    with pytest.raises(WrongState, match="when it has ended"):
        executions.replace_file(db, execution, mended)
    finish_all(one)
    assert executions.replace_file(db, execution, mended) == executions.replace_file(db, execution, mended) == 0
    assert submission.submit(db, "orders", [mended], request_key="again").left_out == {"known": 1}
    executions.rerun(db, execution, [0])
    (lease,) = one.claim()
    read = db.rows("select * from pipeline.batch_files(%s, %s)", (lease["execution_id"], lease["batch"]))
    assert [(row["version"], row["size"]) for row in read] == [("1", 10), ("2", 99)]
    one.finish(lease)
    finish_all(one)
    assert (state(db, execution)["quarantined"], executions.quarantined(db, execution)) == (0, [])


def test_a_version_that_another_execution_has_replaces_nothing(db: Database, hand: Hand) -> None:
    execution = submission.submit(db, "orders", files(1), request_key="k").execution
    one = hand()
    one.finish(*one.claim(), result={"quarantined": [{"ordinal": 0, "reason": "corrupt"}]})
    finish_all(one)
    mended = FileVersion(files(1)[0].path, "2", 99)
    submission.submit(db, "orders", [mended], request_key="other")
    with pytest.raises(SubmissionConflict, match="another execution"):
        executions.replace_file(db, execution, mended)
    with pytest.raises(NotFound, match="no quarantined file"):
        executions.replace_file(db, execution, FileVersion("/elsewhere", "1", 1))


def test_what_is_forgotten_is_refused_as_too_old_and_so_never_taken_twice(db: Database, hand: Hand) -> None:
    old = submission.submit(db, "orders", dated(3, "old", OLD), request_key="old").execution
    undated = submission.submit(db, "orders", dated(3, "undated", None), request_key="undated").execution
    new = submission.submit(db, "orders", dated(3, "new", datetime.now(UTC)), request_key="new").execution
    live = submission.submit(db, "orders", dated(3, "live", OLD), request_key="live", seal=False).execution
    finish_all(hand())
    db.rows("update pipeline.execution set ended_at = %s where ended_at is not null returning 1", (OLD,))
    assert executions.prune_ledger(db, "orders", HORIZON) == 1
    assert executions.prune_ledger(db, "orders", HORIZON) == 0
    assert {row["execution"] for row in executions.listed(db)} == {undated, new, live}
    with pytest.raises(NotFound):
        executions.get(db, old)
    again = submission.submit(db, "orders", dated(3, "old", OLD), request_key="again")
    assert (again.taken, again.left_out) == (0, {"too_old": 3})
    verdicts = {v.verdict for v in submission.preview(db, "orders", dated(3, "old", OLD))}
    assert verdicts == {"too_old"}
    assert submission.submit(db, "orders", dated(3, "undated", None), request_key="u2").left_out == {"known": 3}


def test_the_horizon_never_goes_back_and_never_into_the_future(db: Database) -> None:
    executions.prune_ledger(db, "orders", HORIZON)
    executions.prune_ledger(db, "orders", OLD)
    submission.register_pipeline(db, "orders", batch_files=2)
    assert db.value("select horizon from pipeline.pipeline") == HORIZON
    with pytest.raises(InvalidInput, match="future"):
        executions.prune_ledger(db, "orders", datetime.now(UTC) + timedelta(days=1))


def test_a_step_forgets_a_hundred_thousand_files_or_one_execution(db: Database, hand: Hand) -> None:
    for key in "abcd":
        submission.submit(db, "orders", dated(1, key, OLD), request_key=key)
    finish_all(hand())
    db.rows("update pipeline.execution set ended_at = %s returning 1", (OLD,))
    for key, count in zip("abcd", (150_000, 60_000, 40_000, 40_000), strict=True):
        db.rows(
            "update pipeline.batch b set files = %s from pipeline.execution x "
            "where x.id = b.execution_id and x.request_key = %s returning 1",
            (count, key),
        )
    assert [executions.prune_ledger(db, "orders", HORIZON) for _ in range(4)] == [1, 2, 1, 0]
