"""Workers under fsdp of which one is killed at a given place of a given step, or comes later."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F  # noqa: N812  # as everyone calls it
from torch.utils.data import DataLoader, TensorDataset

import plesio
from plesio.core.errors import WorkerLostError
from runtime.fsdp_programs import NUM_CLASSES, NUM_FEATURES, Tower, build, numbers

NUM_SAMPLES, BATCH = 96, 4
OPTIMIZER = {"optimizer": "AdamW", "lr": 0.01}


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NUM_SAMPLES, NUM_FEATURES, generator=generator)
    return TensorDataset(
        x, torch.randint(0, NUM_CLASSES, (NUM_SAMPLES,), generator=generator), torch.arange(NUM_SAMPLES)
    )


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Killer:
    """Kills this process at a place of the model's passes, once it is armed with it."""

    def __init__(self, model: Tower) -> None:
        self.place = ""
        model.blocks[1].register_forward_pre_hook(self._forward)
        model.blocks[1].register_forward_hook(self._output)

    def _forward(self, *_: object) -> None:
        if self.place == "forward":
            kill()

    def _output(self, _module: nn.Module, _inputs: object, output: torch.Tensor) -> None:
        if self.place == "backward" and output.requires_grad:
            output.register_hook(lambda _: kill())


def survive(*, policy: str, folder: Path, plan: dict[str, Any]) -> dict[str, Any]:
    """Train, and log each step's samples before it is made, and its clock when it counts.

    ``plan``: ``{"kills": [[rank, step, place], ...], "epochs": n, "evaluate": every, "await": a worker that joins,
    "saves": True, "snapshots": every, "clip": norm, "scales": True}``.
    """
    rank = int(os.environ["RANK"])
    model, optimizer = build(rank, **OPTIMIZER)
    own, killer, log = list(optimizer.param_groups), Killer(model), (folder / f"log-{rank}").open("w")
    kills = {step: place for who, step, place in plan.get("kills", []) if who == rank}

    (folder / f"pid-{rank}").write_text(str(os.getpid()))

    def write(**line: Any) -> None:
        log.write(json.dumps(line) + "\n")
        log.flush()

    def metric() -> float:
        if killer.place == "metric":
            kill()
        return float(model(data().tensors[0][:8]).square().sum())

    outcome: dict[str, Any] = {"error": None, "metrics": []}
    options = plesio.JoinOptions(snapshot_every=plan.get("snapshots"))
    saves = {"checkpoint": folder / "saved", "every": "3 steps"} if plan.get("saves") else {}
    scaler = torch.amp.GradScaler("cpu") if plan.get("scales") else None
    given = {"policy": policy, "trace": folder / "trace", "options": options, "scaler": scaler, **saves}
    try:
        with plesio.join(model, optimizer, **given) as session:
            same = [id(parameter) for parameter in model.parameters()]
            step = 0
            for _ in range(plan.get("epochs", 1)):
                for x, y, samples in session.shard(DataLoader(data(), batch_size=BATCH, shuffle=True)):
                    step += 1
                    killer.place = kills.get(step, "")
                    before = session.clock
                    write(clock=before + 1, samples=samples.tolist(), size=dist.get_world_size())
                    loss = F.cross_entropy(model(x), y)
                    (loss if scaler is None else scaler.scale(loss)).backward()
                    if killer.place == "between":
                        kill()
                    if scaler is not None:
                        scaler.unscale_(optimizer)
                    if "clip" in plan:
                        nn.utils.clip_grad_norm_(model.parameters(), plan["clip"])
                    session.step(loss)
                    if session.clock > before:
                        write(counts=session.clock)
                    if killer.place == "after":
                        kill()
                    (folder / f"at-{rank}-{step}").touch()
                    if plan.get("evaluate") and step % plan["evaluate"] == 0:
                        outcome["metrics"].append(session.evaluate(metric, everywhere=True))
                joined = folder / f"at-{plan.get('await')}-3"
                if "await" in plan and session.evaluate(lambda: float(joined.exists()), everywhere=True):  # noqa: B023
                    break
            outcome["same"] = same == [id(parameter) for parameter in model.parameters()]
            killer.place = ""
            if kills.get(0) == "end":
                kill()
            session.finish(metric)
        outcome["final"] = numbers({name: p.detach() for name, p in model.named_parameters()})
        outcome["groups"] = own == optimizer.param_groups
        outcome["hooks"] = len(model.blocks[1]._forward_hooks)
        outcome["plain"] = type(model) is Tower
    except WorkerLostError as error:
        outcome |= {"error": str(error), "ranks": list(error.ranks)}
    return outcome
