"""Snapshots of a grid: alike on all stages and groups, whatever is late."""

from typing import Any

import pytest

from plesio.core.results import RunResult
from runtime.grid.programs import in_grid, train


def run(spec: str, snapshot_every: int | None) -> RunResult:
    def loop(grid: Any) -> RunResult:
        train(grid)
        grid.finish(lambda: float(sum(weight.abs().sum() for weight in grid.model.parameters())))
        return grid.report()

    return in_grid(spec, loop, snapshot_every=snapshot_every).values()[0]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("snapshot_every", [120, 240, 250])
@pytest.mark.parametrize("spec", ["1x4", "3x1", "2x2,schedule=2bw,micro_batches=2"])
def test_snapshots_change_nothing_of_the_network(spec: str, snapshot_every: int) -> None:
    without, having = run(spec, None), run(spec, snapshot_every)
    assert having.parameters_sha256 == without.parameters_sha256
    assert having.evaluations[-1] == without.evaluations[-1]


def test_the_last_snapshot_may_fall_among_what_is_under_way_at_the_end() -> None:
    assert [one.samples for one in run("1x4", 120).evaluations] == [120, 240, 256]


def test_samples_that_do_not_divide_evenly_are_counted_exactly() -> None:
    assert [one.samples for one in run("3x1", 50).evaluations] == [72, 120, 152, 200, 256]
