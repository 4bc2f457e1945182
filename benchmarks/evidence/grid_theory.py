"""The grid against its theory: variance, gradient norm, step sizes and consensus, measured in the virtual world.

    python benchmarks/evidence/grid_theory.py                 # all tables of docs/evidence.md, and their figures
    python benchmarks/evidence/grid_theory.py bound --seeds 3
    python benchmarks/evidence/grid_theory.py rates
    python benchmarks/evidence/grid_theory.py limits
    python benchmarks/evidence/grid_theory.py consensus

The task is `quadratic_grid`, whose L is 1 and whose σ² is 1 for every stage.
"""

import argparse
import itertools
import math
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from quadratic_grid import ChainRun, QuadraticChain, delays_of, shrinking_rate, train_chain

from plesio.core.charts import Axis, LineChart, Series
from plesio.core.mixing import Mixing
from plesio.policies.compression import parse_compression
from plesio.policies.grid import GridSetting
from plesio.report.charts import draw_picture
from plesio_planning.theory.bound import Bound
from plesio_planning.theory.dynamics import stability_limit_of_delays
from plesio_planning.theory.grid import consensus_rate, grid

sys.path.insert(0, str(Path(__file__).parents[1]))
from record import print_table, with_error

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
SHAPES: Mapping[Literal["quadratic", "log"], Sequence[tuple[int, int]]] = {
    "quadratic": tuple(itertools.product((1, 2, 4), repeat=2)),
    "log": ((1, 4), (4, 1), (2, 2)),
}
"""Groups and stages, by φ."""
NUM_TICKS = 150
BATCH = 4
"""Samples of a group's micro-batch."""
OF_LARGEST = 0.9
"""The learning rate, as a share of the largest that suffices."""
NUM_GROUPS = 8
"""Groups of the runs on consensus."""


def bound_of(chain: QuadraticChain, setting: GridSetting, *, learning_rate: float) -> Bound:
    return grid(
        num_stages=setting.stages,
        num_groups=setting.groups,
        smoothness=chain.smoothness,
        gap=chain.gap,
        batch_size=setting.groups * BATCH,
        learning_rate=learning_rate,
        num_ticks=NUM_TICKS,
        mixing=setting.mixing.name,  # type: ignore[arg-type]
    )


def largest_rate(chain: QuadraticChain, setting: GridSetting) -> float:
    return bound_of(chain, setting, learning_rate=1e-9).also["largest learning rate"]


def trained(chain: QuadraticChain, setting: GridSetting, *, learning_rate: float, seed: int) -> ChainRun:
    return train_chain(
        chain,
        setting,
        learning_rate=learning_rate,
        num_ticks=NUM_TICKS,
        batch_size=BATCH,
        stage_variance=1.0,
        seed=seed,
    )


def mean_and_spread(values: Sequence[float], form: str = ".3f") -> str:
    """``mean ± standard deviation``, of one value itself."""
    return with_error(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else math.nan, form)


def show_bounds(*, seeds: int) -> None:
    """Variance, gradient norm and disagreement, each over what theory says, for S and K of 1, 2 and 4."""
    rows = []
    for kind, shapes in SHAPES.items():
        chain = QuadraticChain.coupled(kind=kind)
        for groups, stages in shapes:
            setting = GridSetting(groups=groups, stages=stages, mixing=Mixing.on("ring", groups))
            rate = OF_LARGEST * largest_rate(chain, setting)
            bound = bound_of(chain, setting, learning_rate=rate)
            variance = bound.also["variance of the gradient, Kσ²/B_S"]
            distance = bound.also["mean squared distance of a group from the mean"]
            runs = [trained(chain, setting, learning_rate=rate, seed=seed) for seed in range(seeds)]
            gradient = statistics.fmean(run.mean_squared_gradient for run in runs)
            apart = "–"
            if groups == 4:  # a ring of two or one agrees at once
                apart = mean_and_spread([run.squared_distances().mean() / distance for run in runs], ".2f")
            shape = [kind, f"{groups} x {stages}", f"{rate:.4f}", f"{variance:.4f}"]
            shown = mean_and_spread([run.variance / variance for run in runs])
            of_bound = [f"{gradient:.4f}", f"{bound.value:.4f}", f"{gradient / bound.value:.2f}"]
            rows.append([*shape, shown, *of_bound, apart])
    columns = ["φ", "S x K", "learning rate", "Kσ²/B_S", "variance / Kσ²/B_S", "mean ‖∇f‖²", "bound", "share"]
    title = f"{NUM_TICKS} ticks, micro-batches of {BATCH}, {OF_LARGEST} of the largest rate, ring; seeds: {seeds}"
    print_table(title, columns=[*columns, "distance / bound"], rows=rows)


