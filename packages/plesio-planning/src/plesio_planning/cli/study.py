"""`plesio study`: ask one of the studies, or all of them.

A study's options are read off its function (`plesio.core.inputs`), so a command is made for it when it is asked for.
"""

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plesio.cli.function_options import command_of
from plesio.cli.given_once import CommandGroup, Commands
from plesio.cli.listing import add_kind, tell
from plesio.cli.options import Json, Out, Overwrite
from plesio.cli.output_files import prepare_pages, write_json
from plesio.cli.terminal import show
from plesio.core.errors import ConfigError
from plesio.core.files import write_whole
from plesio.testbed.testbed import QUIET

if TYPE_CHECKING:
    from plesio_planning.studies import Asked, Study
    from plesio_planning.studies.measured import Measured

EXAMPLES = """\b
Examples:
  plesio list studies
  plesio study stragglers --workers 64 --cv 0.3
  plesio study collectives --ranks 256 --bandwidth "50 GB/s" --out runs/collectives
  plesio study pipeline --quiz
  plesio study all --out runs/studies"""
LIST_EXAMPLES = """\b
Examples:
  plesio list studies
  plesio study stragglers"""

Measure = Annotated[
    bool,
    typer.Option(
        "--measure",
        help="Do the real thing on this machine as well, as far as it has the inputs; let nothing else run meanwhile.",
    ),
]
Quiz = Annotated[
    bool, typer.Option("--quiz", help="Ask you first: a question, your prediction (a line of the input), the answer.")
]


class _Studies(CommandGroup):
    """The commands of this file, and one for each study."""

    def list_commands(self, ctx: Any) -> list[str]:
        from plesio_planning.studies import STUDIES

        return [*super().list_commands(ctx), *(study.name for study in STUDIES)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        from plesio_planning.studies import find_study

        return super().get_command(ctx, cmd_name) or _command(find_study(cmd_name))


studies = Commands(name="study", help="Ask a system model a question.", epilog=EXAMPLES, cls=_Studies)


def add_to(app: typer.Typer) -> None:
    """Add ``plesio study`` to Plesio's commands, and the studies to ``plesio list``."""
    app.add_typer(studies)
    add_kind("studies", list_studies, count=_num_studies, examples=LIST_EXAMPLES)


def list_studies(json_file: Json = None, overwrite: Overwrite = False) -> None:
    """List the studies and the question of each."""
    from plesio_planning.studies import STUDIES

    lines = {f"{study.number:>2}  {study.name}": study.question for study in STUDIES}
    values = {study.name: study.question for study in STUDIES}
    tell({"studies": lines}, values=values, json_file=json_file, overwrite=overwrite)


def _num_studies() -> int:
    from plesio_planning.studies import STUDIES

    return len(STUDIES)


@studies.command("all", epilog="\b\nExamples:\n  plesio study all --out runs/studies")
def ask_all(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the pages.", show_default=False)],
    overwrite: Overwrite = False,
) -> None:
    """Ask all studies with their defaults; write an index page."""
    from rich.progress import track

    from plesio_planning.report.study import render_index_page, write_study
    from plesio_planning.studies import STUDIES

    prepare_pages(out, "index.html", *(f"{study.name}.html" for study in STUDIES), json_file=None, overwrite=overwrite)
    answers = []
    for study in track(STUDIES, description="asking", transient=True, disable=not sys.stderr.isatty()):
        began_s = time.perf_counter()
        answers.append(study.ask())
        write_study(answers[-1], out)
        typer.echo(f"{study.number:>2}  {study.name:<20} {time.perf_counter() - began_s:5.1f} s", err=True)
    write_whole(out / "index.html", render_index_page(answers))
    typer.echo(f"{out / 'index.html'}")


def _command(study: "Study") -> Any:
    from plesio_planning.measured import has_measurement

    def ask(
        inputs: dict[str, Any],
        *,
        out: Path | None,
        json_file: Path | None,
        overwrite: bool,
        quiz: bool,
        measure: bool = False,
    ) -> None:
        if quiz:
            _check_alone(out=out, json_file=json_file, measure=measure)
            _quiz(study.ask(**inputs))
            return
        prepare_pages(out, f"{study.name}.html", json_file=json_file, overwrite=overwrite)
        _show(study.ask(**inputs), measured=_measure(study, inputs) if measure else None, out=out, json_file=json_file)

    more: dict[str, tuple[Any, Any]] = {
        "out": (Out, None),
        "json_file": (Json, None),
        "overwrite": (Overwrite, False),
        "quiz": (Quiz, False),
    }
    if has_measurement(study.name):
        more["measure"] = (Measure, False)
    return command_of(f"plesio study {study.name}", study.inputs(), ask, summary=study.question, more=more)


def _check_alone(*, out: Path | None, json_file: Path | None, measure: bool) -> None:
    """Refuse other options beside an exercise, which shows its answer here."""
    for option, given in (("--out", out), ("--json", json_file), ("--measure", measure or None)):
        if given is not None:
            raise ConfigError(f"{option} has no effect with --quiz; leave one of them out")


def _quiz(asked: "Asked") -> None:
    """Ask a question, read a prediction from a line of the input, and show the answer with its reason."""
    from plesio_planning.studies.exercises import EXERCISES

    exercise = EXERCISES[asked.study]
    typer.echo(f"{exercise.ask(asked)}\nYour prediction ({exercise.hint()}; nothing to see the answer): ", nl=False)
    sys.stdout.flush()
    line = sys.stdin.readline()
    if not sys.stdin.isatty():
        typer.echo()  # nobody's key has ended the line
    typer.echo(f"\n{exercise.judge(exercise.read(line), asked)}\n{exercise.reason}\n\n{asked.answer.finding}")


def _measure(study: "Study", inputs: dict[str, Any]) -> "Measured":
    os.environ.update(QUIET)
    from plesio_planning.measured import measure_study

    return measure_study(study.name, inputs=inputs, on_step=lambda what: print(f"measuring: {what}", file=sys.stderr))


def _show(asked: "Asked", *, measured: "Measured | None", out: Path | None, json_file: Path | None) -> None:
    from plesio_planning.report.study import render_answer, render_measured, study_values, write_study

    show(render_answer(asked))
    if measured is not None:
        show(render_measured(measured))
    if out is not None:
        typer.echo(f"\n{write_study(asked, out, measured=measured)}")
    write_json(json_file, study_values(asked, measured=measured))
