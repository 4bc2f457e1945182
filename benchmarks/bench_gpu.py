"""A session on a GPU against the plain loop: what does Plesio add to a step whose kernels run behind the loop?

The same process runs both, in blocks: A B, then B A, and so on; a ratio is the plain block's time by the session's in
the same pair. ``small`` is bound by starting kernels, ``large`` by matrix products. A session of one worker exchanges
nothing, so the difference is what its bookkeeping waits for.

    python benchmarks/bench_gpu.py [--pairs 10] [--device cuda]

Prints a table and writes benchmarks/results/gpu.json.
"""

import argparse
import time
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

import plesio
from record import Spread, print_table, print_verdict, save

MODELS = {"small": (128, 24, 200), "large": (8192, 4, 40)}
"""Width, layers, steps of a block."""
LIMIT = 0.95
BATCH = 256
NUM_WARM_UP = 5


def block_s(name: str, *, device: torch.device, with_session: bool) -> float:
    """Seconds of a block of steps, all kernels included."""
    width, depth, steps = MODELS[name]
    torch.manual_seed(0)
    with device:
        parts = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.ReLU())]
        model = nn.Sequential(*parts, nn.Linear(width, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x, y = torch.randn(BATCH, width, device=device), torch.randint(10, (BATCH,), device=device)
    index = TensorDataset(torch.zeros(BATCH * (steps + NUM_WARM_UP)))
    begun_s = 0.0
    with plesio.join(model, optimizer) if with_session else nullcontext() as session:
        loader: Any = DataLoader(index, BATCH)
        for number, _ in enumerate(loader if session is None else session.shard(loader)):
            if number == NUM_WARM_UP:
                _finish(device)
                begun_s = time.perf_counter()
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step() if session is None else session.step(loss)
        _finish(device)
        return time.perf_counter() - begun_s


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    device = torch.device(options.device)
    found: dict[str, Any] = {}
    rows = []
    for name, (_, _, steps) in MODELS.items():
        block_s(name, device=device, with_session=True)
        taken: dict[bool, list[float]] = {False: [], True: []}
        for pair in range(options.pairs):
            for with_session in (False, True) if pair % 2 == 0 else (True, False):
                taken[with_session].append(block_s(name, device=device, with_session=with_session) / steps)
        ratios = Spread([plain_s / session_s for plain_s, session_s in zip(taken[False], taken[True], strict=True)])
        plain, session = Spread(taken[False]), Spread(taken[True])
        found[name] = {"plain_s": plain, "session_s": session, "ratio": ratios}
        rows.append([name, plain.text(".3f", scale=1e3), session.text(".3f", scale=1e3), ratios.text(".3f")])
    where = torch.cuda.get_device_name() if device.type == "cuda" else "the CPU"
    print_table(f"a step on {where}", columns=["model", "plain, ms", "session, ms", "ratio"], rows=rows)
    met = all(ratios["ratio"]["median"] >= LIMIT for ratios in found.values())
    print_verdict(f"with a session at least {LIMIT:.0%} of the plain loop's steps a second", met=met)
    save("gpu", settings={"device": where, "pairs": options.pairs}, results=found, met=met)


if __name__ == "__main__":
    main()
