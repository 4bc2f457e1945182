"""Does the phase detector find the phases of runs whose boundaries are known?

Small models are really trained, with one learning rate a step; a reading every 16 steps is all that the detector sees
(gradients of every other one, sampled in two consecutive steps of two half batches; the metric in every fourth). The
phase it gives after a reading counts for the 16 steps that follow: agreement is the share of steps at which it is the
labelled one, and being late by a review at each boundary costs what it costs in use.

Labels, in order of precedence. They come from the whole schedule, which the detector never sees, by the same rules for
all runs:

1. ``critical``: each step of a warm-up.
2. ``critical`` after a sudden jump of the rate (a restart without warm-up): until a twentieth of the cycle's *budget*
   is spent, which is the sum of the rates from one beginning of a cycle (start, jump or warm-up) to the next.
3. ``final``: from where less than a twentieth of the cycle's budget is left. A cosine to zero is final for its last
   31 %, a straight line for its last 22 %, a constant rate for its last 5 %. Where a cycle has steps of a step decay,
   final begins with the nearest of them: nothing happens in between.
4. ``critical`` after a start without warm-up, from random parameters or from a model trained on other data, and after a
   change of the data: until the loss has made 90 % of its fall, from the value at that step to the mean of the last
   tenth of the cycle. This is the one boundary that the schedule does not say. It is measured with hindsight, on a
   fixed sample of the training data every 8 steps; the detector sees mean losses of batches.
5. ``stable``: all else. So a model that was trained on the same data and has no warm-up starts stable.

The twentieths and the 90 % are definitions, the former the detector's as well; a table shows the agreement at others,
with the detector left as it is and, for the final phase, with the detector told.

`TUNING` (`phase_tuning.py`) is what the defaults were chosen on, `HELD_OUT` (`phase_held_out.py`) what they are judged
by.

    python benchmarks/adaptive/phases.py [--tuning]

Prints tables and writes benchmarks/results/phases.json. Readings are kept in runs/adaptive-phases/: the first time
takes minutes, later ones seconds. ``--tuning`` leaves `HELD_OUT` out.
"""

import argparse
import bisect
import dataclasses
import functools
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from phase_held_out import HELD_OUT
from phase_runs import EVALUATION_STEPS, Recording, Run, record_run
from phase_tuning import TUNING

from plesio.policies.adaptive.config.phase import PhaseConfig
from plesio.policies.adaptive.readings.reading import Reading
from plesio.policies.adaptive.training.phase import PhaseDetector
from plesio.policies.adaptive.training.verdict import Phase
from record import print_table, print_verdict, save

GOAL = 0.93
FOLDER = Path(__file__).parents[2] / "runs" / "adaptive-phases"
MATCH_STEPS = 160
"""A boundary that is found is found within ten reviews."""
FIELDS: Mapping[str, Mapping[str, Any]] = {
    "schedule": {"learning_rate": 1.0, "progress": None},
    "loss": {"loss": math.nan, "worst_loss": math.nan},
    "gradient": {"gradient": None},
    "metric": {"metric": None},
    "progress": {"progress": None},
}
"""What a reading holds instead, when it lacks them."""
WITHOUT: Mapping[str, tuple[str, ...]] = {
    "all signals": (),
    "without progress": ("progress",),
    "without gradient": ("gradient",),
    "without loss": ("loss",),
    "schedule only": ("loss", "gradient", "metric"),
    "schedule only, without progress": ("loss", "gradient", "metric", "progress"),
    "loss only": ("schedule", "gradient", "metric"),
    "gradient only": ("schedule", "loss", "metric"),
    "metric only": ("schedule", "loss", "gradient"),
}

GUESSES: Mapping[str, Callable[[float], Phase]] = {
    "always stable": lambda progress: "stable",
    "first tenth critical, last fifth final": lambda progress: (
        "critical" if progress < 0.1 else "final" if progress >= 0.8 else "stable"
    ),
}
"""Phases by progress alone, without a detector."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The numbers in the labels.

    Attributes:
        final_budget: Share of the budget that is left in the final phase.
        jump_budget: Share of the budget that is critical after a jump.
        unsettled: Share of the fall of the loss that is still to come when a start is over.
    """

    final_budget: float = 0.05
    jump_budget: float = 0.05
    unsettled: float = 0.1


DEFAULTS = PhaseConfig()
OTHER_RULES: Mapping[str, tuple[Rules, PhaseConfig]] = {
    "final: 3 % of the budget": (Rules(final_budget=0.03), DEFAULTS),
    "final: 8 % of the budget": (Rules(final_budget=0.08), DEFAULTS),
    "final: 3 %, detector told": (Rules(final_budget=0.03), PhaseConfig(final_budget=0.03)),
    "final: 8 %, detector told": (Rules(final_budget=0.08), PhaseConfig(final_budget=0.08)),
    "jump: 3 % of the budget": (Rules(jump_budget=0.03), DEFAULTS),
    "jump: 10 % of the budget": (Rules(jump_budget=0.1), DEFAULTS),
    "start: 80 % of the fall": (Rules(unsettled=0.2), DEFAULTS),
    "start: 95 % of the fall": (Rules(unsettled=0.05), DEFAULTS),
}


