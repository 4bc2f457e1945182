"""The story of an adaptive run in a terminal, and as a page with pictures."""

from rich.text import Text

from plesio.core.units import format_bytes, format_seconds
from plesio.report.figures.story import story_figures
from plesio.report.markup import prose
from plesio.report.page_frame import page_of, section, section_of_figures, table
from plesio.report.story import Chapter, Story
from plesio.report.story_sentences import closing_sentences, heading_text, story_sentences

__all__ = ["render_story", "render_story_page"]

_HEADERS = (
    "steps",
    "from",
    "policy",
    "slack",
    "a step",
    "bsp, predicted",
    "saved",
    "so far",
    "exchanges",
    "bytes saved",
)


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
        parts.append(section(table(_HEADERS, rows), slug="chapters", title="Between the changes"))
    heading = f"{story.task}: what {story.policy} changed, and why"
    return page_of(
        parts,
        title=f"Plesio: {story.task}, {story.policy}",
        header=f"<h1>{prose(heading)}</h1>\n<p>{prose(heading_text(story))}</p>",
    )


def _row(chapter: Chapter) -> list[str]:
    return [
        f"{chapter.begin + 1} to {chapter.end}",
        format_seconds(chapter.begin_s),
        f"{chapter.policy}, unequal shares" if chapter.shares else chapter.policy,
        str(chapter.slack),
        format_seconds(chapter.step_s),
        format_seconds(chapter.bsp_step_s),
        _signed(chapter.saved_s),
        _signed(chapter.saved_so_far_s),
        str(chapter.num_exchanges),
        format_bytes(chapter.bytes_saved),
    ]


def _signed(value_s: float) -> str:
    return f"{'-' if value_s < 0 else ''}{format_seconds(abs(value_s))}"
