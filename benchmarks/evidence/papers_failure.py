"""Asynchronous training at the undivided rate, which costs accuracy, and what does not: docs/evidence.md.

    python benchmarks/evidence/papers_failure.py run --set report
    python benchmarks/evidence/papers_failure.py show --set report
    python benchmarks/evidence/papers_failure.py run --set report --policies weightings --seeds 0,1,2

The source (Ovi, "Performance characterization of distributed deep learning strategies") trains with SGD, a rate of 0.01
and momentum 0.9 on four GPUs, and applies each gradient on arrival at that rate. Here the same optimizer trains the six
models of `paper_models` with four workers in the virtual world, 250 steps a worker. A run is a file, and is done once.
"""

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from families.problem import Rows
from paper_models import NUM_WORKERS, SETS, STEP_S, Model, draw
from plain import points_of
from torch.utils.data import DataLoader

from plesio.core.files import write_whole
from plesio.cost.cluster import Cluster
from plesio.cost.link import Link
from plesio.policies import parse_policy
from plesio.protocol.figures import RunInfo
from plesio.runtime.join import join
from plesio.runtime.join_options import JoinOptions
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from plesio.tasks.task import seeded

sys.path.insert(0, str(Path(__file__).parents[1]))
from record import mean_and_error, print_table, with_error

RATE, MOMENTUM = 0.01, 0.9
BATCH_SIZE, NUM_STEPS = 16, 250
LATENCY_S = 1e-4
SYNCHRONOUS = "bsp,exchange=store"
PAPERS = "asp,rate=undivided"
MODIFIED = "modified_async"
POLICIES: Mapping[str, Sequence[str]] = {
    "strategies": (SYNCHRONOUS, PAPERS, MODIFIED),
    "weightings": (f"{PAPERS},weight=inverse", "asp,weight=inverse"),
    "knobs": (
        "asp",
        "asp,weight=exp:0.05",
        "asp,weight=cap:8",
        "asp,period=2",
        "asp,update=delta",
        "ssp:4",
        "ssp:2,rate=undivided",
    ),
}
"""The policies that are reported, the effect of weighting alone, and the trials before `MODIFIED` was chosen."""
FOLDER = Path("runs/evidence/papers_failure")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The record of a run.

    Attributes:
        points: At the end: accuracy in percent, of the GRU the variance explained.
        time_s: Virtual seconds.
        staleness: Mean τ.
        cpu_s: Real seconds of processor time that it took.
    """

    points: float
    time_s: float
    staleness: float
    cpu_s: float


def run_trial(model: Model, *, policy: str, seed: int, num_steps: int = NUM_STEPS) -> Trial:
    """Train under a policy in the virtual world, for so many steps of every worker were they equally fast."""
    problem = model.problem()
    num_samples = NUM_WORKERS * BATCH_SIZE * num_steps
    num_bytes = sum(4 * parameter.numel() for parameter in problem.build().parameters())

    def work(job: VirtualJob) -> None:
        rank = job.place.rank
        with seeded(seed):
            network = problem.build()
        pacer = Pacer(
            step_time=model.step_time, speed=model.speeds[rank], seed=seed, worker=rank, clock=job.clock, began_s=0.0
        )
        session = join(
            network,
            torch.optim.SGD(network.parameters(), lr=RATE, momentum=MOMENTUM),
            policy=policy,
            total_samples=num_samples,
            options=JoinOptions(
                num_servers=1, snapshot_every=num_samples, pacer=pacer, info=RunInfo(seed=seed), job=job
            ),
        )
        with session:
            loader = DataLoader(
                Rows(problem.train), batch_size=BATCH_SIZE, shuffle=True, collate_fn=lambda batch: batch
            )
            for batch in session.shard(loader, samples=num_samples):
                loss = problem.loss(network, batch)
                loss.backward()  # type: ignore[no-untyped-call]
                session.step(loss)
            session.finish(lambda: points_of(problem, network))

    began_s = time.process_time()
    simulation = simulate(work, num_workers=NUM_WORKERS, cluster=_cluster(model, num_bytes=num_bytes), seed=seed)
    for outcome in simulation.outcomes.values():
        if outcome.error is not None:
            raise outcome.error
    [result] = simulation.runs
    assert result.final_metric is not None
    return Trial(
        points=result.final_metric,
        time_s=result.wall_s,
        staleness=result.staleness.mean,
        cpu_s=round(time.process_time() - began_s, 2),
    )


def _cluster(model: Model, *, num_bytes: int) -> Cluster:
    """Make a host for each worker; the parameters are on the first, whose link all share."""
    bytes_per_s = 2 * NUM_WORKERS * num_bytes / (model.exchange_share * STEP_S)
    nic = Link(latency_s=LATENCY_S, bytes_per_s=bytes_per_s)
    return Cluster(name="four hosts", hosts=NUM_WORKERS, workers_per_host=1, cores_per_host=2, racks=1, nic=nic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """Which runs."""

    set_name: str
    models: Sequence[Model]
    policies: Sequence[str]
    seeds: Sequence[int]
    num_steps: int

    def path(self, model: Model, policy: str, seed: int) -> Path:
        """Return the path of a run's file."""
        slug = policy.translate(str.maketrans(",:=", "---"))
        return FOLDER / self.set_name / f"{model.seed}-{slug}-{self.num_steps}-{seed}.json"

    def kept(self, model: Model, policy: str) -> list[Trial]:
        """Return the runs that are kept, by seed."""
        paths = [self.path(model, policy, seed) for seed in self.seeds]
        if missing := [path for path in paths if not path.exists()]:
            raise SystemExit(f"{missing[0]} is missing: do the runs first, with the same options")
        found = [json.loads(path.read_text()) for path in paths]
        return [Trial(**{name: one[name] for name in Trial.__slots__}) for one in found]


