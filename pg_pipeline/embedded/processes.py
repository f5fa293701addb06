"""Small questions about processes."""

import time
from collections.abc import Callable

import psutil


def is_alive(process: psutil.Process) -> bool:
    """A zombie is not: where nobody reaps, as in a container, it stays for ever."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def is_postgres(pid: int) -> bool:
    try:
        process = psutil.Process(pid)
        return process.name() == "postgres" and is_alive(process)
    except psutil.Error:
        return False


def poll(condition: Callable[[], bool], timeout: float) -> bool:
    """Ask until the answer is yes; False when the time is up."""
    until = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True
