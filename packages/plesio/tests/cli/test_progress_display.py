import io

import pytest
from rich.console import Console

from plesio.bench.progress import RunLabel, RunSnapshot
from plesio.cli.progress_display import LEFT_AFTER_RUNS, PLAIN_EVERY_S, LiveDisplay, PlainDisplay
from plesio.core.results import RunResult
from plesio.testing import FakeClock

FIRST = RunLabel(policy="bsp", seed=0, number=1, num_runs=3)
SECOND = RunLabel(policy="ssp:4", seed=0, number=2, num_runs=3)


def a_result(label: RunLabel, *, error: str | None = None) -> RunResult:
    return RunResult(
        policy=label.policy,
        task="digits",
        world="process",
        seed=label.seed,
        num_workers=2,
        status="finished" if error is None else "failed",
        error=error,
        steps=10,
        samples=1000,
        wall_s=2.5,
        metric_name="accuracy",
        final_metric=0.97123,
    )


def test_plain_lines_are_few():
    stream, clock = io.StringIO(), FakeClock()
    display = PlainDisplay(stream, clock=clock)
    display.run_kept(FIRST)
    display.run_started(SECOND, num_samples=1000)
    for tenth in range(1, 5):
        clock.sleep_s(PLAIN_EVERY_S / 2)
        display.run_advanced(RunSnapshot(samples=100 * tenth, step=tenth, samples_per_s=1234.5))
    display.run_failed(a_result(SECOND, error="worker 1 was lost"))
    assert stream.getvalue().splitlines() == [
        "[1/3] bsp · seed 0: kept",
        "[2/3] ssp:4 · seed 0: started, 1,000 samples",
        "[2/3] ssp:4 · seed 0: 20% · step 2 · 1,234 samples/s",
        "[2/3] ssp:4 · seed 0: 40% · step 4 · 1,234 samples/s",
        "[2/3] ssp:4 · seed 0: failed: worker 1 was lost",
    ]


def test_plain_lines_tell_the_time_that_is_left_from_the_runs_that_were_done_here():
    stream, clock = io.StringIO(), FakeClock()
    display = PlainDisplay(stream, clock=clock)
    labels = [RunLabel(policy="bsp", seed=seed, number=seed + 1, num_runs=10) for seed in range(10)]
    display.run_kept(labels[0])
    for label in labels[1:6]:
        display.run_started(label, num_samples=1000)
        clock.sleep_s(20.0)
        display.run_finished(a_result(label))
    started = [line.partition("started, ")[2] for line in stream.getvalue().splitlines() if "started" in line]
    assert started[:LEFT_AFTER_RUNS] == ["1,000 samples"] * LEFT_AFTER_RUNS
    assert started[LEFT_AFTER_RUNS:] == [
        "1,000 samples · about 2 min 0 s left",
        "1,000 samples · about 1 min 40 s left",
    ]


def shown(display: LiveDisplay) -> str:
    """Return the display's present drawing, at a width at which nothing is cut."""
    console = Console(file=io.StringIO(), width=160)
    console.print(display.progress.get_renderable())
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_live_display_shows_the_run_and_its_figures():
    console = Console(file=io.StringIO(), force_terminal=True, width=160)
    display = LiveDisplay(console)
    display.run_kept(FIRST)
    display.run_started(SECOND, num_samples=1000)
    display.run_advanced(RunSnapshot(samples=250, step=12, samples_per_s=1234.5, loss=0.51234, mean_staleness=1.25))
    drawn = shown(display)
    assert "2 of 3" in drawn
    assert "ssp:4 · seed 0" in drawn
    assert "25%" in drawn
    assert "step 12 · 1,234 samples/s · loss 0.5123 · staleness 1.2" in drawn
    display.run_finished(a_result(SECOND))
    assert "ssp:4" not in shown(display)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "bsp · seed 0: kept" in said
    assert "ssp:4 · seed 0: finished in 2.5 s, accuracy 0.9712" in said


@pytest.mark.parametrize("num_runs", [1, 2])
def test_the_live_display_counts_all_runs(num_runs: int):
    display = LiveDisplay(Console(file=io.StringIO(), force_terminal=True, width=160))
    for number in range(1, num_runs + 1):
        label = RunLabel(policy="bsp", seed=number, number=number, num_runs=num_runs)
        display.run_started(label, num_samples=10)
        display.run_failed(a_result(label, error="worker 1 was lost"))
    (task,) = display.progress.tasks
    assert (task.completed, task.total) == (num_runs, num_runs)
