"""S3 end to end, against moto's server: landing, submit, a Spark worker, Postgres, the callback, a clean audit."""

import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from pg_pipeline.assets.work import check_pipeline
from pg_pipeline.coordination import executions
from pg_pipeline.coordination.types import BatchFile
from pg_pipeline.errors import ConfigurationError, InvalidInput
from pg_pipeline.pipelines import FilePipeline, landing
from pg_pipeline.sinks.postgres import PostgresTable
from pg_pipeline.spark.arrow_reader import read_file
from pg_pipeline.spark.errors import RecipeError
from pg_pipeline.spark.hadoop import hadoop_name
from pg_pipeline.spark.pieces import ReadPlan
from pg_pipeline.spark.process import process_batch
from pg_pipeline.spark.recipe import Recipe
from pg_pipeline.spark.spool import Spool
from pg_pipeline.storage import Storage
from pg_pipeline.testing import PipelineBench
from pg_pipeline_tests.helpers import ChildProcess, wait_until
from pg_pipeline_tests.orders import order
from pg_pipeline_tests.security.test_files import ODD
from pg_pipeline_tests.spark.landing import attempt, lines
from pg_pipeline_tests.storage.conftest import Bucket

Make = Callable[..., FilePipeline]
SCHEMA = "id long, name string"


def rows_of(first: int) -> bytes:
    return lines([order(first + n) for n in range(5)])


def test_a_delivery_goes_from_a_bucket_to_postgres_once(
    spark: Any, bench: PipelineBench, make_orders: Make, bucket: Bucket, conn: psycopg.Connection[Any]
) -> None:
    orders = make_orders(landing=f"{bucket.url}/landing", storage_options=bucket.options, tolerance=1.0, batch_files=50)
    day = "landing/2026/11/18"
    for n in range(3):
        bucket.put(f"{day}/{n}.json", rows_of(10 * n))
    bucket.put(f"{day}/part=1/3.json.gz", gzip.compress(rows_of(30)))
    bucket.put(f"{day}/cut.json.gz", gzip.compress(rows_of(40))[:-20])
    bucket.put(f"{day}/_temporary/0.json", b"not yet")
    for name in ("gone.json", "other.json"):
        bucket.put(f"{day}/{name}", rows_of(50))
    hostile = [name for name in ODD if "\n" not in name and not name.startswith(".")][::4]
    for number, name in enumerate(hostile):
        bucket.put(f"{day}/{name}", rows_of(1000 + 10 * number))
    assert not bench.tick("orders_landing").run_requests
    bucket.put(f"{day}/_SUCCESS")
    assert bench.tick("orders_landing").run_requests
    bench.materialize(orders, "enqueued")
    assert not bench.tick("orders_landing").run_requests, "asked twice is asked once"
    ((execution, taken),) = [(e["execution"], e["submission"]["taken"]) for e in executions.listed(bench.db)]
    assert taken == 7 + len(hostile)

    bucket.delete(f"{day}/gone.json")
    bucket.put(f"{day}/other.json", rows_of(60))  # of the same size
    bench.drain()
    report = bench.execution(execution)
    assert (report.status, report.rows_out) == ("finished", 20 + 5 * len(hostile))
    bad = {row["path"].rpartition("/")[2]: row["reason"] for row in executions.quarantined(bench.db, execution)}
    assert bad == {"cut.json.gz": "corrupt", "gone.json": "missing", "other.json": "changed"}
    expected = [
        n for first in (0, 10, 20, 30, *range(1000, 1000 + 10 * len(hostile), 10)) for n in range(first, first + 5)
    ]
    seen = conn.execute("select order_id, _file from analytics.orders order by 1").fetchall()
    assert [number for number, _ in seen] == expected
    assert {path for number, path in seen if number >= 1000} == {f"{bucket.url}/{day}/{name}" for name in hostile}
    assert sum(row["orders"] for row in report.summary["rows"]) == len(expected)

    assert bench.tick("orders_landing").run_requests, "the other version is new"
    bench.materialize(orders, "enqueued")
    assert executions.listed(bench.db)[0]["submission"]["taken"] == 1
    bench.drain()
    assert conn.execute("select count(*) from analytics.orders").fetchone() == (len(expected) + 5,)
    asked = conn.execute("select string_agg(to_jsonb(x)::text, ' ') from pipeline.pipeline x").fetchone()
    assert asked is not None
    assert "AWS_SECRET" not in asked[0], "options are not kept in Postgres, not even the names"


