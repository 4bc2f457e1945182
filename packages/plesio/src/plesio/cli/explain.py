"""`plesio explain`: how a run that changes while it trains did against bsp, what it changed, and why."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plesio.cli.output_files import check_output_file
from plesio.cli.terminal import console
from plesio.core.files import write_whole
from plesio.core.records import to_values

if TYPE_CHECKING:
    from plesio.report.explanation import ChangingRuns

__all__ = ["EXAMPLES", "explain"]

EXAMPLES = """\b
Examples:
  plesio explain runs/adaptive
  plesio explain runs/adaptive --seed 2 --page seed2.html --json seed2.json
  plesio explain runs/adaptive --policy adaptive,store=off
  plesio explain runs/adaptive/runs/adaptive-seed0
  plesio explain runs/switch --policy switch:bsp/asp@200
  plesio explain runs/mine --bsp runs/mine-bsp
\b
First make such a run, and one under bsp, without which nobody knows whether it did better:
  plesio compare recipes/demo.toml --out runs/adaptive --policies bsp,adaptive"""

PAGE_NAME = "explain.html"


def explain(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A comparison's --out, or one run's traces.", show_default=False)
    ],
    policy: Annotated[
        str | None, typer.Option("--policy", metavar="SPEC", help="Which policy's run; else the first that changed.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", help="Which seed's run; else the first.")] = None,
    bsp: Annotated[
        Path | None,
        typer.Option(
            "--bsp", metavar="DIR2", help="Where the same was trained under bsp; else in DIR, if it is there."
        ),
    ] = None,
    page: Annotated[
        Path | None, typer.Option("--page", metavar="FILE", help="Where the HTML page goes; else DIR/explain.html.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Where all numbers go.")] = None,
) -> int:
    """Tell how a run did against bsp, what it changed, and why.

    Says first what was measured: time to target and quality in the end, where the same was trained under bsp too, or
    that this is not known. Then a sentence for each change. Writes a page with a timeline: the metric, the slack in
    force, the time of a step, and the loss; of an adaptive run also what the settings it compared were expected to
    bring, and what a step would take under bsp by prediction.
    """
    for option, path in (("--page", page), ("--json", json_file)):
        check_output_file(option, path)

    from plesio.report.explanation import find_changing_runs, render_explanation, render_explanation_page

    # all is computed before anything is written
    found = find_changing_runs(directory)
    place = found.choose(policy=policy, seed=seed)
    explanation = found.explanation(place, bsp_directory=bsp)
    page = directory / PAGE_NAME if page is None else page
    advice = found.advice(place)
    write_whole(page, render_explanation_page(explanation, advice=advice))
    if json_file is not None:
        write_whole(json_file, json.dumps(to_values(explanation), indent=1, allow_nan=False) + "\n")
    terminal = console(plain=True)
    terminal.print(render_explanation(explanation, advice=advice or ()))
    others = _others_text(found, place)
    if others:
        terminal.print(f"\n{others}")
    typer.echo(f"\n{page}")
    if json_file is not None:
        typer.echo(json_file)
    return 0


def _others_text(found: "ChangingRuns", place: int) -> str:
    """Describe how to have the others explained."""
    chosen = found.runs[place]
    others = [run for number, run in enumerate(found.runs) if number != place]
    ways = [(f"--policy {run.policy} " if run.policy != chosen.policy else "") + f"--seed {run.seed}" for run in others]
    if not ways:
        return ""
    count = "1 other run" if len(ways) == 1 else f"{len(ways)} other runs"
    return f"{count} to explain here: {' | '.join(ways[:6])}{' | ...' if len(ways) > 6 else ''}"
