"""Batch-wise and exactly once against one plain Spark job, Structured Streaming, JDBC, and against a clean batch.

    python -m benchmarks.spark_batches [batches] [sink] [bad] [killed] [--files 200] [--rounds 3] [--out results.json]

`batches`  from submit to the callback's commit, with every promise, against one plain job into the same sink.
`killed`   the same with a worker that is killed with `kill -9` when half of the batches are in.
`sink`     a million rows into Postgres, against Spark's JDBC writer.
`bad`      a batch of a hundred files of which one, and fifty, are corrupt, against a clean one.

Sessions are started and warm before anything is timed. Every ratio is the median of the ratios of pairs, each pair from
one round of one process, in random order. `measure()` gives what the command prints, as plain values.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from pg_pipeline.assets.work import Bench as Workbench
from pg_pipeline.assets.work import drain
from pg_pipeline.coordination import partitions, submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.migrations import migrate
from pg_pipeline.coordination.types import AttemptRef, BatchFile, FileVersion
from pg_pipeline.coordination.worker import Worker
from pg_pipeline.embedded.java import ensure_java
from pg_pipeline.embedded.server import EmbeddedServer
from pg_pipeline.pipelines import FilePipeline
from pg_pipeline.sinks.postgres import PostgresTable
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
BATCHES = 10
Ways = dict[str, Callable[[], Any]]


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


def pipeline_of(name: str, reader: Any, size: int) -> FilePipeline:
    return FilePipeline(
        name=name,
        format="json",
        schema=SCHEMA,
        reader=reader,
        provenance=False,  # the plain job's rows have no file either
        sink=PostgresTable(name),
        batch_files=size,
        batch_bytes=1 << 40,
    )


def work_off(spark: Any, dsn: str, pipeline: FilePipeline) -> None:
    """A worker from its registration until nothing is left."""
    with Database(dsn) as db, Worker(db, pipelines=[pipeline.name]) as worker:
        for outcome in drain(Workbench(worker, {pipeline.name: pipeline}, lambda: spark, dsn), linger=0.0):
            assert outcome is None or outcome.status == "committed", outcome


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

    def write(self, df: Any, **options: Any) -> None:
        """Into the sink, with none of the protocol."""
        sink, ref = PostgresTable(self.table(), **options), self.attempt(0)
        with psycopg.connect(self.dsn) as conn:
            sink.prepare(conn, df.schema)
            conn.commit()
            sink.publish(conn, sink.stage(df, ref, self.dsn), ref)

    def one_job(self, files: list[BatchFile]) -> None:
        """A plain read of everything, into the same sink."""
        self.write(self.spark.read.schema(SCHEMA).json([file.path for file in files]))

    def submit(self, files: list[BatchFile], reader: Any, size: int) -> tuple[FilePipeline, str]:
        pipeline = pipeline_of(self.table(), reader, size)
        with Database(self.dsn) as db:
            submission.register_pipeline(db, pipeline.name, **pipeline.registration)
            listed = [FileVersion(file.path, file.version, file.size) for file in files]
            made = submission.submit(db, pipeline.name, listed, request_key=pipeline.name)
        return pipeline, made.execution

    def batch_wise(self, files: list[BatchFile], reader: Any, size: int) -> None:
        pipeline, execution = self.submit(files, reader, size)
        work_off(self.spark, self.dsn, pipeline)
        self._finished(execution)

    def killed(self, files: list[BatchFile], reader: Any, size: int, victim: Victim) -> None:
        """A worker dies when half of the batches are in, and another, which stood by, does the rest."""
        pipeline, execution = self.submit(files, reader, size)
        victim.go(pipeline.name, reader, size)
        half = len(files) // size // 2
        with Database(self.dsn) as db:
            while sum(b.state == "committed" for b in partitions.batches(db, execution)) < half:
                time.sleep(0.02)
        victim.kill()
        work_off_when_free(self.spark, self.dsn, pipeline, execution)
        self._finished(execution)

    def _finished(self, execution: str) -> None:
        with Database(self.dsn) as db:
            report = partitions.execution(db, execution)
        assert (report.status, report.quarantined) == ("finished", 0), report

    def streaming(self, files: list[BatchFile], size: int) -> None:
        """As its users write it: each micro-batch into the sink, and no other promise."""

        def commit(df: Any, _number: int) -> None:
            self.write(df)

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

    def one_batch(self, files: list[BatchFile], reader: Any, bad: int) -> None:
        sink = PostgresTable(self.table())
        ref = self.attempt(0)
        done = process_batch(self.spark, Recipe("json", SCHEMA, reader=reader), files, ref, sink, self.dsn)
        with psycopg.connect(self.dsn) as conn:
            sink.publish(conn, done.staged, ref)
        assert sum(file.state == "quarantined" for file in done.result.files) == bad

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


def work_off_when_free(spark: Any, dsn: str, pipeline: FilePipeline, execution: str) -> None:
    """The batches of a dead worker come free a moment after the others are done."""
    with Database(dsn) as db:
        while partitions.execution(db, execution).status != "finished":
            work_off(spark, dsn, pipeline)


class Victim:
    """A worker in a process of its own, warm, that is told what to do and killed."""

    def __init__(self, dsn: str, warm: tuple[str, str, int]) -> None:
        command = [sys.executable, "-m", "benchmarks.spark_batches", "victim", "--dsn", dsn]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self.go(*warm)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "done\n"

    def go(self, name: str, reader: str, size: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([name, reader, size]) + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def victim(dsn: str) -> None:
    ensure_java()
    spark = session()
    for line in sys.stdin:
        work_off(spark, dsn, pipeline_of(*json.loads(line)))
        print("done", flush=True)


def rounds(ways: Ways, count: int) -> list[dict[str, float]]:
    """Seconds of each way, a round at a time; the first round warms up and does not count. A way may say itself how
    long it took, without what it had to prepare."""
    found = []
    for number in range(count + 1):
        times: dict[str, float] = {}
        for name in random.sample(list(ways), len(ways)):
            start = time.perf_counter()
            said = ways[name]()
            times[name] = said if isinstance(said, float) else time.perf_counter() - start
            print(f"  round {number}: {name} {times[name]:.2f} s", flush=True)
        if number:
            found.append({name: times[name] for name in ways})
    return found


def case(name: str, found: list[dict[str, float]], bars: Sequence[tuple[str, str, str, float]]) -> dict[str, Any]:
    """A comparison as plain values. Each bar: a way, another, "at most" or "at least", and how many times."""
    checks = []
    for way, other, sense, bar in bars:
        if way not in found[0] or other not in found[0]:
            continue
        ratios = sorted(times[way] / times[other] for times in found)
        figure = statistics.median(ratios)
        met = figure <= bar if sense == "at most" else figure >= bar
        what = f"{name}: {way} / {other}"
        checks.append({"what": what, "figure": round(figure, 3), "bar": bar, "sense": sense, "met": met,
                       "spread": [round(ratios[0], 3), round(ratios[-1], 3)]})  # fmt: skip
        print(f"{what} {figure:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}), {sense} {bar}: {'' if met else 'not '}met")
    return {"name": name, "unit": "s", "rounds": found, "checks": checks}


def measure_batches(bench: Bench, files: list[BatchFile], count: int) -> dict[str, Any]:
    size = max(1, len(files) // BATCHES)
    ways: Ways = {
        "one job": lambda: bench.one_job(files),
        "batches, Arrow": lambda: bench.batch_wise(files, "arrow", size),
        "batches, Spark": lambda: bench.batch_wise(files, "spark", size),
        "streaming": lambda: bench.streaming(files, size),
    }
    bars = [
        ("batches, Spark", "one job", "at most", 1.10),
        ("batches, Arrow", "one job", "at most", 0.85),
        ("batches, Spark", "streaming", "at most", 1.0),
        ("batches, Arrow", "streaming", "at most", 1.0),
    ]
    return case(f"{len(files)} files in {BATCHES} batches", rounds(ways, count), bars)


def measure_killed(bench: Bench, files: list[BatchFile], count: int) -> dict[str, Any]:
    size = max(1, len(files) // BATCHES)

    def killed() -> float:
        warm = bench.submit(files[: 2 * size], "arrow", size)[0].name, "arrow", size
        doomed = Victim(bench.dsn, warm)
        start = time.perf_counter()
        bench.killed(files, "arrow", size, doomed)
        return time.perf_counter() - start

    ways: Ways = {"one job": lambda: bench.one_job(files), "killed halfway, Arrow": killed}
    return case("kill -9 halfway", rounds(ways, count), [("killed halfway, Arrow", "one job", "at most", 1.3)])


def measure_sink(bench: Bench, rows: int, count: int) -> dict[str, Any]:
    df = bench.spark.range(0, rows, 1, 4).selectExpr(
        "id", "concat('user', id) user", "rand(1) amount", "id % 2 = 0 ok", "timestamp'2026-01-01' at",
        "'Zürich' city", "cast(id as int) n1", "cast(-id as int) n2", "rand(2) score", "repeat('x', 60) note",
        "'a' kind", "id % 7 m",
    ).cache()  # fmt: skip
    df.count()
    ways: Ways = {"ours": lambda: bench.write(df), "ours, staged": lambda: bench.write(df, inline_bytes=0)}
    if not JDBC.exists():
        print(f"no JDBC driver at {JDBC}: not compared")
    else:
        bench.open_tcp()
        ways["jdbc"] = lambda: bench.jdbc(df)
        ways["jdbc, tuned"] = lambda: bench.jdbc(df, batchsize="10000")
    found = rounds(ways, count)
    df.unpersist()
    return case(f"{rows:,} rows", found, [("jdbc", "ours", "at least", 2.5), ("jdbc, tuned", "ours", "at least", 1.7)])


def measure_bad(bench: Bench, rows: int, count: int) -> dict[str, Any]:
    """One and fifty corrupt files of a hundred, each kind of batch against a clean one."""
    clean = _gzipped(generate(bench.folder / "plain", 100, rows), bench.folder / "clean", 0)
    one, fifty = _gzipped(clean, bench.folder / "one", 1), _gzipped(clean, bench.folder / "fifty", 50)
    ways: Ways = {}
    bars = []
    for reader in ("arrow", "spark"):
        for label, files, bad in (("clean", clean, 0), ("one bad", one, 1), ("fifty bad", fifty, 50)):
            ways[f"{reader}, {label}"] = lambda f=files, r=reader, b=bad: bench.one_batch(f, r, b)  # type: ignore[misc]
            if bad:
                bars.append((f"{reader}, {label}", f"{reader}, clean", "at most", 2.0))
    return case("bad files of a hundred", rounds(ways, count), bars)


def measure(
    what: Sequence[str] = ("batches", "sink", "bad", "killed"),
    *,
    files: int = 200,
    rows: int = 2500,
    count: int = 3,
    sink_rows: int = 1_000_000,
) -> list[dict[str, Any]]:
    """The comparisons asked for, each with its rounds and checks, as plain values. A file of 2,500 rows has 0.6 MB."""
    found = []
    with _bench() as bench:
        landed = generate(bench.folder / "landing", files, rows) if {"batches", "killed"} & set(what) else []
        if "batches" in what:
            found.append(measure_batches(bench, landed, count))
        if "killed" in what:
            found.append(measure_killed(bench, landed, count))
        if "sink" in what:
            found.append(measure_sink(bench, sink_rows, count))
        if "bad" in what:
            found.append(measure_bad(bench, rows, count))
    return found


@contextmanager
def _bench() -> Iterator[Bench]:
    ensure_java()
    with tempfile.TemporaryDirectory(prefix="pgp-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        server = EmbeddedServer(folder / "postgres", linger=0)
        server.attach()
        settings = {"spark.sql.warehouse.dir": f"{name}/warehouse"}
        spark = session({**settings, "spark.jars": str(JDBC)} if JDBC.exists() else settings)
        yield Bench(spark, server, folder)
        spark.stop()
        server.detach()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["batches", "sink", "bad", "killed"])
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--rows", type=int, default=2500)
    parser.add_argument("--sink-rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--dsn", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.what == ["victim"]:
        victim(asked.dsn)
        return
    found = measure(asked.what, files=asked.files, rows=asked.rows, count=asked.rounds, sink_rows=asked.sink_rows)
    if asked.out:
        asked.out.write_text(json.dumps(found, indent=1) + "\n")


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
