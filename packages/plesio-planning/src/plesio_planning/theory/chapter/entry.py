"""An entry of the index of the text: what it claims or asks there, and where that stands here."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Entry", "Stand"]

Stand = Literal["holds", "holds otherwise", "wrong", "followed", "measured", "shown", "not here"]
"""Claims hold as stated, hold in another form, or are wrong. Rules are followed by themselves, measured and warned of,
shown to whoever asks, or not here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A proof, a theorem or a rule of the text.

    Attributes:
        place: Its number there.
        claim: What it says, in our words.
        stand: Where that stands here.
        reason: Why, or what does it, in one line.
        command: Command that answers it or shows it; empty where there is none.
    """

    place: str
    claim: str
    stand: Stand
    reason: str
    command: str = ""
