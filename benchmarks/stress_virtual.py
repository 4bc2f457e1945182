"""Does an elastic run of the virtual world go on, whoever is lost or joins, whatever links and gradients are like?

    python benchmarks/stress_virtual.py [--runs 400] [--seed 0] [--policies "adaptive local_sgd:4"]
    python benchmarks/stress_virtual.py --only 126

Each run is drawn by chance: one to eight workers, flat or in racks, links from 0.1 MB/s to 1 GB/s, one of five
optimizers, switches of `adaptive` turned off, a worker whose losses or gradients are no numbers or far too large for
a while, and up to three workers that are lost or join at any time after the first step. A run must end by itself and
finish, its log must replay, parameters must be finite, and replicas that have met in collectives equal. It is done a
first time without faults, which says when the first step is over.

Prints every run that went otherwise and the command that repeats it; writes benchmarks/results/stress_virtual.json. It
ends with status 1 unless all went as it should.
"""

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from rich.progress import track
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).parents[1] / "packages" / "plesio" / "tests"))

import plesio
from arguments import at_least, policy_texts
from plesio.core.errors import TransportError
from plesio.cost.cluster import Cluster
from plesio.cost.faults import Fault
from plesio.cost.link import Link
from plesio.cost.step_time import LogNormal, Stalls, StepTime
from plesio.policies import parse_policy, read_log, verify
from plesio.protocol.figures import RunInfo
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import Simulation, SimulationProgress, simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from record import print_verdict, save
from support.problems import Problem, perceptron
from support.workers import cluster_of_racks

MOST_S = 10_000.0
"""Most virtual time; a run takes some ten seconds, and hundreds over the slowest links."""
MOST_APART = 1e-9
"""Largest distance of replicas at the end, as a share of the largest parameter: rank 0 has their rounded mean."""
BATCH_SIZE = 4
SWITCHES = ("store", "compress", "balance", "racks", "guard")
RACKS = ((), (2, 2), (2, 1), (3, 2), (2, 2, 2), (3, 3, 1), (4, 4), (2, 2, 1))
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.05),
    "momentum": partial(torch.optim.SGD, lr=0.02, momentum=0.9),
    "adam": partial(torch.optim.Adam, lr=0.003),
    "adamw": partial(torch.optim.AdamW, lr=0.003),
    "adagrad": partial(torch.optim.Adagrad, lr=0.05),
}


