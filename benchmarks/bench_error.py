"""How soon does a run end when one of its two workers raises an error?

    python benchmarks/bench_error.py [--policies bsp,adaptive,asp] [--repeat 3]

Prints, by policy, the median seconds from the error to the end of the session of the worker that raised it and of the
other one, and what the other one says.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import plesio
from plesio.testing import LocalJob

FAILING_STEP = 3


def train(*, policy: str, times: str) -> None:
    """Train as one worker: rank 1 raises at the third step; both write down when, and when they have ended."""
    model = torch.nn.Linear(4, 1)
    data = TensorDataset(torch.randn(64, 4))
    rank = 0
    try:
        with plesio.join(model, torch.optim.SGD(model.parameters(), lr=0.01), policy=policy) as session:
            rank = session.rank
            for step, (x,) in enumerate(session.shard(DataLoader(data, batch_size=4, shuffle=True)), start=1):
                loss = model(x).square().mean()
                loss.backward()
                if rank == 1 and step == FAILING_STEP:
                    Path(times, "raised").write_text(str(time.monotonic()))
                    raise ValueError("mine")
                session.step(loss)
    finally:
        Path(times, f"ended-{rank}").write_text(str(time.monotonic()))


def measured(policy: str, *, folder: Path) -> tuple[float, float, str]:
    """Seconds until the failing and the other worker have ended, and the other's error."""
    folder.mkdir(parents=True)
    with LocalJob(2) as job:
        endings = job.run(Path(__file__), "train", timeout_s=100, policy=policy, times=str(folder))
    raised_s, failing_s, other_s = (float((folder / name).read_text()) for name in ("raised", "ended-1", "ended-0"))
    return failing_s - raised_s, other_s - raised_s, endings[0].message or "trains on"


def main() -> None:
    """Do what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default="bsp,adaptive,asp")
    parser.add_argument("--repeat", type=int, default=3, metavar="N")
    arguments = parser.parse_args()
    print("| policy | the failing worker | the other | which says |\n|:--|--:|--:|:--|")
    with tempfile.TemporaryDirectory() as root:
        for policy in arguments.policies.split(","):
            runs = [measured(policy, folder=Path(root, policy, str(number))) for number in range(arguments.repeat)]
            failing_s = statistics.median(run[0] for run in runs)
            other_s = statistics.median(run[1] for run in runs)
            print(f"| `{policy}` | {failing_s:.2f} s | {other_s:.2f} s | {runs[0][2].splitlines()[0]} |")


if __name__ == "__main__":
    main()
