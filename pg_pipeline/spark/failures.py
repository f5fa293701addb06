"""Whose fault a failed Spark job is: the user's transform, a cancellation, or the machinery."""

from __future__ import annotations

import re
import traceback

from pyspark.errors import PySparkException, PythonException

from pg_pipeline.spark.errors import BatchCancelled, TransformFailed
from pg_pipeline.spark.executors import what_executors_lack

_FRAME = re.compile(r'^\s*File "([^"]+)", line \d+', re.MULTILINE)
_OURS = re.compile(r"pg_pipeline/(spark|sinks)/")
_PYSPARK = re.compile(r"(pyspark(\.zip)?/)|(/py4j/)")
_FILES = re.compile(r"FAILED_READ_FILE|CANNOT_READ_FILE|PATH_NOT_FOUND|FILE_NOT_EXIST|CANNOT_OPEN_FILE")
# Conditions that Spark raises about storage, memory and lost machines rather than about an expression.
_MACHINERY = re.compile(
    r"^(FAILED_READ_FILE|CANNOT_READ|PATH_NOT_FOUND|TASK_WRITE|INTERNAL|SPARK_JOB_CANCELLED|OUT_OF_MEMORY|UNABLE_TO_ACQUIRE|_LEGACY)"
)


def from_calling(error: Exception, where: str) -> TransformFailed:
    """The transform raised while it was called; our own frame is left out."""
    trace = error.__traceback__.tb_next if error.__traceback__ is not None else None
    text = "".join(traceback.format_exception(type(error), error, trace)).rstrip()
    return TransformFailed(f"{text}\n\nThe transform of {where} raised this: fix it and replay the dead letter.")


def from_running(error: Exception, where: str) -> Exception:
    """The job failed: what to raise instead."""
    text = str(error)
    condition = _condition(error)
    if (
        condition == "SPARK_JOB_CANCELLED"
        or "cancelled part of cancelled job group" in text
        or "[SPARK_JOB_CANCELLED]" in text
    ):
        return BatchCancelled(f"The Spark jobs of {where} were cancelled.")
    frames = [path for path in _FRAME.findall(text) if not _PYSPARK.search(path)]
    if not frames and (lack := what_executors_lack(text)):
        return lack
    if isinstance(error, PythonException):
        if frames and not _OURS.search(frames[-1]) and not any(_OURS.search(path) for path in frames):
            return TransformFailed(f"{_worker_trace(text)}\n\nA function in the transform of {where} raised this.")
        return error
    if isinstance(error, PySparkException) and condition is not None and not _MACHINERY.match(condition):
        return TransformFailed(f"{text.splitlines()[0]}\n{_call_site(text)}\nThe transform of {where} raised this.")
    return error


def is_about_files(error: Exception) -> bool:
    """Whether Spark's reader stopped at a file."""
    return bool(_FILES.search(f"{_condition(error)} {error}"))


def _condition(error: Exception) -> str | None:
    try:
        found = error.getCondition() if isinstance(error, PySparkException) else None
    except Exception:  # noqa: BLE001 - a Java error without one
        return None
    return str(found) if found else None


def _worker_trace(text: str) -> str:
    """From `Traceback` on, without the frames of PySpark's worker."""
    start = text.find("Traceback (most recent call last)")
    lines = text[start:].splitlines() if start >= 0 else text.splitlines()
    kept: list[str] = []
    skipping = False
    for line in lines:
        frame = _FRAME.match(line)
        if frame:
            skipping = bool(_PYSPARK.search(frame[1]))
        elif not line.startswith("    "):
            skipping = False
        if not skipping and not line.startswith("\tat "):
            kept.append(line)
    return "\n".join(kept).rstrip()


def _call_site(text: str) -> str:
    """Spark says which line of the user's code made the expression."""
    start = text.find("== DataFrame ==")
    start = text.find("== SQL", 0) if start < 0 else start
    return (
        text[start:].split("\n\n", maxsplit=1)[0].split("JVM stacktrace", maxsplit=1)[0].strip() if start >= 0 else ""
    )
