"""Does a run of real processes survive what can befall them, or end with an error that says what did?

    python benchmarks/stress_processes.py [--faults 500] [--policies "bsp asp"] [--seed 0] [--budget "20 min"]
    python benchmarks/stress_processes.py --first 120 [--faults 380]
    python benchmarks/stress_processes.py --seed 0 --only 17

Each fault has a run of its own: two to four workers train for a second or two under one of the policies, and at a
random moment one of them, the server or its backup is killed or stopped, the disk of the results or checkpoints is
full, or the link of a host is cut or slow (in network namespaces, as root). The model has one parameter, which every
step moves by 1 in all; so what it comes to, the samples that each step returned with and the log of the updates say
whether anything that was acknowledged is lost, or counts twice. Where a loss ends the run, everyone must say so by
name, in time. Nothing may stay behind: no process, no temporary folder, no shared memory.

Prints a table and, of each run that went otherwise, the command that repeats it; writes
benchmarks/results/stress_processes.json. It ends with status 1 unless all went as it should.
"""

import argparse
import ctypes
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import Any

from rich.progress import track

from arguments import at_least, one_of, policy_texts, seconds
from plesio.cost.cluster import Cluster
from plesio.cost.link import Link
from plesio.testbed.namespaces import why_no_namespaces
from plesio.testbed.testbed import Testbed
from process_faults import KINDS, OF_LINKS, POLICIES, WEIGHTS, Case, Links, Verdict, random_case, try_case
from record import print_table, print_verdict, save

_PR_SET_CHILD_SUBREAPER = 36
HOSTS = 3
OUTCOMES = ("survived", "ended", "FAILED")


def links(stack: ExitStack) -> Links | None:
    """Hosts with links that can be cut, for the whole campaign; None where there can be none."""
    reason = why_no_namespaces()
    if reason is not None:
        print(f"no link is cut: {reason}")
        return None
    nic = Link(latency_s=0.0, bytes_per_s=125e6)
    cluster = Cluster(name="campaign", hosts=HOSTS, workers_per_host=1, cores_per_host=1, nic=nic)
    return Links(stack.enter_context(Testbed.of(cluster, num_workers=HOSTS)))


def campaign(arguments: argparse.Namespace, *, name: str, kinds: Sequence[str]) -> int:
    """Do the faults, and report; the status to end with.

    Args:
        arguments: Of the command line.
        name: The script's.
        kinds: Of faults, if the command line names none.
    """
    policies = tuple(arguments.policies or POLICIES)
    first = arguments.first
    numbers = range(first, first + arguments.faults) if arguments.only is None else [arguments.only]
    found: list[tuple[int, Case, Verdict]] = []
    begun_s = time.monotonic()
    get_temp_dir()  # multiprocessing's own, which outlives the campaign's
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="campaign-")))
        tempfile.tempdir = os.environ["TMPDIR"] = str(root)
        kinds = tuple(arguments.kinds or kinds)
        network = None if arguments.no_links or not {*kinds} & {*OF_LINKS} else links(stack)
        for number in track(numbers, "faults", disable=not sys.stderr.isatty()):
            if time.monotonic() - begun_s > arguments.budget:
                break
            case = random_case(number, seed=arguments.seed, policies=policies, kinds=kinds)
            if case.needs_links and network is None:
                continue
            verdict = try_case(case, root / f"run-{number}", links=network, keep=arguments.keep)
            found.append((number, case, verdict))
            if verdict.outcome == "FAILED":
                print(f"{case}: {verdict.text}\n  {repeats(arguments, number, name=name)}", flush=True)
            elif arguments.only is not None:
                print(f"{case}: {verdict.outcome}; {verdict.text}")
    return report(arguments, found, name=name, lasted_s=time.monotonic() - begun_s)


def repeats(arguments: argparse.Namespace, number: int, *, name: str) -> str:
    """Return the command that does one of the faults again."""
    chosen = f' --policies "{" ".join(arguments.policies)}"' if arguments.policies else ""
    chosen += f' --kinds "{",".join(arguments.kinds)}"' if arguments.kinds else ""
    return f"python benchmarks/{name}.py --seed {arguments.seed} --only {number}{chosen}"


def report(arguments: argparse.Namespace, found: list[tuple[int, Case, Verdict]], *, name: str, lasted_s: float) -> int:
    """Print what came of it and write it down; the status to end with."""
    cells = Counter((case.kind, case.policy, one.outcome) for _, case, one in found)
    rows = [
        [kind, policy, *(str(cells[kind, policy, outcome]) for outcome in OUTCOMES)]
        for kind in WEIGHTS
        for policy in sorted({case.policy for _, case, _ in found if case.kind == kind})
    ]
    print_table("faults", columns=["fault", "policy", "survived", "ended with a named error", "FAILED"], rows=rows)
    totals = Counter(one.outcome for *_, one in found)
    print(
        f"{len(found)} faults in {lasted_s:.0f} s: " + ", ".join(f"{number} {what}" for what, number in totals.items())
    )
    met = bool(found) and not totals["FAILED"]
    print_verdict("every run survives or ends with an error that names the culprit; nothing is lost or left", met=met)
    if not arguments.no_save:
        results: list[dict[str, Any]] = [
            {"number": number, "policy": case.policy, "kind": case.kind, "outcome": one.outcome, "text": one.text}
            for number, case, one in found
        ]
        save(name, settings=vars(arguments), results=results, met=met)
    return 0 if met else 1


def main(name: str, kinds: Sequence[str], description: str | None) -> None:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=at_least(1), default=500)
    parser.add_argument("--first", type=at_least(0), default=0, help="number of the first: go on from here")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--policies", type=policy_texts, help='their texts, in one: "bsp ssp:2"')
    parser.add_argument("--kinds", type=one_of(kinds), help=f"of {', '.join(kinds)}")
    parser.add_argument("--budget", type=seconds, default="30 min", help="no further fault after so long")
    parser.add_argument("--only", type=at_least(0), help="do this one alone")
    parser.add_argument("--no-links", action="store_true", help="make no network namespaces")
    parser.add_argument("--keep", action="store_true", help="keep the folders of runs that failed, where they are told")
    parser.add_argument("--no-save", action="store_true", help="write no results")
    arguments = parser.parse_args()
    # servers whose starter is killed become children of this process, so none is overlooked
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    sys.exit(campaign(arguments, name=name, kinds=kinds))


if __name__ == "__main__":
    main("stress_processes", tuple(KINDS), __doc__)
