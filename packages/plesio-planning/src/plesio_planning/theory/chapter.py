"""An index of the text that the studies are after: its proofs, its later theorems, and its operational rules.

Each entry says what the text claims or asks, in our words, where that stands here, and which command shows it; they are
read from ``chapter.toml``. The true or false statements A.1 to A.20 are `plesio_planning.theory.statements.EXERCISES`,
and the programs C.1 to C.20 the studies.
"""

from dataclasses import dataclass
from typing import Literal

from plesio.core.errors import ConfigError, nearest
from plesio_planning.texts import read_texts

Stand = Literal["holds", "holds otherwise", "wrong", "followed", "measured", "shown", "not here"]
"""Claims hold as stated, hold in another form, or are wrong. Rules are followed by themselves, measured and warned of,
shown to whoever asks, or not here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChapterEntry:
    """A proof, a theorem or a rule of the text.

    Attributes:
        claim: The claim, in our words.
        reason: Why, or what does it, in one line.
        command: Command that answers it or shows it; empty where there is none.
    """

    place: str
    claim: str
    stand: Stand
    reason: str
    command: str = ""


CHAPTER: dict[str, tuple[str, tuple[ChapterEntry, ...]]] = {
    name: (part["title"], tuple(ChapterEntry(**entry) for entry in part["entries"]))
    for name, part in read_texts("chapter").items()
}
"""The title and the entries of each part, by its name on the command line."""


def parts_of_chapter(name: str | None = None) -> list[tuple[str, tuple[ChapterEntry, ...]]]:
    """Return the title and the entries of a part, or of all.

    >>> [len(entries) for _, entries in parts_of_chapter()]
    [20, 17, 20]

    Raises:
        ConfigError: There is no such part.
    """
    if name is None:
        return list(CHAPTER.values())
    if name not in CHAPTER:
        raise ConfigError(f'there is no part "{name}"; {nearest(name, CHAPTER)}')
    return [CHAPTER[name]]
