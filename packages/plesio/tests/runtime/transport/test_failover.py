"""A control connection that goes on with a server's backup: each message counts once, on both sides, in order."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from plesio.core.errors import TransportError
from plesio.runtime.transport import Control
from plesio.runtime.transport.failover import FailoverControl
from plesio.runtime.transport.numbered import RESUME, RESUMED, numbered, unnumbered

KIND = 7


class Link:
    """A connection to one server, which the test plays."""

    def __init__(self) -> None:
        self.generation, self.closed = 0, False
        self.sent: list[tuple[int, Mapping[str, Any]]] = []
        self.arrives: list[Control] = []
        self.lost = False

    def send(self, kind: int, body: Mapping[str, Any]) -> None:
        self.sent.append((kind, body))

    def poll(self, timeout_s: float) -> list[Control]:
        arrived, self.arrives = self.arrives, []
        if not arrived and self.lost:
            raise TransportError("reset by peer")
        return arrived

    def close(self) -> None:
        self.closed = True

    def says(self, number: int, *, received: int, text: str) -> None:
        body = numbered({"text": text}, number=number, received=received)
        self.arrives.append(Control(peer=b"", kind=KIND, generation=0, body=body))

    def resumes(self, **body: Any) -> None:
        self.arrives.append(Control(peer=b"", kind=RESUMED, generation=0, body=body))


def connection(backup: Callable[[], Link], *, wanted: bool = True) -> tuple[FailoverControl, Link]:
    primary = Link()
    return FailoverControl(primary, dial=backup, wanted=lambda: wanted), primary  # type: ignore[arg-type]


def texts(connection: FailoverControl) -> list[str]:
    return [control.body["text"] for control in connection.poll(0.0)]


def test_what_the_backup_has_not_heard_is_sent_again_and_what_came_twice_counts_once():
    backup = Link()
    control, primary = connection(lambda: backup)
    control.generation = 3
    for text in ("one", "two", "three"):
        control.send(KIND, {"text": text})
    primary.says(1, received=1, text="first")
    assert texts(control) == ["first"]
    primary.lost = True
    backup.resumes(control=2)
    backup.says(1, received=2, text="first")  # it cannot know what the primary has sent
    backup.says(2, received=2, text="second")
    assert texts(control) == []  # this call has found the backup
    assert texts(control) == ["second"]
    (kind, asked), (_, again) = backup.sent
    assert (kind, asked) == (RESUME, {"control": 1})
    assert unnumbered(again) == (3, 1, {"text": "three"})
    assert (backup.generation, control.generation) == (3, 3)
    control.close()
    assert primary.closed
    assert backup.closed


def test_messages_of_an_earlier_run_are_not_sent_again():
    backup = Link()
    control, primary = connection(lambda: backup)
    control.send(KIND, {"text": "of the run before"})
    control.generation += 1
    control.send(KIND, {"text": "of this one"})
    primary.lost = True
    backup.resumes(control=0)
    assert texts(control) == []
    assert [unnumbered(body)[2] for kind, body in backup.sent if kind == KIND] == [{"text": "of this one"}]


def test_a_message_after_one_that_is_missing_waits_for_the_backup():
    control, primary = connection(Link)
    primary.says(2, received=0, text="second")
    assert texts(control) == []


def refuses() -> Link:
    raise TransportError("no backup either")


def over() -> Link:
    backup = Link()
    backup.resumes(over=True)
    return backup


def gone() -> Link:
    backup = Link()
    backup.lost = True
    return backup


@pytest.mark.parametrize("backup", [refuses, over, gone])
def test_without_a_backup_that_takes_over_the_connection_is_lost(backup: Callable[[], Link]):
    control, primary = connection(backup, wanted=backup is not refuses)
    primary.lost = True
    with pytest.raises(TransportError, match="reset by peer"):
        control.poll(0.0)
    control.close()
