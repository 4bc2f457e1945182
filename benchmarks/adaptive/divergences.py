"""Does the guard notice divergence in time, and only divergence?

Real training of three tasks (`scenarios`), emulated in one process (`emulation`): healthy runs under the guard, and
faults that fork off them in the middle of a review, each once with nobody acting (*alone*) and once *guarded*
(`recordings`). The guard is never shown the metric, which is known after every review.

A fork *diverged* if alone in the end its metric is at least 1 % below the best before, in all reviews from some one on;
that one is the *fall*. What is counted of the guarded branch:

- fell at once: alone, the fall is in the review in which the fault began;
- in time: the guard acted (scaled a gradient down, held the rate, raised an alarm) before the evaluation that shows the
  fall, or with that of the review of which it is;
- by an alarm: the same, counting nothing but alarms;
- without the speed: in time, if the guard were not shown how fast the parameters go; alarms from the branch with nobody
  acting, single steps from the guarded one, as far as its first alarm changed nothing;
- a review later: it acted one review after the fall at the latest;
- unhurt: the guarded branch's metric after the eighth review is within 1 % of its best (or within what the healthy run
  itself scattered in the eight reviews before the fault);
- false alarms: healthy runs with any alarm, any gradient scaled down, or any rate held.

    python benchmarks/adaptive/divergences.py [--split tuning|held_out|both] [--misses]

Recording takes some 15 minutes of one core for the 50 held-out runs, 45 for the others, and is done once.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # record.py

from recordings import Branch, Fork, Recording, Seen, record_all
from scenarios import HELD_OUT, TUNING

from plesio.policies.adaptive.config.bound import BoundTunerConfig
from plesio.policies.adaptive.config.gradient import GradientMonitorConfig
from plesio.policies.adaptive.config.guard import GuardConfig
from plesio.policies.adaptive.training.bound import BoundTuner
from plesio.policies.adaptive.training.gradient import GradientMonitor
from plesio.policies.adaptive.training.guard import Guard
from record import print_table, print_verdict, save

HURT = 0.01
"""Share of its best by which the metric must fall."""
GOAL_CAUGHT, GOAL_FALSE = 0.95, 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One fork: when it fell, alone, and when and how the guard acted; reviews and steps since the fault's.

    ``alone_lost`` and ``guarded_lost`` are shares of the best metric that are lost in the end.
    """

    name: str
    kind: str
    strength: float
    fall: int | None
    acted: int | None
    alarm: int | None
    without_speed: int | None
    delay_steps: int | None
    reason: str
    alone_lost: float
    guarded_lost: float
    unhurt: bool

    def acted_by(self, later: int) -> bool:
        """Return True if the guard acted at most this many reviews after the fall."""
        return self.fall is not None and self.acted is not None and self.acted <= self.fall + later


def losses(branch: Branch, *, before: Sequence[float]) -> list[float]:
    """After each review, by what share the metric is below its best so far, and below that ``before``."""
    best, found = max(before, default=-math.inf), []
    for one in branch.reviews:
        best = max(best, one.metric)
        found.append((best - one.metric) / abs(best))
    return found


def judge(recording: Recording, fork: Fork) -> Outcome:
    onset = fork.onset_review
    before = [one.metric for one in recording.healthy.reviews[:onset]]
    alone = losses(fork.alone, before=before)
    hurt = [share >= HURT for share in alone]
    fall = len(hurt)
    while fall and hurt[fall - 1]:
        fall -= 1
    scatter = max(HURT, *losses(recording.healthy, before=[])[max(0, onset - 8) : onset])
    guarded = losses(fork.guarded, before=before)
    reviews = fork.guarded.reviews
    alarm = next((number for number, one in enumerate(reviews) if one.alarm), None)
    steps = [step for step in (*fork.guarded.clipped, *fork.guarded.held) if step >= fork.fault_step]
    by_steps = [_review_of(step, reviews) for step in steps]
    if alarm is not None:
        steps.append(reviews[alarm].reading.clock - 1)
    first = min(steps, default=None)
    return Outcome(
        name=recording.name,
        kind=fork.kind,
        strength=fork.strength,
        fall=fall if fall < len(hurt) else None,
        acted=None if first is None else _review_of(first, reviews),
        alarm=alarm,
        without_speed=min(
            [
                *(number for number in by_steps if alarm is None or number <= alarm),
                *_alarm_without_speed(recording, fork),
            ],
            default=None,
        ),
        delay_steps=None if first is None else first - fork.fault_step,
        reason=(reviews[alarm].alarm or "") if alarm is not None else "",
        alone_lost=alone[-1],
        guarded_lost=guarded[-1],
        unhurt=guarded[-1] < scatter,
    )


def _review_of(step: int, reviews: Sequence[Seen]) -> int:
    return sum(one.reading.clock <= step for one in reviews)


def _alarm_without_speed(recording: Recording, fork: Fork) -> list[int]:
    """Return the review of the first alarm, if there is one."""
    guard = Guard(GuardConfig())
    for one in recording.healthy.reviews[: fork.onset_review]:
        guard.observe(replace(one.reading, speed=math.nan))
    alarms = (guard.observe(replace(one.reading, speed=math.nan)) for one in fork.alone.reviews)
    return [number for number, alarm in enumerate(alarms) if alarm][:1]


