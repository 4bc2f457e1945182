"""Experiment a: how the communication overhead grows from 4 to 16 workers."""

from collections.abc import Callable, Mapping, Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots
from seeds import Spread, markdown, over_seeds

from plesio.core.results import RunResult
from plesio.report.charts.colours import looks_of
from plesio.report.charts.theme import lay_out

COUNTS = (4, 8, 16)
KINDS = {"weak": "32 samples a step for each worker", "strong": "256 samples a step for all workers"}
POLICIES = ("bsp", "ssp:4", "asp", "ssp:4,period=3", "asp,period=3")
SOURCE_GROWTH = {"bsp": 3.7, "ssp:4,period=3": 2.8, "asp": 2.1}
"""Growth of "communication overhead" from 4 to 16 nodes, in source 000; its SSP has a bound of 5."""

Runs = Mapping[str, Sequence[RunResult]]
Figure = Callable[[RunResult], float]


def overhead_share(run: RunResult) -> float:
    """Percentage of the workers' time in which they wait or communicate."""
    return 100 * _overhead_s(run) / (_overhead_s(run) + sum(worker.compute_s for worker in run.workers))


def overhead_ms(run: RunResult) -> float:
    """Milliseconds of waiting and communicating in a step."""
    return 1e3 * _overhead_s(run) / run.steps


def gigabytes(run: RunResult) -> float:
    """Return the gigabytes that all workers and servers sent in the run."""
    return run.bytes_sent_total / 1e9


def network_load(run: RunResult) -> float:
    """Gigabytes a second, of all workers and servers together."""
    return gigabytes(run) / run.wall_s


def _overhead_s(run: RunResult) -> float:
    return sum(worker.wait_s + worker.communicate_s for worker in run.workers)


def _growth(runs: Runs, kind: str, policy: str, figure: Figure) -> Spread:
    """Return the figure with 16 workers over that with 4, seed by seed."""
    few, many = (over_seeds(runs[f"{kind}-{count}"], policy, figure).values for count in (COUNTS[0], COUNTS[-1]))
    return Spread.of(after / before for before, after in zip(few, many, strict=True))


def tables(runs: Runs) -> str:
    """Write the figures by number of workers, and their growth under each meaning of overhead."""
    return "\n\n".join([*(_figures_table(runs, kind) for kind in KINDS), _growth_table(runs)]) + "\n"


def _figures_table(runs: Runs, kind: str) -> str:
    columns: list[tuple[str, Figure, str]] = [
        ("overhead, %", overhead_share, ".1f"),
        ("overhead, ms a step", overhead_ms, ".0f"),
        ("sent, GB", gigabytes, ".2f"),
        ("samples/s", lambda run: run.samples_per_s, ".0f"),
    ]
    rows = []
    for policy in POLICIES:
        cells = [f"`{policy}`"]
        for _, figure, form in columns:
            spreads = [over_seeds(runs[f"{kind}-{count}"], policy, figure) for count in COUNTS]
            cells.append(", ".join(format(spread.mean, form) for spread in spreads))
        widest = max(over_seeds(runs[f"{kind}-{count}"], policy, overhead_share).std for count in COUNTS)
        rows.append([*cells, f"{widest:.1f}"])
    header = ["policy", *(name for name, _, _ in columns), "largest s.d. of overhead, points"]
    return f"{KINDS[kind].capitalize()}; with 4, 8, 16 workers:\n\n{markdown(header, rows)}"


def _growth_table(runs: Runs) -> str:
    meanings: list[tuple[str, Figure]] = [
        ("share of the time", overhead_share),
        ("time in a step", overhead_ms),
        ("bytes for the same samples", gigabytes),
        ("bytes a second", network_load),
    ]
    rows = []
    for kind, setting in KINDS.items():
        for meaning, figure in meanings:
            growth = [_growth(runs, kind, policy, figure).text(".2f") for policy in POLICIES]
            rows.append([setting, meaning, *growth])
    claimed = [f"{SOURCE_GROWTH[policy]}" if policy in SOURCE_GROWTH else "" for policy in POLICIES]
    rows.append(["source 000", '"communication overhead"', *claimed])
    return (
        f"Growth from 4 to 16 workers:\n\n{markdown(['setting', 'overhead is', *(f'`{p}`' for p in POLICIES)], rows)}"
    )


def draw(runs: Runs) -> go.Figure:
    """Overhead and bytes over the number of workers, in both settings."""
    figure = make_subplots(
        rows=2,
        cols=2,
        shared_xaxes=True,
        shared_yaxes=True,
        horizontal_spacing=0.06,
        vertical_spacing=0.09,
        column_titles=[f"{text}<br>" for text in KINDS.values()],
    )
    looks = looks_of(POLICIES, quiet="bsp")
    for column, kind in enumerate(KINDS, start=1):
        for row, quantity in enumerate((overhead_share, gigabytes), start=1):
            for place, policy in enumerate(POLICIES):
                dash = "solid" if "period" not in policy else "dot"
                spreads = [over_seeds(runs[f"{kind}-{count}"], policy, quantity) for count in COUNTS]
                figure.add_scatter(
                    # beside each other, for two of them have the same values
                    x=[step + 0.04 * (place - 2) for step in range(len(COUNTS))],
                    y=[spread.mean for spread in spreads],
                    error_y={"array": [spread.std for spread in spreads], "thickness": 1.5, "width": 3},
                    mode="lines+markers",
                    marker={"size": 8},
                    line={
                        "color": looks[policy].colour,
                        "width": 2,
                        "dash": dash,
                    },
                    name=policy,
                    legendgroup=policy,
                    showlegend=row == column == 1,
                    row=row,
                    col=column,
                )
    lay_out(figure, height_px=620, legend_gap_px=45)
    figure.update_layout(margin={"t": 90})
    figure.update_annotations(font_size=14)
    figure.update_xaxes(tickvals=list(range(len(COUNTS))), ticktext=[str(count) for count in COUNTS])
    figure.update_xaxes(title_text="workers", row=2)
    figure.update_yaxes(rangemode="tozero")
    figure.update_yaxes(title_text="waiting and communicating<br>(% of the workers' time)", row=1, col=1)
    figure.update_yaxes(title_text="sent by all, in the run (GB)", row=2, col=1)
    return figure
