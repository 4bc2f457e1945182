"""Policies and time, beside the source: a step above computing, by the number of nodes, and busy time."""

import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from settings import flat_cluster, recipe_of

from plesio.bench.recipe import Recipe
from plesio.core.results import RunResult
from plesio.policies import Adaptive, Reviewed
from plesio.policies.adaptive.controller import Controller

sys.path.insert(0, str(Path(__file__).parents[1]))
from kept_runs import keep_runs
from record import Spread, plus_minus, print_table

__all__ = ["busy", "nodes"]

NODES = (4, 8, 16, 32, 64)
ROUNDS = {"bsp": 12, "ssp:5,period=3": 12, "asp": 12, "adaptive": 64}
"""Steps of each worker; adaptive needs some to get to where it stays."""
EVERY_HOST_ROUNDS = {"ssp:5,period=3": 12, "asp": 4}
"""The same with the default, a server on every host: many messages to model."""
MOST_SERVERS = 8
BATCH = 16
SKETCH = 64
"""Numbers in a sketch of a gradient, and of the parameters."""
BUSY_MBIT_PER_S = 160
NODES_MBIT_PER_S = 500
"""So that BSP spends a third of its time on 8 nodes on other things than computing, as the source's does."""
STRAGGLERS = ("equal", "transient", "persistent")
BUSY_ROUNDS = 64


def nodes(*, seeds: Sequence[int], out: Path) -> None:
    """Show the cost of a step above computing, on 4 to 64 nodes."""
    shown = {}
    for policy, rounds in ROUNDS.items():
        shown[policy] = _above(policy, rounds, seeds, most_servers=MOST_SERVERS, out=out)
    for policy, rounds in EVERY_HOST_ROUNDS.items():
        shown[f"{policy}, a server on every host"] = _above(policy, rounds, seeds, most_servers=None, out=out)
    print_table(
        f"{NODES_MBIT_PER_S} Mbit/s; ms of a worker's step that are not computing, and their share of the step",
        columns=["", *(f"{count} nodes" for count in NODES), "4 to 16", "8 to 64"],
        rows=[[policy, *cells] for policy, cells in shown.items()],
    )
    _show_deciding()


def _above(policy: str, rounds: int, seeds: Sequence[int], *, most_servers: int | None, out: Path) -> list[str]:
    """Cells of a row: by the number of nodes, and how often as much from 4 to 16 and from 8 to 64."""
    cells, above_s = [], {}
    for count in NODES:
        recipe = _timed(policy, count, rounds, seeds, mbit_per_s=NODES_MBIT_PER_S)
        servers = None if policy in ("bsp", "adaptive") or most_servers is None else min(count, most_servers)
        if servers is not None:
            recipe = recipe.model_copy(update={"run": recipe.run.model_copy(update={"servers": servers})})
        folder = f"{count}-{rounds}{_kind(policy)}" + ("" if servers is None else f"-{servers}-servers")
        pairs = [_step_and_computing_s(run) for run in keep_runs(recipe, out=out / folder)[policy]]
        above_s[count] = statistics.fmean(step_s - computing_s for step_s, computing_s in pairs)
        share = plus_minus([100 * (1 - computing_s / step_s) for step_s, computing_s in pairs], ".0f")
        cells.append(f"{1e3 * above_s[count]:.1f} ms, {share} %")
    return [*cells, f"{above_s[16] / above_s[4]:.1f}", f"{above_s[64] / above_s[8]:.1f}"]


def _show_deciding() -> None:
    """Real milliseconds of the controller's decision by the number of workers."""
    taken = {count: Spread(_decide_ms(count, reviews=20)) for count in NODES}
    rows = [[f"{count}", ms.text(".2f"), f"{ms['median'] / (16 * 16):.2%}"] for count, ms in taken.items()]
    print_table("", columns=["workers", "a decision, ms (median, quartiles)", "of 16 steps of 16 ms"], rows=rows)


