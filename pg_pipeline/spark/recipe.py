"""What a pipeline says about its files: their format and schema, how strict to be, and the transform."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from pg_pipeline.coordination.types import AttemptRef, BatchFile
from pg_pipeline.spark.errors import RecipeError
from pg_pipeline.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

FILE_COLUMN = "_file"
RESERVED = (FILE_COLUMN, "_execution", "_batch", "_corrupt_record")


@dataclass(frozen=True, slots=True)
class Batch:
    """What a transform is told about the rows that it gets."""

    attempt: AttemptRef
    files: Sequence[BatchFile]


Transform: TypeAlias = "Callable[[DataFrame, Batch], DataFrame]"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one pipeline's files become rows.

    `schema` is DDL ("id long, name string") or a StructType; None asks for `infer_schema` first.
    `drift` is what happens to a file with fields that the schema does not know, or values of another type.
    `max_bad_lines` is how many lines of one file may be bad before the file is; those lines are left out and counted.
    `max_file_bytes` is what a file may unpack to, and what its rows may take: beyond it the file is bad.
    Files are read only below `roots`, after links are resolved; none means anywhere.
    The transform gets the columns of the schema and `_file`; rows out are counted per file while `_file` stays.
    """

    format: Literal["json", "csv", "parquet"]
    schema: StructType | str | None = None
    reader: Literal["auto", "arrow", "spark"] = "auto"
    options: Mapping[str, str] = field(default_factory=dict)
    drift: Literal["quarantine", "fail", "rescue"] = "quarantine"
    bad_files: Literal["quarantine", "fail"] = "quarantine"
    max_bad_lines: int = 0
    max_file_bytes: int = 4 << 30
    transform: Transform | None = None
    provenance: bool = True
    rescued_column: str = "_rescued_data"
    roots: Sequence[str] = ()
    storage: Storage = field(default_factory=Storage)

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise RecipeError(f"{name} is {getattr(self, name)!r}: use one of {', '.join(allowed)}.")
        if self.max_bad_lines < 0:
            raise RecipeError(f"max_bad_lines is {self.max_bad_lines}: use 0 or more.")
        if self.max_file_bytes < 1:
            raise RecipeError(f"max_file_bytes is {self.max_file_bytes}: use 1 or more.")

    def struct(self) -> StructType:
        """The schema as Spark has it; every field may be null, as in every file format."""
        from pyspark.errors import ParseException
        from pyspark.sql.types import StructField, StructType

        if self.schema is None:
            raise RecipeError("The recipe has no schema: give one, or pin what infer_schema returns.")
        try:
            given = StructType.fromDDL(self.schema) if isinstance(self.schema, str) else self.schema
            assert isinstance(given, StructType)
        except ParseException as error:
            raise RecipeError(f"The schema {self.schema!r} is not valid DDL: {error}") from None
        taken = [name for name in given.names if name in (*RESERVED, self.rescued_column)]
        if taken or not given.names:
            raise RecipeError(f"The schema has no fields, or uses reserved names ({', '.join(taken)}): rename them.")
        return StructType([StructField(f.name, f.dataType, True, f.metadata) for f in given.fields])

    def read_struct(self) -> StructType:
        """The schema plus the rescued-data column, where there is one."""
        from pyspark.sql.types import StringType, StructField, StructType

        fields = list(self.struct().fields)
        if self.drift == "rescue":
            fields.append(StructField(self.rescued_column, StringType()))
        return StructType(fields)

    def pinned(self, schema: StructType | str) -> Recipe:
        return replace(self, schema=schema)


_CHOICES = {
    "format": ("json", "csv", "parquet"),
    "reader": ("auto", "arrow", "spark"),
    "drift": ("quarantine", "fail", "rescue"),
    "bad_files": ("quarantine", "fail"),
}
