"""The parts of a worker that depend on its policy and its world, and that its session composes."""

from dataclasses import dataclass

from plesio.policies import Policy
from plesio.runtime.worker.exchange.equality import Equality
from plesio.runtime.worker.exchange.exchange import Exchange
from plesio.runtime.worker.past import WorkerPast
from plesio.runtime.worker.recovery import Recovery
from plesio.runtime.worker.sharing import Sharing

__all__ = ["SessionParts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionParts:
    """The parts of one worker.

    Attributes:
        policy: The consistency policy.
        exchange: Shares updates.
        sharing: Deals samples, and shares metrics.
        deals: False if the worker is alone and saves nothing: it iterates a loader as it is.
        recovery: None where the loss of a worker ends the run, or no worker waits for it.
        past: The past of a run that is resumed or joined; None for one that begins.
        equality: Compares replicas, where a collective makes them equal.
    """

    policy: Policy
    exchange: Exchange
    sharing: Sharing
    deals: bool = True
    recovery: Recovery | None = None
    past: WorkerPast | None = None
    equality: Equality | None = None
