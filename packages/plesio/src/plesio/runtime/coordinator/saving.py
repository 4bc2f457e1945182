"""A run's checkpoints, when they are due, and the state of server 0 in one, with which a run resumes.

A checkpoint that is due is asked of the policy by a `Pause`; it is taken where all have stopped for the policy's next
`Steer`, and the worker that writes the state gets it with that. So it is of the same moment as what the workers save.
"""

import json
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from plesio.policies import Event, Joined, Left, Recorder, Steer, decode_event, encode_event
from plesio.protocol.effects import Effect, Tell
from plesio.protocol.to_server import SaveRequest, Saving, ServerStatePage
from plesio.protocol.to_worker import ServerState
from plesio.runtime.coordinator.ledger import Ledger, LedgerState
from plesio.runtime.coordinator.members import Members
from plesio.runtime.coordinator.stage import Stage


class _ServerState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of server 0 at a checkpoint.

    Attributes:
        began: The clock at which the policy's machine was started.
        events: Events that it has handled; None where it needs no more than the clock to go on.
    """

    ledger: LedgerState
    began: int = 0
    events: list[dict[str, object]] | None = None


class Checkpoints:
    """The checkpoints of one run.

    Args:
        saving: Frequency of checkpoints, and the beginning of the run; None for a run without.
        remembers: True if the policy's decisions follow from all earlier events.
        first_stop: Clock at which the answer to the first review holds, and all can stop.
    """

    def __init__(
        self,
        saving: Saving | None,
        *,
        remembers: bool,
        first_stop: int,
        members: Members,
        ledger: Ledger,
        recorder: Recorder,
        stage: Stage,
    ) -> None:
        self.exist = saving is not None
        """True if the run takes any."""
        self._saving = saving
        self._remembers, self._first_stop = remembers, first_stop
        self._members = members
        self._ledger = ledger
        self._recorder = recorder
        self._stage = stage
        self._asked = False
        """By a worker."""
        self._pending = False
        """The policy has been asked for a pause."""
        self._taken_s = 0.0
        self._taken_clock = self._clock = self._began = recorder.began
        self._pages: list[str] = []

    @property
    def elapsed_s(self) -> float:
        """Seconds that the run had taken before it was resumed."""
        return 0.0 if self._saving is None else self._saving.elapsed_s

    @property
    def complete(self) -> bool:
        """True if all parts of the run's beginning have arrived."""
        return self._saving is None or len(self._pages) >= self._saving.num_pages

    def handle(self, message: SaveRequest | ServerStatePage, *, worker: int) -> None:
        """Take in a worker's wish for a checkpoint, or worker 0's next page of the state of a resumed run."""
        if isinstance(message, SaveRequest):
            self._asked = True
        elif worker == 0 and self._saving is not None and len(self._pages) < self._saving.num_pages:
            self._pages.append(message.text)

    def begin(self, *, workers: Sequence[int], now_s: float) -> bool:
        """Begin the run, from a saved state if there is one.

        Returns:
            Whether the policy's machine has the workers already, having been given again all events of before.
        """
        self._taken_s = now_s
        if self._saving is None or not self._pages:
            return False
        state = msgspec.convert(json.loads("".join(self._pages)), _ServerState, strict=False)
        self._pages.clear()
        self._ledger.go_on_from(state.ledger)
        events = [decode_event(event) for event in state.events or ()]
        if set(workers) != _live(events):
            return False  # other workers than those that it knew: it begins anew, from this clock
        self._recorder.resume(events, clock=state.began)
        for worker in workers:
            self._members[worker].go_on_from(self._saving.clock)
        steer = self._recorder.last_steer
        if steer is not None:
            self._stage.steer(steer)
        return steer is not None

    def latest(self, now_s: float) -> tuple[int, float] | None:
        """Return the clock of the latest checkpoint that was begun, and the seconds since; None before the first."""
        return None if self._taken_clock == self._began else (self._taken_clock, now_s - self._taken_s)

    @property
    def next_stop(self) -> int:
        """Clock at which the answer to the review that is open on a collective holds, and all can stop."""
        steer = self._recorder.last_steer
        return self._first_stop if steer is None else steer.next_clock

    def passed(self, clock: int) -> None:
        self._clock = max(self._clock, clock)

    def due(self, now_s: float) -> bool:
        """Tell, once for each checkpoint, whether to pause for one now."""
        saving, members = self._saving, self._members
        if saving is None or self._pending or members.state != "running" or members.ending:
            return False
        due = saving.due(past_s=now_s - self._taken_s, num_steps=self._clock - self._taken_clock)
        self._pending = self._asked or due
        return self._pending

    def postponed(self, steer: Steer) -> Steer:
        """Put off a checkpoint to the next moment at which all have stopped."""
        self._asked, self._pending = self._asked or self._pending, False
        return replace(steer, save=False)

    def take(self, steer: Steer, *, now_s: float) -> list[Effect]:
        """Take the checkpoint for which all have stopped, now that all have orders how to go on.

        Returns:
            The state, for the lowest worker: the one that offers its state where one does.
        """
        if not steer.save:
            return []
        self._asked = self._pending = False
        self._taken_s, self._taken_clock, self._clock = now_s, steer.clock, steer.clock
        recorder = self._recorder
        events = [encode_event(event) for event in recorder.events] if self._remembers else None
        state = _ServerState(ledger=self._ledger.state(), began=recorder.began, events=events)
        text = json.dumps(msgspec.to_builtins(state))  # NaN is a number in it
        pages = ServerState.pages(text)
        return [
            Tell(
                worker=min(self._members.known()),
                message=ServerState(text=page, left=len(pages) - number, elapsed_s=self._ledger.elapsed_s(now_s)),
            )
            for number, page in enumerate(pages, start=1)
        ]


def _live(events: Sequence[Event]) -> set[int]:
    """Return the workers that take part after these events."""
    live: set[int] = set()
    for event in events:
        if isinstance(event, Joined):
            live.add(event.worker)
        elif isinstance(event, Left) and event.reason != "resting":
            live.discard(event.worker)
    return live
