from collections.abc import Callable, Sequence

import pytest

from plesio.cli.commands import invoke
from plesio.testbed.testbed import QUIET


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore this process's environment after the test."""
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[[str | Sequence[str]], str]:
    """Give a command line that is refused with status 2 in one line, and have that line."""

    def refuse(line: str | Sequence[str]) -> str:
        assert invoke(line.split() if isinstance(line, str) else list(line)) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1), err
        assert err.startswith("plesio: error: ")
        return err

    return refuse
