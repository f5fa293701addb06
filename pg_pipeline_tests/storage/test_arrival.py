"""Announced files: events come twice, late, in any order and in any wrapping; each version is taken once, and what
cannot be understood is said and kept."""

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import botocore.session
import psycopg
import pytest

from pg_pipeline.coordination.database import Database
from pg_pipeline.errors import ConfigurationError, InvalidInput
from pg_pipeline.pipelines import FilePipeline, events
from pg_pipeline.pipelines.arrival import submit_events
from pg_pipeline.pipelines.events import Arrived, Ignored
from pg_pipeline.pipelines.sqs import Queue, groups
from pg_pipeline.sinks.postgres import PostgresTable
from pg_pipeline_tests.helpers import ChildProcess
from pg_pipeline_tests.security.test_files import ODD
from pg_pipeline_tests.storage.conftest import Bucket

ETAG = "d41d8cd98f00b204e9800998ecf8427e"


def record(
    key: str, n: int = 1, *, name: str = "ObjectCreated:Put", etag: str = ETAG, bucket: str = "b"
) -> dict[str, Any]:
    found = {"key": quote_plus(key, safe="/"), "size": 7, "eTag": etag, "sequencer": f"{n:016X}"}
    return {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "eventTime": "2026-11-18T08:00:00.000Z",
        "eventName": name,
        "s3": {"bucket": {"name": bucket}, "object": found},
    }


def bridge(key: str, kind: str = "Object Created") -> dict[str, Any]:
    found = {"key": key, "size": 7, "etag": ETAG, "sequencer": "0A"}
    return {
        "version": "0",
        "id": "1",
        "detail-type": kind,
        "source": "aws.s3",
        "time": "2026-11-18T08:00:00Z",
        "detail": {"bucket": {"name": "b"}, "object": found},
    }


@pytest.fixture
def db(dsn: str) -> Iterator[Database]:
    with Database(dsn) as database:
        yield database


def pipeline(**changes: Any) -> FilePipeline:
    settings: dict[str, Any] = {"name": "p", "format": "json", "schema": "id long", "sink": PostgresTable("public.p")}
    return FilePipeline(**{**settings, "roots": ["s3://b/in"], **changes})


def ledger(dsn: str) -> list[tuple[str, str, int]]:
    with psycopg.connect(dsn) as conn:
        return conn.execute("select path, version, size from pipeline.file order by path, version").fetchall()


def test_each_wrapping_gives_the_same_file() -> None:
    plain = {"Records": [record("in/ü b+c.json")]}
    body = json.dumps(plain)
    sns = {"Type": "Notification", "MessageId": "1", "TopicArn": "arn", "Message": body}
    for message in (
        plain,
        body,
        body.encode(),
        [plain],
        record("in/ü b+c.json"),
        sns,
        {"Messages": [{"MessageId": "1", "ReceiptHandle": "r", "Body": json.dumps(sns)}]},
        {"Records": [{"messageId": "1", "eventSource": "aws:sqs", "body": body}]},
        {"Records": [{"EventSource": "aws:sns", "Sns": sns}]},
        {
            "EventName": "s3:ObjectCreated:Put",
            "Key": "b/in",
            **{"Records": [record("in/ü b+c.json", name="s3:ObjectCreated:Put")]},
        },
        bridge("in/ü b+c.json"),
    ):
        (found,) = events.read(message)
        assert isinstance(found, Arrived)
        assert (found.path, found.etag, found.size) == ("s3://b/in/ü b+c.json", ETAG, 7)
        assert found.at is not None


def test_what_brings_no_file_is_ignored_and_said() -> None:
    for message, what in (
        ({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "b"}, "s3:TestEvent"),
        ({"Records": [record("in/a.json", name="ObjectRemoved:Delete")]}, "ObjectRemoved:Delete"),
        (bridge("in/a.json", "Object Deleted"), "Object Deleted"),
        ({"Records": [record("in/folder/")]}, "folder"),
    ):
        assert events.read(message) == [Ignored(what)]
    assert events.read({"Records": []}) == []


def nested(depth: int) -> Any:
    return {"Message": nested(depth - 1)} if depth else "{}"


def created(found: Any, bucket: Any = None) -> dict[str, Any]:
    return {"Records": [{**record("a"), "s3": {"bucket": bucket or {"name": "b"}, "object": found}}]}


