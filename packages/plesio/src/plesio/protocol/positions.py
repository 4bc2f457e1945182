"""The positions of workers whose collective was cut off, and the conclusions that all draw from them alike.

A group of workers is made anew, as a *generation*, when one is lost. Their replicas may have got unequally far: the
last reduction reached some and not others. The *sources* are those whose replicas hold most of what all have done; the
others take the state over from them.
"""

from collections.abc import Sequence

from plesio.core.records import Record


class Position(Record, frozen=True, kw_only=True):
    """The position of one worker. Rounds are counted from the beginning of the generation ``base``.

    Attributes:
        base: The generation in which it last had the state of all.
        settled: Rounds up to which its replica holds what all workers have done.
        trained: Rounds up to which it holds what this worker has done.
        clock: Steps that it has finished.
        plan: The loop over the data that it is in, or else the next one.
        samples: Samples of its own in what it has done.
        scheduled: Rounds that its schedulers have been stepped for.
    """

    base: int
    settled: int
    trained: int
    clock: int
    plan: int
    samples: int
    scheduled: int = 0


def sources_of(positions: Sequence[Position | None]) -> list[int]:
    """Return the places of the replicas that hold most; none if no replica has a state to give.

    >>> ahead = Position(base=0, settled=4, trained=4, clock=4, plan=0, samples=16)
    >>> sources_of([Position(base=0, settled=3, trained=3, clock=3, plan=0, samples=12), None, ahead])
    [2]
    """
    most = max(((one.base, one.settled) for one in positions if one is not None), default=None)
    return [place for place, one in enumerate(positions) if one is not None and (one.base, one.settled) == most]


def common_clock(positions: Sequence[Position | None]) -> int:
    """Return the clock from which all go on: the furthest source's."""
    return max((one.clock for place in sources_of(positions) if (one := positions[place]) is not None), default=0)


def common_plan(positions: Sequence[Position | None]) -> int:
    """Return the loop over the data in which all go on: no worker goes back to one that it has left."""
    return max((one.plan for one in positions if one is not None), default=0)


def leader_of(positions: Sequence[Position | None]) -> int:
    """Return the place of the source that decides the remainder: one in the common loop, which has trained most."""
    plan = common_plan(positions)

    def rank(place: int) -> tuple[bool, int, int]:
        one = positions[place]
        assert one is not None, "a source has a position"
        return one.plan == plan, one.trained, -place

    return max(sources_of(positions), key=rank)
