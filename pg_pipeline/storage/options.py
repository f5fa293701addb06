"""A pipeline's storage options. What is secret in them is named, and read where the file is opened."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from pg_pipeline.errors import ConfigurationError

_VARIABLE = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)\Z")
_PASSWORD_IN_URL = re.compile(r"://[^/@]*:[^/@]*@")
_NO_SECRETS = ("anon", "browser", "cache", "cloud", "google_default")  # what gcsfs also takes for a token
_SECRET = re.compile(r"secret|passw|passphrase|token|credential|connection_string|(^|_)key($|_(?!file))|sas", re.I)


def check(options: Any, name: str = "storage_options") -> None:
    """ConfigurationError for what is no option, or holds a secret itself; it is never repeated."""
    if not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options):
        raise ConfigurationError(f"{name} must be a mapping of names to what fsspec's file system takes.")
    for key, value in options.items():
        if isinstance(value, Mapping):
            check(value, f"{name}[{key!r}]")
        elif isinstance(value, str) and _may_be_secret(key, value):
            raise ConfigurationError(
                f"{name}[{key!r}] may be a secret: name the variable that holds it, such as 'env:STORAGE_KEY'."
            )


def _may_be_secret(key: str, value: str) -> bool:
    if _VARIABLE.match(value) or value in _NO_SECRETS:
        return False
    return bool(_SECRET.search(key) or _PASSWORD_IN_URL.search(value))


def resolved(options: Mapping[str, Any]) -> dict[str, Any]:
    """With what this process's environment has for the names."""
    return {key: _value(key, value) for key, value in options.items()}


def _value(key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return resolved(value)
    named = _VARIABLE.match(value) if isinstance(value, str) else None
    if named is None:
        return value
    if named[1] not in os.environ:
        raise ConfigurationError(
            f"The storage option {key} is to be in the variable {named[1]}, which is not set here: set it, "
            "on Spark's executors too."
        )
    return os.environ[named[1]]
