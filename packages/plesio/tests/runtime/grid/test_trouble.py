"""Trouble in a grid: every worker is told why, and other groups go on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import plesio
from plesio.core.errors import ConfigError, PlesioError, TaskError, WorkerLostError
from plesio.core.results import RunResult, read_results
from plesio.cost.cluster import Cluster
from plesio.cost.faults import Fault
from plesio.policies.grid import GridSetting
from plesio.runtime.worlds.virtual import simulate
from plesio.runtime.worlds.virtual.simulation import WorkerOutcome
from runtime.grid.programs import data, in_grid, network, optimizer


def outcomes(
    spec: str, *, before_step: Callable[[Any], None] = lambda grid: None, **options: Any
) -> dict[int, WorkerOutcome[Any]]:
    def loop(grid: Any) -> Any:
        for _ in range(3):
            for x, y in grid.shard(DataLoader(data(), batch_size=8, shuffle=True)):
                before_step(grid)
                grid.step(x, y)
        grid.finish()
        return grid.state_dict(), grid.report()

    stages = GridSetting.parse(spec).stages
    return in_grid(spec, loop, step_s=lambda rank: 0.02 * stages, **options).outcomes


@pytest.mark.parametrize("lost", [0, 1, 2, 3])
def test_without_a_worker_its_group_ends_and_the_others_go_on(lost: int) -> None:
    ended = outcomes("2x2", faults=(Fault(at_s=0.3, kind="lose", worker=lost),))
    group = lost // 2
    partner = 2 * group + 1 - lost % 2
    assert isinstance(ended[partner].error, WorkerLostError)
    assert str(ended[partner].error) == f"worker {lost} is gone: group {group} of the grid ends; the other goes on"
    for rank in (2 * (1 - group), 2 * (1 - group) + 1):
        assert ended[rank].error is None
        _, result = ended[rank].value
        assert result.lost_workers == (2 * group, 2 * group + 1)
        assert result.status == "finished"
        assert f"group {group} of the grid was lost" in result.fallbacks[0]


def test_one_group_ends_with_who_was_lost() -> None:
    ended = outcomes("1x3", faults=(Fault(at_s=0.3, kind="lose", worker=2),))
    assert str(ended[1].error) == "worker 2 is gone: group 0 of the grid ends; it is the only one"
    assert str(ended[0].error) == str(ended[1].error)  # it hears the reason, not that its neighbour has left


def test_a_run_that_fails_leaves_a_result(tmp_path: Path) -> None:
    def fail(grid: Any) -> None:
        if grid.clock == 9:
            raise ValueError("boom")

    outcomes("1x2", before_step=fail, trace=tmp_path)
    [result] = read_results(tmp_path / "results.json")
    assert (result.status, result.error) == ("failed", "ValueError: boom")
    assert result.lost_workers == ()
    assert result.samples > 0


def test_the_result_is_written_without_the_first_worker(tmp_path: Path) -> None:
    outcomes("2x2", faults=(Fault(at_s=0.3, kind="lose", worker=0),), trace=tmp_path)
    [result] = read_results(tmp_path / "results.json")
    assert result.status == "finished"
    assert result.lost_workers == (0, 1)


def test_groups_that_are_cut_in_two_end() -> None:
    rows = "0.5 0.5 0/0.5 0 0.5/0 0.5 0.5"  # a path: without the middle nobody hears of anybody
    ended = outcomes(f"3x1,mixing={rows}", faults=(Fault(at_s=0.2, kind="lose", worker=1),))
    assert isinstance(ended[0].error, WorkerLostError)
    assert "has no way to the others on this graph (matrix)" in str(ended[0].error)


def test_an_error_of_the_program_is_told_to_all() -> None:
    def fail(grid: Any) -> None:
        if grid.rank == 1 and grid.clock == 9:
            raise ValueError("boom")

    ended = outcomes("1x3", before_step=fail)
    assert isinstance(ended[1].error, ValueError)
    for rank in (0, 2):
        assert isinstance(ended[rank].error, PlesioError)
        assert str(ended[rank].error) == "worker 1 ended with an error (ValueError: boom)"


def test_stages_that_do_not_chain_are_told_to_all_in_one_line() -> None:
    def model() -> nn.Sequential:
        return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(17, 3))

    for cuts in ([2], None):  # by the first passes, and by measuring where to cut
        for ended in outcomes("1x2", model=model, cuts=cuts).values():
            assert isinstance(ended.error, PlesioError)
            assert "the stages do not chain" in str(ended.error)
            assert "cannot take (8, 16)" in str(ended.error)
            assert "\n" not in str(ended.error)


def test_shared_weights_are_refused_on_all() -> None:
    def model() -> nn.Sequential:
        shared = nn.Linear(8, 8)
        return nn.Sequential(shared, nn.Tanh(), shared, nn.Linear(8, 3))

    for ended in outcomes("1x2", model=model, cuts=[2]).values():
        assert isinstance(ended.error, TaskError)
        assert "stages 0 and 1 share weights" in str(ended.error)


def test_a_stage_with_nothing_to_train_is_refused() -> None:
    def model() -> nn.Sequential:
        return nn.Sequential(nn.Linear(8, 3), nn.Tanh())

    for ended in outcomes("2x2", model=model, cuts=[1]).values():  # the same line on all: it is printed once
        assert str(ended.error) == "stage 1 has nothing to train; cut elsewhere, or write fewer stages"


@pytest.mark.parametrize("spec", ["2x3", "1x3,schedule=1f1b,micro_batches=2"])
def test_a_later_loop_may_have_larger_micro_batches(spec: str) -> None:
    def loop(grid: Any) -> RunResult:
        for size in (4, 16, 8, 32):
            for x, y in grid.shard(DataLoader(data(), batch_size=size)):
                grid.step(x, y)
        grid.finish()
        return grid.report()

    for ended in in_grid(spec, loop).outcomes.values():
        assert ended.error is None
        assert ended.value.samples == 4 * len(data())


def test_numbers_of_workers_that_do_not_fit() -> None:
    def work(job: Any) -> None:
        plesio.grid(network(), optimizer, nn.functional.cross_entropy, setting="2x2")

    for ended in simulate(work, num_workers=3, cluster=Cluster.one_host(3)).outcomes.values():
        assert isinstance(ended.error, ConfigError)
        assert "a 2x2 grid has 4 workers, and here are 3" in str(ended.error)


def test_a_script_and_its_launcher_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLESIO_GRID", "2x2")
    with pytest.raises(ConfigError, match="the script says grid:1x4, and plesio run --grid says 2x2"):
        plesio.grid(network(), optimizer, nn.functional.cross_entropy, setting="1x4")


def test_a_process_by_itself_trains_the_whole_network() -> None:
    torch.manual_seed(0)
    with plesio.grid(network(), optimizer, nn.functional.cross_entropy, setting="2x3") as grid:
        for x, y in grid.shard(DataLoader(data(), batch_size=8, shuffle=True)):
            assert grid.step(x, y) is not None
    assert grid.report().samples == 128
    assert set(grid.state_dict() or {}) == set(network().state_dict())


def test_a_list_of_modules_is_one_network_for_one_worker() -> None:
    ended = outcomes("1x1", model=lambda: [network()[:3], network()[3:]], cuts=None)
    state, _ = ended[0].value
    assert len(state) == len(network().state_dict())


def test_groups_in_the_script_that_differ_from_the_command_line_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLESIO_GRID", "grid:2x2")

    def work(job: Any) -> int:
        return plesio.grid(network(), optimizer, nn.functional.cross_entropy, groups=1).setting.groups

    for ended in simulate(work, num_workers=4, cluster=Cluster.one_host(4)).outcomes.values():
        assert str(ended.error) == "groups=1 is written in the script, and the grid is grid:2x2; write one of the two"


def test_the_state_loads_where_weights_are_shared_and_buffers_are_not_kept() -> None:
    def model() -> nn.Sequential:
        layers = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3))
        layers[3].weight = layers[2].weight
        layers[0].register_buffer("scratch", torch.zeros(1), persistent=False)
        return layers

    state, _ = outcomes("1x2", model=model, cuts=[2])[0].value
    model().load_state_dict(state)


def test_a_long_reason_is_told_in_part() -> None:
    def fail(grid: Any) -> None:
        if grid.rank == 1 and grid.clock == 9:
            raise ValueError("ü" * 2000)

    ended = outcomes("1x2", before_step=fail)
    assert isinstance(ended[1].error, ValueError)
    assert str(ended[0].error).startswith("worker 1 ended with an error (ValueError: ü")


@pytest.mark.parametrize(("micro_batches", "told"), [(50, 1), (4, 0)])
def test_a_run_too_short_for_one_update_is_told_of_once(micro_batches: int, told: int) -> None:
    for outcome in outcomes(f"grid:1x2,micro_batches={micro_batches}").values():
        _, result = outcome.value
        lines = [line for line in result.fallbacks if "the grid's only update came at its end" in line]
        assert len(lines) == told
