"""Draws the README's picture: a few steps of each worker under each policy of a comparison's folder.

    plesio compare recipes/demo.toml --world virtual --policies bsp,adaptive --seeds 0 --out runs/front
    python benchmarks/front_picture.py runs/front docs/pictures/waiting.png

Takes the comparison's folder and the picture's path.
"""

import dataclasses
import sys
from pathlib import Path

from plesio.report.charts.pictures import draw_picture
from plesio.report.comparison_charts import timeline_chart
from plesio.report.spans import read_traces
from plesio.report.timelines import window_of

TITLE = "Ten steps of four workers; worker 3 is three times slower"


def main() -> None:
    folder, picture = map(Path, sys.argv[1:])
    runs = [read_traces(run) for run in sorted((folder / "runs").iterdir())]
    runs.sort(key=lambda run: run.policy != "bsp")
    windows = [window for run in runs if (window := window_of(run)) is not None]
    chart = timeline_chart(windows)
    assert chart is not None, f"no traces in {folder}"
    picture.write_bytes(draw_picture(dataclasses.replace(chart, title=TITLE)))


if __name__ == "__main__":
    main()
