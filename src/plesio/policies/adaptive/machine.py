"""Directs a run by its reviews: the controller decides at each of them, and says when the next one is."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from plesio.policies.adaptive.controller import Controller
from plesio.policies.adaptive.review import next_review
from plesio.policies.events import Reviewed
from plesio.policies.policy import Policy
from plesio.policies.steered import Course, SteeredMachine

if TYPE_CHECKING:
    from plesio.policies.adaptive.adaptive import Adaptive

__all__ = ["AdaptiveMachine"]


class AdaptiveMachine(SteeredMachine):
    """Answers reviews.

    Args:
        policy: Components and parameters.
    """

    __slots__ = ()

    def __init__(self, policy: "Adaptive") -> None:
        super().__init__(_Reviewing(policy))


class _Reviewing:
    def __init__(self, policy: "Adaptive") -> None:
        self._policy = policy
        self._controller = Controller(policy)
        self._review = policy.review
        self._first_review = policy.first_review

    def first(self, *, normalises: bool, sparse: bool) -> Policy:
        """Its own first setting's."""
        self._controller.setting = self._policy.first_setting(normalises=normalises, sparse=sparse)
        return self._controller.setting.policy

    def review(self, reviews: Mapping[int, Reviewed], *, metric: float | None) -> Course:
        """What the controller decides."""
        decision = self._controller.decide(reviews, metric=metric)
        return Course(
            policy=decision.setting.policy,
            shares=decision.shares,
            keep=decision.keep,
            restore=decision.restore,
            alarm=decision.alarm,
            reason=decision.reason,
            inputs=decision.inputs,
        )

    def over(self, clock: int) -> Course | None:
        """Stages end at reviews alone."""
        return None

    def next_review(self, since: int) -> tuple[int, int]:
        """Sooner until an exchange has been measured: then as soon as one can have been."""
        if since == 0:
            return self._first_review
        every = self._review.interval(since, trial=self._controller.on_trial) if self._controller.knows_transfer else 1
        return next_review(since, setting=self._controller.setting, every=every)
