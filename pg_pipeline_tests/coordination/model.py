"""The protocol as a small pure-Python model: what must be true after each operation."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

LIVE = ("open", "sealed")


@dataclass
class Task:
    id: int
    kind: str
    execution: str
    generation: int
    batch: int | None
    max_attempts: int
    attempts: int = 0
    suspect: bool = False
    token: UUID | None = None
    worker: int | None = None


@dataclass
class Execution:
    key: str
    order: int
    policy: str
    state: str = "sealed"
    generation: int = 1
    batches: dict[int, str] = field(default_factory=dict)
    visible: dict[int, UUID] = field(default_factory=dict)
    callbacks: dict[int, int] = field(default_factory=dict)  # generation -> times it committed
    called: bool = False  # the callback task of this generation was made

    @property
    def live(self) -> bool:
        return self.state in LIVE

    @property
    def settled(self) -> int:
        done = ("committed", "discarded", "dead") if self.policy == "partial" else ("committed", "discarded")
        return sum(state in done for state in self.batches.values())


@dataclass
class Letter:
    id: int
    task: Task


class Model:
    """Everything that Postgres should know, and nothing about how."""

    def __init__(self, max_attempts: int) -> None:
        self.max_attempts = max_attempts
        self.executions: dict[str, Execution] = {}
        self.tasks: dict[int, Task] = {}
        self.letters: dict[int, Letter] = {}
        self.ended: dict[UUID, str] = {}  # tokens that hold no lease any more -> outcome
        self.dead_workers: set[int] = set()

    def over(self, task: Task) -> bool:
        execution = self.executions[task.execution]
        return not execution.live or task.generation != execution.generation

    def held(self, worker: int) -> list[Task]:
        return [task for task in self.tasks.values() if task.worker == worker]

    def lease(self, token: UUID) -> Task | None:
        return next((task for task in self.tasks.values() if task.token == token), None)

    def reached(self, execution: Execution) -> bool:
        return execution.state == "sealed" and not execution.called and execution.settled == len(execution.batches)

    def end_attempt(self, task: Task, outcome: str) -> None:
        assert task.token is not None
        self.ended[task.token] = outcome
        task.token = task.worker = None

    def hand_back(self, task: Task, outcome: str, *, uncount: bool = False, suspect: bool | None = None) -> None:
        self.end_attempt(task, outcome)
        if self.over(task):
            del self.tasks[task.id]
            return
        task.attempts -= uncount
        task.suspect = task.suspect if suspect is None else suspect

    def bury(self, task: Task) -> None:
        """Without its letter: the caller learns the letter's id from Postgres."""
        del self.tasks[task.id]
        execution = self.executions[task.execution]
        if task.kind == "batch" and not self.over(task):
            assert task.batch is not None
            execution.batches[task.batch] = "dead"
            if execution.policy == "abort":
                self.end_early(execution, "aborted")

    def end_early(self, execution: Execution, state: str) -> None:
        execution.state = state
        for number, batch in execution.batches.items():
            if batch in ("waiting", "dead"):
                execution.batches[number] = "committed" if number in execution.visible else "released"

    def take_back(self) -> list[Task]:
        """Tasks of dead workers become suspects; those that were lost alone too often are buried, and returned."""
        buried = []
        taken = [task for task in self.tasks.values() if task.worker in self.dead_workers]
        for task in sorted(taken, key=lambda t: (self.executions[t.execution].order, t.id)):
            if task.attempts >= task.max_attempts and task.suspect and not self.over(task):
                self.end_attempt(task, "lost")
                buried.append(task)
                self.bury(task)
            else:
                self.hand_back(task, "lost", suspect=True)
        return buried

    def sift(self) -> None:
        """What a claim may remove on its way: waiting tasks of what is over."""
        for task in list(self.tasks.values()):
            if task.token is None and self.over(task):
                del self.tasks[task.id]

    def commit(self, task: Task) -> None:
        assert task.token is not None
        execution = self.executions[task.execution]
        token = task.token
        self.end_attempt(task, "committed")
        del self.tasks[task.id]
        if task.kind == "batch":
            assert task.batch is not None
            execution.batches[task.batch] = "committed"
            execution.visible[task.batch] = token
        else:
            execution.state = "finished"
            execution.callbacks[execution.generation] = execution.callbacks.get(execution.generation, 0) + 1
