"""Does the guard notice divergence in time, and only divergence?

Real training of three tasks (`scenarios`), emulated in one process (`emulation`): healthy runs, and faults that fork
off them in the middle of a review. Every reading, and the shared model's metric after every review, are recorded
(`recordings`); then the guard is shown the readings, never the metric.

A fork *diverged* if in the end its metric is at least 1 % below the best before, in all reviews from some one on; that
one is the *fall*. What is counted:

- fell at once: the fall is in the review in which the fault began;
- in time: an alarm in the review of the fall, or before it;
- a review later: an alarm one review after the fall at the latest;
- undone: the state that training goes back to is unhurt, that is within 1 % of the best (or within what the healthy run
  itself scattered in the eight reviews before). The state is the last one that the guard called good, or the last but
  one: a fault late in a review can show only in the next one, when the state in between has been kept;
- false alarms: healthy runs with any alarm at all.

    python benchmarks/adaptive/divergences.py [--split tuning|held_out|both] [--misses]

Recording takes some 8 minutes of one core and is done once; the rest takes seconds.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # record.py

from recordings import Fork, Recording, Seen, record_all
from scenarios import HELD_OUT, TUNING

from plesio.policies.adaptive.bound import BoundTuner, BoundTunerConfig
from plesio.policies.adaptive.gradient import GradientMonitor, GradientMonitorConfig
from plesio.policies.adaptive.guard import Guard, GuardConfig
from record import print_table, print_verdict, save

HURT = 0.01
"""Share of its best by which the metric must fall."""
GOAL_CAUGHT, GOAL_FALSE = 0.95, 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One fork: when it fell, when the guard noticed, and what it had kept by then (reviews since the fault's)."""

    name: str
    kind: str
    strength: float
    first_touch: int | None
    fall: int | None
    alarm: int | None
    delay_steps: int | None
    reason: str
    last_unhurt: bool
    last_but_one_unhurt: bool

    @property
    def in_time(self) -> bool:
        """Whether the alarm came no later than the fall."""
        return self.noticed_by(0)

    def noticed_by(self, later: int) -> bool:
        """Whether the alarm came at most this many reviews after the fall."""
        assert self.fall is not None
        return self.alarm is not None and self.alarm <= self.fall + later


def falls(seen: Iterable[Seen]) -> list[float]:
    """After each review, by what share the metric is below its best so far."""
    best, found = -math.inf, []
    for one in seen:
        best = max(best, one.metric)
        found.append((best - one.metric) / abs(best))
    return found


def judge(recording: Recording, fork: Fork, config: GuardConfig) -> Outcome:
    onset = fork.onset_review
    everything = [*recording.healthy[:onset], *fork.after]
    fallen = falls(everything)
    hurt = [share >= HURT for share in fallen[onset:]]
    fall = len(hurt)
    while fall and hurt[fall - 1]:
        fall -= 1
    scatter = max(HURT, *fallen[max(0, onset - 8) : onset])
    guard = Guard(config)
    kept, alarm, reason = [], None, ""
    for number, one in enumerate(everything):
        raised = guard.observe(one.reading)
        if raised is not None and number >= onset:
            alarm, reason = number - onset, raised.reason
            break
        if guard.good:
            kept.append(fallen[number] <= scatter)
    return Outcome(
        name=recording.name,
        kind=fork.kind,
        strength=fork.strength,
        first_touch=next((number for number, touched in enumerate(hurt) if touched), None),
        fall=fall if fall < len(hurt) else None,
        alarm=alarm,
        delay_steps=None if alarm is None else fork.after[alarm].reading.clock - fork.fault_step,
        reason=reason,
        last_unhurt=alarm is not None and kept[-1],
        last_but_one_unhurt=alarm is not None and kept[-2],
    )


def false_alarms(recordings: Sequence[Recording], config: GuardConfig) -> list[str]:
    found = []
    for recording in recordings:
        guard = Guard(config)
        alarms = [(number, guard.observe(one.reading)) for number, one in enumerate(recording.healthy)]
        found += [f"{recording.name}, review {number}: {raised.reason}" for number, raised in alarms if raised][:1]
    return found


