"""A queue of SQS whose messages are submitted, and acknowledged once that is durable. On what s3fs brings: botocore."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from pg_pipeline.coordination.database import Database
from pg_pipeline.errors import ConfigurationError
from pg_pipeline.pipelines.arrival import Received, submit_events
from pg_pipeline.pipelines.pipeline import FilePipeline

# Longer than gathering a group and submitting it take. A submission that takes longer still is safe: what comes again
# is known.
HIDDEN_SECONDS = 300
POLL_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Group:
    """Messages that were submitted together."""

    received: Received
    messages: Sequence[Any]
    acknowledged: int


class Queue:
    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
            raise ConfigurationError(
                "The queue is named by its URL, as SQS shows it, and without credentials: correct it."
            )
        try:
            import botocore.session
        except ImportError:
            raise ConfigurationError(
                "SQS needs a package that is not installed here: pip install 'pg-pipeline[s3]'."
            ) from None
        self.url = url
        session = botocore.session.get_session()
        of_amazon = parts.hostname.endswith((".amazonaws.com", ".amazonaws.com.cn"))
        region = parts.hostname.split(".")[1] if of_amazon and parts.hostname.startswith("sqs.") else None
        with _said(url):
            self._client = session.create_client(
                "sqs",
                region_name=region or session.get_config_variable("region") or "us-east-1",
                endpoint_url=None if of_amazon else f"{parts.scheme}://{parts.netloc}",
            )

    @property
    def has_dead_letters(self) -> bool:
        """Whether what is refused again and again is put aside by SQS, and does not come back for ever."""
        with _said(self.url):
            answer = self._client.get_queue_attributes(QueueUrl=self.url, AttributeNames=["RedrivePolicy"])
        return "RedrivePolicy" in answer.get("Attributes", {})

    def receive(self, wait: float) -> list[Any]:
        with _said(self.url):
            answer = self._client.receive_message(
                QueueUrl=self.url,
                MaxNumberOfMessages=10,
                WaitTimeSeconds=int(min(wait, POLL_SECONDS)),
                VisibilityTimeout=HIDDEN_SECONDS,
            )
        return list(answer.get("Messages", []))

    def acknowledge(self, messages: Sequence[Any]) -> int:
        """How many are gone; the rest comes again, and is known then."""
        gone = 0
        for start in range(0, len(messages), 10):
            entries = [
                {"Id": str(n), "ReceiptHandle": one["ReceiptHandle"]}
                for n, one in enumerate(messages[start : start + 10])
            ]
            with _said(self.url):
                gone += len(self._client.delete_message_batch(QueueUrl=self.url, Entries=entries).get("Successful", []))
        return gone


def groups(
    db: Database,
    pipeline: FilePipeline,
    queue: Queue,
    *,
    most: int = 1000,
    gather: float = 5.0,
    forever: bool = True,
    tenant: str = "",
    priority: int = 0,
) -> Iterator[Group]:
    """Takes what comes within `gather` seconds, `most` messages at most, and submits it together. Without `forever`,
    until the queue has nothing more to give."""
    while True:
        messages: list[Any] = []
        until = time.monotonic() + gather
        while len(messages) < most:
            left = until - time.monotonic() if messages else float(POLL_SECONDS if forever else 0)
            if messages and left <= 0:
                break
            more = queue.receive(left if forever else 0)
            messages += more
            if not messages:
                until = time.monotonic() + gather
            if not more and not forever:
                break
        if not messages:
            return
        received = submit_events(db, pipeline, [one["Body"] for one in messages], tenant=tenant, priority=priority)
        good = [one for place, one in enumerate(messages) if place not in received.refused]
        yield Group(received, messages, queue.acknowledge(good))


@contextmanager
def _said(url: str) -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (BotoCoreError, ClientError) as error:
        said = " ".join(str(error).split())[:300].rstrip(".")
        raise ConfigurationError(
            f"The queue {url} does not answer ({said}): check its URL, the environment's credentials and the network."
        ) from None
