"""The contents of a worker's memory, against sizes that are known."""

import copy
import io
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  # as everyone calls it

import plesio
from plesio.core.results import MemorySplit
from plesio.core.trace import read_trace
from plesio.runtime.worker.exchange.replica import Replica
from plesio.runtime.worker.memory import Heap
from plesio.runtime.worker.memory_gauge import MemoryGauge, local_bytes

WIDTH, BATCH, LAYERS = 512, 1024, 4
MODEL_BYTES = LAYERS * 4 * (WIDTH * WIDTH + WIDTH)
LAYER_BYTES = 4 * BATCH * WIDTH


def train(steps: int, *, trace: Path | None = None) -> MemorySplit:
    torch.manual_seed(0)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = nn.Sequential(*layers)
    with plesio.join(model, torch.optim.Adam(model.parameters()), trace=trace) as session:
        for _ in range(steps):
            loss = model(torch.randn(BATCH, WIDTH)).square().mean()
            loss.backward()
            session.step(loss)
    [worker] = session.report().workers
    assert worker.memory is not None
    assert worker.peak_memory_bytes == worker.memory.peak_bytes
    return worker.memory


def test_tensors_are_counted_and_the_parts_add_up_to_the_peak(tmp_path: Path):
    split = train(9, trace=tmp_path)
    assert split.device == "cpu"
    assert split.parameters_bytes == split.gradients_bytes == MODEL_BYTES
    assert 2 * MODEL_BYTES <= split.optimizer_bytes <= 2 * MODEL_BYTES + 100 * LAYERS  # and the numbers of steps
    assert split.activations_bytes is not None
    # each layer keeps what it is given; beside these the output's gradient and what a layer works with
    assert LAYERS * LAYER_BYTES < split.activations_bytes < (LAYERS + 4) * LAYER_BYTES
    assert abs(split.rest_bytes) < 0.1 * split.peak_bytes
    [first, *_] = [
        record.fields for record in read_trace(tmp_path / "trace-0.jsonl").records if record.kind == "memory"
    ]
    assert first["parameters_bytes"] == MODEL_BYTES


def test_what_an_earlier_run_has_freed_does_not_count():
    big = [torch.ones(2**18) for _ in range(200)]
    peak_bytes = train(3).peak_bytes
    big.clear()
    assert train(3).peak_bytes < peak_bytes


class MadeUpMemory:
    """A memory that a test fills."""

    device_type = "cpu"

    def __init__(self) -> None:
        self.live = self.peak = 1000

    def heap(self) -> Heap | None:
        return Heap(self.live, self.live + 50)

    def resident_bytes(self) -> int:
        return self.live

    def shared_bytes(self) -> int:
        return 7

    def peak_bytes(self) -> int:
        return self.peak

    def forget(self) -> None:
        self.peak = self.live


def gauge_of(model: nn.Module, memory: Any) -> MemoryGauge:
    return MemoryGauge(Replica(model, torch.optim.SGD(model.parameters(), lr=0.1)), memory)


def test_evaluation_is_counted_apart():
    memory, model = MadeUpMemory(), nn.Linear(3, 1)
    gauge = gauge_of(model, memory)
    gauge.stepped()
    model(torch.ones(2, 3)).sum().backward()
    memory.live = memory.peak = 1200
    assert gauge.ready() is not None
    gauge.leave_steps()
    memory.peak = 1900
    gauge.return_to_steps()
    memory.peak = 1300
    split = gauge.split()
    assert split is not None
    assert (split.peak_bytes, split.evaluation_bytes) == (1900, 600)
    assert gauge.peak_bytes() == 1900


def test_hooks_are_there_in_measured_steps_alone_and_go_into_no_copy():
    model = nn.Linear(3, 1)
    gauge = gauge_of(model, MadeUpMemory())
    measured = []
    for step in range(1, 18):
        loss = model(torch.ones(2, 3)).sum()
        loss.backward()
        if gauge.ready() is not None or model._forward_hooks:
            measured.append(step)
        gauge.stepped()
        if model._forward_hooks:
            measured.append(step + 1)
            for other in (copy.deepcopy(model), saved(model)):
                other(torch.ones(2, 3)).sum().backward()
    assert sorted(set(measured)) == [2, 3, 4, 8, 16]
    assert not model._forward_hooks


def saved(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    loaded = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    assert isinstance(loaded, nn.Module)
    return loaded


def test_a_model_that_is_compiled_beside_the_session_is_not_warned_of_its_hooks():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with plesio.join(model, optimizer) as session, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        compiled = torch.compile(model, backend="eager")
        for step in range(4):  # it is compiled for each size
            compiled(torch.randn(2 + step, 4)).sum().backward()
            session.step()
    assert [str(one.message) for one in told] == []


def test_an_evaluation_before_the_forward_pass_begins_nothing():
    memory, model = MadeUpMemory(), nn.Linear(3, 1)
    gauge = gauge_of(model, memory)
    gauge.stepped()
    with torch.no_grad():
        memory.live = 5000
        model(torch.ones(2, 3))
        memory.live = 1000
    model(torch.ones(2, 3)).sum().backward()
    found = gauge.ready()
    assert found is not None
    assert found["activations_bytes"] == 0


def test_of_a_model_that_is_not_called_itself_activations_are_not_known():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    gauge = gauge_of(model, MadeUpMemory())
    gauge.stepped()
    model[1](model[0](torch.ones(2, 3))).sum().backward()
    found = gauge.ready()
    assert found is not None
    assert found["activations_bytes"] is None
    assert found["gradients_bytes"] == 4 * (9 + 3 + 3 + 1)


@pytest.mark.parametrize("through", ["func", "checkpoint"])
def test_models_with_hooks_of_their_own_train_as_ever(through: str):
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if through == "func":
                return self.layer(torch.func.vmap(torch.func.grad(lambda one: one.square().sum()))(x))
            out = torch.utils.checkpoint.checkpoint(self.layer, x, use_reentrant=False)
            assert isinstance(out, torch.Tensor)
            return out

    model = Net()
    with plesio.join(model, torch.optim.SGD(model.parameters(), lr=0.1)) as session:
        for _ in range(4):
            loss = F.mse_loss(model(torch.ones(2, 4)), torch.zeros(2, 4))
            loss.backward()
            session.step(loss)
    assert session.report().workers[0].memory is not None


def test_of_a_sharded_tensor_the_local_part_counts():
    class Sharded:
        device = torch.device("cpu")

        def to_local(self) -> torch.Tensor:
            return torch.ones(5)

    sharded: Any = Sharded()
    assert local_bytes([sharded, torch.ones(2, dtype=torch.float64)], device_type="cpu") == 36
    assert local_bytes([torch.ones(2, device="meta")], device_type="cpu") == 0
