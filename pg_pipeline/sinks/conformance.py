"""The tests that every sink must pass. Subclass `SinkConformance` in a test module and give it your sink:

    class TestMySink(SinkConformance):
        @pytest.fixture
        def sink(self, tmp_path): return MySink(tmp_path)

        def visible_rows(self, sink, spark, conn): return [(row.id, row.name) for row in ...]

The fixtures `spark`, `conn` (autocommit) and `dsn` must exist: a session, and the pipeline's migrated database.
"""

from __future__ import annotations

import uuid
from typing import Any

import psycopg

from pg_pipeline.coordination.types import AttemptRef
from pg_pipeline.sinks.base import FILE, Sink, Staged


class SinkConformance:
    """Promises P2 and P3 as a sink must keep them, whatever its target is."""

    def visible_rows(self, sink: Any, spark: Any, conn: Any) -> list[tuple[int, str | None]]:
        """The (id, name) pairs that a reader of the target sees now."""
        raise NotImplementedError

    def attempt(self, batch: int = 0, generation: int = 1, execution: str = "20261118-a1b2") -> AttemptRef:
        return AttemptRef("conformance", execution, generation, batch, uuid.uuid4())

    def rows(self, spark: Any, *pairs: tuple[int, str | None]) -> Any:
        rows = [(*pair, f"/landing/{pair[0] % 2}.json") for pair in pairs]
        return spark.createDataFrame(rows, f"id long, name string, {FILE} string")

    def stage(self, sink: Sink, df: Any, attempt: AttemptRef, dsn: str) -> Staged:
        with psycopg.connect(dsn) as conn:
            sink.prepare(conn, df.schema)
        return sink.stage(df, attempt, dsn)

    def seen(self, sink: Sink, spark: Any, conn: Any) -> list[tuple[int, str | None]]:
        return sorted(self.visible_rows(sink, spark, conn), key=repr)

    def test_is_a_sink(self, sink: Sink) -> None:
        assert isinstance(sink, Sink)
        assert sink.name

    def test_staged_rows_are_not_visible(self, sink: Sink, spark: Any, conn: Any, dsn: str) -> None:
        staged = self.stage(sink, self.rows(spark, (1, "a"), (2, None)), self.attempt(), dsn)
        assert staged.rows == 2
        assert self.seen(sink, spark, conn) == []

    def test_published_rows_are_visible_once_the_transaction_commits(
        self, sink: Sink, spark: Any, conn: Any, dsn: str
    ) -> None:
        attempt = self.attempt()
        staged = self.stage(sink, self.rows(spark, (1, "a"), (2, None), (3, "ü")), attempt, dsn)
        with psycopg.connect(dsn) as finish:
            assert sink.publish(finish, staged, attempt) == 3
            assert self.seen(sink, spark, conn) == [], "visible before the finish transaction committed"
        assert self.seen(sink, spark, conn) == [(1, "a"), (2, None), (3, "ü")]

    def test_a_rolled_back_finish_shows_nothing(self, sink: Sink, spark: Any, conn: Any, dsn: str) -> None:
        attempt = self.attempt()
        staged = self.stage(sink, self.rows(spark, (1, "a")), attempt, dsn)
        with psycopg.connect(dsn) as finish:
            sink.publish(finish, staged, attempt)
            finish.rollback()
        assert self.seen(sink, spark, conn) == []

    def test_a_finish_asked_again_after_a_rollback_publishes(self, sink: Sink, spark: Any, conn: Any, dsn: str) -> None:
        attempt = self.attempt()
        staged = self.stage(sink, self.rows(spark, (1, "a")), attempt, dsn)
        with psycopg.connect(dsn) as finish:
            sink.publish(finish, staged, attempt)
            finish.rollback()
            sink.publish(finish, staged, attempt)
        assert self.seen(sink, spark, conn) == [(1, "a")]

    def test_of_two_attempts_only_the_published_one_is_seen(self, sink: Sink, spark: Any, conn: Any, dsn: str) -> None:
        dead, alive = self.attempt(), self.attempt()
        self.stage(sink, self.rows(spark, (1, "dead")), dead, dsn)
        staged = self.stage(sink, self.rows(spark, (1, "alive")), alive, dsn)
        with psycopg.connect(dsn) as finish:
            sink.publish(finish, staged, alive)
            sink.discard(finish, dead)
        assert self.seen(sink, spark, conn) == [(1, "alive")]

    def test_a_new_generation_replaces_the_rows_of_its_batch_alone(
        self, sink: Sink, spark: Any, conn: Any, dsn: str
    ) -> None:
        for batch, generation, pair in ((0, 1, (1, "old")), (1, 1, (2, "kept")), (0, 2, (3, "new"))):
            attempt = self.attempt(batch, generation)
            staged = self.stage(sink, self.rows(spark, pair), attempt, dsn)
            with psycopg.connect(dsn) as finish:
                sink.publish(finish, staged, attempt)
        assert self.seen(sink, spark, conn) == [(2, "kept"), (3, "new")]

    def test_a_batch_without_rows_replaces_too(self, sink: Sink, spark: Any, conn: Any, dsn: str) -> None:
        for generation, pairs in ((1, [(1, "old")]), (2, [])):
            attempt = self.attempt(0, generation)
            staged = self.stage(sink, self.rows(spark, *pairs), attempt, dsn)
            with psycopg.connect(dsn) as finish:
                assert sink.publish(finish, staged, attempt) == len(pairs)
        assert self.seen(sink, spark, conn) == []

    def test_discard_is_idempotent_and_spares_what_is_published(
        self, sink: Sink, spark: Any, conn: Any, dsn: str
    ) -> None:
        attempt = self.attempt()
        sink.discard(conn, attempt)
        staged = self.stage(sink, self.rows(spark, (1, "a")), attempt, dsn)
        with psycopg.connect(dsn) as finish:
            sink.publish(finish, staged, attempt)
        for _ in range(2):
            sink.discard(conn, attempt)
        assert self.seen(sink, spark, conn) == [(1, "a")]

    def test_prepare_is_idempotent(self, sink: Sink, spark: Any, conn: Any) -> None:
        schema = self.rows(spark, (1, "a")).schema
        for _ in range(2):
            sink.prepare(conn, schema)

    def test_rows_are_counted_by_file(self, sink: Sink, spark: Any, dsn: str) -> None:
        staged = self.stage(sink, self.rows(spark, (1, "a"), (2, "b"), (3, "c")), self.attempt(), dsn)
        assert staged.rows_by_file in (None, {"/landing/0.json": 1, "/landing/1.json": 2})
