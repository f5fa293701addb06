"""What a user writes: a named recipe for files that land."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from pg_pipeline.coordination.types import JSON
from pg_pipeline.errors import ConfigurationError, PgPipelineError
from pg_pipeline.pipelines import ddl
from pg_pipeline.pipelines.delivery import Delivery
from pg_pipeline.sinks.base import Sink
from pg_pipeline.spark.recipe import Recipe

if TYPE_CHECKING:
    import dagster as dg

Format = Literal["json", "csv", "parquet"]
_NAME = re.compile(r"^[a-z][a-z0-9_]{0,62}$")
_QUEUE = re.compile(r"^[A-Za-z0-9_.:-]{1,100}$")
_WHOLE = {
    "batch_files": (1, 100_000),
    "batch_bytes": (1, 2**63 - 1),
    "max_bad_lines": (0, 2**31 - 1),
    "max_file_bytes": (1, 2**63 - 1),
}
_PATTERNS = {"json": ("*.json", "*.jsonl", "*.ndjson"), "csv": ("*.csv",), "parquet": ("*.parquet",)}
_COMPRESSED = ("", ".gz", ".zst")


@dataclass(frozen=True, kw_only=True)
class FilePipeline:
    """Where files land, how Spark turns them into rows, where those go, and what runs once when all is in.

    Without a `schema`, it is inferred from the first batch's files and pinned in Postgres: later files must fit it.
    `provenance` keeps each row's file in the column `_file`; its execution and batch are always kept.
    `transform` is `(df, batch) -> df`, `callback` is `(spark, execution) -> DataFrame or dict`. `policy` says what a
    dead batch does: `strict` holds the callback back, `partial` goes on without it, `abort` ends the execution.
    Files are read only below `landing` and `roots`, after links are resolved; with neither, anywhere.
    `tolerance` is the share of quarantined files that the asset check lets pass, `retention` how long the partitions
    of an ended execution stay in Dagster.
    """

    name: str
    format: Format
    sink: Sink
    landing: str | Path | None = None
    delivery: str = "folder"
    roots: Sequence[str | Path] = ()
    schema: str | None = None
    transform: Callable[..., Any] | None = None
    callback: Callable[..., Any] | None = None
    pattern: Sequence[str] | str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    reader: Literal["auto", "arrow", "spark"] = "auto"
    drift: Literal["quarantine", "fail", "rescue"] = "quarantine"
    bad_files: Literal["quarantine", "fail"] = "quarantine"
    max_bad_lines: int = 0
    max_file_bytes: int = 4 << 30
    provenance: bool = True
    policy: Literal["strict", "partial", "abort"] = "strict"
    batch_files: int = 100
    batch_bytes: int = 256 << 20
    queue: str = "default"
    deadline: timedelta | None = None
    notify: Sequence[str] = ()
    tolerance: float = 0.05
    retention: timedelta = timedelta(days=30)
    pool: str | None = None
    description: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.match(self.name):
            raise ConfigurationError(
                f"The pipeline name {self.name!r} is not valid: use lower-case letters, digits and underscores."
            )
        try:
            self._check()
        except PgPipelineError as error:
            raise ConfigurationError(f"Pipeline {self.name}: {error}") from None

    def _check(self) -> None:
        for name in ("format", "reader", "drift", "bad_files", "policy"):
            self._choice(name)
        for name, (least, most) in _WHOLE.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                raise ConfigurationError(f"{name} is {value!r}: use a whole number between {least} and {most}.")
        if not isinstance(self.tolerance, int | float) or not 0 <= self.tolerance <= 1:
            raise ConfigurationError(f"tolerance is {self.tolerance!r}: use a share between 0 and 1.")
        if not isinstance(self.queue, str) or not _QUEUE.match(self.queue):
            raise ConfigurationError(f"queue is {self.queue!r}: use up to 100 letters, digits and any of _ . : -")
        _texts("notify", self.notify, "web addresses")
        if isinstance(self.roots, str) or not all(isinstance(root, str | Path) for root in self.roots):
            raise ConfigurationError(f"roots is {self.roots!r}: use a list of folders.")
        if self.pattern is not None and not isinstance(self.pattern, str):
            _texts("pattern", self.pattern, "names of files, such as *.json")
        if not isinstance(self.options, Mapping):
            raise ConfigurationError(f"options is {self.options!r}: use names and values that Spark's reader takes.")
        if not isinstance(self.landing, str | Path | None):
            raise ConfigurationError(f"landing is {self.landing!r}: it must be a folder.")
        if self.landing is not None and "://" in str(self.landing):
            raise ConfigurationError(
                f"landing is {str(self.landing)!r}: it must be a folder of this machine; "
                "submit paths of an object store instead."
            )
        Delivery.parse(self.delivery)
        if not isinstance(self.sink, Sink):
            raise ConfigurationError(f"sink is {self.sink!r}: use PostgresTable(…), ParquetDataset(…) or a Sink.")
        _takes_two("transform", self.transform, "(df, batch)")
        _takes_two("callback", self.callback, "(spark, execution)")
        if self.schema is not None:
            if not isinstance(self.schema, str):
                raise ConfigurationError(f'schema is {self.schema!r}: use text, such as "id long, name string".')
            ddl.columns(self.schema)
        self.recipe()

    def _choice(self, name: str) -> None:
        allowed = get_args(_CHOICES[name])
        if getattr(self, name) not in allowed:
            raise ConfigurationError(f"{name} is {getattr(self, name)!r}: use one of {', '.join(allowed)}.")

    def recipe(self) -> Recipe:
        return Recipe(
            format=self.format,
            schema=self.schema,
            reader=self.reader,
            options=self.options,
            drift=self.drift,
            bad_files=self.bad_files,
            max_bad_lines=self.max_bad_lines,
            max_file_bytes=self.max_file_bytes,
            transform=self.transform,
            provenance=self.provenance,
            roots=self.allowed_roots,
        )

    @property
    def landing_dir(self) -> Path | None:
        """Absolute: a path in the ledger means the same file from every process."""
        return None if self.landing is None else Path(os.path.abspath(Path(self.landing).expanduser()))

    @property
    def allowed_roots(self) -> tuple[str, ...]:
        """Where its files may be; what lies elsewhere is refused when it is submitted, and set aside by workers."""
        named = [str(root) for root in self.roots]
        places = [root if "://" in root else os.path.abspath(Path(root).expanduser()) for root in named]
        return (*((str(self.landing_dir),) if self.landing is not None else ()), *places)

    @property
    def patterns(self) -> tuple[str, ...]:
        """Names of data files; others in landing are left alone."""
        if self.pattern is not None:
            return (self.pattern,) if isinstance(self.pattern, str) else tuple(self.pattern)
        return tuple(name + end for name in _PATTERNS[self.format] for end in _COMPRESSED)

    @property
    def registration(self) -> dict[str, JSON]:
        """What the protocol must know of it."""
        settings: dict[str, JSON] = {
            "queue": self.queue,
            "policy": self.policy,
            "bad_files": self.bad_files,
            "batch_files": self.batch_files,
            "batch_bytes": self.batch_bytes,
            "notify": list(self.notify),
        }
        if self.deadline is not None:
            settings["deadline"] = f"{self.deadline.total_seconds()} seconds"
        return settings

    def definitions(self, **options: Any) -> dg.Definitions:
        """Its assets, jobs, sensors and checks, to be loaded alone or merged with one's own."""
        from pg_pipeline.pipelines.build import definitions

        return definitions(self, name=self.name, **options)


_CHOICES: dict[str, Any] = {
    "format": Format,
    "reader": Literal["auto", "arrow", "spark"],
    "drift": Literal["quarantine", "fail", "rescue"],
    "bad_files": Literal["quarantine", "fail"],
    "policy": Literal["strict", "partial", "abort"],
}


def _texts(name: str, given: Any, what: str) -> None:
    if isinstance(given, str) or not isinstance(given, Sequence) or not all(isinstance(one, str) for one in given):
        raise ConfigurationError(f"{name} is {given!r}: use a list of {what}.")


def _takes_two(name: str, given: Callable[..., Any] | None, form: str) -> None:
    if given is None:
        return
    if not callable(given):
        raise ConfigurationError(f"{name} is {given!r}: use a function of {form}.")
    try:
        inspect.signature(given).bind(None, None)
    except TypeError:
        raise ConfigurationError(f"{name} does not take two arguments: write it as a function of {form}.") from None
    except ValueError:
        pass  # a built-in without a signature
