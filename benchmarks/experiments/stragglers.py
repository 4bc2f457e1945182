"""Experiment c: what a bound on the lead makes of transient and of persistent stragglers."""

import math
from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from seeds import Spread, markdown, over_seeds, policies_of

from plesio.core.results import RunResult
from plesio.policies import parse_policy
from plesio.report.charts.theme import lay_out

NUM_WORKERS, BATCH, STEP_S = 8, 16, 0.1
_WORKER_PER_S = BATCH / STEP_S
IDEAL_PER_S = {
    "equal": NUM_WORKERS * _WORKER_PER_S,
    "stalls": NUM_WORKERS * _WORKER_PER_S / 1.2,  # 4 % of the steps are 6 times as long
    "slow": (NUM_WORKERS - 1 + 1 / 2.6) * _WORKER_PER_S,
}
"""Samples a second, were nobody ever to wait or communicate."""
LABELS = {
    "equal": "equal workers",
    "stalls": "transient: any step may stall",
    "slow": "persistent: one slow worker",
}
COLOURS = {"equal": "#7d8590", "stalls": "#0072b2", "slow": "#d55e00"}
NOTES = (
    ("equal workers", "equal", 0.6, 104),
    ("transient: any step may stall", "stalls", 0.45, 80),
    ("the same, exchanging<br>every 1 + s/2 steps", "stalls", 3.25, 70),
    ("persistent: one slow worker", "slow", 2.4, 47),
)
"""Text, setting, and where it stands in the figure."""
BOUNDS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, math.inf)
_PLACE = {bound: place for place, bound in enumerate(BOUNDS)}

Runs = Mapping[str, Sequence[RunResult]]


def _efficiency(runs: Runs, name: str, policy: str) -> Spread:
    """Throughput in percent of the ideal."""
    return over_seeds(runs[name], policy, lambda run: 100 * run.samples_per_s / IDEAL_PER_S[name])


def _bound(policy: str) -> float:
    return 0.0 if policy == "bsp" else float(getattr(parse_policy(policy), "bound", math.inf))


def _every_step(policy: str) -> bool:
    """Return True if the policy exchanges after every step."""
    return policy == "bsp" or getattr(parse_policy(policy), "period", 1) == 1


def tables(runs: Runs) -> str:
    """Throughput relative to the ideal, by policy and setting."""
    policies = list(dict.fromkeys(policy for group in runs.values() for policy in policies_of(group)))
    policies.sort(key=lambda policy: (not _every_step(policy), _bound(policy)))
    rows = []
    for policy in policies:
        cells = [
            _efficiency(runs, name, policy).text(".1f") if policy in policies_of(group) else ""
            for name, group in runs.items()
        ]
        leads = [
            f"{over_seeds(group, policy, lambda run: run.max_lead).mean:.0f}" if policy in policies_of(group) else "–"
            for group in runs.values()
        ]
        rows.append([f"`{policy}`", *cells, ", ".join(leads)])
    header = ["policy", *(f"{LABELS[name]}, %" for name in runs), "largest lead"]
    ideals = ", ".join(f"{LABELS[name]} {IDEAL_PER_S[name]:.0f}" for name in runs)
    return f"{markdown(header, rows)}\n\nIdeal, samples/s: {ideals}.\n"


def draw(runs: Runs) -> go.Figure:
    """Throughput relative to the ideal over the bound."""
    figure = go.Figure()
    for name, group in runs.items():
        policies = sorted(policies_of(group), key=_bound)
        _add_line(figure, runs, name, [policy for policy in policies if _every_step(policy)], dash="solid")
        _add_line(figure, runs, name, [policy for policy in policies if not _every_step(policy)], dash="dot")
    for text, name, x, y in NOTES:
        figure.add_annotation(
            text=text, x=x, y=y, showarrow=False, xanchor="left", align="left", font={"color": COLOURS[name]}
        )
    lay_out(figure, height_px=430)
    ticks = ["0<br>(bsp)", *(f"{bound:.0f}" for bound in BOUNDS[1:-1]), "∞<br>(asp)"]
    figure.update_xaxes(title_text="bound s on the lead (steps)", tickvals=list(range(len(BOUNDS))), ticktext=ticks)
    figure.update_yaxes(title_text="throughput<br>(% of the ideal, in which nobody waits)", range=[0, 110])
    return figure


def _add_line(figure: go.Figure, runs: Runs, name: str, policies: Sequence[str], *, dash: str) -> None:
    """Join the finite bounds; infinity stands apart, for nothing is known of the bounds between."""
    finite = [policy for policy in policies if math.isfinite(_bound(policy))]
    beside = 0.08 * (list(runs).index(name) - 1)  # at infinity all have the same throughput
    for part, shift in ((finite, 0.0), ([policy for policy in policies if policy not in finite], beside)):
        spreads = [_efficiency(runs, name, policy) for policy in part]
        figure.add_scatter(
            x=[_PLACE[_bound(policy)] + shift for policy in part],
            y=[spread.mean for spread in spreads],
            error_y={"array": [spread.std for spread in spreads], "thickness": 1.5, "width": 4},
            mode="lines+markers",
            marker={"size": 8},
            line={"color": COLOURS[name], "width": 2.5, "dash": dash},
        )