def test_the_command_line_takes_urls_too(
    child: Callable[..., ChildProcess], dsn: str, tmp_path: Path, bucket: Bucket
) -> None:
    (tmp_path / "mine.py").write_text(
        "from pg_pipeline.pipelines import FilePipeline\n"
        "from pg_pipeline.sinks.parquet import ParquetDataset\n"
        f"mine = FilePipeline(name='mine', format='json', schema='a long', sink=ParquetDataset('/tmp/mine'),\n"
        f"    roots=['{bucket.url}/in'], storage_options={bucket.options!r})\n"
    )
    etag = bucket.client.get_object(Bucket=bucket.name, Key=bucket.put("in/day/a.json", b"{}")[len(bucket.url) + 1 :])
    bucket.put("in/day/b.json", b"{}")
    bucket.put("in/day/c.txt", b"{}")
    bucket.put("out/a.json", b"{}")
    env = {"PG_PIPELINE_DSN": dsn, "PG_PIPELINE_PIPELINES": "mine"}

    def submit(*arguments: str, code: int = 0) -> Any:
        command = (sys.executable, "-m", "pg_pipeline", "submit", "mine", *arguments)
        process = child(command=command, env=env, cwd=tmp_path)
        assert process.wait() == code, process.stderr
        return json.loads(process.stdout) if code == 0 else process.stderr

    assert submit(f"s3a://{bucket.name}/in/day/a.json", "--json")["taken"] == 1
    again = submit(f"{bucket.url}/in/day", "--json")
    assert (again["taken"], again["left_out"]) == (1, {"known": 1})
    with psycopg.connect(dsn) as conn:
        found = conn.execute("select path, version from pipeline.file order by path").fetchall()
    assert found[0] == (f"{bucket.url}/in/day/a.json", etag["ETag"].strip('"'))
    for path, said in (
        (f"{bucket.url}/in/none", "There is no file or folder"),
        (f"{bucket.url}/out/a.json", "outside the folders that mine may read"),
        (f"{bucket.url}/in/../out/a.json", "outside the folders that mine may read"),
        ("s3://me:hidden@bucket/in", "has credentials in it"),
        ("https://bucket/in/a.json", "Files cannot be read from https://"),
    ):
        error = submit(path, code=1)
        assert said in error
        assert "hidden" not in error
        assert len(error.splitlines()) == 1


