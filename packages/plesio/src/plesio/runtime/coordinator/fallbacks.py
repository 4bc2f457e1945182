"""The sentences of a result that people should read: what was given up or lost, and what looks like a mistake.

Workers' reports show where a script trains on other than it means to.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest

from msgspec import UNSET

from plesio.core.units import counted
from plesio.policies.events import RefuseReason
from plesio.protocol.figures import MOST_LOOKS, Alike, Report

_log = logging.getLogger(__name__)

SAME_BATCHES = (
    "all workers draw the same batches (their first loss is equal): seed by rank, or write session.shard(loader)"
)
_TELLING = 3
"""So many losses that differ from step to step are no constant that a script gives for a loss."""
_MOST_CHANCES = 12.0
"""ln C of 160,000 classes; from there on every number is as near to a whole one as float32 tells."""
_ROUNDING = 2e-6
"""Relative error of e^loss from a loss below that in float32."""


class Fallbacks:
    """The sentences of one run.

    Args:
        num_workers: Workers that began the run; others count loops and evaluations anew.
    """

    def __init__(self, *, num_workers: int) -> None:
        self.lines: list[str] = []
        self._num_workers = num_workers
        self._first: dict[tuple[Alike, int], tuple[int, list[float]]] = {}
        """The worker that reported first, and its values."""
        self._differ: set[Alike] = set()
        self._ended_early: dict[int, bool] = {}
        """Workers that the others went on without, and whether the final parameters were to be theirs."""

    def note(self, *lines: str) -> None:
        """Add sentences, each once."""
        self.lines += [line for line in dict.fromkeys(lines) if line not in self.lines]

    def warn(self, line: str) -> None:
        """Add a sentence, and log it, once."""
        if line not in self.lines:
            _log.warning(line)
            self.lines.append(line)

    def ended_early(self, worker: int, *, evaluates: bool) -> None:
        """Take in that the others go on without a worker that has ended its loop; add a sentence if they do train."""
        self._ended_early[worker] = evaluates

    def report(self, worker: int, report: Report, *, reports: Mapping[int, Report]) -> None:
        """Add a worker's sentences, each once for all workers, and warn of figures that contradict those of others."""
        self.note(*report.fallbacks)
        for line in self._contradictions(worker, report, reports):
            self.warn(line)

    def _contradictions(self, worker: int, report: Report, reports: Mapping[int, Report]) -> Iterator[str]:
        if SAME_BATCHES not in self.lines and _draw_alike(reports, num_workers=self._num_workers):
            yield SAME_BATCHES
        yield from _other_replica(worker, report, reports)
        yield from self._differences(worker, report)
        for ended in [one for one in self._ended_early if report.clock > reports.get(one, Report()).clock]:
            evaluates, steps = self._ended_early.pop(ended), reports.get(ended, Report()).steps
            final = f", so the final parameters are worker {worker}'s" if evaluates else ""
            yield (
                f"worker {ended} ended its loop after {steps} steps and the others went on without it{final}: give all "
                "workers equally many steps (session.shard does where each batch is stepped on; to end a loop early, "
                "go by session.evaluate(..., everywhere=True), which all have)"
            )

    def _differences(self, worker: int, report: Report) -> Iterator[str]:
        """Yield a line at the first difference of each kind: in rates, orders of samplers, subsets and streams."""
        for kind, number, values in report.alike or [] if worker < self._num_workers else []:
            other, theirs = self._first.setdefault((kind, number), (worker, values))
            if values != theirs and kind not in self._differ:
                self._differ.add(kind)
                lower, higher = sorted([(worker, values), (other, theirs)])
                yield _LINES[kind](number, higher, lower)
        while len(self._first) > _MOST_COMPARED:
            del self._first[next(iter(self._first))]