@dataclass(frozen=True, kw_only=True)
class Spoilt:
    """A worker's bad steps for a while."""

    worker: int
    since: int
    num_steps: int
    how: str

    def at(self, rank: int, clock: int) -> str:
        """How this step of this worker is spoilt; empty if it is not."""
        return self.how if rank == self.worker and self.since <= clock < self.since + self.num_steps else ""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run."""

    policy: str
    racks: tuple[int, ...]
    num_workers: int
    nic_bytes_per_s: float
    uplink_bytes_per_s: float
    hidden: int
    optimizer: str
    loops: int
    num_samples: int
    steps: tuple[StepTime, ...]
    spoilt: Spoilt | None
    faults: tuple[Fault, ...]
    """Their times are shares of the time between the first step and the end, until a run without faults says more."""

    @property
    def cluster(self) -> Cluster:
        """The cluster of its run."""
        nic = Link(latency_s=50e-6, bytes_per_s=self.nic_bytes_per_s)
        if not self.racks:
            hosts = self.num_workers
            return Cluster(name="flat", hosts=hosts, workers_per_host=1, cores_per_host=1, racks=1, nic=nic)
        return cluster_of_racks(self.racks, nic=nic, uplink=Link(latency_s=1e-4, bytes_per_s=self.uplink_bytes_per_s))


def random_case(number: int, *, seed: int, policies: Sequence[str]) -> Case:
    """Draw the ``number``-th case of the campaign with this seed."""
    rng = random.Random(f"{seed} {number}")
    policy = rng.choice(policies)
    if policy == "adaptive":
        policy += "".join(f",{name}=off" for name in SWITCHES if rng.random() < 0.3)
        policy += ",warm_up=0" if rng.random() < 0.5 else ""
        policy += ",price=0,store_price=0" if rng.random() < 0.5 else ""
    racks = rng.choice(RACKS)
    num_workers = sum(racks) or rng.choice([1, 2, 3, 4, 6])
    steps: list[StepTime] = [
        LogNormal(mean_s=0.02 * rng.choice([1, 1, 1, 3]), cv=rng.choice([0.05, 0.5])) for _ in range(num_workers + 3)
    ]
    if rng.random() < 0.3:
        steps[0] = Stalls(steps=steps[0], probability=0.1, factor=6.0)
    how = rng.choice(["", "", "loss", "gradient", "large"])
    spoilt = Spoilt(
        worker=rng.randrange(num_workers), since=rng.randrange(5, 60), num_steps=rng.choice([1, 4, 1000]), how=how
    )
    lost = rng.sample(range(num_workers), k=min(num_workers - 1, rng.choice([0, 0, 1, 1, 2])))
    faults = [Fault(at_s=rng.random(), kind="lose", worker=worker) for worker in lost]
    faults += [Fault(at_s=rng.random(), kind="join") for _ in range(rng.choice([0, 0, 1, 2]))]
    return Case(
        policy=policy,
        racks=racks,
        num_workers=num_workers,
        nic_bytes_per_s=rng.choice([1e5, 1e6, 1e7, 1e9]),
        uplink_bytes_per_s=rng.choice([1e5, 3e5, 2e6, 1e8]),
        hidden=rng.choice([6, 300, 1000]),
        optimizer=rng.choice(list(OPTIMIZERS)),
        loops=rng.choice([1, 3]),
        num_samples=rng.choice([240, 600]),
        steps=tuple(steps),
        spoilt=spoilt if how else None,
        faults=tuple(sorted(faults, key=lambda fault: fault.at_s)),
    )


def train(case: Case, job: VirtualJob, *, trace: Path, began_s: list[float]) -> list[torch.Tensor]:
    """One worker's training; what its parameters are at the end. ``began_s`` takes the end of its first step."""
    rank, data = job.place.rank, Problem(case.num_samples, 5)
    pacer = Pacer(step_time=case.steps[rank % len(case.steps)], seed=5, worker=rank, clock=job.clock)
    model = perceptron(5, case.hidden)
    optimizer = OPTIMIZERS[case.optimizer](model.parameters())
    options = plesio.JoinOptions(pacer=pacer, info=RunInfo(seed=7))
    with plesio.join(model, optimizer, policy=case.policy, trace=trace, options=options) as session:
        for _ in range(case.loops):
            for _, x, y in session.shard(DataLoader(data, batch_size=BATCH_SIZE, shuffle=True)):
                how = "" if case.spoilt is None else case.spoilt.at(rank, session.clock)
                loss = (model(x) - y).square().mean() * {"loss": torch.nan, "large": 1e4}.get(how, 1.0)
                loss.backward()
                if how == "gradient":
                    next(parameter.grad for parameter in model.parameters() if parameter.grad is not None).fill_(
                        torch.nan
                    )
                session.step(loss)
                if session.clock == 1:
                    began_s.append(job.clock.now_s())
    return [parameter.detach().clone() for parameter in model.parameters()]


def run(case: Case, *, trace: Path) -> tuple[Simulation[list[torch.Tensor]], float]:
    """Run the case, with its faults at the given seconds; and return the moment when all had made their first step."""
    began_s: list[float] = []
    late: list[SimulationProgress] = []

    def stop(progress: SimulationProgress) -> bool:
        late.extend([progress] if progress.virtual_s > MOST_S else [])
        return bool(late)

    main = partial(train, case, trace=trace, began_s=began_s)
    try:
        simulation = simulate(main, num_workers=case.num_workers, cluster=case.cluster, faults=case.faults, stop=stop)
    except KeyboardInterrupt:  # which is how workers are stopped, too
        if not late:
            raise
    if late:
        raise TimeoutError(f"it was not over after {MOST_S:g} s of virtual time: {late[0]}")
    return simulation, max(began_s)