def test_a_page_of_a_bucket_is_bounded_and_the_watermark_finds_what_sorts_after_it(
    bench: PipelineBench, make_orders: Make, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_orders(landing=f"{bucket.url}/landing", storage_options=bucket.options, delivery="quiet:0s")
    for n in range(12):
        bucket.put(f"landing/{n:02}.json", rows_of(n * 10))
    monkeypatch.setattr(landing.page, "__defaults__", (None, 5))
    first = bench.tick("orders_landing")
    assert first.run_requests
    bench.materialize(bench._pipelines["orders"], "enqueued")
    assert [e["submission"]["taken"] for e in executions.listed(bench.db)] == [12]
    idle = bench.tick("orders_landing", cursor=first.cursor)
    assert not idle.run_requests
    # It moves once no file is so young that it may still grow.
    idle = wait_until(
        lambda: (tick := bench.tick("orders_landing")).cursor and '"high": "11.json"' in tick.cursor and tick,
        what="the watermark to move",
    )

    bucket.put("landing/00-late.json", rows_of(900))
    assert not bench.tick("orders_landing", cursor=idle.cursor).run_requests, "sorts before the watermark"
    bucket.put("landing/12.json", rows_of(910))
    after = bench.tick("orders_landing", cursor=idle.cursor)
    (request,) = after.run_requests or ()
    assert request.run_config["ops"]["orders__enqueued"]["config"] == {"since": "11.json"}
    bench.materialize(bench._pipelines["orders"], "enqueued", config={"since": "11.json"})
    assert executions.listed(bench.db)[0]["submission"]["taken"] == 1
    due = json.dumps({**json.loads(idle.cursor or "{}"), "scanned": 0.0})
    assert bench.tick("orders_landing", cursor=due).run_requests, "a listing of everything finds the late one"


def test_an_object_that_is_replaced_while_it_is_read_is_changed(bucket: Bucket) -> None:
    path = bucket.put("a.json", b'{"id": 1}\n' * 2_000_000)

    class Meddled(Storage):
        def open(self, path: str) -> Any:
            stream = super().open(path)
            stream.read(1)
            stream.seek(0)
            bucket.put("a.json", b'{"id": 2}\n' * 2_000_000)
            return stream

    storage = Meddled(bucket.options)
    now = storage.entry(path)
    plan = ReadPlan("json", pa.schema([("id", pa.int64())]), storage=storage)
    with Spool(plan.schema) as spool:
        report = read_file(BatchFile(0, path, now.version, now.size), plan, spool)
    assert report.reason == "changed"
    bucket.delete("a.json")
    with Spool(plan.schema) as spool:
        gone = BatchFile(0, path, now.version, now.size)
        assert read_file(gone, plan, spool, seen=True).reason == "vanished"
        assert read_file(gone, plan, spool).reason == "missing"


def test_a_store_that_fails_is_no_bad_file(bucket: Bucket) -> None:
    """The batch is tried again; nothing is set aside because the network was away."""
    away = Storage(
        {**bucket.options, "endpoint_url": "http://127.0.0.1:1", "config_kwargs": {"retries": {"max_attempts": 0}}}
    )
    plan = ReadPlan("json", pa.schema([("id", pa.int64())]), storage=away)
    with Spool(plan.schema) as spool, pytest.raises(Exception, match=r"127\.0\.0\.1:1"):
        read_file(BatchFile(0, f"{bucket.url}/a.json", "1", 1), plan, spool)
    mine = FilePipeline(
        name="p", format="json", schema=SCHEMA, sink=PostgresTable("public.p"), storage_options=away.options,
        landing=f"{bucket.url}/in",
    )  # fmt: skip
    with pytest.raises(Exception, match=r"127\.0\.0\.1:1"):
        landing.page(mine)


def test_sparks_own_reader_without_its_jar_is_one_clear_error_before_anything_is_claimed(
    spark: Any, dsn: str, bucket: Bucket
) -> None:
    said = r"Spark's own reader cannot read s3:// .* org\.apache\.hadoop:hadoop-aws:\d+\.\d+\.\d+"
    common: dict[str, Any] = {"name": "p", "format": "json", "sink": PostgresTable("public.p"), "landing": bucket.url}
    check_pipeline(spark, FilePipeline(**common, schema=SCHEMA))
    for needs_it in ({"schema": SCHEMA, "reader": "spark"}, {"schema": "id map<string,string>"}):
        with pytest.raises(ConfigurationError, match=f"Pipeline p: {said}"):
            check_pipeline(spark, FilePipeline(**common, **needs_it))
    recipe = Recipe(format="json", schema=SCHEMA, reader="spark", storage=Storage(bucket.options))
    file = Storage(bucket.options).entry(bucket.put("a.json", b"{}"))
    with pytest.raises(RecipeError, match=said):
        process_batch(
            spark, recipe, [BatchFile(0, file.path, file.version, file.size)], attempt(), PostgresTable("a.b"), dsn
        )
    assert hadoop_name("s3://b/a?b#c") == "s3a://b/a?b#c"


def test_landing_on_a_store_is_checked_when_definitions_load() -> None:
    def make(**changes: Any) -> FilePipeline:
        return FilePipeline(name="p", format="json", sink=PostgresTable("public.p"), **changes)

    assert make(landing="s3a://b/in/").landing_place == "s3://b/in"
    assert make(landing="s3://b/in", roots=["gcs://c/x"]).allowed_roots == ("s3://b/in", "gs://c/x")
    for wrong, said in (
        ({"landing": "s3://me:hidden@b/in"}, "has credentials"),
        ({"landing": "ftp://host/in"}, "cannot be read from ftp"),
        ({"landing": "s3://b/in/../out"}, "without . and .."),
        ({"landing": Path("s3://b/in")}, "was a URL before it was made a Path"),
        ({"roots": ["s3://b/%2e%2e/x"]}, "without . and .."),
        ({"storage_options": {"secret": "hidden"}}, "may be a secret"),
        ({"rescan": 5}, "rescan is 5"),
    ):
        with pytest.raises(ConfigurationError, match=said) as caught:
            make(**wrong)
        assert "hidden" not in str(caught.value)
    with pytest.raises(InvalidInput, match="outside"):
        list(landing.under(make(landing="s3://b/in"), ["s3://b/inner/a.json"]))


def test_a_manifest_in_a_bucket_names_what_is_beside_it(bucket: Bucket) -> None:
    mine = FilePipeline(
        name="p", format="json", sink=PostgresTable("public.p"), storage_options=bucket.options,
        landing=f"{bucket.url}/in", delivery="manifest",
    )  # fmt: skip
    bucket.put("in/d/a.manifest", f"x.json\n/in/d/y.json\n{bucket.url}/in/z.json\n../up.json\n".encode())
    bucket.put("in/d/bad.manifest", b"https://host/x.json\n")
    for name in ("d/x.json", "d/y.json"):
        bucket.put(f"in/{name}")
    assert landing.page(mine).found == []
    bucket.put("in/z.json")
    (found,) = landing.page(mine).found
    assert [file.path for file in found.files] == [
        f"{bucket.url}/in/{name}" for name in ("d/x.json", "d/y.json", "z.json", "d/../up.json")
    ]
    assert [one.request_key for one in landing.containing(mine, f"{bucket.url}/in/d/x.json")] == [found.request_key]