WRONG: list[Any] = [
    *("", "{", "7", "null", b"\xff\xfe", "[" * 100_000, nested(20), {}, {"Records": 7}, {"Records": [{}]}),
    *({"Records": [{"s3": {}, "eventName": "ObjectCreated:Put"}]}, {"Records": [record("")]}, created(7)),
    *({"Records": [record("in/a.json", bucket="b/c")]}, {"Records": [record("a", bucket="x@y")]}),
    *(created({"key": "in/a%00.json"}), created({"key": "a", "size": -1}), created({"key": "%ff"})),
    *(created({"key": "a", "eTag": 7}), created({"key": "\ud800"}), created({"key": "a"}, {"name": 3})),
    {"Type": "SubscriptionConfirmation", "SubscribeURL": "https://x"},
]


@pytest.mark.parametrize("message", WRONG, ids=range(len(WRONG)))
def test_a_malformed_message_is_one_sentence_and_stops_nothing(message: Any, db: Database, dsn: str) -> None:
    with pytest.raises(InvalidInput) as said:
        events.read(message)
    assert str(said.value).endswith(".")
    assert "\n" not in str(said.value)
    good = {"Records": [record("in/a.json")]}
    received = submit_events(db, pipeline(), [good, message, good])
    assert list(received.refused) == [1]
    assert [one.taken for one in received.submissions] == [1]


def test_p2_events_in_any_order_and_number_take_each_version_once(db: Database, dsn: str) -> None:
    mine = pipeline()
    all_of_them = [{"Records": [record(f"in/{n}.json", n)]} for n in range(20)]
    all_of_them += [{"Records": [record("in/0.json", 50, etag="2" * 32)]}]  # a later version of the first
    chance = random.Random(7)
    for _ in range(6):
        group = chance.sample(all_of_them, 12)
        for _ in range(2):
            received = submit_events(db, mine, group + group[:3])
            assert not received.refused
    submit_events(db, mine, all_of_them)
    found = ledger(dsn)
    assert len(found) == len(set(found))
    assert {path for path, _, _ in found} == {f"s3://b/in/{n}.json" for n in range(20)}
    assert ("s3://b/in/0.json", "2" * 32, 7) in found
    again = submit_events(db, mine, all_of_them)
    assert all(not one.created for one in again.submissions)
    first = submit_events(db, mine, [{"Records": [record("in/new.json")]}])
    asked = submit_events(db, mine, [{"Records": [record("in/new.json")]}])
    assert [one.execution for one in asked.submissions] == [one.execution for one in first.submissions]


def test_of_one_group_the_latest_version_counts(db: Database, dsn: str) -> None:
    late, early = record("in/a.json", 9, etag="9" * 32), record("in/a.json", 2, etag="2" * 32)
    received = submit_events(db, pipeline(), [{"Records": [late]}, {"Records": [early]}])
    assert ledger(dsn) == [("s3://b/in/a.json", "9" * 32, 7)]
    assert received.ignored == {"repeated": 1}


def test_keys_are_data_and_lead_nowhere_else(db: Database, dsn: str) -> None:
    names = [name for name in ODD if not name.startswith((".", "_"))]
    received = submit_events(db, pipeline(), [{"Records": [record(f"in/{name}")]} for name in names])
    assert [path for path, _, _ in ledger(dsn)] == sorted(f"s3://b/in/{name}" for name in names)
    assert not received.refused
    for key in ("out/a.json", "in/../out/a.json", "in/%2e%2e/a.json", "inner/a.json", "in/" + "ü" * 3000 + ".json"):
        received = submit_events(db, pipeline(), [{"Records": [record(key)]}])
        assert list(received.refused) == [0], key
    received = submit_events(db, pipeline(), [{"Records": [record("in/notes.txt"), record("in/_SUCCESS")]}])
    assert received.ignored == {"no data file": 2}
    assert len(ledger(dsn)) == len(names)


def test_a_delivery_is_submitted_by_the_event_that_completes_it(db: Database, dsn: str, bucket: Bucket) -> None:
    mine = pipeline(roots=(), landing=f"{bucket.url}/in", storage_options=bucket.options)

    def event(key: str) -> dict[str, Any]:
        return {"Records": [record(key, bucket=bucket.name)]}

    for name in ("a.json", "b/c.json"):
        bucket.put(f"in/day/{name}", b"{}")
    waiting = submit_events(db, mine, [event("in/day/a.json"), event("in/day/b/c.json")])
    assert (waiting.submissions, waiting.ignored) == ([], {"waits for its delivery": 2})
    bucket.put("in/day/_SUCCESS")
    (made,) = submit_events(db, mine, [event("in/day/_SUCCESS"), event("in/day/b/c.json")]).submissions
    assert (made.taken, made.created) == (2, True)
    (again,) = submit_events(db, mine, [event("in/day/_SUCCESS")]).submissions
    assert (again.execution, again.created) == (made.execution, False)
    bucket.put("in/day/late.json", b"{}")
    (late,) = submit_events(db, mine, [event("in/day/late.json")]).submissions
    assert (late.taken, late.left_out) == (1, {"known": 2})