def _decide_ms(num_workers: int, *, reviews: int) -> list[float]:
    """Milliseconds of a decision on the reviews of so many workers, all switches on."""
    policy = Adaptive()
    controller = Controller(policy)
    generator = torch.Generator().manual_seed(num_workers)
    every = policy.every
    taken_ms = []
    for number in range(reviews):
        clock = every * (number + 1)
        found = {}
        for worker in range(num_workers):
            seconds = (0.02 + 0.004 * torch.rand(every, generator=generator)).tolist()
            rows = tuple(
                (float(step), 1.0, *torch.randn(SKETCH, generator=generator).tolist())
                for step in range(clock - every + 1, clock + 1)
                if step % 32 < 2
            )
            found[worker] = Reviewed(
                worker=worker,
                clock=clock,
                samples=(16,) * every,
                compute_s=tuple(seconds),
                blocked_s=(0.03,) * every,
                loss=2.0 * 0.99**number,
                learning_rate=0.1,
                gradients=rows,
                position=tuple(torch.randn(SKETCH, generator=generator).tolist()),
                summed_rate=0.1 * every,
                exchanges=((float(clock - 4), 0.03),),
            )
        began_s = time.perf_counter()
        controller.review(found)
        taken_ms.append(1e3 * (time.perf_counter() - began_s))
    return taken_ms


def busy(*, seeds: Sequence[int], out: Path) -> None:
    """Show the share of a worker's time in which it computes, with and without stragglers."""
    shown: dict[str, list[tuple[str, float, float]]] = {}
    for policy in ROUNDS:
        cells = shown[policy] = []
        for stragglers in STRAGGLERS:
            recipe = _timed(policy, 8, BUSY_ROUNDS, seeds, mbit_per_s=BUSY_MBIT_PER_S, stragglers=stragglers)
            runs = keep_runs(recipe, out=out / f"{stragglers}{_kind(policy)}")[policy]
            each = [[100 * worker.compute_s / run.wall_s for worker in run.workers] for run in runs]
            rate = statistics.fmean(run.samples / run.wall_s for run in runs)
            least = statistics.fmean(min(one) for one in each)
            cells.append((plus_minus([statistics.fmean(one) for one in each], ".0f"), least, rate))
    rows = []
    for policy, cells in shown.items():
        pairs = zip(cells, shown["bsp"], strict=True)
        texts = [f"{share}; {least:.0f}; {rate / bsp_rate:.2f}" for (share, least, rate), (_, _, bsp_rate) in pairs]
        rows.append([f"`{policy}`", *texts])
    title = "Share of time in which workers compute, %: the mean of all; the least busy; samples/s over bsp's"
    print_table(title, columns=["", *STRAGGLERS], rows=rows)


def _kind(policy: str) -> str:
    return "-trained" if policy == "adaptive" else ""


def _timed(
    policy: str, count: int, rounds: int, seeds: Sequence[int], *, mbit_per_s: float, stragglers: str = "equal"
) -> Recipe:
    """``digits``, trained where the policy looks at it, else with gradients that are zero: times are the same."""
    options = {"learning_rate": 0.4}
    task = {"name": "digits", "batch_size": BATCH, "options": options}
    hollow = {"name": "stand_in:stand_in", "batch_size": BATCH, "options": {"of": "digits", **options}}
    return recipe_of(
        task if policy == "adaptive" else hollow,
        {"samples": BATCH * count * rounds, "evaluate_every": BATCH * count * rounds},
        num_workers=count,
        cluster=flat_cluster(count, mbit_per_s=mbit_per_s),
        policies=[policy],
        seeds=seeds,
        stragglers=stragglers,
    )


def _step_and_computing_s(run: RunResult) -> tuple[float, float]:
    return run.wall_s * run.num_workers / run.steps, sum(worker.compute_s for worker in run.workers) / run.steps
