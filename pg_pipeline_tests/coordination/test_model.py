"""Random interleavings of every operation, crashes and lost answers included, against the model.

After every step the tables must say what the model says, and audit must be clean.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pg_pipeline.coordination import dead_letters, executions, reaper, submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.errors import LeaseLost, NotFound, WrongState
from pg_pipeline_tests.coordination.conftest import HandWorker, files
from pg_pipeline_tests.coordination.model import Execution, Letter, Model, Task

WORKERS = 3
POLICIES = st.sampled_from(["strict", "partial", "abort"])
OFTEN = st.integers(0, 9).map(lambda n: n < 9)
ATTEMPTS = 2
TABLES = (
    "execution, file, batch, lane, task, attempt, attempt_output, receipt, dead_letter, outbox, worker, action, boot, "
    "pipeline, queue"
)


class Protocol(RuleBasedStateMachine):
    db: Database

    @initialize(data=st.data())
    def empty(self, data: st.DataObject) -> None:
        names = ", ".join(f"pipeline.{name.strip()}" for name in TABLES.split(","))
        self.db.write(lambda conn: conn.execute(f"truncate {names} cascade".encode()))
        submission.configure_queue(
            self.db, "default", lease="1 day", max_attempts=ATTEMPTS, backoff_base="0 s", breaker_after=0
        )
        for policy in ("strict", "partial", "abort"):
            submission.register_pipeline(self.db, policy, batch_files=1, policy=policy)
        self.model = Model(ATTEMPTS)
        self.hands = [HandWorker(self.db) for _ in range(WORKERS)]
        self.leases: list[dict[str, Any]] = []
        self.generation_of_hand = list(range(WORKERS))
        self.next_hand = WORKERS
        for policy in data.draw(st.lists(POLICIES, min_size=2, max_size=3)):
            self.submit(2, policy, False)

    # What Postgres made that the model has to learn the id of.
    def learn_tasks(self, execution: Execution) -> None:
        for row in self.db.rows(
            "select t.id, l.kind, t.generation, t.batch, t.max_attempts, "
            "t.attempts - (t.token is not null)::int as attempts from pipeline.task t "
            "join pipeline.lane l on l.id = t.lane_id join pipeline.execution x on x.id = t.execution_id "
            "where x.key = %s",
            (execution.key,),
        ):
            if row["id"] not in self.model.tasks and row["generation"] == execution.generation and execution.live:
                self.model.tasks[row["id"]] = Task(
                    row["id"],
                    row["kind"],
                    execution.key,
                    row["generation"],
                    row["batch"],
                    row["max_attempts"],
                    row["attempts"],
                )

    def settle(self, execution: Execution) -> None:
        """The barrier may have come to zero: then, and only then, there is one callback task."""
        if self.model.reached(execution):
            execution.called = True
            rows = self.db.rows(
                "select t.id from pipeline.task t join pipeline.lane l on l.id = t.lane_id "
                "join pipeline.execution x on x.id = t.execution_id "
                "where x.key = %s and l.kind = 'callback' and t.generation = x.generation",
                (execution.key,),
            )
            assert len(rows) == 1, "barrier at zero without exactly one callback"
            self.learn_tasks(execution)

    def learn_letters(self, buried: list[Task]) -> None:
        for task in buried:
            (row,) = self.db.rows(
                "select id from pipeline.dead_letter where task_id = %s order by id desc limit 1", (task.id,)
            )
            self.model.letters[row["id"]] = Letter(row["id"], task)
            self.settle(self.model.executions[task.execution])

    @rule(count=st.integers(1, 3), policy=POLICIES, twice=st.booleans())
    def submit(self, count: int, policy: str, twice: bool) -> None:
        if len(self.model.executions) >= 4:
            return
        key = uuid4().hex
        answer = submission.submit(self.db, policy, files(count, key), request_key=key)
        if twice:
            again = submission.submit(self.db, policy, files(count, key), request_key=key)
            assert (again.execution, again.created) == (answer.execution, False)
        execution = Execution(answer.execution, len(self.model.executions), policy)
        execution.batches = dict.fromkeys(range(count), "waiting")
        self.model.executions[answer.execution] = execution
        self.learn_tasks(execution)

    @rule(hand=st.integers(0, WORKERS - 1), limit=st.integers(1, 4), twice=st.booleans())
    def claim(self, hand: int, limit: int, twice: bool) -> None:
        name, claim_id = self.generation_of_hand[hand], uuid4()
        got = self.hands[hand].claim(limit, claim_id=claim_id)
        self.learn_letters(self.model.take_back())
        held = self.model.held(name)
        waiting = {t.id: t for t in self.model.tasks.values() if t.token is None and not self.model.over(t)}
        suspects = [t for t in waiting.values() if t.suspect]
        assert {lease["task_id"] for lease in got} <= set(waiting)
        if any(t.suspect for t in held):
            assert got == []
        elif suspects and not held:
            assert len(got) == 1
            assert waiting[got[0]["task_id"]].suspect
            assert got[0]["alone"]
        else:
            assert len(got) == min(limit, len(waiting) - len(suspects))
            assert not any(waiting[lease["task_id"]].suspect for lease in got)
        for lease in got:
            task = waiting[lease["task_id"]]
            task.token, task.worker, task.attempts, task.suspect = (
                lease["token"],
                name,
                task.attempts + 1,
                lease["alone"],
            )
            assert lease["token"] not in self.model.ended
            assert lease["attempt"] == task.attempts
        if twice and got:
            assert self.hands[hand].claim(limit, claim_id=claim_id) == got
        self.leases += got

    @rule(hand=st.integers(0, WORKERS - 1))
    def claim_some(self, hand: int) -> None:
        """Claims are what all else lives on: half of the walk should not pass without one."""
        self.claim(hand, 2, False)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def finish_one(self, data: st.DataObject) -> None:
        self.finish(data, False)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        """A worker that holds something crashes, and another claims."""
        _, task = self.pick(data)
        if task is not None and task.worker in self.generation_of_hand:
            hand = self.generation_of_hand.index(task.worker)
            self.crash(hand)
            self.claim(hand, 1, False)

    def pick(self, data: st.DataObject) -> tuple[dict[str, Any], Task | None]:
        living = [lease for lease in self.leases if self.model.lease(lease["token"])]
        zombies = [lease for lease in self.leases if lease not in living]
        some = living if living and (not zombies or data.draw(OFTEN)) else zombies
        lease = data.draw(st.sampled_from(some))
        return lease, self.model.lease(lease["token"])

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), twice=st.booleans())
    def finish(self, data: st.DataObject, twice: bool) -> None:
        lease, task = self.pick(data)
        hand = self.hands[0]
        for _ in range(1 + twice):
            if task is None:
                (row,) = hand.finish(lease)
                expected = self.model.ended[lease["token"]]
                assert row["outcome"] == ("lost" if expected == "lost" else expected)
            elif self.model.over(task):
                with pytest.raises(LeaseLost):
                    hand.finish(lease)
            else:
                (row,) = hand.finish(lease)
                assert row["outcome"] == "committed"
                execution = self.model.executions[task.execution]
                self.model.commit(task)
                self.settle(execution)
                task = None

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), retryable=st.booleans(), twice=st.booleans())
    def fail(self, data: st.DataObject, retryable: bool, twice: bool) -> None:
        lease, task = self.pick(data)
        answers = [self.hands[0].fail(lease, retryable) for _ in range(1 + twice)]
        assert answers[0] == answers[-1]
        if task is None:
            assert answers[0]["outcome"] == self.model.ended[lease["token"]]
        elif self.model.over(task) or (retryable and task.attempts < task.max_attempts):
            self.model.hand_back(task, "failed", suspect=False)
        else:
            self.model.end_attempt(task, "failed")
            self.model.bury(task)
            self.learn_letters([task])

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), twice=st.booleans())
    def release(self, data: st.DataObject, twice: bool) -> None:
        lease, task = self.pick(data)
        answers = [self.hands[0].release(lease) for _ in range(1 + twice)]
        if task is None:
            assert answers[0]["outcome"] == self.model.ended[lease["token"]]
        else:
            assert {a["outcome"] for a in answers} == {"released"}
            self.model.hand_back(task, "released", uncount=True)

    @rule(hand=st.integers(0, WORKERS - 1))
    def crash(self, hand: int) -> None:
        self.hands[hand].die()
        self.model.dead_workers.add(self.generation_of_hand[hand])
        self.hands[hand] = HandWorker(self.db)
        self.generation_of_hand[hand] = self.next_hand
        self.next_hand += 1

    @rule(hand=st.integers(0, WORKERS - 1))
    def beat(self, hand: int) -> None:
        name = self.generation_of_hand[hand]
        held = [lease for lease in self.leases if (t := self.model.lease(lease["token"])) and t.worker == name]
        answer = self.hands[hand].beat(*held)
        ended = {str(lease["token"]) for lease in held if self.model.over(self.model.tasks[lease["task_id"]])}
        assert (answer["lost"], set(answer["ended"]), answer["released"]) == ([], ended, 0)

    @precondition(lambda self: self.model.letters)
    @rule(data=st.data(), discard=st.booleans(), request=st.booleans())
    def resolve(self, data: st.DataObject, discard: bool, request: bool) -> None:
        letter = self.model.letters[data.draw(st.sampled_from(sorted(self.model.letters)))]
        execution = self.model.executions[letter.task.execution]
        over = self.model.over(letter.task)
        late = letter.task.kind == "batch" and execution.policy == "partial" and execution.called
        request_id = uuid4() if request else None

        def ask() -> dict[str, Any]:
            if discard:
                return dead_letters.discard(self.db, letter.id, "why not", request_id=request_id)
            return dead_letters.replay(self.db, letter.id, request_id=request_id)

        resolution = self.db.value("select resolution from pipeline.dead_letter where id = %s", (letter.id,))
        if resolution is not None:
            with pytest.raises(NotFound):
                ask()
            return
        if not discard and (over or late):
            with pytest.raises(WrongState):
                ask()
            return
        answer = ask()
        if request_id:
            assert ask() == answer
        else:
            with pytest.raises(NotFound):
                ask()
        del self.model.letters[letter.id]
        task = letter.task
        if over:  # a partial execution went on without it: its files are a person's decision now
            if task.batch is not None and execution.batches[task.batch] == "dead":
                execution.batches[task.batch] = "committed" if task.batch in execution.visible else "discarded"
            return
        if discard and task.kind == "callback":
            execution.state = "finished"
        elif discard:
            assert task.batch is not None
            execution.batches[task.batch] = "committed" if task.batch in execution.visible else "discarded"
            self.settle(execution)
        else:
            if task.batch is not None:
                execution.batches[task.batch] = "waiting"
            task.max_attempts, task.suspect = task.attempts + ATTEMPTS, False
            self.model.tasks[task.id] = task

    @precondition(lambda self: self.model.executions)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        execution = self.model.executions[data.draw(st.sampled_from(sorted(self.model.executions)))]
        if data.draw(OFTEN):
            return  # a walk that cancels everything early sees little
        if execution.live:
            executions.cancel(self.db, execution.key, "model")
            self.model.end_early(execution, "cancelled")
        else:
            with pytest.raises(WrongState):
                executions.cancel(self.db, execution.key, "model")

    @precondition(lambda self: self.model.executions)
    @rule(data=st.data())
    def rerun(self, data: st.DataObject) -> None:
        execution = self.model.executions[data.draw(st.sampled_from(sorted(self.model.executions)))]
        some = data.draw(st.sets(st.sampled_from(sorted(execution.batches)), min_size=1))
        whole = execution.generation > 1 or "released" not in execution.batches.values()
        can = not execution.live and (execution.state == "finished" or whole)
        if not can:
            with pytest.raises(WrongState):
                executions.rerun(self.db, execution.key, sorted(some))
            return
        if any(execution.batches[number] == "released" for number in some):
            with pytest.raises(NotFound):
                executions.rerun(self.db, execution.key, sorted(some))
            return
        executions.rerun(self.db, execution.key, sorted(some))
        execution.generation += 1
        execution.state, execution.called = "sealed", False
        for number in some:
            execution.batches[number] = "waiting"
        for letter in [
            x
            for x in self.model.letters.values()
            if x.task.execution == execution.key and (x.task.batch is None or x.task.batch in some)
        ]:
            del self.model.letters[letter.id]
        self.learn_tasks(execution)

    @rule()
    def compact(self) -> None:
        """The task table is written again; nothing that anybody can ask about changes."""
        tables = ("task", "worker", "lane")
        before = [self.db.rows(f"select to_jsonb(t) from pipeline.{name} t order by id") for name in tables]
        self.db.value("select pipeline.compact(1)")
        assert [self.db.rows(f"select to_jsonb(t) from pipeline.{name} t order by id") for name in tables] == before

    @rule()
    def reap(self) -> None:
        reaper.reap(self.db)
        self.learn_letters(self.model.take_back())
        self.model.sift()

    @invariant()
    def the_tables_say_what_the_model_says(self) -> None:
        if not hasattr(self, "model"):
            return
        for row in self.db.rows("select * from pipeline.execution"):
            execution = self.model.executions[row["key"]]
            assert (row["state"], row["generation"]) == (execution.state, execution.generation)
            if execution.live:
                assert (row["expected"], row["settled"]) == (len(execution.batches), execution.settled)
        for row in self.db.rows(
            "select x.key, b.* from pipeline.batch b join pipeline.execution x on x.id = b.execution_id"
        ):
            execution = self.model.executions[row["key"]]
            assert row["state"] == execution.batches[row["number"]]
            assert row["token"] == execution.visible.get(row["number"])
        for execution in self.model.executions.values():
            assert all(times == 1 for times in execution.callbacks.values())
        tokens: dict[int, UUID | None] = {
            r["id"]: r["token"] for r in self.db.rows("select id, token from pipeline.task")
        }
        for task in self.model.tasks.values():
            if not self.model.over(task) or task.token:
                assert tokens[task.id] == task.token

    @invariant()
    def audit_is_clean(self) -> None:
        if hasattr(self, "model"):
            assert executions.audit(self.db) == []


@pytest.fixture
def machine(db: Database) -> type[Protocol]:
    Protocol.db = db
    return Protocol


def run(machine: type[Protocol], examples: int, steps: int, *, seeded: bool) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=seeded,
            database=None,
            # Shrinking walks hundreds of times through Postgres: only where there is time for it.
            phases=[Phase.generate] if seeded else [Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_random_interleavings_keep_every_promise(machine: type[Protocol]) -> None:
    run(machine, 40, 50, seeded=True)


@pytest.mark.long
def test_many_random_interleavings_keep_every_promise(machine: type[Protocol]) -> None:
    run(machine, 500, 80, seeded=False)