@pytest.fixture
def queue(aws: str) -> tuple[Any, str]:
    client = botocore.session.get_session().create_client("sqs", endpoint_url=aws, region_name="us-east-1")
    return client, client.create_queue(QueueName=f"q{random.getrandbits(64)}")["QueueUrl"]


def counts(client: Any, url: str) -> tuple[int, int]:
    """(waiting, received and not acknowledged)."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    found = client.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return int(found[names[0]]), int(found[names[1]])


def test_p6_a_message_is_acknowledged_when_its_files_are_durable(
    db: Database, dsn: str, queue: tuple[Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, url = queue
    for n in range(25):
        client.send_message(QueueUrl=url, MessageBody=json.dumps({"Records": [record(f"in/{n}.json", n)]}))
    client.send_message(QueueUrl=url, MessageBody="not an event")

    class Dies(BaseException):
        pass

    def dies(_: Queue, messages: Any) -> int:
        assert len(ledger(dsn)) == 25, "durable before it is acknowledged"
        for one in messages:  # as when their time has passed
            client.change_message_visibility(QueueUrl=url, ReceiptHandle=one["ReceiptHandle"], VisibilityTimeout=0)
        raise Dies

    with monkeypatch.context() as dying:
        dying.setattr(Queue, "acknowledge", dies)
        with pytest.raises(Dies):
            next(groups(db, pipeline(), Queue(url), most=26, forever=False))
    made = list(groups(db, pipeline(), Queue(url), forever=False, most=7))
    assert sum(one.acknowledged for one in made) == 25
    assert len(ledger(dsn)) == 25, "what came again was known"
    assert counts(client, url) == (0, 1), "what is refused stays in the queue, which sets it aside by its own policy"


def test_the_command_receives_from_a_queue_a_file_and_standard_input(
    child: Any, dsn: str, tmp_path: Path, queue: tuple[Any, str], aws: str
) -> None:
    (tmp_path / "mine.py").write_text(
        "from pg_pipeline.pipelines import FilePipeline\n"
        "from pg_pipeline.sinks.parquet import ParquetDataset\n"
        "mine = FilePipeline(name='mine', format='json', schema='a long', sink=ParquetDataset('/tmp/mine'),\n"
        "    roots=['s3://b/in'])\n"
    )
    client, url = queue

    def receive(*arguments: str, code: int = 0, stdin: str = "/dev/null") -> ChildProcess:
        shell = 'exec "$0" -m pg_pipeline receive mine "$@" < ' + stdin
        command = ("sh", "-c", shell, sys.executable, *arguments)
        process: ChildProcess = child(
            command=command, env={"PG_PIPELINE_DSN": dsn, "PG_PIPELINE_PIPELINES": "mine"}, cwd=tmp_path
        )
        assert process.wait() == code, process.stderr
        return process

    client.send_message(QueueUrl=url, MessageBody=json.dumps({"Records": [record("in/q.json")]}))
    said = receive("--sqs", url, "--until-empty", "--gather", "0").stdout
    assert "is sealed: 1 files in 1 batches." in said
    assert "This queue sets nothing aside" in said
    assert counts(client, url) == (0, 0)

    client.send_message(QueueUrl=url, MessageBody="{oops")
    assert "Refused: The message is no JSON" in receive("--sqs", url, "--until-empty", code=3).stdout
    (tmp_path / "one.json").write_text(json.dumps({"Records": [record("in/9.json")]}, indent=2))
    assert "1 files in 1 batches" in receive("-", stdin="one.json").stdout
    error = receive("--sqs", f"{aws}/1/none", "--until-empty", code=1).stderr
    assert "does not answer" in error
    assert len(error.splitlines()) == 1


def test_a_queue_is_named_by_its_url() -> None:
    for wrong in ("landed", "sqs://x", "https://", "https://me:hidden@host/q"):
        with pytest.raises(ConfigurationError) as said:
            Queue(wrong)
        assert "hidden" not in str(said.value)
