"""Run the tests and comparisons that need a GPU, in parts of at most eight minutes: writes docs/evidence-gpu.md.

    python benchmarks/gpu/run.py                            # all parts
    python benchmarks/gpu/run.py --part step                # one, by its name or number
    python benchmarks/gpu/run.py --part step --device cpu   # a few steps, to see that it works: printed, not written

Ends with 2 if there is no CUDA device, with 1 if a test or a case fails.
"""

import argparse
import datetime
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from plesio.core.clock import Clock, MonotonicClock
from plesio.testing import LocalJob

sys.path.insert(0, str(Path(__file__).parents[1]))
from page import Case, Setting, figures_text, with_section
from parts import LIMIT_S, PARTS, Comparison, Tests

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "evidence-gpu.md"
PROGRAM = Path(__file__).with_name("measured.py")
MOST_ROUNDS = 8
SPARE_S = 20.0
"""Time that a case needs for its processes at least, and has for them beyond its rounds."""


Measure = Callable[[Comparison, str, int, float], Case]
"""Measures a network with so many workers, within so many seconds."""


def measure_on(device: str, *, cards: int) -> Measure:
    """Measure with real workers on these GPUs, or on the CPU."""

    def measure(part: Comparison, size: str, workers: int, limit_s: float) -> Case:
        arguments: dict[str, Any] = {
            "ways": part.ways,
            "size": "tiny" if device == "cpu" else size,
            "device_type": device,
            "num_cards": min(cards, part.cards[1]),
            "budget_s": limit_s - SPARE_S,
            "most_rounds": 2 if device == "cpu" else MOST_ROUNDS,
        }
        try:
            with LocalJob(workers) as job:
                endings = job.run(PROGRAM, "measure", timeout_s=limit_s, **arguments)
        except TimeoutError:
            return Case(size=size, workers=workers, why=f"not one round in {limit_s:.0f} s")
        for ending in endings.values():
            if ending.error is not None or ending.exit_status:
                print(ending.trace, file=sys.stderr)
                why = f"{ending.error or ending.exit_status} {ending.message}".split("\n")[0].replace("|", "/")
                return Case(size=size, workers=workers, why=f"failed: {why}")
        return Case(size=size, workers=workers, blocks=endings[0].value)

    return measure


def compare(part: Comparison, *, clock: Clock, measure: Measure) -> list[Case]:
    """Measure the cases of a part; each has an equal share of the time that those before it have left."""
    until_s = clock.now_s() + LIMIT_S
    asked = [(size, workers) for size in part.sizes for workers in part.workers]
    cases = []
    for number, (size, workers) in enumerate(asked):
        share_s = (until_s - clock.now_s()) / (len(asked) - number)
        if share_s < 2 * SPARE_S:
            cases.append(Case(size=size, workers=workers, why="no time was left"))
        else:
            cases.append(measure(part, size, workers, share_s))
    return cases


def command_of(part: Tests) -> list[str]:
    """Return the command of a part of tests, in as many processes as there is room; in time it says how far it is."""
    files = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("packages/*/tests/**/test_cuda*.py"))
    processes = max(1, min(4, (os.cpu_count() or 1) // 4))
    limit = ["timeout", "--signal=INT", f"--kill-after={SPARE_S:.0f}", f"{LIMIT_S - SPARE_S:.0f}"]
    return [*limit, sys.executable, "-m", "pytest", "-m", part.marked, "-n", str(processes), *files]


def run_tests(part: Tests) -> tuple[str, bool]:
    """Run them; return what the page says of them, and whether all passed."""
    ended = subprocess.run(command_of(part), cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    print(ended.stdout)
    return tests_text(ended.stdout), ended.returncode == 0


def tests_text(output: str) -> str:
    """Return the last line of pytest's output, and the names of what failed."""
    lines = output.strip().splitlines() or ["no output"]
    failed = [line.split(" - ")[0] for line in lines if line.startswith(("FAILED ", "ERROR "))]
    return "\n".join([f"{lines[-1].strip('= ')}.", *(["", *(f"- `{line}`" for line in failed)] if failed else [])])


def do(part: Tests | Comparison, *, device: str, cards: int) -> tuple[str, bool]:
    """Do a part; return its text, and whether nothing failed."""
    if isinstance(part, Tests):
        return run_tests(part)
    if device == "cuda" and cards < part.cards[0]:
        return f"Needs {part.cards[0]} GPUs.", True
    cases = compare(part, clock=MonotonicClock(), measure=measure_on(device, cards=cards))
    return figures_text(part, cases), all(case.blocks for case in cases)


def part_names(text: str) -> list[str]:
    """Return the part that a name or number means."""
    names = list(PARTS)
    if text.isdecimal() and 1 <= int(text) <= len(names):
        return [names[int(text) - 1]]
    if text not in names:
        raise argparse.ArgumentTypeError(f'there is no "{text}"; known: {", ".join(names)}, or 1 to {len(names)}')
    return [text]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", type=part_names, default=list(PARTS), help=f"{', '.join(PARTS)}; all if left out")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print(f"there is no CUDA device that torch {torch.__version__} (CUDA: {torch.version.cuda}) can use")
        return 2
    cards = torch.cuda.device_count() if options.device == "cuda" else 1
    good = True
    for name in options.part:
        text, passed = do(PARTS[name], device=options.device, cards=cards)
        good = good and passed
        print(f"\n{name}\n\n{text}\n", flush=True)
        if options.device == "cuda":
            setting = Setting(
                device=torch.cuda.get_device_name(),
                cards=cards,
                torch=torch.__version__,
                date=datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
                command=f"python benchmarks/gpu/run.py --part {name}",
            )
            written = with_section(PAGE.read_text(encoding="utf-8"), name=name, text=f"{setting.text()}\n\n{text}")
            PAGE.write_text(written, encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