def timed(case: Case, *, trace: Path) -> Case:
    """Return the same with the times of its faults in seconds, all of them after the first step."""
    simulation, begin_s = run(replace(case, faults=()), trace=trace)
    rest_s = simulation.virtual_s - begin_s
    return replace(case, faults=tuple(replace(fault, at_s=begin_s + fault.at_s * rest_s) for fault in case.faults))


def _distance(mine: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    """Return the largest difference of two numbers, as a share of the largest number."""
    apart = max(float((a - b).abs().max()) for a, b in zip(mine, other, strict=True))
    return apart / max(float(a.abs().max()) for a in mine)


def problem_of(case: Case) -> tuple[str, list[str]]:
    """Describe what went wrong, empty if nothing did; and return the policies that were in force."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder)
        try:
            simulation, _ = run(timed(case, trace=trace) if case.faults else case, trace=trace)
        except Exception as error:  # whatever it is, it is a fault of Plesio's and the campaign's to tell
            return f"{type(error).__name__}: {error}", []
        if not simulation.runs:
            return "no results", []
        result = simulation.runs[-1]
        difference = verify(read_log(trace / "events.jsonl"))
    policies = [decision["policy"] for decision in result.decisions] or [case.policy]
    if result.status != "finished":
        return f"{result.status}: {result.error}", policies
    if difference is not None:
        return f"the log does not replay: {difference}", policies
    errors = [outcome.error for outcome in simulation.outcomes.values() if outcome.error is not None]
    if wrong := [error for error in errors if not isinstance(error, TransportError)]:  # that is who came too late
        return f"a worker ended with {wrong[0]!r}", policies
    states = [outcome.value for outcome in simulation.outcomes.values() if outcome.value is not None]
    if not all(parameter.isfinite().all() for parameter in states[0]):
        return "parameters are no numbers", policies
    apart = max(_distance(state, states[0]) for state in states)
    if parse_policy(policies[-1]).exchange == "collective" and apart > MOST_APART:
        return f"replicas are {apart:g} of their size apart", policies
    return "", policies


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=at_least(1), default=400, metavar="N", help="(400)")
    parser.add_argument("--seed", type=at_least(0), default=0, metavar="N", help="of the campaign (0)")
    parser.add_argument("--only", type=at_least(0), metavar="N", help="this run alone")
    parser.add_argument("--policies", type=policy_texts, default=["adaptive"], metavar="TEXTS", help='("adaptive")')
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    numbers = range(arguments.runs) if arguments.only is None else [arguments.only]
    failed: dict[int, str] = {}
    seen: Counter[str] = Counter()
    for number in track(numbers, "runs", disable=not sys.stderr.isatty()):
        case = random_case(number, seed=arguments.seed, policies=arguments.policies)
        problem, policies = problem_of(case)
        seen.update({parse_policy(policy).spec.partition(",inner_rate")[0] for policy in policies})
        if problem:
            failed[number] = problem
            print(f"{case}\n  {problem}\n  python {' '.join(sys.argv)} --only {number}", flush=True)
    print("runs by policy: " + ", ".join(f"{policy} {count}" for policy, count in seen.most_common()))
    met = not failed
    print_verdict(f"{len(numbers)} runs, all as they should be ({len(failed)} were not)", met=met)
    if arguments.only is None:
        settings = {"runs": arguments.runs, "seed": arguments.seed, "policies": arguments.policies}
        save("stress_virtual", settings=settings, results={"failed": failed, "policies": dict(seen)}, met=met)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
