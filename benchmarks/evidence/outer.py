"""DiLoCo's outer optimizer on small models: perplexity at equal samples, time to BSP's, and what predicts both.

Four virtual workers train `stdlib_lm` for one epoch with AdamW, over links of 10 or 100 Mbit/s; `rates` can be asked of
other tasks, and `frontier` is of a smaller one.

    python benchmarks/evidence/outer.py policies --seeds 3       # bsp, local_sgd and diloco by momentum and compression
    python benchmarks/evidence/outer.py policies --only diloco:8,outer_momentum=0.3 --seeds 3
    python benchmarks/evidence/outer.py rates                    # diloco by outer rate and momentum
    python benchmarks/evidence/outer.py rates --task digits --seeds 2
    python benchmarks/evidence/outer.py inner --seeds 3          # digits by inner optimizer, H and outer rate
    python benchmarks/evidence/outer.py frontier --batches 2,8 --seeds 2    # by batch, H, momentum, moments, bits

ρ is the mean cosine of successive outer gradients. If they agree so from each one to the next, each moves the shared
parameters by η (1 + μ / (1 - μρ)) of itself in the end: the *effective rate*. `rates` sorts by it.

Runs are kept in runs/outer/; what is there is not done again.
"""

import argparse
import itertools
import json
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from plesio.bench.recipe import make_recipe
from plesio.core.results import RunResult
from plesio.policies import parse_policy
from plesio.runtime.worker.exchange.outer_step import OuterStep
from plesio.tasks.digits import cross_entropy, digits
from plesio.tasks.stdlib_lm import stdlib_lm
from plesio.tasks.task import Task

sys.path.insert(0, str(Path(__file__).parents[1]))
from kept_runs import keep_runs
from record import plus_minus, print_table

