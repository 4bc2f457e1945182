import json
from collections import Counter

import pytest

from plesio.core.results import Evaluation
from plesio.policies import Apply
from plesio.protocol.figures import Report, RunInfo
from plesio.protocol.to_server import Heartbeat
from plesio.runtime.coordinator.ledger import MAX_LOSS_POINTS, Ledger
from plesio.runtime.worker.meter import Meter


def ledger(*, workers: int = 2, **info: object) -> Ledger:
    return Ledger(policy="bsp", info=RunInfo(**info), num_workers=workers)  # type: ignore[arg-type]


def test_each_take_has_the_totals_and_only_the_news_of_lists():
    meter = Meter(memory_bytes=1000)
    meter.step(clock=1, samples=4, duration_s=0.1, loss=2.0, at_s=0.1)
    first = meter.take()
    meter.step(clock=2, samples=4, duration_s=0.3, loss=None, at_s=0.4)
    meter.step(clock=3, samples=4, duration_s=0.2, loss=1.0, at_s=0.6)
    meter.refuse("not_finite")
    second = meter.take()
    assert (first.steps, first.samples, first.losses) == (1, 4, [(1, 0.1, 2.0)])
    assert (second.steps, second.samples, second.losses) == (3, 12, [(3, 0.6, 1.0)])
    assert second.recent_step_s == pytest.approx(0.2)
    assert second.refused == {"not_finite": 1}
    assert second.peak_memory_bytes > 0
    assert Heartbeat.of_body(json.loads(json.dumps(Heartbeat(report=second).body()))).report == second


def test_the_first_step_says_nothing_of_how_long_steps_take():
    """A worker that stopped after it would otherwise be waited for up to a minute."""
    meter, seen = Meter(memory_bytes=1000), []
    for clock, duration_s in enumerate((5.0, 0.1, 0.3, 0.2), start=1):
        meter.step(clock=clock, samples=1, duration_s=duration_s, loss=None, at_s=0.0)
        seen.append(meter.take().recent_step_s)
    assert seen == [0.0, 0.1, 0.1, 0.2]


def test_report_taken_does_not_change_afterwards():
    meter = Meter(memory_bytes=1000)
    meter.refuse("not_finite")
    report = meter.take()
    meter.refuse("not_finite")
    meter.step(clock=1, samples=1, duration_s=0.1, loss=1.0, at_s=0.1)
    assert report.refused == {"not_finite": 1}
    assert (report.steps, report.losses) == (0, [])


def test_blocked_time_is_split_when_all_workers_have_reported_it():
    records = ledger()
    records.report(0, Report(blocked=[(1, 0.5), (2, 0.1)], compute_s=1.0))
    records.report(1, Report(blocked=[(1, 0.1)], compute_s=1.5))
    records.report(1, Report(blocked=[(2, 0.3)], compute_s=2.0))
    fast, slow = records.result(status="finished").workers
    assert (fast.wait_s, fast.communicate_s) == (pytest.approx(0.4), pytest.approx(0.2))
    assert (slow.wait_s, slow.communicate_s) == (pytest.approx(0.2), pytest.approx(0.2))
    assert (fast.compute_s, slow.compute_s) == (1.0, 2.0)


def test_a_look_at_the_figures_does_not_change_how_blocked_time_is_split():
    records = ledger()
    records.report(0, Report(blocked=[(1, 0.5)]))
    assert records.result(status="running").workers[0].communicate_s == pytest.approx(0.5)
    records.report(1, Report(blocked=[(1, 0.1)]))
    fast, slow = records.result(status="finished").workers
    assert (fast.wait_s, fast.communicate_s, slow.wait_s) == pytest.approx((0.4, 0.1, 0.0))


def test_blocked_time_of_racks_is_split_within_each():
    records = Ledger(policy="hier:bsp/ssp:2", info=RunInfo(), num_workers=4)
    records.meet({0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)})
    for worker, blocked_s in enumerate((0.5, 0.1, 2.0, 3.0)):
        records.report(worker, Report(blocked=[(1, blocked_s)]))
    times = [(worker.wait_s, worker.communicate_s) for worker in records.result(status="finished").workers]
    assert times == [pytest.approx(pair) for pair in ((0.4, 0.1), (0.0, 0.1), (0.0, 2.0), (1.0, 2.0))]


