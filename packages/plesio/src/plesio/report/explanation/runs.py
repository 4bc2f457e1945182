"""Finds the runs in a folder whose policy changes while they train: a run's own trace folder, or a comparison's.

With them it finds the runs under bsp to hold them against: in the same results, for a run's own folder in those of the
comparison that it is a part of (``COMPARISON/runs/RUN``), or where the user says.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from plesio.core.errors import DataError, PolicySpecError
from plesio.core.results import RunResult, read_results
from plesio.policies import parse_policy, read_log
from plesio.report.explanation.explain import explanation_of
from plesio.report.explanation.model import Explanation
from plesio.report.operation import read_operation
from plesio.report.operation_advice import operation_advice
from plesio.report.statistics import Difference, difference_of
from plesio.report.summarise import final_metrics

_RESULTS, _EVENTS, _RUNS, _SETTING = "results.json", "events.jsonl", "runs", "setting.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangingRuns:
    """The runs of a folder whose policy adapts or switches.

    Attributes:
        folders: Where each one's events are; None where none were recorded.
        known: All runs that stand beside them, they themselves included.
        comparison: Folder of the comparison that they are of; None where they are of none.
    """

    directory: Path
    runs: tuple[RunResult, ...]
    folders: tuple[Path | None, ...]
    known: tuple[RunResult, ...]
    comparison: Path | None

    def choose(self, *, policy: str | None = None, seed: int | None = None) -> int:
        """Find the first run with this policy and seed; None is any.

        Raises:
            DataError: There is none.
            PolicySpecError: The policy is none, or changes nothing.
        """
        spec = None if policy is None else _changing_spec(policy)
        if not self.runs:
            here = read_results(self.directory / _RESULTS)
            policies = ", ".join(dict.fromkeys(run.policy for run in here)) or "no runs"
            raise DataError(
                f"nothing in {self.directory} changes while it trains ({policies}); explain a run of adaptive or "
                "switch: plesio compare RECIPE --out DIR --policies bsp,adaptive"
            )
        for place, run in enumerate(self.runs):
            if (spec is None or _spec(run) == spec) and (seed is None or run.seed == seed):
                return place
        asked = [] if spec is None else [f"of {spec}"]
        asked += [] if seed is None else [f"with seed {seed}"]
        raise DataError(f"{self.directory} has no run {' '.join(asked)}; it has {_listing(self.runs)}")

    def explanation(self, place: int, *, bsp_directory: Path | None = None) -> Explanation:
        """Explain the run at ``place``, held against bsp on the same task with as many workers and the same seed.

        The run under bsp is in ``bsp_directory``, or without it among these, if it is there.

        Raises:
            DataError: Its events were not recorded or cannot be read, or ``bsp_directory`` has no such run.
        """
        run, folder = self.runs[place], self.folders[place]
        if folder is None:
            raise DataError(
                f"{self.directory} has no events of {run.policy}, seed {run.seed}: {_EVENTS} is missing; run it again "
                "with plesio compare RECIPE --out DIR, or with a trace folder"
            )
        known = self.known if bsp_directory is None else read_results(bsp_directory / _RESULTS)
        bsp = next((one for one in known if _is_bsp_of(one, run) and one.seed == run.seed), None)
        if bsp is None and bsp_directory is not None:
            raise DataError(
                f"--bsp {bsp_directory} has no finished run of bsp on {run.task} with {run.num_workers} workers and "
                f"seed {run.seed} in the {run.world} world; it has {_listing(known)}"
            )
        return explanation_of(
            read_log(folder / _EVENTS),
            run,
            bsp=bsp,
            num_seeds=self._num_seeds(run),
            over_seeds=self._over_seeds(run),
            how_to_know=self._how_to_know(run) if bsp is None else "",
        )

    def advice(self, place: int) -> list[str] | None:
        """Advise on how one run went from step to step; None where no traces can be judged."""
        folder = self.folders[place]
        operation = None if folder is None else read_operation(folder)
        return None if operation is None else operation_advice(operation)

    def _num_seeds(self, run: RunResult) -> int:
        """Count the seeds with which both this policy and bsp were run to the end."""
        ours = {one.seed for one in self.known if one.policy == run.policy and one.status == "finished"}
        return len(ours & {one.seed for one in self.known if _is_bsp_of(one, run)})

    def _over_seeds(self, run: RunResult) -> Difference | None:
        """Return the difference that `plesio compare` tests."""
        ours = final_metrics(one for one in self.known if one.policy == run.policy and one.status == "finished")
        theirs = final_metrics(one for one in self.known if _is_bsp_of(one, run))
        return None if ours is None or theirs is None else difference_of(ours, baseline=theirs)

    def _how_to_know(self, run: RunResult) -> str:
        """Tell how to train the same under bsp: of a recipe, a task, or a script, which knows its own options."""
        of_task = self.comparison is not None and (self.comparison / _SETTING).exists()
        ways = []
        if of_task:
            out, world = shlex.quote(str(self.comparison)), "" if run.world == "process" else f" --world {run.world}"
            policies = shlex.quote(f"bsp,{run.policy}")
            is_script = run.task.endswith(".py")
            what = run.task if is_script else "RECIPE"
            command = f"plesio compare {what} --out {out} --resume --policies {policies} --seeds {run.seed}{world}"
            ways.append(f"write {command} with the other options as they were")
            if is_script:
                return ways[0]
        then = f"plesio report {shlex.quote(str(self.directory))} --bsp B"
        if run.world == "virtual":
            what = "TASK" if of_task else "SCRIPT"
            simulate = f"plesio simulate {what} --policy bsp --seed {run.seed} --out B"
            ways.append(f"write {simulate} with the other options as they were, and then {then}")
        elif not of_task:
            ways.append(f'run the script with plesio.join(..., policy="bsp", trace="B"), and write {then}')
        return "; or, without a recipe, ".join(ways)


def find_changing_runs(directory: Path) -> ChangingRuns:
    """Find the runs in a trace folder or a comparison's folder whose policy adapts or switches; perhaps none.

    Raises:
        DataError: There are no results.
    """
    runs = read_results(directory / _RESULTS)
    changing = tuple(run for run in runs if _changes(run))
    found = _event_folders(directory)
    folders = tuple(found.get((run.policy, run.seed)) for run in changing)
    if len(runs) == 1 and (directory / _EVENTS).exists():
        folders = (directory,)
    comparison = _comparison_of(directory)
    return ChangingRuns(
        directory=directory,
        runs=changing,
        folders=folders,
        known=tuple(runs if comparison in (None, directory) else read_results(comparison / _RESULTS)),
        comparison=comparison,
    )


def _comparison_of(directory: Path) -> Path | None:
    """Return the folder itself if it is a comparison's, or the comparison's folder that it is a run of."""
    if (directory / _RUNS).is_dir():
        return directory
    above = directory.resolve().parent
    return above.parent if above.name == _RUNS and (above.parent / _RESULTS).exists() else None


def _event_folders(directory: Path) -> dict[tuple[str, int], Path]:
    """Find the folders with recorded events, by policy and seed; each has the result of its run beside them."""
    folders: dict[tuple[str, int], Path] = {}
    for events in sorted((directory / _RUNS).glob(f"*/{_EVENTS}")):
        for run in read_results(events.with_name(_RESULTS))[:1]:
            folders.setdefault((run.policy, run.seed), events.parent)
    return folders


def _changes(run: RunResult) -> bool:
    try:
        return parse_policy(run.policy).adapts
    except PolicySpecError:
        return False


def _is_bsp_of(one: RunResult, run: RunResult) -> bool:
    """Tell whether it is the same training under bsp, to the end, perhaps with another seed."""
    same = (one.task, one.world, one.num_workers) == (run.task, run.world, run.num_workers)
    return same and one.policy == "bsp" and one.status == "finished"


def _spec(run: RunResult) -> str:
    return parse_policy(run.policy).spec


def _changing_spec(text: str) -> str:
    policy = parse_policy(text)
    if not policy.adapts:
        raise PolicySpecError(f"--policy {text} changes nothing while it trains; write one of adaptive or switch")
    return policy.spec


def _listing(runs: Sequence[RunResult]) -> str:
    return "; ".join(f"{run.policy}, seed {run.seed}" for run in runs)
