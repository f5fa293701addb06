"""The page on scaling is what was measured, and what measures it runs."""

import pytest

from benchmarks import ledger, scaling, simulation
from benchmarks.harness import Run
from pg_pipeline.embedded.server import EmbeddedServer


def test_the_page_is_what_the_results_say() -> None:
    assert scaling.PAGE.read_text() == scaling.page(), "run `make scaling`"


@pytest.mark.long
def test_a_replayed_load_is_worked_off_and_its_costs_are_counted(server: EmbeddedServer) -> None:
    found = simulation.measure(Run("tiny", 1, False, 7, embedded=server), [72_000], 3, 0.2)
    (step,) = found["steps"]
    assert step["submitted"] == 60
    assert step["batches_committed"] == 3
    assert step["batches_left"] == 0
    assert found["sizes"]["submit_wal_bytes_a_file"] > 0
    assert found["sizes"]["connections"] == {"submitting": 1, "worker, one slot": 2, "worker, four slots": 5}


@pytest.mark.long
def test_a_large_ledger_is_filled_asked_and_pruned(server: EmbeddedServer) -> None:
    found = ledger.measure(Run("tiny", 1, False, 7, embedded=server), 40_000)
    assert found["prune"]["files_a_step"] == 10_000
    assert all(figure > 0 for case in (*found["submit"], *found["claim"]) for figure in case.values())
