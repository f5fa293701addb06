"""Writes docs/reliability.md: which test shows which case, and where processes are killed.

python -m pg_pipeline_tests.lessons.reliability
"""

from __future__ import annotations

import ast
import json
import re

from pg_pipeline_tests.crash.stories import BY_POINT, ELSEWHERE
from pg_pipeline_tests.helpers import PROJECT
from pg_pipeline_tests.lessons.guards import GUARDS
from pg_pipeline_tests.verify.check import BROKEN, SAFE

RESULTS = PROJECT / "pg_pipeline_tests" / "storm" / "results.jsonl"
LOADS = PROJECT / "pg_pipeline_tests" / "storm" / "load.jsonl"
PAGE = PROJECT / "docs" / "reliability.md"
_NAME = re.compile(r"test_(?:lesson_)?([a-e]\d+)_")

CASES = {
    "A1": "a worker dies between taking a task and storing its result",
    "A2": "processing raises an error",
    "A3": "the result is stored, and the answer is lost",
    "A4": "the same request or effect arrives twice",
    "A5": "malformed work",
    "A6": "work that is refused, or of an unknown kind",
    "A7": "work of a worker that is gone, without any restart",
    "A8": "single files of a batch are bad",
    "B1": "a retry after a lost answer sends everything again",
    "B2": "a retry meets an entry that was consumed meanwhile",
    "B3": "a limit was tightened between call and retry",
    "B4": "two releases at once, over one schema",
    "C1": "a poisoned task must say whose it was",
    "C2": "the connection was reaped during a long task",
    "C3": "handing a claim back meets a dead connection",
    "C4": "a task takes longer than its lease",
    "C5": "the memory of what is done is collected early",
    "C6": "a callback is delivered again",
    "C7": "an execution that was stopped tells whoever waits",
    "C8": "batches settle at the same moment",
    "D1": "a marker says done before the work is",
    "D2": "an execution is run again over its old markers",
    "D3": "death between the last batch and the callback",
    "D4": "death in the middle of the fan-out",
    "D5": "settling a batch fails",
    "D6": "what attempts left behind",
    "D7": "negative numbers",
    "D8": "the callback's priority and tenant",
    "D9": "a test that passes for the wrong reason",
    "D10": "a test that did not run",
    "E1": "two replays of one dead letter",
    "E2": "replay-all against replay",
    "E3": "a dead letter keeps everything",
}


