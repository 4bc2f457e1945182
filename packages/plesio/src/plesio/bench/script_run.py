"""One run of a comparison's script: its program, its surroundings, and its result from what its workers ended with."""

import re
import shutil
import sys
import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import TypeAdapter

from plesio.bench.assignment import Assignment
from plesio.bench.recipe import Recipe
from plesio.bench.recipe_workers import WorkersSection
from plesio.bench.setting import OUTPUT_NAME
from plesio.core.errors import ConfigError
from plesio.core.files import check_script
from plesio.core.results import RunResult
from plesio.policies.grid import is_grid
from plesio.runtime.worker.job_handle import Chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRun:
    """A run of a script with all its workers.

    Attributes:
        arguments: Its ``sys.argv``, less the first.
        name: Its task's name in the results.
        folder: Takes traces, results and output.
        workers: How many, how fast, where.
    """

    script: Path
    arguments: tuple[str, ...]
    name: str
    policy: str
    seed: int
    folder: Path
    workers: WorkersSection

    @classmethod
    def of(cls, recipe: Recipe, assignment: Assignment) -> "ScriptRun":
        """Return the assigned run of the recipe's script; ``{seed}`` in its arguments is the run's seed."""
        assert assignment.folder is not None, "a comparison keeps its runs"
        script = recipe.task.script
        return cls(
            script=script,
            arguments=tuple(text.replace("{seed}", str(assignment.seed)) for text in recipe.task.arguments),
            name=script.name,
            policy=assignment.policy,
            seed=assignment.seed,
            folder=assignment.folder,
            workers=recipe.workers,
        )

    def to_json(self) -> str:
        """Write the run as JSON, for a process of its own; `from_json` reads it."""
        return TypeAdapter(ScriptRun).dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str) -> "ScriptRun":
        return TypeAdapter(ScriptRun).validate_json(text, strict=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptEnding:
    """The end of a run.

    Attributes:
        result: The result of its last session; None if none has given any.
        own: Errors of the script itself, by rank.
        left: The status with which the script has ended by itself, by rank, where it is that of a failure.
        refused: Errors of Plesio, by rank.
        failed: Whether the others have not finished without the workers that failed.
        chosen: The choices of one worker, for each session that it joined.
    """

    result: RunResult | None
    own: Mapping[int, str] = field(default_factory=dict)
    left: Mapping[int, str] = field(default_factory=dict)
    refused: Mapping[int, str] = field(default_factory=dict)
    failed: bool
    chosen: Sequence[Chosen] = ()

    def result_of(self, run: ScriptRun) -> RunResult:
        """Return the result of the run.

        Raises:
            ConfigError: The script fails before its first step by itself, takes part in no run, or leaves one open.
        """
        result = self.result
        # in virtual time workers are lost by plan, and a session that is left open gives no result
        all_lost = result is not None and len(result.lost_workers) >= run.workers.count
        none_left = result is None or (all_lost and result.world != "virtual")
        if none_left and not (self.own or self.left or self.refused):
            raise without_result(run, left_open(bool(self.chosen)))
        problem = _told(self.own or self.left or self.refused, num_workers=run.workers.count)
        if result is None or (result.steps == 0 and (self.own or self.left)):
            if self.own:
                raise ConfigError(f"{run.script} fails before its first step: {problem}; {output_of(run.folder)}")
            if self.left:
                said = last_line(run.folder / OUTPUT_NAME)
                raise without_result(run, f"{problem} before its first step{f': {said}' if said else ''}")
            result = RunResult(
                policy=run.policy,
                task=run.name,
                world="process",
                seed=run.seed,
                num_workers=run.workers.count,
                status="failed",
                steps=0,
                samples=0,
                wall_s=0.0,
            )
        elif result.policy != run.policy:
            raise ConfigError(
                f"{run.script} trains under {result.policy} when it is to train under {run.policy}; one that calls "
                "plesio.grid is compared under grids, as in --policies grid:1x2,grid:2x1"
            )
        result = replace(result, task=run.name, seed=run.seed)
        if self.failed:
            return replace(result, status="failed", error=f"{problem}; {output_of(run.folder)}")
        return result if not problem else replace(result, fallbacks=(*result.fallbacks, problem))

    def remarks(self, run: ScriptRun) -> Iterator[str]:
        """Yield a line for each choice of the script that does not hold, and for sessions that are not shown."""
        script = run.script.name
        for chosen in self.chosen[:1]:
            if chosen.policy not in (None, "adaptive", run.policy) and not is_grid(run.policy):
                yield f"{script} asks for the policy {chosen.policy} itself; here each run has the comparison's"
            if chosen.trace is not None:
                yield f"{script} asks for traces in {chosen.trace}; here they are beside the comparison's results"
            if chosen.checkpoint is not None:
                yield f"{script} asks for checkpoints in {chosen.checkpoint}; here they are those of --checkpoint alone"
        if len(self.chosen) > 1:
            yield f"{script} joins {len(self.chosen)} times in a run; the comparison shows the last session"


def remarks_on_all(
    script: str, results: Sequence[RunResult], *, torch_seeds: Mapping[int, Collection[int]]
) -> Iterator[str]:
    """Yield a line if the script was never evaluated, if its metric fell, and if it sets its seed itself.

    Args:
        script: Its name.
        results: All runs.
        torch_seeds: Seeds of torch's generator when it joined, by the run's seed.
    """
    finished = [result for result in results if result.status == "finished"]
    if finished and not any(result.evaluations for result in finished):
        yield f"{script} never calls session.evaluate, so there is no metric to compare"
    if finished and all(map(_fell, finished)):
        yield (
            f"{script}'s {finished[0].metric_name} fell in every run, and more of it counts as better; if less of it "
            'is, write session.evaluate(..., goal="min")'
        )
    seeds = sorted({result.seed for result in finished})
    if len(seeds) < 2:
        return
    ended: dict[str, list[str | None]] = {}
    for result in finished:
        ended.setdefault(result.policy, []).append(result.parameters_sha256)
    same = [policy for policy, digests in ended.items() if len(digests) > 1 and len({*digests}) == 1]
    names = f"{', '.join(map(str, seeds[:-1]))} and {seeds[-1]}"
    remedy = "give it the run's as an argument, as in -- --seed {seed}"
    if same:
        yield f"seeds {names} ran identically under {', '.join(same)}: {script} sets its seed itself; {remedy}"
    elif len({seed for those in torch_seeds.values() for seed in those}) == 1 < len(torch_seeds):
        yield f"{script} sets its seed itself: seeds {names} differ in the order of samples alone; {remedy}"


def _fell(result: RunResult) -> bool:
    """Return whether the metric went down, all in all, when it was to go up."""
    points = result.evaluations
    return result.metric_goal == "max" and len(points) > 1 and points[-1].metric < points[0].metric


def output_of(folder: Path) -> str:
    return f"its output is in {folder / OUTPUT_NAME}"


def without_result(run: ScriptRun, how: str) -> ConfigError:
    """Make the error for a script that has ended so, and remove the run's folder, which has nothing of value."""
    shutil.rmtree(run.folder)
    return ConfigError(f"{run.script} {how}")


def left_open(joined: bool) -> str:
    """Tell how a script has ended that has no run to show, whether it has joined one or not."""
    if not joined:
        return "never called plesio.join or plesio.grid, so there is no run to show"
    return (
        "ends without closing its session, so there is no run to show; write `with plesio.join(...) as session:`, or "
        "session.close() at its end"
    )


def last_line(output: Path) -> str:
    """Return the last line that workers have printed, without its worker; empty where there is none."""
    printed = output.read_text(encoding="utf-8", errors="replace").splitlines()
    lines = [line for line in printed if line.strip() and not line.startswith("plesio: ")]
    return re.sub(r"^\[ *\d+\] ", "", lines[-1]).strip() if lines else ""


def _told(problems: Mapping[int, str], *, num_workers: int) -> str:
    """Write each problem once, with the workers that have it, unless all have."""
    ranks: dict[str, list[int]] = {}
    for rank, text in sorted(problems.items()):
        ranks.setdefault(text, []).append(rank)
    return "; ".join(
        text if len(those) == num_workers else f"{text} (worker{'s'[: len(those) - 1]} {', '.join(map(str, those))})"
        for text, those in ranks.items()
    )


def compiled(script: Path) -> types.CodeType:
    """Compile a script.

    Raises:
        ConfigError: There is none, or it is no Python.
    """
    check_script(script)
    try:
        return compile(script.read_bytes(), str(script), "exec")
    except SyntaxError as error:
        raise ConfigError(f"{script}, line {error.lineno}: {error.msg}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {script}: {error}") from None


def main_of(script: Path) -> types.ModuleType:
    """Make the module in which a script runs as ``__main__``."""
    module = types.ModuleType("__main__")
    module.__file__ = str(script)
    return module


@contextmanager
def as_main(script: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Give this process the script's arguments and the modules beside it."""
    argv, path = sys.argv, list(sys.path)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent.resolve()))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path
