"""One stage: which gradient a late backward pass takes, and what else it must not do."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from plesio.core.errors import TaskError
from plesio.policies.grid import Backward, Forward, GridSetting, Update
from plesio.runtime.grid.stage import GridStage


def stage_of(layers: nn.Module, spec: str, *, number: int = 0, **options: Any) -> GridStage:
    setting = GridSetting.parse(spec)
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.5)
    return GridStage(layers, optimizer, setting=setting, number=number, loss=F.mse_loss, **options)


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def gradient_at(weights: nn.Module, x: Tensor, out: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(weights(x), list(weights.parameters()), out))


X = [torch.randn(5, 3, generator=torch.Generator().manual_seed(n)) for n in range(3)]
G = [torch.randn(5, 2, generator=torch.Generator().manual_seed(10 + n)) for n in range(3)]


@pytest.mark.parametrize("weights", ["stash", "recompute"])
def test_the_gradient_is_at_the_weights_of_then_or_of_now(weights: str) -> None:
    stage = stage_of(layers(), f"1x2,weights={weights}")
    then = copy.deepcopy(stage.layers)
    stage.forward(Forward(0, 0), [X[0]], None)
    stage.forward(Forward(1, 0), [X[1]], None)
    stage.backward(Backward(0, 0, 0), [G[0]])
    assert all(map(torch.equal, [p.grad for p in stage.layers.parameters()], gradient_at(then, X[0], G[0])))
    stage.update(Update(1, 1))
    now = copy.deepcopy(stage.layers)
    stage.backward(Backward(1, 0, 1), [G[1]])
    expected = gradient_at(then if weights == "stash" else now, X[1], G[1])
    assert all(map(torch.equal, [p.grad for p in stage.layers.parameters()], expected))
    assert not torch.equal(gradient_at(then, X[1], G[1])[0], gradient_at(now, X[1], G[1])[0])


def test_what_is_sent_back_is_shrunk() -> None:
    plain, shrunk = stage_of(layers(), "1x3", number=1), stage_of(layers(), "1x3,shrink=0.5", number=1)
    for stage in (plain, shrunk):
        stage.forward(Forward(0, 0), [X[0]], None)
    [full], [half] = plain.backward(Backward(0, 0, 0), [G[0]]), shrunk.backward(Backward(0, 0, 0), [G[0]])
    assert torch.equal(0.5 * full, half)
    assert torch.equal(plain.layers[0].weight.grad, shrunk.layers[0].weight.grad)


def test_recomputing_draws_the_same_dropout_and_moves_statistics_once() -> None:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    stage = stage_of(made, "1x2,weights=recompute")
    alone = copy.deepcopy(made)
    torch.manual_seed(7)
    stage.forward(Forward(0, 0), [X[0]], None)
    stage.forward(Forward(1, 0), [X[1]], None)
    drawn = torch.get_rng_state()
    stage.backward(Backward(0, 0, 0), [G[0]])
    assert torch.equal(torch.get_rng_state(), drawn)
    torch.manual_seed(7)
    expected = gradient_at(alone, X[0], G[0])
    assert all(map(torch.equal, [p.grad for p in made.parameters()], expected))
    alone(X[1])
    assert torch.equal(made[1].running_mean, alone[1].running_mean)
    assert int(made[1].num_batches_tracked) == 2


def test_weights_of_versions_that_nothing_needs_are_let_go() -> None:
    stage = stage_of(layers(), "1x2")
    version = 0
    for number in range(8):
        stage.forward(Forward(number, version), [X[number % 3]], None)
        if number >= 2:
            stage.backward(Backward(number - 2, max(0, number - 4), version - max(0, number - 4)), [G[number % 3]])
            version += 1
            stage.update(Update(version, 1))
        assert len(stage.snapshots) <= 3
        assert len(stage.kept) <= 3


def test_several_tensors_and_integers_between_stages() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))

        def forward(self, given: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            numbers, mask = given
            return numbers * self.scale, mask

    stage = stage_of(Two(), "1x3", number=1)
    mask = torch.tensor([1, 0])
    outputs, _ = stage.forward(Forward(0, 0), [torch.ones(3, 2), mask], None)
    assert torch.equal(outputs[1], mask)
    [sent] = stage.backward(Backward(0, 0, 0), [torch.full((3, 2), 2.0)])
    assert torch.equal(sent, torch.full((3, 2), 2.0))


def test_a_gradient_is_clipped_by_the_stage() -> None:
    stage = stage_of(layers(), "1x1", clip=1e-3)
    before = [p.detach().clone() for p in stage.layers.parameters()]
    stage.forward(Forward(0, 0), [X[0]], 10 * G[0])
    stage.backward(Backward(0, 0, 0), [])
    stage.update(Update(1, 1))
    moved = (
        sum(float((p.detach() - b).square().sum()) for p, b in zip(stage.layers.parameters(), before, strict=True))
        ** 0.5
    )
    assert moved == pytest.approx(0.5e-3, rel=1e-3)


def test_a_loss_that_couples_samples_is_refused_where_it_must_be_a_mean() -> None:
    def contrastive(output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output @ output.T, torch.arange(len(output)))

    setting = GridSetting.parse("2x1")
    made = layers()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    stage = GridStage(made, optimizer, setting=setting, number=0, loss=contrastive)
    with pytest.raises(TaskError, match="the loss is not the mean over a micro-batch's samples"):
        stage.forward(Forward(0, 0), [X[0]], torch.zeros(5))
    alone = GridStage(layers(), optimizer, setting=GridSetting(), number=0, loss=contrastive)
    alone.forward(Forward(0, 0), [X[0]], torch.zeros(5))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_recomputing_within_a_window_gives_the_same_gradient_on_the_last_stage(schedule: str) -> None:
    found = []
    for weights in ("stash", "recompute"):
        stage = stage_of(layers(), f"1x2,schedule={schedule},micro_batches=2,weights={weights}", number=1)
        for number in range(2):
            stage.forward(Forward(number, 0), [X[number]], G[number])
        for number in range(2):
            stage.backward(Backward(number, 0, 0), [])
        found.append([p.grad for p in stage.layers.parameters()])
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize(("weights", "number"), [("stash", 1), ("recompute", 1), ("recompute", 0)])
def test_a_stage_that_changes_its_input_in_place_is_refused(weights: str, number: int) -> None:
    layers = nn.Sequential(nn.Dropout(0.5, inplace=True), nn.Linear(3, 2))
    stage = stage_of(layers, f"1x3,weights={weights}", number=number)
    with pytest.raises(TaskError, match="begins with Dropout changes what it is given in place"):
        stage.forward(Forward(0, 0), [X[0].clone()], None)
