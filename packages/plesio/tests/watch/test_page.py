"""The page's server by requests, and the page in a real browser."""

import json
import socket
import urllib.error
import urllib.request

import pytest
from playwright.sync_api import Browser

from plesio.core.errors import ConfigError, TransportError
from plesio.watch import TOKEN_VARIABLE, Latest, RunView, serve, view_of
from support.watched import a_glimpse, times

PATIENCE_S = 30


def a_view(steps: int = 100, **changes: object) -> RunView:
    return view_of(
        a_glimpse(times(0, steps=steps, compute_s=2.0, wait_s=1.0), times(1, steps=steps, compute_s=3.0), **changes)
    )


def get(address: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, ""


def test_page_and_metrics_are_there_for_who_has_the_token_only():
    latest = Latest()
    with serve(latest, port=0) as address:
        assert get(address)[0] == 200
        assert get(f"{address}metrics")[0] == 503  # to Prometheus the target is down
        latest.set(a_view())
        assert "plesio_samples_total 1600.0" in get(f"{address}metrics")[1]
        root = address[: address.index("/", len("http://")) + 1]
        assert root.startswith("http://127.0.0.1:")
        wrong = address.rstrip("/")[:-1] + "/"
        for other in (root, f"{root}metrics", wrong, f"{wrong}metrics", f"{address}no", f"{address}../events"):
            assert get(other)[0] == 404


def test_events_bring_each_view_once():
    latest = Latest()
    with serve(latest, port=0) as address:
        latest.set(a_view())
        with urllib.request.urlopen(f"{address}events", timeout=PATIENCE_S) as events:
            assert json.loads(events.readline().removeprefix(b"data: "))["steps"] == 200
            assert events.readline() == b"\n"
            latest.set(a_view())  # nothing new
            latest.set(a_view(150, error="<b>"))
            assert json.loads(events.readline().removeprefix(b"data: "))["error"] == "<b>"


def test_a_port_that_is_taken_and_a_token_that_could_be_guessed_are_refused(monkeypatch: pytest.MonkeyPatch):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(TransportError, match="leave --port out"), serve(Latest(), port=other.getsockname()[1]):
            pass
    monkeypatch.setenv(TOKEN_VARIABLE, "short")
    with pytest.raises(ConfigError, match=TOKEN_VARIABLE), serve(Latest(), port=0):
        pass
    monkeypatch.setenv(TOKEN_VARIABLE, "0123456789abcdef")
    with serve(Latest(), port=0) as address:
        assert address.endswith("/0123456789abcdef/")


@pytest.mark.browser
def test_the_page_follows_the_run(browser: Browser):
    latest = Latest()
    context = browser.new_context(viewport={"width": 500, "height": 900})
    complaints: list[str] = []
    requests: set[str] = set()
    with serve(latest, port=0) as address:
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.add(request.url))
        page.goto(address)
        latest.set(a_view(total_samples=3200))
        page.wait_for_selector("#workers tr:nth-child(3)")
        assert page.inner_text("h1") == "train under adaptive, now local_sgd:4: running"
        assert "left, about" in page.inner_text("#facts")
        assert "waiting took 35 % of a step" in page.inner_text("#decisions")
        assert page.locator("polyline").count() == 1  # one evaluation is no curve
        latest.set(a_view(150, error="<b>it failed</b>", status="failed"))
        page.wait_for_selector("h1:has-text('failed')")  # the page's policy allows no script that is given as text
        assert page.inner_text("#error") == "<b>it failed</b>"
        assert page.evaluate("document.documentElement.scrollWidth") <= 500
        assert complaints == []
        assert requests == {address, f"{address}events"}
        context.close()
