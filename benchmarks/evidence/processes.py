"""Adaptive against BSP on four real processes, each on a host of its own: a network namespace behind a shaped link.

Steps are paced: a worker computes its real gradient and then sleeps until the step has taken its time, so that four
workers do not want more than two cores can give. What goes over the links is real, and so is every wait.
"""

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from settings import SHORT, STRAGGLERS, TASKS

from plesio.bench.assignment import Assignment
from plesio.bench.recipe import Recipe, make_recipe
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


def run_on_hosts(case: Case, *, policies: Sequence[str], seeds: Sequence[int]) -> dict[str, list[RunResult]]:
    """Finished runs by policy, in the order of the seeds; the policies take turns, in changing order.

    Raises:
        SystemExit: There are no namespaces here, or a worker failed.
    """
    if (reason := why_no_namespaces()) is not None:
        raise SystemExit(reason)
    recipe = _recipe(case, policies=policies, seeds=seeds)
    with (
        tempfile.TemporaryDirectory() as folder,
        Testbed.of_racks([NUM_WORKERS], nic_bytes_per_s=case.bits_per_s / 8) as testbed,
    ):
        written, results = Path(folder) / "recipe.json", Path(folder) / "results.jsonl"
        written.write_text(json.dumps(recipe), encoding="utf-8")
        secret, master = secrets.token_hex(32), testbed.hosts[0]
        workers = [
            _start(host, rank, written, results, master=master, secret=secret)
            for rank, host in enumerate(testbed.hosts)
        ]
        if any([worker.wait() for worker in workers]):  # noqa: C419 (all have to end before the hosts go)
            raise SystemExit("a worker failed; its output is above")
        runs = [RunResult.from_json(json.loads(line)) for line in results.read_text(encoding="utf-8").splitlines()]
    by_key = {(run.policy, run.seed): run for run in runs}
    return {policy: [by_key[policy, seed] for seed in seeds] for policy in policies}


def _recipe(case: Case, *, policies: Sequence[str], seeds: Sequence[int]) -> dict[str, Any]:
    stragglers = dict(STRAGGLERS[case.stragglers])
    if "unequal" in stragglers:
        stragglers["unequal"] = [{**stragglers["unequal"][0], "rank": NUM_WORKERS - 1}]
    return {
        "task": dict(TASKS["digits"]["task"]),
        "run": {**SHORT["digits"], "epochs": 8, "policies": list(policies), "seeds": list(seeds)},
        "workers": {"count": NUM_WORKERS, "step_time": STEP_TIME, **stragglers},
    }


def _start(host: Host, rank: int, recipe: Path, results: Path, *, master: Host, secret: str) -> subprocess.Popen[bytes]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(NUM_WORKERS), "--nproc-per-node", "1"]
    meet = ["--node-rank", str(rank), "--master-addr", master.address, "--master-port", str(PORT)]
    command = host.command([*torchrun, *meet, __file__, str(recipe), str(results)])
    return subprocess.Popen(command, env={**os.environ, "PLESIO_SECRET": secret})


def _work(recipe: Recipe, results: Path) -> None:
    """All runs, one after another, on one worker."""
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


def main() -> None:
    """Start a worker, under torchrun."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("results", type=Path)
    arguments = parser.parse_args()
    data = json.loads(arguments.recipe.read_text(encoding="utf-8"))
    _work(make_recipe(data, folder=Path(__file__).parent, where="processes"), arguments.results)


if __name__ == "__main__":
    main()
