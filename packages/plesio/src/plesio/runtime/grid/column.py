"""A worker's place in its grid: the sources of its activations and gradients, and their receivers."""

from dataclasses import dataclass, field
from typing import Any

from plesio.core.errors import WorkerLostError
from plesio.policies.grid import GridSetting
from plesio.runtime.grid.formation import GridPlace
from plesio.runtime.grid.messages import Incoming, Outgoing, PeerFailedError
from plesio.runtime.worker.exchange.links import Links, PeerGoneError

_FORWARD_TAG, _BACKWARD_TAG = 1, 2


@dataclass(slots=True)
class Column:
    """The stages of one group, as one of them sees its neighbours; None where there is none.

    Attributes:
        before: Activations from the stage before.
        behind: Gradients from the stage behind.
        onward: Activations to the stage behind.
        back: Gradients to the stage before.
    """

    before: Incoming | None = None
    behind: Incoming | None = None
    onward: Outgoing | None = None
    back: Outgoing | None = None
    _left: bool = field(default=False)

    @classmethod
    def of(cls, links: Links, place: GridPlace, setting: GridSetting) -> "Column":
        rank = place.group * setting.stages + place.stage
        column = cls()
        if place.stage > 0:
            column.before = Incoming(links, rank - 1, _FORWARD_TAG)
            # the stage before may be so far ahead that it reads none of them yet, and must not be waited for
            ahead = setting.delays[place.stage - 1] - setting.delays[place.stage]
            column.back = Outgoing(links, rank - 1, _BACKWARD_TAG, most=ahead + 2)
        if place.stage < setting.stages - 1:
            column.behind = Incoming(links, rank + 1, _BACKWARD_TAG)
            column.onward = Outgoing(links, rank + 1, _FORWARD_TAG)
        return column

    def state(self, *, gradients_on_way: int) -> dict[str, Any]:
        """Return what is remembered, plain; waits for gradients that the stage behind has sent and this one not read.

        Activations are not on their way where all stages have been given equally many micro-batches.
        """
        if self.behind is not None:
            self.behind.hold(gradients_on_way)
        return {
            "before": None if self.before is None else self.before.state(),
            "behind": None if self.behind is None else self.behind.state(),
            "onward": None if self.onward is None else self.onward.num_bytes,
            "back": None if self.back is None else self.back.num_bytes,
        }

    def load(self, state: dict[str, Any]) -> None:
        for name in ("before", "behind"):
            incoming: Incoming | None = getattr(self, name)
            if incoming is not None:
                incoming.load(state[name])
        for name in ("onward", "back"):
            outgoing: Outgoing | None = getattr(self, name)
            if outgoing is not None:
                outgoing.num_bytes = state[name]

    def reason_from(self, gone: PeerGoneError) -> str | None:
        """Return why a neighbour has left, if it has sent a reason."""
        for incoming in (self.before, self.behind):
            while incoming is not None and incoming.source == gone.rank:
                try:
                    incoming.take(more=False)
                except PeerFailedError as error:
                    return str(error)
                except PeerGoneError:
                    break
        return None

    def leave(self, reason: str) -> None:
        """Tell both neighbours that this worker cannot go on, and why; once."""
        if self._left:
            return
        self._left = True
        for outgoing in (self.onward, self.back):
            if outgoing is not None:
                outgoing.fail(reason)


def lost(error: PeerGoneError, place: GridPlace, setting: GridSetting) -> WorkerLostError:
    """Return the error of a worker that one of its column is gone."""
    others = setting.groups - 1
    rest = {0: "it is the only one", 1: "the other goes on"}.get(others, f"the other {others} go on")
    first = place.group * setting.stages
    return WorkerLostError(
        f"{error}: group {place.group} of the grid ends; {rest}", ranks=tuple(range(first, first + setting.stages))
    )
