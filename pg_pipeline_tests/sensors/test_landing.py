"""Landing: a delivery is submitted when it is all there, once, and again for what changed."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from pg_pipeline.assets.enqueue import REQUEST_TAG
from pg_pipeline.coordination import executions
from pg_pipeline.pipelines import FilePipeline, landing
from pg_pipeline.testing import PipelineBench
from pg_pipeline_tests.orders import files_of_orders
from pg_pipeline_tests.sensors.test_depth import definitions_job

Make = Callable[..., FilePipeline]


def taken(bench: PipelineBench) -> list[tuple[int, int]]:
    """(files taken, files left out) of each execution, oldest first."""
    found = [e["submission"] for e in reversed(executions.listed(bench.db))]
    return [(s["taken"], sum(s["left_out"].values())) for s in found]


def sense(bench: PipelineBench, pipeline: FilePipeline, cursor: str | None = None) -> dg.SensorResult:
    return bench.tick("orders_landing", cursor=cursor)


def enqueue(bench: PipelineBench, pipeline: FilePipeline) -> None:
    bench.materialize(pipeline, "enqueued")


def test_a_folder_waits_for_its_marker_and_is_submitted_once(bench: PipelineBench, make_orders: Make) -> None:
    orders = make_orders()
    bench.plant("day1", files_of_orders(3))
    assert not sense(bench, orders).run_requests
    bench.plant("day1", {"_SUCCESS": ""})
    answer = sense(bench, orders)
    assert [request.run_key for request in answer.run_requests or ()] == [None]
    assert sense(bench, orders).run_requests, "a tick changes nothing, so it may be repeated"
    enqueue(bench, orders)
    assert taken(bench) == [(3, 0)]
    assert not sense(bench, orders).run_requests
    enqueue(bench, orders)
    assert taken(bench) == [(3, 0)]


def test_each_folder_is_an_execution_of_its_own(bench: PipelineBench, make_orders: Make) -> None:
    orders = make_orders()
    for day in ("2026/11/17", "2026/11/18"):
        bench.plant(day, {**files_of_orders(2), "part=1/x.json": files_of_orders(1)["0000.json"], "_SUCCESS": ""})
    enqueue(bench, orders)
    assert taken(bench) == [(3, 0), (3, 0)]


def test_a_changed_and_a_late_file_are_taken_alone(bench: PipelineBench, make_orders: Make) -> None:
    orders = make_orders()
    bench.plant("day1", {**files_of_orders(3), "_SUCCESS": ""})
    enqueue(bench, orders)
    bench.plant("day1", {"0001.json": files_of_orders(1, rows=9)["0000.json"], "late.json": "{}"})
    assert sense(bench, orders).run_requests
    enqueue(bench, orders)
    assert taken(bench) == [(3, 0), (2, 2)]


def test_a_file_that_still_grows_holds_its_delivery_back(bench: PipelineBench, make_orders: Make) -> None:
    orders = make_orders()
    folder = bench.plant("day1", {**files_of_orders(2), "_SUCCESS": ""})
    os.utime(folder / "0001.json")
    assert not sense(bench, orders).run_requests
    assert list(landing.everything(orders)) == []


def test_a_manifest_waits_for_every_file_it_names(bench: PipelineBench, make_orders: Make) -> None:
    orders = make_orders(delivery="manifest")
    bench.plant("in", {**files_of_orders(3), "a.manifest": "0000.json\n0001.json\nmissing.json\n"})
    assert not sense(bench, orders).run_requests
    bench.plant("in", {"missing.json": files_of_orders(1)["0000.json"]})
    assert sense(bench, orders).run_requests
    enqueue(bench, orders)
    assert taken(bench) == [(3, 0)]
    bench.plant("in", {"b.manifest": '[{"path": "0002.json", "size": 1}]'})
    assert not sense(bench, orders).run_requests


def test_loose_files_wait_for_quiet(bench: PipelineBench, make_orders: Make, tmp_path: Path) -> None:
    orders = make_orders(delivery="quiet:30s")
    folder = bench.plant("", files_of_orders(3))
    recent = time.time() - 10
    os.utime(folder / "0002.json", (recent, recent))
    assert not sense(bench, orders).run_requests
    bench.plant("", files_of_orders(3))  # a minute old again
    assert sense(bench, orders).run_requests
    enqueue(bench, orders)
    assert taken(bench) == [(3, 0)]
    assert not sense(bench, orders).run_requests
    bench.plant("", {"0003.json": files_of_orders(1)["0000.json"]})
    enqueue(bench, orders)
    assert taken(bench) == [(3, 0), (1, 3)]


def test_a_page_is_bounded_and_goes_on_from_its_cursor(bench: PipelineBench, make_orders: Make) -> None:
    orders = make_orders()
    days = [f"day{n:02}" for n in range(9)]
    for day in days:
        bench.plant(day, {**files_of_orders(4), "_SUCCESS": ""})
    found, cursor, pages = [], None, 0
    while True:
        page = landing.page(orders, cursor, limit=12)
        found += [one.name for one in page.found]
        pages += 1
        cursor = page.cursor
        if cursor is None:
            break
    assert found == days
    assert pages > 3


def test_a_submission_under_way_is_not_started_again(bench: PipelineBench, make_orders: Make) -> None:
    orders = make_orders()
    bench.plant("day1", {**files_of_orders(2), "_SUCCESS": ""})
    run = bench.instance.create_run_for_job(
        definitions_job(), tags={REQUEST_TAG: "orders"}, status=dg.DagsterRunStatus.STARTED
    )
    assert not sense(bench, orders).run_requests
    bench.instance.report_run_failed(run)
    answer = sense(bench, orders)
    assert answer.skip_reason is not None
    assert "failed" in (answer.skip_reason.skip_message or "")  # backs off, then tries again


def test_listing_ten_thousand_files_costs_a_tick_a_quarter_of_its_second(
    bench: PipelineBench, make_orders: Make
) -> None:
    orders = make_orders()
    for day in range(20):
        folder = bench.folder / f"day{day:02}"
        folder.mkdir()
        for n in range(500):
            (folder / f"{n:04}.json").touch()
    began = time.process_time()  # this machine may be busy with other things
    page = landing.page(orders)
    assert page.cursor is not None
    assert landing.page(orders, page.cursor).cursor is None
    assert time.process_time() - began < 0.25


@pytest.mark.parametrize("cursor", ["", "not json", '{"other": 1}'])
def test_a_cursor_of_another_release_begins_again(bench: PipelineBench, make_orders: Make, cursor: str) -> None:
    orders = make_orders()
    bench.plant("day1", {**files_of_orders(2), "_SUCCESS": ""})
    assert sense(bench, orders, cursor).run_requests


def test_submissions_only_have_no_landing_sensor(bench: PipelineBench, make_orders: Make) -> None:
    orders = make_orders(landing=None)
    sensors: list[Any] = list(orders.definitions().sensors or ())
    assert "orders_landing" not in [sensor.name for sensor in sensors]
    refused = bench.materialize(orders, "enqueued", raise_on_error=False)
    assert not refused.success
