"""An index of the text that the studies are after: its proofs, its later theorems, and its operational rules.

Each entry says what the text claims or asks, in our words, where that stands here, and which command shows it. The true
or false statements A.1 to A.20 are `plesio_planning.theory.statements.EXERCISES`, and the programs C.1 to C.20 the
studies.
"""

from plesio.core.errors import ConfigError, nearest
from plesio_planning.theory.chapter.entry import Entry, Stand
from plesio_planning.theory.chapter.proofs import PROOFS
from plesio_planning.theory.chapter.rules import RULES
from plesio_planning.theory.chapter.theorems import LATER_THEOREMS

__all__ = ["CHAPTER", "LATER_THEOREMS", "PROOFS", "RULES", "Entry", "Stand", "parts_of_chapter"]

CHAPTER: dict[str, tuple[str, tuple[Entry, ...]]] = {
    "proofs": ("Proofs, B.1 to B.20", PROOFS),
    "theorems": ("Theorems of the later pages", LATER_THEOREMS),
    "rules": ("Operational rules, by exercise", RULES),
}
"""The title and the entries of each part, by its name on the command line."""


def parts_of_chapter(name: str | None = None) -> list[tuple[str, tuple[Entry, ...]]]:
    """The title and the entries of a part, or of all.

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
