"""Figures of a run that changed: slack, time of a step, training, shares; all over the steps of a worker.

What was in force is blue in all of them and bsp is grey; a dotted line stands where something was changed.
"""

import html
import math
import textwrap
from collections.abc import Iterator, Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from plesio.core.units import counted, format_seconds
from plesio.report.explanation import Chapter, Explanation
from plesio.report.explanation_sentences import change_text, percent
from plesio.report.figures.page_figure import PageFigure
from plesio.report.figures.theme import lay_out, with_alpha
from plesio.report.sentences import listed, share_text

__all__ = ["explanation_figures"]

_IN_FORCE = "#0072b2"
_BSP = "#7d8590"
_COMPONENTS = ("#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9")
_DASHES = ("dash", "dot", "dashdot", "solid", "longdash")
"""Of components."""
_WORKER_DASHES = ("solid", "dash", "dot", "dashdot")
_HOVER_COLUMNS = 64
_STRAND = 0.075
"""Between two components' lines at one slack, in rungs of the ladder."""
_SIZES = (1, 3, 7, 15, 31, 63, 127, 255)
_ALLOWED = (
    ", and how many each part of the policy that looks at training allowed; the lines of parts lie a little above what "
    "they mean, so that none hides another"
)
_PREDICTED = (
    "Seconds computing and blocked, mean over workers and over the steps between two reviews; and what the policy "
    "predicted for bsp with equal shares from the same steps: step time, not progress. Where that was in force, the "
    "two are one. After the last review by the training clock."
)
_SCHEDULED = "Training time between two changes, over the steps that a worker made in it on average."
_DOTS = "A dot is a change: point at it to read why."


def explanation_figures(explanation: Explanation) -> list[PageFigure]:
    """The figures that this run has data for, in the order of the page."""
    made = (
        _slack_figure(explanation),
        _step_figure(explanation),
        _loss_figure(explanation),
        _noise_figure(explanation),
        _shares_figure(explanation),
    )
    return [figure for figure in made if figure is not None]


def _slack_figure(explanation: Explanation) -> PageFigure | None:
    if not explanation.spans:
        return None
    figure = go.Figure()
    known = [span.slack for span in explanation.spans]
    known += [slack for span in explanation.spans for slack in span.allowed.values() if slack is not None]
    rungs = [0, *(size for size in _SIZES if size <= max(3, *known))]
    if max(known) > rungs[-1]:
        rungs.append(max(known))
    any_slack = _rung(rungs[-1]) + 1
    tops = {"any": any_slack} if explanation.components else {}
    asked = [span for span in explanation.spans if span.allowed]
    for place, component in enumerate(explanation.components):
        slacks = [span.allowed.get(component) for span in asked]
        shift = (place + 1) * _STRAND
        _add_steps(
            figure,
            [(span.begin, span.end) for span in asked],
            [shift + (any_slack if slack is None else _rung(slack)) for slack in slacks],
            name=f"allowed by {component}",
            colour=_COMPONENTS[place % len(_COMPONENTS)],
            dash=_DASHES[place % len(_DASHES)],
            width=2,
            texts=["any slack" if slack is None else f"a slack of {slack}" for slack in slacks],
        )
    _add_steps(
        figure,
        [(span.begin, span.end) for span in explanation.spans],
        [_rung(span.slack) for span in explanation.spans],
        name="in force",
        colour=_IN_FORCE,
        width=3.5,
        texts=[f"a slack of {span.slack} ({html.escape(span.policy)})" for span in explanation.spans],
    )
    _add_change_marks(figure, explanation)
    lay_out(figure, height_px=400, legend_gap_px=10)
    figure.update_yaxes(
        title_text="slack (steps)",
        tickvals=[*(_rung(rung) for rung in rungs), *tops.values()],
        ticktext=[*map(str, rungs), *tops],
        range=[-0.3, max([_rung(rungs[-1]), *tops.values()]) + 0.25 + _STRAND * len(explanation.components)],
    )
    _finish_x(figure, explanation)
    allowed = _ALLOWED if explanation.components else ""
    return PageFigure(
        slug="slack",
        title=_slack_finding(explanation),
        caption=f"How many steps a worker went on without hearing of the others'{allowed}. {_DOTS}",
        figure=figure,
        wide=True,
    )


