"""When a group is lost or joins, all regroup at one tick: no sample is left out, none counts twice, and to the bit."""

import copy
import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from plesio.cost.faults import Fault
from plesio.policies.grid import GridSetting
from plesio.runtime.checkpoints.folder import Folder, read_manifest
from runtime.grid.programs import adam, in_grid, mix, network, optimizer

NUM_SAMPLES, MICRO_BATCH, STEP_S = 480, 4, 0.02


def numbered() -> TensorDataset:
    """Samples that say which they are."""
    x = torch.randn(NUM_SAMPLES, 8, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long(), torch.arange(NUM_SAMPLES))


class Run:
    """A grid in the virtual world; what its groups were given, and how it ended."""

    def __init__(
        self,
        spec: str,
        *faults: Fault,
        epochs: int = 2,
        together: bool = False,
        snapshot_every: int | None = None,
        **checkpoints: Any,
    ) -> None:
        self.setting = GridSetting.parse(spec)
        self.given: dict[int, list[list[int]]] = {}
        """Samples of each group's micro-batches."""

        def loop(grid: Any) -> Any:
            loader = DataLoader(numbered(), batch_size=MICRO_BATCH, shuffle=True)
            for _ in range(1 if together else epochs):
                for x, y, numbers in grid.shard(loader, samples=epochs * NUM_SAMPLES if together else None):
                    if grid.stage == 0:
                        self.given.setdefault(grid.group, []).append(numbers.tolist())
                    grid.step(x, y)
            grid.finish(lambda: 0.0)
            return grid.state_dict(), grid.report()

        def step_s(rank: int) -> float:
            return STEP_S * self.setting.stages

        how = {"step_s": step_s, "snapshot_every": snapshot_every, "faults": faults}
        self.outcomes = in_grid(self.setting, loop, **how, **checkpoints).outcomes
        values = [one.value for one in self.outcomes.values() if one.value is not None and one.value[0] is not None]
        assert len(values) == 1, [one.error for one in self.outcomes.values()]
        [(self.state, self.result)] = values

    def count(self, *, lost: dict[int, int] | None = None) -> Counter[int]:
        """How often each sample was trained on; of lost groups the first so many micro-batches count."""
        lost = lost or {}
        return Counter(
            number for group, batches in self.given.items() for batch in batches[: lost.get(group)] for number in batch
        )


def joining(count: int, at_s: float) -> list[Fault]:
    return [Fault(at_s=at_s, kind="join") for _ in range(count)]


def lose(worker: int, at_s: float) -> Fault:
    return Fault(at_s=at_s, kind="lose", worker=worker)


SPECS = [
    "3x2,every=3,bound=2",
    "2x2,compress=qsgd:8",
    "2x2",
    "2x2,micro_batches=3",
    "3x1,mixing=ring",
    "2x3,schedule=1f1b,micro_batches=4",
]
QUICK = [(SPECS[0], True), (SPECS[1], False)]


def loops(specs: Sequence[str], *, quick: Sequence[tuple[str, bool]]) -> list[Any]:
    """Each of the specs with all epochs in one loop, and with a loop for each; all but a few are slow."""
    cases = itertools.product(specs, (True, False))
    return [case if case in quick else pytest.param(*case, marks=pytest.mark.slow) for case in cases]


@pytest.mark.parametrize(("spec", "together"), loops(SPECS, quick=QUICK))
def test_what_a_lost_group_had_not_trained_on_is_dealt_to_the_others(spec: str, together: bool) -> None:
    run = Run(spec, lose(GridSetting.parse(spec).stages, 1.0), together=together)
    [lost] = [group for group in run.given if group == 1]
    [line] = [line for line in run.result.fallbacks if "were dealt to the others" in line]
    again = int(line.split()[0])
    kept = run.result.samples - sum(len(batch) for group in run.given if group != lost for batch in run.given[group])
    assert run.result.samples == 2 * NUM_SAMPLES
    sizes = [len(batch) for batch in run.given[lost]]
    trained = next(count for count in range(len(sizes) + 1) if sum(sizes[:count]) == kept)
    assert again > 0
    assert set(run.count(lost={lost: trained}).values()) == {2}, "each sample once an epoch"


