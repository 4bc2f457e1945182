"""Cuts of networks."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from plesio.core.errors import ConfigError, TaskError
from plesio.runtime.grid.cutting import NetworkCut, balanced, layer_bytes, layer_seconds, layers_of, parts


def largest(costs: list[float], ends: tuple[int, ...]) -> float:
    edges = (0, *ends, len(costs))
    return max(sum(costs[begin:end]) for begin, end in itertools.pairwise(edges))


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=8), st.integers(1, 4))
def test_no_cut_is_better(costs: list[float], num_stages: int) -> None:
    if len(costs) < num_stages:
        with pytest.raises(ConfigError, match="write fewer stages"):
            balanced(costs, num_stages)
        return
    best = min(largest(costs, ends) for ends in itertools.combinations(range(1, len(costs)), num_stages - 1))
    found = balanced(costs, num_stages)
    assert len(found) == num_stages - 1
    assert largest(costs, found) == pytest.approx(best)


def test_measuring_leaves_no_trace() -> None:
    layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    before = {name: tensor.clone() for name, tensor in layers.state_dict().items()}
    state = torch.get_rng_state()
    seconds = layer_seconds(layers, torch.randn(6, 4, generator=torch.Generator().manual_seed(0)))
    assert len(seconds) == 4
    assert min(seconds) > 0
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in layers.state_dict().items())
    assert all(parameter.grad is None for parameter in layers.parameters())


def test_layers_that_work_in_place_are_measured() -> None:
    example = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    before = example.clone()
    layers = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 2))
    assert min(layer_seconds(layers, example)) > 0
    assert torch.equal(example, before)


def test_bytes_are_of_parameters() -> None:
    assert layer_bytes(nn.Sequential(nn.Linear(4, 8), nn.ReLU())) == [4 * (32 + 8), 0.0]


def test_a_list_is_cut_where_it_says() -> None:
    layers, cut = layers_of([nn.Linear(2, 2), nn.Sequential(nn.Tanh(), nn.Linear(2, 1))])
    assert cut == NetworkCut((1,))
    assert [len(stage) for stage in parts(layers, cut)] == [1, 1]


def test_names_are_those_of_the_whole() -> None:
    layers = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1))
    names = [name for stage in parts(layers, NetworkCut((1,))) for name, _ in stage.named_parameters()]
    assert names == [name for name, _ in layers.named_parameters()]


@pytest.mark.parametrize("ends", [(0,), (3,), (2, 1), (1, 1)])
def test_cuts_that_do_not_fit_are_refused(ends: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="write ascending places between 1 and 2"):
        parts(nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)), NetworkCut(ends))


def test_stages_that_share_weights_are_refused() -> None:
    shared = nn.Linear(2, 2)
    with pytest.raises(TaskError, match=r"stages 0 and 1 share weights \(0.weight is 2.weight\)"):
        parts(nn.Sequential(shared, nn.Tanh(), shared), NetworkCut((2,)))


@pytest.mark.parametrize("stages", [nn.Linear(2, 2), [], [nn.Linear(2, 2), 3]])
def test_what_is_no_chain_is_refused(stages: object) -> None:
    with pytest.raises(TaskError):
        layers_of(stages)  # type: ignore[arg-type]


def test_layers_that_do_not_chain_are_named() -> None:
    with pytest.raises(TaskError, match=r"do not chain: layer 1 \(Linear\) cannot take \(6, 8\)"):
        layer_seconds(nn.Sequential(nn.Linear(4, 8), nn.Linear(4, 2)), torch.zeros(6, 4))
