"""Batch-wise and exactly once against one plain Spark job, Structured Streaming, JDBC, and against a clean batch.

    python -m benchmarks.spark_batches [batches] [killed] [sink] [bad] [--files 200] [--rounds 3] [--out FOLDER]

`batches`  from submit to the callback's commit, with every promise, against one plain job into the same sink.
`killed`   in the same rounds, with a worker that is killed with `kill -9` when half of the batches are in.
`sink`     a million rows into Postgres, against Spark's JDBC writer.
`bad`      a batch of a hundred files of which one, and fifty, are corrupt, against a clean one.

Sessions are started and warm before anything is timed: every way has run once, on a part of the files. Every ratio is
the median of the ratios of pairs, each pair from one round of one process, in random order.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import psycopg

from benchmarks.harness import Case, Check, Result, Round, table
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

    def cpu(self) -> float:
        """Seconds of CPU that this process, its Java with its Pythons, and Postgres have used so far."""
        postmaster = self.server.postmaster()
        assert postmaster is not None
        total = 0.0
        for root in (psutil.Process(), psutil.Process(postmaster.pid)):
            for process in (root, *root.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):  # what it used is then among its parent's
                    total += sum(process.cpu_times()[:4])
        return total

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


def rounds(bench: Bench, ways: Ways, asked: Asked, count: int | None = None) -> tuple[list[Round], list[Round]]:
    """Seconds of each way and of all its processes' CPU, a round at a time. A way may say itself how long it took,
    without what it had to prepare; what that used of the CPU is not told apart."""
    found = []
    for number in range(1, (count or asked.rounds) + 1):
        times: Round = {}
        cpu: Round = {}
        for name in asked.dice.sample(list(ways), len(ways)):
            before, start = bench.cpu(), time.perf_counter()
            said = ways[name]()
            times[name] = said if isinstance(said, float) else time.perf_counter() - start
            if not isinstance(said, float):
                cpu[name] = bench.cpu() - before
            print(f"  round {number}: {name} {times[name]:.2f} s, {cpu.get(name, 0):.2f} s of CPU", flush=True)
        found.append(({name: times[name] for name in ways}, {name: cpu[name] for name in ways if name in cpu}))
    return [times for times, _ in found], [cpu for _, cpu in found]


def cases(name: str, found: tuple[list[Round], list[Round]]) -> list[Case]:
    """The times, and what they cost: of a machine that is busy with other work the CPU says more."""
    return [Case(name, "s", found[0]), Case(f"{name}: CPU of Spark, Python and Postgres", "s", found[1])]


def check(case: Case, way: str, other: str, sense: str, bar: float) -> Check:
    return Check(f"{case.name}: {way} to {other}", case.ratio(way, other), bar, sense, "×")


ONE, STREAMING = "one plain Spark job", "Structured Streaming"
ARROW, SPARK, KILLED = "ours, Arrow reader", "ours, Spark's reader", "ours, Arrow reader, killed halfway"


def measure_batches(bench: Bench, files: list[BatchFile], asked: Asked) -> tuple[list[Case], list[Check]]:
    def ways(files: list[BatchFile]) -> Ways:
        size = max(1, len(files) // BATCHES)

        def killed() -> float:
            doomed = Victim(bench.dsn, (bench.submit(files[: 2 * size], "arrow", size)[0].name, "arrow", size))
            start = time.perf_counter()
            bench.killed(files, "arrow", size, doomed)
            return time.perf_counter() - start

        found: Ways = {ONE: lambda: bench.one_job(files)}
        if "batches" in asked.what:
            found[ARROW] = lambda: bench.batch_wise(files, "arrow", size)
            found[SPARK] = lambda: bench.batch_wise(files, "spark", size)
            found[STREAMING] = lambda: bench.streaming(files, size)
        return found | ({KILLED: killed} if "killed" in asked.what else {})

    few = generate(bench.folder / "few", min(len(files), 20), asked.rows)
    rounds(bench, {name: way for name, way in ways(few).items() if name != KILLED}, asked, 1)
    size = sum(file.size for file in files) / len(files)
    name = f"{len(files)} files of {size / 1e6:.2f} MB in {BATCHES} batches"
    found = cases(name, rounds(bench, ways(files), asked))
    case = found[0]
    bars = [
        (SPARK, ONE, 1.10),
        (ARROW, ONE, 0.85),
        (SPARK, STREAMING, 1.0),
        (ARROW, STREAMING, 1.0),
        (KILLED, ONE, 1.3),
    ]
    return found, [check(case, way, other, "at most", bar) for way, other, bar in bars if way in case.ways]


def measure_sink(bench: Bench, asked: Asked) -> tuple[list[Case], list[Check]]:
    def ways(rows: int) -> Ways:
        df = bench.spark.range(0, rows, 1, 4).selectExpr(
            "id", "concat('user', id) user", "rand(1) amount", "id % 2 = 0 ok", "timestamp'2026-01-01' at",
            "'Zürich' city", "cast(id as int) n1", "cast(-id as int) n2", "rand(2) score", "repeat('x', 60) note",
            "'a' kind", "id % 7 m",
        ).cache()  # fmt: skip
        df.count()
        found: Ways = {
            "ours": lambda: bench.write(df),
            "ours, staged by the executors": lambda: bench.write(df, inline_bytes=0),
        }
        if JDBC.exists():
            found["Spark's JDBC writer"] = lambda: bench.jdbc(df)
            found["Spark's JDBC writer, tuned"] = lambda: bench.jdbc(df, batchsize="10000")
        return found

    if JDBC.exists():
        bench.open_tcp()
    rounds(bench, ways(asked.sink_rows // 10), asked, 1)
    found = cases(f"{asked.sink_rows:,} rows into Postgres", rounds(bench, ways(asked.sink_rows), asked))
    if not JDBC.exists():
        return found, []
    bars = [("Spark's JDBC writer", 2.5), ("Spark's JDBC writer, tuned", 1.7)]
    return found, [check(found[0], way, "ours", "at least", bar) for way, bar in bars]


def measure_bad(bench: Bench, asked: Asked) -> tuple[list[Case], list[Check]]:
    """One and fifty corrupt files of a hundred, each kind of batch against a clean one."""
    clean = _gzipped(generate(bench.folder / "plain", 100, asked.rows), bench.folder / "clean", 0)
    one, fifty = _gzipped(clean, bench.folder / "one", 1), _gzipped(clean, bench.folder / "fifty", 50)
    ways: Ways = {}
    for reader in ("Arrow reader", "Spark's reader"):
        for label, files, bad in (("clean", clean, 0), ("one bad", one, 1), ("fifty bad", fifty, 50)):
            kind = "arrow" if reader == "Arrow reader" else "spark"
            ways[f"{reader}, {label}"] = lambda f=files, k=kind, b=bad: bench.one_batch(f, k, b)  # type: ignore[misc]
    rounds(bench, ways, asked, 1)
    found = cases("a batch of a hundred gzip files", rounds(bench, ways, asked))
    pairs = [(way, f"{way.split(', ')[0]}, clean") for way in ways if not way.endswith("clean")]
    return found, [check(found[0], way, other, "at most", 2.0) for way, other in pairs]


@dataclass(frozen=True)
class Asked:
    what: Sequence[str]
    files: int = 200
    rows: int = 2500  # of a file: 0.6 MB
    rounds: int = 3
    sink_rows: int = 1_000_000
    seed: int = 0
    dice: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        self.dice.seed(self.seed)


def measure(asked: Asked) -> Result:
    found: list[Case] = []
    checks: list[Check] = []
    with _bench() as bench:
        parts: list[Callable[[], tuple[list[Case], list[Check]]]] = []
        if {"batches", "killed"} & set(asked.what):
            landed = generate(bench.folder / "landing", asked.files, asked.rows)
            parts.append(lambda: measure_batches(bench, landed, asked))
        if "sink" in asked.what:
            parts.append(lambda: measure_sink(bench, asked))
        if "bad" in asked.what:
            parts.append(lambda: measure_bad(bench, asked))
        for part in parts:
            more, judged = part()
            found += more
            checks += judged
    left_out = [] if JDBC.exists() or "sink" not in asked.what else [f"Spark's JDBC writer: no driver at {JDBC}"]
    return Result(7, "End to end", found, checks, left_out=left_out)


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
    parser.add_argument("what", nargs="*", default=["batches", "killed", "sink", "bad"])
    for name in ("files", "rows", "sink_rows", "rounds", "seed"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(Asked, name))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--dsn", help=argparse.SUPPRESS)
    given = vars(parser.parse_args())
    out, dsn = given.pop("out"), given.pop("dsn")
    if given["what"] == ["victim"]:
        victim(dsn)
        return
    result = measure(Asked(**given))
    for row in table([result]):
        print(" | ".join(row[1:]))
    if out:
        result.save(out)


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
