"""Which candidate is run next, for how long, and when enough is known: a race within a budget of seconds.

1. `bsp` is run first, as long as its share of the budget allows. It says how many samples the level takes that all are
   timed to: the target, or where nobody names one (or the budget does not reach it) a level of bsp's own curve.
2. *Best first*: the candidate with the least predicted time is run with the same seed: its price times the samples that
   its family is known to need (1 + c · slack, with c from what was run, and a small guess before). It is given `ROOM`
   times bsp's samples; if it does not come to the level with these, and could still be first with more, it waits its
   turn with what it needs at least, and is then given twice as many. So a loser costs little. Candidates that could not
   win if they learned as fast per sample as bsp are not run at all.
3. *Seeds*: the finalists, those near the best, are run with one seed after another, with bsp; who falls behind by more
   than its spread over the seeds is left out. When all that are left are as good as each other, the rest of the budget
   goes to candidates again.
4. *Check*: the winner is run as long as bsp was, and its final metric held against bsp's.

Times of the same seed are compared with each other: workers then begin alike and see the same data.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence

from plesio.core.errors import ConfigError
from plesio.planning.advisor.candidates import ADAPTIVE, BASELINE
from plesio.planning.advisor.runs import Budget, Entry, Goal, Raced, Rehearsal, Run

__all__ = ["Race"]

BASELINE_SHARE = 0.12
"""Of the budget, for the first run."""
EXPLORING = ((0.5, 1.2, 0.02), (0.75, 1.4, 0.0))
"""Shares of the budget at which candidates give way to seeds; times the best time up to which they are tried; and what
they must promise to save of bsp's step, by their price, were every sample worth as much."""
SPENT_SHARE = 0.94
LEAST_SHARE = 0.25
"""That a run is given at least, lest the last one end in vain."""
LEVEL_SHARE = 0.85
"""Of bsp's samples, after which its curve gives the level where there is no target."""
NEXT_TO_NOTHING = 0.02
"""Of a step of bsp."""
MARGIN = 1.1
"""Times the best time that a candidate is given to come to the level."""
FINAL_MARGIN, MOST_FINALISTS, MOST_SEEDS = 1.12, 4, 6
ROOM = 1.25
"""Times the samples that a run is expected to need; twice as many if that is not enough."""
DECIDED = 0.02
"""Times that differ by less, and surely so, need no more seeds."""
GUESSES = {
    "averaging": 0.008,
    "compressed averaging": 0.01,
    "two-rate averaging": 0.002,
    "racks": 0.004,
    "delayed": 0.02,
    "store": 0.01,
    "racks on the store": 0.01,
}
"""Samples more per step of slack, before any of the family was run."""
LARGEST_SLACK = 32.0


