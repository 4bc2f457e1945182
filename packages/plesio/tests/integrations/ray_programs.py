"""Runs of Ray Train on a cluster of two nodes; a program of its own, because Ray leaves threads and variables behind.

``python ray_programs.py FOLDER`` writes what the workers have seen to ``FOLDER/NAME/RANK-ATTEMPT.json``, and what Ray
returns to ``FOLDER/NAME.json``. Ray's own files are in ``RAY_TMPDIR``.
"""

import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
from ray.cluster_utils import Cluster
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import plesio
from plesio.integrations.ray import PlesioConfig
from plesio.runtime.worker.environment import WorkerPlace

EPOCHS = 6
SAMPLES = 240
BATCH = 4


def train(config: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    folder = Path(config["folder"])
    model = nn.Linear(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)
    x = torch.randn(SAMPLES, 5, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(x, x.sum(1, keepdim=True))
    rank = ray.train.get_context().get_world_rank()
    attempt = len(list(folder.glob(f"{rank}-*")))
    note = folder / f"{rank}-{attempt}.json"
    place = WorkerPlace.from_environment()
    assert place is not None
    seen: dict[str, Any] = {"ranks": (rank, place.rank), "host": place.host, "num_hosts": place.num_hosts}
    Path(folder / f"secret-{attempt}").write_text(os.environ["PLESIO_SECRET"])
    note.write_text(json.dumps(seen))
    clocks = []
    with plesio.join(model, optimizer, **config["join"]) as session:
        for epoch in range(EPOCHS):
            for one, other in session.shard(DataLoader(data, batch_size=BATCH, shuffle=True)):
                clocks.append(session.clock)
                if config["dies"] == (rank, attempt, epoch):
                    os.kill(os.getpid(), signal.SIGKILL)
                if config["fails"] and rank == 1:
                    raise ValueError("no more")
                loss = (model(one) - other).square().mean()
                loss.backward()
                session.step(loss)
            value = session.evaluate(lambda: float((model(x) - x.sum(1, keepdim=True)).square().mean()), goal="min")
            ray.train.report({"epoch": epoch, "loss": value})
    with tempfile.TemporaryDirectory() as own:
        torch.save(model.state_dict(), Path(own) / "model.pt")
        final = Checkpoint.from_directory(own) if rank == 0 else None
        ray.train.report({"epoch": EPOCHS, "loss": value}, checkpoint=final)
    results = session.report()
    seen |= {
        "policy": results.policy,
        "status": results.status,
        "num_workers": results.num_workers,
        "steps": results.steps,
        "samples": results.samples,
        "first_clock": clocks[0],
        "weights": model.weight.flatten().tolist(),
    }
    note.write_text(json.dumps(seen))


def fit(folder: Path, name: str, *, policy: str, num_workers: int, restarts: int = 0, **config: Any) -> None:
    (own := folder / name).mkdir()
    trainer = TorchTrainer(
        train,
        train_loop_config={"folder": str(own), "join": {}, "dies": None, "fails": False} | config,
        torch_config=PlesioConfig(policy),
        scaling_config=ScalingConfig(num_workers=num_workers),
        run_config=RunConfig(
            name=name, storage_path=str(folder / "storage"), failure_config=FailureConfig(max_failures=restarts)
        ),
    )
    try:
        result = trainer.fit()
        with result.checkpoint.as_directory() as kept:
            weights = torch.load(Path(kept) / "model.pt", weights_only=True)["weight"].flatten().tolist()
        found: dict[str, Any] = {"metrics": result.metrics, "weights": weights}
    except ray.train.TrainingFailedError as error:
        found = {"error": str(error)}
    (folder / f"{name}.json").write_text(json.dumps(found))


def main(folder: Path) -> None:
    memory = 80 * 2**20
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 2, "object_store_memory": memory, "include_dashboard": False},
    )
    try:
        cluster.add_node(num_cpus=2, object_store_memory=memory, node_ip_address="127.0.0.2")
        ray.init(address=cluster.address, log_to_driver=True)
        fit(folder, "bsp", policy="bsp", num_workers=4)
        fit(folder, "ssp", policy="ssp:2", num_workers=4)
        fit(folder, "unequal", policy="local_sgd:4", num_workers=3)
        saved = {"checkpoint": str(folder / "checkpoints"), "every": "5 steps"}
        fit(folder, "lost", policy="bsp", num_workers=2, restarts=1, join=saved, dies=(1, 0, 3))
        fit(folder, "failed", policy="bsp", num_workers=2, fails=True)
        secrets = [path.read_text() for path in folder.glob("*/secret-*")]
        kept = Path(os.environ["RAY_TMPDIR"]).rglob("*")
        logs = [path.read_bytes() for path in kept if path.is_file() and "logs" in path.parts]
        told = sum(secret.encode() in log for secret in secrets for log in logs)
        (folder / "logs.json").write_text(json.dumps({"secrets": len(set(secrets)), "logs": len(logs), "told": told}))
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
