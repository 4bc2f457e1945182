"""Flags of a command line, as a shell file has them."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plesio.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Flags:
    """Flags.

    Attributes:
        words: The words after each flag; of one that is there twice, those after the last.
    """

    words: Mapping[str, Sequence[str]]

    @classmethod
    def read(cls, text: str) -> "Flags":
        """Read the flags of a shell file or of a line; other words are left out.

        >>> Flags.read("run --layers 2 --lean --layers=4").words
        {'layers': ['4'], 'lean': []}

        Raises:
            ConfigError: A quotation does not end.
        """
        try:
            words = shlex.split(text.replace("\\\n", " "), comments=True)
        except ValueError as error:
            raise ConfigError(f"no flags of a shell: {error}") from None
        found: dict[str, list[str]] = {}
        values: list[str] | None = None
        for word in words:
            if word.startswith("--"):
                name, _, value = word[2:].partition("=")
                values = found[name] = []
                if value:
                    values.append(value)
            elif values is not None:
                values.append(word)
        return cls(found)

    def __contains__(self, name: object) -> bool:
        """Return whether the flag is there."""
        return name in self.words

    def of(self, name: str, usual: str = "") -> str:
        """Return the words of a flag in a line, or the usual ones without the flag."""
        return " ".join(self.words[name]) if name in self.words else usual

    def number(self, name: str, usual: int, *, least: int = 1) -> int:
        """Return the whole number of a flag, or the usual one without the flag.

        Raises:
            ConfigError: It is none, or too small.
        """
        if name not in self.words:
            return usual
        word = next(iter(self.words[name]), "")
        if not word.isdecimal() or int(word) < least:
            raise ConfigError(
                f"--{name} {self.of(name)} is no whole number of {least} or more; write one, as --{name} {usual or 8}"
            )
        return int(word)