_CLUSTER = "pg_pipeline_tests/e2e/test_spark_cluster.py"
_DAGSTER = "pg_pipeline_tests/e2e/test_faults.py"
_HOSTS = "pg_pipeline_tests/crash/test_hosts.py"
_POSTGRES = "pg_pipeline_tests/crash/test_postgres.py"
_SESSIONS = "pg_pipeline_tests/crash/test_sessions.py"
_TASKS = "pg_pipeline_tests/spark/test_task_faults.py"
_DEATH = "pg_pipeline_tests/assets/test_driver_death.py"
# What happens to the machines and programs around us: to whom, what, and the tests that do it for real.
FAULTS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "Spark",
        "an executor, then a Spark worker, killed in the middle of a write on a cluster",
        (
            f"{_CLUSTER}::test_p2_an_executor_and_then_a_spark_worker_killed_in_the_middle_of_their_writing_double_nothing",
        ),
    ),
    (
        "Spark",
        "a task runs twice at once (speculative execution)",
        (f"{_CLUSTER}::test_p2_of_a_task_that_ran_twice_at_once_each_row_is_visible_once",),
    ),
    (
        "Spark",
        "a task fails some times, or for good",
        (
            f"{_TASKS}::test_p2_tasks_that_fail_half_way_and_are_tried_again_show_each_row_once",
            f"{_TASKS}::test_p2_a_task_that_fails_three_times_fails_the_attempt_and_the_next_one_shows_each_row_once",
        ),
    ),
    (
        "Spark",
        "the driver runs out of memory",
        (
            f"{_DEATH}::test_p10_a_worker_whose_driver_ran_out_of_memory_claims_nothing_more_and_says_why",
            f"{_DEATH}::test_p2_a_batch_that_is_too_much_for_the_driver_becomes_a_dead_letter_and_its_neighbours_go_through",
        ),
    ),
    (
        "Spark",
        "executors lack our packages",
        (f"{_CLUSTER}::test_executors_that_lack_our_packages_end_the_run_with_a_sentence_and_cost_no_attempt",),
    ),
    (
        "a worker",
        "stopped past its lease and woken up, in each sink",
        (
            "pg_pipeline_tests/crash/test_spark_zombies.py"
            "::test_p3_a_zombie_of_each_sink_has_its_spark_jobs_cancelled_and_shows_nothing",
        ),
    ),
    (
        "hosts",
        "a network is cut and heals; clocks differ by an hour and more",
        (
            f"{_HOSTS}::test_p3_a_host_whose_network_was_cut_loses_its_lease_and_says_nothing_new_when_it_heals",
            f"{_HOSTS}::test_p9_hosts_whose_clocks_differ_by_minutes_share_a_queue",
            "pg_pipeline_tests/e2e/test_hosts.py"
            "::test_p2_p9_worker_runs_of_hosts_with_other_clocks_and_a_network_that_is_cut_do_each_batch_once",
        ),
    ),
    (
        "Dagster",
        "run workers, daemon, web server and code server killed at random",
        (f"{_DAGSTER}::test_run_workers_daemon_and_webserver_killed_at_random_cost_nothing",),
    ),
    (
        "Dagster",
        "a run started again, and a partition materialised again, beside the first attempt",
        (
            f"{_DAGSTER}::test_a_run_repeated_beside_its_first_attempt_touches_nothing_and_takes_over_only_from_the_dead",
        ),
    ),
    (
        "Dagster",
        "a sensor's tick is repeated",
        (
            "pg_pipeline_tests/sensors/test_landing.py::test_a_folder_waits_for_its_marker_and_is_submitted_once",
            "pg_pipeline_tests/sensors/test_depth.py::test_a_tick_that_is_repeated_starts_nothing_twice",
            "pg_pipeline_tests/sensors/test_depth.py::test_a_callback_that_nobody_runs_is_launched_again_after_each_crash",
            "pg_pipeline_tests/sensors/test_dead_letters.py::test_a_dead_letter_and_a_quarantined_file_are_observed_once_and_told",
            "pg_pipeline_tests/sensors/test_dead_letters.py::test_the_outbox_sensor_delivers_what_a_commit_recorded",
        ),
    ),
    (
        "Postgres",
        "killed and started again; its sessions ended; its disk full; an old transaction held open",
        (
            f"{_POSTGRES}::test_a_restart_of_postgres_does_not_look_like_dead_workers",
            f"{_POSTGRES}::test_a_disk_that_fills_under_load_costs_nothing_once_there_is_room",
            f"{_SESSIONS}::test_sessions_that_are_ended_here_cost_nothing",
            f"{_SESSIONS}::test_an_old_transaction_that_is_held_open_holds_nobody_up",
        ),
    ),
)


