"""What the benchmarks say of their numbers is so."""

import random
from pathlib import Path

import pytest

from benchmarks import end_to_end
from benchmarks.harness import Case, Check, Result, figure, interleaved, percentile, table
from benchmarks.page import PICTURES, page, results
from pg_pipeline_tests.helpers import PROJECT

CASE = Case("c", "x/s", [{"ours": 10.0, "lease": 20.0}, {"ours": 30.0, "lease": 10.0}, {"ours": 4.0, "lease": 5.0}])


def test_a_ratio_is_the_median_of_pairs_and_not_a_ratio_of_medians() -> None:
    assert (CASE.median("ours"), CASE.median("lease")) == (10, 10)
    assert CASE.ratio("ours", "lease") == 0.8
    assert CASE.spread("ours") == (4, 30)
    assert CASE.best(["lease", "absent"]) == "lease"
    assert CASE.best(["absent"]) is None


@pytest.mark.parametrize(("share", "value"), [(0.5, 50), (0.99, 99), (1, 100), (0.001, 1)])
def test_a_percentile_is_a_value_that_was_seen(share: float, value: int) -> None:
    assert percentile(range(100, 0, -1), share) == value


def test_every_round_has_every_way_once_and_the_seed_decides_the_order() -> None:
    def orders(seed: int) -> list[str]:
        asked: list[str] = []
        ways = {name: (lambda name=name: float(asked.append(name) or 1)) for name in "abcd"}  # type: ignore[misc, func-returns-value]
        rounds = interleaved(ways, 5, random.Random(seed), say=lambda _: None)
        assert [set(found) for found in rounds] == [set("abcd")] * 5
        return ["".join(asked[n : n + 4]) for n in range(0, 20, 4)]

    assert orders(7) == orders(7) != orders(8)
    assert len(set(orders(7))) > 1


def test_a_goal_is_met_when_every_check_is_and_wishes_do_not_count(tmp_path: Path) -> None:
    checks = [Check("rate", 0.9, 0.9, "at least", "×"), Check("time", 2.1, 2, "at most", " s", moonshot=True)]
    result = Result(1, "Title", [CASE], checks, lines={"size": [(0.0, 1.0)]})
    assert result.met
    assert [row[2:] for row in table([result])] == [
        ["0.90×", "at least 0.90×", "met"],
        ["2.10 s", "at most 2.00 s", "not met (a wish)"],
    ]
    assert not Result(1, "Title", [CASE], [Check("time", 2.1, 2, "at most")]).met
    kept = Result.load(result.save(tmp_path))
    assert (kept.cases, kept.checks) == (result.cases, result.checks)


def test_figures_have_three_digits_that_matter() -> None:
    assert [figure(value) for value in (12345.6, 12.34, 1.234, 0.01234)] == ["12,346", "12.3", "1.23", "0.0123"]


def test_the_parts_of_the_spark_goal_become_one_result() -> None:
    parts = [Result(7, "", [CASE], [Check(what, 1.2, 1.1, "at most")], left_out=[what]) for what in ("a", "b")]
    parts[1].about = {"postgres": {"fsync": "on"}}
    whole = end_to_end.joined(parts, files=4)
    assert [check.what for check in whole.checks] == whole.left_out == ["a", "b"]
    assert (len(whole.cases), whole.met, whole.about) == (2, False, {"files": 4, "postgres": {"fsync": "on"}})


def test_the_page_is_what_the_results_say() -> None:
    assert (PROJECT / "docs" / "performance.md").read_text() == page(), "run `make performance`"
    for result, digest in results():
        assert digest in (PICTURES / f"goal{result.goal}.svg").read_text(), "run `make performance`"
