"""Which candidate is run next and for how long: a race within a budget of seconds.

1. `bsp` is run first, as long as its share of the budget allows. It says how many samples the level takes that all are
   timed to: the target, or if none is given (or the budget does not reach it) a level of bsp's own curve.
2. *Scouts*: one candidate of each kind of slack is run with the same seed, however well its price promises. Then the
   one with the least predicted time, again and again: its price times the samples that its family is known to need
   (1 + c · slack, with c from what was run). A run has `ROOM` times bsp's samples, and fewer where the budget is short.
   If it does not come to the level, its samples to it are extrapolated: it needs so many times bsp's as it needed for
   the value that it came to. It is run again, longer, if with these it could still be first.
3. *Rounds*, as in successive halving (Jamieson & Talwalkar 2016): those that may be the best are run with one more
   seed each, with bsp. A round takes `ROUND_SHARE` of the budget that is left, so it has as many of them as that
   allows, the best ones. A candidate that falls behind the best by more than the scatter of seeds explains is left out.
   When no other candidate is left, or all are surely as good, the rest of the budget goes to candidates again.
4. *Check*: the winner is run as long as bsp was, and its final metric held against bsp's.
5. *What is left* of the budget goes to candidates that their price left out, the cheapest first: prices may be wrong.
   Then contenders get more seeds, and a new winner is checked.

Times of the same seed are compared with each other: workers then begin alike and see the same data.
"""

import math
import statistics
from collections.abc import Callable, Sequence

from plesio.advisor.candidates import ADAPTIVE, BASELINE
from plesio.advisor.runs import Budget, Goal, Raced, RacingCandidate, Rehearsal, Run, scatter_of
from plesio.advisor.setting import Question
from plesio.core.errors import ConfigError

BASELINE_SHARE = 0.12
"""Share of the budget for the first run."""
EXPLORING = ((0.45, 0.02), (0.75, 0.0))
"""Shares of the budget at which candidates give way to rounds, and what those that are no scouts must promise to save
of bsp's step, by their price, were every sample worth as much."""
SPENT_SHARE = 0.94
DEAREST = 3.0
"""Times too dear that a price may be taken to be, where there is time left to see."""
LEAST_SHARE = 0.25
"""That a run is given at least, lest the last one end in vain."""
LEVEL_SHARE = 0.85
"""Share of bsp's samples after which its curve gives the level where there is no target."""
NEXT_TO_NOTHING = 0.02
"""Negligible share of a step of bsp."""
ROUND_SHARE, MOST_SEEDS = 0.4, 10
"""Share of the remaining budget for a round; and the most rounds, the first one included."""
FEWEST_CONTENDERS, FEWEST_SEEDS = 3, 3
ERRORS = 1.5
"""Standard errors that a candidate may be behind the best, and may be the best all the same."""
ROOM = 1.25
"""Times the samples that a run is expected to need; twice as many if that is not enough."""
FULL_RUNS, LEAST_LENGTH = 30, 0.5
"""With fewer runs of bsp's samples in the budget, those of one seed are shorter, down to a share of bsp's samples."""
FEWEST_MORE = 1.05
"""Times the samples of a run that did not come to the level: the least for which it is run again."""
DECIDED = 0.02
"""Times that differ by less, and surely so, need no more seeds."""
GUESSES = {
    "averaging": 0.008,
    "compressed averaging": 0.01,
    "two-rate averaging": 0.002,
    "mean-moments averaging": 0.004,
    "racks": 0.004,
    "mean-moments racks": 0.002,
    "delayed": 0.02,
    "store": 0.01,
    "racks on the store": 0.01,
}
"""Samples more per step of slack, before any of the family was run."""
LARGEST_SLACK = 32.0