@pytest.mark.slow
@pytest.mark.parametrize("faults", [[lose(2, 1.0)], joining(2, 0.5), [lose(2, 0.4), *joining(2, 0.7)]])
def test_two_runs_are_equal_to_the_bit(faults: list[Fault]) -> None:
    first, second = (Run("3x2,mixing=ring", *faults, epochs=1) for _ in range(2))
    assert first.given == second.given
    assert all(torch.equal(first.state[name], second.state[name]) for name in first.state)


def test_groups_that_are_lost_while_others_are_dealt_out_again() -> None:
    run = Run("4x1", lose(0, 0.3), lose(2, 0.35), lose(1, 0.5))
    assert run.result.lost_workers == (0, 1, 2)
    assert run.result.samples == 2 * NUM_SAMPLES
    assert min(run.count().values()) >= 2


def test_a_given_matrix_goes_on_with_the_rows_of_those_who_are_left() -> None:
    run = Run("3x1,mixing=0.6 0.2 0.2/0.2 0.6 0.2/0.2 0.2 0.6", lose(1, 1.0))
    assert run.result.samples == 2 * NUM_SAMPLES


def test_near_the_end_what_is_left_out_is_said_and_counted() -> None:
    whole = Run("2x2", epochs=1)
    run = Run("2x2", lose(3, whole.result.wall_s - 2 * STEP_S), epochs=1)
    assert run.result.status == "finished"
    [line] = [line for line in run.result.fallbacks if "were left out: the run ended before" in line]
    assert 0 < int(line.split()[0]) == NUM_SAMPLES - run.result.samples


@pytest.mark.parametrize(
    ("spec", "together"),
    loops(["1x2", *SPECS, "1x3,schedule=2bw,micro_batches=4"], quick=[QUICK[1], ("1x2", True)]),
)
def test_a_group_that_joins_takes_its_share_of_what_is_left(spec: str, together: bool) -> None:
    run = Run(spec, *joining(GridSetting.parse(spec).stages, 0.7), together=together)
    assert [outcome.error for outcome in run.outcomes.values()] == [None] * len(run.outcomes)
    newcomer = max(run.given)
    assert newcomer == run.setting.groups
    assert run.given[newcomer]
    assert set(run.count().values()) == {2}, "each sample once an epoch"
    assert run.result.samples == 2 * NUM_SAMPLES
    assert run.result.lost_workers == ()
    assert {worker.worker for worker in run.result.workers} == set(range(len(run.outcomes)))


def test_after_a_join_the_numbers_are_those_of_the_rule() -> None:
    run = Run("1x1", *joining(1, 0.7))
    before = len(run.given[0]) - len(run.given[1])
    first, x, y = network(), *numbered().tensors[:2]
    steps = optimizer(first.parameters())

    def train(model: nn.Module, steps: torch.optim.Optimizer, batch: list[int]) -> None:
        steps.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        steps.step()

    for batch in run.given[0][:before]:
        train(first, steps, batch)
    second = copy.deepcopy(first)
    others = optimizer(second.parameters())
    others.load_state_dict(copy.deepcopy(steps.state_dict()))
    for own, other in zip(run.given[0][before:], run.given[1], strict=True):
        train(first, steps, own)
        train(second, others, other)
        mix([first, second], GridSetting.parse("2x1"))
    assert before > 0
    assert run.given[1]
    for name, tensor in first.state_dict().items():
        assert torch.equal(run.state[name], torch.stack([tensor, second.state_dict()[name]]).mean(0))