def tests_by_case() -> dict[str, list[str]]:
    """Case to the tests that cite it in their name, wherever they are."""
    found: dict[str, list[str]] = {case: [] for case in CASES}
    for path in sorted((PROJECT / "pg_pipeline_tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and (match := _NAME.match(node.name)):
                found.setdefault(match[1].upper(), []).append(f"{path.relative_to(PROJECT)}::{node.name}")
    return {case: sorted(tests) for case, tests in found.items()}


def text() -> str:
    lines = [
        "# Reliability",
        "",
        "What went wrong in real systems, and the tests that show that it does not here. This page is generated from",
        "the tests (`python -m pg_pipeline_tests.lessons.reliability`), and a test keeps it equal to them.",
        "",
        "## Cases",
        "",
        "| case | what happens | tests |",
        "|---|---|---|",
    ]
    for case, tests in tests_by_case().items():
        links = "<br>".join(_link(test) for test in tests)
        lines.append(f"| {case} | {CASES.get(case, '')} | {links} |")
    lines += [
        "",
        "## Faults around us",
        "",
        "Real processes, a real Postgres, a real Spark and a real Dagster.",
        "",
        "| whose | fault | tests |",
        "|---|---|---|",
    ]
    lines += [f"| {who} | {what} | {'<br>'.join(map(_link, tests))} |" for who, what, tests in FAULTS]
    lines += [
        "",
        "## Where processes are killed",
        "",
        "A real process is killed (`kill -9`) at each failpoint; `:n` is the n-th pass. Then its request is asked",
        "again, another worker goes on, and nothing is lost or doubled, the audit is clean, the callback and its",
        "effects happened once. `make test` runs a sample, `make test-all` every one.",
        "",
        "| failpoint | the process was about to |",
        "|---|---|",
    ]
    lines += [f"| `{point}` | {BY_POINT[point].verb.replace('_', ' ')} |" for point in sorted(BY_POINT)]
    lines += [f"| `{point}` | migrate |" for point in sorted(ELSEWHERE)]
    lines += [
        "",
        "## Guards",
        "",
        "Each guard is taken out of a copy of the code, and the test beside it must then fail (`make test-all`).",
        "",
        "| without | fails |",
        "|---|---|",
    ]
    lines += [f"| {guard.name} | {_link(guard.test)} |" for guard in GUARDS]
    lines += [
        "",
        "## Model",
        "",
        "The protocol as a [model](../sql/model/pipeline.pml), explored in every order of its steps with spin",
        "(`make verify`). Within these bounds it is proved; with a guard taken out, a counterexample is found.",
        "",
        "| bounds | |",
        "|---|---|",
    ]
    lines += [f"| {bounds.name} | proved |" for bounds in SAFE]
    lines += ["", "| without the guard | what then happens |", "|---|---|"]
    lines += [f"| {variant.name} | {variant.harm} |" for variant in BROKEN]
    lines += [
        "",
        "## Storm",
        "",
        "`make storm` kills at random workers, submitters, sessions, Postgres, the keeper that restarts it, the",
        "recovery itself and a Spark worker; with `DAGSTER=1` also the daemon, webserver, code server and runs of a",
        "`pg-pipeline up`, or all of it. Then the rows that plain Python makes of the input files are compared with",
        "the rows of the sinks, and the bills of a receiver with the same computation. Kept runs (`--record`):",
        "",
        "| seed | seconds | Spark | Dagster | strikes | deliveries | re-runs, retakes | rows | attempts lost | wrong |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for line in RESULTS.read_text().splitlines():
        run = json.loads(line)
        lost = run["attempts"].get("lost", 0) + run["attempts"].get("fenced", 0)
        cells = (
            *(run["seed"], f"{run['seconds']:.0f}", *("yes" if run.get(one) else "no" for one in ("spark", "dagster"))),
            sum(run["strikes"].values()),
            *(run["deliveries"], run["generations"] - run["deliveries"], run["rows"], lost),
            len(run["wrong"]) or "nothing",
        )
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return "\n".join([*lines, *_loads()]) + "\n"


def _loads() -> list[str]:
    lines = [
        "",
        "## Load held",
        "",
        "`python -m pg_pipeline_tests.storm.load` sends tasks at a steady rate for minutes while worker processes are",
        "killed (`kill -9`) and sessions ended at random. Each task's effect is a row of a table that would take any",
        "number of them; what was sent is known outside, and each must be there once. Kept runs (`--record`), other",
        "work beside them on two cores; a wait is from before the send to the effect, its p99 what a kill costs.",
        "Where fewer were done a second than sent, they could not keep up, and the wait is that of a backlog:",
        "",
        "| seed | tasks a second | seconds | workers | sent | workers killed | sessions ended | attempts lost "
        "| done a second | wait p50, p99 | found wrong |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for line in LOADS.read_text().splitlines():
        run = json.loads(line)
        cells = (
            *(run["seed"], run["rate"], f"{run['seconds']:.0f}", run["workers"], run["sent"], run["kills"]),
            *(run["sessions_ended"], run["attempts_lost"], f"{run['done_per_second']:.0f}"),
            f"{run['wait_p50_ms']:.0f} ms, {run['wait_p99_ms']:.0f} ms",
            len(run["wrong"]) or "nothing",
        )
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return lines


def _link(test: str) -> str:
    path, _, name = test.partition("::")
    return f"[`{name.partition('[')[0]}`](../{path})"


if __name__ == "__main__":
    PAGE.write_text(text())