class Race:
    """Runs candidates against each other.

    Args:
        entries: Candidates that can be run and fit, `bsp` first.
        question: Question whose target, or a level of bsp's own, they are timed to.
        rehearsal: Does the runs.
        budget: Seconds of this machine.
        on_run: Told of each run that begins: the policy and the seed.
    """

    def __init__(
        self,
        entries: Sequence[RacingCandidate],
        *,
        question: Question,
        rehearsal: Rehearsal,
        budget: Budget,
        on_run: Callable[[str, int], None],
    ) -> None:
        assert entries[0].spec == BASELINE, "the others are held against it"
        self._entries = list(entries)
        self._baseline = entries[0]
        self._rehearsal = rehearsal
        self._budget = budget
        self._question = question
        self._target = None if question.target is None else question.sign * question.target
        """The target as a value on curves."""
        self._on_run = on_run
        self._sample_s = rehearsal.sample_s
        self._shortfalls: dict[str, float] = {}

    def run(self) -> Raced:
        """Run the whole race.

        Raises:
            ConfigError: No run reaches the target, or `bsp` cannot be run.
        """
        goal = self._first()
        for share, gain in EXPLORING:
            if share != EXPLORING[0][0] and not self._disputed(goal):
                break
            self._explore(goal, share, gain=gain)
            goal = self._reached(goal)
            self._rounds(goal)
        self._check(goal)
        if self._disputed(goal) and self._explore(goal, SPENT_SHARE, gain=-math.inf, dearest=DEAREST):
            self._rounds(goal)
            self._check(goal)
        prospect = self._prospect(goal)
        return Raced(
            goal=goal,
            entries=tuple(self._entries),
            shortfalls=self._shortfalls,
            spent_s=self._budget.spent_s,
            prospect=None if prospect is None else (prospect.spec, self._expected_s(prospect, goal)),
        )

    # --- 1. the baseline

    def _first(self) -> Goal:
        most = self._rehearsal.most_samples
        affordable = BASELINE_SHARE * self._budget.whole_s / self._sample_s
        until = most if most <= 2 * affordable else affordable
        run = self._do(self._baseline, seed=0, until=until, within_s=math.inf)
        if run.curve is None:
            why = run.problem or "it was not done within the time to measure; give it more with --measure"
            raise ConfigError(f"{BASELINE} cannot be run: {why}")
        if self._target is not None:
            samples = run.curve.samples_to(self._target)
            if math.isfinite(samples):
                return Goal(level=self._target, target=self._target, samples=samples, complete=run.whole)
            if run.whole and self._question.must_reach:  # others may come to it
                return Goal(level=self._target, target=self._target, samples=math.inf, complete=True)
        return self._own_level(run)

    def _own_level(self, run: Run) -> Goal:
        assert run.curve is not None, "checked"
        level = run.curve.value_at(LEVEL_SHARE * run.curve.samples[-1])
        samples = run.curve.samples_to(level)
        return Goal(level=level, target=None, samples=samples, complete=run.whole)

    def _reached(self, goal: Goal) -> Goal:
        if any(math.isfinite(one) for entry in self._entries for one in entry.seconds(goal.level).values()):
            return goal
        best = max(run.curve.best for entry in self._entries for run in entry.runs.values() if run.curve is not None)
        raise ConfigError(
            f"no strategy comes to the target within a run; the best comes to {abs(best):.4g}: "
            "write another --target, or have it train longer"
        )

    # --- 2. best first

    def _disputed(self, goal: Goal) -> bool:
        """Return True if there is more to win: not where bsp's exchange and its waiting are next to nothing."""
        base = self._baseline.price
        return base.waits_s > NEXT_TO_NOTHING * base.step_s or math.isinf(goal.samples)

    def _explore(self, goal: Goal, share: float, *, gain: float, dearest: float = 1.0) -> int:
        """Run one candidate after the other until ``share`` of the budget is spent; return how many runs there were.

        A candidate must promise ``gain``, and take at most ``dearest`` times the seconds of the best, by its price.
        """
        num_runs = 0
        while (entry := self._next(goal, gain=gain, dearest=dearest)) is not None:
            until, limit = self._allowed(entry, goal), share
            # one run to the level is worth more than a further short one
            if (prospect := self._prospect(goal)) is not None:
                longer = self._allowed(prospect, goal)
                both_s = (until + longer) * self._sample_s
                if until * self._sample_s > self._budget.left_s(share) or both_s > self._budget.left_s(SPENT_SHARE):
                    entry, until, limit = prospect, longer, SPENT_SHARE
            if until * self._sample_s > self._budget.left_s(limit):
                break
            self._do(entry, seed=0, until=until, within_s=2 * self._limit_s(goal))
            num_runs += 1
        return num_runs

    def _prospect(self, goal: Goal) -> RacingCandidate | None:
        """Pick the too short run that would be the first at the level; None unless bsp alone has reached it."""
        others = [entry for entry in self._entries if entry.runs and entry is not self._baseline]
        if math.isinf(goal.samples) or any(self._is_timed(entry, goal) for entry in others):
            return None
        sooner = [
            entry
            for entry in others
            if self._is_open(entry, goal)
            and self._expected_s(entry, goal) < self._baseline.geometric_mean_s(goal.level)
        ]
        return min(sooner, key=lambda entry: self._expected_s(entry, goal), default=None)

    def _next(self, goal: Goal, *, gain: float, dearest: float) -> RacingCandidate | None:
        """Pick a scout, or the most promising entry that has not reached the level; None if no other could win."""
        if not self._disputed(goal):
            return next((entry for entry in self._entries if entry.spec == ADAPTIVE and not entry.runs), None)
        base_s, limit_s = self._baseline.price.step_s, self._limit_s(goal)
        hopeful = []
        for entry in self._entries:
            scouting = entry.candidate.is_scout and not entry.runs
            expected_s = self._expected_s(entry, goal)
            # what a scout's kind costs in samples is to be seen, so nothing is assumed of it
            least_s = self._reference(goal) * self._seconds_per_sample(entry) if scouting else expected_s
            worth = scouting or entry.price.step_s <= (1 - gain) * base_s
            most_s = limit_s if entry.runs else dearest * limit_s
            if worth and least_s < most_s and self._is_open(entry, goal):
                hopeful.append((not scouting, expected_s, entry))
        return min(hopeful, key=lambda one: one[:2])[2] if hopeful else None

    def _is_open(self, entry: RacingCandidate, goal: Goal) -> bool:
        """Return True if the entry has not been run, or could be run longer and reach the level."""
        run = entry.runs.get(0)
        if run is None:
            return True
        if run.problem or run.whole or entry is self._baseline or math.isfinite(entry.samples(goal.level)):
            return False
        return self._allowed(entry, goal) >= FEWEST_MORE * run.samples

    def _expected_s(self, entry: RacingCandidate, goal: Goal) -> float:
        """Return the seconds to the level, by its price and by what it or its family needs more samples than bsp."""
        if 0 in entry.runs:
            return self._expected_samples(entry, goal) * self._seconds_per_sample(entry)
        slack = min(entry.candidate.slack, LARGEST_SLACK)
        samples = self._reference(goal) * (1 + self._cost_of_slack(entry, goal) * slack)
        return samples * self._seconds_per_sample(entry)

    def _expected_samples(self, entry: RacingCandidate, goal: Goal) -> float:
        """Return the samples to the level of one that was run: extrapolated by bsp's curve if it did not reach it."""
        samples, run, base = entry.samples(goal.level), entry.runs[0], self._baseline.runs[0]
        if math.isfinite(samples):
            return samples
        if run.curve is None or base.curve is None:
            return max(2 * run.samples, self._reference(goal))
        as_far = base.curve.samples_to(run.curve.best)
        behind = run.curve.samples[-1] / as_far if math.isfinite(as_far) else 1.0
        return max(behind * self._reference(goal), FEWEST_MORE * run.samples)

    def _reference(self, goal: Goal) -> float:
        return goal.samples if math.isfinite(goal.samples) else self._rehearsal.most_samples

    def _cost_of_slack(self, entry: RacingCandidate, goal: Goal) -> float:
        """Estimate the samples more per step of slack: the mean of the family's runs, or of its like, or a guess."""
        family = entry.candidate.family
        found: dict[str, list[float]] = {}
        for other in self._entries:
            if other is self._baseline or not other.runs or not other.candidate.slack:
                continue
            ratio = self._expected_samples(other, goal) / self._reference(goal)
            cost = (ratio - 1) / min(other.candidate.slack, LARGEST_SLACK)
            for name in {other.candidate.family, other.candidate.family.split()[-1]}:
                found.setdefault(name, []).append(cost)
        costs = found.get(family) or found.get(family.split()[-1])
        return statistics.fmean(costs) if costs else GUESSES.get(family, 0.0)

    def _seconds_per_sample(self, entry: RacingCandidate) -> float:
        """Return the price of a sample, corrected by bsp's error; for a candidate that was run, the measured one."""
        run = entry.runs.get(0)
        if run is not None and run.samples and run.virtual_s:
            return run.virtual_s / run.samples
        base = self._baseline.runs[0]
        return base.virtual_s / base.samples * entry.price.step_s / self._baseline.price.step_s

    def _allowed(self, entry: RacingCandidate, goal: Goal) -> float:
        """Allow more samples than the entry is expected to need, and none beyond the time in which it could win."""
        most, reference = self._rehearsal.most_samples, self._reference(goal)
        limit_s = self._limit_s(goal)
        if math.isinf(limit_s):
            return most
        if 0 in entry.runs:
            wanted = ROOM * self._expected_samples(entry, goal)
        else:
            affordable = self._budget.whole_s / (reference * self._sample_s)
            wanted = ROOM * min(1.0, max(LEAST_LENGTH, affordable / FULL_RUNS)) * reference
        possible = limit_s / self._seconds_per_sample(entry)
        if entry.spec == ADAPTIVE:  # its price is a bound from below, and how it begins says little of how it goes on
            possible = max(possible, wanted)
        return min(most, wanted, max(possible, 0.6 * reference))

    def _limit_s(self, goal: Goal) -> float:
        """Return the seconds on the first seed from which on a candidate cannot be the best, by chance neither."""
        return self._best_s(goal) * math.exp(ERRORS * math.sqrt(2) * scatter_of(self._entries, goal.level))

    def _best_s(self, goal: Goal) -> float:
        """Return the seconds to the level on the first seed, to be expected of the best, however lucky it was there."""
        base_s = self._baseline.seconds(goal.level)[0]
        timed = [entry for entry in self._entries if entry.runs and self._is_timed(entry, goal)]
        if not timed or math.isinf(base_s):
            return min((entry.geometric_mean_s(goal.level) for entry in timed), default=math.inf)
        return base_s * math.exp(min(self._log_ratio(entry, goal) for entry in timed))

    # --- 3. rounds

    def _rounds(self, goal: Goal) -> None:
        for seed in range(1, MOST_SEEDS):
            if not self._again(goal, seed):
                break

    def _again(self, goal: Goal, seed: int) -> bool:
        """Run the contenders with another seed; False if there is no time for it, or nothing left to decide."""
        contenders = self._contenders(goal)
        if self._decided(goal, contenders):
            return False
        wanting = [entry for entry in contenders if seed not in entry.runs and entry is not self._baseline]
        if not wanting:
            return True
        if seed not in self._baseline.runs:
            wanting.insert(0, self._baseline)  # first: it says whether a seed comes there
        needed = [ROOM * entry.samples(goal.level) * self._sample_s for entry in wanting if self._is_timed(entry, goal)]
        left_s = self._budget.left_s(SPENT_SHARE)
        if sum(needed[:2]) > left_s:
            return False
        reached = math.isfinite(self._baseline.seconds(goal.level).get(seed, math.inf))
        spent_s = 0.0
        for number, entry in enumerate(wanting):
            expected_s = ROOM * entry.samples(goal.level) * self._sample_s if self._is_timed(entry, goal) else 0.0
            if number >= FEWEST_CONTENDERS and spent_s + expected_s > ROUND_SHARE * left_s:
                break
            spent_s += expected_s
            reached |= self._to_level(entry, goal, seed=seed)
            if not reached and entry is self._baseline:
                break
        if not reached:  # a seed that does not come to the level says nothing of who comes there first
            for entry in wanting:
                entry.runs.pop(seed, None)
        return True

    def _is_timed(self, entry: RacingCandidate, goal: Goal) -> bool:
        return math.isfinite(entry.geometric_mean_s(goal.level))

    def _contenders(self, goal: Goal) -> list[RacingCandidate]:
        """Return the entries that may be the best, the best one first."""
        timed = [entry for entry in self._entries if entry.runs and self._is_timed(entry, goal)]
        if not timed:
            return []
        scatter = scatter_of(self._entries, goal.level)
        ahead = {entry.spec: self._log_ratio(entry, goal) for entry in timed}
        ranked = sorted(timed, key=lambda entry: ahead[entry.spec])
        best = ranked[0]

        def may_be_best(entry: RacingCandidate) -> bool:
            error = scatter * math.sqrt(2 / min(len(entry.runs), len(best.runs)))
            return ahead[entry.spec] - ahead[best.spec] <= ERRORS * error

        return [entry for entry in ranked if may_be_best(entry)]

    def _log_ratio(self, entry: RacingCandidate, goal: Goal) -> float:
        ratios = entry.log_ratios(self._baseline, goal.level)
        return statistics.fmean(ratios) if ratios else math.log(entry.geometric_mean_s(goal.level))

    def _decided(self, goal: Goal, contenders: Sequence[RacingCandidate]) -> bool:
        """Check if more seeds would change nothing: no other is near, or those that are near are surely as good."""
        if not contenders:
            return True
        best, *others = contenders
        least = min(len(entry.runs) for entry in contenders)
        if least < FEWEST_SEEDS:
            return False
        scatter = scatter_of(self._entries, goal.level)
        off = [abs(self._log_ratio(entry, goal) - self._log_ratio(best, goal)) for entry in others]
        return max(off, default=0.0) + 2 * scatter / math.sqrt(least) < DECIDED or not others

    def _to_level(self, entry: RacingCandidate, goal: Goal, *, seed: int) -> bool:
        """Run it until it has come to the level, or a run is over; says whether it has. Seeds need unequal numbers."""
        most, until = self._rehearsal.most_samples, ROOM * entry.samples(goal.level)
        while True:
            run = self._do(entry, seed=seed, until=min(most, until), within_s=math.inf)
            reached = run.curve is not None and math.isfinite(run.curve.seconds_to(goal.level))
            if not reached and self._budget.left_s() == 0:  # cut off, which is not its fault
                del entry.runs[seed]
                return False
            if reached or run.whole or run.problem or until >= most:
                return reached
            until *= 2

    # --- 4. the accuracy that is reached in the end

    def _check(self, goal: Goal) -> None:
        base = self._baseline.runs[0]
        if not base.whole or base.curve is None:
            return
        ranked = sorted(self._entries, key=lambda entry: entry.geometric_mean_s(goal.level))
        for entry in ranked:
            if entry is self._baseline or math.isinf(entry.geometric_mean_s(goal.level)):
                return
            run = entry.runs[0]
            if not run.whole:
                if self._rehearsal.most_samples * self._sample_s > self._budget.left_s():
                    return
                run = self._do(entry, seed=0, until=self._rehearsal.most_samples, within_s=math.inf)
            if run.curve is None:
                return
            self._shortfalls[entry.spec] = self._question.shortfall(base.curve.values[-1], run.curve.values[-1])
            if self._shortfalls[entry.spec] <= self._question.tolerance:
                return

    # --- doing it

    def _do(self, entry: RacingCandidate, *, seed: int, until: float, within_s: float) -> Run:
        self._on_run(entry.spec, seed)
        rehearsed = self._rehearsal.run(
            entry.spec,
            seed=seed,
            servers=entry.price.servers,
            until_samples=until,
            within_s=within_s,
            budget_s=max(self._budget.left_s(), LEAST_SHARE * self._budget.whole_s),
        )
        run = entry.runs[seed] = Run.of(rehearsed, by_loss=self._rehearsal.by_loss)
        if run.samples:
            measured = run.real_s / run.samples
            self._sample_s = measured if entry is self._baseline and seed == 0 else max(self._sample_s, 0.8 * measured)
        return run
