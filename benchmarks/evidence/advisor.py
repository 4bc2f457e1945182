"""How good is the advisor's first choice? Configurations drawn by seed; what it names is held against what is measured.

    nice python benchmarks/evidence/advisor.py run --set dev --count 6
    nice python benchmarks/evidence/advisor.py show --set dev
    nice python benchmarks/evidence/advisor.py again --set dev      # advise anew, on what was measured before
    nice python benchmarks/evidence/advisor.py complete --set dev   # measure what is chosen, and bsp, on all seeds

A configuration is a task (families/), an optimizer with its rate, workers (perhaps unequal, stalling, in racks) and a
network (`scenario.py`, made smaller by `advisor_task.py`). First the advisor answers, on seed 0 and up. Then every
candidate that can be run is measured on SEEDS, which the advisor never uses: all on the first one, until CUT times the
best time so far at least, and those within NEAR of the best on the others. The time to the target is off the smoothed
curve, for the advisor and for the measurement alike. What is chosen, and bsp, are measured on all of them to the end. A
choice is within 5 % if its mean time is, of the best mean time.

Seconds of the budget are processor seconds (`--clock wall` for the others): other work on the machine then changes how
long it takes and not what comes out.
"""

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advisor_task import OUT, make, scenario_of, tuned_of
from scenario import Scenario
from trial import cluster_of

from plesio.advisor import Question, advise
from plesio.advisor.price import price
from plesio.advisor.runs import Run
from plesio.bench.advise import TaskRehearsal, situation_of
from plesio.bench.advise_probe import probe_task
from plesio.core.files import write_whole

