"""Text as HTML."""

import html

__all__ = ["prose"]


def prose(text: str) -> str:
    """Escape a sentence, and keep a number and its percent sign on one line.

    >>> prose("<asp> ended at 98.1 %")
    '&lt;asp&gt; ended at 98.1&nbsp;%'
    """
    return html.escape(text).replace(" %", "&nbsp;%")
