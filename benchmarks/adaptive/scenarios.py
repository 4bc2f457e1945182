"""Which trainings are recorded: healthy runs of three tasks, and faults that fork off them.

TUNING is what the defaults of the guard were chosen by, HELD_OUT what they are judged by. They share no seed (100 to
111, 900 to 975, 3000 to 3025; 5000 to 5031), and differ in what the tasks are (dimension, spectrum, momentum, width,
context), in batches, rates, slack and strengths. The seeds from 3000 were held out before the parameters' speed was
looked at. In HELD_OUT three faults of ten are looseness.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from emulation import STEPS_PER_REVIEW, Fault, TeamSetting

__all__ = ["HELD_OUT", "TUNING", "Forked", "Scenario"]

Schedule = Literal["constant", "steps", "warm_up", "restarts", "plateau", "fine_tune"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """A fault that begins in a review of a healthy run."""

    fault: Fault
    onset_review: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A healthy run and the faults that fork off it."""

    name: str
    task: str
    options: Mapping[str, Any]
    rate: float
    schedule: Schedule
    mode: Literal["local", "stale"]
    slack: int
    num_workers: int
    batch_size: int
    seed: int
    num_reviews: int
    momentum: float = 0.0
    forks: tuple[Forked, ...] = field(default=())

    @property
    def pretraining_reviews(self) -> int:
        """Reviews that are trained at the full rate before anything is recorded."""
        return 8 if self.schedule == "fine_tune" else 0

    def setting(self) -> TeamSetting:
        """How its team trains."""
        return TeamSetting(
            mode=self.mode,
            slack=self.slack,
            num_workers=self.num_workers,
            batch_size=self.batch_size,
            rate=rate_at(
                self.schedule,
                self.rate,
                num_steps=self.num_reviews * STEPS_PER_REVIEW,
                pretraining_steps=self.pretraining_reviews * STEPS_PER_REVIEW,
            ),
            seed=self.seed,
            momentum=self.momentum,
        )


def rate_at(schedule: Schedule, peak: float, *, num_steps: int, pretraining_steps: int) -> Callable[[int], float]:
    def factor(step: int) -> float:
        share = step / num_steps
        match schedule:
            case "constant":
                return 1.0
            case "steps":
                return 1.0 if share < 0.5 else 0.1 if share < 0.8 else 0.01
            case "warm_up":
                return min((step + 1) / (0.1 * num_steps), 0.55 + 0.45 * math.cos(math.pi * min(1.0, share)))
            case "restarts":
                return 0.51 + 0.49 * math.cos(math.pi * (share * 4 % 1))
            case "plateau":
                return 1.0 if share < 0.25 else 0.02
            case "fine_tune":
                return 1.0 if step < pretraining_steps else 0.2

    return lambda step: peak * factor(step)


SCHEDULES: tuple[Schedule, ...] = ("constant", "steps", "warm_up", "restarts", "plateau", "fine_tune")


Strengths = Collection[tuple[str, tuple[float, ...]]]
"""Kinds of faults in turn; one may come more than once."""


def _faults(strengths: Strengths) -> list[Fault]:
    """All kinds in turn, then all with the next strength."""
    longest = max(len(values) for _, values in strengths)
    return [
        Fault(kind=kind, strength=values[number % len(values)])  # type: ignore[arg-type]
        for number in range(longest)
        for kind, values in strengths
    ]


