"""A worker of a comparison's script, as a program: ``python -m plesio.bench.script_worker RUN SCRIPT ARGUMENTS``.

``RUN`` is a `ScriptRun` in JSON. The script runs as it does by itself, but its random numbers are seeded by the run
before it begins, and sessions that it joins have the run's policy, traces and step times.
"""

import os
import sys
from dataclasses import asdict
from pathlib import Path

from plesio.bench.assignment import seed_streams
from plesio.bench.script_run import ScriptRun, as_main, compiled, main_of
from plesio.core.clock import MonotonicClock
from plesio.core.last_words import say_chosen
from plesio.runtime.worker.job_handle import Ambient, within


def front_of(run: ScriptRun) -> tuple[str, ...]:
    """Return Python's arguments in front of the script's name that have it run so."""
    return ("-m", "plesio.bench.script_worker", run.to_json())


def main() -> None:
    run = ScriptRun.from_json(sys.argv[1])
    script, arguments, rank = Path(sys.argv[2]), sys.argv[3:], int(os.environ["RANK"])
    code, module = compiled(script), main_of(script)
    around = Ambient(
        policy=run.policy,
        trace=run.folder,
        name=run.name,
        seed=run.seed,
        own_checkpoints=False,
        pacer=run.workers.pacer(rank, seed=run.seed, clock=MonotonicClock()),
        on_chosen=lambda chosen: say_chosen(asdict(chosen)),
    )
    sys.path.pop(0)  # the working directory, which Python has put there for -m
    sys.modules["__main__"] = module
    seed_streams(run.seed, rank)
    with as_main(script, arguments), within(around):
        exec(code, module.__dict__)


if __name__ == "__main__":
    main()
