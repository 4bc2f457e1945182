"""Policies on scenarios that nothing was tuned on: draw them, run them, and print the tables.

    python benchmarks/evidence/unseen.py list --set report                      # what the forty are
    python benchmarks/evidence/unseen.py run --set dev --first 0 --count 12 --policies bsp,adaptive --seeds 0,1,2
    python benchmarks/evidence/unseen.py run --set dev --count 12 --label after # with another version of Plesio
    python benchmarks/evidence/unseen.py show --set dev --count 12 --labels main,after

`--policies` splits at commas before a name; `statics` stands for the twelve of settings.py. Files are kept in
runs/evidence/unseen (`campaign`): what is there is not done again, also after Ctrl-C.
"""

import argparse
import os
import sys
from pathlib import Path

from campaign import Campaign, run_campaign
from plain import OPTIMIZERS
from scenario import SETS, Scenario, draw
from settings import STATICS
from verdicts import rows_of, show, show_alone

from plesio.cli.compare import split_policies
from plesio.core.errors import PolicySpecError
from plesio.policies import parse_policy

sys.path.insert(0, str(Path(__file__).parents[1]))
from record import print_table

OUT = Path(__file__).parents[2] / "runs" / "evidence" / "unseen"


def show_list(scenarios: list[Scenario]) -> None:
    rows = [
        [
            f"{it.name} ({it.difficulty:.2f})",
            f"{it.optimizer}, {it.schedule}, x{it.rate_factor:g}{f', {it.more}' if it.more else ''}",
            f"{it.num_workers}, {it.batch_size}, {it.num_steps}",
            f"{1e3 * it.step_s:.0f} ms",
            it.stragglers,
            f"{it.exchange_share:.2f}",
            f"{it.nic_bytes_per_s * 8e-6:.0f} Mbit/s, {it.nominal_bytes / 1e6:.2g} MB"
            f"{f', {it.racks} racks' if it.racks > 1 else ''}{', changes' if it.link_changes else ''}",
        ]
        for it in scenarios
    ]
    columns = ["scenario", "optimizer, schedule, rate", "workers, batch, steps", "step", "stragglers"]
    print_table("", columns=[*columns, "exchange / step", "link"], rows=rows)
    print(f"{sum(it.nothing_to_gain for it in scenarios)} of {len(scenarios)} have nothing to gain")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["list", "run", "show"])
    parser.add_argument("--set", choices=list(SETS), default="dev", dest="set_name")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="scenarios before it are left out (0)")
    parser.add_argument("--count", type=int, default=100, metavar="N", help="scenarios at most (all)")
    parser.add_argument("--policies", default="bsp,adaptive", help="(bsp,adaptive)")
    parser.add_argument("--seeds", default="0,1,2", help="(0,1,2)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at a time (1)")
    parser.add_argument("--label", default="main", help="folder of these runs (main)")
    parser.add_argument("--labels", metavar="A,B", help="show: a table for each of these in place of --label")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    seeds = SETS[arguments.set_name][arguments.first : arguments.first + arguments.count]
    scenarios = [it for it in map(draw, seeds) if it.optimizer in OPTIMIZERS]  # older torch has no Muon
    if not scenarios:
        parser.error(f"--first {arguments.first}: {arguments.set_name} has {len(SETS[arguments.set_name])} scenarios")
    if arguments.command == "list":
        show_list(scenarios)
        return
    texts = arguments.policies.replace("statics", ",".join(STATICS))
    try:
        policies = list(dict.fromkeys(parse_policy(text).spec for text in split_policies(texts)))
    except PolicySpecError as error:
        parser.error(f"--policies: {error}")
    for label in (arguments.labels or arguments.label).split(","):
        campaign = Campaign(
            folder=OUT,
            label=label,
            set_name=arguments.set_name,
            scenarios=scenarios,
            policies=policies,
            seeds=[int(seed) for seed in arguments.seeds.split(",")],
        )
        if arguments.command == "run":
            try:
                run_campaign(campaign, num_jobs=arguments.jobs)
            except KeyboardInterrupt:
                raise SystemExit("interrupted; the same command goes on from here") from None
        for policy in campaign.policies:
            if policy != "bsp" and (rows := rows_of(campaign, policy=policy)):
                print(f"\n`{policy}` ({label})\n")
                show(rows)
        show_alone(campaign)


if __name__ == "__main__":
    main()
