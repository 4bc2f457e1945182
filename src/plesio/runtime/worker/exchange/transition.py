"""What a user is told of a change of policy in a running job."""

from dataclasses import dataclass

from plesio.policies import Policy

__all__ = ["Transition"]


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
