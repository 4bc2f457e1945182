"""Tables of a campaign: adaptive's time to target and final points against BSP's and the best static's."""

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from campaign import Campaign, Outcome, kept_outcomes
from scenario import Scenario
from scipy.stats import t as student

from plesio.policies import parse_policy

sys.path.insert(0, str(Path(__file__).parents[1]))
from record import mean_and_error, print_table, with_error

WITHIN = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One policy in one scenario, over the seeds that it and what it is compared with have.

    Attributes:
        num_seeds: That both it and BSP have.
        against_bsp: Mean time to target over BSP's mean; inf if any seed does not get there, NaN if BSP does not.
        noise: Standard error of that ratio, from the seeds' spread; NaN with one seed.
        points: Final points minus BSP's, mean over the seeds.
        points_error: Its standard error; NaN with one seed.
        best_static: The static that it takes longest in comparison with, each over the seeds that both have.
        against_best: Mean time over its mean.
        best_noise: Standard error of that ratio.
    """

    scenario: Scenario
    policy: str
    num_seeds: int
    against_bsp: float
    noise: float
    points: float
    points_error: float
    best_static: str
    against_best: float
    best_noise: float

    @property
    def near_best(self) -> bool:
        """Within 5 % of the best static, or inside the noise of that (two standard errors)."""
        within_noise = self.against_best - 1 <= 2 * self.best_noise  # False with NaN
        return self.against_best <= WITHIN or within_noise


def rows_of(campaign: Campaign, *, policy: str) -> list[Row]:
    """Make a row for each scenario that has runs of BSP and of the policy; the worst first."""
    rows = [row for it in campaign.scenarios if (row := _row(campaign, it, policy)) is not None]
    return sorted(rows, key=lambda row: -math.inf if math.isnan(row.against_bsp) else row.against_bsp, reverse=True)


def _row(campaign: Campaign, scenario: Scenario, policy: str) -> Row | None:
    own = kept_outcomes(campaign, scenario, policy)
    statics = {
        one: found
        for one in campaign.policies
        if not parse_policy(one).adapts and (found := kept_outcomes(campaign, scenario, one))
    }
    seeds = sorted(own.keys() & statics.get("bsp", {}).keys())
    if not seeds:
        return None
    ratios = {one: _against(own, found) for one, found in statics.items()}
    against_bsp, noise = ratios["bsp"]
    best = max(ratios, key=lambda one: -math.inf if math.isnan(ratios[one][0]) else ratios[one][0])
    against_best, best_noise = ratios[best]
    points, points_error = mean_and_error([own[seed].final - statics["bsp"][seed].final for seed in seeds])
    return Row(
        scenario=scenario,
        policy=policy,
        num_seeds=len(seeds),
        against_bsp=against_bsp,
        noise=noise,
        points=points,
        points_error=points_error,
        best_static=best,
        against_best=against_best,
        best_noise=best_noise,
    )


def _against(own: Mapping[int, Outcome], other: Mapping[int, Outcome]) -> tuple[float, float]:
    """Mean time over mean time on the seeds that both have, and its standard error (delta method, seeds paired)."""
    seeds = sorted(own.keys() & other.keys())
    ours, theirs = [own[seed].to_target_s for seed in seeds], [other[seed].to_target_s for seed in seeds]
    if not seeds or not math.isfinite(sum(theirs)):
        return math.nan, math.nan
    ratio = statistics.fmean(ours) / max(statistics.fmean(theirs), 1e-12)
    if not math.isfinite(ratio) or len(ours) < 2:
        return ratio, math.nan
    rests = [mine - ratio * their for mine, their in zip(ours, theirs, strict=True)]
    return ratio, statistics.stdev(rests) / math.sqrt(len(rests)) / statistics.fmean(theirs)


def show(rows: Sequence[Row]) -> None:
    columns = ["scenario", "optimizer, schedule, rate", "workers", "stragglers", "exchange / step", "time / bsp"]
    cells = []
    for row in rows:
        it = row.scenario
        cells.append(
            [
                it.name,
                f"{it.optimizer}, {it.schedule}, x{it.rate_factor:g}{f', {it.more}' if it.more else ''}",
                f"{it.num_workers}{f', {it.racks} racks' if it.racks > 1 else ''}",
                it.stragglers,
                f"{it.exchange_share:.2f}",
                with_error(row.against_bsp, row.noise, ".2f"),
                with_error(row.points, row.points_error, ".1f"),
                f"`{row.best_static}`",
                with_error(row.against_best, row.best_noise, ".2f"),
            ]
        )
    print_table("", columns=[*columns, "points - bsp", "best static", "time / best"], rows=cells)
    for line in _summary(rows):
        print(f"- {line}")


def show_alone(campaign: Campaign) -> None:
    """Print a Markdown table of each policy by itself in all scenarios, with the first seed; the best first."""
    seed = campaign.seeds[0]
    lines: list[tuple[float, list[str]]] = []
    for policy in campaign.policies:
        pairs = [
            (own, bsp)
            for it in campaign.scenarios
            if (own := campaign.outcome(it, policy, seed)) and (bsp := campaign.outcome(it, "bsp", seed))
        ]
        ratios = [
            own.to_target_s / bsp.to_target_s for own, bsp in pairs if math.isfinite(own.to_target_s + bsp.to_target_s)
        ]
        if policy == "bsp" or not ratios:
            continue
        missed = sum(math.isinf(own.to_target_s) and math.isfinite(bsp.to_target_s) for own, bsp in pairs)
        below = sum(own.final < bsp.final - 1 for own, bsp in pairs)
        mean = statistics.geometric_mean(ratios)
        lines.append((mean, [f"`{policy}`", f"{len(pairs)}", f"{mean:.2f}", f"{missed}", f"{below}"]))
    columns = ["scenarios", "time / bsp where it gets there", "not there", "more than 1 point below bsp"]
    first = f"one policy in all scenarios, seed {seed}"
    print_table("", columns=[first, *columns], rows=[line for _, line in sorted(lines)])


def _summary(rows: Sequence[Row]) -> list[str]:
    known = [row for row in rows if not math.isnan(row.against_bsp)]
    calm = [row.against_bsp for row in known if row.scenario.nothing_to_gain]
    other = [row.against_bsp for row in known if not row.scenario.nothing_to_gain]
    above = [row for row in known if row.against_bsp > 1.05 and not row.against_bsp - 1.05 <= 2 * row.noise]
    near = sum(row.near_best for row in rows)
    lost = sum(row.points < -1 - (2 * row.points_error if row.points_error > 0 else 0) for row in rows)
    against_best = [row.against_best for row in rows if not math.isnan(row.against_best)]
    return [
        f"time to target / bsp, geometric mean: {_geometric(calm)} where nothing is to be gained ({len(calm)} "
        f"scenarios; wanted 1.01), {_geometric(other)} elsewhere ({len(other)}; wanted 0.65)",
        f"worst {max(calm + other, default=math.nan):.2f} (wanted 1.15); {len(above)} above 1.05 by more than noise",
        f"{len(rows) - len(known)} scenarios in which bsp does not reach the target with every seed",
        f"final points - bsp: {_interval([row.points for row in rows])} (wanted -0.2, above -0.5); "
        f"{lost} worse by more than noise and 1 point",
        f"within 5 % of the best static or inside the noise: {near} of {len(rows)} (wanted 32 of 40); within 25 %: "
        f"{sum(ratio <= 1.25 for ratio in against_best)} (wanted all); median {statistics.median(against_best):.2f}, "
        f"worst {max(against_best):.2f}",
    ]


def _geometric(ratios: Sequence[float]) -> str:
    return f"{math.exp(statistics.fmean(map(math.log, ratios))):.3f}" if ratios else "none"


def _interval(values: Sequence[float]) -> str:
    """Mean, and the 95 % interval over the scenarios (Student)."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return f"{mean:.2f}"
    half = float(student.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean:.2f}, 95 % from {mean - half:.2f} to {mean + half:.2f}"
