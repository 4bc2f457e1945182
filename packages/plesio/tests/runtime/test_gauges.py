"""Measurements by a job's workers of themselves: in the results, in the traces, on the page."""

import json
import time
from pathlib import Path

import torch
from torch import nn

import plesio
from plesio.core.results import read_results, write_results
from plesio.core.trace import UTILISATION, read_trace
from plesio.runtime.worker import utilisation
from support.processes import on_processes

WIDTH = 256


def train(*, policy: str, folder: Path) -> None:
    utilisation.SAMPLE_S = 0.05
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    with plesio.join(model, optimizer, policy=policy, trace=folder) as session:
        started_s = time.monotonic()
        while time.monotonic() < started_s + 0.4 or session.clock < 4:
            loss = model(torch.randn(32, WIDTH)).square().mean()
            loss.backward()
            session.step(loss)


def test_a_job_says_what_its_workers_used(tmp_path: Path):
    from plesio.report.build import build_report  # takes long, and the workers import this module

    num_bytes = 4 * (WIDTH * WIDTH + WIDTH + WIDTH + 1)
    folder = tmp_path / "runs" / "asp-seed0"
    on_processes(2, __file__, "train", policy="asp", folder=folder)
    runs = read_results(folder / "results.json")
    for worker in runs[0].workers:
        memory, used = worker.memory, worker.utilisation
        assert memory is not None
        assert used is not None
        assert memory.parameters_bytes == memory.gradients_bytes == num_bytes
        assert memory.optimizer_bytes == 0  # the server has it
        assert abs(memory.rest_bytes) < 0.1 * memory.peak_bytes
        assert 0 < used.cpu.mean < 16
        assert used.memory_bytes.mean <= memory.peak_bytes
        samples = read_trace(folder / f"trace-{worker.worker}.jsonl", kind=UTILISATION).records
        assert len(samples) >= 2
        assert {record.kind for record in samples} == {UTILISATION}
    write_results(tmp_path / "results.json", runs)
    page = build_report(tmp_path).read_text(encoding="utf-8")
    assert all(f'id="{name}"' in page for name in ("memory", "memory-of-run", "cpu-over-time", "network-over-time"))
    events = json.loads((folder / "perfetto.json").read_text(encoding="utf-8"))["traceEvents"]
    assert {event["pid"] for event in events if event["ph"] == "C"} == {0, 1}
