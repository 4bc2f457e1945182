"""A terminal of 80 characters."""

import pytest
from rich.cells import cell_len

WIDTH = 80


def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands print for a terminal of this width."""
    monkeypatch.setenv("COLUMNS", str(WIDTH))


def too_long(text: str) -> list[str]:
    """The lines that do not fit, without those that are the name of a file."""
    return [line for line in text.splitlines() if cell_len(line) > WIDTH and not line.startswith("/")]
