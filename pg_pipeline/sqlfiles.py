"""Finds the SQL: `sql/` of a checkout, or the copy that the wheel carries as package data."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def checkout_root() -> Path | None:
    """The project's folder when running from a checkout, None when installed."""
    root = _PACKAGE.parent
    return root if (root / "sql" / "migrations").is_dir() and (root / "pyproject.toml").is_file() else None


def sql_root() -> Path:
    root = checkout_root()
    return root / "sql" if root else _PACKAGE / "_sql"


def read_sql(name: str, root: Path | None = None) -> str:
    """The text of one file, such as `bookkeeping/create.sql`; line ends do not depend on how it was checked out."""
    text = ((root or sql_root()) / name).read_text(encoding="utf-8")
    return text.replace("\r\n", "\n")
