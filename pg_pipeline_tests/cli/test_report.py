"""`pg-pipeline report`: one page that is whole, safe, and says what the tables say."""

from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from pg_pipeline.coordination import submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.types import FileVersion
from pg_pipeline_tests.cli.conftest import Program
from pg_pipeline_tests.coordination.conftest import HandWorker
from pg_pipeline_tests.helpers import ChildProcess

EVIL = "/in/<script>alert(1)</script>\"onload='x'\u202e.json"
VOID = {"meta", "br", "link", "img", "input"}


class Page(HTMLParser):
    """Every tag with its attributes, and the text; raises where tags do not close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, Any]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def drawn(self, kind: str) -> int:
        """Bars of a kind; the legend has one of each outcome too."""
        return sum(tag == "rect" and attributes.get("class") == kind for tag, attributes in self.tags)


def test_the_page_shows_the_execution_and_obeys_nobody(
    program: Program, db: Database, dsn: str, tmp_path: Path
) -> None:
    files = [FileVersion(EVIL, "1", 1), *(FileVersion(f"/in/{n}.json", "1", 1) for n in range(3))]
    execution = submission.submit(db, "orders", files, request_key="k").execution
    zombie = HandWorker(db)
    (stolen,) = zombie.claim(1)
    zombie.die()
    hand = HandWorker(db)
    leases = [*hand.claim(1)]
    hand.finish(
        *leases,
        result={"rows_in": 3, "rows_out": 3, "quarantined": [{"ordinal": 0, "reason": "corrupt", "detail": EVIL}]},
    )
    zombie.finish(stolen)
    hand.fail(*hand.claim(1), error="<b>boom</b>")
    hand.finish(*hand.claim(1), result={"rows_in": 4, "rows_out": 4})

    target = tmp_path / "page.html"
    assert f"Wrote {target}." in program("report", execution, "--output", str(target)).stdout
    text = target.read_text()
    page = Page(text)
    assert page.drawn("fenced") == 2, "one in the legend, one in the timeline"
    assert page.drawn("committed") == 1 + 2
    assert page.drawn("failed") == 1 + 1
    assert page.drawn("column") > 2
    for said in (execution, "corrupt", "Clean: promises P1 to P5 hold.", "<b>boom</b>", "alert(1)"):
        assert said in page.text
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "b", "link", "img", "iframe", "a"})
    for _, attributes in page.tags:
        assert not [name for name in attributes if name.startswith(("on", "src", "href", "xlink"))]
    assert "://" not in text
    assert "\u202e" not in text
    assert "default-src 'none'" in text

    assert "add --yes" in program("report", execution, "--output", str(target), code=2).stderr
    program("report", execution, "--output", str(target), "--yes")
    refused = program("report", execution, "--output", str(tmp_path / "no" / "page.html"), code=1)
    assert "cannot be written" in refused.stderr


def test_an_execution_that_nobody_worked_on_has_a_page_too(program: Program, db: Database, tmp_path: Path) -> None:
    execution = submission.submit(db, "orders", [FileVersion("/in/a", "1", 1)], request_key="k").execution
    target = tmp_path / "page.html"
    program("report", execution, "--output", str(target))
    page = Page(target.read_text())
    assert "Nobody has worked on it yet." in page.text
    assert "No batch is committed yet." in page.text
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]


@pytest.mark.system("chromium")
def test_a_real_browser_draws_it_and_refuses_nothing_of_it(
    child: Callable[..., ChildProcess], program: Program, db: Database, hand: HandWorker, tmp_path: Path
) -> None:
    execution = submission.submit(db, "orders", [FileVersion(EVIL, "1", 1)], request_key="k").execution
    hand.finish(*hand.claim(1), result={"rows_out": 1, "quarantined": [{"ordinal": 0, "reason": EVIL}]})
    target = tmp_path / "page.html"
    program("report", execution, "--output", str(target))
    browser = ("chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}")
    picture = tmp_path / "page.png"
    looked = child(
        command=(*browser, "--enable-logging=stderr", f"--screenshot={picture}", target.as_uri()), env={"TMPDIR": None}
    )
    assert looked.wait() == 0, looked.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "Refused to" not in looked.stderr, "its own policy lets all of it through"
    dumped = child(command=(*browser, "--dump-dom", target.as_uri()), env={"TMPDIR": None})
    assert dumped.wait() == 0, dumped.stderr
    page = Page(dumped.stdout)
    assert page.drawn("committed") == 1 + 1
    assert "script" not in {tag for tag, _ in page.tags}
