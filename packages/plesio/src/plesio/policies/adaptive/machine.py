"""Directs a run by its reviews: the controller decides each of them; this module sets when the next one is."""

from collections.abc import Mapping

from plesio.policies.adaptive.config.components import Components
from plesio.policies.adaptive.controller import Controller
from plesio.policies.adaptive.system.setting import SYNCHRONOUS
from plesio.policies.events import Reviewed
from plesio.policies.policy import Course, Policy
from plesio.policies.review_clocks import FIRST_CLOCK, FIRST_REVIEW, next_review

__all__ = ["Reviewing"]


class Reviewing:
    """Answers every review with the controller's decision.

    Args:
        components: The components that are on, with their parameters.
    """

    def __init__(self, components: Components) -> None:
        self._controller = Controller(components)
        self._review = components.review

    @property
    def first(self) -> Policy:
        """BSP, until an exchange has been measured."""
        return SYNCHRONOUS.policy

    def review(self, reviews: Mapping[int, Reviewed], *, metric: float | None) -> Course:
        """Return the controller's decision."""
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
        """Return None: stages end at reviews alone."""
        return None

    def next_review(self, since: int) -> tuple[int, int]:
        """Return the clocks of the next review and of its answer: the earliest, until an exchange is measured."""
        if since == 0:
            return FIRST_REVIEW, FIRST_CLOCK
        every = self._review.interval(since, trial=self._controller.on_trial) if self._controller.knows_transfer else 1
        setting = self._controller.setting
        return next_review(since, period=setting.period, delay=setting.delay, every=every)
