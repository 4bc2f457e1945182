"""Changes that `adaptive` made in a run, and their worth: `plesio report DIR` from Python.

    python examples/explain_run.py
    python examples/explain_run.py runs/mine

Trains the digits twice on four virtual workers behind slow links, under `bsp` and under `adaptive`, with traces, and
explains the second run: each change, when, why, and what a step took afterwards. The pages and the traces go
to `runs/explained`, or to the folder that you name.
"""

import sys
from pathlib import Path

from rich.console import Console
from torch.utils.data import DataLoader

import plesio
from plesio.cost.cluster import parse_cluster
from plesio.cost.step_time import Constant
from plesio.report.explanation import find_changing_runs, render_explanation, render_explanation_page
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from plesio.tasks import load_task

CLUSTER = parse_cluster('hosts = 4\nnic = { latency = "100 us", bandwidth = "50 Mbit/s" }')
NUM_EPOCHS = 4


def train(policy: str, *, folder: Path) -> None:
    """One training under ``policy``; its traces, results and decisions go to ``folder``."""
    task = load_task("digits")
    data = task.train_set()
    samples = NUM_EPOCHS * len(data)

    def work(job: VirtualJob) -> None:
        pacer = Pacer(step_time=Constant(mean_s=0.02), seed=0, worker=job.place.rank, clock=job.clock)
        model, optimizer = task.build(0)
        names = plesio.RunInfo(task="digits", metric_name="accuracy", target=0.9)
        options = plesio.JoinOptions(info=names, snapshot_every=len(data) // 2, pacer=pacer)
        with plesio.join(
            model, optimizer, policy=policy, trace=folder, total_samples=samples, options=options
        ) as session:
            for batch in session.shard(DataLoader(data, batch_size=task.batch_size, shuffle=True), samples=samples):
                loss = task.loss(model, batch)
                loss.backward()
                session.step(loss)
            session.finish(lambda: task.metric(model))

    simulate(work, num_workers=CLUSTER.hosts, cluster=CLUSTER).values()


def main(out: Path) -> None:
    for policy in ("bsp", "adaptive"):
        train(policy, folder=out / policy)
    runs = find_changing_runs(out / "adaptive")
    explanation = runs.explanation(runs.choose(), bsp_directory=out / "bsp")
    Console(width=100, highlight=False, markup=False).print(render_explanation(explanation))
    page = out / "explain.html"
    page.write_text(render_explanation_page(explanation), encoding="utf-8")
    print(f"\n{page}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/explained"))
