"""Pairings of hosts in rounds, so that all pairs meet and no host is in two pairs at once (round-robin tournaments)."""

import random

Pair = tuple[int, int]


def tournament(num_hosts: int, *, seed: int | None = None) -> list[list[Pair]]:
    """Return rounds in which every host meets at most one other, and in all every other once (the circle method).

    A ``seed`` seats the hosts in another order.

    >>> tournament(4)
    [[(0, 3), (1, 2)], [(0, 2), (1, 3)], [(0, 1), (2, 3)]]
    """
    seats: list[int | None] = list(range(num_hosts))
    if seed is not None:
        random.Random(seed).shuffle(seats)
    if num_hosts % 2:
        seats.append(None)  # who meets nobody rests
    rounds = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        meetings = zip(seats[:half], reversed(seats[half:]), strict=True)
        rounds.append(
            sorted((min(one, two), max(one, two)) for one, two in meetings if one is not None and two is not None)
        )
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds
