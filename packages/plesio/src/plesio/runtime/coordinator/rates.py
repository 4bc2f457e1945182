"""Learning rates that workers make the same step with: all must have the same ones."""

from collections.abc import Callable, Sequence


class StepRates:
    """Finds the first difference in a run.

    Args:
        effect: Clause on what follows from a difference, from its comma on; empty for none.
        is_live: Tells whether a worker still takes part.
    """

    def __init__(self, *, effect: str = "", is_live: Callable[[int], bool], warn: Callable[[str], None]) -> None:
        self._effect = effect
        self._is_live = is_live
        self._warn = warn
        self._last: dict[int, tuple[int, Sequence[float]]] | None = {}
        """By worker, the clock of its last step with known rates and the rates; None once a difference was named."""

    def take(self, worker: int, *, clock: int, rates: Sequence[float] | None, synchronous: bool) -> None:
        """Take in a step's rates, by group; None for those of the worker's step before.

        Under a relaxed policy schedulers may be ahead of each other, and the same clock is no sign of the same moment:
        rates are compared only if ``synchronous``.
        """
        if self._last is None:
            return
        mine = self._last.get(worker, (0, ()))[1] if rates is None else rates
        self._last[worker] = clock, mine
        for other, (at, theirs) in self._last.items() if synchronous else ():
            if at != clock or not self._is_live(other):
                continue
            for group, (rate, there) in enumerate(zip(mine, theirs, strict=False)):
                if rate != there:
                    self._warn(
                        f"at step {clock} worker {worker} has the learning rate {rate:g} in group {group} and worker "
                        f"{other} {there:g}{self._effect}: set rates and step schedulers alike on all workers, by a "
                        "metric that all of them have, or have session.schedule step them"
                    )
                    self._last = None
                    return
