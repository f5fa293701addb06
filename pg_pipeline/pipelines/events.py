"""What a store says of new files: S3's event notifications, as they are or inside what SQS, SNS, EventBridge and Lambda
put around them. Everything in them is data, and whoever may write to the bucket chose the keys."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias
from urllib.parse import unquote_plus

from pg_pipeline.errors import InvalidInput
from pg_pipeline.storage.urls import url_of

DEPTH = 16
TEXT = 16 << 20

Message: TypeAlias = "Mapping[str, Any] | list[Any] | str | bytes"


@dataclass(frozen=True, slots=True)
class Arrived:
    """A file that came. Of two events of one path, the one with the greater `order` is the later."""

    id: str
    path: str
    etag: str | None
    size: int | None
    order: str
    at: datetime | None


@dataclass(frozen=True, slots=True)
class Ignored:
    """An event that brings no file, and what it was."""

    what: str


def read(message: Message) -> list[Arrived | Ignored]:
    """What one message says, whole or not at all; InvalidInput with one sentence for what is no such message."""
    try:
        return list(_read(message, DEPTH))
    except RecursionError:
        raise InvalidInput("The message is nested too deeply to be an event: nothing of it was submitted.") from None


def _read(message: Any, depth: int) -> Iterator[Arrived | Ignored]:
    if depth == 0:
        raise _unknown("is nested too deeply")
    if isinstance(message, str | bytes):
        yield from _read(_parsed(message), depth - 1)
    elif isinstance(message, list):
        for one in message:
            yield from _read(one, depth - 1)
    elif not isinstance(message, Mapping):
        raise _unknown("is no JSON object")
    elif message.get("Event") == "s3:TestEvent":
        yield Ignored("s3:TestEvent")
    elif message.get("Type") == "SubscriptionConfirmation":
        raise _unknown("is SNS asking to confirm a subscription, which you do by opening its SubscribeURL")
    elif message.get("source") == "aws.s3" and isinstance(message.get("detail"), Mapping):
        yield _of_eventbridge(message)
    elif isinstance(message.get("s3"), Mapping):
        yield _of_s3(message)
    else:
        inner = next(
            (message[name] for name in ("Records", "Messages", "Body", "body", "Message") if name in message), None
        )
        inner = message["Sns"] if inner is None and "Sns" in message else inner
        if inner is None:
            raise _unknown("has none of Records, s3 and detail")
        yield from _read(inner, depth - 1)


def _parsed(text: str | bytes) -> Any:
    if len(text) > TEXT:
        raise _unknown(f"has more than {TEXT} bytes")
    try:
        return json.loads(text)
    except ValueError:
        raise _unknown("is no JSON") from None


def _of_s3(record: Mapping[str, Any]) -> Arrived | Ignored:
    """S3 escapes keys here, with + for a space."""
    name = str(record.get("eventName", "")).removeprefix("s3:")
    if not name.startswith("ObjectCreated:"):
        return Ignored(_word(name))
    bucket, found = record["s3"].get("bucket"), record["s3"].get("object")
    return _arrived(bucket, found, escaped=True, etag="eTag", version="versionId", time=record.get("eventTime"))


def _of_eventbridge(event: Mapping[str, Any]) -> Arrived | Ignored:
    """And does not here."""
    if event.get("detail-type") != "Object Created":
        return Ignored(_word(str(event.get("detail-type", ""))))
    detail = event["detail"]
    bucket, found = detail.get("bucket"), detail.get("object")
    return _arrived(bucket, found, escaped=False, etag="etag", version="version-id", time=event.get("time"))


def _arrived(bucket: Any, found: Any, *, escaped: bool, etag: str, version: str, time: Any) -> Arrived | Ignored:
    host = bucket.get("name") if isinstance(bucket, Mapping) else None
    key = found.get("key") if isinstance(found, Mapping) else None
    if not isinstance(host, str) or not host or "/" in host or not isinstance(key, str) or not key:
        raise _unknown("names no bucket and key")
    try:
        key = unquote_plus(key, errors="strict") if escaped else key
        key.encode()
    except UnicodeError:
        raise _unknown("has a key that is no UTF-8") from None
    tag, size, order = found.get(etag), found.get("size"), str(found.get("sequencer") or "")
    if "\0" in key or not isinstance(tag, str | None) or not _is_size(size):
        raise _unknown("has a key, an etag or a size that no object can have")
    if key.endswith("/"):
        return Ignored("folder")
    path = f"s3://{host}/{key}"
    url_of(path)  # raises for what would be no bucket
    own = order or f"{found.get(version)}:{tag}:{time}"
    return Arrived(f"{path}\n{own}", path, (tag or "").strip('"') or None, size, order.ljust(40, "0"), _time(time))


def _time(text: Any) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _is_size(size: Any) -> bool:
    return size is None or (isinstance(size, int) and not isinstance(size, bool) and 0 <= size < 2**63)


def _word(name: str) -> str:
    return name[:100] or "no event's name"


def _unknown(what: str) -> InvalidInput:
    return InvalidInput(f"The message {what}: nothing of it was submitted.")
