"""Dagster's UI in a real browser: a person opens the graph, launches a materialisation, sees batches turn green, and
opens metadata and checks. The pictures are in `artifacts/browser`."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from playwright.sync_api import BrowserContext, Page, expect, sync_playwright

from pg_pipeline.assets.checks import CHECKS
from pg_pipeline.cli.demo_files import plant
from pg_pipeline_tests.e2e.stack import MINUTES, Up
from pg_pipeline_tests.helpers import PROJECT, wait_until

pytestmark = pytest.mark.system("chromium")
PICTURES = PROJECT / "artifacts" / "browser"
# As root, and on a machine that reaches nothing else.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
GROUP = "/locations/pg_pipeline.definitions/asset-groups/orders"
expect.set_options(timeout=MINUTES * 1000)


@pytest.fixture
def browser() -> Iterator[BrowserContext]:
    PICTURES.mkdir(parents=True, exist_ok=True)
    for old in PICTURES.glob("*.png"):
        old.unlink()
    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        context = started.new_context(viewport={"width": 1440, "height": 900})
        context.set_default_timeout(MINUTES * 1000)
        yield context
        for number, page in enumerate(context.pages):
            picture(page, f"9-last-{number}")
        started.close()


def picture(page: Page, name: str) -> None:
    page.screenshot(path=PICTURES / f"{name}.png")


def launch(page: Page, folder: Path) -> None:
    """Materialise `orders/enqueued` for the files of a folder, from its node in the graph."""
    page.locator("svg").get_by_text("enqueued", exact=True).click()
    page.locator("button:right-of(:text('Materialize selected'))").first.click()
    page.get_by_role("menuitem", name="Open launchpad").click()
    launchpad = page.get_by_role("dialog")
    launchpad.locator(".CodeMirror").click()
    page.keyboard.press("ControlOrMeta+a")
    config = {"ops": {"orders__enqueued": {"config": {"paths": [str(folder)]}}}}
    page.keyboard.insert_text(json.dumps(config))  # JSON is YAML too
    expect(launchpad.get_by_text("No errors")).to_be_visible()
    picture(page, "2-launchpad")
    launchpad.get_by_role("button", name="Materialize").click()
    page.wait_for_url("**/runs/*")
    expect(page.get_by_text("Success", exact=True).first).to_be_visible()
    picture(page, "3-run")


def test_a_person_launches_a_materialisation_and_sees_batches_turn_green(up: Up, browser: BrowserContext) -> None:
    planted = plant(up.folder / "data" / "orders" / "sent", files=40, rows=20, closed=False)  # named by hand
    graph, page = browser.new_page(), browser.new_page()
    graph.goto(up.address + GROUP)
    expect(graph.locator("svg").get_by_text("0 partitions")).to_have_count(2)  # of batches and of summary
    expect(graph.get_by_role("dialog")).to_have_count(0)  # nothing stands in front of it
    picture(graph, "1-graph")

    page.goto(up.address + GROUP)
    launch(page, planted.folder)

    # The graph of the other tab was not loaded again.
    expect(graph.locator("svg").get_by_text("4 partitions", exact=True)).to_be_visible()
    expect(graph.locator("svg").get_by_text("100% filled")).to_have_count(2)
    expect(graph.locator("svg").get_by_text("4 / 5 Passed")).to_be_visible()
    picture(graph, "4-graph-green")

    report = up.execution()
    assert report is not None
    assert (report.expected, report.rows_out) == (4, planted.rows)
    page.goto(f"{up.address}/assets/orders/batches?view=partitions")
    expect(page.get_by_text("Materialized (4)")).to_be_visible()
    expect(page.get_by_text("Failed (0)")).to_be_visible()
    page.get_by_text(f"{report.execution}~00000").first.click()
    link = page.get_by_role("row", name=re.compile("^report ")).get_by_role("link").first
    expect(link).to_have_attribute("href", f"{up.pages}/report/{report.execution}")
    for name, value in (("files", "10"), ("attempts", "1"), ("dagster/relation_identifier", "analytics.orders")):
        expect(page.get_by_role("row", name=f"{name} {value}", exact=True)).to_be_visible()
    picture(page, "5-batch")

    page.goto(f"{up.address}/assets/orders/summary?view=partitions")
    page.get_by_text(report.execution).first.click()
    expect(page.get_by_role("row", name="country orders amount last_at", exact=True)).to_be_visible()
    picture(page, "6-summary")

    page.goto(f"{up.pages}/report/{report.execution}")
    expect(page).to_have_title(re.compile(report.execution))
    picture(page, "7-report")

    page.goto(f"{up.address}/assets/orders/batches?view=checks")
    for name in CHECKS:
        expect(page.get_by_text(name, exact=True).first).to_be_visible()
    page.get_by_role("button", name="Execute all").click()
    wait_until(lambda: executed(up), timeout=MINUTES, what="a run to have executed every check")
    expect(page.get_by_text("Passed", exact=True).first).to_be_visible()
    picture(page, "8-checks")


def executed(up: Up) -> bool:
    """Whether the latest result of every check is that of a run; those that a worker reports have none."""
    keys = [dg.AssetCheckKey(dg.AssetKey(["orders", "batches"]), name) for name in CHECKS]
    with dg.DagsterInstance.from_config(str(up.state / "dagster")) as instance:
        found = instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
        runs = [instance.get_run_by_id(record.run_id) for record in found.values()]
    ended = [run is not None and run.status == dg.DagsterRunStatus.SUCCESS for run in runs]
    return len(ended) == len(keys) and all(ended)
