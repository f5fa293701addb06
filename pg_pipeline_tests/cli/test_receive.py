"""`pg-pipeline receive` from a file. Queues are in pg_pipeline_tests/storage/test_arrival.py."""

import json
from pathlib import Path

from pg_pipeline.cli import shapes
from pg_pipeline_tests.cli.conftest import Program
from pg_pipeline_tests.helpers import PROJECT
from pg_pipeline_tests.storage.test_arrival import record


def test_events_of_a_file_are_submitted_and_what_is_none_is_said(program: Program, tmp_path: Path) -> None:
    (tmp_path / "buckets.py").write_text(
        "from pg_pipeline.pipelines import FilePipeline\n"
        "from pg_pipeline.sinks.parquet import ParquetDataset\n"
        "mine = FilePipeline(name='mine', format='json', schema='a long', sink=ParquetDataset('/tmp/mine'),\n"
        "    roots=['s3://b/in'])\n"
    )
    env = {"PG_PIPELINE_PIPELINES": "buckets", "PYTHONPATH": f"{PROJECT}:{tmp_path}"}
    events = tmp_path / "events.jsonl"
    events.write_text("\n".join([*(json.dumps(record(f"in/{n}.json", n)) for n in range(3)), "{oops"]))
    answer = json.loads(program("receive", "mine", str(events), "--json", code=3, **env).stdout)
    assert list(answer) == list(shapes.RECEIVED)
    assert [one["taken"] for one in answer["submissions"]] == [3]
    assert answer["refused"] == ["The message is no JSON: nothing of it was submitted."]
    events.write_text(json.dumps({"Records": [record("in/9.json"), record("x\x1b[31m/9.json")]}, indent=2))
    refused = program("receive", "mine", str(events), code=3, **env).stdout
    assert "Refused: The file 's3://b/x\\x1b[31m/9.json' is outside the folders that mine may read" in refused
    for arguments, code, text in (
        (("none.json",), 1, "none.json cannot be read"),
        ((), 2, "name a file"),
        (("-", "--sqs", "https://host/q"), 2, "name a file"),
        (("--sqs", "https://me:hidden@host/q"), 1, "without credentials"),
    ):
        error = program("receive", "mine", *arguments, code=code, **env).stderr
        assert text in error
        assert "hidden" not in error
        assert len(error.splitlines()) == 1
