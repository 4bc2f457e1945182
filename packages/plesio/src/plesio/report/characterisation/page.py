"""A characterisation in a terminal, as a page, and as files."""

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from plesio.core.charts import Chart, Table
from plesio.core.files import write_whole
from plesio.core.units import listed
from plesio.report.characterisation.charts import (
    Used,
    accuracy_chart,
    factor_charts,
    paper_charts,
    pareto_chart,
    read_used,
    speed_up_chart,
)
from plesio.report.characterisation.paper import PAPER
from plesio.report.characterisation.summary import Characterisation, Claim, overloads, regained
from plesio.report.characterisation.tables import claims_tables, design_table, paper_tables, scaling_table
from plesio.report.charts import draw_picture, terminal_table
from plesio.report.document import Document, pictures, section
from plesio.report.inference import MIN_SEEDS, Judgement, least_visible
from plesio.report.page_frame import render_document
from plesio.report.sentences import p_text, ratio_text, seeds_text
from plesio.report.summarise import BASELINE

OUTPUT_NAMES = ("report.html", "characterise.json", "tables", "figures")
"""Names of all that is written besides the comparisons."""
_STOPPED = 6
"""So many claims are told in words; the table has all."""


def characterisation_sentences(found: Characterisation) -> list[str]:
    fewest, most = found.num_seeds
    lines = [_power(fewest, most)]
    tested = found.tested("speed")
    if tested:
        faster = [(claim, one) for claim, one in tested if one.shown and one.value > 1]
        slower = [(claim, one) for claim, one in tested if one.shown and one.value < 1]
        lines.append(
            f"Speed: of {len(tested)} comparisons with the baseline {len(faster)} show a faster policy, {len(slower)} "
            f"a slower one; {len(tested) - len(faster) - len(slower)} show no difference, which is not to say that "
            "there is none."
        )
        lines += _extremes(faster, slower)
    lines += _of_metric(found)
    lines += _of_spread(found)
    lines += _of_same_steps(found)
    lines += _of_regained(found)
    lines += _of_machine(found)
    return lines


def _power(fewest: int, most: int) -> str:
    number = seeds_text(most) if fewest == most else f"{fewest} to {most} seeds"
    if most < MIN_SEEDS:
        return (
            f"{number} a policy: too few for any claim, which takes {MIN_SEEDS} at least. Every difference below may "
            "be chance."
        )
    small = "" if fewest >= MIN_SEEDS else f" Policies with fewer than {MIN_SEEDS} are not tested."
    return (
        f"{number} a policy, which is few: a difference is seen only where it is {least_visible(most):.1f} times the "
        f"standard deviation of the seeds' differences, before it is adjusted for the number of tests.{small}"
    )


_Tested = Sequence[tuple[Claim, Judgement]]


def _extremes(faster: _Tested, slower: _Tested) -> Iterator[str]:
    for claims, word, pick in ((faster, "Fastest", max), (slower, "Slowest", min)):
        if claims:
            claim, one = pick(claims, key=lambda each: each[1].value)
            yield (
                f"{word} against its baseline: {claim.policy} with {ratio_text(one.value)} the speed of "
                f"{claim.baseline} ({claim.combination.text})."
            )


def _of_metric(found: Characterisation) -> Iterator[str]:
    tested = found.tested("metric")
    if not tested:
        return
    shown = [(claim, one) for claim, one in tested if one.shown]
    named = [
        f"{claim.policy} {_difference(found, claim, one)} ({claim.combination.text})" for claim, one in shown[:_STOPPED]
    ]
    more = f", and {len(shown) - _STOPPED} more" if len(shown) > _STOPPED else ""
    what = f": {listed(named)}{more}." if named else f". {_largest(found, tested)}"
    yield f"Final metric: {len(shown)} of {len(tested)} comparisons show a difference{what}"


