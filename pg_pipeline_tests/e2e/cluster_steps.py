"""What a user's tasks run on the executors, which get this file by `spark.submit.pyFiles`."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Held:
    """Gives more rows than the COPY encoder keeps to itself, and the rest once the file is gone: somebody can be
    killed in between."""

    path: str

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        given = 0
        for batch in batches:
            if given > 1500:
                _wait(lambda: not Path(self.path).exists())
            yield batch
            given += batch.num_rows


@dataclass(frozen=True)
class Straggling:
    """Of the first task, the first attempt waits until its double has given all its rows, and the double until the
    first has: both then write to their end."""

    folder: str

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        yield from batches
        if context.partitionId() > 0:
            return
        place = Path(self.folder, str(context.stageId()))
        place.mkdir(parents=True, exist_ok=True)
        (place / str(context.taskAttemptId())).touch()
        _wait(lambda: len(list(place.iterdir())) >= 2)


def _wait(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError("nobody came")
        time.sleep(0.05)
