"""Fuzzed command lines and settings: an answer, or one sentence and an exit code that says so. Never a traceback."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pg_pipeline.cli.main import main
from pg_pipeline.coordination import submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.errors import ConfigurationError, PgPipelineError
from pg_pipeline.pipelines import FilePipeline
from pg_pipeline.settings import Settings, get_settings
from pg_pipeline.sinks.postgres import PostgresTable
from pg_pipeline_tests.coordination.conftest import files
from pg_pipeline_tests.fuzz.inputs import almost, fuzzed, texts, values
from pg_pipeline_tests.helpers import PROJECT


def _possible(text: str) -> str:
    """As a command line or an environment can hold it: no NUL, and bytes that are not UTF-8 as Python shows them."""
    return os.fsdecode(text.replace("\x00", "").encode("utf-8", "surrogatepass"))


words = texts.map(_possible)
whole = st.integers().map(str) | words


def lines(execution: str, folder: Path) -> st.SearchStrategy[list[str]]:
    name, number, say = st.just(execution) | words, whole, words.map(lambda text: f"--why={text}")
    path = st.sampled_from([str(folder), str(folder / "none")]) | words
    forms: list[st.SearchStrategy[tuple[str, ...]]] = [
        st.tuples(st.sampled_from(["explain", "attempts", "audit", "status", "report"]), name),
        st.tuples(st.just("executions"), st.just("--pipeline"), words, st.just("--limit"), number),
        st.tuples(st.just("rerun"), name, st.just("--batch"), number, st.just("--yes")),
        st.tuples(st.just("rerun"), st.just("--pipeline"), words, st.just("--since"), words, st.just("--yes")),
        st.tuples(st.just("cancel"), words, st.just("--reason"), words, st.just("--yes")),
        st.tuples(st.just("dlq"), st.sampled_from(["show", "replay"]), number),
        st.tuples(st.just("dlq"), st.just("discard"), number, say, st.just("--yes")),
        st.tuples(st.just("dlq"), st.just("list"), st.just("--limit"), number),
        st.tuples(st.just("quarantine"), st.sampled_from(["list", "show", "replay"]), name, words),
        st.tuples(st.just("queue"), st.just("pause"), words, st.just("--reason"), words),
        st.tuples(st.just("queue"), st.just("resume"), words),
        st.tuples(st.just("submit"), st.just("orders") | words, path, st.just("--request-key"), words),
        st.tuples(st.just("submit"), st.just("orders"), path, st.just("--priority"), number, st.just("--dry-run")),
        st.lists(words, max_size=4).map(tuple),
    ]
    return st.one_of(forms).flatmap(lambda line: st.sampled_from([list(line), [*line, "--json"]]))


def test_whatever_is_typed_is_answered_with_a_sentence_and_never_a_traceback(
    db: Database, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PG_PIPELINE_DSN", dsn)
    monkeypatch.chdir(tmp_path)
    execution = submission.submit(db, "orders", files(2), request_key="k").execution
    codes: Counter[int] = Counter()

    @fuzzed(200)
    @given(line=lines(execution, tmp_path))
    def check(line: list[str]) -> None:
        monkeypatch.setattr("sys.argv", ["pg-pipeline", *line])
        with pytest.raises(SystemExit) as ended:
            main()
        code = int(ended.value.code or 0)
        said = capsys.readouterr()
        codes[code] += 1
        assert code in (0, 1, 2, 3)
        assert "Traceback" not in said.err
        if code in (1, 2) and said.err.startswith("Error: "):
            assert len(said.err.splitlines()) == 1, said.err
            assert "another release" not in said.err, "a wrong value is not a wrong schema"

    check()
    assert {0, 1, 2} <= set(codes)


def test_whatever_a_setting_says_it_is_taken_or_named(monkeypatch: pytest.MonkeyPatch) -> None:
    names = st.sampled_from(sorted(Settings.model_fields))
    taken = Counter[str]()

    @fuzzed(200)
    @given(from_environment=st.dictionaries(names, words, max_size=3), overrides=st.dictionaries(names | texts, values))
    def check(from_environment: dict[str, str], overrides: dict[str, Any]) -> None:
        with monkeypatch.context() as patched:
            for name, value in from_environment.items():
                patched.setenv(f"PG_PIPELINE_{name.upper()}", value)
            for given_overrides in ({}, overrides):
                try:
                    get_settings(**given_overrides)
                    taken["taken"] += 1
                except ConfigurationError as refused:
                    taken["named" if "PG_PIPELINE_" in str(refused) else "unnamed"] += 1

    check()
    assert min(taken["taken"], taken["named"]) > 10
    assert taken["unnamed"] == 0


def test_whatever_a_pipeline_is_made_of_it_is_refused_when_it_is_made(db: Database) -> None:
    """A pipeline that can be made can be registered: what is wrong shows in the code that says it, not in a worker."""
    settings = almost(
        "name",
        "format",
        "schema",
        name=st.sampled_from(["orders", "other"]),
        format=st.sampled_from(["json", "csv", "parquet"]),
        schema=st.just("id long, name string"),
        landing=st.just(str(PROJECT)),
        delivery=st.sampled_from(["folder", "manifest", "quiet:5m"]),
        pattern=texts,
        options=st.dictionaries(texts, texts, max_size=2),
        reader=st.sampled_from(["auto", "arrow", "spark"]),
        drift=st.sampled_from(["quarantine", "fail", "rescue"]),
        bad_files=st.sampled_from(["quarantine", "fail"]),
        max_bad_lines=st.integers(0, 5),
        policy=st.sampled_from(["strict", "partial", "abort"]),
        batch_files=st.integers(1, 100),
        batch_bytes=st.integers(1, 100),
        queue=st.just("default"),
        notify=st.lists(texts, max_size=2),
        tolerance=st.floats(0, 1),
    )
    made = [0]

    @fuzzed(400)
    @given(settings=settings)
    def check(settings: dict[str, Any]) -> None:
        settings = {"name": "orders", "format": "json", "schema": "id long", **settings}
        try:
            pipeline = FilePipeline(sink=PostgresTable("analytics.orders"), **settings)
        except PgPipelineError:
            return
        made[0] += 1
        submission.register_pipeline(db, pipeline.name, **pipeline.registration)

    check()
    assert made[0] > 10
