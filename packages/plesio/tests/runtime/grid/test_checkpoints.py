"""A grid that is stopped and resumed comes to the bits of one that was not, with micro-batches in flight."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from plesio.core.errors import ConfigError
from plesio.core.results import RunResult
from plesio.cost.faults import Fault
from plesio.policies.grid import GridSetting
from plesio.runtime.checkpoints.folder import Folder, read_manifest
from plesio.runtime.checkpoints.part_reports import AWAIT_S
from plesio.runtime.grid.saving import whole_network
from runtime.grid.programs import data, in_grid

LIMIT_S = 20.0
LOADER = {"batch_size": 8, "shuffle": True}


def adam(weights: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(weights, lr=0.01)


def noisy_network() -> nn.Sequential:
    """With dropout and BatchNorm, so that random numbers and buffers count."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 16),
        nn.BatchNorm1d(16),
        nn.Dropout(0.2),
        nn.Linear(16, 16),
        nn.Tanh(),
        nn.Dropout(0.2),
        nn.Linear(16, 3),
    )


def run(
    setting: GridSetting, folder: Path, *, stop_after: int | None = None, resume: str = "auto", every: str = "5 steps"
) -> Any:
    """Two epochs, or up to a micro-batch in mid-loop; the final state and the result on each worker."""

    def loop(grid: Any) -> Any:
        for _ in range(2):
            for x, y in grid.shard(DataLoader(data(), **LOADER)):
                grid.step(x, y)
                if stop_after is not None and grid.clock >= stop_after:
                    return None
            grid.evaluate(lambda: float(grid.model(data().tensors[0]).sum()))
        grid.finish()
        return grid.state_dict(), grid.report()

    return in_grid(
        setting,
        loop,
        model=noisy_network,
        make=adam,
        scheduler_factory=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9),
        clip=0.5,
        checkpoint=folder,
        every=every,
        keep=100,
        resume=resume,
    ).values()


SPECS = [
    "2x2,compress=qsgd:8,every=2",
    "1x3,schedule=2bw,micro_batches=4",
    "2x2,micro_batches=3",
    *(
        pytest.param(spec, marks=pytest.mark.slow)
        for spec in (
            "1x4,weights=recompute",
            "3x1,mixing=ring",
            "1x3,delay=3,shrink=0.9",
            "1x1",
            "1x3",
            "2x2",
            "2x3,every=4,bound=3",
            "1x3,schedule=1f1b,micro_batches=4",
        )
    ),
]


@pytest.mark.parametrize("spec", SPECS)
def test_resumed_from_every_checkpoint_to_the_bit(spec: str, tmp_path: Path) -> None:
    setting = GridSetting.parse(spec)
    whole, of_whole = run(setting, tmp_path)[0]
    checkpoints = Folder(tmp_path).all()
    assert len(checkpoints) >= 2
    for path in checkpoints[:: max(1, len(checkpoints) // 3)]:
        state, result = run(setting, tmp_path / "again", resume=str(path))[0]
        assert all(torch.equal(state[name], whole[name]) for name in whole), path.name
        assert result.parameters_sha256 == of_whole.parameters_sha256
        assert (result.samples, result.steps) == (of_whole.samples, of_whole.steps)
        assert [one.metric for one in result.evaluations] == [one.metric for one in of_whole.evaluations]
        assert result.staleness == of_whole.staleness


def test_a_run_that_ended_early_goes_on(tmp_path: Path) -> None:
    setting = GridSetting.parse("2x2")
    whole, _ = run(setting, tmp_path / "whole", every="1000 steps")[0]
    run(setting, tmp_path / "stopped", stop_after=9, every="4 steps")
    state, _ = run(setting, tmp_path / "stopped", every="4 steps")[0]
    assert all(torch.equal(state[name], whole[name]) for name in whole)


def test_the_network_in_a_checkpoint_is_the_mean_over_the_groups(tmp_path: Path) -> None:
    setting = GridSetting.parse("2x2,every=100")
    run(setting, tmp_path)
    path = Folder(tmp_path).all()[-1]
    state = whole_network(path, read_manifest(path))
    assert set(state) == set(noisy_network().state_dict())
    noisy_network().load_state_dict(state)


def test_another_grid_or_seed_is_refused(tmp_path: Path) -> None:
    run(GridSetting.parse("1x2"), tmp_path)
    with pytest.raises(ConfigError, match="is of a run with grid grid:1x2, and this one has grid:1x2,delay=1"):
        run(GridSetting.parse("1x2,delay=1"), tmp_path)


def test_by_time_all_workers_take_the_same_one(tmp_path: Path) -> None:
    def loop(grid: Any) -> None:
        for _ in range(6):
            for x, y in grid.shard(DataLoader(data(), **LOADER)):
                grid.step(x, y)

    steps = {"step_s": lambda rank: 0.1 + 0.05 * rank}
    in_grid("2x3,every=3", loop, make=adam, checkpoint=tmp_path, every=0.3, keep=100, **steps).values()
    checkpoints = Folder(tmp_path).all()
    assert len(checkpoints) >= 2
    assert all(read_manifest(path).num_workers == 6 for path in checkpoints)
    assert not Folder(tmp_path).unfinished()


@pytest.mark.parametrize("spec", ["2x2", pytest.param("2x2,every=4,bound=3", marks=pytest.mark.slow)])
def test_a_run_that_has_lost_a_group_ends_without_waiting_for_its_checkpoints(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plesio.runtime.checkpoints.part_reports.FAILED_AWAIT_S", 0.2)

    def loop(grid: Any) -> RunResult:
        for _ in range(3):
            for x, y in grid.shard(DataLoader(data(), **LOADER)):
                grid.step(x, y)
                if grid.rank == 0 and grid.clock == 30:
                    committed.append(commits_of_two())
        grid.close()
        return grid.report()

    def step_s(rank: int) -> float:
        return 0.16 if rank >= 2 else 0.04  # the others wait for it in a checkpoint, if in anything

    def commits_of_two() -> bool:
        """Return True when those who are left have committed a checkpoint, though one before it never will be."""
        deadline_s = time.monotonic() + LIMIT_S
        while not any(read_manifest(path).workers == (0, 1) for path in Folder(tmp_path).all()):
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.02)
        return True

    committed: list[bool] = []
    lose = (Fault(at_s=0.6, kind="lose", worker=3),)
    begun_s = time.monotonic()
    how = {"make": adam, "step_s": step_s, "faults": lose}
    ended = in_grid(spec, loop, checkpoint=tmp_path, every="1 steps", **how).outcomes
    assert time.monotonic() - begun_s < AWAIT_S / 4
    assert committed == ([True] if spec == "2x2" else []), "with a bound the run ends before its 30th step"
    for rank in (0, 1):
        assert ended[rank].error is None, ended[rank].error
        assert ended[rank].value.lost_workers == (2, 3)
