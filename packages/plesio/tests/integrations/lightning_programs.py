"""Training with Lightning; here, because worker processes import it by name."""

from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from plesio.core.results import read_results
from plesio.integrations.lightning import PlesioFabricStrategy, PlesioStrategy, _Launched
from plesio.runtime.worker.environment import WorkerPlace
from support.frameworks import lines_of

BATCH = 4
WORKERS = 2


def data(number: int, *, seed: int) -> TensorDataset:
    x = torch.randn(number, 5, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x.sum(1) > 0).long())


def loaders() -> tuple[DataLoader[Any], DataLoader[Any]]:
    return DataLoader(data(96, seed=0), batch_size=BATCH, shuffle=True), DataLoader(data(31, seed=1), batch_size=BATCH)


class Classifier(lightning.LightningModule):
    """Calls a part of itself, as most do, and not its own forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
        self.losses: list[float] = []

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.network(x), y)

    def validation_step(self, batch: Any, index: int) -> None:
        x, y = batch
        logits = self.network(x)
        self.log("val_loss", nn.functional.cross_entropy(logits, y), sync_dist=True)
        self.log("val_accuracy", (logits.argmax(1) == y).float().mean(), sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        self.losses.append(float(self.trainer.callback_metrics["val_loss"]))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.02)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "epoch"}}


class WritesAtTheEnd(lightning.Callback):
    """Writes into the final model, as averages of weights do."""

    @torch.no_grad()
    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        pl_module.network[3].bias.fill_(7)


class InTurns(Classifier):
    """Two optimizers by hand, one after the other; the second loss is of what the first step has made."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, index: int) -> None:
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(super().training_step(batch, index))
            self.clip_gradients(optimizer, gradient_clip_val=0.5)
            optimizer.step()

    def configure_optimizers(self) -> Any:
        first = torch.optim.SGD(self.network[0].parameters(), lr=0.1, momentum=0.9)
        return [first, torch.optim.AdamW([*self.network[1].parameters(), *self.network[3].parameters()], lr=0.02)]


def strategy_of(policy: str, *, trace: Path | None) -> Any:
    if policy != "ddp":
        return PlesioStrategy(policy, trace=trace)
    place = WorkerPlace.from_environment()
    return DDPStrategy(cluster_environment=None if place is None else _Launched(place))


def trainer_of(policy: str, folder: Path, **settings: Any) -> lightning.Trainer:
    settings = {"max_epochs": 3, "accumulate_grad_batches": 2, "gradient_clip_val": 1.0} | settings
    return lightning.Trainer(
        accelerator="cpu",
        devices=WORKERS,
        strategy=strategy_of(policy, trace=folder / "trace"),
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"enable_checkpointing": False, "num_sanity_val_steps": 0} | settings,
    )


def values(model: nn.Module) -> list[float]:
    return [value for p in model.parameters() for value in p.detach().flatten().tolist()]


MODELS = {"automatic": Classifier, "manual": InTurns, "bf16": Classifier}
SETTINGS: dict[str, dict[str, Any]] = {
    "automatic": {},
    "manual": {"accumulate_grad_batches": 1, "gradient_clip_val": None},
    "bf16": {"precision": "bf16-mixed"},
}


def trained(*, kind: str, policies: list[str], folder: str) -> dict[str, Any]:
    """Train under each policy, and by Lightning's own DDP."""
    found = {}
    for policy in policies:
        own = Path(folder) / policy.replace(":", "")
        lightning.seed_everything(3, verbose=False)
        model, trainer = MODELS[kind](), trainer_of(policy, own, **SETTINGS[kind])
        trainer.fit(model, *loaders())
        found[policy] = {"losses": list(model.losses), "steps": trainer.global_step, "values": values(model)}
        (tested,) = trainer.validate(model, loaders()[1], verbose=False)
        found[policy]["after"] = tested["val_loss"]
        if policy != "ddp" and trainer.is_global_zero:
            (result,) = read_results(own / "trace" / "results.json")
            counts = {"steps": result.steps, "samples": result.samples, "status": result.status}
            found[policy]["results"] = counts | {"fallbacks": result.fallbacks}
    return found


