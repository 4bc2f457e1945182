"""`advise`: price all candidates, race those that fit and could win, rank them, and choose."""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from plesio.advisor.candidates import BASELINE, SHARDED, Candidate
from plesio.advisor.flips import Flip, flips_of
from plesio.advisor.memory import MemoryNeed, memory_need
from plesio.advisor.price import Price, price
from plesio.advisor.race import Race
from plesio.advisor.row import How, Row
from plesio.advisor.runs import Budget, Raced, RacingCandidate, Rehearsal, scatter_of
from plesio.advisor.setting import Question
from plesio.core.arguments import check_fields, checked
from plesio.core.errors import ConfigError
from plesio.core.records import to_json
from plesio.core.units import format_bytes

WORTH = 0.02
"""The least gain over bsp with which a strategy is named in its place."""
LEAST_DOUBT = 0.02
"""By how much, in logarithms, a time may be off however many seeds it is from: longer runs are not quite the same."""
MOST_DOUBT = 0.05
"""The same, at most, against bsp: what wins more than that in the mean is named, however seeds scatter."""
ALIKE = 0.01
"""Times that differ by less are one, and the one with less slack is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The answer.

    Attributes:
        rows: The ranking, best first: what was run, then what was priced alone, then what has no time.
        flips: Settings in which another would be the best.
    """

    question: Question
    raced: Raced
    rows: tuple[Row, ...]
    chosen: Row
    flips: tuple[Flip, ...]

    def __post_init__(self) -> None:
        check_fields(self, "Advice: ")

    @property
    def baseline(self) -> Row:
        """That of bsp."""
        return next(row for row in self.rows if row.spec == BASELINE)

    @property
    def level(self) -> float:
        """The metric's level to which all are timed."""
        return self.question.sign * self.raced.goal.level

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary of JSON values."""
        question, goal = self.question, self.raced.goal
        values: dict[str, Any] = to_json(
            {
                "name": question.name,
                "cluster": question.at.cluster.name,
                "num_workers": question.at.num_workers,
                "batch_size": question.at.batch_size,
                "metric": question.metric_name,
                "level": self.level,
                "target": goal.target is not None,
                "tolerance": question.tolerance,
                "parameter_bytes": question.at.sizes.parameter_bytes,
                "chosen": self.chosen.spec,
                "runs": self.raced.num_runs,
                "spent_s": self.raced.spent_s,
                "hope": self.raced.prospect,
                "ranking": self.rows,
                "flips": self.flips,
            }
        )
        return values


@checked
def advise(
    question: Question,
    rehearsal: Rehearsal,
    *,
    now_s: Callable[[], float],
    on_run: Callable[[str, int], None] = lambda policy, seed: None,
) -> Advice:
    """Rank the candidates by the time to the goal, and choose.

    Args:
        question: Question to answer.
        rehearsal: Does the runs.
        now_s: The clock of the budget.
        on_run: Told of each run that begins.

    Raises:
        ConfigError: No run reaches the target, nothing fits, or bsp cannot be run.
    """
    at = question.at
    all_of_them = question.candidates()
    prices = {one.spec: price(one.spec, at) for one in all_of_them}
    needs = {one.spec: memory_need(one.spec, at, servers=prices[one.spec].servers) for one in all_of_them}
    fits = {spec: at.memory_bytes is None or need.total <= at.memory_bytes for spec, need in needs.items()}
    if not any(fits.values()):
        least = min(needs, key=lambda spec: needs[spec].total)
        raise ConfigError(
            f"nothing fits: a worker has {format_bytes(at.memory_bytes or 0)}, and {least}, which needs least, needs "
            f"{format_bytes(needs[least].total)}; use more workers, smaller batches or another cluster"
        )
    # bsp runs even if it does not fit: all others are compared with it
    entries = [
        RacingCandidate(candidate=one, price=prices[one.spec])
        for one in all_of_them
        if one.runs and (fits[one.spec] or one.spec == BASELINE)
    ]
    race = Race(
        entries,
        question=question,
        rehearsal=rehearsal,
        budget=Budget(whole_s=question.measure_s, now_s=now_s),
        on_run=on_run,
    )
    raced = race.run()
    known = {entry.spec: entry for entry in raced.entries}
    # the race left out candidates that do not fit or are only priced; the table has them all
    rows = [
        _row(
            question,
            one,
            known.get(one.spec),
            raced=raced,
            price=prices[one.spec],
            memory=needs[one.spec],
            fits=fits[one.spec],
        )
        for one in all_of_them
    ]
    rows.sort(key=lambda row: (not row.ranked, row.how == "priced" and row.spec != SHARDED, row.time_s, row.slack))
    chosen = _choose(question, rows)
    # a strategy that loses too much here would do so elsewhere
    tolerated = [row for row in rows if row.lost is None or row.lost <= question.tolerance]
    flips = flips_of(at, tolerated, chosen=chosen.spec, failures=question.failures)
    return Advice(question=question, raced=raced, rows=tuple(rows), chosen=chosen, flips=flips)


def _row(
    question: Question,
    candidate: Candidate,
    entry: RacingCandidate | None,
    *,
    raced: Raced,
    price: Price,
    memory: MemoryNeed,
    fits: bool,
) -> Row:
    base = raced.entries[0]
    level = raced.goal.level
    base_s = base.geometric_mean_s(level)
    slowdown = 1.0
    how: How = "priced"
    time_s, low_s, high_s = price.step_s / base.price.step_s * base_s, math.nan, math.nan
    samples = math.nan
    if candidate.spec == SHARDED:
        samples = 1.0  # the same steps, divided otherwise
    if entry is not None and entry.runs:
        how = "measured"
        time_s, low_s, high_s = _time(entry, base, level)
        samples = entry.samples(level) / base.samples(level)
        if math.isinf(time_s):
            how = "failed" if entry.problem else "too late"
    if not fits and how != "measured":
        how = "does not fit"
    if question.failures is not None and math.isfinite(time_s):
        slowdown = question.failures.slowdown(candidate.spec)
    hourly = question.price_per_hour
    total_s = time_s * slowdown
    return Row(
        spec=candidate.spec,
        how=how,
        time_s=total_s,
        low_s=low_s * slowdown,
        high_s=high_s * slowdown,
        num_seeds=0 if entry is None else len(entry.runs),
        samples=samples,
        price=price,
        memory=memory,
        fits=fits,
        cost=None if hourly is None else total_s / 3600 * question.at.num_workers * hourly,
        lost=raced.shortfalls.get(candidate.spec),
        slowdown=slowdown,
        problem=None if entry is None else entry.problem,
        slack=candidate.slack,
        doubt=_doubt(entry, raced),
        shares=() if entry is None else next((run.shares for run in entry.runs.values() if run.shares), ()),
    )


def _time(entry: RacingCandidate, base: RacingCandidate, level: float) -> tuple[float, float, float]:
    """Return the seconds to the level over bsp's seeds, and the ends of a 95 % interval for the ratio to bsp.

    The ratio to bsp is of the seeds that both were run with, and bsp's own time of all its seeds.
    """
    own_s, base_s = entry.geometric_mean_s(level), base.geometric_mean_s(level)
    if math.isinf(own_s):
        return math.inf, math.nan, math.nan
    if entry is base or math.isinf(base_s):
        logs = [math.log(one) for one in entry.seconds(level).values()]
        return own_s, *_ends(own_s, logs)
    ratios = entry.log_ratios(base, level)
    if not ratios:
        return own_s, math.nan, math.nan
    time_s = base_s * math.exp(statistics.fmean(ratios))
    return time_s, *_ends(time_s, ratios)


def _doubt(entry: RacingCandidate | None, raced: Raced) -> float:
    """Return one standard error of the ratio to bsp, by the scatter that all candidates show together."""
    base, level = raced.entries[0], raced.goal.level
    num_ratios = 0 if entry is None else len(entry.log_ratios(base, level))
    if entry is None or entry is base or not num_ratios:
        return 1.0
    return math.exp(max(LEAST_DOUBT, scatter_of(raced.entries, level) / math.sqrt(num_ratios)))


def _ends(centre_s: float, logs: list[float]) -> tuple[float, float]:
    if len(logs) < 2:
        return math.nan, math.nan
    if len(logs) == 2:  # Student's interval of two says next to nothing
        middle = statistics.fmean(logs)
        return centre_s * math.exp(min(logs) - middle), centre_s * math.exp(max(logs) - middle)
    from scipy import stats  # advice simulates before this, and so has asked for it

    half = float(stats.t.ppf(0.975, len(logs) - 1)) * statistics.stdev(logs) / math.sqrt(len(logs))
    return centre_s * math.exp(-half), centre_s * math.exp(half)


def _choose(question: Question, rows: list[Row]) -> Row:
    """Choose the fastest row that fits and is accurate enough; bsp for little gain, and the strictest among equals."""
    able = [row for row in rows if row.ranked and (row.lost is None or row.lost <= question.tolerance)]
    trusted = [row for row in able if row.how == "measured" or row.spec == SHARDED]
    base = next((row for row in trusted if row.spec == BASELINE), None)
    if not trusted:
        raise ConfigError("nothing that fits comes to the goal within the runs; give them more time with --measure")
    best = min(trusted, key=_no_more_than)
    if base is not None and best.spec != BASELINE:
        # it must be better for sure: by one standard error, within limits
        enough_s = (1 - WORTH) * base.time_s
        trusted = [base, *(row for row in trusted if min(row.doubt, 1 + MOST_DOUBT) * row.time_s <= enough_s)]
        best = min(trusted, key=_no_more_than)
    if best.spec == BASELINE:
        return best
    alike = [row for row in trusted if _no_more_than(row) <= (1 + ALIKE) * _no_more_than(best)]
    return min(alike, key=lambda row: (row.slack, row.time_s))


def _no_more_than(row: Row) -> float:
    """Add the doubt to its time: of two that seem alike, the one that was run on more seeds is the better choice."""
    return row.doubt * row.time_s