def _difference(found: Characterisation, claim: Claim, one: Judgement) -> str:
    return found.settings[claim.combination].metric.difference_text(one.value)


def _largest(found: Characterisation, tested: _Tested) -> str:
    claim, one = max(tested, key=lambda each: abs(each[1].value))
    assert one.p_value is not None, "it was tested"
    assert one.p_adjusted is not None, "it was tested"
    return (
        f"The largest of the means, {claim.policy} {_difference(found, claim, one)} ({claim.combination.text}), has "
        f"{p_text(one.p_value)} alone and {p_text(one.p_adjusted)} among so many: more seeds or fewer comparisons "
        "would tell."
    )


def _of_spread(found: Characterisation) -> Iterator[str]:
    tested = found.tested("spread")
    if tested:
        shown = sum(one.shown for _, one in tested)
        yield (
            f"Spread over seeds (Brown & Forsythe): {shown} of {len(tested)} comparisons show a difference; with "
            "few seeds this test sees only very large ones."
        )


def _of_same_steps(found: Characterisation) -> Iterator[str]:
    same = [claim for claim in found.claims if claim.same_steps]
    if same and found.num_seeds[1] >= MIN_SEEDS:
        yield (
            f"Not among these: {len(same)} of {len(found.claims)} comparisons are of policies that make their "
            "baseline's steps by construction (one worker, sharding, a server that waits for all). Their metric and "
            "its spread are not tested, and not counted where others are adjusted."
        )


def _of_regained(found: Characterisation) -> Iterator[str]:
    """Yield the source's main claim, with a test for each model."""
    tested = {model: one for model, one in regained(found).items() if one.p_adjusted is not None}
    if not tested:
        return
    named = [
        f"{model} {100 * one.value:+.1f} points ({p_text(one.p_adjusted)}{'' if one.shown else ', not shown'})"
        for model, one in tested.items()
        if one.p_adjusted is not None
    ]
    shown = sum(one.shown and one.value > 0 for one in tested.values())
    yield (
        f"Table 7, the modified asynchronous server against the plain one with {max(PAPER.workers)} workers: accuracy "
        f"is won back in {shown} of {len(tested)} models, {listed(named)}; p by Holm over these models."
    )


def _of_machine(found: Characterisation) -> Iterator[str]:
    worst = max(overloads(found), key=lambda one: one[2], default=None)
    if worst is not None:
        combination, policy, ratio = worst
        yield (
            f"This machine was too small or too busy for some settings: under {policy} ({combination.text}) a worker "
            f"computed a step {ratio_text(ratio)} as long as one worker alone does. Speed-ups are too low there."
        )


def render_characterisation(found: Characterisation) -> RenderableType:
    parts: list[RenderableType] = []
    for one in (design_table(found), scaling_table(found)):
        parts += [terminal_table(one), Text()]
    parts += [Text(line) for line in (*characterisation_sentences(found), *found.unfinished())]
    return Group(*parts)


def render_characterisation_page(found: Characterisation, *, used: Sequence[Used] = ()) -> str:
    charts = paper_charts(found, used)
    num_runs = sum(len(comparison.runs) for comparison in found.settings.values())
    design, scaling = design_table(found), scaling_table(found)
    document = Document(
        title="Plesio: characterisation",
        heading="Strategies, models and clusters",
        facts=[f"{num_runs} runs · {len(found.settings)} settings · {len(found.models())} models"],
        alerts=[("", line) for line in found.unfinished()],
        sections=[
            section("In words", *characterisation_sentences(found), slug="in-words"),
            section(design.title, _DESIGN, design, slug="design"),
            pictures(_own_charts(found), title="Speed-up, and time against accuracy"),
            pictures(factor_charts(found), title="One factor at a time", slug="factors"),
            section("Beside source 004", _SOURCE, slug="source"),
            *(
                section(f"Table {number}: {one.title}", one, slug=f"table-{number}")
                for number, one in paper_tables(found).items()
            ),
            pictures(_numbered(charts), title="Its figures", slug="source-figures"),
            section(scaling.title, scaling, slug="scaling"),
            section("What the seeds show", _CLAIMS, slug="claims"),
            *(section(one.title, one, slug=f"claims-{name}") for name, one in claims_tables(found).items()),
        ],
    )
    return render_document(document)