def draw_bound() -> None:
    """Measured gradient norm and bound by learning rate, up to where runs diverge."""
    chain, setting = QuadraticChain.coupled(), GridSetting(stages=4)
    largest = largest_rate(chain, setting)
    limit = stability_limit_of_delays(chain.hessian, delays_of(chain, setting))
    measured = [*np.geomspace(largest / 16, largest, 4), *np.geomspace(2 * largest, 0.98 * limit, 2)]
    values = [trained(chain, setting, learning_rate=float(rate), seed=0).mean_squared_gradient for rate in measured]
    rates = [float(rate) for rate in np.geomspace(largest / 16, largest * (1 - 1e-9), 30)]
    bounds = [bound_of(chain, setting, learning_rate=rate) for rate in rates]
    parts = [
        Series(name=part, x=rates, y=[bound.parts[part] for bound in bounds], style="dashed")
        for part in ("start", "noise", "staleness")
    ]
    chart = LineChart(
        slug="bound",
        title=f"Four stages: below the bound, which ends at 1/{limit / largest:.1f} of what a run bears",
        caption="Mean squared gradient norm at the groups' mean over the run, and its bound.",
        x=Axis(title="learning rate", log=True),
        y=Axis(title="mean ‖∇f‖²", log=True),
        series=[
            Series(name="bound", x=rates, y=[bound.value for bound in bounds]),
            *parts,
            Series(name="measured", x=[float(rate) for rate in measured], y=values, style="points"),
        ],
        marks={"largest that suffices": largest, "diverges": limit},
    )
    save("grid_bound.png", chart)


def show_limits() -> None:
    """Print the largest learning rate that suffices, and where a run without noise begins to diverge."""
    rows = []
    for name, chain in {
        "in all stages": QuadraticChain.coupled(),
        "in the first": QuadraticChain.first_stage_steepest(),
    }.items():
        for groups, stages in ((1, 1), (1, 2), (2, 2), (1, 4)):
            setting = GridSetting(groups=groups, stages=stages, mixing=Mixing.on("ring", groups))
            delays = delays_of(chain, setting)
            limit, largest = stability_limit_of_delays(chain.hessian, delays), largest_rate(chain, setting)
            said = ["diverges" if diverges(chain, setting, share * limit) else "converges" for share in (0.97, 1.03)]
            rates = [f"{largest:.4f}", f"{limit:.4f}", f"{limit / largest:.2f}"]
            rows.append([name, f"{groups} x {stages}", f"{max(delays)}", *rates, *said])
    columns = ["curvature", "S x K", "longest delay", "suffices", "diverges from", "over", "run at 0.97", "run at 1.03"]
    print_table("", columns=columns, rows=rows)


def diverges(chain: QuadraticChain, setting: GridSetting, learning_rate: float) -> bool:
    """Return True if the groups' mean ends farther from the optimum than it is half-way, after all shrinking parts."""
    num_ticks = 25 * (1 + max(setting.delays))
    run = train_chain(chain, setting, learning_rate=learning_rate, num_ticks=num_ticks)
    sizes = np.linalg.norm(run.weights.mean(axis=0), axis=1)
    window = 5 * (1 + max(setting.delays))  # about a swing
    middle = num_ticks // 2
    return bool(sizes[-window:].max() > sizes[middle : middle + window].max())


def path(size: int) -> Mixing:
    """Mix a row of groups, each with its neighbours by a third."""
    matrix = np.diag([2 / 3, *[1 / 3] * (size - 2), 2 / 3]) + (np.eye(size, k=1) + np.eye(size, k=-1)) / 3
    return Mixing.given(matrix.tolist())


def lazy(mixing: Mixing) -> Mixing:
    """Half of the way."""
    return Mixing.given(((np.array(mixing.matrix) + np.eye(mixing.size)) / 2).tolist())


