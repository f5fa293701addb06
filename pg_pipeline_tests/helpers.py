"""What tests of real processes need: start one, wait for a condition, kill it."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

PROJECT = Path(__file__).resolve().parents[1]
Value = TypeVar("Value")


def wait_until(predicate: Callable[[], Value], *, timeout: float = 30.0, what: str = "the condition") -> Value:
    """Ask until the answer is true, and return it; fails with what was waited for."""
    until = time.monotonic() + timeout
    while True:
        answer = predicate()
        if answer:
            return answer
        if time.monotonic() > until:
            raise AssertionError(f"waited {timeout:.0f} s for {what}; the last answer was {answer!r}")
        time.sleep(0.02)


class ChildProcess:
    """A real process in a session of its own, with its output kept. `code` is Python source, or use `module`."""

    def __init__(
        self,
        code: str | None = None,
        *arguments: str,
        module: str | None = None,
        command: Sequence[str] | None = None,
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
    ) -> None:
        if command is None:
            start = ["-m", module] if module is not None else ["-c", code or ""]
            command = [sys.executable, *start, *arguments]
        environment = {**os.environ, "PYTHONPATH": str(PROJECT), "PYTHONUNBUFFERED": "1"}
        for name, value in (env or {}).items():
            if value is None:
                environment.pop(name, None)
            else:
                environment[name] = value
        self._stdout = tempfile.NamedTemporaryFile("w+", prefix="stdout-")
        self._stderr = tempfile.NamedTemporaryFile("w+", prefix="stderr-")
        self.process = subprocess.Popen(
            list(command),
            cwd=cwd or PROJECT,
            env=environment,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=self._stdout,
            stderr=self._stderr,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stdout(self) -> str:
        return Path(self._stdout.name).read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return Path(self._stderr.name).read_text(errors="replace")

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def wait_for_output(self, text: str, *, timeout: float = 60.0) -> None:
        """Wait until the child has printed this; a child that ends first is a failure."""

        def seen() -> bool:
            ended = not self.alive
            if text in self.stdout:
                return True
            assert not ended, f"the child ended with {self.process.returncode} before {text!r}: {self.stderr}"
            return False

        wait_until(seen, timeout=timeout, what=f"the child to print {text!r}")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill9(self) -> None:
        """Kill it as a crash would, and wait until it is gone."""
        self.process.kill()
        self.process.wait()

    def kill9_group(self) -> None:
        """Kill it together with every process it started in its session."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def wait(self, timeout: float = 120.0) -> int:
        return self.process.wait(timeout)

    def close(self) -> None:
        if self.alive:
            self.kill9()
        self._stdout.close()
        self._stderr.close()
