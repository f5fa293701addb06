"""Holds the rows of one file until the whole file is known to be good: in memory, and beyond a limit on disk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from types import TracebackType
from typing import IO

import pyarrow as pa

LIMIT = 64 << 20


class Spool:
    def __init__(self, schema: pa.Schema, limit: int = LIMIT) -> None:
        self._schema = schema
        self._limit = limit
        self._tables: list[pa.Table] = []
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self._writer: pa.RecordBatchStreamWriter | None = None

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, _kind: type | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        self._tables.clear()
        if self._file is not None:
            self._file.close()

    def add(self, table: pa.Table) -> None:
        self._tables.append(table)
        self._bytes += table.nbytes
        if self._bytes > self._limit:
            self._spill()

    def _spill(self) -> None:
        if self._writer is None:
            self._file = tempfile.TemporaryFile(prefix="pg_pipeline-spool-")  # noqa: SIM115 - closed on exit
            self._writer = pa.ipc.new_stream(self._file, self._schema)
        for table in self._tables:
            self._writer.write_table(table)
        self._tables.clear()
        self._bytes = 0

    def batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        """What was added, in order, in batches of at most `rows`."""
        if self._writer is not None and self._file is not None:
            self._spill()
            self._writer.close()
            self._file.seek(0)
            with pa.ipc.open_stream(self._file) as stream:
                for batch in stream:
                    for start in range(0, batch.num_rows, rows):
                        yield batch.slice(start, rows)
            return
        for table in self._tables:
            yield from table.to_batches(max_chunksize=rows)
