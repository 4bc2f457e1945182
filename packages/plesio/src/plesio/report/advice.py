"""Advice in a terminal and as a page."""

import math

from rich.console import Group, RenderableType
from rich.text import Text

from plesio.advisor import Advice, Flip, Row, code_for, sentences_of
from plesio.advisor.candidates import SHARDED
from plesio.core.charts import Axis, LineChart, Series, Table
from plesio.core.units import counted, format_bytes, format_seconds
from plesio.report.charts import terminal_table
from plesio.report.document import Document, TextLine, pictures, section
from plesio.report.page_frame import render_document

SHOWN = 10
"""Rows of the table in a terminal; the page has all."""
_AXES = {
    "bandwidth": ("bandwidth of the links (Mbit/s)", 8e-6),
    "imbalance": ("time of the slowest worker over the others'", 1.0),
    "model size": ("bytes of the parameters (MB), at equal time of a step", 1e-6),
    "failures": ("mean time until a worker fails (h)", 1 / 3600),
}
_LEGEND = (
    "What is priced has not been run, because by the cost models it could not win or there was no time for it: ≥ is "
    "what it takes if a sample is worth as much as under bsp. Samples are those to the goal, over bsp's."
)


def render_advice(advice: Advice) -> RenderableType:
    parts: list[RenderableType] = [Text(line) for line in sentences_of(advice)]
    parts += [Text(), terminal_table(_ranking(advice, most=SHOWN)), Text()]
    parts += [Text(line) for line in _code(advice).splitlines()]
    return Group(*parts)


def render_advice_page(advice: Advice, *, recipe: str | None) -> str:
    """Render the page as one HTML document; a ``recipe`` is shown below the code."""
    question = advice.question
    ranking = _ranking(advice, most=None)
    facts = (
        f"{counted(question.at.num_workers, 'worker')} on {question.at.cluster.name} · "
        f"{format_bytes(question.at.sizes.parameter_bytes)} of parameters · batches of {question.at.batch_size}"
    )
    toml = () if recipe is None else ("As a recipe:", TextLine(recipe, "code"))
    document = Document(
        title=f"Plesio: advice for {question.name}",
        heading=f"{question.name}: {advice.chosen.spec}",
        facts=[facts],
        sections=[
            section("In words", *sentences_of(advice), slug="in-words"),
            section("To use it", TextLine(_code(advice), "code"), *toml, slug="code"),
            section(ranking.title, ranking, _LEGEND, slug="ranking"),
            pictures([_progress_chart(advice), *(_flip_chart(flip) for flip in advice.flips)]),
        ],
    )
    return render_document(document)


def _code(advice: Advice) -> str:
    chosen = advice.chosen
    usual = next((row.price.servers for row in advice.rows if row.spec == "asp"), None)
    servers = chosen.price.servers
    return code_for(chosen.spec, servers=None if servers == usual and servers != 1 else servers)


def _ranking(advice: Advice, *, most: int | None) -> Table:
    headers = ["strategy", "time", "95 %", "of bsp's", "samples", "step", "memory", "seeds", "from"]
    if advice.question.price_per_hour is not None:
        headers.insert(3, "cost")
    rows = advice.rows[:most]
    goal = f"{advice.question.metric_name} {advice.level:.4g}"
    return Table(title=f"Time to {goal}, best first", headers=headers, rows=[_cells(advice, row) for row in rows])


def _cells(advice: Advice, row: Row) -> list[str]:
    base = advice.baseline
    known = math.isfinite(row.time_s)
    relative = f"{100 * row.time_s / base.time_s:.0f} %" if known and math.isfinite(base.time_s) else "–"
    interval = "–" if math.isnan(row.low_s) else f"{format_seconds(row.low_s)} to {format_seconds(row.high_s)}"
    cells = [
        f"{row.spec} *" if row is advice.chosen else row.spec,
        ("≥ " if row.how == "priced" and row.spec != SHARDED else "") + format_seconds(row.time_s) if known else "–",
        interval,
        relative,
        f"{100 * row.samples:.0f} %" if math.isfinite(row.samples) else "–",
        format_seconds(row.price.step_s),
        format_bytes(row.memory.total) + ("" if row.fits else " (too much)"),
        str(row.num_seeds) if row.num_seeds else "–",
        row.how if row.lost is None or row.lost <= advice.question.tolerance else "too inaccurate",
    ]
    if row.cost is not None:
        cells.insert(3, f"{row.cost:.3g}" if known else "–")
    return cells


def _progress_chart(advice: Advice) -> LineChart:
    """Draw the runs of seed 0."""
    question = advice.question
    rows = {row.spec: row for row in advice.rows}
    entries = [entry for entry in advice.raced.entries if 0 in entry.runs and entry.runs[0].curve is not None]
    entries.sort(key=lambda entry: rows[entry.spec].time_s)
    shown = entries[:6]
    base = advice.raced.entries[0]
    if base in entries and base not in shown:
        shown.append(base)
    series = []
    for entry in shown:
        curve = entry.runs[0].curve
        assert curve is not None, "chosen above"
        values = [question.sign * value for value in curve.values]
        weight = "thick" if entry.spec == advice.chosen.spec else "normal"
        series.append(Series(name=_short(entry.spec), x=curve.seconds, y=values, weight=weight))  # type: ignore[arg-type]
    return LineChart(
        slug="progress",
        title=f"{advice.chosen.spec} comes to {question.metric_name} {advice.level:.4g} first"
        if advice.chosen.how == "measured"
        else f"{question.metric_name} over time",
        caption="Smoothed, seed 0, virtual time; the level that all are timed to is the horizontal line.",
        wide=True,
        x=Axis(title="time (s)", from_zero=True),
        y=Axis(title=question.metric_name),
        series=series,
        levels=[advice.level],
    )


def _short(spec: str) -> str:
    """Shorten a policy's text for a legend.

    >>> _short("local_sgd:8,delay=4,inner_rate=0.25,momentum=0.5")
    'local_sgd:8,delay=4 in two rates'
    """
    return spec.replace(",inner_rate=0.25,momentum=0.5", " in two rates")


def _flip_chart(flip: Flip) -> LineChart:
    title, scale = _AXES[flip.axis]
    log = flip.axis != "imbalance"
    x = [value * scale for value in flip.values]
    series = [Series(name=_short(line.spec), x=x, y=line.times_s) for line in flip.lines]
    winners = dict.fromkeys(_short(name) for name in flip.winners if name)
    won = " → ".join(winners) if flip.turns else f"{next(iter(winners), 'nothing')} throughout"
    marks = {} if math.isnan(flip.here) else {"here": flip.here * scale}
    return LineChart(
        slug=f"flip-{flip.axis.replace(' ', '-')}",
        title=f"{'Failure rate' if flip.axis == 'failures' else flip.axis.capitalize()}: {won}",
        caption="Time to the goal by the cost models, with the samples that the runs have shown; a gap: does not fit."
        if flip.axis == "model size"
        else "Time to the goal by the cost models, with the samples that the runs have shown.",
        x=Axis(title=title, log=log),
        y=Axis(title="time (s)", log=True),
        series=series,
        marks=marks,
    )
