"""The decisions of a policy that adapts, as a result lists them."""

from typing import Any

from plesio.policies.events import Steer

__all__ = ["Decisions"]


class Decisions:
    """The decisions of one run, in order."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []

    def add(self, action: Steer, *, at_s: float) -> None:
        """Add a decision on how the workers go on."""
        self.entries.append(
            {
                "at_s": at_s,
                "clock": action.clock,
                "before": action.before,
                "policy": action.policy,
                "shares": list(action.shares),
                "restore": action.restore,
                "reason": action.reason,
                "inputs": dict(action.inputs),
            }
        )

    def uphold(self, action: Steer, *, at_s: float) -> None:
        """Add newer reasons to the last decision, which a review has left in force."""
        latest = {"at_s": at_s, "clock": action.clock, "reason": action.reason, "inputs": dict(action.inputs)}
        self.entries[-1] = {**self.entries[-1], "latest": latest}
