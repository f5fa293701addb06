"""Batch-wise and exactly once against one plain Spark job, Structured Streaming, JDBC, and against a clean batch.

    python benchmarks/spark_batches.py [batches] [sink] [bad] [--files 200] [--rounds 3] [--out results.json]

Every ratio is made of times from one process, in rounds of random order; trust them more than the seconds.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from pg_pipeline.coordination.migrations import migrate
from pg_pipeline.coordination.types import AttemptRef, BatchFile
from pg_pipeline.embedded.java import ensure_java
from pg_pipeline.embedded.server import EmbeddedServer
from pg_pipeline.sinks.postgres import PostgresTable
from pg_pipeline.spark.batches import BatchRunner
from pg_pipeline.spark.files import file_version
from pg_pipeline.spark.process import process_batch
from pg_pipeline.spark.recipe import Recipe
from pg_pipeline.spark.session import session

SCHEMA = (
    "id long, user string, amount double, ok boolean, at timestamp, city string, "
    "n1 int, n2 int, score double, note string, kind string, tags array<string>"
)
# Debian's libpostgresql-jdbc-java; without it the comparison with JDBC is left out, and says so.
JDBC = Path(os.environ.get("JDBC_JAR", "/usr/share/java/postgresql.jar"))


def generate(folder: Path, files: int, rows: int) -> list[BatchFile]:
    folder.mkdir(parents=True, exist_ok=True)
    dice = random.Random(7)
    listed = []
    for number in range(files):
        path = folder / f"{number:05}.json"
        lines = [
            json.dumps(
                {
                    "id": number * rows + n,
                    "user": f"user{dice.randrange(10**6)}",
                    "amount": dice.random() * 1000,
                    "ok": n % 3 == 0,
                    "at": f"2026-01-{n % 28 + 1:02}T12:00:00Z",
                    "city": "Zürich",
                    "n1": n,
                    "n2": -n,
                    "score": dice.random(),
                    "note": "x" * 60,
                    "kind": dice.choice("abc"),
                    "tags": ["a", "b"],
                }
            )
            for n in range(rows)
        ]
        path.write_text("\n".join(lines) + "\n")
        found = file_version(str(path))
        listed.append(BatchFile(number, found.path, found.version, found.size))
    return listed


class Bench:
    def __init__(self, spark: Any, server: EmbeddedServer, folder: Path) -> None:
        self.spark = spark
        self.server = server
        self.folder = folder
        self.dsn = server.dsn("postgres")
        migrate(self.dsn)

    def attempt(self, batch: int) -> AttemptRef:
        return AttemptRef("bench", uuid.uuid4().hex[:12], 1, batch, uuid.uuid4())

    def table(self) -> str:
        return f"t_{uuid.uuid4().hex[:10]}"

    def one_job(self, files: list[BatchFile]) -> None:
        """A plain read of everything, into the same sink."""
        sink, ref = PostgresTable(self.table()), self.attempt(0)
        df = self.spark.read.schema(SCHEMA).json([file.path for file in files])
        with psycopg.connect(self.dsn) as conn:
            sink.prepare(conn, df.schema)
            sink.publish(conn, sink.stage(df, ref, self.dsn), ref)

    def batch_wise(self, files: list[BatchFile], reader: Any, size: int) -> None:
        sink = PostgresTable(self.table())
        recipe = Recipe("json", SCHEMA, reader=reader, provenance=False)
        runner = BatchRunner(self.spark)
        refs = [self.attempt(n) for n in range(0, len(files), size)]
        futures = [
            runner.submit(recipe, files[n * size : (n + 1) * size], ref, sink, self.dsn) for n, ref in enumerate(refs)
        ]
        for future, ref in zip(futures, refs, strict=True):
            with psycopg.connect(self.dsn) as conn:
                sink.publish(conn, future.result().staged, ref)
        runner.close()

    def streaming(self, files: list[BatchFile], size: int) -> None:
        sink = PostgresTable(self.table())

        def commit(df: Any, number: int) -> None:
            ref = self.attempt(number)
            with psycopg.connect(self.dsn) as conn:
                sink.prepare(conn, df.schema)
                sink.publish(conn, sink.stage(df, ref, self.dsn), ref)

        query = (
            self.spark.readStream.schema(SCHEMA)
            .option("maxFilesPerTrigger", str(size))
            .json(str(Path(files[0].path).parent))
            .writeStream.foreachBatch(commit)
            .option("checkpointLocation", str(self.folder / uuid.uuid4().hex))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def one_batch(self, files: list[BatchFile], reader: Any) -> None:
        sink = PostgresTable(self.table())
        ref = self.attempt(0)
        done = process_batch(self.spark, Recipe("json", SCHEMA, reader=reader), files, ref, sink, self.dsn)
        with psycopg.connect(self.dsn) as conn:
            sink.publish(conn, done.staged, ref)

    def our_sink(self, df: Any) -> None:
        sink, ref = PostgresTable(self.table()), self.attempt(0)
        with psycopg.connect(self.dsn) as conn:
            sink.prepare(conn, df.schema)
            sink.publish(conn, sink.stage(df, ref, self.dsn), ref)

    def jdbc(self, df: Any, **options: str) -> None:
        with psycopg.connect(self.dsn) as conn:
            port = conn.info.port
        url = f"jdbc:postgresql://127.0.0.1:{port}/postgres" + ("?reWriteBatchedInserts=true" if options else "")
        df.write.format("jdbc").options(
            url=url, dbtable=self.table(), user="postgres", driver="org.postgresql.Driver", **options
        ).save()

    def open_tcp(self) -> None:
        """JDBC has no unix sockets; this server is gone with the benchmark."""
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            conn.execute("alter system set listen_addresses = '127.0.0.1'")
        with (self.server.data / "pg_hba.conf").open("a") as rules:
            rules.write("host all all 127.0.0.1/32 trust\n")
        with self.server.starting():
            self.server.stop()
            self.server.start()


def rounds(ways: dict[str, Callable[[], None]], count: int) -> dict[str, float]:
    """The median seconds of each way; the first round warms up and does not count."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(count + 1):
        for name in random.sample(list(ways), len(ways)):
            start = time.perf_counter()
            ways[name]()
            if number:
                times[name].append(time.perf_counter() - start)
                print(f"  round {number}: {name} {times[name][-1]:.2f} s", flush=True)
    return {name: statistics.median(found) for name, found in times.items()}