LEFT_OUT = ("bandit",)
"""Families whose seeds come to a target at times that differ by a factor of two: no ranking is measured there."""
SETS = {
    name: tuple(seed for seed in seeds if scenario_of(seed).family not in LEFT_OUT)
    for name, seeds in {
        "dev": range(2000, 2046),
        "report": range(2046, 2080),
        "even": [seed for seed in range(2080, 2160) if scenario_of(seed).nothing_to_gain],
    }.items()
}
"""To develop on, to report, and those of the next eighty in which bsp ought to win: equal workers and fast links."""
SEEDS = (50, 51, 52)
CUT, NEAR, WITHIN, WORTH = 1.3, 1.1, 1.05, 0.02
DEAR = 1.05
"""A step that costs so many times bsp's by the cost models: what takes longer is not measured, as it gains nothing."""
MEASURE_S = 60.0
HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Case:
    """One configuration, ready to be asked about and to be measured."""

    scenario: Scenario
    question: Question
    rehearsal: TaskRehearsal

    @classmethod
    def of(cls, seed: int, *, now_s: Any) -> "Case":
        """Make the configuration of a seed."""
        it = scenario_of(seed)
        task = make(seed=seed)
        probed = probe_task(task)
        num_bytes = sum(4 * math.prod(shape) for shape in probed.sizes.shapes)
        speeds = {it.num_workers - 1 - place: 1 / factor for place, factor in enumerate(it.slow_factors)}
        table = {
            "task": {"name": f"{HERE / 'advisor_task.py'}:make", "options": {"seed": seed}},
            "run": {"policies": ["bsp"], "samples": it.num_samples, "target": tuned_of(seed).target},
            "workers": {
                "count": it.num_workers,
                "cluster": cluster_of(it, num_bytes=num_bytes),
                "step_time": {"kind": "lognormal", "mean": f"{1e6 * it.step_s:.0f} us", "cv": it.step_cv},
                "stalls": {"probability": it.stall_probability, "factor": it.stall_factor}
                if it.stall_probability
                else None,
                "unequal": [{"rank": rank, "speed": speed} for rank, speed in speeds.items()],
            },
        }
        rehearsal = TaskRehearsal(table, probed=probed, measure_s=MEASURE_S, now_s=now_s)
        question = Question(
            name=it.name,
            at=situation_of(rehearsal.workers, None, sizes=probed.sizes, batch_size=it.batch_size),
            has_store=probed.has_store,
            shares_moments=probed.shares_moments,
            metric_name="points",
            metric_goal="max",
            target=tuned_of(seed).target,
            must_reach=False,
            tolerance=math.inf,  # what is measured is the time to the target alone
            failures=None,
            price_per_hour=None,
            measure_s=MEASURE_S,
        )
        return cls(it, question, rehearsal)

    def completed(self, level: float, *, known: dict[str, list[float]], chosen: str) -> dict[str, list[float]]:
        """With bsp and the chosen one on all seeds, however long they take."""
        for spec in dict.fromkeys(["bsp", chosen]):
            times = known.get(spec, [])
            if len(times) < len(SEEDS) or not all(map(math.isfinite, times)):
                known[spec] = [self._seconds(spec, seed, level, within_s=math.inf) for seed in SEEDS]
        return known

    def measured(self, level: float, *, known: dict[str, list[float]]) -> dict[str, list[float]]:
        """Seconds to the level by candidate, one a seed; those that are cut off or never come there have inf."""
        specs = [one.spec for one in self.question.candidates() if one.runs]
        base_s = price("bsp", self.question.at).step_s
        specs = [spec for spec in specs if price(spec, self.question.at).step_s <= DEAR * base_s]
        for spec in specs:
            if spec not in known:
                best_s = min((times[0] for times in known.values()), default=math.inf)
                known[spec] = [self._seconds(spec, SEEDS[0], level, within_s=CUT * best_s)]
        best_s = min(times[0] for times in known.values())
        for seed in SEEDS[1:]:
            for spec, times in known.items():
                near = times[0] <= NEAR * best_s or spec == "bsp"
                if len(times) <= SEEDS.index(seed) and near and math.isfinite(times[0]):
                    times.append(self._seconds(spec, seed, level, within_s=math.inf))
        return known

    def _seconds(self, spec: str, seed: int, level: float, *, within_s: float) -> float:
        for share in (0.25, 0.5, 1.0):  # what is cut off has no curve, so it is given more and more
            rehearsed = self.rehearsal.run(
                spec,
                seed=seed,
                servers=price(spec, self.question.at).servers,
                until_samples=share * self.rehearsal.most_samples,
                within_s=math.inf,
                budget_s=math.inf,
            )
            run = Run.of(rehearsed, by_loss=False)
            seconds = math.inf if run.curve is None else run.curve.seconds_to(level)
            if run.curve is None or math.isfinite(seconds) or run.virtual_s > within_s:
                break
        return seconds


def run(seeds: Iterator[int], *, folder: Path, clock: str, again: bool) -> None:
    """Ask and measure; a configuration that is there is not done again."""
    now_s = time.process_time if clock == "processor" else time.monotonic
    for seed in seeds:
        path = folder / f"{seed}.json"
        kept = json.loads(path.read_text()) if path.exists() else {}
        if kept and not again:
            continue
        case = Case.of(seed, now_s=now_s)
        try:
            begun_s, begun_process_s = time.monotonic(), time.process_time()
            advice = advise(case.question, case.rehearsal, now_s=now_s)
            took = {"wall_s": time.monotonic() - begun_s, "process_s": time.process_time() - begun_process_s}
        except Exception as error:  # a defect of the advisor is a result, too
            print(f"{seed} {case.scenario.name}: {type(error).__name__}: {error}", flush=True)
            continue
        level = advice.raced.goal.level
        known = {spec: list(map(float, times)) for spec, times in kept.get("measured", {}).items()}
        if kept and abs(kept["level"] - level) > 1e-9 * abs(level):
            print(f"{seed}: the level has changed, {kept['level']} to {level}", flush=True)
            known = {}
        known = case.completed(level, known=case.measured(level, known=known), chosen=advice.chosen.spec)
        kept = {
            "seed": seed,
            "name": case.scenario.name,
            "level": level,
            "target": advice.raced.goal.target,
            "chosen": advice.chosen.spec,
            "predicted": {row.spec: str(row.time_s) for row in advice.rows if row.how == "measured"},
            "runs": advice.raced.num_runs,
            **took,
            "measured": {spec: list(map(str, times)) for spec, times in known.items()},
        }
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(kept, indent=1) + "\n")
        print(_line(kept), flush=True)


