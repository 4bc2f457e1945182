"""Records what `scenarios` lists, and reads it back: what was seen, done and the true metrics, a JSON file a scenario.

A recording is made once and kept; after a change to scenarios, emulation or guard, remove the folder.
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
from scenarios import Forked, Scenario

from plesio.policies.adaptive.config.guard import GuardConfig
from plesio.policies.adaptive.readings.reading import GradientFigures, Reading
from plesio.tasks import Task, load_task

__all__ = ["Branch", "Fork", "Recording", "Seen", "record_all"]

FOLDER = Path(__file__).parents[2] / "runs" / "divergences"
FORK_REVIEWS = 8


@dataclass(frozen=True, slots=True)
class Seen:
    """A review: what the guard was shown and said, and what it was not shown."""

    reading: Reading
    metric: float
    alarm: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """Reviews in succession, and the steps in which a gradient was scaled down or the rate held."""

    reviews: tuple[Seen, ...]
    clipped: tuple[int, ...]
    held: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """The outcomes of a fault without a guard and with it."""

    kind: str
    strength: float
    onset_review: int
    fault_step: int
    alone: Branch
    guarded: Branch


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A healthy run, which is guarded, and its forks."""

    name: str
    healthy: Branch
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
        print(f"recorded {scenario.name} in {time.process_time() - started_s:.1f} s", flush=True)
    return path


def _record(scenario: Scenario) -> dict[str, Any]:
    team = Team(_task_of(scenario), scenario.setting(), config=GuardConfig())
    for number in range(scenario.pretraining_reviews):
        team.train(with_gradient=number % 2 == 0)
    healthy, forks = [], []
    for review in range(scenario.num_reviews):
        for number, forked in enumerate(scenario.forks):
            if forked.onset_review == review:
                forks.append(_fork(team, forked, worker_seed=scenario.seed * 13 + number * 5))
        healthy.append(_review(team, review))
    return {"name": scenario.name, "healthy": _branch(team, healthy), "forks": forks}


def _fork(team: Team, forked: Forked, *, worker_seed: int) -> dict[str, Any]:
    fork: dict[str, Any] = {**dataclasses.asdict(forked.fault), "onset_review": forked.onset_review}
    for name, guarded in (("alone", False), ("guarded", True)):
        other = team.fork(forked.fault, worker_seed=worker_seed, guarded=guarded)
        lines = [_review(other, forked.onset_review + later) for later in range(FORK_REVIEWS)]
        fork |= {"fault_step": other.fault_step, name: _branch(other, lines)}
    return fork


def _review(team: Team, number: int) -> dict[str, Any]:
    reading = team.train(with_gradient=number % 2 == 0)
    metric = team.metric()  # before anybody goes back
    alarm = None if team.watch is None else team.answer(reading)
    return {**dataclasses.asdict(reading), "true_metric": metric, "alarm": alarm}


def _branch(team: Team, lines: list[dict[str, Any]]) -> dict[str, Any]:
    watch = team.watch
    clipped = [] if watch is None else [step for step, _ in watch.clipped]
    return {"reviews": lines, "clipped": clipped, "held": [] if watch is None else watch.held}


def _task_of(scenario: Scenario) -> Task:
    """Make the task; a quadratic's metric is its objective: a share of the distance to the optimum tells little."""
    task = load_task(scenario.task, **scenario.options)
    if scenario.task != "quadratic":
        return task
    least, suboptimality = scenario.options["noise"] ** 2 / 2, task.metric
    return dataclasses.replace(task, metric=lambda model: least + suboptimality(model))


def _read(path: Path) -> Recording:
    content = json.loads(path.read_text(encoding="utf-8"))
    forks = tuple(
        Fork(**{**fork, "alone": _read_branch(fork["alone"]), "guarded": _read_branch(fork["guarded"])})
        for fork in content["forks"]
    )
    return Recording(name=content["name"], healthy=_read_branch(content["healthy"]), forks=forks)


def _read_branch(content: dict[str, Any]) -> Branch:
    reviews = tuple(map(_seen, content["reviews"]))
    return Branch(reviews=reviews, clipped=tuple(content["clipped"]), held=tuple(content["held"]))


def _seen(line: dict[str, Any]) -> Seen:
    fields = dict(line)
    metric, alarm = _known(fields.pop("true_metric")), fields.pop("alarm")
    if fields["gradient"] is not None:
        fields["gradient"] = GradientFigures(**fields["gradient"])
    return Seen(Reading(**fields), metric, alarm)


def _known(metric: float) -> float:
    return -math.inf if math.isnan(metric) else metric
