"""The parts of the work on a GPU: tests, and comparisons of ways to train on networks of several sizes."""

from dataclasses import dataclass

LIMIT_S = 480.0
"""A part ends within eight minutes; the page has what it has not come to."""


@dataclass(frozen=True, kw_only=True)
class Tests:
    """The tests that a marker expression chooses."""

    marked: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Ways to train beside each other; see `measured`.

    Attributes:
        ways: Ratios are to the first one.
        workers: Numbers of workers.
        sizes: Names of networks.
        cards: The least and the largest number of GPUs; more workers than these share them.
        least: The smallest ratio of the second way to the first that is good enough.
    """

    ways: tuple[str, ...]
    workers: tuple[int, ...] = (2,)
    sizes: tuple[str, ...] = ("small", "medium", "large")
    cards: tuple[int, int] = (1, 8)
    least: float | None = None


PARTS: dict[str, Tests | Comparison] = {
    "tests": Tests(marked="cuda and not slow"),
    "further": Tests(marked="cuda and slow"),
    "step": Comparison(ways=("plain", "bsp"), workers=(1,), least=0.95),
    "ddp": Comparison(ways=("ddp", "bsp"), least=0.98),
    "overlap": Comparison(ways=("plain", "exchange", "ddp", "bsp", "delayed:1", "local_sgd:8")),
    "store": Comparison(ways=("bsp", "bsp,exchange=store", "asp")),
    "sharing": Comparison(
        ways=("bsp", "local_sgd:8", "asp"), workers=(1, 2, 3, 4), sizes=("small", "medium"), cards=(1, 1)
    ),
    "fsdp": Comparison(ways=("fsdp2", "fsdp"), cards=(2, 8)),
}
"""By name, in the order of the page's sections, which have their questions."""
