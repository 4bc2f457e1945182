"""Stages of any speed: a pass takes the share of a drawn step that its stage has of the network."""

from dataclasses import dataclass

from plesio.core.clock import Clock
from plesio.runtime.worker.pacing import Pacer

__all__ = ["BACKWARD_SHARE", "StagePacer"]

BACKWARD_SHARE = 2 / 3
"""Of a step's time: a backward pass has two products of matrices for each one of the forward pass."""


@dataclass(frozen=True, slots=True)
class StagePacer:
    """Makes one stage's passes take their time.

    Attributes:
        pacer: Draws what the whole network's step takes.
        share: Of this stage.
        clock: Tells the time and sleeps.
    """

    pacer: Pacer
    share: float
    clock: Clock

    def pace(self, micro_batch: int, *, backward: bool, started_s: float) -> None:
        """Return when the pass that began at ``started_s`` has taken as long as it should."""
        part = BACKWARD_SHARE if backward else 1 - BACKWARD_SHARE
        share = part * self.share
        deadline_s = started_s + share * self.pacer.step_s(micro_batch, started_s=started_s)
        self.clock.sleep_until_s(deadline_s, share=share)
