"""What an exchange that changes remembers beside the replica, on this worker: what of a checkpoint is its own."""

from collections import deque
from typing import Any

from plesio.runtime.worker.exchange.collective import CollectiveExchanges
from plesio.runtime.worker.exchange.held_rate import HeldRate
from plesio.runtime.worker.exchange.replica import Replica
from plesio.runtime.worker.exchange.state_copy import StateCopy
from plesio.runtime.worker.monitor import StepMonitor

__all__ = ["OwnParts"]


class OwnParts:
    """The parts of one exchange that outlive its stages.

    Args:
        replica: What is trained.
        kept: States to go back to.
        exchanges: Keep the momentum of steps that are made of means.
        monitor: Knows usual steps; None where nothing is watched.
        held: Knows usual learning rates.
    """

    def __init__(
        self,
        replica: Replica,
        *,
        kept: deque[StateCopy],
        exchanges: CollectiveExchanges,
        monitor: StepMonitor | None,
        held: HeldRate,
    ) -> None:
        self._replica = replica
        self._kept = kept
        self._exchanges = exchanges
        self._monitor = monitor
        self._held = held

    def state(self) -> dict[str, Any]:
        """What they remember, as plain values."""
        return {"kept": [copy.state() for copy in self._kept], **self.memory()}

    def memory(self) -> dict[str, Any]:
        """The same without the states to go back to."""
        state: dict[str, Any] = {"exchanges": self._exchanges.own()}
        if self._monitor is not None:
            state["monitor"] = self._monitor.own()
        return state | self._held.own()

    def go_on_from(self, state: dict[str, Any]) -> None:
        """Take over what `state` or `memory` gave; nothing is nothing."""
        if not state:
            return
        self._kept.extend(StateCopy.of(self._replica, one) for one in state.get("kept", ()))
        self._exchanges.take_own(state["exchanges"])
        if self._monitor is not None and "monitor" in state:
            self._monitor.take_own(state["monitor"])
            self._monitor.forget()
        self._held.take_own(state)