def _step_figure(explanation: Explanation) -> PageFigure | None:
    if not explanation.spans:
        return None
    figure = go.Figure()
    edges = [(span.begin, span.end) for span in explanation.spans]
    bsp_ms = [1e3 * span.bsp_step_s for span in explanation.spans if span.bsp_step_s is not None]
    step_ms = [1e3 * span.step_s for span in explanation.spans]
    if explanation.predicts:
        _add_steps(figure, edges, bsp_ms, name="bsp, predicted", colour=_BSP, dash="dash", width=2, unit="ms")
    if explanation.saved_s > 0:
        x, y = _corners(edges, [min(pair) for pair in zip(step_ms, bsp_ms, strict=True)])
        figure.add_scatter(
            x=x,
            y=y,
            mode="lines",
            line={"width": 0},
            fill="tonexty",
            fillcolor=with_alpha(_IN_FORCE, 0.18),
            hoverinfo="skip",
            name="less step time",
        )
    _add_steps(figure, edges, step_ms, name="measured", colour=_IN_FORCE, width=3, unit="ms")
    lay_out(figure, height_px=340, legend_gap_px=10)
    _add_change_lines(figure, explanation)
    figure.update_yaxes(title_text="a step (ms)", range=[0, 1.08 * max([*step_ms, *bsp_ms])])
    _finish_x(figure, explanation)
    return PageFigure(
        slug="step-time",
        title=_step_finding(explanation),
        caption=_PREDICTED if explanation.predicts else _SCHEDULED,
        figure=figure,
        wide=True,
    )


def _loss_figure(explanation: Explanation) -> PageFigure | None:
    if len(explanation.losses) < 2:
        return None
    clocks, losses = zip(*explanation.losses, strict=True)
    figure = go.Figure()
    figure.add_scatter(
        x=clocks,
        y=losses,
        mode="lines",
        line={"color": _IN_FORCE, "width": 2},
        hovertemplate="%{y:.4g} after %{x} steps<extra></extra>",
    )
    lay_out(figure, height_px=320)
    _add_change_lines(figure, explanation)
    logarithmic = min(losses) > 0
    figure.update_yaxes(title_text="training loss", type="log" if logarithmic else "linear", **_ticks(losses))
    _finish_x(figure, explanation)
    return PageFigure(
        slug="loss",
        title=f"The loss went from {losses[0]:.2g} to {losses[-1]:.2g}",
        caption="Mean over the workers. Dotted lines: changes.",
        figure=figure,
    )


def _noise_figure(explanation: Explanation) -> PageFigure | None:
    if len(explanation.noises) < 2:
        return None
    clocks = [noise.clock for noise in explanation.noises]
    norms = [noise.norm for noise in explanation.noises]
    scales = [noise.noise_scale for noise in explanation.noises]
    known = [scale for scale in scales if scale is not None]
    with_scales = 2 * len(known) >= len(scales)
    rows = 2 if with_scales else 1
    figure = make_subplots(rows=rows, cols=1, shared_xaxes=True, vertical_spacing=0.1)
    marks = {"mode": "lines+markers", "line": {"color": _IN_FORCE, "width": 2}, "marker": {"size": 7}}
    hover = "%{y:.3g} at the review after %{x} steps<extra></extra>"
    figure.add_scatter(x=clocks, y=norms, hovertemplate=hover, **marks, row=1, col=1)
    if with_scales:
        figure.add_scatter(x=clocks, y=scales, hovertemplate=hover, **marks, row=2, col=1)
    lay_out(figure, height_px=320)
    _add_change_lines(figure, explanation)
    figure.update_yaxes(
        title_text="norm" if with_scales else "gradient norm", rangemode="tozero", nticks=4, row=1, col=1
    )
    if with_scales:
        figure.update_yaxes(title_text="noise (samples)", type="log", **_ticks(known), row=2, col=1)
    _finish_x(figure, explanation)
    below = (
        " Below: the noise scale, the batch beyond which noise matters less than the gradient." if with_scales else ""
    )
    gaps = " Gaps: noise hid the mean gradient." if with_scales and len(known) < len(scales) else ""
    return PageFigure(
        slug="gradient",
        title=f"The gradient's norm went from {norms[0]:.2g} to {norms[-1]:.2g}",
        caption=f"A worker's own, of the sampled steps; mean over the workers.{below}{gaps}",
        figure=figure,
    )


