"""Two step sizes of local SGD on the digits: how soon, and how far, training comes with 16 workers.

    python benchmarks/adaptive/short_steps.py [--seeds 8] [--learning-rate 0.4]

The workers are emulated as one batch of models (torch.func), without clocks and links: what is learned does not depend
on them. Of each setting: epochs until the held-out accuracy is 97 %, and the accuracy in the end against BSP's, seed by
seed. Seeds 100 and on, on which the defaults were chosen; what adaptive reaches on others is in docs/evidence.md.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)

from plesio.tasks.load import load_task

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "evidence"))
from figures import difference

from record import print_table, print_verdict, save

NUM_WORKERS, BATCH_SIZE, EPOCHS, TARGET = 16, 8, 30, 0.97
FIRST_SEED = 100
Tensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Local SGD; a period of 1 with whole steps is BSP."""

    period: int
    delay: int = 0
    inner_rate: float = 1.0
    momentum: float = 0.0

    @property
    def name(self) -> str:
        """As a policy's text."""
        if self == Setting(period=1):
            return "bsp"
        delay = f",delay={self.delay}" if self.delay else ""
        short = f",inner_rate={self.inner_rate},momentum={self.momentum}" if self.inner_rate != 1 else ""
        return f"local_sgd:{self.period}{delay}{short}"


SETTINGS = [Setting(period=1)] + [
    Setting(period=period, delay=delay, inner_rate=inner_rate, momentum=momentum)
    for period, delay in ((4, 0), (8, 0), (8, 4), (16, 8))
    for inner_rate, momentum in ((1.0, 0.0), (0.25, 0.5))
]


class Team:
    """Workers whose parameters lie in one tensor a name, ``[num_workers, ...]``.

    Args:
        setting: How they train.
        model: What each of them begins with.
        rate: Learning rate of BSP.
    """

    def __init__(self, setting: Setting, model: torch.nn.Module, *, rate: float) -> None:
        self._setting = setting
        self._rate = rate
        self._base = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        self.parameters = self._on_all(self._base)
        self._since = self._on_all(self._base)
        """What the progress of each is counted from."""
        self._velocity = {name: torch.zeros_like(tensor) for name, tensor in self._base.items()}
        self._pending: tuple[int, Tensors] | None = None

    def step(self, clock: int, gradients: Tensors) -> None:
        """One local step of all, and what is exchanged after it."""
        for name, gradient in gradients.items():
            self.parameters[name].sub_(self._setting.inner_rate * self._rate * gradient)
        if self._pending is not None and clock == self._pending[0] + self._setting.delay:
            self._merge(self._pending[1])
        if clock % self._setting.period == 0:
            progress = {name: (own - self._since[name]).mean(0) for name, own in self.parameters.items()}
            self._since = {name: tensor.clone() for name, tensor in self.parameters.items()}
            self._pending = clock, progress
            if self._setting.delay == 0:
                self._merge(progress)

    def mean(self) -> Tensors:
        """The workers' mean."""
        return {name: tensor.mean(0) for name, tensor in self.parameters.items()}

    def _merge(self, progress: Tensors) -> None:
        self._pending = None
        momentum = self._setting.momentum
        for name, mean in progress.items():
            velocity = self._velocity[name].lerp_(mean, 1 - momentum)
            self._base[name] = self._base[name] + velocity / self._setting.inner_rate
            self.parameters[name] += self._base[name] - self._since[name]
        self._since = self._on_all(self._base)

    @staticmethod
    def _on_all(tensors: Tensors) -> Tensors:
        return {name: tensor.repeat(NUM_WORKERS, *[1] * tensor.dim()) for name, tensor in tensors.items()}


def train(setting: Setting, *, seed: int, rate: float) -> list[float]:
    """Held-out accuracy after each epoch, in percent."""
    task = load_task("digits", batch_size=BATCH_SIZE)
    torch.manual_seed(seed)
    model, _ = task.build(seed)
    images, labels = (torch.stack(columns) for columns in zip(*task.train_set(), strict=True))
    gradients_of: Callable[..., Tensors] = vmap(
        grad(lambda parameters, x, y: F.cross_entropy(functional_call(model, parameters, (x,)), y))
    )
    team = Team(setting, model, rate=rate)
    order = torch.Generator().manual_seed(seed)
    accuracies, clock = [], 0
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(labels), generator=order).split(NUM_WORKERS * BATCH_SIZE):
            if len(batch) < NUM_WORKERS * BATCH_SIZE:
                break
            clock += 1
            mine = batch.view(NUM_WORKERS, BATCH_SIZE)
            team.step(clock, gradients_of(team.parameters, images[mine], labels[mine]))
        model.load_state_dict(team.mean(), strict=False)
        with torch.no_grad():
            accuracies.append(100 * task.metric(model))
    return accuracies


def epochs_to(accuracies: list[float], target: float) -> int:
    """Epochs until the target; one more than there are, if it is never reached."""
    return next((epoch for epoch, each in enumerate(accuracies, 1) if each >= 100 * target), len(accuracies) + 1)


def main() -> None:
    """Print the table and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8, help="trainings of each setting (8)")
    parser.add_argument("--learning-rate", type=float, default=0.4, help="of BSP (0.4)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(FIRST_SEED, FIRST_SEED + arguments.seeds)
    rows, results, strict, sooner = [], {}, [], {}
    for setting in SETTINGS:
        runs = [train(setting, seed=seed, rate=arguments.learning_rate) for seed in seeds]
        final, epochs = [run[-1] for run in runs], [epochs_to(run, TARGET) for run in runs]
        strict = strict or final
        change = difference(final, strict)
        sooner[setting.name] = sum(epochs) / len(epochs)
        results[setting.name] = {"final": final, "epochs": epochs}
        print(f"{setting.name}: {sooner[setting.name]:.1f} epochs", flush=True)
        rows.append([setting.name, f"{sooner[setting.name]:.1f}", f"{sum(final) / len(final):.2f}", change.text()])
    columns = ["", f"epochs to {TARGET:.0%}", "accuracy", "points to bsp (95 %)"]
    print_table(f"digits, {NUM_WORKERS} workers, {len(seeds)} seeds", columns=columns, rows=rows)
    short = [name for name in sooner if "inner_rate" in name]
    met = all(sooner[name] < sooner[name.partition(",inner_rate")[0]] for name in short)
    print_verdict("with short local steps training comes to the target sooner: every setting", met=met)
    settings = {"seeds": list(seeds), "learning_rate": arguments.learning_rate}
    save("short_steps", settings=settings, results=results, met=met)


if __name__ == "__main__":
    main()
