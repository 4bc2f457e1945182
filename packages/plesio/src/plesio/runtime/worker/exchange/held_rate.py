"""The learning rate of a worker's steps, held where it leaps; see `plesio.policies.adaptive.training.rate_limit`."""

from typing import Any

from plesio.core.records import from_values, to_values
from plesio.policies.adaptive.training.rate_limit import RateLimit
from plesio.runtime.worker.exchange.replica import Replica
from plesio.runtime.worker.timeline import WorkerTimeline

__all__ = ["HeldRate"]


class HeldRate:
    """The learning rate of one worker, held below a limit.

    Args:
        replica: Its optimizer has the user's rate.
        limit: The largest rate that is allowed; None is no limit.
        timeline: Records a rate that is held.
    """

    def __init__(self, replica: Replica, limit: RateLimit | None, timeline: WorkerTimeline) -> None:
        self._replica = replica
        self._limit = limit
        self._timeline = timeline

    @property
    def rate(self) -> float:
        """The user's."""
        return float(self._replica.optimizer.param_groups[0]["lr"])

    def share_at(self, clock: int) -> float:
        """Return the factor of the learning rates in this step."""
        if self._limit is None:
            return 1.0
        rate, held_before = self.rate, self._limit.holds
        allowed = self._limit.allow(rate)
        if self._limit.holds and not held_before:
            self._timeline.event("hold", at_s=self._timeline.now_s(), clock=clock, rate=rate, allowed=allowed)
            self._timeline.meter.totals.fallbacks.append(
                f"at step {clock} the learning rate leapt to {rate:.4g}, above all earlier ones: it was held at "
                f"{allowed:.4g} and raised step by step while training bore it"
            )
        return allowed / rate if self._limit.holds else 1.0

    def good(self) -> None:
        """Pass on to the limit that a review found nothing wrong with the steps up to here."""
        if self._limit is not None:
            self._limit.good()

    def returned(self) -> None:
        """Pass on to the limit that the run was taken back to an earlier state."""
        if self._limit is not None:
            self._limit.returned()

    def own(self) -> dict[str, Any]:
        """Return what it knows of usual rates, as plain values; nothing where rates are not limited."""
        return {} if self._limit is None else {"limit": to_values(self._limit)}

    def take_own(self, own: dict[str, Any]) -> None:
        """Take over what `own` gave."""
        if self._limit is not None and "limit" in own:
            self._limit = from_values(own["limit"], RateLimit)
