"""Finds the runs in a folder whose policy changes while they train: a run's own trace folder, or a comparison's."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from plesio.core.errors import DataError, PolicySpecError
from plesio.core.results import RunResult, read_results
from plesio.policies import parse_policy, read_log
from plesio.report.story import Story, story_of

__all__ = ["ChangingRuns", "find_changing_runs"]

_RESULTS, _EVENTS = "results.json", "events.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangingRuns:
    """The runs of a folder whose policy adapts or switches.

    Attributes:
        runs: In the order of the results.
        folders: Where each one's events are; None where none were recorded.
        others: All other runs.
    """

    directory: Path
    runs: tuple[RunResult, ...]
    folders: tuple[Path | None, ...]
    others: tuple[RunResult, ...]

    def choose(self, *, policy: str | None = None, seed: int | None = None) -> int:
        """Place of the first run with this policy and seed; None is any.

        Raises:
            DataError: There is none.
            PolicySpecError: The policy is none, or changes nothing.
        """
        spec = None if policy is None else _changing_spec(policy)
        for place, run in enumerate(self.runs):
            if (spec is None or _spec(run) == spec) and (seed is None or run.seed == seed):
                return place
        asked = [] if spec is None else [f"of {spec}"]
        asked += [] if seed is None else [f"with seed {seed}"]
        raise DataError(f"{self.directory} has no run {' '.join(asked)}; it has {_listing(self.runs)}")

    def story(self, place: int) -> Story:
        """The story of one run, held against bsp of the same seed where that was run too.

        Raises:
            DataError: Its events were not recorded or cannot be read.
        """
        run, folder = self.runs[place], self.folders[place]
        if folder is None:
            raise DataError(
                f"{self.directory} has no events of {run.policy}, seed {run.seed}: {_EVENTS} is missing; run it again "
                "with plesio compare RECIPE --out DIR, or with a trace folder"
            )
        bsp = next((one for one in self.others if _is_bsp(one) and one.seed == run.seed), None)
        return story_of(read_log(folder / _EVENTS), run, bsp=bsp)


def find_changing_runs(directory: Path) -> ChangingRuns:
    """The runs in a trace folder or a comparison's folder whose policy adapts or switches.

    Raises:
        DataError: There are no results, or none of such a run.
    """
    runs = read_results(directory / _RESULTS)
    changing = tuple(run for run in runs if _changes(run))
    if not changing:
        policies = ", ".join(dict.fromkeys(run.policy for run in runs)) or "no runs"
        raise DataError(
            f"nothing in {directory} changes while it trains ({policies}); explain a run of adaptive or switch: "
            "plesio compare RECIPE --out DIR --policies bsp,adaptive"
        )
    found = _event_folders(directory)
    folders = tuple(found.get((run.policy, run.seed)) for run in changing)
    if len(runs) == 1 and (directory / _EVENTS).exists():
        folders = (directory,)
    return ChangingRuns(
        directory=directory,
        runs=changing,
        folders=folders,
        others=tuple(run for run in runs if not _changes(run)),
    )


def _event_folders(directory: Path) -> dict[tuple[str, int], Path]:
    """By policy and seed, where events were recorded; each folder has the result of its run beside them."""
    folders: dict[tuple[str, int], Path] = {}
    for events in sorted((directory / "runs").glob(f"*/{_EVENTS}")):
        for run in read_results(events.with_name(_RESULTS))[:1]:
            folders.setdefault((run.policy, run.seed), events.parent)
    return folders


def _changes(run: RunResult) -> bool:
    try:
        return parse_policy(run.policy).adapts
    except PolicySpecError:
        return False


def _is_bsp(run: RunResult) -> bool:
    return run.policy == "bsp" and run.status == "finished"


def _spec(run: RunResult) -> str:
    return parse_policy(run.policy).spec


def _changing_spec(text: str) -> str:
    policy = parse_policy(text)
    if not policy.adapts:
        raise PolicySpecError(f"--policy {text} changes nothing while it trains; write one of adaptive or switch")
    return policy.spec


def _listing(runs: Sequence[RunResult]) -> str:
    return "; ".join(f"{run.policy}, seed {run.seed}" for run in runs)
