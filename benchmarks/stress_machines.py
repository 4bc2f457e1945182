"""Do the policies' machines and the coordinator keep their laws, whatever happens in whatever order?

    python benchmarks/stress_machines.py [--schedules 1000000] [--seed 0] [--processes 2] [--policies "ssp:2 adaptive"]
    python benchmarks/stress_machines.py --replay FILE

Each schedule is a short run without sockets, tensors and clocks: workers join late, are lost, are counted lost and
speak up again, rest, give NaN, stop for checkpoints and change from one exchange to another, and what they say and are
told arrives in any order that connections allow. Every other schedule drives a policy's machine alone, with the laws of
all policies; the others the coordinator, with the workers' and the servers' parts of the protocol around it. Invariants
are checked after every event, and at the end that nobody waits for ever, that every sample of a stage on the store was
done once, and that no update counted twice.

Of a schedule that fails, what is not needed for that is left out, and the rest is written to a file of JSON lines; with
--replay it is played again, and told move by move. Writes benchmarks/results/stress_machines.json. It ends with status
1 unless all laws are kept.
"""

import argparse
import multiprocessing
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

sys.path.insert(0, str(Path(__file__).parents[1] / "packages" / "plesio" / "tests"))

from arguments import at_least, policy_texts
from record import RESULTS, print_table, print_verdict, save
from support.schedules.chance import POLICIES, play, random_moves, random_setting, shrunk
from support.schedules.machine_laws import CATALOGUE, play_alone, random_steps
from support.schedules.moves import Alone, Move, Setting, Step, read_schedule, write_schedule
from support.schedules.schedule import Schedule

PORTION = 200
"""Schedules that a process plays before it reports."""
MOST_WRITTEN = 5
"""Failing schedules that are written for each policy."""


@dataclass(frozen=True, kw_only=True)
class Portion:
    """The findings of a process by policy: schedules played, events of the coordinator, and failures."""

    played: Counter[str]
    heard: Counter[str]
    failures: list[tuple[str, int, str]]


def case(number: int, *, seed: int, policies: Sequence[str]) -> tuple[Setting | Alone, list[Move | Step]]:
    """Schedule ``number``: always the same."""
    rng = random.Random(f"{seed}/{number}")
    place = number // 2
    alone = [policy for policy in CATALOGUE if policy in policies] or None
    if number % 2 and alone is not None:
        return Alone(policy=alone[place % len(alone)]), list(random_steps(rng))
    runs = [policy for policy in policies if policy in POLICIES] or list(policies)
    setting = random_setting(runs[place % len(runs)], rng)
    return setting, list(random_moves(setting, rng))


def play_case(setting: Setting | Alone, moves: Sequence[Any]) -> int:
    """Play it; what the coordinator heard in it, or the machine."""
    if isinstance(setting, Alone):
        return len(play_alone(setting, moves).events)
    return play(setting, moves).num_heard


def failure(setting: Setting | Alone, moves: Sequence[Any]) -> str | None:
    """Why it fails, in a line; None if it does not."""
    try:
        play_case(setting, moves)
    except Exception as error:  # a raw error of ours is a failure like a law that is not kept
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


def kind_of(setting: Setting | Alone) -> str:
    return f"{setting.policy} (alone)" if isinstance(setting, Alone) else setting.policy


def play_portion(task: tuple[range, int, tuple[str, ...]]) -> Portion:
    numbers, seed, policies = task
    found = Portion(played=Counter(), heard=Counter(), failures=[])
    for number in numbers:
        setting, moves = case(number, seed=seed, policies=policies)
        kind = kind_of(setting)
        found.played[kind] += 1
        try:
            found.heard[kind] += play_case(setting, moves)
        except Exception as error:
            found.failures.append((kind, number, f"{type(error).__name__}: {error}".splitlines()[0]))
    return found


