"""Makes docs/demo.svg and docs/report.png from a real run of the demo: `make pictures` (needs chromium, and minutes).

The demo runs on a terminal, and an emulator says what a person would have seen at its end.
"""

import fcntl
import json
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import pyte
from rich.console import CONSOLE_SVG_FORMAT, Console
from rich.style import Style
from rich.text import Text

HERE = Path(__file__).parent
PROGRAM = (sys.executable, "-m", "pg_pipeline")
BROWSER = ("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1180,1000")
COLUMNS, LINES = 100, 60


def seen(command: Sequence[str], env: dict[str, str] | None = None) -> tuple[pyte.Screen, int]:
    """The terminal's screen when the command has ended, and its exit code."""
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    mine, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = {**(env or os.environ), "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    while True:
        try:
            data = os.read(mine, 65536)
        except OSError:  # nobody has the terminal open any more
            break
        stream.feed(data)
    os.close(mine)
    return screen, process.wait()


def drawn(screen: pyte.Screen, title: str) -> str:
    """The screen as SVG, without the web font that rich would fetch."""
    lines = [_line(screen, number) for number in range(screen.lines)]
    while lines and not lines[-1].plain.strip():
        lines.pop()
    with Path(os.devnull).open("w") as nowhere:
        console = Console(
            record=True, width=screen.columns, file=nowhere, force_terminal=True, color_system="truecolor"
        )
        for line in lines:
            console.print(line, no_wrap=True, highlight=False)
        code_format = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
        return console.export_svg(title=title, code_format=code_format, unique_id="demo")


def _line(screen: pyte.Screen, number: int) -> Text:
    text = Text()
    cells = [screen.buffer[number][column] for column in range(screen.columns)]
    for (colour, bold), run in groupby(cells, key=lambda cell: (_colour(cell.fg), cell.bold)):
        text.append("".join(cell.data for cell in run), Style(color=colour, bold=bold))
    text.rstrip()
    return text


def _colour(name: str) -> str | None:
    """pyte's names of the sixteen colours, and its hexadecimal others, as rich has them."""
    if name == "default":
        return None
    if re.fullmatch(r"[0-9a-f]{6}", name):
        return f"#{name}"
    return name.replace("brown", "yellow").replace("bright", "bright_")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="pg_pipeline-", ignore_cleanup_errors=True) as folder:
        env = {**os.environ, "PG_PIPELINE_STATE_DIR": f"{folder}/state", "PG_PIPELINE_EMBEDDED_LINGER": "1"}
        named = Path(folder) / "bin" / "pg-pipeline"  # as it is called where it is installed
        named.parent.mkdir()
        named.write_text(f'#!/bin/sh\nexec {shlex.join(PROGRAM)} "$@"\n')
        named.chmod(0o755)
        env["PATH"] = f"{named.parent}:{env['PATH']}"
        env.pop("PG_PIPELINE_DSN", None)
        env.pop("DAGSTER_HOME", None)
        screen, code = seen([str(named), "demo"], env)
        if code:
            sys.exit("\n".join(screen.display))
        (HERE / "demo.svg").write_text(drawn(screen, "pg-pipeline demo") + "\n")
        listed = subprocess.run([*PROGRAM, "executions", "--json"], capture_output=True, check=True, env=env)
        execution = json.loads(listed.stdout)[0]["execution"]
        page = Path(folder) / "report.html"
        subprocess.run([*PROGRAM, "report", execution, "--output", str(page)], check=True, env=env)
        command = [*BROWSER, f"--user-data-dir={folder}/profile", f"--screenshot={HERE / 'report.png'}", page.as_uri()]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
