"""The view of a run at one moment, from figures that the test makes up."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from plesio.core.results import Level, Utilisation, WorkerTimes
from plesio.watch import Glimpse, RunView, headline, metrics_text, render, view_of
from support.watched import a_glimpse, a_result, figures_of, times

EARLIER = a_glimpse(times(0, steps=100, compute_s=2.0, wait_s=1.0), times(1, steps=100, compute_s=3.0), wall_s=4.0)


def text_of(view: RunView, *, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False)
    console.print(render(view))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_shares_and_seconds_a_step_are_of_the_time_since_the_earlier_look():
    now = a_glimpse(
        times(0, steps=200, compute_s=3.0, wait_s=2.5, communicate_s=0.5), times(1, steps=200, compute_s=6.0)
    )
    first, second = view_of(now, EARLIER).workers
    assert (first.compute, first.wait, first.exchange) == pytest.approx((1 / 3, 1 / 2, 1 / 6))
    assert (first.step_s, second.step_s) == pytest.approx((0.03, 0.03))
    assert view_of(now).workers[0].compute == pytest.approx(1 / 2)


def test_the_time_that_is_left_goes_by_the_speed_lately_and_is_not_guessed():
    workers = times(0, steps=200, compute_s=3.0), times(1, steps=200, compute_s=3.0)
    now = a_glimpse(*workers, total_samples=4800, wall_s=6.0)
    view = view_of(now, EARLIER)
    assert view.samples_per_s == pytest.approx(800)
    assert view.remaining_s == pytest.approx((4800 - 3200) / 800)
    assert view_of(a_glimpse(*workers), EARLIER).remaining_s is None


def slow(*workers: WorkerTimes, **changes: float) -> tuple[str, ...]:
    result = a_result(*workers)
    return view_of(Glimpse(result, figures_of(result, **changes), 0.0)).slow


def test_the_worker_that_computes_longest_is_named_if_it_takes_much_longer():
    usual = [times(worker, steps=100, compute_s=2.0) for worker in (0, 1, 3)]
    [line] = slow(*usual, times(2, steps=100, compute_s=3.1))
    assert line == "worker 2 is slow: it computes 31 ms a step, the others 20 ms"
    assert slow(*usual, times(2, steps=100, compute_s=2.3)) == ()


def test_nobody_is_called_slow_in_the_first_second():
    result = a_result(times(0, steps=3, compute_s=0.1), times(1, steps=3, compute_s=0.4), wall_s=0.5)
    assert view_of(Glimpse(result, figures_of(result), 0.0)).slow == ()


def test_a_slow_link_and_busy_cores_are_reasons():
    workers = [times(worker, steps=100, compute_s=2.0, communicate_s=0.5 + 2 * (worker == 1)) for worker in (0, 1, 2)]
    assert slow(*workers) == ("worker 1 is slow: it exchanges 25 ms a step, the others 5 ms; its link is slower",)
    level = Level(mean=0.97, p95=1.0)
    used = Utilisation(
        cpu=level, host_cpu=level, memory_bytes=level, sent_bytes_per_s=level, received_bytes_per_s=level
    )
    [line] = slow(times(0, steps=10, compute_s=1.0), replace(times(1, steps=10, compute_s=2.0), utilisation=used))
    assert line.endswith("; the cores of its machine are 97% busy")


def test_silence_is_named():
    workers = times(0, steps=10, compute_s=1.0), times(1, steps=10, compute_s=1.0)
    assert slow(*workers, silent_s=4.0) == (
        "worker 0 has said nothing for 4 s",
        "worker 1 has said nothing for 4 s",
    )


def test_losses_joins_decisions_and_the_checkpoint_are_told():
    workers = [times(worker, steps=10 + worker, compute_s=1.0) for worker in (0, 1, 2)]
    result = a_result(*workers, lost_workers=(1,))
    view = view_of(Glimpse(result, figures_of(result, lost=(1,), checkpoint=(8, 12.3)), 0.0))
    assert [row.state for row in view.workers] == ["training", "lost", "training"]
    assert view.members == ("worker 1 was lost after step 11", "worker 2 joined later")
    text = text_of(view)
    assert "step 20: local_sgd:4 in place of bsp: waiting took 35 % of a step" in text
    assert "checkpoint of step 8, begun 12 s ago" in text
    assert "train under adaptive (now local_sgd:4), 2 workers" in text
    assert "accuracy" in text


def test_of_decisions_that_keep_the_policy_the_last_one_between_two_changes_is_shown():
    chosen = ["bsp", "bsp", "local_sgd:4", "local_sgd:4", "local_sgd:4", "asp", "bsp", "bsp"]
    decisions = tuple(
        {"clock": clock, "before": before, "policy": policy, "reason": f"{clock}"}
        for clock, (before, policy) in enumerate(zip(["bsp", *chosen], chosen, strict=False))
    )
    shown = view_of(a_glimpse(times(0, steps=10, compute_s=1.0), decisions=decisions)).decisions
    assert [(one.clock, one.policy) for one in shown] == [
        (1, "bsp stays"), (2, "local_sgd:4 in place of bsp"), (4, "local_sgd:4 stays"),
        (5, "asp in place of local_sgd:4"), (6, "bsp in place of asp"), (7, "bsp stays"),
    ]  # fmt: skip


def test_a_run_that_is_over_has_no_worker_that_is_slow_and_no_time_left():
    result = a_result(times(0, steps=10, compute_s=1.0), times(1, steps=10, compute_s=5.0), status="finished")
    view = view_of(Glimpse(result, None, 0.0), note="this run is over")
    assert (view.slow, view.remaining_s, {row.state for row in view.workers}) == ((), None, {""})
    assert headline(view).startswith("finished · 10 s of training · 20 steps")
    assert "this run is over" in text_of(view)


def test_every_line_fits_a_terminal_of_80_columns():
    assert max(map(len, text_of(view_of(EARLIER), width=80).splitlines())) <= 80
    assert "training" in text_of(view_of(EARLIER), width=80)


def test_metrics_are_prometheus_text():
    result = a_result(times(0, steps=10, compute_s=1.0), task='a "task"\n', lost_workers=(1,))
    lines = metrics_text(view_of(Glimpse(result, figures_of(result), 0.0))).splitlines()
    assert 'plesio_info{policy="adaptive",in_force="local_sgd:4",task="a \\"task\\"\\n"} 1.0' in lines
    assert "plesio_samples_total 80.0" in lines
    assert 'plesio_status{status="running"} 1.0' in lines
    assert 'plesio_worker_time_share{worker="0",use="compute"} 1.0' in lines
    named = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    assert {line.partition("{")[0].split()[0] for line in lines if not line.startswith("#")} == named
