"""Every command line in every document is one that the program takes: parsed, not run."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import typer
from typer.testing import CliRunner

from plesio.cli.commands import app
from plesio.core.errors import PlesioError

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(page for page in (ROOT / "docs").rglob("*.md") if page.name != "log.md")]
"""Not the notebook: its commands were those of their day."""
PLACEHOLDER = re.compile(r"[A-Z][A-Z_0-9]*(?:/[A-Z_]+)*|\.\.\.|…")
COMMAND = re.compile(r"(?:[A-Z_]+=\S+ )*(?:plesio|python|make) ")
ENDS = {"|", "&&", ">", "2>", "||", ";", "&"}
_UsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])


def blocks(text: str) -> Iterator[str]:
    """Lines of fenced and of indented blocks, those that end with a backslash joined."""
    fenced = False
    held = ""
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
            continue
        if fenced or line.startswith("    "):
            held += line.strip().removesuffix("\\")
            if line.endswith("\\"):
                continue
            yield held
            held = ""


def lines_of(page: Path) -> dict[str, bool]:
    """Each command line, and whether it is whole: one in running text may leave out what it needs."""
    text = page.read_text(encoding="utf-8")
    lines = dict.fromkeys(re.findall(r"(?<!`)`((?:plesio|python|make) [^`\n]*)`", text), False)
    lines |= dict.fromkeys((line.removeprefix("$ ") for line in blocks(text)), True)
    return {line: whole for line, whole in lines.items() if COMMAND.match(line)}


def words_of(line: str) -> list[str]:
    """The words of a line, without variables before it, a comment after it, and what it is piped into."""
    words = shlex.split(line, comments=True)
    while re.fullmatch(r"[A-Z_]+=.*", words[0]):
        del words[0]
    for number, word in enumerate(words):
        if word in ENDS:
            return words[:number]
    return words


def refusal(words: list[str], *, whole: bool) -> str | None:
    """Why the command line does not take these words; None where it does, or for a value that is a placeholder."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("plesio", [], resilient_parsing=True)
    while hasattr(command, "resolve_command") and words and not words[0].startswith("-"):
        if PLACEHOLDER.fullmatch(words[0]):
            return None
        try:
            name, command, words = command.resolve_command(context, words)
        except _UsageError as error:
            return str(getattr(error, "message", error))
        if command is None:
            return f"no command {name or words}"
        context = command.context_class(command, info_name=name, parent=context)
    if hasattr(command, "resolve_command"):  # whose options act at once: --install-completion writes to the home folder
        known = {option for parameter in command.get_params(context) for option in parameter.opts}
        return None if {*words} <= known else f"no option {words}"
    try:
        command.make_context(context.info_name, list(words), parent=context.parent)
    except _UsageError as error:
        return _unless_excused(error, words, whole=whole)
    except typer.Exit:
        return None  # --help, --version
    except PlesioError as error:
        return None if _has_placeholder(words) else str(error)
    return None


def _has_placeholder(words: list[str]) -> bool:
    return any(PLACEHOLDER.fullmatch(part) for word in words for part in re.split(r"[,:@=]", word))


def _unless_excused(error: Any, words: list[str], *, whole: bool) -> str | None:
    kind, message = type(error).__name__, str(getattr(error, "message", "") or error)
    if kind == "BadParameter" and (_has_placeholder(words) or "does not exist" in message):
        return None
    if not whole and kind in ("MissingParameter", "BadOptionUsage"):
        return None
    return f"{kind}: {message} {error.format_message()}"


CASES = [(page, line) for page in PAGES for line in lines_of(page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_has_commands_that_there_are(page: Path):
    wrong = []
    for line, whole in lines_of(page).items():
        words = words_of(line)
        if words[0] == "plesio":
            why = refusal([word for word in words[1:] if word not in ("...", "…")], whole=whole)
        elif words[0] == "make":
            targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M)
            asked = {word for word in words[1:] if "=" not in word}
            why = None if asked <= set(targets) else f"no target {asked}"
        else:
            scripts = [word for word in words[1:2] if word.endswith(".py") and "/" in word]
            why = next((f"no file {script}" for script in scripts if not (ROOT / script).exists()), None)
        if why is not None:
            wrong.append(f"{line!r}: {why}")
    assert not wrong, "\n".join(wrong)


def test_there_are_many():
    assert len(CASES) > 150


def commands(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every command there is, with its words."""
    context = command.make_context("plesio", [], resilient_parsing=True)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        yield f"{path}{name}", found
        if hasattr(found, "list_commands"):
            yield from commands(found, f"{path}{name} ")


def test_examples_in_help_are_commands_that_there_are():
    examples = {
        (path, line.strip())
        for path, command in commands(typer.main.get_command(app))
        for line in re.sub(r"\\\n\s*", "", command.epilog or "").splitlines()
        if re.match(r"\s+plesio ", line)
    }
    assert len(examples) > 80
    wrong = {example: refusal(words_of(example)[1:], whole=True) for _, example in sorted(examples)}
    assert not {example: why for example, why in wrong.items() if why is not None}


QUICK = [
    pytest.param(line, text, id=line.partition(" --out")[0])
    for page in PAGES
    if "plesio" in (text := page.read_text(encoding="utf-8"))
    for line, whole in lines_of(page).items()
    if whole
    and re.match(r"plesio (?:bound|estimate|list) ", line)
    and not re.search("--(search|out|import|calibrate|by) ", f"{line} ")
]
"""Command lines that answer at once, and the pages that have them."""


@pytest.mark.parametrize(("line", "text"), QUICK)
def test_what_answers_at_once_does_what_the_page_says(
    line: str, text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(app, words_of(line)[1:])
    if isinstance(told.exception, PlesioError):
        assert f"plesio: error: {told.exception}" in " ".join(text.split())
    else:
        assert told.exit_code == 0, told.output


@pytest.mark.parametrize(
    "line", ["compare --no-such-option 3", "nothing", "lab characterise a b", "run --workers x train.py"]
)
def test_what_the_program_does_not_take_is_found(line: str):
    assert refusal(line.split(), whole=True) is not None