def _run(campaign: Campaign) -> None:
    runs = [(model, spec, seed) for seed in campaign.seeds for model in campaign.models for spec in campaign.policies]
    for number, (model, policy, seed) in enumerate(runs, start=1):
        path = campaign.path(model, policy, seed)
        if path.exists():
            continue
        trial = run_trial(model, policy=policy, seed=seed, num_steps=campaign.num_steps)
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = {"model": asdict(model), "policy": policy, "seed": seed, **asdict(trial)}
        write_whole(path, json.dumps(kept) + "\n")
        print(
            f"[{number}/{len(runs)}] {model.kind}, {model.spread}, {policy}, seed {seed}: {trial.points:.1f} points, "
            f"{trial.time_s:.2f} s ({trial.cpu_s:.1f} s of CPU)",
            flush=True,
        )


def _show(campaign: Campaign) -> None:
    """Print a table for each policy, the worst row first, over the seeds that have been run."""
    columns = ["model", "workers", "points", "to the synchronous server", "time / plain asynchronous", "τ"]
    for policy in campaign.policies:
        rows: list[tuple[float, list[str]]] = []
        for model in campaign.models:
            mine, synchronous, papers = (campaign.kept(model, spec) for spec in (policy, SYNCHRONOUS, PAPERS))
            points = [one.points for one in mine]
            difference, error = mean_and_error(
                [one.points - other.points for one, other in zip(mine, synchronous, strict=True)]
            )
            time_ratios = [one.time_s / other.time_s for one, other in zip(mine, papers, strict=True)]
            spread = statistics.stdev(points) if len(points) > 1 else math.nan
            cells = [
                model.kind,
                f"{model.spread}, cv {model.step_cv:g}",
                with_error(statistics.fmean(points), spread, ".1f"),
                with_error(difference, error, "+.1f"),
                f"{statistics.fmean(time_ratios):.2f}",
                f"{statistics.fmean(one.staleness for one in mine):.1f}",
            ]
            rows.append((difference, cells))
        title = f"`{policy}` (`{parse_policy(policy).spec}`)"
        print_table(title, columns=columns, rows=[cells for _, cells in sorted(rows)])


def _main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("action", choices=["run", "show"])
    parser.add_argument("--set", choices=list(SETS), default="report", dest="set_name")
    parser.add_argument("--kinds", default="", help="words, one of which a model's kind has; all if there are none")
    parser.add_argument("--policies", choices=list(POLICIES), default="strategies")
    parser.add_argument("--seeds", default="0,1,2,3,4", help="of the runs")
    parser.add_argument("--steps", type=int, default=NUM_STEPS, help="of a worker")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    words = arguments.kinds.split(",")
    campaign = Campaign(
        set_name=arguments.set_name,
        models=[it for it in map(draw, SETS[arguments.set_name]) if any(word in it.kind for word in words)],
        policies=POLICIES[arguments.policies],
        seeds=[int(seed) for seed in arguments.seeds.split(",")],
        num_steps=arguments.steps,
    )
    (_run if arguments.action == "run" else _show)(campaign)


if __name__ == "__main__":
    _main()
