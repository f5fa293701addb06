"""What goes wrong in a storm, one thing after the other, chosen by the seed."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import psycopg

from pg_pipeline.embedded.server import EmbeddedServer
from pg_pipeline_tests.crash.stories import BY_POINT
from pg_pipeline_tests.helpers import PROJECT
from pg_pipeline_tests.storm import roles
from pg_pipeline_tests.storm.landed import Dagster

DEFECT = 70  # the exit code of a process that met something other than the weather
# Where a process of each role may be killed from the inside, besides at any moment from the outside.
POINTS = {
    "worker": [p for p, story in BY_POINT.items() if story.verb in ("drain", "fail", "release")],
    "janitor": [p for p, story in BY_POINT.items() if story.verb in ("reap", "replay_many", "deliver", "rerun")],
    "submitter": [p for p, story in BY_POINT.items() if story.verb == "submit"],
    "spark": [],
}


class Program:
    """A process that is not forked, since a JVM is to live in it; as multiprocessing shows one."""

    def __init__(self, role: str, dsn: str, given: dict[str, Any], log: str) -> None:
        command = [sys.executable, "-m", roles.__name__, role, dsn, json.dumps(given), log]
        self._process = subprocess.Popen(command, cwd=PROJECT, stdin=subprocess.DEVNULL, start_new_session=True)
        self.pid = self._process.pid
        self.started = time.monotonic()
        self.terminate, self.kill = self._process.terminate, self._process.kill

    @property
    def exitcode(self) -> int | None:
        return self._process.poll()

    def join(self, timeout: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)


class Crew:
    """The processes, each replaced by a new one whenever it is gone."""

    def __init__(self, dsn: str, folder: Path, chance: random.Random, given: dict[str, Any], roles_: list[str]) -> None:
        self._dsn, self._folder, self._chance, self._given = dsn, folder, chance, given
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([roles.__name__])
        self._wanted = roles_
        self._members: list[tuple[str, Any]] = []
        self._stopped: dict[int, float] = {}
        self.deadly = True
        self.defects: list[str] = []
        self.ended: Counter[str] = Counter()

    def log(self, role: str) -> Path:
        return self._folder / f"{role}.log"

    def tend(self) -> None:
        """Count the dead, replace them, and wake those that were stopped for long enough."""
        for role, member in list(self._members):
            if member.exitcode is not None:
                self._members.remove((role, member))
                self.ended["killed" if member.exitcode == -signal.SIGKILL else f"exit {member.exitcode}"] += 1
                if member.exitcode not in (0, -signal.SIGKILL):
                    self.defects.append(f"a {role} ended with {member.exitcode}: {self.log(role).read_text()[-3000:]}")
        present = Counter(role for role, _ in self._members)
        for role, wanted in Counter(self._wanted).items():
            for _ in range(wanted - present[role]):
                self._start(role)
        now = time.monotonic()
        for pid in [pid for pid, until in self._stopped.items() if until < now]:
            del self._stopped[pid]
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _start(self, role: str) -> None:
        given = {**self._given, "seed": self._chance.getrandbits(32)}
        points = POINTS[role]
        if self.deadly and points and self._chance.random() < 0.5:
            given["failpoint"] = f"{self._chance.choice(points).partition(':')[0]}:{self._chance.randint(1, 12)}"
        arguments = (role, self._dsn, given, str(self.log(role)))
        if role == "spark":
            self._members.append((role, Program(*arguments)))
            return
        member = self._context.Process(target=roles.run, args=arguments)
        member.start()
        self._members.append((role, member))

    def kill(self) -> str:
        """Any of them; a Spark worker only after a minute, or it would never have come to work."""
        minute_ago = time.monotonic() - 60
        role, member = self._chance.choice(
            [one for one in self._members if one[0] != "spark" or one[1].started < minute_ago]
        )
        with contextlib.suppress(ProcessLookupError):
            for child in psutil.Process(member.pid).children(recursive=True):  # a Spark driver is the worker's child
                child.kill()
            os.kill(member.pid, signal.SIGKILL)
        return f"a {role}"

    def stop(self, seconds: float) -> str:
        """SIGSTOP, past its lease; woken, it is a zombie."""
        role, member = self._chance.choice([one for one in self._members if one[0] != "spark"])
        self._stopped[member.pid] = time.monotonic() + seconds
        with contextlib.suppress(ProcessLookupError):
            os.kill(member.pid, signal.SIGSTOP)
        return f"a {role}"

    def calm(self) -> None:
        """From now on nobody is killed or runs anything again; those that would are replaced."""
        self.deadly, self._given["meddle"] = False, False
        self._end([one for one in self._members if POINTS[one[0]]])

    def close(self) -> None:
        self._wanted = []
        self._end(self._members)

    def _end(self, members: list[tuple[str, Any]]) -> None:
        for pid in self._stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._stopped.clear()
        for _, member in members:
            member.terminate()
        for role, member in members:
            member.join(20)
            if member.exitcode is None:
                with contextlib.suppress(psutil.NoSuchProcess):
                    for child in psutil.Process(member.pid).children(recursive=True):
                        child.kill()
                member.kill()
                member.join(20)
            elif member.exitcode == DEFECT:
                self.defects.append(f"a {role} ended with {member.exitcode}: {self.log(role).read_text()[-3000:]}")
        self._members = [one for one in self._members if one not in members]


class Chaos:
    """One thing that goes wrong at a time, with a count of each."""

    def __init__(
        self, server: EmbeddedServer, crew: Crew, chance: random.Random, dagster: Dagster | None = None
    ) -> None:
        self._server, self._crew, self._chance, self._dagster = server, crew, chance, dagster
        self.counts: Counter[str] = Counter()

    def strike(self) -> None:
        what: Callable[[], None] = self._chance.choices(
            (self._process, self._zombie, self._session, self._backend, self._server_dies, self._restart, self._keeper),
            (40, 15, 25, 4, 4, 3, 4),
        )[0]
        with contextlib.suppress(psycopg.Error, psutil.Error):
            what()
        if self._dagster is not None and (struck := self._dagster.strike(self._chance)):
            self.counts[f"killed {struck}"] += 1

    def _process(self) -> None:
        self.counts[f"killed {self._crew.kill()}"] += 1

    def _zombie(self) -> None:
        self.counts[f"stopped {self._crew.stop(self._chance.uniform(0.5, 4))}"] += 1

    def _session(self) -> None:
        """Any session of ours: one that claims, finishes, beats, submits, reaps."""
        with psycopg.connect(self._server.dsn(), autocommit=True, connect_timeout=5) as conn:
            pids = [
                row[0]
                for row in conn.execute(
                    "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
                    " and backend_type = 'client backend' order by pid"
                )
            ]
            if pids:
                conn.execute("select pg_terminate_backend(%s)", (self._chance.choice(pids),))
                self.counts["ended a session"] += 1

    def _backend(self) -> None:
        """kill -9 of one backend: Postgres ends every session and recovers, under the same postmaster."""
        with psycopg.connect(self._server.dsn(), autocommit=True, connect_timeout=5) as conn:
            os.kill(conn.info.backend_pid, signal.SIGKILL)
            self.counts["killed a backend"] += 1

    def _server_dies(self) -> None:
        self._end_server(signal.SIGKILL)
        self.counts["killed Postgres"] += 1

    def _restart(self) -> None:
        self._end_server(signal.SIGQUIT)  # as pg_ctl stop -m immediate; the keeper starts it again
        self.counts["restarted Postgres"] += 1

    def _keeper(self) -> None:
        """Who restarts Postgres; the next process that starts brings another."""
        for one in psutil.process_iter(["cmdline"]):
            command = one.info["cmdline"] or []
            if "pg_pipeline.embedded.keeper" in command and str(self._server.folder) in command:
                one.kill()
                self.counts["killed the keeper"] += 1

    def _end_server(self, number: signal.Signals) -> None:
        postmaster = self._server.postmaster()
        if postmaster is not None:
            postmaster.send_signal(number)
            postmaster.wait(timeout=30)
