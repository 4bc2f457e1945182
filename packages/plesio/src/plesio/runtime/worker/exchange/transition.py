"""A change of policy in a running job: the users' notice of it, and whether optimizers' states meet in it."""

from dataclasses import dataclass

from plesio.policies import Policy

__all__ = ["Transition", "own_states_meet"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A change of policy in a running job.

    Attributes:
        clock: The last step under ``before``.
        before: The policy up to there.
        after: The policy from there on.
        restored: Whether the worker has gone back to an earlier state.
    """

    clock: int
    before: Policy
    after: Policy
    restored: bool


def own_states_meet(before: Policy, after: Policy) -> bool:
    """Tell whether workers with an optimizer's state of their own step alike from now on, and so need the same one."""
    if before.update != "delta" or before.exchange == after.exchange == "store":
        return False
    return after.update == "gradient" or (after.inner is not None and before.inner is None)
