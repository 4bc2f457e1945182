"""`plesio report`: the pages of a comparison or a run, built again, and what they say, told in the terminal."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plesio.cli.options import Json, Overwrite
from plesio.cli.output_files import check_output_files, write_json
from plesio.cli.terminal import console, show
from plesio.core.errors import DataError
from plesio.core.files import write_whole
from plesio.core.records import to_values

if TYPE_CHECKING:
    from plesio.report.explanation import ChangingRuns

EXAMPLES = """\b
Examples:
  plesio report runs/demo
  plesio report runs/adaptive --seed 2 --page seed2.html --json seed2.json
  plesio report runs/adaptive --policy adaptive,store=off
  plesio report runs/adaptive/runs/adaptive-seed0
  plesio report runs/switch --policy switch:bsp/asp@200
  plesio report runs/mine --bsp runs/mine-bsp
\b
To have an adaptive run held against bsp, train under both:
  plesio compare recipes/demo.toml --out runs/adaptive --policies bsp,adaptive"""

PAGE_NAME = "explain.html"


def report(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A comparison's --out, or one run's traces.", show_default=False)
    ],
    policy: Annotated[
        str | None,
        typer.Option("--policy", metavar="SPEC", help="Which policy's run to explain; else the first that changed."),
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", help="Which seed's run; else the first.")] = None,
    bsp: Annotated[
        Path | None,
        typer.Option(
            "--bsp", metavar="DIR2", help="Where the same was trained under bsp; else in DIR, if it is there."
        ),
    ] = None,
    page: Annotated[
        Path | None, typer.Option("--page", metavar="FILE", help="Where the explanation goes; else DIR/explain.html.")
    ] = None,
    json_file: Json = None,
    overwrite: Overwrite = False,
) -> int:
    """Build a comparison's pages again; tell what they say.

    The report is made from results.json and the traces in DIR. If a run's policy changed while it trained, as adaptive
    and switch do, tells how it did against bsp: time to target and quality in the end, where the same was trained under
    bsp too, or that this is not known. Then a sentence for each change. Writes a second page with a timeline of that
    run: the metric, the slack in force, the time of a step, and the loss; of an adaptive run also what the settings it
    compared were expected to bring, and what a step would take under bsp by prediction.
    """
    check_output_files({"--page": page, "--json": json_file}, overwrite=overwrite)

    from plesio.report.build import build_report, read_comparison, read_operations
    from plesio.report.explanation import find_changing_runs
    from plesio.report.table import comparison_values, render_comparison

    # all is computed before anything is written
    comparison, found = read_comparison(directory), find_changing_runs(directory)
    asked = any(one is not None for one in (policy, seed, bsp, page))
    explained, problem = None, ""
    if found.runs or asked:
        try:
            explained = _Explained(found, found.choose(policy=policy, seed=seed), bsp=bsp)
        except DataError as error:
            if asked:
                raise
            problem = f"\n{error}"
    pages = [build_report(directory)]
    show(render_comparison(comparison, operations=() if explained else read_operations(directory, comparison)))
    if explained is not None:
        pages.append(explained.tell(page or directory / PAGE_NAME))
    typer.echo("\n".join([problem, *map(str, pages)]))
    explanation = None if explained is None else to_values(explained.explanation)
    write_json(json_file, {**comparison_values(comparison), "explanation": explanation})
    return 0


class _Explained:
    """The explanation of one run, and the advice on it."""

    def __init__(self, found: "ChangingRuns", place: int, *, bsp: Path | None) -> None:
        self.explanation = found.explanation(place, bsp_directory=bsp)
        self._advice = found.advice(place)
        self._others = _others_text(found, place)

    def tell(self, page: Path) -> Path:
        """Print it and write its page; returns the page."""
        from plesio.report.explanation import render_explanation, render_explanation_page

        write_whole(page, render_explanation_page(self.explanation, advice=self._advice))
        terminal = console(plain=True)
        terminal.print()
        terminal.print(render_explanation(self.explanation, advice=self._advice or ()))
        if self._others:
            terminal.print(f"\n{self._others}")
        return page


def _others_text(found: "ChangingRuns", place: int) -> str:
    """Describe how to have the others explained."""
    chosen = found.runs[place]
    others = [run for number, run in enumerate(found.runs) if number != place]
    ways = [(f"--policy {run.policy} " if run.policy != chosen.policy else "") + f"--seed {run.seed}" for run in others]
    if not ways:
        return ""
    count = "1 other run" if len(ways) == 1 else f"{len(ways)} other runs"
    return f"{count} to explain here: {' | '.join(ways[:6])}{' | ...' if len(ways) > 6 else ''}"
