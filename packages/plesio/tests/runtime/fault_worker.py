"""A worker for the fault tests: trains a small regression and does what its plan says at a given (rank, step).

    python fault_worker.py POLICY FOLDER PLAN

or `train` in a process of a `LocalJob`. PLAN is JSON: {"fault": "kill" | "stop" | "hold" | "nan" | "nan_grad" | "wait",
"rank": r, "step": k, "step_s": seconds per step, "epochs": n, "elastic": false, "await": true, "server_step": s,
"replicas": 2}. "wait" trains until a worker that joined late has made a step, and so does "await" in a collective,
where all must leave at the same step; "stop" sleeps as with Ctrl-Z, "hold" holds the interpreter's lock for three
leases. In step s of rank 0 the server, which it has started, is killed; its backup, if there is one, is not.
Writes FOLDER/rank-R.json: {"error": ..., "message": ..., "ranks": ..., "visited": [...], "clock": ...}.
"""

import ctypes
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.utils.data import DataLoader, TensorDataset

import plesio
from plesio.core.errors import WorkerLostError
from plesio.testing import forked_server

NUM_SAMPLES = 480


def kill_server() -> None:
    """Kill the server that this process has started, after its backup if it has one."""
    servers = [one for one in psutil.Process().children() if one.name() == forked_server.NAME]
    max(servers, key=lambda one: one.create_time()).kill()


def evaluated_everywhere(*, policy: str, folder: Path, killed: int) -> list[float | None]:
    """Evaluate on all workers; ``killed`` comes first to the second evaluation, and is killed in it."""
    rank = int(os.environ["RANK"])
    model = torch.nn.Linear(1, 1)
    found: list[float | None] = []

    def metric() -> float:
        if rank == killed and len(found) == 1:
            (folder / "evaluates").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return float(rank)

    with plesio.join(model, torch.optim.SGD(model.parameters(), lr=0.01), policy=policy) as session:
        for number in range(3):
            for (x,) in session.shard(DataLoader(TensorDataset(torch.ones(8, 1)), batch_size=2)):
                model(x).mean().backward()
                session.step()
            while number == 1 and rank != killed and not (folder / "evaluates").exists():
                time.sleep(0.01)
            found.append(session.evaluate(metric, everywhere=True))
    return found


def train(*, policy: str, folder: Path, plan: dict[str, Any]) -> bool:
    """Train, and return True if nothing went wrong."""
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    inputs = torch.randn(NUM_SAMPLES, 4, generator=torch.Generator().manual_seed(0))
    numbers = torch.arange(NUM_SAMPLES)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True), numbers)
    outcome: dict[str, object] = {"error": None, "visited": []}
    visited: list[int] = []
    try:
        options = plesio.JoinOptions(elastic=plan.get("elastic", True), replicas=plan.get("replicas"))
        with plesio.join(model, optimizer, policy=policy, trace=folder / "trace", options=options) as session:
            step = 0
            for epoch in range(plan.get("epochs", 1)):
                if epoch > 0 and plan["fault"] == "wait" and (folder / "joined").exists():
                    break
                for x, y, number in session.shard(DataLoader(data, batch_size=8, shuffle=True)):
                    step += 1
                    due = plan.get("rank") == rank and plan.get("step") == step
                    if due and plan["fault"] == "kill":
                        (folder / f"rank-{rank}.json").write_text(json.dumps({**outcome, "visited": visited}))
                        os.kill(os.getpid(), signal.SIGKILL)
                    if rank == 0 and step == plan.get("server_step"):
                        kill_server()
                    if due and plan["fault"] == "stop":
                        (folder / "stopped").write_text(str(os.getpid()))
                        os.kill(os.getpid(), signal.SIGSTOP)
                    if due and plan["fault"] == "hold":
                        ctypes.PyDLL(None).sleep(6)
                    loss = (model(x) - y).square().mean()
                    if due and plan["fault"] == "nan":
                        loss = loss * float("nan")
                    loss.backward()
                    if due and plan["fault"] == "nan_grad":
                        next(model.parameters()).grad.fill_(float("inf"))
                    time.sleep(plan.get("step_s", 0.0))
                    before = session.clock
                    session.step(loss)
                    outcome["cut_off"] = int(outcome.get("cut_off", 0)) + (session.clock == before)
                    if session.clock > before:  # a step that was cut off does not count
                        visited += number.tolist()
                    if step == plan.get("step", 0) + 3:
                        (folder / f"went-on-{rank}").touch()
                    (folder / ("started" if rank < int(os.environ["WORLD_SIZE"]) else "joined")).touch()
                joined = folder / "joined"
                if plan.get("await") and session.evaluate(lambda: float(joined.exists())):  # noqa: B023
                    break
            session.finish(lambda: float((model(inputs) - data.tensors[1]).square().mean()))
            outcome["clock"] = session.clock
            outcome["digest"] = hashlib.sha256(
                b"".join(p.detach().numpy().tobytes() for p in model.parameters())
            ).hexdigest()
        outcome["samples"] = session.report().samples
        outcome["finite"] = all(bool(torch.isfinite(p).all()) for p in model.parameters())
    except Exception as error:
        outcome.update(error=type(error).__name__, message=str(error), ended_s=time.time())
        if isinstance(error, WorkerLostError):
            outcome["ranks"] = list(error.ranks)
    outcome["visited"] = visited
    (folder / f"rank-{rank}.json").write_text(json.dumps(outcome))
    return outcome["error"] is None


if __name__ == "__main__":
    sys.exit(not train(policy=sys.argv[1], folder=Path(sys.argv[2]), plan=json.loads(sys.argv[3])))
