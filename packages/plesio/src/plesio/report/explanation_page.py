"""The explanation of a run that changed in a terminal, and as a page with pictures."""

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from plesio.core.units import counted, format_bytes, format_seconds
from plesio.report.explanation import Chapter, Explanation, Review
from plesio.report.explanation_charts import explanation_charts
from plesio.report.explanation_metric import metric_chart
from plesio.report.explanation_sentences import closing_sentences, explanation_sentences, heading_text
from plesio.report.explanation_verdict import measured_rows, verdict_sentences
from plesio.report.markup import prose
from plesio.report.operation_advice import NOTHING_TO_ADVISE
from plesio.report.page_frame import page_of, section, section_of_charts, table

__all__ = ["render_explanation", "render_explanation_page"]


def render_explanation(explanation: Explanation, *, advice: Sequence[str] = ()) -> RenderableType:
    """How it did against bsp, with the figures as a table, then the sentences as paragraphs, and the advice."""
    figures = _measured_table(explanation)
    parts: list[RenderableType] = [
        *map(Text, (heading_text(explanation), *verdict_sentences(explanation))),
        *([] if figures is None else [figures]),
        *map(Text, (*explanation_sentences(explanation), *closing_sentences(explanation), *advice)),
    ]
    return Group(parts[0], *(line for part in parts[1:] for line in (Text(), part)))


def render_explanation_page(explanation: Explanation, *, advice: Sequence[str] | None = None) -> str:
    """The page as one HTML document.

    Args:
        explanation: What it tells.
        advice: What to do about how the run went; None where it has no traces.
    """
    rows = [(row.what, row.here, row.bsp, row.compared) for row in measured_rows(explanation)]
    verdict = "".join(f"<p>{prose(text)}</p>" for text in verdict_sentences(explanation))
    verdict += table(["measured", "this run", "bsp", "compared"], rows) if rows else ""
    parts = [section(verdict, slug="verdict", title="Against bsp")]
    metric = metric_chart(explanation)
    if metric is not None:
        parts.append(section_of_charts([metric], title="How good it was, when", slug="progress"))
    sentences = "".join(f"<li>{prose(text)}</li>" for text in explanation_sentences(explanation))
    closing = "".join(f"<p>{prose(text)}</p>" for text in closing_sentences(explanation))
    parts.append(section(f"<ol>{sentences}</ol>{closing}", slug="in-words", title="What it changed"))
    if advice is not None:
        texts = "".join(f"<p>{prose(text)}</p>" for text in advice or (NOTHING_TO_ADVISE,))
        parts.append(section(texts, slug="advice", title="Advice"))
    charts = explanation_charts(explanation)
    if charts:
        parts.append(section_of_charts(charts, title="In pictures"))
    if explanation.chapters:
        columns = [_row(chapter) for chapter in explanation.chapters]
        chapters = table(list(columns[0]), [list(row.values()) for row in columns])
        parts.append(section(chapters, slug="chapters", title="Between the changes"))
    if explanation.reviews:
        parts.append(section(_reviews(explanation), slug="reviews", title="All that the policy answered"))
    heading = f"{explanation.task}: what {explanation.policy} changed, and why"
    return page_of(
        parts,
        title=f"Plesio: {explanation.task}, {explanation.policy}",
        header=f"<h1>{prose(heading)}</h1>\n<p>{prose(heading_text(explanation))}</p>",
    )


def _measured_table(explanation: Explanation) -> Table | None:
    rows = measured_rows(explanation)
    if not rows:
        return None
    drawn = Table(box=None, pad_edge=False, header_style="bold", collapse_padding=True, padding=(0, 2, 0, 0))
    for place, header in enumerate(("measured", "this run", "bsp", "compared")):
        drawn.add_column(header, justify="right" if place else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*map(Text, (row.what, row.here, row.bsp, row.compared)))
    return drawn


def _reviews(explanation: Explanation) -> str:
    """Each answer with its reason, and below it all figures that it was decided from, whatever they are."""
    items = []
    for review in explanation.reviews:
        when = f"After {counted(review.clock, 'step')} ({format_seconds(review.at_s)})"
        figures = f"<br><small>{prose(_inputs_text(review.inputs))}</small>" if review.inputs else ""
        items.append(f"<li>{prose(f'{when}, {review.policy}: {_sentence(review)}')}{figures}</li>")
    summary = f"<summary>{counted(len(explanation.reviews), 'answer')}, each with its figures</summary>"
    return f"<details>{summary}<ul>{''.join(items)}</ul></details>"


def _sentence(review: Review) -> str:
    return f"{review.reason.rstrip('.')}." if review.reason else "no reason given."


def _inputs_text(inputs: Mapping[str, float]) -> str:
    """All figures by the component that named them.

    >>> _inputs_text({"noise.slack": 3.0, "noise.scale": 41.257, "progress.after": 0.5})
    'noise: slack 3, scale 41.26; progress: after 0.5'
    """
    components: dict[str, list[str]] = {}
    for name, value in inputs.items():
        component, _, figure = name.rpartition(".")
        components.setdefault(component, []).append(f"{figure} {value:.4g}")
    return "; ".join(
        f"{name}: {', '.join(figures)}" if name else ", ".join(figures) for name, figures in components.items()
    )


def _row(chapter: Chapter) -> dict[str, str]:
    """A chapter's cells by column; all chapters of a run have the same columns."""
    row = {
        "steps": f"{chapter.begin + 1} to {chapter.end}",
        "from": format_seconds(chapter.begin_s),
        "policy": f"{chapter.policy}, unequal shares" if chapter.shares else chapter.policy,
        "slack": str(chapter.slack),
        "a step": format_seconds(chapter.step_s),
    }
    if chapter.bsp_step_s is None:
        return row | {
            "lasted": format_seconds(chapter.end_s - chapter.begin_s),
            "exchanges": str(chapter.num_exchanges),
        }
    return row | {
        "bsp, predicted": format_seconds(chapter.bsp_step_s),
        "less step time": _signed(chapter.saved_s),
        "so far": _signed(chapter.saved_so_far_s),
        "exchanges": str(chapter.num_exchanges),
        "bytes saved": format_bytes(chapter.bytes_saved),
    }


def _signed(value_s: float) -> str:
    return f"{'-' if value_s < 0 else ''}{format_seconds(abs(value_s))}"
