"""A figure with the words around it.

Titles and captions are the page's text, not the picture's, so they wrap on a narrow screen and are read aloud.
"""

from dataclasses import dataclass

import plotly.graph_objects as go

__all__ = ["PageFigure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFigure:
    """A picture that answers one question, and the answer as its title.

    Attributes:
        slug: Its anchor in the page.
        title: The finding; empty where there is no single one.
        caption: What is drawn, for a reader who wants to be sure.
        wide: Whether it takes the page's whole width.
    """

    slug: str
    title: str
    caption: str
    figure: go.Figure
    wide: bool = False
