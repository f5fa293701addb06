"""Where a run's report is, in its materialisations."""

import pytest

from pg_pipeline.assets.report import report_link
from pg_pipeline.errors import ConfigurationError


def test_a_report_is_linked_where_pages_are_served_and_its_command_told_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert report_link("20261118-0001").value == "`pg-pipeline report 20261118-0001`"
    monkeypatch.setenv("PG_PIPELINE_PAGES_URL", "https://pages.example.invalid/")
    assert report_link("20261118-0001").value == "https://pages.example.invalid/report/20261118-0001"


def test_an_address_that_is_no_page_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PG_PIPELINE_PAGES_URL", "javascript:alert(1)")
    with pytest.raises(ConfigurationError, match="PG_PIPELINE_PAGES_URL is not valid"):
        report_link("20261118-0001")