def _other_replica(worker: int, report: Report, reports: Mapping[int, Report]) -> Iterator[str]:
    """Yield a line if a replica ends as another one than those of workers that have made as many steps."""
    for other, before in reports.items():
        if before.replica is UNSET or report.replica is UNSET or before.clock != report.clock:
            continue
        different = [name for name, bits in report.replica.items() if before.replica.get(name) != bits]
        if different:
            yield (
                f'"{different[0]}" differs on workers {min(worker, other)} and {max(worker, other)} at the end of '
                "the run, where it is to be equal; the result has worker 0's"
            )
            return


def _other_rates(number: int, one: tuple[int, list[float]], other: tuple[int, list[float]]) -> str:
    (worker, rates), (there, theirs) = one, other
    pairs = enumerate(zip_longest(rates, theirs, fillvalue=math.nan))
    group, (rate, its) = next(pair for pair in pairs if pair[1][0] != pair[1][1])
    when = f"after {counted(number, 'evaluation')}" if number else "before the first evaluation"
    return (
        f"{when} worker {worker} has the learning rate {rate:g} in group {group} and worker {there} {its:g}: step "
        "schedulers alike on all workers, by a metric that all of them have (session.evaluate(..., everywhere=True))"
    )


def _other_order(number: int, one: tuple[int, list[float]], other: tuple[int, list[float]]) -> str:
    return (
        f"in loop {number + 1} the sampler of worker {one[0]} draws another order than that of worker {other[0]}, so "
        "some samples are trained on twice and others never: seed it alike on all workers, or let it draw with "
        "torch's, NumPy's or Python's own random numbers, which session.shard seeds"
    )


def _other_subset(number: int, one: tuple[int, list[float]], other: tuple[int, list[float]]) -> str:
    return (
        f"in loop {number + 1} worker {one[0]} has another subset of the data set than worker {other[0]}, so samples "
        "that one of them holds out are trained on: split it alike on all workers, as by random_split(..., "
        "generator=torch.Generator().manual_seed(0))"
    )


def _other_stream(number: int, one: tuple[int, list[float]], other: tuple[int, list[float]]) -> str:
    loop, look = divmod(number, MOST_LOOKS)
    return (
        f"in loop {loop + 1} the first {counted(2**look, 'batch')} of the iterable data set are others on "
        f"worker {one[0]} than on worker {other[0]}, so some samples may be trained on twice and others never: shuffle "
        "it alike on all workers, by a seed or by torch's, NumPy's or Python's own random numbers, which session.shard "
        "seeds"
    )


_LINES: dict[Alike, Callable[[int, tuple[int, list[float]], tuple[int, list[float]]], str]] = {
    "rates": _other_rates,
    "order": _other_order,
    "subset": _other_subset,
    "stream": _other_stream,
}
_MOST_COMPARED = 1024
"""Places in the program that are kept."""


def _draw_alike(reports: Mapping[int, Report], *, num_workers: int) -> bool:
    """Tell whether all draw the same batches: replicas that begin alike then have the same first loss.

    Under a relaxed policy they part after it. A head of zeros has the first loss ln C whatever the batch.
    """
    drawn = [report.own_losses for report in reports.values()]
    if len(drawn) < max(2, num_workers) or len(set(drawn[0])) < _TELLING:
        return False
    first = drawn[0][0]
    return all(losses[:1] == [first] for losses in drawn) and not _of_equal_chances(first)


def refusals(reports: Mapping[int, Report]) -> list[str]:
    """Write lines on workers most of whose gradients were refused: they have trained on next to nothing."""
    return [
        f"worker {worker}: {refused} of {report.steps} steps had gradients that are not finite, and trained nothing"
        for worker, report in sorted(reports.items())
        if (refused := report.refused.get(RefuseReason.NOT_FINITE, 0)) > report.steps / 2
    ]


def _of_equal_chances(loss: float) -> bool:
    """Tell whether this is ln C for a number of classes C, to rounding in float32."""
    if not math.isfinite(loss):
        return True
    classes = math.exp(min(loss, _MOST_CHANCES))
    return loss < _MOST_CHANCES and round(classes) > 1 and math.isclose(classes, round(classes), rel_tol=_ROUNDING)