class Race:
    """Runs candidates against each other.

    Args:
        entries: Those that can be run and fit, `bsp` first.
        rehearsal: Does the runs.
        budget: Seconds of this machine.
        target: The metric to reach, as a value on curves; None is a level of bsp's own.
        must_reach: Whether a target that nobody comes to is an error.
        tolerance: Most that the winner's final metric may fall short of bsp's, as `shortfall` has it.
        shortfall: ``shortfall(bsp, other)`` of two values on curves, in the user's points.
        on_run: Told of each run that begins: the policy and the seed.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        *,
        rehearsal: Rehearsal,
        budget: Budget,
        target: float | None,
        must_reach: bool,
        tolerance: float,
        shortfall: Callable[[float, float], float],
        on_run: Callable[[str, int], None] = lambda policy, seed: None,
    ) -> None:
        assert entries[0].spec == BASELINE, "the others are held against it"
        self._entries = list(entries)
        self._baseline = entries[0]
        self._rehearsal = rehearsal
        self._budget = budget
        self._target = target
        self._must_reach = must_reach
        self._tolerance = tolerance
        self._shortfall = shortfall
        self._on_run = on_run
        self._sample_s = rehearsal.sample_s
        self._lost: dict[str, float] = {}

    def run(self) -> Raced:
        """The whole race.

        Raises:
            ConfigError: Nobody comes to the target, or `bsp` cannot be run.
        """
        goal = self._first()
        for share, hope, least in EXPLORING:
            if share != EXPLORING[0][0] and not self._disputed(goal):
                break
            self._explore(goal, share, hope=hope, gain=least)
            goal = self._reached(goal)
            for seed in range(1, MOST_SEEDS):
                if not self._again(goal, seed):
                    break
        self._check(goal)
        return Raced(goal=goal, entries=tuple(self._entries), lost=self._lost, spent_s=self._budget.spent_s)

    # --- 1. the baseline

    def _first(self) -> Goal:
        most = self._rehearsal.most_samples
        affordable = BASELINE_SHARE * self._budget.measure_s / self._sample_s
        until = most if most <= 2 * affordable else affordable
        run = self._do(self._baseline, seed=0, until=until, within_s=math.inf)
        if run.curve is None:
            why = run.problem or "it was not done within the time to measure; give it more with --measure"
            raise ConfigError(f"{BASELINE} cannot be run: {why}")
        if self._target is not None:
            samples = run.curve.samples_to(self._target)
            if math.isfinite(samples):
                return Goal(level=self._target, target=self._target, samples=samples, complete=run.whole)
            if run.whole and self._must_reach:  # others may come to it
                return Goal(level=self._target, target=self._target, samples=math.inf, complete=True)
        return self._own_level(run)

    def _own_level(self, run: Run) -> Goal:
        assert run.curve is not None, "checked"
        level = run.curve.value_at(LEVEL_SHARE * run.curve.samples[-1])
        samples = run.curve.samples_to(level)
        return Goal(level=level, target=None, samples=samples, complete=run.whole)

    def _reached(self, goal: Goal) -> Goal:
        """The goal, if anybody came to it."""
        if any(math.isfinite(one) for entry in self._entries for one in entry.seconds(goal.level).values()):
            return goal
        best = max(run.curve.best for entry in self._entries for run in entry.runs.values() if run.curve is not None)
        raise ConfigError(
            f"no strategy comes to the target within a run; the best comes to {abs(best):.4g}: "
            "write another --target, or have it train longer"
        )

    # --- 2. best first

    def _disputed(self, goal: Goal) -> bool:
        """Whether there is more to win: not where bsp's exchange and its waiting are next to nothing."""
        base = self._baseline.price
        return base.waits_s > NEXT_TO_NOTHING * base.step_s or math.isinf(goal.samples)

    def _explore(self, goal: Goal, share: float, *, hope: float, gain: float) -> None:
        while (entry := self._next(goal, hope=hope, gain=gain)) is not None:
            until = self._allowed(entry, goal)
            if until * self._sample_s > self._budget.left_s(share):
                break
            self._do(entry, seed=0, until=until, within_s=2 * MARGIN * self._best_s(goal, seed=0))

    def _next(self, goal: Goal, *, hope: float, gain: float) -> Entry | None:
        """The most promising one that has not come to the level; None if no other could win."""
        open_entries = [entry for entry in self._entries if self._is_open(entry, goal)]
        adaptive = next((entry for entry in open_entries if entry.spec == ADAPTIVE and not entry.runs), None)
        if adaptive is not None:
            return adaptive
        best_s = self._best_s(goal, seed=0)
        faster = [
            entry
            for entry in open_entries
            if entry.price.step_s <= (1 - gain) * self._baseline.price.step_s
            and self._expected_s(entry, goal) < hope * best_s
        ]
        # those that have no stricter rival first, but where slack was seen to help: then the others have their turn
        return min(faster, key=lambda entry: (self._is_later(entry, goal), self._expected_s(entry, goal)), default=None)

    def _is_later(self, entry: Entry, goal: Goal) -> bool:
        """Whether a stricter one of its family should be run before it."""
        return self._has_rival(entry) and self._cost_of_slack(entry, goal) >= 0

    def _is_open(self, entry: Entry, goal: Goal) -> bool:
        """Whether it has not been run, or not long enough."""
        run = entry.runs.get(0)
        if run is None:
            return True
        if run.curve is None or run.whole or entry is self._baseline:
            return False
        return math.isinf(run.curve.samples_to(goal.level))

    def _has_rival(self, entry: Entry) -> bool:
        """Whether its family has one that gives less slack and is as fast by its price."""
        step_s = entry.price.step_s
        return any(
            other.candidate.family == entry.candidate.family
            and other.candidate.slack < entry.candidate.slack
            and other.price.step_s <= 1.01 * step_s
            for other in self._entries
        )

    def _expected_s(self, entry: Entry, goal: Goal) -> float:
        """Seconds to the level, by its price and by what its family needs more samples than bsp."""
        slack = min(entry.candidate.slack, LARGEST_SLACK)
        samples = self._reference(goal) * (1 + self._cost_of_slack(entry, goal) * slack)
        if 0 in entry.runs:  # it needs more than it was given
            samples = max(samples, ROOM * entry.runs[0].samples)
        return samples * self._seconds_per_sample(entry)

    def _reference(self, goal: Goal) -> float:
        return goal.samples if math.isfinite(goal.samples) else self._rehearsal.most_samples

    def _cost_of_slack(self, entry: Entry, goal: Goal) -> float:
        """Samples more per step of slack: the mean of those of the family that were run, or a guess."""
        family = entry.candidate.family
        found = []
        for other in self._entries:
            if other.candidate.family != family or not other.runs or not other.candidate.slack:
                continue
            samples = other.samples(goal.level)
            if math.isinf(samples):
                samples = ROOM * max(other.runs[0].samples, self._reference(goal))
            ratio = samples / self._reference(goal)
            found.append((ratio - 1) / min(other.candidate.slack, LARGEST_SLACK))
        return statistics.fmean(found) if found else GUESSES.get(family, 0.0)

    def _seconds_per_sample(self, entry: Entry) -> float:
        """By its price, corrected by how far bsp's was off; of one that was run, as it was."""
        run = entry.runs.get(0)
        if run is not None and run.samples and run.virtual_s:
            return run.virtual_s / run.samples
        base = self._baseline.runs[0]
        return base.virtual_s / base.samples * entry.price.step_s / self._baseline.price.step_s

    def _allowed(self, entry: Entry, goal: Goal) -> float:
        """Some more samples than bsp needs, twice as many as before, and none that it could not make in time to win."""
        most = self._rehearsal.most_samples
        best_s = self._best_s(goal, seed=0)
        if math.isinf(best_s):
            return most
        wanted = ROOM * self._reference(goal) if 0 not in entry.runs else 2 * entry.runs[0].samples
        possible = MARGIN * best_s / self._seconds_per_sample(entry)
        if entry.spec == ADAPTIVE:  # its price is a bound from below, and how it begins says little of how it goes on
            possible = max(possible, wanted)
        return min(most, wanted, max(possible, 0.6 * self._reference(goal)))

    def _best_s(self, goal: Goal, *, seed: int) -> float:
        return min((entry.seconds(goal.level).get(seed, math.inf) for entry in self._entries), default=math.inf)

    # --- 3. seeds

    def _again(self, goal: Goal, seed: int) -> bool:
        """Run the finalists with another seed; False if there is no time for it, or nothing left to decide."""
        finalists = [entry for entry in self._finalists(goal, seed) if seed not in entry.runs]
        if not finalists or self._decided(goal, seed):
            return False
        needed = [ROOM * entry.samples(goal.level) for entry in finalists]
        if sum(needed) * self._sample_s > self._budget.left_s(SPENT_SHARE):
            finalists = finalists[:2]
            if sum(needed[:2]) * self._sample_s > self._budget.left_s(SPENT_SHARE):
                return False
        finalists.sort(key=lambda entry: entry is not self._baseline)  # bsp first: it says whether a seed comes there
        reached = False
        for entry in finalists:
            reached |= self._to_level(entry, goal, seed=seed)
            if not reached and entry is self._baseline:
                break
        if not reached:  # a seed that does not come to the level says nothing of who comes there first
            for entry in finalists:
                entry.runs.pop(seed, None)
        return True

    def _decided(self, goal: Goal, seed: int) -> bool:
        """Whether more seeds would change nothing: nobody else is near, or those who are, are surely as good."""
        best, *others = self._finalists(goal, seed)
        others = [entry for entry in others if entry is not self._baseline or seed > 2]
        if not others:
            return seed > 1
        best_s = best.mean_s(goal.level)
        for entry in others:
            spread = entry.spread(best, goal.level)
            if spread is None or entry.mean_s(goal.level) / best_s - 1 + 2 * spread > DECIDED:
                return False
        return True

    def _to_level(self, entry: Entry, goal: Goal, *, seed: int) -> bool:
        """Run it until it has come to the level, or a run is over; says whether it has. Seeds need unequal numbers."""
        most, until = self._rehearsal.most_samples, ROOM * entry.samples(goal.level)
        while True:
            run = self._do(entry, seed=seed, until=min(most, until), within_s=math.inf)
            reached = run.curve is not None and math.isfinite(run.curve.seconds_to(goal.level))
            if reached or run.whole or run.problem or until >= most or self._budget.left_s() == 0:
                return reached
            until *= 2

    def _finalists(self, goal: Goal, seed: int) -> Iterator[Entry]:
        """The best one, `bsp`, and those that may be as good, best first."""
        ranked = sorted(
            (entry for entry in self._entries if entry.runs),
            key=lambda entry: entry.mean_s(goal.level),
        )
        reached = [entry for entry in ranked if math.isfinite(entry.mean_s(goal.level))]
        if not reached:
            return
        best = reached[0]
        best_s = best.mean_s(goal.level)
        chosen = [best]
        for entry in reached[1:]:
            spread = entry.spread(best, goal.level)
            behind = entry.mean_s(goal.level) / best_s
            if behind <= (FINAL_MARGIN if spread is None else 1 + max(0.03, 2 * spread)):
                chosen.append(entry)
        yield from chosen[:MOST_FINALISTS]
        if self._baseline in reached and self._baseline not in chosen[:MOST_FINALISTS] and seed <= 2:
            yield self._baseline

    # --- 4. the accuracy that is reached in the end

    def _check(self, goal: Goal) -> None:
        base = self._baseline.runs[0]
        if not base.whole or base.curve is None:
            return
        ranked = sorted(self._entries, key=lambda entry: entry.mean_s(goal.level))
        for entry in ranked:
            if entry is self._baseline or math.isinf(entry.mean_s(goal.level)):
                return
            run = entry.runs[0]
            if not run.whole:
                if self._rehearsal.most_samples * self._sample_s > self._budget.left_s():
                    return
                run = self._do(entry, seed=0, until=self._rehearsal.most_samples, within_s=math.inf)
            if run.curve is None:
                return
            self._lost[entry.spec] = self._shortfall(base.curve.values[-1], run.curve.values[-1])
            if self._lost[entry.spec] <= self._tolerance:
                return

    # --- doing it

    def _do(self, entry: Entry, *, seed: int, until: float, within_s: float) -> Run:
        self._on_run(entry.spec, seed)
        rehearsed = self._rehearsal.run(
            entry.spec,
            seed=seed,
            servers=entry.price.servers,
            until_samples=until,
            within_s=within_s,
            budget_s=max(self._budget.left_s(), LEAST_SHARE * self._budget.measure_s),
        )
        run = entry.runs[seed] = Run.of(rehearsed, by_loss=self._rehearsal.by_loss)
        if run.samples:
            measured = run.real_s / run.samples
            self._sample_s = measured if entry is self._baseline and seed == 0 else max(self._sample_s, 0.8 * measured)
        return run