def label(run: Run, recording: Recording, rules: Rules) -> list[Phase]:
    """The phase of each step, by the rules of the module's head."""
    schedule = run.schedule
    left = schedule.budget_left()
    phases: list[Phase] = ["stable"] * schedule.num_steps
    for first, end in schedule.cycles():
        begin = bisect.bisect_left(left, -rules.final_budget, lo=first, hi=end, key=lambda share: -share)
        drops = [drop for drop in schedule.drops() if first < drop < end]
        begin = min(drops, key=lambda drop: abs(drop - begin), default=begin)
        phases[begin:end] = ["final"] * (end - begin)
    for first, end in _starts(run):
        settled = first + _settling_steps(recording.evaluations, first=first, end=end, unsettled=rules.unsettled)
        for step in itertools.takewhile(lambda step: phases[step] == "stable", range(first, settled)):
            phases[step] = "critical"
    for jump in schedule.jumps():
        for step in itertools.takewhile(lambda step: left[step] > 1 - rules.jump_budget, range(jump, len(left))):
            phases[step] = "critical"
    for first, end in schedule.ramps():
        phases[first:end] = ["critical"] * (end - first)
    return phases


def _starts(run: Run) -> list[tuple[int, int]]:
    """(first step, end of the cycle) of each start whose end the schedule does not say."""
    starts = [0] if run.start != "trained" and not run.schedule.starts_with_warm_up else []
    starts += [] if run.shift_at is None else [run.shift_at]
    return [(start, next(end for first, end in run.schedule.cycles() if first <= start < end)) for start in starts]