def objections(recordings: Sequence[Recording]) -> dict[str, float]:
    """What the other two components would have said in the healthy runs, with a metric every fourth review."""
    num_reviews = num_trips = num_cuts = 0
    for recording in recordings:
        monitor, tuner = GradientMonitor(GradientMonitorConfig()), BoundTuner(BoundTunerConfig())
        allowed, slack = math.inf, 0.0
        for number, one in enumerate(recording.healthy):
            news = {"metric": one.metric} if number % 4 == 3 else {}
            reading = type(one.reading)(**{**_fields(one.reading), **news})
            before, allowed = allowed, monitor.observe(reading).slack
            num_trips += allowed < before
            before, slack = slack, tuner.observe(reading).slack
            num_cuts += slack < before
            num_reviews += 1
    return {"reviews": num_reviews, "gradient_triggers": num_trips, "bound_cuts": num_cuts}


def _fields(reading: object) -> dict[str, object]:
    return {name: getattr(reading, name) for name in type(reading).__slots__}  # type: ignore[attr-defined]


def evaluate(split: str, recordings: Sequence[Recording], config: GuardConfig, *, misses: bool) -> dict[str, object]:
    outcomes = [judge(recording, fork, config) for recording in recordings for fork in recording.forks]
    diverged = [outcome for outcome in outcomes if outcome.fall is not None]
    harmless = [outcome for outcome in outcomes if outcome.fall is None]
    alarms = false_alarms(recordings, config)
    rows = []
    for kind in [*sorted({outcome.kind for outcome in diverged}), "all"]:
        of_kind = [outcome for outcome in diverged if kind in (outcome.kind, "all")]
        rows.append([kind, str(len(of_kind)), *(f"{number}" for number in _counts(of_kind).values())])
    columns = ["fault", "diverged", *(name.replace("_", " ") for name in _counts(diverged))]
    print_table(f"{split}: divergences, and how many were caught", columns=columns, rows=rows)
    delays = [outcome.delay_steps for outcome in diverged if outcome.delay_steps is not None]
    quartiles = statistics.quantiles(delays, n=4)
    results = {
        "divergences": len(diverged),
        **_counts(diverged),
        "delay_steps": {"low": quartiles[0], "median": quartiles[1], "high": quartiles[2], "largest": max(delays)},
        "healthy_runs": len(recordings),
        "false_alarms": len(alarms),
        "harmless_faults": len(harmless),
        "harmless_faults_with_alarm": sum(outcome.alarm is not None for outcome in harmless),
        "other_components_in_healthy_runs": objections(recordings),
    }
    print({key: value for key, value in results.items() if key not in _counts(diverged)})
    for alarm in alarms:
        print(f"false alarm: {alarm}")
    if misses:
        for outcome in diverged:
            if not outcome.in_time:
                print(f"late: {outcome}")
    return results


def _counts(outcomes: Sequence[Outcome]) -> dict[str, int]:
    return {
        "fell_at_once": sum(outcome.fall == 0 for outcome in outcomes),
        "in_time": sum(outcome.in_time for outcome in outcomes),
        "in_time_for_first_touch": sum(
            outcome.alarm is not None and outcome.first_touch is not None and outcome.alarm <= outcome.first_touch
            for outcome in outcomes
        ),
        "a_review_later": sum(outcome.noticed_by(1) for outcome in outcomes),
        "noticed_at_all": sum(outcome.alarm is not None for outcome in outcomes),
        "undone_from_last": sum(outcome.last_unhurt for outcome in outcomes),
        "undone_from_last_but_one": sum(outcome.last_but_one_unhurt for outcome in outcomes),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", choices=("tuning", "held_out", "both"), default="both")
    parser.add_argument("--misses", action="store_true", help="list what was not caught in time")
    arguments = parser.parse_args()
    splits = {"tuning": TUNING, "held_out": HELD_OUT}
    chosen = splits if arguments.split == "both" else {arguments.split: splits[arguments.split]}
    results = {
        split: evaluate(split, record_all(scenarios), GuardConfig(), misses=arguments.misses)
        for split, scenarios in chosen.items()
    }
    if "held_out" not in results:
        return
    held_out = results["held_out"]
    in_time = held_out["in_time"] / held_out["divergences"]
    false = held_out["false_alarms"] / held_out["healthy_runs"]
    print_verdict(f"in time {in_time:.0%}, goal {GOAL_CAUGHT:.0%}", met=in_time >= GOAL_CAUGHT)
    print_verdict(f"healthy runs with an alarm {false:.1%}, goal {GOAL_FALSE:.0%}", met=false <= GOAL_FALSE)
    save("divergences", settings={}, results=results, met=in_time >= GOAL_CAUGHT and false <= GOAL_FALSE)


if __name__ == "__main__":
    main()