_DESIGN = (
    "A part crosses the factors that it lists with its policies and all seeds. All other factors are at the base "
    "point, so what two factors do together is known only where one part crosses both."
)
_SOURCE = (
    f"{PAPER.name}'s figures are of one run each, of other models of the same families on GPUs, and ours are of "
    "small models on a processor: seconds cannot be compared, ratios and directions can. Names in brackets are the "
    "source's."
)
_CLAIMS = (
    f"Each policy against the baseline of its setting, {BASELINE} where it was run, with 95 % intervals of that "
    "comparison alone. Seeds that coincide are compared in pairs (t test), others by Welch's test, spreads by Brown & "
    "Forsythe's. A difference is claimed where p is below 0.05 after Holm's adjustment for all comparisons of a table. "
    "The effect size is Hedges' g: the difference in standard deviations of the seeds. Where both make the same steps "
    "by construction, metric and spread are not tested, and not counted where others are adjusted."
)


def _own_charts(found: Characterisation) -> list[Chart | None]:
    return [speed_up_chart(found), accuracy_chart(found), pareto_chart(found)]


def _numbered(charts: Mapping[str, Chart]) -> Iterator[Chart]:
    """Yield the source's figures in their order, with the number in front of each title."""
    for number, chart in sorted(charts.items(), key=lambda item: int(item[0].split()[0])):
        yield replace(chart, title=f"Figure{'s' if ' ' in number else ''} {number}: {chart.title}")


def write_characterisation(found: Characterisation, out: Path) -> Path:
    """Write the page, tables as CSV, pictures and numbers into ``out``, which has the runs; returns the page's path.

    Raises:
        DataError: A file cannot be written.
    """
    used = read_used(found, {one: out / one.slug for one in found.settings})
    for folder in ("tables", "figures"):
        (out / folder).mkdir(exist_ok=True)
    tables = {f"table-{number}": one for number, one in paper_tables(found).items()}
    tables |= {"design": design_table(found), "scaling": scaling_table(found)}
    tables |= {f"claims-{name}": one for name, one in claims_tables(found).items()}
    for name, one in tables.items():
        write_whole(out / "tables" / f"{name}.csv", _as_csv(one))
    charts: list[Chart | None] = [*paper_charts(found, used).values(), *_own_charts(found)]
    for chart in (*charts, *factor_charts(found)):
        if chart is not None:
            write_whole(out / "figures" / f"{chart.slug}.png", draw_picture(chart))
    write_whole(out / "characterise.json", json.dumps(characterisation_values(found), indent=1) + "\n")
    page = out / "report.html"
    write_whole(page, render_characterisation_page(found, used=used))
    return page


def _as_csv(one: Table) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([one.headers, *one.rows])
    return text.getvalue()


def characterisation_values(found: Characterisation) -> dict[str, Any]:
    """Return the claims as JSON values; all else is in the comparisons' own `results.json`."""
    return {
        "claims": [
            {
                "setting": asdict(claim.combination),
                "policy": claim.policy,
                "baseline": claim.baseline,
                "same_steps": claim.same_steps,
                "speed": _judgement(claim.speed),
                "metric": _judgement(claim.metric),
                "spread": _judgement(claim.spread),
            }
            for claim in found.claims
        ],
        "regained": {model: _judgement(one) for model, one in regained(found).items()},
        "settings": {one.slug: asdict(one) for one in found.settings},
    }


def _judgement(one: Judgement | None) -> dict[str, Any] | None:
    if one is None:
        return None
    values = asdict(one) | {"shown": one.shown}
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()
    }
