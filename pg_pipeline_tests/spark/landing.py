"""Files for the tests, listed as the ledger would list them."""

import json
import uuid
from pathlib import Path
from typing import Any

import psycopg

from pg_pipeline.coordination.types import AttemptRef, BatchFile
from pg_pipeline.spark.files import file_version
from pg_pipeline.spark.process import Processed, process_batch
from pg_pipeline.spark.recipe import Recipe


def attempt(batch: int = 0, execution: str = "20261118-a1b2", generation: int = 1) -> AttemptRef:
    return AttemptRef("orders", execution, generation, batch, uuid.uuid4())


def lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def listed(*paths: Path) -> list[BatchFile]:
    found = [file_version(str(path)) for path in paths]
    return [BatchFile(ordinal, f.path, f.version, f.size) for ordinal, f in enumerate(found)]


def land(folder: Path, files: dict[str, list[dict[str, Any]] | bytes]) -> list[BatchFile]:
    """Writes files, rows as JSON lines, and lists them."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else lines(content))
    return listed(*(folder / name for name in files))


def publish(dsn: str, sink: Any, processed: Processed, ref: AttemptRef) -> int:
    with psycopg.connect(dsn) as conn:
        return sink.publish(conn, processed.staged, ref)


def commit(spark: Any, recipe: Recipe, files: list[BatchFile], ref: AttemptRef, sink: Any, dsn: str) -> Processed:
    """Process and publish."""
    done = process_batch(spark, recipe, files, ref, sink, dsn)
    publish(dsn, sink, done, ref)
    return done
