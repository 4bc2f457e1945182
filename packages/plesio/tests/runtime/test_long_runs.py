"""Nothing grows with the steps of a run: what each part of it keeps, counted in bytes, and what it writes."""

import gc
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from plesio.core import trace as trace_module
from plesio.core.clock import MonotonicClock
from plesio.core.results import Environment
from plesio.core.trace import BLOCK_STEPS, WHOLE_STEPS, TraceWriter, read_trace
from plesio.policies import Arrived, log_writer, parse_policy, read_log, verify
from plesio.protocol.effects import ApplyOrder
from plesio.protocol.figures import Report
from plesio.protocol.plans import PlanFigures
from plesio.protocol.to_server import Heartbeat, PartArrived
from plesio.runtime.coordinator import loss_curve, worker_figures
from plesio.runtime.coordinator.coordinator import Coordinator
from plesio.runtime.coordinator.loss_curve import LossCurve
from plesio.runtime.coordinator.stage import Stage
from plesio.runtime.worker import meter as meter_module
from plesio.runtime.worker.meter import Meter, WorkerTimeline
from support.coordinated_run import join_of

ENVIRONMENT = Environment(plesio="1", python="3", torch="2", numpy="2", platform="p", cpu="c", num_cpus=2)
MOST_BINS = 50
FULL = 500
"""Steps after which every buffer and every bin has been filled once."""
MORE = 750
MOST_BYTES = 30_000
"""Memory that may be added by `MORE` steps: 40 bytes a step; an event that is kept takes some 1300."""


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shrink the bounded buffers, so that they are full soon."""
    monkeypatch.setattr(trace_module, "FLUSH_RECORDS", 100)
    monkeypatch.setattr(meter_module, "MOST_NEWS", 100)
    monkeypatch.setattr(loss_curve, "MOST_BINS", MOST_BINS)
    monkeypatch.setattr(worker_figures, "MOST_OPEN", 100)
    monkeypatch.setattr(log_writer, "BATCH", 50)


def growth(step: Callable[[int], None]) -> int:
    """Bytes that are there more after steps `FULL` to ``FULL + MORE`` than before them."""
    tracemalloc.start()
    try:
        for clock in range(1, FULL + 1):
            step(clock)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for clock in range(FULL + 1, FULL + MORE + 1):
            step(clock)
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def begun(policy: str, folder: Path) -> Coordinator:
    join = join_of(policy, num_workers=2, num_servers=parse_policy(policy).exchange == "store", elastic=False)
    coordinator = Coordinator(join, folder=folder)
    for worker in (0, 1):
        coordinator.handle(join, worker=worker, now_s=0.0)
    return coordinator


@pytest.mark.parametrize(
    "policy", ["asp", *(pytest.param(slow, marks=pytest.mark.slow) for slow in ("ssp:4", "bsp,exchange=store"))]
)
def test_the_server_of_a_store_keeps_nothing_of_an_update(tmp_path: Path, policy: str) -> None:
    coordinator = begun(policy, tmp_path)

    version = 0

    def step(clock: int) -> None:
        nonlocal version
        now_s = clock * 0.01
        for worker in (0, 1):
            part = PartArrived(
                event=Arrived(worker=worker, clock=clock, base_version=version), num_samples=1, finished=(), server=0
            )
            for effect in coordinator.handle(part, worker=worker, now_s=now_s):
                version = effect.version if isinstance(effect, ApplyOrder) else version
            report = Report(clock=clock, steps=clock, samples=clock, losses=[(clock, now_s, 1.0 / clock)])
            coordinator.handle(Heartbeat(report=report), worker=worker, now_s=now_s)

    assert growth(step) < MOST_BYTES
    coordinator.close_logs()
    log = read_log(tmp_path / "events.jsonl")
    assert len(log.entries) == 2 + 2 * (FULL + MORE)
    assert verify(log) is None


def test_the_server_of_a_collective_keeps_nothing_of_a_step_whoever_is_lost(tmp_path: Path) -> None:
    coordinator = begun("bsp", tmp_path)

    def step(clock: int) -> None:
        for worker in (0, 1):
            report = Report(clock=clock, steps=clock, losses=[(clock, 0.1, 1.0)])
            if worker == 0 or clock < 300:  # worker 1 reports no collectives any more
                report.blocked = [(clock, 0.001)]
            coordinator.handle(Heartbeat(report=report), worker=worker, now_s=clock * 0.01)

    assert growth(step) < MOST_BYTES
    coordinator.close_logs()


def test_a_worker_keeps_nothing_of_a_step(tmp_path: Path) -> None:
    reports: Counter[int] = Counter()
    meter = Meter()
    meter.hand_on(lambda report: reports.update([len(report.losses) + len(report.blocked)]))
    timeline = WorkerTimeline(meter, TraceWriter(tmp_path / "trace.jsonl", header={}), clock=MonotonicClock())

    def step(clock: int) -> None:
        now_s = timeline.now_s()
        timeline.compute(now_s, now_s + 0.001, clock=clock)
        timeline.blocked(now_s + 0.001, now_s + 0.002, clock=clock)
        timeline.event("push", at_s=now_s, clock=clock, version=clock, steps=1)
        meter.step(clock=clock, samples=1, duration_s=0.002, loss=1.0, at_s=clock * 0.002)

    assert growth(step) < MOST_BYTES
    timeline.trace.close()
    assert set(reports) == {100}


def test_what_of_an_epoch_is_kept_is_its_number() -> None:
    stage, figures = Stage(parse_policy("asp")), PlanFigures(num_samples=4, batch_size=2, budget_samples=4)
    for plan in range(300):
        for _ in range(2):
            book = stage.leases_of(plan, figures, workers={0: 1})
            book.join(0)
            block = book.lease(0)
            while block is not None:
                book.finish(0, block.id, block.num_samples)
                block = book.lease(0)
        assert stage.is_done(plan)
        assert len(stage.plans) == 1
    late = stage.leases_of(3, figures, workers={0: 1})
    late.join(1)
    assert late.done
    assert late.lease(1) is None, "what is over is not dealt out again"
    assert stage.is_done(3)


def test_losses_are_a_curve_of_so_many_bins() -> None:
    curve = LossCurve()
    for clock in range(1, 10 * MOST_BINS):
        curve.add(clock, at_s=2.0 * clock, loss=1.0 + clock)
        assert len(curve._bins) <= MOST_BINS
    points = curve.points(300)
    assert MOST_BINS // 2 <= len(points) <= MOST_BINS
    assert all(abs(point.at_s - 2.0 * (point.loss - 1.0)) < 1e-6 * point.at_s for point in points)
    assert curve.latest == 10.0 * MOST_BINS
    clocks = [point.clock for point in points]
    assert clocks == sorted(set(clocks))


def test_a_long_trace_is_sampled_in_blocks_that_are_the_same_on_all_workers(tmp_path: Path) -> None:
    for worker in (0, 1):
        trace = TraceWriter(tmp_path / f"{worker}.jsonl", header={"worker": worker})
        for clock in (*range(WHOLE_STEPS - 100, WHOLE_STEPS + 400), *range(4 * WHOLE_STEPS, 4 * WHOLE_STEPS + 3000)):
            for _ in range(1 + worker):
                trace.span("compute", start_s=clock, end_s=clock + 1, clock=clock)
            trace.event("push", at_s=clock, clock=clock, version=1)
            if clock % 100 == 0:
                trace.event("clip", at_s=clock, clock=clock, factor=0.5)
        trace.close()
    records = [read_trace(tmp_path / f"{worker}.jsonl").records for worker in (0, 1)]
    clocks = [sorted({record.clock for record in found if record.kind == "compute"}) for found in records]
    assert clocks[0] == clocks[1] == sorted({record.clock for record in records[0] if record.kind == "push"})
    assert sum(clock < WHOLE_STEPS for clock in clocks[0]) == 100
    assert sum(WHOLE_STEPS <= clock < 2 * WHOLE_STEPS for clock in clocks[0]) == 208, (
        "4 blocks of 7, of which one is short"
    )
    assert sum(clock >= 4 * WHOLE_STEPS for clock in clocks[0]) == 6 * BLOCK_STEPS
    said = [(record.clock, record.fields["every"]) for record in records[0] if record.kind == "sampled"]
    assert said == [(WHOLE_STEPS, 2), (4 * WHOLE_STEPS, 8)]
    assert sum(record.kind == "clip" for record in records[0]) == 35, "what is rare is there"
