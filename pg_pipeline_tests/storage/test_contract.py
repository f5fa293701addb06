"""What every store must do, whatever fsspec calls things there: list in order, state afresh, open as named."""

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pg_pipeline.errors import ConfigurationError, InvalidInput
from pg_pipeline.spark.files import BadFile, check_unchanged
from pg_pipeline.storage import Storage
from pg_pipeline.storage.options import check, resolved
from pg_pipeline.storage.urls import canonical, url_of
from pg_pipeline_tests.security.test_files import ODD

Put = Callable[[str, bytes], str]
# Hostile to a glob, a URL, XML, a shell; S3 takes 1,024 bytes.
KEYS = (*ODD, "a?versionId=x.json", "a::b.json", "s3:..json", "x" * 200 + "/" + "y" * 200 + "/z.json", "é/ü/☃.json")


@pytest.fixture(params=["file", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Storage, Put]:
    """A root, how to reach it, and how to put a file there."""
    if request.param == "s3":
        bucket: Any = request.getfixturevalue("bucket")
        return f"{bucket.url}/in", Storage(bucket.options), lambda name, data: bucket.put(f"in/{name}", data)
    if request.param == "memory":
        import fsspec

        root = uuid.uuid4().hex
        memory = fsspec.filesystem("memory")

        def put(name: str, data: bytes) -> str:
            memory.pipe_file(f"/{root}/{name}", data)
            return f"memory://{root}/{name}"

        return f"memory://{root}", Storage(), put

    def write(name: str, data: bytes) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return str(path)

    return str(tmp_path), Storage(), write


Place = tuple[str, Storage, Put]


def test_a_listing_is_in_order_and_goes_on_from_anywhere(place: Place) -> None:
    root, storage, put = place
    names = ["a.json", "a/1.json", "a/b/2.json", "a0.json", "b/_SUCCESS", "b/x.json", "z.json"]
    for name in [*reversed(names), "_temporary/0.json", "a/.hidden/1.json"]:
        put(name, b"{}")
    found = [entry.path[len(root) + 1 :] for entry in storage.walk(root)]
    assert found == names
    for at, name in enumerate(names):
        assert [e.path[len(root) + 1 :] for e in storage.walk(root, name)] == names[at + 1 :]
    assert [e.path[len(root) + 1 :] for e in storage.walk(root, "a/")] == names[1:]
    assert list(storage.walk(f"{root}/nothing")) == []


def test_a_file_is_stated_as_it_was_listed_and_read_as_it_was_put(place: Place) -> None:
    root, storage, put = place
    path = put("a/b.json", b"x" * 100_000)
    (listed,) = storage.walk(root)
    assert listed == storage.entry(path)
    assert (listed.path, listed.size, storage.find(f"{root}/a")) == (path, 100_000, storage.find(f"{root}/a"))
    assert listed.file.modified_at is not None
    with storage.open(path) as stream:
        assert stream.read(10) == b"x" * 10
        stream.seek(99_990)
        assert stream.read(100) == b"x" * 10
    for gone in (f"{root}/no.json", f"{root}/no/no.json"):
        assert storage.find(gone) is None
        with pytest.raises(FileNotFoundError):
            storage.entry(gone)


def test_a_file_of_the_same_size_is_another_version(place: Place) -> None:
    _, storage, put = place
    path = put("a.json", b"1" * 10)
    before = storage.entry(path)
    check_unchanged(path, before.version, before.size, storage, reading=True)
    time.sleep(0.01)  # file systems keep time in ticks
    put("a.json", b"2" * 10)
    assert storage.entry(path).version != before.version, "nothing was kept from the first look"
    with pytest.raises(BadFile, match="changed"):
        check_unchanged(path, before.version, before.size, storage, reading=True)


def test_names_are_data(place: Place) -> None:
    root, storage, put = place
    paths = {}
    for number, name in enumerate(KEYS):
        # What moto's own server, the memory of fsspec, and Linux cannot hold.
        limit = "\n" if root.startswith("s3") else "::" if root.startswith("memory") else "x" * 256
        if limit not in name:
            paths[put(name, b"%d" % number)] = number
    listed = {entry.path: entry for entry in storage.walk(root)}
    assert set(paths) == set(listed)
    for path, number in paths.items():
        if root.startswith("s3") and "?versionId=" in path:
            assert storage.find(path) is None, "it would be read as another object"
            continue
        with storage.open(path) as stream:
            assert stream.read(100) == b"%d" % number, path
        assert storage.entry(path) == listed[path]


def test_urls_have_one_spelling_and_no_secrets() -> None:
    for given, known in {
        "s3a://b/k": "s3://b/k",
        "S3://b/a//b?c#d%2f\ne": "s3://b/a//b?c#d%2f\ne",
        "gcs://b/k": "gs://b/k",
        "abfss://c@account.dfs.core.windows.net/k": "abfs://c@account.dfs.core.windows.net/k",
        "sftp://me@host:22/k": "sftp://me@host:22/k",
        "/in/s3://b": "/in/s3://b",
        "file:///in/a": "file:///in/a",
    }.items():
        assert canonical(given) == known
    for refused in (
        "s3://key:hidden@bucket/a",
        "s3://hidden@bucket/a",
        "sftp://me:hidden@host/a",
        "abfs://c:hidden@account/a",
        "https://bucket.s3.amazonaws.com/a?X-Amz-Signature=hidden",
        "simplecache::s3://hidden/a",
        "s3://b::memory://hidden/a",
        "s3:///hidden",
        "data://hidden",
    ):
        with pytest.raises(InvalidInput) as said:
            url_of(refused)
        assert "hidden" not in str(said.value)
        assert "\n" not in str(said.value)


def test_secrets_are_named_and_read_where_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ({"secret": "hidden"}, {"a": {"account_key": "hidden"}}, {"endpoint_url": "http://me:hidden@host"}):
        with pytest.raises(ConfigurationError) as said:
            check(wrong)
        assert "hidden" not in str(said.value)
    given = {"secret": "env:A_SECRET", "anon": False, "client_kwargs": {"endpoint_url": "http://host"}, "token": "anon"}
    check(given)
    with pytest.raises(ConfigurationError, match="the variable A_SECRET, which is not set here"):
        resolved(given)
    monkeypatch.setenv("A_SECRET", "hidden")
    assert resolved(given) == {**given, "secret": "hidden"}
    assert "hidden" not in repr(Storage(given))


def test_a_missing_package_is_named_with_its_extra() -> None:
    with pytest.raises(ConfigurationError, match=r"sftp:// needs a package .* pip install 'pg-pipeline\[sftp\]'"):
        Storage().entry("sftp://host/a")
