"""Adaptive against static policies in twelve scenarios: two tasks, two networks, three kinds of stragglers.

A policy that steps in rounds is trained once per task and seed, and only timed in each scenario (`stand_in`): what it
trains does not depend on time, which ``run.py check`` holds to the bit. Adaptive and what goes by the store are trained
in each. Seeds are done one after another, and a static whose mean time to the target is then over `DROPPED` times the
best static's is not gone on with: it is no candidate for the best. On slow links the store's policies run for digits
alone, where they turn out to be none: every exchange of theirs sends as many bytes as an all-reduce, and more often.
"""

import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from settings import NETWORKS, SEEDS, STATICS, STRAGGLERS, TASKS, make

from plesio.bench.recipe import Recipe
from plesio.bench.setting import timed_to
from plesio.core.results import RunResult
from plesio.policies import parse_policy

sys.path.insert(0, str(Path(__file__).parents[1]))
from record import print_table

__all__ = ["NAMES", "Scenario", "check_timed", "run_scenarios", "show_scenarios"]

DROPPED = 1.5
NAMES = tuple(f"{task}-{network}-{stragglers}" for task in TASKS for network in NETWORKS for stragglers in STRAGGLERS)
SERVERS_ON_FAST_LINKS = 4
"""Servers where links are no bottleneck, on as many of the 16 hosts: fewer messages to model."""
Do = Callable[[str, Recipe], Mapping[str, Sequence[RunResult]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Seconds to the target, by policy and then in the order of the seeds; inf where a run does not get there."""

    name: str
    to_target_s: dict[str, list[float]]

    def mean_s(self, policy: str) -> float:
        """Mean over the seeds that were done."""
        return statistics.fmean(self.to_target_s[policy])

    @property
    def best(self) -> str:
        """The static policy with the least mean."""
        return min((policy for policy in self.to_target_s if policy != "adaptive"), key=self.mean_s)

    def against(self, policy: str) -> float:
        """Adaptive's mean over this policy's, of the seeds that both have."""
        own, other = self.to_target_s["adaptive"], self.to_target_s[policy]
        return statistics.fmean(own[: len(other)]) / statistics.fmean(other) if math.isfinite(sum(other)) else 0.0


def run_scenarios(names: Sequence[str], *, num_seeds: int, do: Do) -> list[Scenario]:
    """Do the runs, a seed at a time in all scenarios, so that a table can be had early."""
    tables: dict[str, dict[str, list[float]]] = {name: {} for name in names}
    racing = {name: [*_statics(name), "adaptive"] for name in names}
    for seed in SEEDS[:num_seeds]:
        for name in names:
            for policy in racing[name]:
                tables[name].setdefault(policy, []).append(_to_target_s(name, policy, seed=seed, do=do))
            racing[name] = _still_racing(Scenario(name=name, to_target_s=tables[name]), racing[name])
    return [Scenario(name=name, to_target_s=table) for name, table in tables.items()]


def _statics(name: str) -> list[str]:
    by_store = {policy for policy in STATICS if parse_policy(policy).exchange == "store"}
    left_out = by_store if "-slow-" in name and name != "digits-slow-equal" else set()
    return [policy for policy in STATICS if policy not in left_out]


def _still_racing(scenario: Scenario, racing: Sequence[str]) -> list[str]:
    limit_s = DROPPED * scenario.mean_s(scenario.best)
    return [policy for policy in racing if policy in ("bsp", "adaptive") or scenario.mean_s(policy) <= limit_s]


def _to_target_s(name: str, policy: str, *, seed: int, do: Do) -> float:
    [run] = (_timed if _ignores_time(policy) else _trained)(name, policy, seed=seed, do=do)
    return math.inf if run.time_to_target_s is None else run.time_to_target_s


def _ignores_time(policy: str) -> bool:
    parsed = parse_policy(policy)
    return parsed.exchange == "collective" and not parsed.adapts


def _recipe(name: str, policy: str, *, seed: int) -> Recipe:
    task, network, stragglers = name.split("-")
    recipe = make(task, network=network, stragglers=stragglers, policies=[policy], seeds=[seed], short=True)
    if network == "fast" and parse_policy(policy).exchange == "store":
        return recipe.model_copy(update={"run": recipe.run.model_copy(update={"servers": SERVERS_ON_FAST_LINKS})})
    return recipe


def _trained(name: str, policy: str, *, seed: int, do: Do) -> Sequence[RunResult]:
    recipe = _recipe(name, policy, seed=seed)
    folder = "store" if parse_policy(policy).exchange == "store" else "collective"
    return do(f"scenarios/{name}/{folder}", recipe)[policy]


def _timed(name: str, policy: str, *, seed: int, do: Do) -> list[RunResult]:
    recipe = _recipe(name, policy, seed=seed)
    [task, *_] = name.split("-")
    [trained] = do(f"scenarios/{task}-trained", _recipe(f"{task}-fast-equal", policy, seed=seed))[policy]
    options = {"of": recipe.task.name, **recipe.task.options}
    hollow = recipe.task.model_copy(update={"name": "stand_in:stand_in", "options": options})
    [timed] = do(f"scenarios/{name}/timed", recipe.model_copy(update={"task": hollow}))[policy]
    pairs = list(zip(trained.evaluations, timed.evaluations, strict=True))
    assert all(one.samples == other.samples for one, other in pairs), "evaluated after the same samples"
    evaluations = tuple(replace(other, metric=one.metric) for one, other in pairs)
    whole = replace(
        timed, evaluations=evaluations, metric_goal=trained.metric_goal, final_metric=trained.final_metric, target=None
    )
    return [timed_to(whole, trained.target)]


def check_timed(name: str, policy: str, *, seed: int, do: Do) -> None:
    """Train a policy in a scenario, too, and compare with what was put together.

    Raises:
        AssertionError: They differ.
    """
    [real], [timed] = _trained(name, policy, seed=seed, do=do), _timed(name, policy, seed=seed, do=do)
    assert real.evaluations == timed.evaluations, (real.evaluations, timed.evaluations)
    print(f"{name}, {policy}: all {len(real.evaluations)} evaluations and their times are the same")


def show_scenarios(scenarios: Sequence[Scenario]) -> None:
    """Print the verdicts, and every policy's seconds with the number of its seeds."""
    print_table(
        "",
        columns=["scenario", "best static", "its time to target", "adaptive", "against the best", "against bsp"],
        rows=[
            [
                it.name,
                f"`{it.best}`",
                f"{it.mean_s(it.best):.2f} s",
                f"{it.mean_s('adaptive'):.2f} s",
                f"{it.against(it.best):.2f}",
                f"{it.against('bsp'):.2f}",
            ]
            for it in scenarios
        ],
    )
    rows = []
    for policy in [*STATICS, "adaptive"]:
        cells = [
            f"{it.mean_s(policy):.2f} ({len(it.to_target_s[policy])})" if policy in it.to_target_s else "-"
            for it in scenarios
        ]
        rows.append([f"`{policy}`", *cells])
    print_table("", columns=["", *(it.name for it in scenarios)], rows=rows)
