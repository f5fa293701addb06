"""The program on a real terminal: it asks, it is live, it has colours, and Ctrl-C leaves the screen as it was."""

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from pg_pipeline.coordination import executions, submission
from pg_pipeline.coordination.database import Database
from pg_pipeline_tests.coordination.conftest import files
from pg_pipeline_tests.helpers import PROJECT

ALTERNATE_SCREEN, BACK = "\x1b[?1049h", "\x1b[?1049l"


class Terminal:
    """The program in a session whose terminal it is; what it shows is kept."""

    def __init__(self, dsn: str, *arguments: str, **env: str) -> None:
        self._mine, theirs = pty.openpty()
        environment = {
            **os.environ,
            "PYTHONPATH": str(PROJECT),
            "PG_PIPELINE_DSN": dsn,
            "TERM": "xterm-256color",
            **env,
        }
        self.process = subprocess.Popen(
            ["setsid", "--ctty", "--wait", sys.executable, "-m", "pg_pipeline", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
        )
        os.close(theirs)
        self.shown = ""

    def see(self, text: str, timeout: float = 60.0) -> None:
        until = time.monotonic() + timeout
        while text not in self.shown:
            assert time.monotonic() < until, f"waited for {text!r}; it shows {self.shown[-2000:]!r}"
            assert self._read(), f"it ended without {text!r}: {self.shown[-2000:]!r}"

    def type(self, text: str) -> None:
        os.write(self._mine, text.encode())

    def end(self) -> int:
        """Read on until it has ended; its exit code."""
        while self._read():
            pass
        return self.process.wait(60)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._mine)

    def _read(self) -> bool:
        if not select.select([self._mine], [], [], 1.0)[0]:
            return True
        data = b""
        with suppress(OSError):  # of a terminal that nobody has open any more
            data = os.read(self._mine, 65536)
        self.shown += data.decode(errors="replace")
        return bool(data)


@pytest.fixture
def terminal(dsn: str) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(*arguments: str, **env: str) -> Terminal:
        opened.append(Terminal(dsn, *arguments, **env))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


@pytest.mark.parametrize(("answer", "code", "status"), [("n\n", 1, "sealed"), ("y\n", 0, "cancelled")])
def test_what_cannot_be_undone_is_asked_first(
    terminal: Callable[..., Terminal], db: Database, answer: str, code: int, status: str
) -> None:
    execution = submission.submit(db, "orders", files(2), request_key="k").execution
    asking = terminal("cancel", execution, "--reason", "a test")
    asking.see("batches unsettled? [y/N]")
    assert executions.get(db, execution)["status"] == "sealed"
    asking.type(answer)
    assert asking.end() == code, asking.shown
    assert executions.get(db, execution)["status"] == status


def test_a_watched_status_is_live_and_gives_the_screen_back(terminal: Callable[..., Terminal], db: Database) -> None:
    watching = terminal("status", "--watch", "--interval", "0.1")
    watching.see("living executions: none")
    assert ALTERNATE_SCREEN in watching.shown
    watching.see(submission.submit(db, "orders", files(2), request_key="k").execution)
    watching.type("\x03")
    assert watching.end() == 130
    assert BACK in watching.shown
    assert "Traceback" not in watching.shown


def test_a_terminal_has_colours_unless_somebody_minds(terminal: Callable[..., Terminal]) -> None:
    coloured, plain = terminal("audit"), terminal("audit", NO_COLOR="1")
    assert (coloured.end(), plain.end()) == (0, 0)
    assert "\x1b[32mClean" in coloured.shown
    assert "\x1b[32m" not in plain.shown
    assert "Clean" in plain.shown
