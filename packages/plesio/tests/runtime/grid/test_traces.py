"""Traces of a grid's stages: how stale gradients are, what is kept for them, and what memory holds."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)
from torch.utils.data import DataLoader

import plesio
from plesio.core.trace import TraceRecord, read_trace
from plesio.policies.grid import Backward, Forward, GridSetting
from plesio.runtime.grid.stage import GridStage, Held
from runtime.grid.programs import MICRO_BATCH, data, in_virtual_world, network, optimizer


def events(folder: Path, rank: int, kind: str) -> list[TraceRecord]:
    return [record for record in read_trace(folder / f"trace-{rank}.jsonl").records if record.kind == kind]


@pytest.mark.parametrize("spec", ["1x3", "1x3,delay=1", "1x3,weights=recompute", "1x2,schedule=gpipe,micro_batches=4"])
def test_each_stage_says_how_stale_its_gradients_are(spec: str, tmp_path: Path) -> None:
    setting = GridSetting.parse(spec)
    in_virtual_world(setting, trace=tmp_path)
    for stage, delay in enumerate(setting.delays):
        passes = events(tmp_path, stage, "backward")
        assert [one.fields["micro_batch"] for one in passes] == list(range(len(passes)))
        expected = 0 if setting.flushes else delay
        assert [one.fields["staleness"] for one in passes[delay + 1 : -delay or None]][:20] == [expected] * 20


@pytest.mark.parametrize(("spec", "copies"), [("1x3", True), ("1x3,weights=recompute", False)])
def test_a_stage_keeps_no_more_than_its_delay_and_one(spec: str, copies: bool, tmp_path: Path) -> None:
    setting = GridSetting.parse(spec)
    in_virtual_world(setting, trace=tmp_path)
    for stage, delay in enumerate(setting.delays):
        most = events(tmp_path, stage, "held")[-1].fields
        assert most["micro_batches"] == delay + 1
        assert most["copies"] == (delay + 1 if copies and delay else 0)


def test_held_bytes_are_those_of_inputs_outputs_and_copies(tmp_path: Path) -> None:
    in_virtual_world(GridSetting(stages=2), trace=tmp_path)
    kept = Held(**events(tmp_path, 0, "held")[-1].fields)
    of_a_micro_batch = 4 * MICRO_BATCH * (8 + 16)  # a row has 8 numbers, and the stage hands on 16
    first = sum(weight.nbytes for weight in network()[:3].parameters())
    assert (kept.inputs_bytes, kept.copies_bytes) == (3 * of_a_micro_batch, 3 * first)


def test_a_grid_of_a_process_measures_its_memory() -> None:
    model = network()
    with plesio.grid(model, optimizer, F.cross_entropy) as grid:
        for x, y in grid.shard(DataLoader(data(), batch_size=MICRO_BATCH, shuffle=True)):
            grid.step(x, y)
        grid.evaluate(lambda: float(model(torch.ones(1, 8)).sum()))
    memory = grid.report().workers[0].memory
    assert memory is not None
    assert memory.parameters_bytes == memory.gradients_bytes == sum(weight.nbytes for weight in model.parameters())
    assert grid.report().workers[0].peak_memory_bytes >= memory.before_bytes


@pytest.mark.parametrize("number", [0, 1])
def test_only_later_stages_take_gradients_of_what_they_are_given(number: int) -> None:
    layers = network()[:3]
    made = optimizer(layers.parameters())
    stage = GridStage(layers, made, setting=GridSetting(stages=3), number=number, loss=F.cross_entropy)
    outputs, _ = stage.forward(Forward(0, 0), [torch.ones(4, 8)], None)
    gradients = stage.backward(Backward(0, 0, 0), [torch.ones_like(output) for output in outputs])
    assert [gradient.shape for gradient in gradients] == [(4, 8)] * number
