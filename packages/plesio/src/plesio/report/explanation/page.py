"""The explanation of a run that changed in a terminal, and as a page with pictures."""

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from plesio.core.charts import Table
from plesio.core.units import counted, format_bytes, format_seconds
from plesio.report.charts import plain_table
from plesio.report.document import Document, Folded, Item, Items, TextLine, pictures, section
from plesio.report.explanation.charts import explanation_charts, metric_chart
from plesio.report.explanation.compared import compared_table
from plesio.report.explanation.model import Chapter, ExplainedReview, Explanation
from plesio.report.explanation.sentences import closing_sentences, explanation_sentences, heading_text
from plesio.report.explanation.verdict import measured_table, verdict_sentences
from plesio.report.operation_advice import NOTHING_TO_ADVISE
from plesio.report.page_frame import render_document


def render_explanation(explanation: Explanation, *, advice: Sequence[str] = ()) -> RenderableType:
    figures = measured_table(explanation)
    compared = [None if table is None else plain_table(table) for table in _compared(explanation)]
    told = zip(map(Text, explanation_sentences(explanation)), compared, strict=False)
    parts: list[RenderableType] = [
        *map(Text, (heading_text(explanation), *verdict_sentences(explanation))),
        *([] if figures is None else [plain_table(figures)]),
        *(part for pair in told for part in pair if part is not None),
        *map(Text, (*closing_sentences(explanation), *advice)),
    ]
    return Group(parts[0], *(line for part in parts[1:] for line in (Text(), part)))


def render_explanation_page(explanation: Explanation, *, advice: Sequence[str] | None = None) -> str:
    """Render the page as one HTML document; ``advice`` is None where no traces can be judged."""
    changes = Items(items=[Item(text=text) for text in explanation_sentences(explanation)], ordered=True)
    advised = () if advice is None else advice or (NOTHING_TO_ADVISE,)
    document = Document(
        title=f"Plesio: {explanation.task}, {explanation.policy}",
        heading=f"{explanation.task}: what {explanation.policy} changed, and why",
        facts=[heading_text(explanation)],
        sections=[
            section("Against bsp", *verdict_sentences(explanation), measured_table(explanation), slug="verdict"),
            pictures([metric_chart(explanation)], title="How good it was, when", slug="progress"),
            section("What it changed", changes, *closing_sentences(explanation), slug="in-words"),
            section("What it expected, and what came", *_expected(explanation), slug="expected"),
            section("Advice", *advised, slug="advice"),
            pictures(explanation_charts(explanation)),
            section("Between the changes", _chapters(explanation), slug="chapters"),
            section("All that the policy answered", _reviews(explanation), slug="reviews"),
        ],
    )
    return render_document(document)


def _compared(explanation: Explanation) -> list[Table | None]:
    """Return the settings compared at the beginning of each chapter."""
    return [compared_table(chapter) for chapter in explanation.chapters]


def _expected(explanation: Explanation) -> Iterator[str | TextLine | Table]:
    """Yield the table of each change, below a line on what is in it."""
    tables = [table for table in _compared(explanation) if table is not None]
    if tables:
        yield (
            "Worth and progress are in steps of bsp; intervals are a standard deviation to either side. Of the lower "
            "ends the highest counts, and lost steps count beside lost time."
        )
    for table in tables:
        yield TextLine(table.title, "heading")
        yield table


def _chapters(explanation: Explanation) -> Table | None:
    rows = [_row(chapter) for chapter in explanation.chapters]
    return Table(title="", headers=list(rows[0]), rows=[list(row.values()) for row in rows]) if rows else None


def _reviews(explanation: Explanation) -> Folded | None:
    """Tell each answer with its reason, and below it all figures that it was decided from, whatever they are."""
    items = [
        Item(
            text=f"After {counted(one.clock, 'step')} ({format_seconds(one.at_s)}), {one.policy}: {_sentence(one)}",
            small=_inputs_text(one.inputs),
        )
        for one in explanation.reviews
    ]
    summary = f"{counted(len(items), 'answer')}, each with its figures"
    return Folded(summary=summary, blocks=[Items(items=items)]) if items else None


def _sentence(review: ExplainedReview) -> str:
    return f"{review.reason.rstrip('.')}." if review.reason else "no reason given."


def _inputs_text(inputs: Mapping[str, float]) -> str:
    """Write all figures by what they are of.

    >>> _inputs_text({"bsp.step_s": 0.03, "bsp.score": 0.0, "trial.excess": 0.51257})
    'bsp: step_s 0.03, score 0; trial: excess 0.5126'
    """
    owners: dict[str, list[str]] = {}
    for name, value in inputs.items():
        owner, _, figure = name.rpartition(".")
        owners.setdefault(owner, []).append(f"{figure} {value:.4g}")
    return "; ".join(
        f"{name}: {', '.join(figures)}" if name else ", ".join(figures) for name, figures in owners.items()
    )


def _row(chapter: Chapter) -> dict[str, str]:
    """Return a chapter's cells by column; all chapters of a run have the same columns."""
    row = {
        "steps": f"{chapter.begin + 1} to {chapter.end}",
        "from": format_seconds(chapter.begin_s),
        "policy": f"{chapter.policy}, unequal shares" if chapter.shares else chapter.policy,
        "slack": str(chapter.slack),
        "lasted": format_seconds(chapter.took_s),
        "a step": format_seconds(chapter.step_s),
    }
    if chapter.bsp_step_s is None:
        return row | {"exchanges": str(chapter.num_exchanges)}
    return row | {
        "bsp, predicted": format_seconds(chapter.bsp_step_s),
        "less step time": _signed(chapter.saved_s),
        "so far": _signed(chapter.saved_so_far_s),
        "exchanges": str(chapter.num_exchanges),
        "bytes saved": format_bytes(chapter.bytes_saved),
    }


def _signed(value_s: float) -> str:
    return f"{'-' if value_s < 0 else ''}{format_seconds(abs(value_s))}"