def show_consensus() -> None:
    """How fast the groups' distance shrinks by mixing alone, and what the spectral gap predicts."""
    ring = Mixing.on("ring", NUM_GROUPS)
    plain: list[tuple[str, Mixing, dict[str, Any], int]] = [
        ("`all`", Mixing.on("all", NUM_GROUPS), {}, 6),
        ("`exponential`", Mixing.on("exponential", NUM_GROUPS), {}, 40),
        ("`ring`", ring, {}, 90),
        ("a row (given matrix)", path(NUM_GROUPS), {}, 160),
    ]
    late: list[tuple[str, Mixing, dict[str, Any], int]] = [
        ("`ring`, `every=3,bound=2`", ring, {"every": 3, "bound": 2}, 240),
        ("half a `ring` (given), `bound=1`", lazy(ring), {"bound": 1}, 120),
    ]
    for spec in ("fp16", "qsgd:8", "qsgd:4", "topk:0.25", "randk:0.25"):
        late.append((f"`ring`, `compress={spec}`", ring, {"compress": parse_compression(spec)}, 160))
    series, rows = [], []
    for name, mixing, options, num_ticks in (*plain, *late):
        setting = GridSetting(groups=NUM_GROUPS, mixing=mixing, **options)
        chain = QuadraticChain(hessian=np.eye(16))
        run = train_chain(chain, setting, learning_rate=0.0, num_ticks=num_ticks, disturbed_by=1.0)
        distances = run.squared_distances()[:: setting.every]
        predicted = consensus_rate(mixing, late=setting.bound // setting.every)
        rows.append([name, f"{mixing.spectral_gap:.4f}", *consensus_row(setting, distances, predicted)])
        if not options and name != "`all`":
            series += consensus_series(name.strip("`"), np.sqrt(distances[1:]), predicted)
    print_table(
        f"{NUM_GROUPS} groups, learning rate 0, disturbed after the first tick",
        columns=["mixing", "spectral gap", "rate predicted", "rate measured", "apart"],
        rows=rows,
    )
    chart = LineChart(
        slug="consensus",
        title="The groups' distance from their mean shrinks as the spectral gap predicts",
        caption="Eight groups, learning rate 0: root of the mean squared distance, and ρ to the number of mixings.",
        x=Axis(title="mixings"),
        y=Axis(title="distance", log=True),
        series=series,
    )
    save("grid_consensus.png", chart)


def consensus_row(setting: GridSetting, distances: np.ndarray, predicted: float) -> tuple[str, str, str]:
    """Cells: rate predicted and measured, and by how much they differ."""
    if predicted < 1e-9:
        shrunk = math.sqrt(distances[2] / distances[1])
        return "0", f"{shrunk:.0e}, by one mixing", "rounding"
    compressed = setting.compress.spec != "none"
    measured = shrinking_rate(distances.tolist(), least=1e-11 if compressed else 1e-22)  # estimates are in float32
    if compressed:
        return "none", f"{measured:.4f}", f"slower than without: {math.log(predicted) / math.log(measured):.2f} times"
    return f"{predicted:.4f}", f"{measured:.4f}", f"{100 * abs(measured / predicted - 1):.2f} %"


def consensus_series(name: str, distances: np.ndarray, predicted: float) -> list[Series]:
    """Points that were measured until rounding counts, and the line of the prediction through the last of them."""
    counts = distances > 1e-11 * distances[0]
    last = int(np.flatnonzero(counts)[-1])
    shown = range(0, last + 1, max(1, last // 25))
    places = list(range(last + 1))
    line = [float(distances[last]) * predicted ** (place - last) for place in places]
    return [
        Series(name=f"{name}, predicted", x=places, y=line, group=name),
        Series(name=name, x=list(shown), y=[float(distances[place]) for place in shown], style="points", group=name),
    ]


def save(name: str, chart: LineChart) -> None:
    (PICTURES / name).write_bytes(draw_picture(chart))
    print(f"\nwritten: {PICTURES / name}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("part", nargs="?", choices=("bound", "rates", "limits", "consensus"), help="all without")
    parser.add_argument("--seeds", type=int, default=1, help="seeds 0 to N - 1 of the table of bounds")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if arguments.part in (None, "bound"):
        show_bounds(seeds=arguments.seeds)
    if arguments.part in (None, "rates"):
        draw_bound()
    if arguments.part in (None, "limits"):
        show_limits()
    if arguments.part in (None, "consensus"):
        show_consensus()


if __name__ == "__main__":
    main()