def test_blocked_time_of_a_crashed_run_is_not_lost():
    records = ledger()
    records.report(0, Report(blocked=[(1, 0.5)]))
    [worker] = records.result(status="failed", error="x").workers
    assert worker.wait_s + worker.communicate_s == pytest.approx(0.5)


def test_totals_are_over_workers_and_bytes_over_servers_too():
    records = ledger()
    records.report(0, Report(steps=2, samples=8, elapsed_s=2.0, bytes_sent={"ipc": 10, "collective": 1}))
    records.report(1, Report(steps=3, samples=12, elapsed_s=4.0, bytes_sent={"ipc": 5}))
    records.servers.enter(sent=Counter(ipc=100, tcp=7), refused=Counter(), cross_rack_bytes=0)
    result = records.result(status="finished")
    assert (result.steps, result.samples, result.wall_s, result.samples_per_s) == (5, 20, 4.0, 5.0)
    assert result.bytes_sent == {"ipc": 115, "tcp": 7, "collective": 1}
    assert result.bytes_sent_total == 123


def test_lost_workers_updates_count_though_it_never_reported_them():
    records = ledger()
    records.report(1, Report(steps=1, samples=4))
    for _ in range(3):
        records.workers.arrived(1, num_steps=1, num_samples=4)
    [worker] = records.result(status="finished").workers
    assert (worker.steps, worker.samples) == (3, 12)


def test_staleness_is_that_of_the_applied_updates():
    records = ledger()
    for version, staleness in ((1, (0, 2)), (2, (1,))):
        updates = tuple((worker, version) for worker in range(len(staleness)))
        action = Apply(updates=updates, weight=1.0, version=version, staleness=staleness)
        records.applied(action, num_samples=len(updates), num_positions=len(updates))
    assert records.result(status="finished").staleness.counts == (1, 1, 1)


@pytest.mark.parametrize(
    ("goal", "target", "reached_s"), [("max", 0.9, 2.0), ("max", 0.95, None), ("min", 0.5, 1.0), ("min", 0.1, None)]
)
def test_time_to_target_is_that_of_the_first_evaluation_that_reached_it(
    goal: str, target: float, reached_s: float | None
):
    records = ledger(metric_goal=goal, target=target)
    metrics = enumerate((0.5, 0.9, 0.7), start=1)
    points = [Evaluation(samples=8 * at, at_s=float(at), metric=metric) for at, metric in metrics]
    records.metric.enter(points)
    result = records.result(status="finished")
    assert result.time_to_target_s == reached_s
    assert result.final_metric == 0.7


def test_many_losses_are_thinned_and_their_mean_kept():
    records = ledger(workers=2)
    clocks = range(1, 4 * MAX_LOSS_POINTS + 2)
    for worker in (0, 1):
        records.report(worker, Report(losses=[(clock, clock / 10, float(clock + worker)) for clock in clocks]))
    points = records.result(status="finished").losses
    assert len(points) <= MAX_LOSS_POINTS
    assert [point.clock for point in points] == sorted(point.clock for point in points)
    assert points[0].loss == pytest.approx(3.5, abs=1.0)
    assert points[-1].loss == pytest.approx(clocks[-1] + 0.5, abs=3.0)


def test_fallback_that_several_workers_report_is_one_line():
    records = ledger()
    for worker in (0, 1):
        records.report(worker, Report(fallbacks=["tracing stopped"]))
        records.report(worker, Report(fallbacks=["tracing stopped"]))
    records.fallbacks.note("tracing stopped")  # the server's disk is the workers', and full
    records.fallbacks.warn("tracing stopped")
    assert records.result(status="finished").fallbacks == ("tracing stopped",)


def test_a_gradient_that_is_not_finite_is_told_of_once_as_it_comes(caplog: pytest.LogCaptureFixture):
    meter = Meter()
    for reason in ("overflow", "not_finite", "not_finite"):
        meter.refuse(reason)
    assert [record.message.partition(",")[0] for record in caplog.records] == ["a gradient is not finite"]