def _shares_figure(explanation: Explanation) -> PageFigure | None:
    shared = [chapter for chapter in explanation.chapters if chapter.shares]
    if not shared:
        return None
    num_workers = len(shared[0].shares)
    equal = 1 / num_workers
    last = shared[-1].shares
    own = [rank for rank in range(num_workers) if any(_differs(chapter, rank) for chapter in shared)]
    figure = go.Figure()
    edges = [(chapter.begin, chapter.end) for chapter in explanation.chapters]
    for rank in range(num_workers):
        stands_out = rank in own
        _add_steps(
            figure,
            edges,
            [100 * (chapter.shares[rank] if chapter.shares else equal) for chapter in explanation.chapters],
            name=f"worker {rank}",
            colour=(_IN_FORCE, *_COMPONENTS)[own.index(rank) % 6] if stands_out else _BSP,
            dash=_WORKER_DASHES[own.index(rank) // 6 % 4] if stands_out else "solid",
            width=3 if stands_out else 2,
            legend=stands_out,
            unit="%",
        )
    if len(own) < num_workers:
        figure.add_scatter(x=[None], y=[None], mode="lines", line={"color": _BSP, "width": 2}, name="the others")
    lay_out(figure, height_px=280, legend_gap_px=10)
    _add_change_lines(figure, explanation)
    largest = max(max(chapter.shares) for chapter in shared)
    figure.update_yaxes(title_text="share of a round (%)", range=[0, 110 * max(largest, equal)])
    _finish_x(figure, explanation)
    least = min(range(num_workers), key=lambda rank: last[rank])
    return PageFigure(
        slug="shares",
        title=f"Worker {least} takes {percent(last[least])} of each round; an equal share is {percent(equal)}",
        caption="Slower workers take smaller shares, so that nobody waits for them; the mean counts samples alike.",
        figure=figure,
        wide=True,
    )


def _differs(chapter: Chapter, rank: int) -> bool:
    return abs(chapter.shares[rank] - sorted(chapter.shares)[(len(chapter.shares) - 1) // 2]) > 1e-9


def _rung(slack: float) -> float:
    """Where a slack is on the axis: 0, 1, 3, 7 and so on are a rung apart.

    >>> [_rung(slack) for slack in (0, 1, 3, 7)]
    [0.0, 1.0, 2.0, 3.0]
    """
    return math.log2(slack + 1)


def _corners(edges: Sequence[tuple[int, int]], values: Sequence[float]) -> tuple[list[int], list[float]]:
    """Of a line that is level between each two edges and rises and falls at them."""
    x = [edge for pair in edges for edge in pair]
    return x, [value for value in values for _ in range(2)]


def _add_steps(
    figure: go.Figure,
    edges: Sequence[tuple[int, int]],
    values: Sequence[float],
    *,
    name: str,
    colour: str,
    width: float,
    dash: str = "solid",
    texts: Sequence[str] | None = None,
    unit: str = "",
    legend: bool = True,
) -> None:
    x, y = _corners(edges, values)
    hints = [f"{value:.3g} {unit}" for value in values] if texts is None else texts
    spans = [f"{text}, steps {begin + 1} to {end}" for text, (begin, end) in zip(hints, edges, strict=True)]
    figure.add_scatter(
        x=x,
        y=y,
        mode="lines",
        name=html.escape(name),
        line={"color": colour, "width": width, "dash": dash},
        customdata=[text for text in spans for _ in range(2)],
        hovertemplate="%{customdata}<extra>" + html.escape(name) + "</extra>",
        showlegend=legend,
    )


def _add_change_lines(figure: go.Figure, explanation: Explanation) -> None:
    for chapter in explanation.changes:
        figure.add_vline(x=chapter.begin, line={"dash": "dot", "width": 1, "color": "#8b949e"}, layer="below")


def _add_change_marks(figure: go.Figure, explanation: Explanation) -> None:
    """A line and a dot at each change; a cross where the workers went back to an earlier state."""
    _add_change_lines(figure, explanation)
    changes = [(chapter, chapter.change) for chapter in explanation.changes if chapter.change is not None]
    if not changes:
        return
    figure.add_scatter(
        x=[chapter.begin for chapter, _ in changes],
        y=[_rung(chapter.slack) for chapter, _ in changes],
        mode="markers",
        name="change",
        marker={
            "size": 11,
            "color": [_COMPONENTS[3] if change.restored else _IN_FORCE for _, change in changes],
            "symbol": ["x" if change.restored else "circle" for _, change in changes],
            "line": {"width": 1.5, "color": "white"},
        },
        customdata=[_wrapped(f"{change_text(change)}.") for _, change in changes],
        hovertemplate="%{customdata}<extra></extra>",
        showlegend=False,
    )


def _wrapped(text: str) -> str:
    return "<br>".join(html.escape(line) for line in textwrap.wrap(text, _HOVER_COLUMNS))


def _finish_x(figure: go.Figure, explanation: Explanation) -> None:
    """Steps, all to one scale; the title below the last panel."""
    figure.update_xaxes(range=[0, explanation.num_steps])
    who = "the furthest" if any(chapter.steps_made for chapter in explanation.chapters) else "each"
    lowest = max((axis.anchor or "y" for axis in figure.select_xaxes()), key=lambda anchor: (len(anchor), anchor))
    figure.update_xaxes(
        title_text=f"steps finished by {who} worker",
        selector=lambda axis: (axis.anchor or "y") == lowest,
    )


def _ticks(values: Sequence[float]) -> dict[str, object]:
    """Of a logarithmic axis: 1, 2, 5 within less than two decades, else powers of ten; nothing where it is linear."""
    if min(values) <= 0:
        return {}
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    digits = (1, 2, 5) if max(values) < 100 * min(values) else (1,)
    ticks = [digit * 10.0**ten for ten in range(low, high + 1) for digit in digits]
    return {"tickvals": ticks, "ticktext": [f"{tick:,.10g}" for tick in ticks]}


def _slack_finding(explanation: Explanation) -> str:
    held = [name for name, steps in _held_steps(explanation).items() if 10 * steps >= explanation.num_steps]
    who = f"; {listed(held)} held it back" if held else ""
    steps: dict[int, int] = {}
    for span in explanation.spans:
        steps[span.slack] = steps.get(span.slack, 0) + span.num_steps
    usual = max(steps, key=lambda slack: steps[slack])
    when = "throughout" if len(steps) == 1 else f"for {share_text(steps[usual] / explanation.num_steps)} of the run"
    return f"The slack was {counted(usual, 'step')} {when}{who}"


def _held_steps(explanation: Explanation) -> dict[str, int]:
    steps: dict[str, int] = {}
    for chapter in explanation.chapters:
        for limit in chapter.limits:
            steps[limit.component] = steps.get(limit.component, 0) + limit.num_steps
    return dict(sorted(steps.items(), key=lambda item: -item[1]))


def _step_finding(explanation: Explanation) -> str:
    if not explanation.predicts:
        return f"A step took {listed(list(_steps_by_policy(explanation)))}"
    step_s = sum(span.num_steps * span.step_s for span in explanation.spans) / explanation.num_steps
    took = f"A step took {format_seconds(step_s)} on average"
    if all(chapter.policy == "bsp" and not chapter.shares for chapter in explanation.chapters):
        return f"{took}, all under bsp"
    return f"{took}, {format_seconds(step_s + explanation.saved_s / explanation.num_steps)} under bsp by prediction"


def _steps_by_policy(explanation: Explanation) -> Iterator[str]:
    """What a step took under each policy, in the order in which they came."""
    for policy in dict.fromkeys(chapter.policy for chapter in explanation.chapters):
        chapters = [chapter for chapter in explanation.chapters if chapter.policy == policy]
        step_s = sum(one.num_steps * one.step_s for one in chapters) / sum(one.num_steps for one in chapters)
        yield f"{format_seconds(step_s)} under {policy}"
