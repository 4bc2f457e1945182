"""A view of a run as a page, which follows it by server-sent events, and as metrics.

The server listens on the loopback interface only. Every address begins with a token, so that other users of the machine
and pages of other sites, which may reach the port, see nothing.
"""

import hmac
import json
import math
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

from plesio.core.errors import ConfigError, TransportError
from plesio.core.records import to_json
from plesio.watch.prometheus import CONTENT_TYPE, metrics_text
from plesio.watch.view import RunView

TOKEN_VARIABLE = "PLESIO_WATCH_TOKEN"
"""The token, for a monitor whose address must stay; else there is a new one each time."""
LEAST_TOKEN = 16
KEEP_ALIVE_S = 15.0
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"


class Latest:
    """The latest view, which any number of threads wait for."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._view: RunView | None = None
        self._number = 0
        self._closed = False

    def set(self, view: RunView | None) -> None:
        with self._changed:
            if view != self._view:
                self._view, self._number = view, self._number + 1
                self._changed.notify_all()

    def get(self) -> RunView | None:
        return self._view

    def after(self, number: int, *, timeout_s: float) -> tuple[int, RunView | None]:
        """Return the latest view and its number when it is another than ``number``, or after a time."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._number != number, timeout_s)
            return self._number, self._view

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


@contextmanager
def serve(latest: Latest, *, port: int) -> Iterator[str]:
    """Serve the page while the context is open; gives its address.

    Raises:
        TransportError: The port is taken.
        ConfigError: The token of the environment is too short.
    """
    token = os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe(24)
    if len(token) < LEAST_TOKEN or not token.replace("-", "").replace("_", "").isalnum():
        raise ConfigError(
            f"{TOKEN_VARIABLE} is no token: write {LEAST_TOKEN} letters and digits or more (openssl rand -hex 16)"
        )

    class Handler(_Handler):
        views, prefix = latest, f"/{token}/"

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else "ports are 0 to 65535"
        raise TransportError(f"cannot listen on port {port}: {reason}; leave --port out to take a free one") from None
    server.daemon_threads = True  # a connection that says nothing holds nobody up
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="plesio-page")
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/{token}/"
    finally:
        latest.close()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    views: Latest
    prefix: str
    timeout = KEEP_ALIVE_S
    """For a request to come: a connection that says nothing keeps no thread."""

    def do_GET(self) -> None:
        """Answer a request for the page, its events or the metrics."""
        path = self.path.partition("?")[0]
        known = hmac.compare_digest(path[: len(self.prefix)].encode(), self.prefix.encode())
        view = self.views.get()
        match path[len(self.prefix) :] if known else None:
            case "":
                self._answer("text/html; charset=utf-8", files("plesio.watch").joinpath("page.html").read_bytes())
            case "events":
                self._events()
            case "metrics" if view is not None:
                self._answer(CONTENT_TYPE, metrics_text(view).encode())
            case "metrics":
                self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "no figures of the run yet")
            case _:
                self.send_error(HTTPStatus.NOT_FOUND)

    def _answer(self, kind: str, body: bytes) -> None:
        self._head(kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _head(self, kind: str) -> None:
        self.send_response(HTTPStatus.OK)
        headers = {"Content-Type": kind, "Cache-Control": "no-store", "Content-Security-Policy": _POLICY}
        for name, value in {**headers, "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}.items():
            self.send_header(name, value)

    def _events(self) -> None:
        self._head("text/event-stream")
        self.end_headers()
        number = 0
        try:
            while not self.views.closed:
                seen, view = self.views.after(number, timeout_s=KEEP_ALIVE_S)
                self.wfile.write(b": still here\n\n" if seen == number else _event(view))
                number = seen
        except OSError:  # the reader has gone
            return

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the address has the token in it."""


def _event(view: RunView | None) -> bytes:
    values = None if view is None else to_json(view, not_finite=lambda value: None if math.isnan(value) else str(value))
    return f"data: {json.dumps(values)}\n\n".encode()
