"""The sections by which a model is gathered."""

import pytest
import torch
from torch import nn

from plesio.core.errors import TaskError
from plesio.runtime.worker.exchange.sections import Section, sections_of


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Linear(4, 4)
        self.mlp = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.towers = nn.ModuleDict({"a": nn.ModuleList([nn.Linear(4, 4), nn.Tanh()])})
        self.head = nn.Linear(4, 10, bias=False)


def modules(sections: list[Section]) -> list[nn.Module]:
    return [section.module for section in sections]


def test_elements_of_the_outermost_lists_are_blocks_and_the_rest_is_the_roots():
    model = Encoder()
    sections = sections_of(model)
    assert set(modules(sections)) == {*model.layers, model.towers["a"][0], model}
    assert sections[-1].module is model
    assert sections[-1].is_root
    assert [id(p) for p in sections[-1].parameters] == [id(model.embed.weight), id(model.head.weight)]


def test_named_classes_may_be_inside_each_other_and_inner_ones_come_first():
    model = Encoder()
    sections = sections_of(model, ("layer", "sequential"))
    assert len(sections) == 5
    assert modules(sections).index(model.layers[0].mlp) < modules(sections).index(model.layers[0])
    held = {section.module: len(section.parameters) for section in sections}
    assert held[model.layers[0].mlp] == 4
    assert held[model.layers[0]] == 2
    assert sum(held.values()) == len(list(model.parameters()))


def test_a_block_that_shares_a_parameter_with_others_is_no_block():
    model = Encoder()
    model.head.weight = model.embed.weight
    model.layers[0].attention.weight = model.layers[1].attention.weight
    assert set(modules(sections_of(model))) == {model.towers["a"][0], model}


def test_a_part_has_the_rows_of_the_largest():
    weight = nn.Linear(3, 5)
    weight.bias.requires_grad_(False)
    (section,) = sections_of(weight)
    assert section.part_numel(2) == 3 * 3 + 3
    assert section.part_numel(2, trained=True) == 9
    assert section.part_numel(8) == 3 + 1


def test_a_class_that_is_not_there_is_refused():
    with pytest.raises(TaskError, match='no module of the model is a "block"; it has'):
        sections_of(Encoder(), ("block",))
    with pytest.raises(TaskError, match="it has none in it"):
        sections_of(nn.Linear(2, 2), ("block",))


def test_blocks_without_parameters_are_none():
    assert modules(sections_of(model := nn.Sequential(nn.Flatten(), nn.Linear(2, 2)))) == [model[1], model]
    assert torch.is_tensor(model[1].weight)
