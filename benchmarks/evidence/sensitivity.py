"""Halve and double each number of `adaptive` on development scenarios, and show what comes of it.

    python benchmarks/evidence/sensitivity.py --scenarios 13,14,24

A scenario is run once, and its log replayed with each number halved and doubled: only where a decision differs is the
scenario run anew. Files are kept in runs/evidence/unseen, as those of unseen.py.
"""

import argparse
import math
import os
import statistics
import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path

from campaign import Campaign
from scenario import Scenario, draw
from trial import run_trial
from unseen import OUT

from plesio.core.errors import PolicySpecError
from plesio.policies import parse_policy
from plesio.policies.adaptive.numbers import Numbers
from plesio.policies.events import Action, Steer
from plesio.policies.replay import EventLog, read_log

sys.path.insert(0, str(Path(__file__).parents[1]))
from record import print_table

SEED = 0
FACTORS = (0.5, 2.0)


def variants() -> Iterator[tuple[float, str]]:
    """Yield a factor, and the policy with one number times it; none beyond the number's limits."""
    default = Numbers()
    for field in fields(Numbers):
        value = getattr(default, field.name)
        for factor in FACTORS:
            changed = type(value)(value * factor)
            if changed == value:
                changed += factor > 1
            try:
                yield factor, parse_policy(f"adaptive,{field.name}={changed}").spec
            except PolicySpecError:
                continue


def departs(log: EventLog, policy: str) -> bool:
    """Return True if ``policy`` decides otherwise than the log somewhere; reasons and figures do not count."""
    machine = parse_policy(policy).start(clock=log.clock)
    return any(
        _decided(machine.handle(entry.event)) != _decided(entry.actions) for entry in log.entries[: log.num_whole]
    )


def _decided(actions: Iterable[Action]) -> list[tuple[object, ...]]:
    return [
        (it.clock, it.policy, it.shares, it.next_review, it.next_clock, it.keep, it.restore)
        for it in actions
        if isinstance(it, Steer)
    ]


def run_scenario(campaign: Campaign, scenario: Scenario) -> None:
    """Run a scenario, and again for each number that changes a decision of it; the others have the same file."""
    folder, plain = campaign.path(scenario, "adaptive", SEED).parent / "trace", campaign.tuned(scenario)
    for policy, trace in (("bsp", None), ("adaptive", folder)):
        if campaign.trial(scenario, policy, SEED) is None or (trace is not None and not trace.exists()):
            campaign.keep(run_trial(scenario, plain, policy=policy, seed=SEED, trace=trace), scenario, policy, SEED)
    own, log = campaign.trial(scenario, "adaptive", SEED), read_log(folder / "events.jsonl")
    assert own is not None, "it was kept"
    for _, policy in variants():
        if campaign.trial(scenario, policy, SEED) is not None:
            continue
        anew = departs(log, policy)
        trial = run_trial(scenario, plain, policy=policy, seed=SEED) if anew else own
        campaign.keep(trial, scenario, policy, SEED)
        print(f"{scenario.name}: {policy}: {'run' if anew else 'the same decisions'}", flush=True)


def show(campaign: Campaign) -> None:
    """Print what each number comes to over all scenarios."""
    rows = []
    for factor, policy in [(1.0, "adaptive"), *variants()]:
        times, points, changed = [], [], 0
        for scenario in campaign.scenarios:
            found, bsp = (campaign.outcome(scenario, it, SEED) for it in (policy, "bsp"))
            own, other = (campaign.trial(scenario, it, SEED) for it in ("adaptive", policy))
            if found is None or bsp is None or own is None or other is None:
                continue
            times.append(found.to_target_s / bsp.to_target_s)
            points.append(found.final - bsp.final)
            changed += other.decisions != own.decisions
        if times:
            mean = math.exp(statistics.fmean(map(math.log, times)))
            figures = [f"{mean:.3f}", f"{max(times):.2f}", f"{statistics.fmean(points):.2f}", f"{min(points):.1f}"]
            rows.append([policy, f"{factor:g}", f"{changed} of {len(times)}", *figures])
    columns = ["policy", "times", "decides otherwise in", "time / bsp", "worst", "points - bsp", "worst"]
    print_table("", columns=columns, rows=rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", default="11,13,14,19,24,62,77,81", help="seeds, of the set dev (%(default)s)")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    scenarios = [draw(int(seed)) for seed in arguments.scenarios.split(",")]
    campaign = Campaign(
        folder=OUT,
        label="sensitivity",
        set_name="dev",
        scenarios=scenarios,
        policies=("bsp", "adaptive"),
        seeds=(SEED,),
    )
    for scenario in scenarios:
        run_scenario(campaign, scenario)
        show(campaign)


if __name__ == "__main__":
    main()
