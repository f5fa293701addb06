"""Webhooks go where they may, to whoever was looked at, and show nobody a secret."""

import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pg_pipeline.coordination import webhook
from pg_pipeline_tests.helpers import wait_until
from pg_pipeline_tests.security.conftest import PEM, Receiver

SECRET = "s3cret"
GetAddrInfo = Callable[..., list[Any]]


def send(url: str, *, allow_private: bool = False, timeout: float = 5.0) -> str | None:
    headers = {webhook.KEY: "k", **webhook.signature(SECRET, b"{}", "k")}
    return webhook.post(url, b"{}", headers, timeout=timeout, allow_private=allow_private)


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.1", "2130706433", "0177.0.0.1", "0x7f.0.0.1", "0.0.0.0", "localhost"),
        *("[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]"),
        *("10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "169.254.169.254", "[fe80::1]", "[fd00::1]"),
        *("224.0.0.1", "255.255.255.255", "[ff02::1]", "192.0.2.1", "198.18.0.1"),
    ],
)
def test_an_address_inside_the_network_is_refused_however_it_is_written(host: str, receiver: Receiver) -> None:
    refusal = send(f"http://{host}:{receiver.port}/hook")
    assert "not a public address" in str(refusal)
    assert receiver.got == []


def test_public_addresses_are_public() -> None:
    for address in ("1.1.1.1", "2606:4700:4700::1111", "64:ff9b::101:101", "2002:101:101::"):
        webhook.check("host", address)


@pytest.mark.parametrize(
    "url",
    ["ftp://example.org/x", "file:///etc/passwd", "nonsense", "http://", "http://[::1", "http://h:99999/", "//h/x", ""],
)
def test_what_is_no_web_address_is_refused(url: str) -> None:
    refusal = send(url, allow_private=True)
    assert refusal is not None
    assert "address" in refusal


@pytest.mark.parametrize("first", ["127.0.0.1", "1.1.1.1"])
def test_a_name_that_moves_between_look_and_connection_gains_nothing(
    first: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DNS rebinding: every other answer leads inside."""
    real: GetAddrInfo = socket.getaddrinfo
    answers = [first, "1.1.1.1" if first == "127.0.0.1" else "127.0.0.1"] * 3
    dialled: list[str] = []

    class Socket(socket.socket):
        def connect(self, address: Any) -> None:
            dialled.append(address[0])
            if address[0] != "127.0.0.1":
                raise ConnectionRefusedError(111, "Connection refused")  # no traffic of ours leaves the machine
            super().connect(address)

    def moving(host: str, port: int, **options: Any) -> list[Any]:
        return real(answers.pop(0) if host == "moving.example" else host, port, **options)

    monkeypatch.setattr(webhook.socket, "getaddrinfo", moving)
    monkeypatch.setattr(webhook.socket, "socket", Socket)
    assert send(f"http://moving.example:{receiver.port}/hook") is not None
    assert "127.0.0.1" not in dialled
    assert receiver.got == []


def test_a_redirect_is_not_followed(receiver: Receiver) -> None:
    receiver.answer = (307, {"Location": receiver.url}, b"")
    refusal = send(receiver.url, allow_private=True)
    assert refusal is not None
    assert "redirects are not followed" in refusal
    assert len(receiver.got) == 1


def test_a_certificate_that_nobody_vouches_for_is_refused(
    secure_receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = send(secure_receiver.url, allow_private=True)
    assert refusal is not None
    assert secure_receiver.got == []
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(PEM))
    assert send(secure_receiver.url, allow_private=True) is None
    # Another name than the certificate's.
    other = secure_receiver.url.replace("127.0.0.1", "2130706433")
    assert send(other, allow_private=True) is not None
    assert len(secure_receiver.got) == 1


def test_a_proxy_of_the_environment_does_not_see_webhooks(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would connect where we did not look."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, receiver.url)
    monkeypatch.delenv("no_proxy", raising=False)
    refusal = send("http://127.0.0.1:1/hook", allow_private=True)
    assert refusal is not None
    assert receiver.got == []


def test_an_answer_without_end_is_not_read(receiver: Receiver) -> None:
    receiver.answer = (200, {}, b"x" * (4 << 20))
    assert send(receiver.url, allow_private=True) is None


def test_a_receiver_that_drips_is_hung_up_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ended = threading.Event()

        def drip() -> None:
            one, _ = server.accept()
            with one:
                try:
                    while not ended.wait(0.02):
                        one.sendall(b"H")
                except OSError:
                    pass
                ended.set()

        threading.Thread(target=drip, daemon=True).start()
        assert send(f"http://127.0.0.1:{server.getsockname()[1]}/", allow_private=True, timeout=0.2) is not None
        wait_until(ended.is_set, what="the receiver to notice")


def test_an_address_that_is_a_secret_stays_in_the_environment(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEBHOOK_ORDERS", receiver.url)
    assert send("env:WEBHOOK_ORDERS", allow_private=True) is None
    assert len(receiver.got) == 1
    monkeypatch.setenv("WEBHOOK_ORDERS", "http://user:hunter2@127.0.0.1:1/T0/hunter2")
    assert "hunter2" not in str(send("env:WEBHOOK_ORDERS", allow_private=True))
    monkeypatch.setenv("WEBHOOK_ORDERS", "http://127.0.0.1:1/T0/hunter2")
    refusal = str(send("env:WEBHOOK_ORDERS", allow_private=True))
    assert "refused" in refusal
    assert "hunter2" not in refusal
    monkeypatch.setenv("OTHER", receiver.url)
    assert "is not an http address" in str(send("env:OTHER", allow_private=True))


def test_a_receiver_knows_what_we_signed_and_refuses_what_is_old_or_changed() -> None:
    headers = {"idempotency-key": "k", **webhook.signature(SECRET, b"{}", "k", now=1000)}
    assert webhook.verify(SECRET, headers, b"{}", now=1000 + webhook.REPLAY_WINDOW)
    assert not webhook.verify(SECRET, headers, b"{}", now=1001 + webhook.REPLAY_WINDOW)
    assert not webhook.verify(SECRET, headers, b"{ }", now=1000)
    assert not webhook.verify("other", headers, b"{}", now=1000)
    assert not webhook.verify(SECRET, headers | {"idempotency-key": "j"}, b"{}", now=1000)
    assert not webhook.verify(SECRET, headers | {webhook.TIMESTAMP: "1001"}, b"{}", now=1001)
    assert not webhook.verify(SECRET, {}, b"{}")