def resumed(*, policy: str, folder: str) -> dict[str, Any]:
    """Save the best and the last model, stop early, and go on from a checkpoint in a second run."""
    best = ModelCheckpoint(Path(folder), monitor="val_loss", save_last=True, filename="best", save_top_k=1)
    stops = EarlyStopping("val_loss", patience=1, min_delta=10.0)  # nothing is better by so much
    settings: dict[str, Any] = {"enable_checkpointing": True, "use_distributed_sampler": True}
    lightning.seed_everything(3, verbose=False)
    stopped = trainer_of(policy, Path(folder), callbacks=[best, stops, WritesAtTheEnd()], max_epochs=5, **settings)
    model = Classifier()
    stopped.fit(model, *loaders())
    kept = torch.load(best.best_model_path, weights_only=False)
    lightning.seed_everything(3, verbose=False)
    again, trainer = Classifier(), trainer_of(policy, Path(folder), max_epochs=4)
    trainer.fit(again, *loaders(), ckpt_path=str(Path(folder) / "last.ckpt"), weights_only=False)
    lightning.seed_everything(3, verbose=False)
    straight, through = Classifier(), trainer_of(policy, Path(folder) / "through", max_epochs=4)
    through.fit(straight, *loaders())
    return {
        "epochs": stopped.current_epoch,
        "losses": list(model.losses),
        "best": float(best.best_model_score),
        "kept_steps": kept["global_step"],
        "steps": trainer.global_step,
        "written": model.network[3].bias.tolist(),
        "again": values(again),
        "straight": values(straight),
        "last_losses": list(again.losses),
        "straight_losses": list(straight.losses),
    }


def by_fabric(*, policies: list[str], folder: str) -> dict[str, Any]:
    """Train with Fabric: accumulation, clipping, bfloat16, saving, loading and the shared model."""
    found = {}
    for policy in policies:
        own = Path(folder) / policy.replace(":", "")
        strategy = PlesioFabricStrategy(policy, trace=own)
        fabric = lightning.Fabric(accelerator="cpu", devices=WORKERS, strategy=strategy, precision="bf16-mixed")
        fabric.launch()
        fabric.seed_everything(3, verbose=False)
        network = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 2))
        model, optimizer = fabric.setup(network, torch.optim.AdamW(network.parameters(), lr=0.02))
        loader = fabric.setup_dataloaders(loaders()[0])
        losses = []
        for _ in range(3):
            for number, (x, y) in enumerate(loader, start=1):
                with fabric.no_backward_sync(model, enabled=number % 2 == 1):
                    loss = nn.functional.cross_entropy(model(x), y)
                    fabric.backward(loss)
                if number % 2 == 0:
                    fabric.clip_gradients(model, optimizer, max_norm=1.0)
                    optimizer.step()
                    optimizer.zero_grad()
            with strategy.shared(), torch.no_grad():
                x, y = data(31, seed=1).tensors
                losses.append(float(nn.functional.cross_entropy(model(x), y)))
        fabric.save(own / "saved.ckpt", {"model": model, "optimizer": optimizer, "epoch": 3})
        strategy.leave()
        ended = values(network)
        fresh = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 2))
        model, optimizer = fabric.setup(fresh, torch.optim.AdamW(fresh.parameters(), lr=0.5))
        state = {"optimizer": optimizer, "model": model, "epoch": 0}
        fabric.load(own / "saved.ckpt", state)
        loaded, rate = values(fresh), optimizer.param_groups[0]["lr"]
        fabric.backward(nn.functional.cross_entropy(model(torch.ones(2, 5)), torch.tensor([0, 1])))
        optimizer.step()
        strategy.leave()
        found[policy] = {"losses": losses, "ended": ended, "loaded": loaded, "rate": rate, "epoch": state["epoch"]}
        if fabric.is_global_zero:
            result = read_results(own / "results.json")[-1]
            found[policy]["results"] = {"status": result.status, "fallbacks": result.fallbacks}
    return found


def failed(*, folder: str) -> str:
    """Let rank 1 fail in its third step."""

    class Fails(Classifier):
        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            if index == 2 and self.global_rank == 1:
                raise ValueError("no more")
            return super().training_step(batch, index)

    trainer = trainer_of("bsp", Path(folder))
    try:
        trainer.fit(Fails(), *loaders())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def refused() -> dict[str, str]:
    return lines_of(
        {
            "fsdp": lambda: PlesioStrategy("fsdp"),
            "adaptive": lambda: PlesioFabricStrategy("adaptive"),
            "hook": lambda: PlesioStrategy("bsp", ddp_comm_hook=print),
            "not started": lambda: lightning.Trainer(accelerator="cpu", devices=2, strategy=PlesioStrategy("bsp")),
        }
    )


def started_otherwise() -> str:
    other = {"devices": lambda: lightning.Trainer(accelerator="cpu", devices=1, strategy=PlesioStrategy("bsp"))}
    return lines_of(other)["devices"]
