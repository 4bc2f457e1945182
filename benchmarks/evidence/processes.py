"""Adaptive against BSP on four real processes, each on a host of its own: a network namespace behind a shaped link.

Steps are paced: a worker computes its real gradient and then sleeps until the step has taken its time, so that four
workers do not want more than two cores can give. What goes over the links is real, and so is every wait.
"""

import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from settings import SHORT, TASKS, recipe_of

from plesio.bench.assignment import Assignment
from plesio.bench.trainer import recipe_task, train
from plesio.core.results import RunResult
from plesio.runtime.job import Job
from plesio.runtime.worker.environment import WorkerPlace
from plesio.testbed.host import Host
from plesio.testbed.namespaces import why_no_namespaces
from plesio.testbed.testbed import Testbed

__all__ = ["CASES", "run_on_hosts"]

NUM_WORKERS = 4
PORT = 29_521
STEP_TIME = {"kind": "lognormal", "mean": "40 ms", "cv": 0.2}


@dataclass(frozen=True, slots=True)
class Case:
    """Bits per second of every link, and a key of `STRAGGLERS`."""

    bits_per_s: float
    stragglers: str


CASES: Mapping[str, Case] = {
    "1 Gbit/s, equal": Case(1e9, "equal"),
    "1 Gbit/s, one of four takes three times as long": Case(1e9, "persistent"),
    "10 Mbit/s, equal": Case(1e7, "equal"),
}


def run_on_hosts(name: str, *, policies: Sequence[str], seeds: Sequence[int]) -> dict[str, list[RunResult]]:
    """Finished runs of a case by policy, in the order of the seeds; the policies take turns, in changing order.

    Raises:
        SystemExit: There are no namespaces here, or a worker failed.
    """
    if (reason := why_no_namespaces()) is not None:
        raise SystemExit(reason)
    wanted = json.dumps({"name": name, "policies": list(policies), "seeds": list(seeds)})
    with (
        tempfile.TemporaryDirectory() as folder,
        Testbed.of_racks([NUM_WORKERS], nic_bytes_per_s=CASES[name].bits_per_s / 8) as testbed,
    ):
        results = Path(folder) / "results.jsonl"
        secret, master = secrets.token_hex(32), testbed.hosts[0]
        workers = [
            _start(host, rank, wanted, results, master=master, secret=secret) for rank, host in enumerate(testbed.hosts)
        ]
        if any([worker.wait() for worker in workers]):  # noqa: C419 (all have to end before the hosts go)
            raise SystemExit("a worker failed; its output is above")
        runs = [RunResult.from_json(json.loads(line)) for line in results.read_text(encoding="utf-8").splitlines()]
    by_key = {(run.policy, run.seed): run for run in runs}
    return {policy: [by_key[policy, seed] for seed in seeds] for policy in policies}


def _start(host: Host, rank: int, wanted: str, results: Path, *, master: Host, secret: str) -> subprocess.Popen[bytes]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(NUM_WORKERS), "--nproc-per-node", "1"]
    meet = ["--node-rank", str(rank), "--master-addr", master.address, "--master-port", str(PORT)]
    command = host.command([*torchrun, *meet, __file__, wanted, str(results)])
    return subprocess.Popen(command, env={**os.environ, "PLESIO_SECRET": secret})


def _work(wanted: str, results: Path) -> None:
    """Do all runs, one after another, on one worker."""
    told = json.loads(wanted)
    recipe = recipe_of(
        TASKS["digits"]["task"],
        {**SHORT["digits"], "epochs": 8},
        num_workers=NUM_WORKERS,
        cluster=None,
        stragglers=CASES[told["name"]].stragglers,
        step_time=STEP_TIME,
        policies=told["policies"],
        seeds=told["seeds"],
    )
    place = WorkerPlace.from_environment()
    assert place is not None, "started by torchrun"
    task, job = recipe_task(recipe), Job(place)
    for number, seed in enumerate(recipe.run.seeds):
        policies = recipe.run.policies[:: 1 if number % 2 == 0 else -1]
        for policy in policies:
            with tempfile.TemporaryDirectory() as folder:
                result = train(recipe, task, Assignment(policy=policy, seed=seed, folder=Path(folder)), job=job)
            if result is not None:
                with results.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(result) + "\n")
                print(f"{policy}, seed {seed}: {result['wall_s']:.1f} s, {result['final_metric']:.4f}", flush=True)
    job.close()


if __name__ == "__main__":  # a worker, under torchrun
    _work(sys.argv[1], Path(sys.argv[2]))