OUT = Path(__file__).parents[2] / "runs" / "outer"
STEP_TIME = {"kind": "lognormal", "mean": "20 ms", "cv": 0.1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A task, its options and the length of a run; each worker's batch is of ``batch_size`` samples."""

    task: str = "stdlib_lm"
    options: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int = 8
    length: Mapping[str, int]

    @property
    def folder(self) -> Path:
        """The folder of its runs."""
        names = (f"{name}-{value}" for name, value in sorted({**self.options, **self.length}.items()))
        return OUT / "-".join((self.task.rpartition(":")[2], str(self.batch_size), *names))


INNER = ("sgd", "adamw")
SETTINGS = {
    "stdlib_lm": Setting(
        options={"width": 64, "depth": 2, "context": 64, "corpus_bytes": 400_000}, length={"epochs": 1}
    ),
    "small": Setting(
        options={"width": 32, "depth": 1, "context": 32, "corpus_bytes": 200_000}, length={"samples": 12_800}
    ),
    **{
        f"digits, {inner}": Setting(task=f"{__file__}:digits_inner", options={"optimizer": inner}, length={"epochs": 8})
        for inner in INNER
    },
    "digits": Setting(task=f"{__file__}:digits_loss", length={"epochs": 8}),
}
FRONTIER_STEPS, FRONTIER_PERIODS = 180, (8, 30)
FRONTIER = {
    "`local_sgd:H`": "local_sgd:{0}",
    "`diloco:H,outer_momentum=0.3`": "diloco:{0},outer_momentum=0.3",
    "`local_sgd:H,moments=mean`": "local_sgd:{0},moments=mean",
    "the same in 4 bits": "local_sgd:{0},moments=mean,compress=qsgd:4",
    "after a strict tenth": "switch:bsp/local_sgd:{0},moments=mean,compress=qsgd:4@18",
}
OUTER = {
    "η = 0.7, μ = 0.9": "",
    "η = 0.3": ",outer_lr=0.3",
    "η = 0.1": ",outer_lr=0.1",
    "η = 0.7, μ = 0.3": ",outer_momentum=0.3",
}
LINKS = ("10 Mbit/s", "100 Mbit/s")
MOMENTA = (0.0, 0.3, 0.6, 0.9)
PAIRS = {
    8: (
        *(
            (0.7, 0.0),
            (0.7, 0.3),
            (0.7, 0.6),
            (0.7, 0.9),
            (0.25, 0.9),
            (0.35, 0.9),
            (0.45, 0.6),
            (1.0, 0.0),
            (1.0, 0.3),
        ),
        (1.4, 0.0),
    ),
    32: ((0.7, 0.0), (0.7, 0.3), (0.7, 0.6), (0.7, 0.9), (0.38, 0.9), (0.55, 0.6), (1.4, 0.0)),
}
"""Outer rates and momenta by local steps."""
POLICIES = (
    "bsp",
    "local_sgd:8",
    "local_sgd:32",
    *(f"diloco:{steps},outer_momentum={momentum}" for steps in (8, 32) for momentum in MOMENTA),
    *(
        f"diloco:{steps},outer_momentum=0.3,compress={codec}"
        for steps in (8, 32)
        for codec in ("qsgd:8", "qsgd:4+feedback")
    ),
)


@contextmanager
def recorded_outer_gradients() -> Iterator[dict[int, list[Tensor]]]:
    """Yield what each outer optimizer is given, by the order in which they were made, within this context."""
    seen: dict[int, list[Tensor]] = {}
    step = OuterStep.step

    def recorded(self: OuterStep, progress: Tensor, *, num_steps: int) -> Tensor:
        seen.setdefault(id(self), []).append(progress.clone())
        return step(self, progress, num_steps=num_steps)

    OuterStep.step = recorded  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        OuterStep.step = step  # type: ignore[method-assign]


def autocorrelation(gradients: Sequence[Tensor]) -> float:
    """Return the mean cosine of successive ones; the last, of a round that the end cut short, is left out."""
    pairs = itertools.pairwise(gradients[:-1])
    found = [float(torch.nn.functional.cosine_similarity(one, other, dim=0)) for one, other in pairs]
    return statistics.fmean(found) if found else math.nan


def do(policy: str, setting: Setting, *, seed: int, link: str | None = None) -> RunResult:
    """Return a run; with a link only its times, of steps without a gradient: under these policies they are the same."""
    cluster = f'hosts = 4\n[nic]\nlatency = "50 us"\nbandwidth = "{link or LINKS[-1]}"\n'
    task = setting.task if link is None else f"{__file__}:weightless"
    recipe = make_recipe(
        {
            "task": {"name": task, "batch_size": setting.batch_size, "options": dict(setting.options)},
            "run": {"policies": [policy], "seeds": [seed], **setting.length, "evaluate_every": 512},
            "workers": {"count": 4, "cluster": cluster, "step_time": STEP_TIME},
        },
        folder=Path.cwd(),
        where="outer.py",
    )
    out = folder_of(policy, setting, seed=seed, link=link)
    with recorded_outer_gradients() as seen:
        [run] = keep_runs(recipe, out=out)[parse_policy(policy).spec]
    if seen and link is None:
        rho = autocorrelation(next(iter(seen.values())))
        (out / "rho.json").write_text(json.dumps(rho), encoding="utf-8")
    return run


def folder_of(policy: str, setting: Setting, *, seed: int, link: str | None = None) -> Path:
    name = "trained" if link is None else link.replace(" ", "-").replace("/", "-")
    spec = parse_policy(policy).spec.replace(":", "-").replace(",", "-")
    return setting.folder / name / spec / str(seed)


def rho_of(policy: str, setting: Setting, *, seed: int) -> float:
    """Return ρ of a run that has been done; NaN without an outer optimizer."""
    kept = folder_of(policy, setting, seed=seed) / "rho.json"
    return float(json.loads(kept.read_text(encoding="utf-8"))) if kept.exists() else math.nan


def digits_loss() -> Task:
    """Make the task `digits`, judged by the loss on all that it trains on, which is finer than the accuracy."""
    return replace(digits(), metric=_loss_on_all, metric_name="loss", metric_goal="min", target=None)


def digits_inner(*, optimizer: str) -> Task:
    """Make the task `digits` with SGD of momentum 0.9 at as high a rate as its own, or with AdamW."""
    task = digits()

    def build(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        model, _ = task.build(seed)
        if optimizer == "sgd":
            return model, torch.optim.SGD(model.parameters(), lr=0.015, momentum=0.9)
        return model, torch.optim.AdamW(model.parameters(), lr=0.002)

    return replace(task, build=build)


def _loss_on_all(model: nn.Module) -> float:
    with torch.no_grad():
        return float(cross_entropy(model, digits().train_set()[:]))


def weightless(**options: Any) -> Task:
    """Make the task with a gradient of zero and no metric."""
    return replace(stdlib_lm(**options), loss=_nothing, metric=_none)


def _nothing(model: nn.Module, _: Any) -> Tensor:
    return torch.stack([0.0 * parameter.sum() for parameter in model.parameters()]).sum()


def _none(_: nn.Module) -> float:
    return 1.0


def time_to(perplexity: float, run: RunResult, times: RunResult) -> float:
    """Return the seconds up to the first evaluation that is no worse; infinity if there is none."""
    samples = next((point.samples for point in run.evaluations if point.metric <= perplexity), math.inf)
    return next((point.at_s for point in times.evaluations if point.samples >= samples), math.inf)


def effective_rate(rate: float, momentum: float, rho: float) -> float:
    return rate * (1 + momentum / (1 - momentum * rho))


def show_policies(policies: Sequence[str], setting: Setting, *, seeds: int, goal: float | None) -> None:
    """Print perplexities, and seconds to a goal: by default the final perplexity of bsp with the same seed."""
    rows = []
    for policy in policies:
        runs = [do(policy, setting, seed=seed) for seed in range(seeds)]
        goals = [goal or do("bsp", setting, seed=seed).final_metric or math.nan for seed in range(seeds)]
        times: list[str] = []
        for link in LINKS:
            own = [do(policy, setting, seed=seed, link=link) for seed in range(seeds)]
            to_goal = [time_to(goals[seed], runs[seed], own[seed]) for seed in range(seeds)]
            times += [plus_minus(to_goal, ".1f"), plus_minus([run.wall_s for run in own], ".1f")]
        found = plus_minus([run.final_metric or math.nan for run in runs])
        rho = statistics.fmean(rho_of(policy, setting, seed=seed) for seed in range(seeds))
        rows.append([policy, found, f"{rho:.2f}", *times])
    timed = [f"{what}, {link}" for link in LINKS for what in ("s to the goal", "s in all")]
    print_table(f"{seeds} seeds", columns=["policy", "perplexity", "ρ", *timed], rows=rows)


def show_rates(setting: Setting, *, seeds: int) -> None:
    """Print final metrics, in the order of effective rates."""
    for steps, pairs in PAIRS.items():
        rows: list[tuple[float, list[str]]] = []
        for rate, momentum in pairs:
            policy = f"diloco:{steps},outer_lr={rate},outer_momentum={momentum}"
            found = [f"{do(policy, setting, seed=seed).final_metric:.4g}" for seed in range(seeds)]
            rho = statistics.fmean(rho_of(policy, setting, seed=seed) for seed in range(seeds))
            effective = effective_rate(rate, momentum, rho)
            rows.append((effective, [f"{effective:.2f}", f"{rate}", f"{momentum}", f"{rho:.2f}", ", ".join(found)]))
        columns = ["η(1+μ/(1-μρ))", "η", "μ", "ρ", "at the end, by seed"]
        print_table(f"diloco:{steps}", columns=columns, rows=[row for _, row in sorted(rows)])


def show_inner(*, seeds: int) -> None:
    """Print the worst and the mean accuracy in %, by inner optimizer, local steps, exchange and outer setting."""
    rows = []
    for inner, steps, exchange in itertools.product(INNER, (5, 10, 30, 100), ("", ",exchange=store")):
        policies = [f"local_sgd:{steps}", *(f"diloco:{steps}{exchange}{outer}" for outer in OUTER.values())]
        cells = []
        for policy in policies:
            runs = [do(policy, SETTINGS[f"digits, {inner}"], seed=seed) for seed in range(seeds)]
            found = [100 * (run.final_metric or 0.0) for run in runs]
            cells.append(f"{statistics.fmean(found):.1f} ({min(found):.1f})")
        rows.append([inner, f"{steps}{exchange}", *cells])
    print_table(f"accuracy, {seeds} seeds", columns=["inner", "H", "local_sgd", *OUTER], rows=rows)


def show_frontier(batches: Sequence[int], *, seeds: int) -> None:
    """Print how far the loss ends above bsp's of equal samples, by batch, local steps and kind."""
    rows = []
    for batch_size in batches:
        length = {"samples": FRONTIER_STEPS * batch_size * 4}
        setting = replace(SETTINGS["small"], batch_size=batch_size, length=length)
        losses = [_loss("bsp", setting, seed=seed) for seed in range(seeds)]
        for period in FRONTIER_PERIODS:
            cells = []
            for text in FRONTIER.values():
                own = [_loss(text.format(period), setting, seed=seed) for seed in range(seeds)]
                above = [100 * (loss / bsp - 1) for loss, bsp in zip(own, losses, strict=True)]
                cells.append(plus_minus(above, "+.1f"))
            rows.append([f"{batch_size}, {period}", *cells])
    print_table(f"% of loss above bsp's, {seeds} seeds", columns=["batch, H", *FRONTIER], rows=rows)


def _loss(policy: str, setting: Setting, *, seed: int) -> float:
    return math.log(do(policy, setting, seed=seed).final_metric or math.nan)


def main() -> None:
    """Do one of the four."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["policies", "rates", "inner", "frontier"])
    parser.add_argument("--task", choices=list(SETTINGS), default="stdlib_lm", help="of rates (stdlib_lm)")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", action="append", default=[], help="a policy, instead of all; may be given again")
    parser.add_argument("--samples", type=int, help="length of a run, instead of an epoch of 14,028")
    parser.add_argument("--batches", default="2,8,32", help="of the frontier (2,8,32)")
    parser.add_argument("--goal", type=float, help="a perplexity, instead of bsp's final one")
    arguments = parser.parse_args()
    setting = SETTINGS[arguments.task]
    if arguments.samples is not None:
        setting = replace(setting, length={"samples": arguments.samples})
    torch.set_num_threads(1)
    if arguments.what == "rates":
        show_rates(setting, seeds=arguments.seeds)
    elif arguments.what == "inner":
        show_inner(seeds=arguments.seeds)
    elif arguments.what == "frontier":
        show_frontier([int(size) for size in arguments.batches.split(",")], seeds=arguments.seeds)
    else:
        show_policies(arguments.only or POLICIES, setting, seeds=arguments.seeds, goal=arguments.goal)


if __name__ == "__main__":
    main()
