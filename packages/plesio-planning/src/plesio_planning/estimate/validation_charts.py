"""The results of a validation of the estimator: errors of the groups that were left out, as tables and as a picture."""

import math
import statistics
from collections.abc import Iterator, Sequence

from plesio.core.charts import Axis, LineChart, Series, Table
from plesio_planning.estimate.cross_validation import CONFIDENCE, HeldOut, groups_of, reach
from plesio_planning.estimate.validation import Validation, program_errors

_WORST = 10
"""Steps that the table of the worst has."""
_VIEW = 60.0
"""Percent to either side that the picture shows."""


def validation_findings(validation: Validation) -> Sequence[str]:
    """Return the findings of the three cross-validations, a sentence each."""
    return [
        _finding(f"Every {what} left out in turn", rows)
        for what, rows in (
            ("family of models", validation.families),
            ("program", validation.programs),
            ("family of mixtures of experts", validation.experts),
        )
    ]


def _finding(begin: str, rows: Sequence[HeldOut]) -> str:
    covered = sum(group.num_covered for group in groups_of(rows))
    return (
        f"{begin}, {len(rows)} steps are {_in_short(rows)}. {covered} of them ({100 * covered / len(rows):.0f} %) are "
        f"within the {100 * CONFIDENCE:.0f} % interval that the errors of the other groups give."
    )


def _in_short(rows: Sequence[HeldOut]) -> str:
    worst = groups_of(rows)[0]
    mean, baseline = (
        statistics.fmean(map(abs, errors))
        for errors in ([row.error for row in rows], [row.baseline_error for row in rows])
    )
    return (
        f"{_percent(mean)} off, the worst ({worst.name}) {_percent(worst.mean_error)}, "
        f"a constant utilisation {_percent(baseline)}"
    )


def validation_tables(validation: Validation) -> Sequence[Table]:
    """List families and programs that were left out, the worst first, and the worst steps."""
    return [
        _groups("Family of models left out:", "family", validation.families),
        _groups("Program left out:", "program", validation.programs),
        _groups("Family of mixtures of experts left out:", "family", validation.experts),
        _intervals(validation),
        _worst(validation.families),
    ]


def _groups(title: str, what: str, rows: Sequence[HeldOut]) -> Table:
    return Table(
        title=title,
        headers=(
            what,
            "steps",
            "mean error",
            "worst",
            "bias",
            "constant utilisation",
            f"in the {100 * CONFIDENCE:.0f} % interval",
        ),
        rows=[
            (
                group.name,
                str(group.num_steps),
                _percent(group.mean_error),
                _percent(group.worst_error),
                _percent(group.bias, signed=True),
                _percent(group.baseline_error),
                f"{group.num_covered} of {group.num_steps}",
            )
            for group in groups_of(rows)
        ],
    )


def _intervals(validation: Validation) -> Table:
    return Table(
        title="Intervals of programs, from their steps:",
        headers=("software", "steps", f"{100 * CONFIDENCE:.0f} % interval", "in it"),
        rows=[
            (
                one.name,
                str(one.num_steps),
                f"{_percent(math.expm1(-one.reach))} to {_percent(math.expm1(one.reach), signed=True)}",
                f"{one.num_covered} of {one.num_steps}",
            )
            for one in program_errors(validation)
        ],
    )


def _worst(rows: Sequence[HeldOut]) -> Table:
    worst = sorted(rows, key=lambda row: -abs(math.log1p(row.error)))[:_WORST]
    return Table(
        title="The worst steps, their family left out:",
        headers=("model", "devices", "sequence", "micro-batch", "reported", "predicted", "error"),
        rows=[
            (
                f"{row.step.model.name} ({row.step.program})",
                row.step.machine.name,
                str(row.step.model.sequence_length),
                str(row.step.layout.micro_batch),
                f"{row.step.step_s:.4g} s",
                f"{row.predicted_s:.4g} s",
                _percent(row.error, signed=True),
            )
            for row in worst
        ],
    )


def validation_charts(validation: Validation) -> Sequence[LineChart]:
    """Draw the errors of all steps, by the family that was left out, and by the program."""
    return [
        _errors("families", "Families left out", validation.families),
        _errors("programs", "Programs left out", validation.programs),
    ]


def _errors(slug: str, title: str, rows: Sequence[HeldOut]) -> LineChart:
    names = [group.name for group in groups_of(rows)]
    within = 100 * reach(rows)
    return LineChart(
        slug=slug,
        title=f"{title}: {_in_short(rows)}",
        caption=f"A point a step; the worst group on top. The band is the {100 * CONFIDENCE:.0f} % interval of an "
        f"estimate. Constant utilisations that are further off than {_VIEW:.0f} % are not shown.",
        x=Axis(title="predicted over reported (%)", view=(-_VIEW, _VIEW)),
        y=Axis(title="", ticks={float(place): name for place, name in enumerate(names)}, down=True),
        series=[
            Series(
                name="",
                x=[-within, within],
                y=[-0.5, -0.5],
                low=[-0.5, -0.5],
                high=[len(names) - 0.5] * 2,
                style="band",
            ),
            *_points("constant utilisation", rows, names, baseline=True),
            *_points("estimate", rows, names, baseline=False),
        ],
    )


def _points(name: str, rows: Sequence[HeldOut], names: Sequence[str], *, baseline: bool) -> Iterator[Series]:
    yield Series(
        name=name,
        x=[100 * (row.baseline_error if baseline else row.error) for row in rows],
        y=[names.index(row.group) + (0.15 if baseline else -0.15) for row in rows],
        style="points",
        hints=[f"{row.step.model.name}, {row.step.program}, {row.step.machine.name}" for row in rows],
        hollow=baseline,
    )


def _percent(share: float, *, signed: bool = False) -> str:
    return f"{100 * share:{'+' if signed else ''}.1f} %"
