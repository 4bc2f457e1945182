"""Divides tensors into fragments that are exchanged in turn, the same on all ranks."""

from collections.abc import Sequence

from plesio.core.errors import ConfigError
from plesio.policies import Policy

__all__ = ["check_fragments", "fragments_of"]


def check_fragments(policy: Policy, *, num_tensors: int) -> None:
    """Raise `ConfigError` if a model with so many trained tensors has too few for the policy's fragments."""
    if policy.fragments > num_tensors:
        raise ConfigError(
            f"{policy.spec}: {policy.fragments} fragments of whole tensors are asked for, and the model has "
            f"{num_tensors} that are trained; write fewer fragments"
        )


def fragments_of(sizes: Sequence[int], *, num_fragments: int) -> list[list[int]]:
    """Divide tensors of these sizes into fragments of about the same size.

    The largest goes first, each to the fragment that is smallest so far: none then exceeds the best possible by more
    than a third (Graham 1969, "Bounds on multiprocessing timing anomalies"). Ties go to the first.

    Args:
        sizes: How many numbers each tensor has.
        num_fragments: At most as many as tensors.

    Returns:
        The places of each fragment's tensors, in ascending order.

    >>> fragments_of([2, 7, 3, 5], num_fragments=2)
    [[0, 1], [2, 3]]
    """
    assert num_fragments <= len(sizes), "each fragment has a tensor"
    fragments: list[list[int]] = [[] for _ in range(num_fragments)]
    totals = [0] * num_fragments
    for place in sorted(range(len(sizes)), key=lambda place: (-sizes[place], place)):
        smallest = min(range(num_fragments), key=lambda number: (totals[number], len(fragments[number]), number))
        fragments[smallest].append(place)
        totals[smallest] += sizes[place]
    return [sorted(fragment) for fragment in fragments]
