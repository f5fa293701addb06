"""The site builds without a warning, leads nowhere that is not there, and fetches nothing from anywhere."""

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pg_pipeline_tests.helpers import ChildProcess
from pg_pipeline_tests.packaging.pages import DOCS

BUILD = ("-m", "sphinx", "--builder", "html", "--fail-on-warning", "--quiet")


@pytest.fixture
def build(child: Callable[..., ChildProcess], tmp_path: Path) -> Callable[..., ChildProcess]:
    def run(source: Path) -> ChildProcess:
        process = child(command=(sys.executable, *BUILD, str(source), str(tmp_path / "site")))
        process.wait()
        return process

    return run


@pytest.mark.parametrize(
    ("page", "heading"),
    [
        ("concepts", "The words"),
        ("concepts", "The promises"),
        ("protocol", "Where a process can die"),
        ("pipelines", "Writing a pipeline"),
        ("sinks", "A sink of your own"),
        *(
            ("operating", heading)
            for heading in (
                *("Sizing", "Retention", "Pooling", "Backup and restore", "Upgrade", "Monitoring", "Health"),
                *("Blocked execution", "Growing backlog", "Dead letters", "Drain and roll back"),
            )
        ),
        *(("deploying", heading) for heading in ("Your own Postgres", "A Spark cluster", "Several hosts")),
        *(("settings", "Settings"), ("cli", "Command line"), ("sql", "SQL reference"), ("limits", "Limits")),
    ],
)
def test_what_people_look_for_has_a_heading(page: str, heading: str) -> None:
    assert re.search(rf"^#+ {re.escape(heading)}$", (DOCS / f"{page}.md").read_text(), re.MULTILINE)


def test_the_site_builds_and_fetches_nothing(build: Callable[..., ChildProcess], tmp_path: Path) -> None:
    done = build(DOCS)
    assert (done.process.returncode, done.stderr) == (0, "")
    pages = {page.stem: page.read_text() for page in (tmp_path / "site").glob("*.html")}
    assert {page.stem for page in DOCS.glob("*.md")} <= set(pages)
    for name, text in pages.items():
        fetched = re.findall(r"<(?:link|script|img|iframe)\b[^>]*(?:src|href)=\"((?:https?:)?//[^\"]+)", text)
        assert fetched == [], name
    for sheet in (tmp_path / "site" / "_static").rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", sheet.read_text()), sheet.name
    for picture in (tmp_path / "site").rglob("*.svg"):
        assert not re.search(r"url\([\"']?https?://|xlink:href=\"https?://", picture.read_text()), picture.name


@pytest.mark.parametrize(
    "link",
    ["[gone](gone.md)", "[gone](operating.md#gone)", "[gone](#gone)", "![gone](gone.png)", "[gone](../gone.py)"],
)
def test_a_link_that_leads_nowhere_fails_the_build(
    build: Callable[..., ChildProcess], tmp_path: Path, link: str
) -> None:
    shutil.copytree(DOCS, tmp_path / "project" / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "project" / "pg_pipeline_tests").symlink_to(DOCS.parent / "pg_pipeline_tests")
    with (tmp_path / "project" / "docs" / "limits.md").open("a") as page:
        page.write(f"\n{link}\n")
    done = build(tmp_path / "project" / "docs")
    assert done.process.returncode != 0
    assert "gone" in done.stderr
