"""Files that are announced become submissions. Announcements come twice, late and in any order: what is submitted
depends on none of that, since the ledger takes each version of a file once."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from pg_pipeline.coordination import partitions, submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.submission import Submission
from pg_pipeline.coordination.types import FileVersion
from pg_pipeline.errors import InvalidInput
from pg_pipeline.pipelines import events, landing
from pg_pipeline.pipelines.events import Arrived, Ignored, Message
from pg_pipeline.pipelines.pipeline import FilePipeline
from pg_pipeline.storage.entry import PATH_BYTES
from pg_pipeline.storage.roots import is_inside


@dataclass(slots=True)
class Received:
    """What became of some messages: `refused` are the places of those that can't be submitted, and why; `ignored`
    counts events that bring no file to submit, by what they were."""

    submissions: list[Submission] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)
    refused: dict[int, str] = field(default_factory=dict)

    def join(self, later: Received) -> None:
        self.submissions += later.submissions
        self.ignored += later.ignored
        self.refused |= {len(self.refused) + place: why for place, why in enumerate(later.refused.values())}


def submit_events(
    db: Database, pipeline: FilePipeline, messages: Iterable[Message], *, tenant: str = "", priority: int = 0
) -> Received:
    """Submits the files that some messages announce. All is durable when this returns: acknowledge messages then,
    but for those that were refused. Asked twice, in whatever groups, each version of a file is taken once.

    With a `folder` or `manifest` delivery, an event makes its folder be looked at, and what is all there is submitted,
    as the landing sensor would; otherwise the files of one call are one submission.
    """
    submission.register_pipeline(db, pipeline.name, **pipeline.registration)
    received = Received()
    arrived: dict[str, Arrived] = {}
    for place, message in enumerate(messages):
        try:
            found = events.read(message)
            for one in found:
                if isinstance(one, Arrived):
                    _check(pipeline, one)
        except InvalidInput as error:
            received.refused[place] = str(error)
            continue
        for one in found:
            if isinstance(one, Ignored):
                received.ignored[one.what] += 1
                continue
            known = arrived.get(one.path)
            received.ignored["repeated"] += known is not None
            if known is None or (known.order, known.id) < (one.order, one.id):
                arrived[one.path] = one
    ordered = [arrived[path] for path in sorted(arrived)]
    if pipeline.landing is not None and not pipeline.delivery.startswith("quiet"):
        _submit_deliveries(db, pipeline, ordered, received, tenant, priority)
    else:
        _submit_files(db, pipeline, ordered, received, tenant, priority)
    received.ignored += Counter()  # drops what counted nothing
    return received


def submit_found(
    db: Database,
    pipeline: FilePipeline,
    found: landing.Found,
    *,
    tenant: str = "",
    priority: int = 0,
    released: bool = False,
) -> Submission:
    """A delivery of the landing folder: the same request, whoever finds it."""
    return submission.submit(
        db,
        pipeline.name,
        partial(iter, found.files),
        request_key=found.request_key,
        request={"landing": found.name, "key": found.request_key},
        tenant=tenant,
        priority=priority,
        released=released,
    )


def has_new(db: Database, pipeline: FilePipeline, files: Iterable[FileVersion], *, released: bool = False) -> bool:
    """Whether a submit would take any; an execution of nothing helps nobody."""
    return any(one.verdict == "take" for one in submission.preview(db, pipeline.name, files, released=released))


def _check(pipeline: FilePipeline, one: Arrived) -> None:
    places = pipeline.allowed_roots
    if not is_inside(one.path, places):
        raise InvalidInput(
            f"The file {one.path!r} is outside the folders that {pipeline.name} may read: "
            "add its folder to the pipeline's roots, or have the store announce fewer."
        )
    if len(one.path.encode("utf-8", "surrogatepass")) > PATH_BYTES or len(one.etag or "") > 500:
        raise InvalidInput("The message has a longer key or etag than the ledger takes: nothing of it was submitted.")


def _submit_deliveries(
    db: Database, pipeline: FilePipeline, arrived: list[Arrived], received: Received, tenant: str, priority: int
) -> None:
    looked: set[str] = set()
    for one in arrived:
        folder = one.path.rpartition("/")[0]
        if folder in looked:
            received.ignored["same folder"] += 1
            continue
        looked.add(folder)
        deliveries = list(landing.containing(pipeline, one.path))
        if not deliveries:
            received.ignored["waits for its delivery"] += 1
        for found in deliveries:
            known = partitions.known_requests(db, pipeline.name, [found.request_key])
            if found.request_key not in known and not has_new(db, pipeline, found.files):
                received.ignored["known"] += 1
            elif not any(found.request_key == key for key in looked):
                looked.add(found.request_key)
                received.submissions.append(submit_found(db, pipeline, found, tenant=tenant, priority=priority))


def _submit_files(
    db: Database, pipeline: FilePipeline, arrived: list[Arrived], received: Received, tenant: str, priority: int
) -> None:
    data = [one for one in arrived if landing.is_data(pipeline, one.path.rpartition("/")[2])]
    received.ignored["no data file"] += len(arrived) - len(data)
    if not data:
        return
    ids = hashlib.sha256("\n\n".join(one.id for one in data).encode("utf-8", "surrogatepass")).hexdigest()
    asked: Mapping[str, str] = {"events": ids}
    key = f"events:{ids[:32]}"
    made = submission.find(db, pipeline.name, key, asked, tenant=tenant, priority=priority)
    if made is None:
        files = [_file(pipeline, one) for one in data]
        if not has_new(db, pipeline, files):
            received.ignored["known"] += len(files)
            return
        made = submission.submit(
            db, pipeline.name, files, request_key=key, request=asked, tenant=tenant, priority=priority
        )
    received.submissions.append(made)


def _file(pipeline: FilePipeline, one: Arrived) -> FileVersion:
    """As it was announced, without a look: the worker looks. Only what was not said is asked for."""
    if one.etag is not None and one.size is not None:
        return FileVersion(one.path, one.etag, one.size, one.at)
    now = pipeline.storage.find(one.path)
    return now.file if now is not None else FileVersion(one.path, "missing", 0)
