"""A worker's memory, traffic and step time under fsdp and under bsp.

    python benchmarks/bench_fsdp.py [--policies bsp,fsdp,bsp,hook=fp16] [--workers 4] [--repeat 5] [--quick] [--loss]

Four workers train a transformer of 4 blocks with AdamW, on this machine. Prints, by policy, the bytes of parameters,
gradients and optimizer state that a worker holds when its gradients are there (of the tensors' storages, so padding and
anything else that they keep alive counts), what it sends a step, and the time of a step, in sessions that take turns.
With ``--loss`` the last worker is killed in a step instead, and what it costs the first is shown: how much longer that
step takes than the others, until the next one has been made. Writes benchmarks/results/fsdp.json, or fsdp-loss.json.
"""

import argparse
import itertools
import os
import signal
import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn import functional as F  # noqa: N812

import plesio
from plesio.cli.compare import split_policies
from plesio.runtime.worker.environment import WorkerPlace
from plesio.testing import LocalJob
from record import print_table, print_verdict, save

LEAST_RATIO = 3.5
WIDTH, NUM_BLOCKS, NUM_TOKENS, VOCABULARY, BATCH = 256, 4, 32, 500, 4
NUM_WARM_UP = 3


class Model(nn.Module):
    """A transformer: 3.4 million parameters, 0.26 million of them in no block."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, nhead=4, dim_feedforward=4 * WIDTH, dropout=0.0, batch_first=True)
            for _ in range(NUM_BLOCKS)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits [batch, tokens, vocabulary] of tokens [batch, tokens]."""
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        logits: torch.Tensor = self.head(hidden)
        return logits


def storage_bytes(tensors: Iterable[Any]) -> int:
    """Count the storages of this worker's own parts, each once."""
    own = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors if tensor is not None]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in own}
    return sum(storages.values())


