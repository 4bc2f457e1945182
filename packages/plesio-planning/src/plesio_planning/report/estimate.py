"""An estimate in a terminal, as a page, and as files."""

from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType

from plesio.core.records import to_json
from plesio.report.document import Document, TextLine, pictures, section, tables
from plesio.report.page_frame import render_document
from plesio_planning.estimate.estimate import Estimate
from plesio_planning.estimate.run_plan import RunPlan
from plesio_planning.report.answer import in_terminal, write_answer


def render_estimate(estimate: Estimate) -> RenderableType:
    return Group(*in_terminal(estimate.findings, estimate.tables))


def render_estimate_page(estimate: Estimate) -> str:
    name = f"{estimate.training.model.name} on {estimate.training.machine.name}"
    document = Document(
        title=f"Plesio: {name}",
        heading=name,
        facts=["An estimate: what it assumes, and where it stops being true, is in docs/planning/index.md."],
        sections=[
            section("In words", *estimate.findings, slug="in-words"),
            pictures(estimate.charts),
            *tables(estimate.tables),
            section("As a file", TextLine(estimate.exported, "code"), slug="file") if estimate.exported else None,
        ],
    )
    return render_document(document)


def write_estimate(estimate: Estimate, out: Path) -> Path:
    """Write the page, the pictures and the numbers into the folder ``out``; returns the page's path.

    Raises:
        DataError: A file cannot be written.
    """
    page, text = out / "estimate.html", render_estimate_page(estimate)
    return write_answer(page, text, estimate.charts, estimate_values(estimate))


def estimate_values(estimate: Estimate) -> dict[str, Any]:
    """Return the numbers as JSON values."""
    values: dict[str, Any] = estimate.training.to_json() | {
        "findings": list(estimate.findings),
        "sensitivities": to_json(estimate.sensitivities),
    }
    if estimate.calibration is not None:
        values["calibration"] = to_json(estimate.calibration)
    if estimate.exported:
        values["exported"] = estimate.exported
    if estimate.over_sites is not None:
        values["sites"] = {"sites": to_json(estimate.over_sites.sites), "ways": to_json(estimate.over_sites.ways)}
    if estimate.failures is not None:
        values["failures"] = to_json(estimate.failures)
    if estimate.plans is not None:
        plans = estimate.plans
        values["plans"] = {
            "limits": to_json(plans.limits),
            "plans": [_plan_values(plan) for plan in plans.plans],
            "refused": dict(plans.refused),
            "changes": [
                {"what": one.what, "same": _plan_values(one.same), "best": _plan_values(one.best)}
                for one in plans.changes
            ],
        }
    if estimate.frontier is not None:
        found = estimate.frontier.searches[estimate.training.machine.name]
        values["search"] = {
            "tried": found.num_tried,
            "not_divisible": found.num_not_divisible,
            "too_large": found.num_too_large,
            "slower": found.num_slower,
            "fastest": to_json([candidate for candidate, _ in found.distinct(estimate.top)]),
            "machines": [
                one.to_json()["results"] | {"machine": one.machine.name} for one in estimate.frontier.trainings
            ],
            "front": [one.machine.name for one in estimate.frontier.front],
        }
    return values


def _plan_values(plan: RunPlan) -> dict[str, Any]:
    return {
        "machine": plan.training.machine.name,
        "layout": to_json(plan.training.layout),
        "global_batch": plan.training.step.num_samples,
        "total_s": plan.total_s,
        "interval_s": list(plan.interval_s),
        "cost_usd": plan.cost,
        "cost_interval_usd": list(plan.cost_interval),
        "chance": plan.chance,
    }