def _catalogue(
    split: str,
    tasks: Mapping[str, tuple[Mapping[str, Any], ...]],
    *,
    counts: Mapping[str, int],
    strengths: Strengths,
    num_forks: int,
    num_reviews: int,
    first_seed: int,
) -> tuple[Scenario, ...]:
    faults = _faults(strengths)
    scenarios = []
    next_fault = 0
    for task, variants in tasks.items():
        for number in range(counts[task]):
            variant = dict(variants[number % len(variants)])
            schedule = SCHEDULES[number % len(SCHEDULES)]
            forks = []
            for fork in range(num_forks):
                onset = round(num_reviews * (0.4 + 0.45 * ((next_fault * 7) % 11) / 10)) + fork
                forks.append(Forked(fault=faults[next_fault % len(faults)], onset_review=min(onset, num_reviews - 2)))
                next_fault += 1
            seed = first_seed + number
            scenarios.append(
                Scenario(
                    name=f"{split}/{task}/{number:02}/{schedule}",
                    task=task,
                    schedule=schedule,
                    mode=("local", "stale")[(number + number // len(SCHEDULES)) % 2],
                    slack=variant.pop("slack"),
                    num_workers=variant.pop("num_workers"),
                    batch_size=variant.pop("batch_size"),
                    rate=variant.pop("rate"),
                    momentum=variant.pop("momentum", 0.0),
                    options=variant,
                    seed=seed,
                    num_reviews=num_reviews,
                    forks=tuple(forks),
                )
            )
    return tuple(scenarios)


_LM = {"depth": 1, "num_heads": 2, "corpus_bytes": 200_000}
_TUNING = _catalogue(
    "tuning",
    {
        "quadratic": (
            {"noise": 1.0, "rate": 0.05, "batch_size": 32, "num_workers": 4, "slack": 3},
            {"noise": 1.0, "rate": 0.1, "batch_size": 4, "num_workers": 6, "slack": 1},
            {"noise": 0.3, "condition_number": 30.0, "rate": 0.05, "batch_size": 64, "num_workers": 4, "slack": 7},
        ),
        "digits": (
            {"rate": 0.1, "batch_size": 8, "num_workers": 4, "slack": 3},
            {"rate": 0.15, "batch_size": 16, "num_workers": 4, "slack": 1},
            {"rate": 0.05, "batch_size": 4, "num_workers": 4, "slack": 7},
        ),
        "stdlib_lm": (
            {**_LM, "context": 32, "width": 32, "rate": 2e-3, "batch_size": 8, "num_workers": 4, "slack": 3},
            {**_LM, "context": 16, "width": 32, "rate": 4e-3, "batch_size": 16, "num_workers": 4, "slack": 1},
        ),
    },
    counts={"quadratic": 12, "digits": 8, "stdlib_lm": 6},
    strengths={
        "rate": (10.0, 30.0, 100.0),
        "gradient": (50.0, 20.0),
        "loose": (8.0, 4.0, 16.0),
        "labels": (1.0, 0.7),
        "flip": (8.0, 20.0),
        "nan": (1.0, 0.5),
        "inputs": (10.0, 30.0),
        "noise": (50.0, 100.0),
    }.items(),
    num_forks=3,
    num_reviews=32,
    first_seed=100,
)
_MORE_STRENGTHS: Mapping[str, tuple[float, ...]] = {
    "rate": (5.0, 20.0, 50.0, 100.0),
    "gradient": (50.0, 30.0, 100.0),
    "loose": (6.0, 12.0, 3.0, 20.0),
    "labels": (1.0, 0.5),
    "flip": (10.0, 5.0, 30.0),
    "nan": (1.0, 0.6),
    "inputs": (20.0, 8.0),
    "noise": (70.0, 30.0),
}
_MORE_QUADRATIC: tuple[Mapping[str, Any], ...] = (
    {"noise": 1.0, "dimension": 64, "rate": 0.04, "batch_size": 32, "num_workers": 5, "slack": 2},
    {"noise": 0.5, "heterogeneity": 1.0, "rate": 0.05, "batch_size": 16, "num_workers": 8, "slack": 3},
    {"noise": 2.0, "condition_number": 20.0, "rate": 0.1, "batch_size": 6, "num_workers": 4, "slack": 1},
    {"noise": 1.0, "dimension": 16, "rate": 0.02, "batch_size": 64, "num_workers": 6, "slack": 7},
)
_MORE = _catalogue(
    "more",
    {
        "quadratic": _MORE_QUADRATIC,
        "digits": (
            {"rate": 0.12, "batch_size": 8, "num_workers": 4, "slack": 2},
            {"rate": 0.02, "momentum": 0.9, "batch_size": 8, "num_workers": 4, "slack": 1},
            {"rate": 0.05, "batch_size": 3, "num_workers": 5, "slack": 5},
            {"rate": 0.2, "batch_size": 16, "num_workers": 4, "slack": 3},
        ),
        "stdlib_lm": (
            {**_LM, "context": 24, "width": 48, "rate": 2e-3, "batch_size": 8, "num_workers": 4, "slack": 2},
            {**_LM, "context": 32, "width": 32, "rate": 3e-3, "batch_size": 12, "num_workers": 4, "slack": 5},
            {**_LM, "context": 24, "width": 32, "rate": 1e-3, "batch_size": 4, "num_workers": 6, "slack": 1},
        ),
    },
    counts={"quadratic": 20, "digits": 12, "stdlib_lm": 12},
    strengths=_MORE_STRENGTHS.items(),
    num_forks=3,
    num_reviews=32,
    first_seed=900,
) + _catalogue(
    "more_still",
    {"quadratic": _MORE_QUADRATIC},
    counts={"quadratic": 6},
    strengths=_MORE_STRENGTHS.items(),
    num_forks=3,
    num_reviews=32,
    first_seed=970,
)
_EARLIER = _catalogue(
    "earlier",
    {
        "quadratic": (
            {"noise": 1.0, "dimension": 48, "rate": 0.03, "batch_size": 24, "num_workers": 4, "slack": 3},
            {"noise": 0.7, "heterogeneity": 0.5, "rate": 0.06, "batch_size": 12, "num_workers": 6, "slack": 2},
            {"noise": 1.5, "condition_number": 15.0, "rate": 0.08, "batch_size": 8, "num_workers": 5, "slack": 1},
            {"noise": 1.0, "dimension": 24, "rate": 0.03, "batch_size": 48, "num_workers": 8, "slack": 5},
        ),
        "digits": (
            {"rate": 0.08, "batch_size": 8, "num_workers": 4, "slack": 3},
            {"rate": 0.03, "momentum": 0.8, "batch_size": 8, "num_workers": 4, "slack": 1},
            {"rate": 0.06, "batch_size": 4, "num_workers": 4, "slack": 7},
            {"rate": 0.15, "batch_size": 12, "num_workers": 4, "slack": 2},
        ),
        "stdlib_lm": (
            {**_LM, "context": 24, "width": 32, "rate": 2e-3, "batch_size": 8, "num_workers": 4, "slack": 3},
            {**_LM, "context": 32, "width": 48, "rate": 2e-3, "batch_size": 6, "num_workers": 4, "slack": 1},
            {**_LM, "context": 16, "width": 48, "rate": 3e-3, "batch_size": 12, "num_workers": 4, "slack": 2},
        ),
    },
    counts={"quadratic": 26, "digits": 12, "stdlib_lm": 12},
    strengths={
        "rate": (10.0, 30.0, 60.0, 100.0),
        "gradient": (40.0, 80.0, 100.0),
        "loose": (4.0, 8.0, 16.0),
        "labels": (1.0, 0.8),
        "flip": (15.0, 7.0, 25.0),
        "nan": (1.0, 0.7),
        "inputs": (15.0, 25.0),
        "noise": (60.0, 90.0),
    }.items(),
    num_forks=3,
    num_reviews=32,
    first_seed=3000,
)
TUNING = _TUNING + _MORE + _EARLIER
HELD_OUT = _catalogue(
    "held_out",
    {
        "quadratic": (
            {"noise": 1.0, "dimension": 40, "rate": 0.035, "batch_size": 20, "num_workers": 4, "slack": 4},
            {"noise": 0.8, "heterogeneity": 0.7, "rate": 0.05, "batch_size": 10, "num_workers": 5, "slack": 2},
            {"noise": 1.2, "condition_number": 25.0, "rate": 0.06, "batch_size": 12, "num_workers": 6, "slack": 1},
            {"noise": 0.6, "dimension": 80, "rate": 0.025, "batch_size": 40, "num_workers": 4, "slack": 6},
            {"noise": 1.5, "dimension": 20, "rate": 0.09, "batch_size": 5, "num_workers": 7, "slack": 3},
        ),
        "digits": (
            {"rate": 0.1, "batch_size": 6, "num_workers": 4, "slack": 4},
            {"rate": 0.04, "momentum": 0.7, "batch_size": 8, "num_workers": 4, "slack": 2},
            {"rate": 0.07, "batch_size": 5, "num_workers": 4, "slack": 6},
        ),
        "stdlib_lm": (
            {**_LM, "context": 20, "width": 32, "rate": 2.5e-3, "batch_size": 8, "num_workers": 4, "slack": 2},
            {**_LM, "context": 28, "width": 32, "rate": 1.5e-3, "batch_size": 6, "num_workers": 4, "slack": 4},
        ),
    },
    counts={"quadratic": 32, "digits": 10, "stdlib_lm": 8},
    strengths=(
        ("rate", (15.0, 40.0, 80.0)),
        ("loose", (5.0, 12.0)),
        ("gradient", (60.0, 35.0, 90.0)),
        ("labels", (1.0, 0.9)),
        ("loose", (9.0,)),
        ("flip", (12.0, 18.0, 9.0)),
        ("nan", (0.9, 0.8)),
        ("inputs", (12.0, 18.0, 30.0)),
        ("loose", (14.0, 6.0)),
        ("noise", (80.0, 50.0)),
    ),
    num_forks=3,
    num_reviews=32,
    first_seed=5000,
)
