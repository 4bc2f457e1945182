"""Experiment b: accuracy and its spread over seeds, by policy and learning rate.

The rate of a recipe is that of a synchronous step: Plesio divides it by the number of workers for each update of a
relaxed policy. Systems that do not divide apply every update at the full rate: here that is a recipe whose rate is 16
times as large. So each setting takes `bsp` from one recipe and the relaxed policies from the same or from another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
from plotly.subplots import make_subplots
from scipy import stats
from seeds import Spread, markdown, over_seeds, policies_of

from plesio.core.results import RunResult
from plesio.report.charts.colours import looks_of
from plesio.report.charts.theme import lay_out, with_alpha

BASELINE = "bsp"
Runs = Mapping[str, Sequence[RunResult]]


@dataclass(frozen=True, slots=True)
class Setting:
    """A column of the figure: its title, and the recipes of `bsp` and of the others."""

    title: str
    bsp: str
    relaxed: str


SETTINGS = (
    Setting("0.15, divided by 16", "rate-0.15", "rate-0.15"),
    Setting("1.2, divided by 16", "rate-1.2", "rate-1.2"),
    Setting("0.15, not divided", "rate-0.15", "rate-2.4"),
    Setting("0.3, not divided", "rate-0.3", "rate-4.8"),
)
RECIPES = tuple(dict.fromkeys(recipe for setting in SETTINGS for recipe in (setting.bsp, setting.relaxed)))


def accuracy_of(run: RunResult) -> float:
    """Held-out accuracy in percent of the final parameters."""
    assert run.final_metric is not None, "the runs have finished"
    return 100 * run.final_metric


def _group(runs: Runs, setting: Setting) -> list[RunResult]:
    return [
        *(run for run in runs[setting.bsp] if run.policy == BASELINE),
        *(run for run in runs[setting.relaxed] if run.policy != BASELINE),
    ]


def tables(runs: Runs) -> str:
    """Mean, spread and tests against bsp, by setting and policy."""
    header = [
        "rate of an update",
        "policy",
        "accuracy, %",
        "range, %",
        "p (mean)",
        "s.d. by bsp's",
        "p (spread)",
        "mean τ",
        "largest τ",
    ]
    rows = [row for setting in SETTINGS for row in _rows(setting.title, _group(runs, setting))]
    return markdown(header, rows) + "\n"


def _rows(rate: str, group: Sequence[RunResult]) -> list[list[str]]:
    baseline = over_seeds(group, BASELINE, accuracy_of)
    rows = []
    for policy in policies_of(group):
        accuracy = over_seeds(group, policy, accuracy_of)
        rows.append(
            [
                rate,
                f"`{policy}`",
                accuracy.text(".1f"),
                f"{min(accuracy.values):.1f} to {max(accuracy.values):.1f}",
                *(("", "", "") if policy == BASELINE else _tests(accuracy, baseline)),
                f"{over_seeds(group, policy, lambda run: run.staleness.mean).mean:.1f}",
                f"{max(over_seeds(group, policy, lambda run: run.staleness.max).values):.0f}",
            ]
        )
    return rows


def _tests(policy: Spread, baseline: Spread) -> tuple[str, str, str]:
    """Welch's p value, the ratio of the standard deviations, and the p value of Levene's test around the median."""
    if policy.std == baseline.std == 0:
        return "no spread", "", "no spread"
    welch = stats.ttest_ind(policy.values, baseline.values, equal_var=False).pvalue
    levene = stats.levene(policy.values, baseline.values, center="median").pvalue
    ratio = f"{policy.std / baseline.std:.2g}" if baseline.std > 0 else "∞"
    return f"{welch:.2g}", ratio, f"{levene:.2g}"


def draw(runs: Runs) -> go.Figure:
    """Draw a dot a seed, a bar at the mean; a column a setting."""
    groups = [_group(runs, setting) for setting in SETTINGS]
    policies = policies_of(groups[0])
    figure = make_subplots(
        rows=1,
        cols=len(SETTINGS),
        shared_yaxes=True,
        horizontal_spacing=0.04,
        column_titles=[f"rate {setting.title}" for setting in SETTINGS],
    )
    for column, group in enumerate(groups, start=1):
        _add_dots(figure, group, policies, column=column)
    lay_out(figure, height_px=330)
    figure.update_layout(margin={"t": 36, "r": 36})
    figure.update_annotations(font_size=14)
    figure.update_xaxes(title_text="accuracy (%)")
    figure.update_yaxes(range=[len(policies) - 0.4, -0.6], tickvals=list(range(len(policies))), ticktext=policies)
    return figure


def _add_dots(figure: go.Figure, group: Sequence[RunResult], policies: Sequence[str], *, column: int) -> None:
    looks = looks_of(policies, quiet=BASELINE)
    for place, policy in enumerate(policies):
        accuracy, colour = over_seeds(group, policy, accuracy_of), looks[policy].colour
        middle = (len(accuracy.values) - 1) / 2
        figure.add_scatter(
            x=list(accuracy.values),
            y=[place - 0.1 + 0.35 * (seed - middle) / max(1, 2 * middle) for seed in range(len(accuracy.values))],
            mode="markers",
            marker={"size": 8, "color": with_alpha(colour, 0.7)},
            row=1,
            col=column,
        )
        figure.add_scatter(
            x=[accuracy.mean],
            y=[place + 0.28],
            error_x={"array": [accuracy.std], "color": colour, "thickness": 2, "width": 4},
            mode="markers",
            marker={"symbol": "line-ns", "size": 12, "line": {"width": 3, "color": colour}},
            row=1,
            col=column,
        )
