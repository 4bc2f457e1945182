"""Records what `scenarios` lists, and reads it back: readings and true metrics, a JSON file a scenario.

A recording is made once and kept; after a change to scenarios or emulation, remove the folder.
"""

import dataclasses
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from emulation import Team
from scenarios import Scenario

from plesio.policies.adaptive.reading import GradientFigures, Reading
from plesio.tasks import Task, load_task

__all__ = ["Fork", "Recording", "Seen", "record_all"]

FOLDER = Path(__file__).parents[2] / "runs" / "divergences"
FORK_REVIEWS = 8


@dataclass(frozen=True, slots=True)
class Seen:
    """A review: what the guard is shown, and what it is not."""

    reading: Reading
    metric: float
    step_losses: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """What came after a fault."""

    kind: str
    strength: float
    onset_review: int
    fault_step: int
    after: tuple[Seen, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A healthy run and its forks."""

    name: str
    healthy: tuple[Seen, ...]
    forks: tuple[Fork, ...]


def record_all(scenarios: Sequence[Scenario]) -> list[Recording]:
    """All recordings, made now where there is none."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # after a collapse there is little else
    FOLDER.mkdir(parents=True, exist_ok=True)
    return [_read(_file_of(scenario)) for scenario in scenarios]


def _file_of(scenario: Scenario) -> Path:
    path = FOLDER / (scenario.name.replace("/", "-") + ".json")
    if not path.exists():
        started_s = time.process_time()
        path.write_text(json.dumps(_record(scenario)), encoding="utf-8")
        print(f"recorded {scenario.name} in {time.process_time() - started_s:.1f} s")
    return path


def _record(scenario: Scenario) -> dict[str, Any]:
    team = Team(_task_of(scenario), scenario.setting())
    for _ in range(scenario.pretraining_reviews):
        team.review(with_gradient=False)
    healthy, forks = [], []
    for review in range(scenario.num_reviews):
        for number, forked in enumerate(scenario.forks):
            if forked.onset_review == review:
                other = team.fork(forked.fault, worker_seed=scenario.seed * 13 + number * 5)
                after = [
                    _line(*other.review(with_gradient=later % 2 == 0)) for later in range(review, review + FORK_REVIEWS)
                ]
                fault = dataclasses.asdict(forked.fault)
                forks.append({**fault, "onset_review": review, "fault_step": other.fault_step, "after": after})
        healthy.append(_line(*team.review(with_gradient=review % 2 == 0)))
    return {"name": scenario.name, "healthy": healthy, "forks": forks}


def _task_of(scenario: Scenario) -> Task:
    """The task; a quadratic's metric is its objective: a share of the distance to the optimum says little."""
    task = load_task(scenario.task, **scenario.options)
    if scenario.task != "quadratic":
        return task
    least, suboptimality = scenario.options["noise"] ** 2 / 2, task.metric
    return dataclasses.replace(task, metric=lambda model: least + suboptimality(model))


def _line(reading: Reading, metric: float, step_losses: Sequence[float]) -> dict[str, Any]:
    return {**dataclasses.asdict(reading), "true_metric": metric, "step_losses": list(step_losses)}


def _read(path: Path) -> Recording:
    content = json.loads(path.read_text(encoding="utf-8"))
    forks = tuple(
        Fork(
            kind=fork["kind"],
            strength=fork["strength"],
            onset_review=fork["onset_review"],
            fault_step=fork["fault_step"],
            after=tuple(map(_seen, fork["after"])),
        )
        for fork in content["forks"]
    )
    return Recording(name=content["name"], healthy=tuple(map(_seen, content["healthy"])), forks=forks)


def _seen(line: dict[str, Any]) -> Seen:
    fields = dict(line)
    metric, step_losses = fields.pop("true_metric"), tuple(fields.pop("step_losses"))
    if fields["gradient"] is not None:
        fields["gradient"] = GradientFigures(**fields["gradient"])
    return Seen(Reading(**fields), -math.inf if math.isnan(metric) else metric, step_losses)