def false_alarms(recordings: Sequence[Recording]) -> list[str]:
    found = []
    for recording in recordings:
        healthy = recording.healthy
        alarms = [one.alarm for one in healthy.reviews if one.alarm]
        if alarms or healthy.clipped or healthy.held:
            found.append(f"{recording.name}: {alarms}, {len(healthy.clipped)} scaled down, {len(healthy.held)} held")
    return found


def objections(recordings: Sequence[Recording]) -> dict[str, float]:
    """Return the objections of the other two components in the healthy runs, with a metric every fourth review."""
    num_reviews = num_trips = num_cuts = 0
    for recording in recordings:
        monitor, tuner = GradientMonitor(GradientMonitorConfig()), BoundTuner(BoundTunerConfig())
        allowed, slack = math.inf, 0.0
        for number, one in enumerate(recording.healthy.reviews):
            news = {"metric": one.metric} if number % 4 == 3 else {}
            reading = replace(one.reading, **news)
            before, allowed = allowed, monitor.observe(reading).slack
            num_trips += allowed < before
            before, slack = slack, tuner.observe(reading).slack
            num_cuts += slack < before
            num_reviews += 1
    return {"reviews": num_reviews, "gradient_triggers": num_trips, "bound_cuts": num_cuts}


def evaluate(split: str, recordings: Sequence[Recording], *, misses: bool) -> dict[str, object]:
    outcomes = [judge(recording, fork) for recording in recordings for fork in recording.forks]
    diverged = [outcome for outcome in outcomes if outcome.fall is not None]
    harmless = [outcome for outcome in outcomes if outcome.fall is None]
    alarms = false_alarms(recordings)
    rows = []
    for kind in [*sorted({outcome.kind for outcome in diverged}), "all"]:
        of_kind = [outcome for outcome in diverged if kind in (outcome.kind, "all")]
        rows.append([kind, str(len(of_kind)), *(f"{number}" for number in _counts(of_kind).values())])
    columns = ["fault", "diverged", *(name.replace("_", " ") for name in _counts(diverged))]
    print_table(f"{split}: divergences, and how many were caught", columns=columns, rows=rows)
    delays = [outcome.delay_steps for outcome in diverged if outcome.delay_steps is not None]
    results = {
        "divergences": len(diverged),
        **_counts(diverged),
        "delay_steps": _quartiles(delays),
        "healthy_runs": len(recordings),
        "false_alarms": len(alarms),
        "lost_in_the_end": {
            "alone": _quartiles([outcome.alone_lost for outcome in diverged]),
            "guarded": _quartiles([outcome.guarded_lost for outcome in diverged]),
        },
        "harmless_faults": len(harmless),
        "harmless_faults_acted_on": sum(outcome.acted is not None for outcome in harmless),
        "other_components_in_healthy_runs": objections(recordings),
    }
    print({key: value for key, value in results.items() if key not in _counts(diverged)})
    for alarm in alarms:
        print(f"false alarm: {alarm}")
    if misses:
        for outcome in diverged:
            if not (outcome.acted_by(0) and outcome.unhurt):
                print(f"{'hurt' if outcome.acted_by(0) else 'late'}: {outcome}")
    return results


def _quartiles(values: Sequence[float]) -> dict[str, float]:
    low, median, high = statistics.quantiles(values, n=4)
    return {"low": low, "median": median, "high": high, "largest": max(values)}


def _counts(outcomes: Sequence[Outcome]) -> dict[str, int]:
    return {
        "fell_at_once": sum(outcome.fall == 0 for outcome in outcomes),
        "in_time": sum(outcome.acted_by(0) for outcome in outcomes),
        "in_time_by_an_alarm": sum(
            outcome.alarm is not None and outcome.fall is not None and outcome.alarm <= outcome.fall
            for outcome in outcomes
        ),
        "in_time_without_the_speed": sum(
            outcome.without_speed is not None and outcome.fall is not None and outcome.without_speed <= outcome.fall
            for outcome in outcomes
        ),
        "a_review_later": sum(outcome.acted_by(1) for outcome in outcomes),
        "acted_at_all": sum(outcome.acted is not None for outcome in outcomes),
        "unhurt": sum(outcome.unhurt for outcome in outcomes),
        "in_time_and_unhurt": sum(outcome.acted_by(0) and outcome.unhurt for outcome in outcomes),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", choices=("tuning", "held_out", "both"), default="both")
    parser.add_argument("--misses", action="store_true", help="list what was not caught in time")
    arguments = parser.parse_args()
    splits = {"tuning": TUNING, "held_out": HELD_OUT}
    chosen = splits if arguments.split == "both" else {arguments.split: splits[arguments.split]}
    results = {
        split: evaluate(split, record_all(scenarios), misses=arguments.misses) for split, scenarios in chosen.items()
    }
    if "held_out" not in results:
        return
    held_out = results["held_out"]
    in_time = held_out["in_time"] / held_out["divergences"]
    false = held_out["false_alarms"] / held_out["healthy_runs"]
    print_verdict(f"in time {in_time:.0%}, goal {GOAL_CAUGHT:.0%}", met=in_time >= GOAL_CAUGHT)
    print_verdict(f"healthy runs that were acted on {false:.1%}, goal {GOAL_FALSE:.0%}", met=false <= GOAL_FALSE)
    save("divergences", settings={}, results=results, met=in_time >= GOAL_CAUGHT and false <= GOAL_FALSE)


if __name__ == "__main__":
    main()
