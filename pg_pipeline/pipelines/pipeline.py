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
from pg_pipeline.storage import Storage
from pg_pipeline.storage.options import check as check_options
from pg_pipeline.storage.urls import canonical, is_url, local_path, url_of

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
_SQUEEZED = re.compile(r"[a-z][a-z0-9]+:/[^/]")
RESCAN_SECONDS = 300.0
_COMPRESSED = ("", ".gz", ".zst")


@dataclass(frozen=True, kw_only=True)
class FilePipeline:
    """Where files land, how Spark turns them into rows, where those go, and what runs once when all is in.

    Without a `schema`, it is inferred from the first batch's files and pinned in Postgres: later files must fit it.
    `provenance` keeps each row's file in the column `_file`; its execution and batch are always kept.
    `transform` is `(df, batch) -> df`, `callback` is `(spark, execution) -> DataFrame or dict`. `policy` says what a
    dead batch does: `strict` holds the callback back, `partial` goes on without it, `abort` ends the execution.
    Files are read only below `landing` and `roots`, after links are resolved; with neither, anywhere. Both may be
    URLs, such as s3://bucket/orders; `storage_options` are fsspec's, with secrets named as "env:VARIABLE". `rescan` is
    how often all of landing is listed, and not only what sorts after what was seen: always for a folder, every five
    minutes for a URL.
    `tolerance` is the share of quarantined files that the asset check lets pass, `retention` how long the partitions
    of an ended execution stay in Dagster.
    """

    name: str
    format: Format
    sink: Sink
    landing: str | Path | None = None
    delivery: str = "folder"
    roots: Sequence[str | Path] = ()
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    rescan: timedelta | None = None
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
        if not isinstance(self.rescan, timedelta | None) or (self.rescan is not None and self.rescan < timedelta()):
            raise ConfigurationError(f"rescan is {self.rescan!r}: use a timedelta, or None.")
        check_options(self.storage_options)
        for place in self.allowed_roots:
            url = url_of(place)
            if url is not None and url.climbs:
                raise ConfigurationError(f"landing and roots are folders without . and .. in them, unlike {place!r}.")
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
            storage=self.storage,
        )

    @property
    def storage(self) -> Storage:
        """How its files are reached."""
        return Storage(self.storage_options)

    @property
    def landing_place(self) -> str | None:
        """Absolute: a path in the ledger means the same file from every process."""
        return None if self.landing is None else _place(self.landing)

    @property
    def rescan_seconds(self) -> float:
        """Listing a folder costs nothing, listing a bucket costs a request for each thousand files."""
        if self.rescan is not None:
            return self.rescan.total_seconds()
        return RESCAN_SECONDS if self.landing is not None and is_url(str(self.landing)) else 0.0

    @property
    def allowed_roots(self) -> tuple[str, ...]:
        """Where its files may be; what lies elsewhere is refused when it is submitted, and set aside by workers."""
        return tuple(_place(root) for root in (*((self.landing,) if self.landing is not None else ()), *self.roots))

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


def _place(given: str | Path) -> str:
    text = str(given)
    if isinstance(given, Path) and _SQUEEZED.match(text):
        raise ConfigurationError(f"{text} was a URL before it was made a Path: give it as text.")
    if is_url(text):
        return canonical(text).rstrip("/")
    return os.path.abspath((local_path(text) or Path(text)).expanduser())


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
