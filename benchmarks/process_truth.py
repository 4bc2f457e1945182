"""Truths of a run of counting workers after any fault: from their notes, the log and the results."""

import sys
from collections import Counter
from dataclasses import dataclass
from math import isclose
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "packages" / "plesio" / "tests"))

from plesio.core.results import RunResult, read_results
from plesio.policies import Apply, Arrived, Refuse, parse_policy, read_log, verify
from plesio.testing import Ending
from runtime.counting_worker import BATCH_SIZE, NUM_SAMPLES


@dataclass(frozen=True, kw_only=True)
class Run:
    """The facts about a run.

    Attributes:
        num_workers: That it began with.
        endings: Of the workers that ended.
        ended_s: When the last one of them did, after the fault.
        victims: Those that may be counted lost.
    """

    policy: str
    folder: Path
    trace: Path
    epochs: int
    num_workers: int
    endings: dict[int, Ending]
    ended_s: float
    victims: tuple[int, ...]

    @property
    def survivors(self) -> list[int]:
        """The workers that came to the end."""
        return [rank for rank, one in self.endings.items() if one.error is None and one.exit_status == 0]

    def steps(self, rank: int) -> list[tuple[int, list[int]]]:
        """Clock and samples of each step that has returned to a worker as one that counts."""
        path = self.folder / f"steps-{rank}"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [(clock, numbers) for clock, *numbers in (map(int, line.split()) for line in lines)]


def problem(run: Run) -> str | None:
    """Describe the first broken truth in a sentence; None if all hold."""
    for rank, one in run.endings.items():
        if rank not in run.victims and one.error is None and one.exit_status != 0:
            return f"worker {rank}, which nothing befell, ended with status {one.exit_status}"
    raw = [f"{rank}: {one.error}" for rank, one in run.endings.items() if one.error in ("AssertionError", "KeyError")]
    if raw:
        return f"raw errors: {raw}"
    if not run.survivors:
        return None
    [result] = read_results(run.trace / "results.json")
    for law in (_ended_well, _samples_count_once, _updates_count_once, _parameter_is_their_sum):
        wrong = law(run, result)
        if wrong is not None:
            return wrong
    return None


def _ended_well(run: Run, result: RunResult) -> str | None:
    if (result.status, result.error) != ("finished", None):
        return f"workers {run.survivors} ended well, and the run is {result.status}: {result.error}"
    if not set(result.lost_workers) <= set(run.victims):
        return f"workers {result.lost_workers} are counted lost, and {run.victims} could be"
    return None


def _samples_count_once(run: Run, result: RunResult) -> str | None:
    """Under a policy on the store a lost worker's last updates may count that it never heard of."""
    due = run.epochs * NUM_SAMPLES
    told = [line for line in result.fallbacks if "had not handed in" in line or "were left out" in line]
    left_out = sum(int(line.split()[0]) for line in told)
    policy = parse_policy(run.policy)
    unsure = BATCH_SIZE * 2 * len(result.lost_workers) if policy.adapts or policy.exchange == "store" else 0
    if abs(result.samples + left_out - due) > unsure:
        return f"{result.samples} samples were trained on and {left_out} left out, of {due}"
    seen = {number for rank in range(run.num_workers) for _, numbers in run.steps(rank) for number in numbers}
    if len(seen) != NUM_SAMPLES:
        return f"{NUM_SAMPLES - len(seen)} samples were in no step"
    return None


def _updates_count_once(run: Run, result: RunResult) -> str | None:
    policy = parse_policy(run.policy)
    if not (policy.adapts or policy.exchange == "store"):
        return None  # there is none on a collective, and its server may be gone with the log
    log = read_log(run.trace / "events.jsonl")
    if (difference := verify(log)) is not None:
        return f"the log does not replay: {difference}"
    events = [entry.event for entry in log.entries]
    arrived = Counter((one.worker, one.clock) for one in events if isinstance(one, Arrived))
    actions = [action for entry in log.entries for action in entry.actions]
    applied = Counter(key for one in actions if isinstance(one, Apply) for key in one.updates)
    refused = Counter((one.worker, one.clock) for one in actions if isinstance(one, Refuse))
    if applied + refused != arrived:
        return (
            f"arrived and not applied once: {list(((applied + refused) - arrived) + (arrived - applied - refused))[:5]}"
        )
    if policy.adapts:
        return None  # steps on a collective are no updates
    # a worker that has rested goes on where the slowest is, so it can come to a clock again
    returned = Counter((rank, clock) for rank in run.survivors for clock, _ in run.steps(rank))
    missing = [key for key, number in returned.items() if policy.exchanges_at(key[1]) and number > arrived[key]]
    if missing:
        return f"updates that had returned are not in the parameters: {missing[:5]}"
    return None


def _parameter_is_their_sum(run: Run, result: RunResult) -> str | None:
    policy = parse_policy(run.policy)
    told = any("nobody has evaluated the final parameters" in line for line in result.fallbacks)
    if policy.adapts or result.final_metric is None:
        return None if policy.adapts or told else "nobody has evaluated"
    if policy.exchange == "store":
        log = read_log(run.trace / "events.jsonl")
        due = sum(one.weight for entry in log.entries for one in entry.actions if isinstance(one, Apply))
    else:
        due = float(max(clock for rank in run.survivors for clock, _ in run.steps(rank)))
    # what a worker has trained alone, or has under way, when another is lost may be done again under later clocks
    alone = policy.delay + (policy.period if policy.period > 1 else 0)
    unsure = alone * len(result.lost_workers)
    if not isclose(result.final_metric, due, abs_tol=1e-3 * max(1.0, due) + unsure):
        return f"the parameter is {result.final_metric:g}, and all updates together are {due:g}"
    return None
