"""A real S3 and SQS on this machine, spoken to over HTTP by this process, Spark's workers and child processes."""

import uuid
from collections.abc import Iterator
from typing import Any

import botocore.session
import pytest

from pg_pipeline_tests.helpers import ChildProcess
from pg_pipeline_tests.orders import bench, make_orders

__all__ = ["bench", "make_orders"]

SERVE = """
import logging, signal, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("at http://%s:%s" % server.get_host_and_port(), flush=True)
signal.pause()
"""


class Bucket:
    """A bucket of the test's own, and how a pipeline reaches it."""

    def __init__(self, client: Any, name: str, endpoint: str) -> None:
        self.client = client
        self.name = name
        self.url = f"s3://{name}"
        self.options = {"endpoint_url": endpoint, "key": "env:AWS_ACCESS_KEY_ID", "secret": "env:AWS_SECRET_ACCESS_KEY"}

    def put(self, key: str, content: bytes = b"") -> str:
        self.client.put_object(Bucket=self.name, Key=key, Body=content)
        return f"{self.url}/{key}"

    def delete(self, key: str) -> None:
        self.client.delete_object(Bucket=self.name, Key=key)


@pytest.fixture(scope="session")
def aws() -> Iterator[str]:
    server = ChildProcess(SERVE)
    server.wait_for_output("at http")
    yield server.stdout.split("at ")[1].split()[0]
    server.close()


@pytest.fixture(scope="session")
def s3(aws: str) -> Any:
    return botocore.session.get_session().create_client("s3", endpoint_url=aws, region_name="us-east-1")


@pytest.fixture
def bucket(s3: Any, aws: str) -> Bucket:
    name = f"test-{uuid.uuid4().hex[:12]}"
    s3.create_bucket(Bucket=name)
    return Bucket(s3, name, aws)