def _settling_steps(evaluations: Sequence[float], *, first: int, end: int, unsettled: float) -> int:
    values = evaluations[math.ceil(first / EVALUATION_STEPS) : math.ceil(end / EVALUATION_STEPS)]
    level = statistics.fmean(values[-max(1, len(values) // 10) :])
    return EVALUATION_STEPS * next(
        number for number, value in enumerate(values) if value - level <= unsettled * (values[0] - level)
    )


def detect(readings: Sequence[Reading], *, num_steps: int, config: PhaseConfig = DEFAULTS) -> list[Phase]:
    """The phase that the detector gives for each step."""
    detector = PhaseDetector(config)
    phases: list[Phase] = []
    for reading in readings:
        phases += [detector.phase] * (reading.clock - len(phases))
        detector.observe(reading)
    return phases + [detector.phase] * (num_steps - len(phases))


def agreement(found: Sequence[Phase], labels: Sequence[Phase]) -> float:
    """Share of steps at which the phases are the same."""
    return statistics.fmean(a == b for a, b in zip(found, labels, strict=True))


def boundaries(phases: Sequence[Phase]) -> list[tuple[int, Phase]]:
    """Each step at which the phase is another than before, and which."""
    return [(step, after) for step, (before, after) in enumerate(itertools.pairwise(phases), 1) if before != after]


def boundary_errors(found: Sequence[Phase], labels: Sequence[Phase]) -> tuple[list[int], int, int]:
    """Steps by which each labelled boundary was found late; how many were missed; how many there are beyond."""
    free = boundaries(found)
    errors = []
    for step, phase in boundaries(labels):
        near = [item for item in free if item[1] == phase and abs(item[0] - step) <= MATCH_STEPS]
        if near:
            nearest = min(near, key=lambda item: abs(item[0] - step))
            free.remove(nearest)
            errors.append(nearest[0] - step)
    return errors, len(boundaries(labels)) - len(errors), len(free)


def evaluate(runs: Sequence[Run], recordings: Mapping[str, Recording]) -> dict[str, Any]:
    """All figures of a set of runs."""
    rows = [_row(run, recordings[run.name]) for run in runs]

    def spread(share: Callable[[Run, Recording], float]) -> dict[str, float]:
        return _spread([share(run, recordings[run.name]) for run in runs])

    return {
        "rows": rows,
        "agreement": _spread([row["agreement"] for row in rows]),
        "all boundaries in the schedule": _spread([row["agreement"] for row in rows if not row["measured"]]),
        "a boundary measured": _spread([row["agreement"] for row in rows if row["measured"]]),
        "by_kind": {
            kind: _spread([row["agreement"] for row in rows if row["kind"] == kind])
            for kind in dict.fromkeys(run.kind for run in runs)
        },
        "signals": {name: spread(functools.partial(_without, lacks)) for name, lacks in WITHOUT.items()},
        "guesses": {name: spread(functools.partial(_guessed, guess)) for name, guess in GUESSES.items()},
        "rules": {name: spread(functools.partial(_by_rules, *other)) for name, other in OTHER_RULES.items()},
    }


def _row(run: Run, recording: Recording) -> dict[str, Any]:
    labels = label(run, recording, Rules())
    found = detect(recording.readings, num_steps=len(labels))
    late_steps, num_missed, num_extra = boundary_errors(found, labels)
    return {
        "run": run.name,
        "kind": run.kind,
        "task": run.task,
        "lacks": list(run.lacks),
        "steps": len(labels),
        "agreement": agreement(found, labels),
        "late_steps": late_steps,
        "num_missed": num_missed,
        "num_extra": num_extra,
        "measured": run.measures_settling,
        "labels": [labels[0], *boundaries(labels)],
        "found": [found[0], *boundaries(found)],
    }


def _without(lacks: Sequence[str], run: Run, recording: Recording) -> float:
    instead = {field: value for name in lacks for field, value in FIELDS[name].items()}
    readings = [dataclasses.replace(reading, **instead) for reading in recording.readings]
    return agreement(detect(readings, num_steps=run.schedule.num_steps), label(run, recording, Rules()))


def _guessed(guess: Callable[[float], Phase], run: Run, recording: Recording) -> float:
    num_steps = run.schedule.num_steps
    return agreement([guess(step / num_steps) for step in range(num_steps)], label(run, recording, Rules()))


def _by_rules(rules: Rules, config: PhaseConfig, run: Run, recording: Recording) -> float:
    found = detect(recording.readings, num_steps=run.schedule.num_steps, config=config)
    return agreement(found, label(run, recording, rules))


def _spread(shares: Sequence[float]) -> dict[str, float]:
    return {"num_runs": len(shares), "mean": statistics.fmean(shares), "least": min(shares)}


def show(title: str, results: Mapping[str, Any]) -> None:
    """The tables of one set."""
    rows = [
        [
            f"{row['run']} {row['task']}",
            row["kind"] + (f" (no {', '.join(row['lacks'])})" if row["lacks"] else ""),
            str(row["steps"]),
            f"{row['agreement']:.1%}",
            " ".join(f"{late:+d}" for late in row["late_steps"]),
            f"{row['num_missed']}, {row['num_extra']}",
        ]
        for row in results["rows"]
    ]
    columns = ["run", "kind", "steps", "agreement", "boundaries found late by", "missed, extra"]
    print_table(title, columns=columns, rows=rows)
    late = [abs(error) for row in results["rows"] for error in row["late_steps"]]
    num_missed, num_extra = (sum(row[key] for row in results["rows"]) for key in ("num_missed", "num_extra"))
    print(
        f"{len(late)} of {len(late) + num_missed} boundaries found, half of them within {statistics.median(late):g} "
        f"steps and nine of ten within {statistics.quantiles(late, n=10)[-1]:.0f}; {num_extra} that are none"
    )
    groups = {
        "all": results["agreement"],
        "all boundaries in the schedule": results["all boundaries in the schedule"],
        "a boundary measured": results["a boundary measured"],
        **results["by_kind"],
        **{f"signals: {name}": spread for name, spread in results["signals"].items()},
        **{f"guess: {name}": spread for name, spread in results["guesses"].items()},
        **{f"labels: {name}": spread for name, spread in results["rules"].items()},
    }
    rows = [[name, str(s["num_runs"]), f"{s['mean']:.1%}", f"{s['least']:.1%}"] for name, s in groups.items()]
    print_table(f"{title}: agreement", columns=["runs", "number", "mean", "least"], rows=rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tuning", action="store_true", help="only the runs that the defaults were chosen on")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sets = {"tuning": TUNING} if arguments.tuning else {"tuning": TUNING, "held out": HELD_OUT}
    began_s = time.process_time()
    recordings = {run.name: record_run(run, folder=FOLDER) for runs in sets.values() for run in runs}
    recorded_s = time.process_time()
    results = {name: evaluate(runs, recordings) for name, runs in sets.items()}
    for name, figures in results.items():
        show(name, figures)
    print(f"recorded in {recorded_s - began_s:.0f} s, evaluated in {time.process_time() - recorded_s:.1f} s")
    if arguments.tuning:
        return 0
    met = results["held out"]["agreement"]["mean"] >= GOAL
    print_verdict(f"agrees at {GOAL:.0%} of steps on the {len(HELD_OUT)} held-out runs", met=met)
    settings = {"detector": dataclasses.asdict(PhaseConfig()), "labels": dataclasses.asdict(Rules())}
    save("phases", settings=settings, results=results, met=met)
    return 0


if __name__ == "__main__":
    sys.exit(main())
