"""P2 as a property: any split into batches, any order, any crash of an attempt gives the rows of one plain job."""

import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pg_pipeline.coordination.types import BatchFile
from pg_pipeline.sinks.parquet import ParquetDataset
from pg_pipeline.sinks.postgres import PostgresTable
from pg_pipeline.spark.process import process_batch
from pg_pipeline.spark.recipe import Recipe
from pg_pipeline_tests.spark.landing import attempt, land

NAMES = [f"{n}.json" for n in range(7)]
CONTENT: dict[str, Any] = {
    name: [{"id": n * 100 + i, "name": f"ü{i}"} for i in range(n + 1)] for n, name in enumerate(NAMES)
}
CONTENT["3.json"] = b'{"id": 300}\n{oops\n'
CONTENT["5.json"] = b""
GOOD = [name for name in NAMES if name not in ("3.json", "5.json")]
# How an attempt ends: its finish commits, it dies before, it dies in the finish, or it lost its lease to another.
ENDS = ["commit", "dies_staged", "rolls_back", "discarded", "commits_again"]


@pytest.fixture(scope="module")
def landing() -> Any:
    folder = Path(tempfile.mkdtemp(prefix="pgp-once-"))
    yield land(folder, CONTENT)
    shutil.rmtree(folder)


def plan() -> Any:
    """A split of the files into batches in some order, and how the attempts at each batch end; the last commits."""
    batches = st.permutations(range(len(NAMES))).flatmap(
        lambda order: st.lists(st.integers(1, 3), min_size=7, max_size=7).map(lambda sizes: _cut(order, sizes))
    )
    return st.tuples(batches, st.lists(st.lists(st.sampled_from(ENDS[1:]), max_size=1), min_size=7, max_size=7))


def _cut(order: Any, sizes: list[int]) -> list[list[int]]:
    rest, cut = list(order), []
    for size in sizes:
        if rest:
            cut.append(rest[:size])
            rest = rest[size:]
    return cut


@pytest.mark.parametrize("kind", ["driver", "executors", "parquet"])
@settings(max_examples=3, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(plan=plan())
def test_any_split_order_and_crash_gives_the_rows_of_one_plain_job(
    spark: Any, dsn: str, landing: list[BatchFile], kind: str, plan: Any
) -> None:
    batches, ends = plan
    target = f"t{abs(hash(str(plan)))}"
    folder = Path(tempfile.mkdtemp(prefix="pgp-once-"))
    sink: Any = (
        ParquetDataset(str(folder / target))
        if kind == "parquet"
        else PostgresTable(target, inline_bytes=0 if kind == "executors" else 1 << 20)
    )
    recipe = Recipe("json", "id long, name string", reader="spark" if kind == "driver" else "auto")
    for number, ordinals in enumerate(batches):
        files = [BatchFile(i, landing[o].path, landing[o].version, landing[o].size) for i, o in enumerate(ordinals)]
        for end in [*ends[number], "commit"]:
            ref = attempt(number)
            done = process_batch(spark, recipe, files, ref, sink, dsn)
            with psycopg.connect(dsn) as conn:
                if end == "discarded":
                    sink.discard(conn, ref)
                elif end != "dies_staged":
                    sink.publish(conn, done.staged, ref)
                    if end == "rolls_back":
                        conn.rollback()
    paths = [landing[NAMES.index(name)].path for name in GOOD]
    plain = spark.read.schema("id long, name string").json(paths).collect()
    with psycopg.connect(dsn) as conn:
        if kind == "parquet":
            seen = [(row.id, row.name) for row in sink.read(spark, conn).collect()]
        else:
            seen = conn.execute(
                psycopg.sql.SQL("select id, name from {}").format(psycopg.sql.Identifier(target))
            ).fetchall()
    shutil.rmtree(folder)
    assert Counter(seen) == Counter((row.id, row.name) for row in plain)
