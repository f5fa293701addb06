"""Settings: one place, typed, and documented as they are."""

import re
from pathlib import Path

import pytest

from pg_pipeline.errors import ConfigurationError
from pg_pipeline.settings import Settings, get_settings
from pg_pipeline_tests.helpers import PROJECT


def test_the_table_in_the_docs_is_the_class() -> None:
    text = (PROJECT / "docs" / "settings.md").read_text()
    documented = re.findall(r"^\| `PG_PIPELINE_(\w+)` \| (.*?) \| (.*?) \|$", text, re.MULTILINE)
    actual = []
    for name, field in Settings.model_fields.items():
        default = "`.pg_pipeline/` of the checkout, or the user's state folder"
        if field.default_factory is None:
            default = "not set" if field.default is None else f"`{field.default}`".lower()
        actual.append((name.upper(), default, field.description))
    assert documented == actual


def test_resource_config_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PG_PIPELINE_DSN", "host=from-environment")
    monkeypatch.setenv("PG_PIPELINE_CONNECT_TIMEOUT", "7")
    settings = get_settings(dsn="host=from-resource", connect_timeout=None)
    assert settings.dsn == "host=from-resource"
    assert settings.connect_timeout == 7


def test_an_empty_variable_is_not_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PG_PIPELINE_DSN", "")
    assert get_settings().dsn is None


def test_a_wrong_value_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PG_PIPELINE_CONNECT_TIMEOUT", "soon")
    with pytest.raises(ConfigurationError, match=r"PG_PIPELINE_CONNECT_TIMEOUT is not valid .*'soon'"):
        get_settings()


def test_an_unknown_override_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="PG_PIPELINE_DNS"):
        get_settings(dns="host=typo")


def test_state_lives_in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PG_PIPELINE_STATE_DIR", raising=False)
    assert get_settings().state_dir == Path(PROJECT) / ".pg_pipeline"
