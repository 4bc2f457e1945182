"""Plans of a run in words, tables and charts (`plesio.core.charts`)."""

from collections.abc import Sequence
from datetime import timedelta

from plesio.core.charts import Axis, Chart, LineChart, Series, Table
from plesio_planning.estimate.layout import Layout
from plesio_planning.estimate.plans import RunPlans, WorthOfChange
from plesio_planning.estimate.run_plan import RUN_OVER_SEARCH, Limits, RunPlan
from plesio_planning.estimate.training_charts import format_days, format_dollars

_DAY_S = 86_400.0
_KINDS = 8
"""Accelerators that are shown."""
_LINES = 5
"""Accelerators that are drawn."""
_SIZES = 8
"""Machines of one kind that are shown."""


def brief_layout(layout: Layout) -> str:
    """Write a layout in a few letters.

    >>> brief_layout(Layout(tp=2, pp=4, vpp=20, dp=8, zero=1, sequence_parallel=True, recomputation="full"))
    'tp2 pp4x20 dp8 z1 mb1 full'
    """
    parts = f"x{layout.vpp}" if layout.vpp > 1 else ""
    degrees = {"tp": layout.tp, "pp": layout.pp, "cp": layout.cp, "dp": layout.dp, "ep": layout.ep}
    words = [f"{name}{value}{parts if name == 'pp' else ''}" for name, value in degrees.items() if value > 1]
    words += [f"z{layout.zero}", f"mb{layout.micro_batch}"]
    words += [layout.recomputation] * (layout.recomputation != "none") + ["lean"] * layout.keeps_remainders
    return " ".join(words)


def _percent(chance: float) -> str:
    """Write a chance; nothing is sure."""
    whole = round(100 * chance)
    return "> 99 %" if whole > 99 else "< 1 %" if whole < 1 else f"{whole} %"


def _limits(limits: Limits) -> str:
    words = [f"by {limits.by}"] * (limits.by is not None)
    words += [f"for {format_dollars(limits.dollars)}"] * (limits.budget_dollars is not None)
    return " and ".join(words)


def _days(plan: RunPlan) -> str:
    return " to ".join(f"{seconds / _DAY_S:.3g}" for seconds in plan.interval_s)


def _dollars(plan: RunPlan) -> str:
    return " to ".join(map(format_dollars, plan.cost_interval))


def plan_finding(plans: RunPlans) -> str:
    """Name the best plan with its chance, what the others lack, and what it takes for granted."""
    best, limits = plans.best, plans.limits
    training = best.training
    confidence = training.conditions.confidence
    try:
        ends = str(limits.first_day + timedelta(seconds=best.total_s))
    except OverflowError:
        ends = "a day after the year 9999"
    what = "the cheapest" if limits.by is not None else "the fastest"
    which = (
        f"{what} machine that does it with {100 * confidence:g} % confidence"
        if best.sure
        else f"no machine does it with {100 * confidence:g} % confidence; the likeliest"
    )
    out = ", ".join(f"{name} {reason}" for name, reason in plans.refused.items())
    margin = (
        f"A run is taken to need {RUN_OVER_SEARCH:g} times the time of the fastest layout found, as nine published "
        "runs did (1.2 to 1.6 times)."
        if limits.margin is None
        else f"A run is taken to need {limits.margin:g} times the time of the fastest layout found."
    )
    price = "" if training.price_error == 0 else f" Prices are taken as known to {100 * training.price_error:g} %."
    return (
        f"{training.model.name} {_limits(limits)}: {which} is {training.machine.name}, which ends on {ends} after "
        f"{format_days(best.total_s)} ({_days(best)}) and takes {format_dollars(best.cost)} ({_dollars(best)}); the "
        f"chance is {_percent(best.chance)}.{f' Out of question: {out}.' if out else ''} {margin}{price}"
    )


def plan_tables(plans: RunPlans) -> Sequence[Table]:
    """Make the tables of the best plan of each accelerator, of the best one's sizes, and of what a change is worth."""
    kind = plans.best.training.machine.accelerator.name
    confidence = f"{100 * plans.best.training.conditions.confidence:g} %"
    own = plans.of_kind(kind)
    # of many sizes those about the best one are shown
    place = own.index(plans.best)
    first = max(min(place - _SIZES // 2, len(own) - _SIZES), 0)
    shown = [
        (f"Plans {_limits(plans.limits)}, the best of each accelerator:", plans.best_by_kind[:_KINDS]),
        (f"The same on {kind}, by devices:", own[first : first + _SIZES]),
    ]
    headers = ("machine", f"days ({confidence})", "cost", "chance", "layout")
    found = [Table(title=title, headers=headers, rows=[_row(plan) for plan in rows]) for title, rows in shown]
    return [*found, _worth(plans)]


def _row(plan: RunPlan) -> tuple[str, ...]:
    training = plan.training
    return training.machine.name, _days(plan), _dollars(plan), _percent(plan.chance), brief_layout(training.layout)


def _worth(plans: RunPlans) -> Table:
    rows = [
        (
            change.what,
            f"{_percent(plans.best.chance)} to {_percent(change.same.chance)}",
            change.best.training.machine.name,
            _percent(change.best.chance),
            _saved(plans.best, change),
        )
        for change in plans.changes
    ]
    title = f"The worth of a change, to {plans.best.training.machine.name} and to the plan:"
    return Table(title=title, headers=("change", "its chance", "then best", "chance", "cost"), rows=rows)


def _saved(best: RunPlan, change: WorthOfChange) -> str:
    more = change.best.cost - best.cost
    if abs(more) < 0.005 * best.cost:
        return "the same"
    return f"{format_dollars(abs(more))} {'more' if more > 0 else 'less'}"


def plan_charts(plans: RunPlans) -> Sequence[Chart]:
    """Draw the chance by number of devices, and the plans' time and cost."""
    best, limits = plans.best, plans.limits
    names = [plan.training.machine.accelerator.name for plan in plans.best_by_kind[:_LINES]]
    kinds = {name: plans.of_kind(name) for name in names}
    word, unit = ("million", 1e6) if best.cost >= 1e6 else ("thousand", 1e3)
    chances = LineChart(
        slug="chance",
        title=f"{best.training.machine.name} does it with a chance of {_percent(best.chance)}",
        caption=f"Chance that a run ends {_limits(limits)}, by accelerator and number of devices.",
        x=Axis(title="devices", log=True),
        y=Axis(title="chance (%)", from_zero=True),
        series=[
            Series(
                name=name, x=[plan.training.machine.num_devices for plan in own], y=[100 * plan.chance for plan in own]
            )
            for name, own in kinds.items()
        ],
    )
    costs = LineChart(
        slug="plans",
        title=f"{format_days(best.total_s)} for {format_dollars(best.cost)} with {best.training.machine.name}",
        caption="Time and cost of the plans, by accelerator; the lines are what the run may take.",
        x=Axis(title="time (days)"),
        y=Axis(title=f"cost ({word} dollars)"),
        series=[
            Series(
                name=name,
                x=[plan.total_s / _DAY_S for plan in own],
                y=[plan.cost / unit for plan in own],
                style="points",
                hints=[plan.training.machine.name for plan in own],
            )
            for name, own in kinds.items()
        ],
        marks={} if limits.by is None else {limits.by: limits.seconds / _DAY_S},
        levels=() if limits.budget_dollars is None else (limits.budget_dollars / unit,),
    )
    return [chances, costs]