def test_a_group_joins_while_late_stages_predict_their_weights() -> None:
    run, sooner = (Run(f"1x2,delay={delay}", *joining(2, 0.7), make=adam, epochs=1) for delay in (2, 1))
    assert [outcome.error for outcome in run.outcomes.values()] == [None] * len(run.outcomes)
    assert run.given[1]
    assert set(run.count().values()) == {1}, "each sample once an epoch"
    assert all(weight.isfinite().all() for weight in run.state.values())
    assert any(not torch.equal(run.state[name], sooner.state[name]) for name in run.state)
    assert [line.split(";")[0] for line in run.result.fallbacks if "late" in line] == [
        "AdamW learns far less from gradients that are 2 updates late"
    ]
    assert not any("late" in line for line in sooner.result.fallbacks)


def test_snapshots_are_of_those_who_were_there() -> None:
    """A group comes so late that the run ends while stages of it are still skipping what was under way before."""
    whole = Run("1x4", epochs=1, snapshot_every=2 * MICRO_BATCH)
    joined = joining(4, whole.result.wall_s - 0.45)
    run = Run("1x4", *joined, epochs=1, snapshot_every=2 * MICRO_BATCH)
    early, late = (one.result.evaluations for one in (whole, run))
    assert 0 < len(run.given[1]) < run.setting.delays[0]
    assert [one.samples for one in late[:50]] == [one.samples for one in early[:50]]
    assert late[-1].samples == NUM_SAMPLES


def test_groups_come_and_go() -> None:
    run = Run("2x2", lose(0, 0.3), *joining(2, 0.5), lose(5, 1.6), *joining(2, 1.9))
    assert run.result.lost_workers == (0, 1, 4, 5)
    assert sorted(run.given) == [0, 1, 2, 3]
    assert run.result.samples == 2 * NUM_SAMPLES
    assert min(run.count().values()) >= 2


@pytest.mark.slow
def test_newcomers_go_on_without_those_they_learnt_from_and_take_others_in() -> None:
    run = Run("1x2", *joining(2, 0.3), lose(1, 0.9), *joining(2, 1.2))
    assert run.result.lost_workers == (0, 1)
    assert sorted(run.given) == [0, 1, 2]
    assert run.result.samples == 2 * NUM_SAMPLES


def test_a_group_that_is_not_whole_any_more_stays_outside() -> None:
    run = Run("1x2", *joining(2, 0.5), lose(3, 0.55))
    assert str(run.outcomes[2].error) == "worker 3 does not answer, so its group cannot join; start another"
    assert run.result.num_workers == 2
    assert set(run.count().values()) == {2}


def test_who_comes_too_late_hears_of_it() -> None:
    whole = Run("1x2", epochs=1)
    run = Run("1x2", *joining(2, whole.result.wall_s - STEP_S), epochs=1)
    assert {str(run.outcomes[rank].error) for rank in (2, 3)} == {
        "the run ended before this worker's group could join it"
    }
    assert all(torch.equal(run.state[name], whole.state[name]) for name in whole.state)


def test_nobody_joins_a_grid_that_mixes_by_a_given_matrix() -> None:
    run = Run("2x1,mixing=0.5 0.5/0.5 0.5", *joining(1, 0.3), epochs=1)
    assert "no group can join a grid that mixes by a given 2 x 2 matrix; write mixing=all" in str(run.outcomes[2].error)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("spec", "later", "faults"),
    [("1x2", "2x2", joining(2, 0.5)), ("3x1,compress=qsgd:8", "2x1,compress=qsgd:8", [lose(0, 0.3)])],
)
def test_a_checkpoint_is_resumed_by_as_many_groups_as_there_were(
    spec: str, later: str, faults: list[Fault], tmp_path: Path
) -> None:
    whole = Run(spec, *faults, checkpoint=tmp_path, every="30 steps", keep=9)
    path = Folder(tmp_path).all()[-1]
    assert read_manifest(path).policy == GridSetting.parse(later).spec
    resumed = Run(later, checkpoint=tmp_path / "again", resume=str(path))
    assert all(torch.equal(resumed.state[name], whole.state[name]) for name in whole.state)
