"""A comparison's progress for people: a live display in a terminal, plain lines elsewhere (both on stderr)."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from plesio.bench.progress import ProgressSink, RunLabel, RunSnapshot
from plesio.core.clock import Clock, MonotonicClock
from plesio.core.results import RunResult
from plesio.core.units import format_seconds

PLAIN_EVERY_S = 10.0
"""Seconds between two lines about one run where there is no terminal."""
LEFT_AFTER_RUNS = 3
"""Runs after which the time that is left is told."""


@contextmanager
def progress_display() -> Iterator[ProgressSink]:
    console = Console(file=sys.stderr)  # a script in this process has its own output elsewhere meanwhile
    if not console.is_terminal:
        yield PlainDisplay(sys.stderr, clock=MonotonicClock())
        return
    display = LiveDisplay(console)
    with display.progress:
        yield display


def _figures(snapshot: RunSnapshot) -> str:
    loss = "" if snapshot.loss is None else f" · loss {snapshot.loss:.4g}"
    staleness = "" if snapshot.mean_staleness is None else f" · staleness {snapshot.mean_staleness:.1f}"
    speed = f" · {snapshot.samples_per_s:,.0f} samples/s" if snapshot.samples_per_s else ""  # not known at first
    return f"step {snapshot.step:,}{speed}{loss}{staleness}"


def _name(run: RunLabel | RunResult) -> str:
    return f"{run.policy} · seed {run.seed}"


def _ending(result: RunResult) -> str:
    if result.status != "finished":
        return f"{result.status}: {result.error}" if result.error else result.status
    metric = "" if result.final_metric is None else f", {result.metric_name} {result.final_metric:.4g}"
    return f"finished in {format_seconds(result.wall_s)}{metric}"


class LiveDisplay:
    """Two bars: the runs of the comparison, and the samples of the run at work with its figures."""

    def __init__(self, console: Console) -> None:
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=12),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
            console=console,
            transient=True,
            expand=True,
        )
        self._all_runs: TaskID | None = None
        self._run: TaskID | None = None

    def run_kept(self, label: RunLabel) -> None:
        self._say(f"{_name(label)}: kept", style="dim")
        self._count(label.number, num_runs=label.num_runs)

    def run_started(self, label: RunLabel, *, num_samples: int | None) -> None:
        self._count(label.number - 1, num_runs=label.num_runs)
        self._run = self.progress.add_task(_name(label), total=num_samples, figures="")

    def run_advanced(self, snapshot: RunSnapshot) -> None:
        assert self._run is not None, "a run advances after it has started"
        self.progress.update(self._run, completed=snapshot.samples, figures=_figures(snapshot))

    def run_finished(self, result: RunResult) -> None:
        self._end(result, style="green")

    def run_failed(self, result: RunResult) -> None:
        self._end(result, style="red")

    def _end(self, result: RunResult, *, style: str) -> None:
        assert self._run is not None, "a run ends after it has started"
        self.progress.remove_task(self._run)
        self._run = None
        self._say(f"{_name(result)}: {_ending(result)}", style=style)
        assert self._all_runs is not None
        self.progress.advance(self._all_runs)

    def _count(self, num_done: int, *, num_runs: int) -> None:
        if self._all_runs is None:
            self._all_runs = self.progress.add_task("all runs", total=num_runs, figures="")
        self.progress.update(self._all_runs, completed=num_done, figures=f"{num_done + 1} of {num_runs}")

    def _say(self, sentence: str, *, style: str) -> None:
        self.progress.console.print(Text(sentence, style=style))


class PlainDisplay:
    """A line when a run starts and ends, and one in between every `PLAIN_EVERY_S` seconds."""

    def __init__(self, stream: TextIO, *, clock: Clock) -> None:
        self._stream = stream
        self._clock = clock
        self._label: RunLabel | None = None
        self._num_samples: int | None = None
        self._next_line_s = 0.0
        self._began_s: float | None = None
        self._num_before = 0

    def run_kept(self, label: RunLabel) -> None:
        self._label = label
        self._say("kept")

    def run_started(self, label: RunLabel, *, num_samples: int | None) -> None:
        self._label = label
        self._num_samples = num_samples
        self._next_line_s = self._clock.now_s() + PLAIN_EVERY_S
        samples = "" if num_samples is None else f", {num_samples:,} samples"
        self._say(f"started{samples}{self._left(label)}")

    def run_advanced(self, snapshot: RunSnapshot) -> None:
        if self._clock.now_s() >= self._next_line_s:
            self._next_line_s = self._clock.now_s() + PLAIN_EVERY_S
            total = self._num_samples
            done = f"{snapshot.samples:,} samples" if total is None else f"{snapshot.samples / total:.0%}"
            self._say(f"{done} · {_figures(snapshot)}")

    def run_finished(self, result: RunResult) -> None:
        self._say(_ending(result))

    def run_failed(self, result: RunResult) -> None:
        self._say(_ending(result))

    def _left(self, label: RunLabel) -> str:
        """Return how long all runs that are left take, if they take as long as those that were done here."""
        if self._began_s is None:
            self._began_s, self._num_before = self._clock.now_s(), label.number - 1
        num_done = label.number - 1 - self._num_before
        if num_done < LEFT_AFTER_RUNS:
            return ""
        left_s = (self._clock.now_s() - self._began_s) / num_done * (label.num_runs - label.number + 1)
        return f" · about {format_seconds(round(left_s))} left"

    def _say(self, sentence: str) -> None:
        assert self._label is not None, "a run is named before anything is said of it"
        label = self._label
        print(f"[{label.number}/{label.num_runs}] {_name(label)}: {sentence}", file=self._stream, flush=True)