def complete(folder: Path) -> None:
    """Measure the chosen one, and bsp, on all seeds, in the configurations that are there."""
    for path in sorted(folder.glob("*.json")):
        kept = json.loads(path.read_text())
        known = {spec: list(map(float, times)) for spec, times in kept["measured"].items()}
        times = known.get(kept["chosen"], [])
        if len(times) == len(SEEDS) and all(map(math.isfinite, times)):
            continue
        case = Case.of(kept["seed"], now_s=time.process_time)
        known = case.completed(kept["level"], known=known, chosen=kept["chosen"])
        kept["measured"] = {spec: list(map(str, times)) for spec, times in known.items()}
        write_whole(path, json.dumps(kept, indent=1) + "\n")


def _means(kept: dict[str, Any]) -> dict[str, float]:
    """Mean seconds of each candidate that was measured on all seeds, or on fewer where it was far from the best."""
    return {spec: statistics.fmean(map(float, texts)) for spec, texts in kept["measured"].items()}


def _verdict(kept: dict[str, Any]) -> tuple[str, float, bool, bool]:
    """Return the best measured, the chosen one's time over its, whether DDP should be named, and whether it was."""
    means = _means(kept)
    full = {spec: mean for spec, mean in means.items() if len(kept["measured"][spec]) >= len(SEEDS)}
    best = min(full or means, key=lambda spec: means[spec])
    ratio = means.get(kept["chosen"], math.inf) / means[best]
    ddp = means["bsp"] <= (1 + WORTH) * means[best]
    return best, ratio, ddp, kept["chosen"] == "bsp"


def _line(kept: dict[str, Any]) -> str:
    best, ratio, ddp, named = _verdict(kept)
    means = _means(kept)
    mark = "ok " if ratio <= WITHIN else "BAD"
    return (
        f"{mark} {kept['seed']} {kept['name']:24} chose {kept['chosen']:28} best {best:28} x{ratio:.3f} "
        f"bsp x{means['bsp'] / means[best]:.2f}{' DDP should be named' if ddp and not named else ''} "
        f"| {kept['runs']} runs, {kept['wall_s']:.0f} s, {kept['process_s']:.0f} processor s"
    )


def show(folder: Path) -> None:
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    for kept in found:
        print(_line(kept))
    verdicts = [_verdict(kept) for kept in found]
    within = sum(ratio <= WITHIN for _, ratio, _, _ in verdicts)
    ddp = [named for _, _, should, named in verdicts if should]
    print(f"{within} of {len(found)} within 5 %; DDP named in {sum(ddp)} of {len(ddp)} where it is best within 2 %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["run", "again", "complete", "show"])
    parser.add_argument("--set", choices=list(SETS), default="dev", dest="set_name")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="configurations before it are left out (0)")
    parser.add_argument("--count", type=int, default=6, metavar="N", help="configurations (6)")
    parser.add_argument("--clock", choices=["processor", "wall"], default="processor", help="of the budget (processor)")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    folder = OUT / arguments.set_name
    if arguments.command == "complete":
        complete(folder)
    elif arguments.command != "show":
        seeds = SETS[arguments.set_name][arguments.first : arguments.first + arguments.count]
        try:
            run(iter(seeds), folder=folder, clock=arguments.clock, again=arguments.command == "again")
        except KeyboardInterrupt:
            raise SystemExit("interrupted; the same command goes on from here") from None
    show(folder)


if __name__ == "__main__":
    main()
