"""Do the runs of many scenarios: each run in one process of a pool, kept as a file, and not done again.

    <folder>/tuning/<scenario>.json                        what plain runs say (`tuning`)
    <folder>/<label>/<set>/<scenario>/<policy>-<seed>.json  one run (`trial`)

A file holds the hash of its scenario, and a scenario whose hash has changed is done again. Seeds are done one after the
other over all scenarios. A static whose time to the target with the first seed is over `DROPPED` times the best
static's, or that does not get there, is not gone on with: it is no candidate for the best.
"""

import json
import math
import multiprocessing
import re
import signal
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import torch
from scenario import Scenario
from smooth import seconds_to, smoothed
from trial import Trial, run_trial
from tuning import Tuned, tuned

from plesio.core.files import write_whole
from plesio.policies import parse_policy

DROPPED = 1.5
FLOOR = 0.0
"""Points of a run that broke down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The figures of a run that count.

    Attributes:
        to_target_s: Virtual seconds, off the smoothed curve; inf if it does not get there.
        final: Points at the end, off the smoothed curve; FLOOR of a run that was not finished.
    """

    to_target_s: float
    final: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """Which runs.

    Attributes:
        label: Of the version of Plesio that runs.
        scenarios: In the order of their seeds.
    """

    folder: Path
    label: str
    set_name: str
    scenarios: Sequence[Scenario]
    policies: Sequence[str]
    seeds: Sequence[int]

    def path(self, scenario: Scenario, policy: str, seed: int) -> Path:
        """Return the path of a run's file."""
        slug = re.sub(r"[^A-Za-z0-9_.+]+", "-", policy)
        return self.folder / self.label / self.set_name / scenario.name / f"{slug}-{seed}.json"

    def tuned(self, scenario: Scenario) -> Tuned:
        """Return the findings of plain runs; they are done now if they have not been."""
        return tuned(scenario, folder=self.folder / "tuning")

    def trial(self, scenario: Scenario, policy: str, seed: int) -> Trial | None:
        """Return a run that is kept; None if there is none of this scenario as it is now."""
        path = self.path(scenario, policy, seed)
        if not path.exists():
            return None
        trial = Trial(**json.loads(path.read_text()))
        return trial if trial.hash == scenario.hash else None

    def keep(self, trial: Trial, scenario: Scenario, policy: str, seed: int) -> None:
        """Write a run's file."""
        path = self.path(scenario, policy, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(trial.to_json()) + "\n")

    def outcome(self, scenario: Scenario, policy: str, seed: int) -> Outcome | None:
        """Return the outcome of a run that is kept; None, too, if the scenario cannot be run under the policy."""
        trial = self.trial(scenario, policy, seed)
        return _outcome(trial, self.tuned(scenario)) if trial is not None and trial.available else None


def kept_outcomes(campaign: Campaign, scenario: Scenario, policy: str) -> dict[int, Outcome]:
    """Return the outcomes of the runs that are kept, by seed."""
    found = {seed: campaign.outcome(scenario, policy, seed) for seed in campaign.seeds}
    return {seed: outcome for seed, outcome in found.items() if outcome is not None}


def _outcome(trial: Trial, plain: Tuned) -> Outcome:
    if trial.status != "finished" or len(trial.points) < 2:
        return Outcome(to_target_s=math.inf, final=FLOOR)
    return Outcome(
        to_target_s=seconds_to(plain.target, trial.samples, trial.seconds, trial.points),
        final=max(FLOOR, float(smoothed(trial.samples, trial.points)[-1])),
    )


def run_campaign(campaign: Campaign, *, num_jobs: int) -> None:
    """Do what is missing; Ctrl-C keeps what is finished."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(num_jobs, mp_context=context, initializer=_begin)
    try:
        _await({pool.submit(campaign.tuned, it): f"{it.name}: plain runs" for it in campaign.scenarios})
        for seed in campaign.seeds:
            futures = {}
            for scenario in campaign.scenarios:
                for policy in _racing(campaign, scenario, seed):
                    if campaign.trial(scenario, policy, seed) is None:
                        future = pool.submit(_run, campaign, scenario, policy, seed)
                        futures[future] = f"{scenario.name}: {policy}, seed {seed}"
            _await(futures)
    except BaseException:
        for process in list(pool._processes.values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """In a process of the pool: Ctrl-C is the parent's, who ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


def _await(futures: dict[Future[object], str]) -> None:
    for number, future in enumerate(as_completed(futures), start=1):
        found = future.result()
        print(f"[{number}/{len(futures)}] {futures[future]}: {found if isinstance(found, str) else 'done'}", flush=True)


def _run(campaign: Campaign, scenario: Scenario, policy: str, seed: int) -> str:
    """Do one run and keep it; returns what to say of it."""
    began_s = time.process_time()
    plain = campaign.tuned(scenario)
    trial = run_trial(scenario, plain, policy=policy, seed=seed)
    campaign.keep(trial, scenario, policy, seed)
    if not trial.available:
        return trial.status
    outcome = _outcome(trial, plain)
    return (
        f"{trial.status}, {outcome.to_target_s:.2f} of {trial.wall_s:.2f} s to {plain.target:.1f} points, "
        f"final {outcome.final:.1f} ({time.process_time() - began_s:.1f} s of CPU)"
    )


def _racing(campaign: Campaign, scenario: Scenario, seed: int) -> Iterable[str]:
    """Choose the policies to go on with in a scenario."""
    first = campaign.seeds[0]
    if seed == first:
        return campaign.policies
    times_s = {}
    for policy in campaign.policies:
        outcome = campaign.outcome(scenario, policy, first)
        if outcome is not None:
            times_s[policy] = outcome.to_target_s
    best_s = min((time_s for policy, time_s in times_s.items() if not parse_policy(policy).adapts), default=math.inf)
    return [
        policy
        for policy in campaign.policies
        if policy == "bsp" or parse_policy(policy).adapts or times_s.get(policy, math.inf) <= DROPPED * best_s
    ]
