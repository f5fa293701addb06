"""A TLS end before the session's server, as a managed Postgres or a balancer has one. The embedded programs are built
without TLS, so the bytes behind it are a Postgres', and what is before it is the real clients' own TLS."""

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from pg_pipeline.embedded.server import SOCKET_NAME, EmbeddedServer

# A certificate for 127.0.0.1, its own authority, and its key.
PEM = Path(__file__).parent / "security" / "loopback.pem"
SSL_REQUEST = bytes.fromhex("0000000804d2162f")


class SecureEnd:
    """Speaks TLS and nothing else: a client that asks in clear is cut off."""

    def __init__(self, socket: Path) -> None:
        self._behind = socket
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(PEM)
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._met, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    async def _met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError), contextlib.closing(writer):
            if await reader.readexactly(8) != SSL_REQUEST:
                return
            writer.write(b"S")
            await writer.start_tls(self._context)
            behind, to = await asyncio.open_unix_connection(str(self._behind))
            with contextlib.closing(to):
                both = [asyncio.ensure_future(one) for one in (_forward(reader, to), _forward(behind, writer))]
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                for one in both:
                    one.cancel()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


async def _forward(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()


@pytest.fixture
def secured(server: EmbeddedServer) -> Iterator[Callable[..., str]]:
    """Turns a DSN into one over TLS that trusts this authority and checks the host's name."""
    end = SecureEnd(server.socket_dir / SOCKET_NAME)

    def over_tls(dsn: str, authority: Path = PEM, host: str = "127.0.0.1") -> str:
        database = conninfo_to_dict(dsn)["dbname"]
        where = f"postgresql://postgres@{host}:{end.port}/{database}?sslmode=verify-full&sslrootcert={authority}"
        return where if host == "127.0.0.1" else f"{where}&hostaddr=127.0.0.1"

    yield over_tls
    end.close()
