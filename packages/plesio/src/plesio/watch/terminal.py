"""A view of a run in a terminal."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from plesio.core.units import format_seconds
from plesio.watch.view import RunView, WorkerRow

_BLOCKS = "▁▂▃▄▅▆▇█"
CURVE_WIDTH = 48
BAR_WIDTH = 12
MOST_DECISIONS = 5
MOST_NOTES = 4
_PARTS = (("compute", "green"), ("exchange", "blue"), ("wait", "yellow"))


def render(view: RunView) -> RenderableType:
    """Show a whole view."""
    return Group(*_lines(view))


def headline(view: RunView) -> str:
    """Show a view in one line, where there is no terminal."""
    slow = f" · {view.slow[0]}" if view.slow else ""
    return f"{view.status} · {' · '.join(_progress(view))}{slow}"


def _lines(view: RunView) -> Iterator[RenderableType]:
    under = f" (now {view.in_force})" if view.in_force not in ("", view.policy) else ""
    style = "bold green" if view.status in ("running", "finished") else "bold red"
    yield Text.assemble((view.status, style), f"  {view.task} under {view.policy}{under}, {view.num_workers} workers")
    if view.note:
        yield Text(view.note, style="bold")
    if view.error:
        yield Text(view.error, style="red")
    yield Text(" · ".join(_progress(view)))
    for name, points in (("loss", view.losses), (view.metric_name, view.metrics)):
        if points:
            yield Text.assemble(
                f"{name:>10} ", (_curve([value for _, value in points]), "cyan"), f" {points[-1][1]:.4g}"
            )
    yield _workers(view)
    yield from (Text(line, style="yellow") for line in (*view.slow, *view.members))
    if view.checkpoint:
        yield Text(view.checkpoint)
    yield from _decisions(view)
    yield from (Text(line, style="dim") for line in view.fallbacks[-MOST_NOTES:])


def _progress(view: RunView) -> Iterator[str]:
    of = "" if view.total_samples is None else f" of {view.total_samples:,} ({view.samples / view.total_samples:.0%})"
    yield f"{format_seconds(round(view.elapsed_s, 1))} of training"
    yield f"{view.steps:,} steps"
    yield f"{view.samples:,} samples{of}"
    yield f"{view.samples_per_s:,.0f} samples/s"
    if view.remaining_s is not None and view.status == "running":
        yield f"about {format_seconds(round(view.remaining_s))} left"
    if view.loss is not None:
        yield f"loss {view.loss:.4g}"
    if view.metrics:
        yield f"{view.metric_name} {view.metrics[-1][1]:.4g}"
    mean, p95, most = view.staleness
    yield f"staleness {mean:.1f} (95 %: {p95}, most {most})"


def _curve(values: Sequence[float]) -> str:
    """Draw finite values as a line of blocks; the last one is the latest."""
    finite = [value for value in values if abs(value) < float("inf")]
    width = max(1, -(-len(finite) // CURVE_WIDTH))
    means = [sum(part) / len(part) for at in range(0, len(finite), width) if (part := finite[at : at + width])]
    low, high = min(means, default=0.0), max(means, default=0.0)
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round((value - low) / (high - low) * top) if high > low else 0] for value in means)


def _workers(view: RunView) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("worker", "step", "lead", "a step"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("its time", no_wrap=True)
    for name, style in _PARTS:
        table.add_column(Text(name, style=style), justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row in view.workers:
        shares = [f"{getattr(row, name):.0%}" for name, _ in _PARTS]
        step = "" if row.step_s is None else format_seconds(row.step_s)
        style = "red" if row.state == "lost" else "dim" if row.state == "left" else ""
        table.add_row(
            str(row.worker), f"{row.clock:,}", str(row.lead), step, _bar(row), *shares, row.state, style=style
        )
    return table


def _bar(row: WorkerRow) -> Text:
    bar, drawn, share = Text(), 0, 0.0
    for name, style in _PARTS:
        share += getattr(row, name)
        end = round(share * BAR_WIDTH)
        bar.append("█" * (end - drawn), style=style)
        drawn = end
    return bar


def _decisions(view: RunView) -> Iterator[Text]:
    hidden = len(view.decisions) - MOST_DECISIONS
    if hidden > 0:
        yield Text(f"{hidden} earlier decisions; the page (--page) shows all", style="dim")
    for made in view.decisions[-MOST_DECISIONS:]:
        yield Text.assemble(f"step {made.clock:,}: ", (made.policy, "bold"), f": {made.reason}")
