"""Clocks of the workers' reports, and of the answers to them.

A worker reports after the step that ends at the *review's* clock, goes on, and takes the answer after the step that
ends at the clock from which it *holds*. The answer before names both, so all ranks have them without a message, and all
change at the same clock: a collective that one of them starts, all start.

The answer must be there when it is wanted, or workers wait. It can be given once the slowest worker has reported:

    setting period H, delay d         review                   holds
    no delay                          two steps before         after an averaging: everybody has been in it
    delay d                           at an averaging's start  when it is merged: it is complete, so all have reported
    delay 1                           a step before that       the same: an answer takes two steps

So a review causes no wait beyond those of the setting in force.
"""

from plesio.policies.steered import LEAD

FIRST_REVIEW = 2
"""Clock of the first review: slow workers should not be waited for for long."""
FIRST_CLOCK = FIRST_REVIEW + LEAD


def next_review(since: int, *, period: int, delay: int, every: int) -> tuple[int, int]:
    """Return the clocks of the next review and of its answer, under the policy that is in force from ``since`` on.

    There are at least ``every`` steps between two reviews.

    >>> next_review(5, period=1, delay=0, every=16)
    (19, 21)
    >>> next_review(21, period=8, delay=4, every=16)
    (40, 44)
    """
    least = since + max(every, delay + LEAD, 2 * LEAD)
    started = -(-(least - delay) // period) * period
    holds = started + delay
    return min(started, holds - LEAD), holds