def compare(title: str, medians: dict[str, float], base: str) -> dict[str, Any]:
    ratios = {name: round(seconds / medians[base], 2) for name, seconds in medians.items()}
    print(f"{title}: " + ", ".join(f"{name} {ratio}x" for name, ratio in ratios.items()), flush=True)
    return {"seconds": {name: round(seconds, 2) for name, seconds in medians.items()}, "ratio_to_" + base: ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=["batches", "sink", "bad"])
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--rows", type=int, default=2500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    ensure_java()
    jars = {"spark.jars": str(JDBC)} if JDBC.exists() else {}
    with tempfile.TemporaryDirectory(prefix="pgp-bench-") as name:
        folder = Path(name)
        server = EmbeddedServer(folder / "postgres", version=18, linger=0)
        server.attach()
        bench = Bench(session(jars), server, folder)
        found: dict[str, Any] = {}
        files = generate(folder / "landing", asked.files, asked.rows)
        if "batches" in asked.what:
            size = max(1, len(files) // 10)
            medians = rounds(
                {
                    "one job": lambda: bench.one_job(files),
                    "batches, Arrow": lambda: bench.batch_wise(files, "arrow", size),
                    "batches, Spark": lambda: bench.batch_wise(files, "spark", size),
                    "streaming": lambda: bench.streaming(files, size),
                },
                asked.rounds,
            )
            found["batches"] = compare("ten batches", medians, "one job")
        if "sink" in asked.what:
            df = bench.spark.range(0, 1_000_000, 1, 4).selectExpr(
                "id", "concat('user', id) user", "rand(1) amount", "id % 2 = 0 ok", "timestamp'2026-01-01' at",
                "'Zürich' city", "cast(id as int) n1", "cast(-id as int) n2", "rand(2) score", "repeat('x', 60) note",
                "'a' kind", "id % 7 m",
            ).cache()  # fmt: skip
            df.count()
            ways = {
                "ours": lambda: bench.our_sink(df),
                "ours, staged": lambda: _staged(bench, df),
            }
            if not JDBC.exists():
                print(f"no JDBC driver at {JDBC}: not compared")
            else:
                bench.open_tcp()
                ways["jdbc"] = lambda: bench.jdbc(df)
                ways["jdbc tuned"] = lambda: bench.jdbc(df, batchsize="10000")
            found["sink"] = compare("a million rows", rounds(ways, asked.rounds), "ours")
        if "bad" in asked.what:
            found["bad"] = _bad(bench, folder, asked)
        if asked.out:
            asked.out.write_text(json.dumps(found, indent=1) + "\n")
        bench.spark.stop()
        server.detach()


def _staged(bench: Bench, df: Any) -> None:
    sink, ref = PostgresTable(bench.table(), inline_bytes=0), bench.attempt(0)
    with psycopg.connect(bench.dsn) as conn:
        sink.prepare(conn, df.schema)
    staged = sink.stage(df, ref, bench.dsn)
    with psycopg.connect(bench.dsn) as conn:
        sink.publish(conn, staged, ref)


def _bad(bench: Bench, folder: Path, asked: Any) -> dict[str, Any]:
    """One and fifty corrupt files of a hundred, each kind of batch against a clean one."""
    clean = _gzipped(generate(folder / "plain", 100, asked.rows), folder / "clean", 0)
    one, fifty = _gzipped(clean, folder / "one", 1), _gzipped(clean, folder / "fifty", 50)
    ways: dict[str, Callable[[], None]] = {}
    for reader in ("arrow", "spark"):
        for label, files in (("clean", clean), ("one bad", one), ("fifty bad", fifty)):
            ways[f"{reader}, {label}"] = lambda files=files, reader=reader: bench.one_batch(files, reader)  # type: ignore[misc]
    medians = rounds(ways, asked.rounds)
    return {
        reader: compare(
            f"{reader} reader", {n.split(", ")[1]: s for n, s in medians.items() if n.startswith(reader)}, "clean"
        )
        for reader in ("arrow", "spark")
    }


def _gzipped(files: list[BatchFile], folder: Path, bad: int) -> list[BatchFile]:
    folder.mkdir()
    made = []
    for file in files:
        source = Path(file.path)
        data = source.read_bytes()
        packed = data if source.suffix == ".gz" else gzip.compress(data, 1)
        every = len(files) // bad if bad else 0
        if every and file.ordinal % every == every // 2:
            packed = packed[: len(packed) // 2]
        path = folder / (source.name if source.suffix == ".gz" else source.name + ".gz")
        path.write_bytes(packed)
        found = file_version(str(path))
        made.append(BatchFile(file.ordinal, found.path, found.version, found.size))
    return made


if __name__ == "__main__":
    main()