def portions(schedules: int, *, seed: int, processes: int, policies: tuple[str, ...]) -> Iterator[Portion]:
    tasks = [(range(begin, min(begin + PORTION, schedules)), seed, policies) for begin in range(0, schedules, PORTION)]
    if processes == 1:
        yield from map(play_portion, tasks)
        return
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        yield from pool.imap_unordered(play_portion, tasks)


def write_shortest(number: int, *, seed: int, policies: tuple[str, ...], folder: Path) -> Path:
    """Shrink the failing schedule to the moves that it needs to fail in the same way, and write it to a file."""
    setting, moves = case(number, seed=seed, policies=policies)
    what = (failure(setting, moves) or "").split(" ")[:3]
    short = shrunk(moves, lambda some: (failure(setting, some) or "").split(" ")[:3] == what)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"schedule-{seed}-{number}.jsonl"
    write_schedule(path, setting, short)
    return path


def replay(path: Path) -> int:
    """Play a schedule from a file, and tell what happens in it; the status to end with."""
    setting, moves = read_schedule(path)
    print(setting)
    try:
        if isinstance(setting, Alone):
            play_alone(setting, moves, tell=print)
        else:
            schedule = Schedule(setting, tell=print)
            for move in moves:
                schedule.move(move)
            print("nobody disturbs them any more")
            schedule.settle()
    except Exception:
        traceback.print_exc(file=sys.stdout)
        return 1
    print("all laws are kept")
    return 0


def campaign(arguments: argparse.Namespace) -> int:
    policies = tuple(arguments.policies or dict.fromkeys([*POLICIES, *CATALOGUE]))
    played: Counter[str] = Counter()
    heard: Counter[str] = Counter()
    failures: list[tuple[str, int, str]] = []
    begun_s = time.perf_counter()
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}"), TimeRemainingColumn())
    with Progress(*columns, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("schedules", total=arguments.schedules)
        for portion in portions(
            arguments.schedules, seed=arguments.seed, processes=arguments.processes, policies=policies
        ):
            played += portion.played
            heard += portion.heard
            failures += portion.failures
            rate = played.total() / (time.perf_counter() - begun_s)
            progress.update(task, completed=played.total(), description=f"{rate:.0f}/s, {len(failures)} failed")
    lasted_s = time.perf_counter() - begun_s
    failed = Counter(kind for kind, *_ in failures)
    rows = [[kind, str(played[kind]), str(heard[kind]), str(failed[kind])] for kind in sorted(played)]
    print_table("schedules by policy", columns=["policy", "schedules", "events", "failed"], rows=rows)
    print(f"{played.total()} schedules, {heard.total()} events, {played.total() / lasted_s:.0f} schedules a second")
    written: Counter[str] = Counter()
    for kind, number, why in failures:
        if written[kind] < MOST_WRITTEN:
            written[kind] += 1
            path = write_shortest(number, seed=arguments.seed, policies=policies, folder=arguments.out)
            print(f"{kind}: {why}\n  python benchmarks/stress_machines.py --replay {path}")
    print_verdict("all laws are kept in every schedule", met=not failures)
    if not arguments.no_save:
        results = {"played": played, "events": heard, "failed": failed, "lasted_s": lasted_s}
        save(
            "stress_machines", settings=vars(arguments) | {"out": str(arguments.out)}, results=results, met=not failures
        )
    return 1 if failures else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=at_least(1), default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=at_least(1), default=2)
    parser.add_argument("--policies", type=policy_texts, help='their texts, in one: "bsp ssp:2"')
    parser.add_argument("--out", type=Path, default=RESULTS / "schedules", help="where failing schedules are written")
    parser.add_argument("--replay", type=Path, help="play this schedule instead")
    parser.add_argument("--no-save", action="store_true", help="write no results")
    arguments = parser.parse_args()
    sys.exit(campaign(arguments) if arguments.replay is None else replay(arguments.replay))


if __name__ == "__main__":
    main()
