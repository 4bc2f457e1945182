"""The part of a report that is about a grid's stages."""

import shutil
from pathlib import Path

import pytest

from plesio.policies.grid import GridSetting
from plesio.report.build import build_report
from plesio.report.grid_stages import grid_charts, grid_tables, stages_of
from plesio.report.spans import read_traces
from runtime.grid.programs import in_virtual_world


def run_of(spec: str, folder: Path) -> Path:
    """A run's folder, with its results beside."""
    run = folder / "runs" / "grid-seed0"
    in_virtual_world(GridSetting.parse(spec), trace=run)
    shutil.move(run / "results.json", folder / "results.json")
    return run


@pytest.mark.parametrize("spec", ["1x3", "2x2", "1x2,schedule=1f1b,micro_batches=4"])
def test_stages_are_as_stale_as_the_schedule_has_them(spec: str, tmp_path: Path) -> None:
    found = stages_of(read_traces(run_of(spec, tmp_path)))
    assert found is not None
    for stage in found.stages:
        assert max(staleness for _, staleness in stage.staleness) == stage.delay
        assert [number for number, _ in stage.staleness] == list(range(len(stage.staleness)))
        assert 0 <= stage.bubble_share <= 1  # unpaced, passes take no virtual time
    setting = GridSetting.parse(spec)
    names = ["group 0, stage 0", "group 0, stage 1", "group 1, stage 0", "group 1, stage 1"]
    assert [stage.name for stage in found.stages] == (
        names if setting.groups == 2 else [f"stage {stage}" for stage in range(setting.stages)]
    )


def test_the_report_has_the_stages(tmp_path: Path) -> None:
    found = stages_of(read_traces(run_of("1x3", tmp_path)))
    assert found is not None
    [table] = grid_tables([found])
    assert [row[2:5] for row in table.rows] == [("4", "4", "5"), ("2", "2", "3"), ("0", "0", "1")]
    assert [chart.slug for chart in grid_charts([found])] == ["bubble-0", "stage-staleness-0"]
    page = build_report(tmp_path).read_text(encoding="utf-8")
    assert 'id="stages"' in page
    assert 'id="plot-stage-staleness-0"' in page


def test_other_runs_have_no_stages(tmp_path: Path) -> None:
    (tmp_path / "trace-0.jsonl").write_text('{"schema": 1, "worker": 0, "policy": "bsp", "origin_s": 1.0}\n')
    assert stages_of(read_traces(tmp_path)) is None
    assert stages_of(read_traces(tmp_path / "nothing")) is None
