"""A worker's sign of life, and the news that cannot wait, on a connection whose server is the test."""

import queue
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest

from plesio.core.errors import PlesioError, TransportError, WorkerLostError
from plesio.protocol.message import Message, decode, encode
from plesio.protocol.to_server import Heartbeat as Beat
from plesio.protocol.to_server import Holding
from plesio.protocol.to_worker import Alive, Expelled, Hold, Lost, Regrouping
from plesio.runtime.transport import Control
from plesio.runtime.worker.heartbeat import HeartbeatSender
from plesio.runtime.worker.meter import Meter

PATIENCE_S = 20.0


class Server:
    """The other end of a heartbeat's connection."""

    def __init__(self) -> None:
        self.generation = 0
        self.closed = False
        self._sent: queue.Queue[Message] = queue.Queue()
        self._answers: queue.Queue[Message | TransportError] = queue.Queue()

    def send(self, kind: int, body: Mapping[str, Any]) -> None:
        self._sent.put(decode(kind, body, Beat | Holding, peer="worker 1"))

    def poll(self, timeout_s: float) -> list[Control]:
        try:
            answer = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            return []
        if isinstance(answer, TransportError):
            raise answer
        kind, body = encode(answer)
        return [Control(peer=b"", kind=kind, generation=0, body=body)]

    def close(self) -> None:
        self.closed = True

    def say(self, answer: Message | TransportError) -> None:
        self._answers.put(answer)

    def receive(self, kind: type[Message]) -> Message:
        """Wait for the next message of this kind."""
        while not isinstance(message := self._sent.get(timeout=PATIENCE_S), kind):
            pass
        return message


class Run:
    """A run that beats: what its heartbeat has called."""

    def __init__(self, *, meeting_place: tuple[str, int] = ("127.0.0.1", 1), needs_server: bool = True) -> None:
        self.server, self.called = Server(), queue.Queue[object]()
        self.heartbeat = HeartbeatSender(self.server, rank=1, meeting_place=meeting_place, island=None)  # type: ignore[arg-type]
        self._needs_server = needs_server
        self.begin()

    def begin(self) -> None:
        self.heartbeat.begin(
            Meter(),
            abort=lambda: self.called.put("abort"),
            hold=lambda generation: 40 + generation,
            lost=self.called.put,
            on_server_lost=None if self._needs_server else lambda: self.called.put("without a server"),
        )

    def calls(self) -> object:
        return self.called.get(timeout=PATIENCE_S)

    def fails(self, kind: type[PlesioError], text: str) -> None:
        assert self.calls() == "abort"
        failure = self.heartbeat.wait_for_failure()
        assert isinstance(failure, kind)
        assert text in str(failure)


@pytest.fixture
def run() -> Iterator[Run]:
    run = Run()
    yield run
    run.heartbeat.stop()
    assert run.server.closed


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_it_beats_five_times_a_lease_and_is_in_doubt_when_no_beat_is_answered(run: Run):
    run.server.receive(Beat)
    run.server.say(Alive(lease_s=0.5))
    began_s = time.monotonic()
    for _ in range(6):
        run.server.receive(Beat)
    assert time.monotonic() - began_s > 4 * 0.5 / 5  # two may have been under way
    wait_until(lambda: run.heartbeat.doubtful)
    run.server.say(Alive(lease_s=60.0))
    wait_until(lambda: not run.heartbeat.doubtful)
    assert run.heartbeat.failure is None


def test_it_beats_no_more_when_quiet_and_still_passes_news_on(run: Run):
    run.heartbeat.quiet()
    run.server.say(Lost(workers=(2,), fatal=False))
    assert run.calls() == (2,)
    assert (run.heartbeat.failure, run.heartbeat.server_lost) == (None, False)


def test_a_new_group_wakes_the_training_thread(run: Run):
    run.server.say(Regrouping(generation=3))
    assert run.calls() == "abort"
    assert (run.heartbeat.generation, run.heartbeat.failure) == (3, None)


def test_who_waits_to_join_is_told_the_step_that_has_begun(run: Run):
    run.server.say(Hold(generation=2))
    assert run.server.receive(Holding) == Holding(generation=2, begun=42)


@pytest.mark.parametrize(
    ("news", "text"),
    [
        (Lost(workers=(0,), fatal=True), "worker 0 was lost"),
        (Expelled(), "was silent for longer than its lease"),
        (Expelled(over=True), "this worker (rank 1)"),
    ],
)
def test_a_run_that_cannot_go_on_fails_and_says_why(run: Run, news: Message, text: str):
    run.server.say(news)
    if isinstance(news, Lost):
        assert run.calls() == (0,)
    run.fails(WorkerLostError, text)


def test_a_lost_server_ends_a_run_that_needs_it_and_the_runs_after_it(run: Run):
    run.server.say(TransportError("reset by peer"))
    run.fails(TransportError, "the job's server is gone: reset by peer")

    def is_refused() -> bool:
        with suppress(TransportError):
            run.begin()
            return False
        return True

    wait_until(is_refused)  # as soon as its thread has ended


@pytest.mark.parametrize("answers", [True, False])
def test_a_run_without_its_server_goes_on_where_the_meeting_place_answers(*, answers: bool):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = listener.getsockname()
        if not answers:
            listener.close()
        run = Run(meeting_place=place, needs_server=False)
        run.server.say(TransportError("reset by peer"))
        if answers:
            assert run.calls() == "without a server"
            assert (run.heartbeat.server_lost, run.heartbeat.failure) == (True, None)
            assert not run.heartbeat.doubtful
        else:
            run.fails(TransportError, "worker 1 is cut off: neither the job's server nor its meeting place")
        run.heartbeat.stop()


def test_the_next_run_of_a_job_is_another_generation(run: Run):
    run.heartbeat.next_run()
    assert run.server.generation == 1
