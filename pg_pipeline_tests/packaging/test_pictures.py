"""The pictures are of real runs: what draws them shows what a person would see, and those committed show the demo."""

import html
import re
import runpy
import sys

import pytest

from pg_pipeline_tests.packaging.pages import DOCS

# A bar that is drawn again and again, as the demo does it, with lines above it.
PROGRAM = """
from pg_pipeline.cli.demo_run import _Bar
bar = _Bar()
with bar.shown():
    step = bar.step("Batches", 30)
    for done in range(31):
        step(done)
        if done == 15:
            bar.note("kill -9 of worker 1")
"""


def texts(svg: str) -> str:
    """What an SVG says, line by line."""
    lines: dict[float, list[str]] = {}
    for y, text in re.findall(r'<text class="demo-r\d+" x="[\d.]+" y="([\d.]+)"[^>]*>([^<]*)</text>', svg):
        lines.setdefault(float(y), []).append(html.unescape(text).replace("\xa0", " ").strip())
    return "\n".join(" ".join(lines[y]).strip() for y in sorted(lines))


def test_a_picture_shows_the_last_of_a_bar_once_and_in_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    pictures = runpy.run_path(str(DOCS / "pictures.py"))
    screen, code = pictures["seen"]([sys.executable, "-c", PROGRAM])
    assert code == 0, screen.display
    svg = pictures["drawn"](screen, "a title")
    said = texts(svg)
    assert said.splitlines()[0] == "kill -9 of worker 1"
    assert re.findall(r"Batches ━+ (\d+/\d+)", said) == ["30/30"]
    assert "#729c1f" in svg, "the green of a finished bar"
    assert "@font-face" not in svg


def test_the_demos_picture_is_of_a_run_that_counted_right() -> None:
    said = texts((DOCS / "demo.svg").read_text())
    assert re.search(r"kill -9 of worker 1 \(pid \d+\) while it worked on batch \d+; worker 2 takes over", said)
    for name, value in (("duplicates", "0"), ("lost", "0"), ("audit", "clean"), ("quarantined files", "8 of 8 .*")):
        assert re.search(rf"^{name} {value}$", said, re.MULTILINE), said
    assert re.search(r"^Dagster's UI: pg-pipeline up$", said, re.MULTILINE)
    assert (DOCS / "report.png").read_bytes().startswith(b"\x89PNG")