def held(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Return the bytes that this worker holds now."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    parameters = list(model.parameters())
    return {
        "parameters": storage_bytes(parameters),
        "gradients": storage_bytes(parameter.grad for parameter in parameters),
        "optimizer": storage_bytes(value for state in optimizer.state.values() for value in state.values()),
    }


def measure(*, policies: list[str], repeat: int, steps: int) -> dict[str, Any]:
    """By policy, what this worker held, and what each of its blocks of steps took and sent."""
    torch.set_num_threads(1)
    place = WorkerPlace.from_environment()
    assert place is not None
    found: dict[str, Any] = {policy: {"step_s": [], "sent": []} for policy in policies}
    with plesio.Job(place) as job:
        for number in range(repeat):
            for policy in policies[:: 1 if number % 2 else -1]:
                torch.manual_seed(0)
                model = Model()
                optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
                generator = torch.Generator().manual_seed(place.rank)
                with plesio.join(model, optimizer, policy=policy, options=plesio.JoinOptions(job=job)) as session:
                    for step in range(NUM_WARM_UP + steps + 1):
                        if step == NUM_WARM_UP:
                            began_s, sent = time.perf_counter(), job.bytes_sent()["collective"]
                        if step == NUM_WARM_UP + steps:
                            found[policy]["step_s"].append((time.perf_counter() - began_s) / steps)
                            found[policy]["sent"].append((job.bytes_sent()["collective"] - sent) / steps)
                        tokens = torch.randint(0, VOCABULARY, (BATCH, NUM_TOKENS), generator=generator)
                        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
                        loss.backward()
                        if step == NUM_WARM_UP + steps:
                            found[policy]["held"] = held(model, optimizer)
                        session.step(loss)
    return found


def lose(*, policy: str, steps: int) -> list[float]:
    """Lose the last worker in the middle; returns the seconds of each of this worker's steps."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, ends = Model(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with plesio.join(model, optimizer, policy=policy) as session:
        dies = session.rank == session.num_workers - 1
        while session.clock < steps:
            if dies and session.clock == steps // 2:
                os.kill(os.getpid(), signal.SIGKILL)
            before = session.clock
            tokens = torch.randint(0, VOCABULARY, (BATCH, NUM_TOKENS))
            F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
            session.step(samples=BATCH)
            if session.clock > before:  # one that was cut off is made again
                ends.append(time.perf_counter())
    return [after - before for before, after in itertools.pairwise(ends)]


def measure_loss(policies: list[str], *, workers: int, repeat: int) -> None:
    """Print how long the others stand still when one is lost, in jobs that take turns."""
    steps = 20
    stalls: dict[str, list[float]] = {policy: [] for policy in policies}
    for number in range(repeat):
        for policy in policies[:: 1 if number % 2 else -1]:
            with LocalJob(workers) as job:
                ending = job.run(Path(__file__), "lose", timeout_s=120, policy=policy, steps=steps)[0]
            assert ending.error is None, ending.trace
            stalls[policy].append(max(ending.value[NUM_WARM_UP:]) - statistics.median(ending.value[NUM_WARM_UP:]))
    rows = [
        [f"`{policy}`", f"{statistics.median(own) * 1e3:.0f} ms", f"{min(own) * 1e3:.0f} to {max(own) * 1e3:.0f} ms"]
        for policy, own in stalls.items()
    ]
    print_table("a loss", columns=["policy", "stall, median", "range"], rows=rows)
    save("fsdp-loss", settings={"workers": workers, "repeat": repeat, "steps": steps}, results=stalls, met=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default="bsp,fsdp,bsp,hook=fp16,bsp,hook=bf16,bsp,hook=powersgd:2+start:2")
    parser.add_argument("--workers", type=int, default=4, metavar="N")
    parser.add_argument("--repeat", type=int, default=5, metavar="N")
    parser.add_argument("--quick", action="store_true", help="only show that it works")
    parser.add_argument("--loss", action="store_true", help="lose a worker, and measure what that costs the others")
    arguments = parser.parse_args()
    policies = split_policies(arguments.policies)
    if arguments.loss:
        measure_loss(policies, workers=arguments.workers, repeat=1 if arguments.quick else arguments.repeat)
        return
    repeat, steps = (1, 4) if arguments.quick else (arguments.repeat, 20)
    with LocalJob(arguments.workers) as job:
        endings = job.run(Path(__file__), "measure", timeout_s=580, policies=policies, repeat=repeat, steps=steps)
    for ending in endings.values():
        assert ending.error is None, ending.trace
    found = [endings[rank].value for rank in range(arguments.workers)]
    most = {
        policy: max((one[policy]["held"] for one in found), key=lambda kinds: sum(kinds.values()))
        for policy in policies
    }
    rows = []
    for policy in policies:
        step_s = statistics.median(found[0][policy]["step_s"])
        sent = statistics.mean(statistics.median(one[policy]["sent"]) for one in found)
        kinds = [*most[policy].values(), sum(most[policy].values()), sent]
        rows.append([f"`{policy}`", *(f"{kind / 1e6:.2f} MB" for kind in kinds), f"{step_s * 1e3:.0f} ms"])
    columns = ["policy", "parameters", "gradients", "optimizer", "held", "sent a step", "a step"]
    print_table("a worker", columns=columns, rows=rows)
    met = True
    if {"bsp", "fsdp"} <= most.keys() and arguments.workers >= 4:
        ratio = sum(most["bsp"].values()) / sum(most["fsdp"].values())
        print(f"bsp holds {ratio:.2f} times what fsdp holds, on the worker that holds most.")
        met = ratio >= LEAST_RATIO
        print_verdict(f"at least {LEAST_RATIO:g} times less under fsdp", met=met)
    settings = {"workers": arguments.workers, "repeat": repeat, "steps": steps, "policies": policies}
    save("fsdp", settings=settings, results={"workers": found}, met=met)


if __name__ == "__main__":
    main()
