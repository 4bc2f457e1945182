"""The story of a run that changed in a terminal, and as a page with pictures."""

from rich.text import Text

from plesio.core.units import format_bytes, format_seconds
from plesio.report.figures.story import story_figures
from plesio.report.markup import prose
from plesio.report.page_frame import page_of, section, section_of_figures, table
from plesio.report.story import Chapter, Story
from plesio.report.story_sentences import closing_sentences, heading_text, story_sentences

__all__ = ["render_story", "render_story_page"]


def render_story(story: Story) -> Text:
    """The sentences as paragraphs."""
    return Text("\n\n".join([heading_text(story), *story_sentences(story), *closing_sentences(story)]))


def render_story_page(story: Story) -> str:
    """The page as one HTML document."""
    sentences = "".join(f"<li>{prose(text)}</li>" for text in story_sentences(story))
    closing = "".join(f"<p>{prose(text)}</p>" for text in closing_sentences(story))
    parts = [section(f"{closing}<ol>{sentences}</ol>", slug="in-words", title="In words")]
    figures = story_figures(story)
    if figures:
        parts.append(section_of_figures(figures, title="In pictures"))
    if story.chapters:
        rows = [_row(chapter) for chapter in story.chapters]
        chapters = table(list(rows[0]), [list(row.values()) for row in rows])
        parts.append(section(chapters, slug="chapters", title="Between the changes"))
    heading = f"{story.task}: what {story.policy} changed, and why"
    return page_of(
        parts,
        title=f"Plesio: {story.task}, {story.policy}",
        header=f"<h1>{prose(heading)}</h1>\n<p>{prose(heading_text(story))}</p>",
    )


def _row(chapter: Chapter) -> dict[str, str]:
    """By column; the same columns for all chapters of a run."""
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
        "saved": _signed(chapter.saved_s),
        "so far": _signed(chapter.saved_so_far_s),
        "exchanges": str(chapter.num_exchanges),
        "bytes saved": format_bytes(chapter.bytes_saved),
    }


def _signed(value_s: float) -> str:
    return f"{'-' if value_s < 0 else ''}{format_seconds(abs(value_s))}"
