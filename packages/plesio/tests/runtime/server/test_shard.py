"""Shards on 1 to 3 servers against the stock optimizer in one process."""

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from plesio.core.errors import ExchangeError
from plesio.policies import UpdateKind
from plesio.policies.compression import parse_compression
from plesio.protocol.effects import ApplyOrder
from plesio.runtime.parameters.codecs import make_codec
from plesio.runtime.parameters.layout import SliceLayout
from plesio.runtime.parameters.optimizer_spec import SUPPORTED_OPTIMIZERS, group_options, optimizer_spec
from plesio.runtime.server.payloads import Payload
from plesio.runtime.server.shard import Shard
from plesio.runtime.worker.exchange.replica import Replica

STEPS = 5


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.turned = nn.Parameter(torch.randn(5, 7).t())
        self.bias = nn.Parameter(torch.randn(6))
        self.norm = nn.BatchNorm1d(6)


def make(name: str, *, groups: bool = False) -> tuple[Model, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Model()
    parameters = list(model.parameters())
    if groups:
        return model, SUPPORTED_OPTIMIZERS[name](
            [{"params": parameters[:2], "lr": 0.01, "weight_decay": 0.1}, {"params": parameters[2:]}], lr=0.05
        )
    return model, SUPPORTED_OPTIMIZERS[name](parameters, lr=0.05)


class Servers:
    """Shards, and the packing that workers and servers do around them."""

    def __init__(self, replica: Replica, *, count: int, update: str = "gradient") -> None:
        self.layout = SliceLayout.of(replica.tensors.exchanged(), num_servers=count)
        self.replica = replica
        spec = optimizer_spec(replica.optimizer) if update == "gradient" else None
        state = {name: tensor for name, tensor, _, _ in replica.tensors.exchanged()}
        self.shards = []
        for number, slices in enumerate(self.layout.servers):
            block = torch.zeros(self.layout.block_bytes(number), dtype=torch.uint8)
            for piece in slices:
                piece.view(block).copy_(state[piece.name].reshape(-1)[piece.start : piece.stop])
            self.shards.append(Shard(slices, block=block, update=update, optimizer=spec))  # type: ignore[arg-type]
        self.version = 0

    def push(
        self, worker: int, *, clock: int, tensors: dict[str, torch.Tensor], groups: list[Any] | None = None
    ) -> None:
        for shard, slices in zip(self.shards, self.layout.servers, strict=True):
            here = [index for index, piece in enumerate(slices) if piece.name in tensors]
            parts = [
                tensors[slices[i].name].reshape(-1)[slices[i].start : slices[i].stop].contiguous().view(torch.uint8)
                for i in here
            ]
            payload = torch.cat([*parts, torch.empty(0, dtype=torch.uint8)])
            shard.push(worker, clock=clock, payloads=[Payload(payload.numpy(), here)], groups=groups)

    def apply(
        self,
        updates: Sequence[tuple[int, int]],
        *,
        weight: float = 1.0,
        num_live: int = 1,
        **options: Any,
    ) -> None:
        self.version += 1
        for shard in self.shards:
            shard.apply(
                ApplyOrder(updates=tuple(updates), version=self.version, weight=weight, num_live=num_live, **options)
            )

    def state(self, *, known: int | None = None) -> dict[str, torch.Tensor]:
        """Name to flat tensor; elements that were not sent are NaN."""
        found = {
            name: torch.full((tensor.numel(),), float("nan")) for name, tensor, _, _ in self.replica.tensors.exchanged()
        }
        for shard, slices in zip(self.shards, self.layout.servers, strict=True):
            [pulled] = shard.pull(known)
            assert pulled.version == self.version
            position = 0
            for index in pulled.present if pulled.present is not None else range(len(slices)):
                piece = slices[index]
                part = pulled.packed()[position : position + piece.num_bytes].clone().view(piece.torch_dtype)
                found[piece.name][piece.start : piece.stop] = part
                position += piece.num_bytes
            assert position == pulled.packed().numel()
        return found


def set_gradients(model: nn.Module, *, seed: int, skip: Sequence[str] = ()) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    gradients = {}
    for name, parameter in model.named_parameters():
        gradient = torch.randn(parameter.shape, generator=generator)
        parameter.grad = None
        if name not in skip:
            parameter.grad = gradient.clone()
            gradients[name] = gradient
    return gradients


def assert_same(servers: Servers, model: nn.Module, *, rtol: float = 1e-6, atol: float = 1e-7) -> None:
    state = servers.state()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(state[name], parameter.detach().reshape(-1), rtol=rtol, atol=atol)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("name", SUPPORTED_OPTIMIZERS)
def test_sharded_optimizer_steps_as_the_stock_one(name: str, count: int):
    model, optimizer = make(name)
    servers = Servers(Replica(*make(name)), count=count)
    for step in range(1, STEPS + 1):
        servers.push(0, clock=step, tensors=set_gradients(model, seed=step))
        optimizer.step()
        servers.apply([(0, step)])
        assert_same(servers, model)


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_parameter_groups_and_their_learning_rates_follow_the_worker(name: str):
    model, optimizer = make(name, groups=True)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    servers = Servers(Replica(*make(name, groups=True)), count=2)
    for step in range(1, STEPS + 1):
        gradients = set_gradients(model, seed=step)
        servers.push(0, clock=step, tensors=gradients, groups=list(group_options(optimizer)))
        optimizer.step()
        scheduler.step()
        servers.apply([(0, step)])
        assert_same(servers, model)


def test_mean_of_several_updates_is_one_step():
    model, optimizer = make("SGD")
    servers = Servers(Replica(*make("SGD")), count=2)
    several = [set_gradients(model, seed=worker) for worker in range(3)]
    for worker, gradients in enumerate(several):
        servers.push(worker, clock=1, tensors=gradients)
    for name, parameter in model.named_parameters():
        parameter.grad = torch.stack([gradients[name] for gradients in several]).mean(0)
    optimizer.step()
    servers.apply([(worker, 1) for worker in range(3)])
    assert_same(servers, model)


@pytest.mark.parametrize("update", ["gradient", "delta"])
def test_in_a_mean_an_update_counts_by_the_workers_whose_work_it_is(update: UpdateKind):
    model, optimizer = make("SGD")
    replica = Replica(*make("SGD"))
    servers = Servers(replica, count=2, update=update)
    rack, alone = (set_gradients(model, seed=worker) for worker in range(2))
    buffers = {name: torch.full_like(buffer, 3.0) for name, buffer in replica.buffers.items()}
    servers.push(0, clock=1, tensors={**rack, **buffers})
    servers.push(3, clock=1, tensors={**alone, **{name: -buffer for name, buffer in buffers.items()}})
    for name, parameter in model.named_parameters():
        parameter.grad = (3 * rack[name] + alone[name]) / 4
        if update == "delta":
            parameter.data.add_(parameter.grad)
    if update == "gradient":
        optimizer.step()
    servers.apply([(0, 1), (3, 1)], num_live=8, counts=[3, 1])
    assert_same(servers, model)
    for name, buffer in replica.buffers.items():
        torch.testing.assert_close(servers.state()[name], buffer + ((3 * 3.0 - 3.0) / 4 - buffer) * 4 / 8)


def test_weight_multiplies_the_learning_rate_of_this_update_alone():
    model, optimizer = make("SGD", groups=True)
    servers = Servers(Replica(*make("SGD", groups=True)), count=2)
    for step, weight in enumerate((0.25, 1.0, 2.0), start=1):
        servers.push(0, clock=step, tensors=set_gradients(model, seed=step))
        rates = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] *= weight
        optimizer.step()
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        servers.apply([(0, step)], weight=weight)
    assert_same(servers, model)


def test_parameter_without_a_gradient_is_left_alone():
    model, optimizer = make("AdamW")
    servers = Servers(Replica(*make("AdamW")), count=3)
    before = model.bias.detach().clone()
    for step in range(1, STEPS + 1):
        servers.push(0, clock=step, tensors=set_gradients(model, seed=step, skip=["bias"]))
        optimizer.step()
        servers.apply([(0, step)])
    assert_same(servers, model)
    assert torch.equal(servers.state()["bias"], before)


@pytest.mark.parametrize("share", [1.0, 0.5], ids=["whole rounds", "halves of a round"])
@pytest.mark.parametrize("name", SUPPORTED_OPTIMIZERS)
def test_a_slice_moves_with_the_updates_that_have_it_and_with_no_later_one(name: str, share: float):
    replica = Replica(*make(name))
    servers = Servers(replica, count=2)
    servers.push(0, clock=1, tensors=set_gradients(replica.model, seed=1))
    servers.apply([(0, 1)], weight=share, share=share)
    before = servers.state()
    for step in (2, 3):
        servers.push(0, clock=step, tensors={"bias": torch.full((6,), float(step))})
        servers.apply([(0, step)], weight=share, share=share)
    after = servers.state()
    moved = {tensor for tensor in before if not torch.equal(before[tensor], after[tensor])}
    assert moved == {"bias"}


def test_deltas_are_averaged_weighted_and_added():
    model, _ = make("SGD")
    servers = Servers(Replica(*make("SGD")), count=2, update="delta")
    start = copy.deepcopy(model.state_dict())
    deltas = [{name: torch.randn_like(p) for name, p in model.named_parameters()} for _ in range(2)]
    for worker, delta in enumerate(deltas):
        servers.push(worker, clock=4, tensors=delta)
    servers.apply([(0, 4), (1, 4)], weight=0.5)
    state = servers.state()
    for name, _ in model.named_parameters():
        expected = start[name] + 0.5 * (deltas[0][name] + deltas[1][name]) / 2
        torch.testing.assert_close(state[name], expected.reshape(-1))


def test_buffers_move_towards_what_updates_carry():
    replica = Replica(*make("SGD"))
    servers = Servers(replica, count=2)
    gradients = set_gradients(replica.model, seed=1)
    seen = {name: torch.full_like(buffer, 3.0) for name, buffer in replica.buffers.items()}
    servers.push(0, clock=1, tensors={**gradients, **seen})
    servers.apply([(0, 1)], num_live=4)
    state = servers.state()
    for name, buffer in replica.buffers.items():
        torch.testing.assert_close(state[name], buffer + (3.0 - buffer) / 4)


def test_pull_brings_only_what_changed_and_no_buffers():
    replica = Replica(*make("SGD"))
    servers = Servers(replica, count=2)
    model = replica.model
    everything = servers.state()
    assert not any(part.isnan().any() for part in everything.values())
    servers.push(0, clock=1, tensors=set_gradients(model, seed=1, skip=["bias"]))
    servers.apply([(0, 1)])
    servers.push(0, clock=2, tensors={"bias": torch.ones(6)})
    servers.apply([(0, 2)])
    since_start, since_first, since_second = (servers.state(known=known) for known in (0, 1, 2))
    assert not since_start["bias"].isnan().any()
    assert not since_start["conv.weight"].isnan().any()
    assert not since_first["bias"].isnan().any()
    assert since_first["conv.weight"].isnan().all()
    assert all(part.isnan().all() for part in since_second.values())
    assert all(since_start[name].isnan().all() for name in replica.buffers)


def test_dropped_update_leaves_no_trace():
    model, _ = make("SGD")
    servers = Servers(Replica(*make("SGD")), count=2)
    servers.push(0, clock=1, tensors=set_gradients(model, seed=1))
    for shard in servers.shards:
        shard.drop(0, clock=1)
        shard.drop(7, clock=1)  # never pushed
    assert_same(servers, model)
    with pytest.raises(KeyError):
        servers.apply([(0, 1)])


def test_snapshot_is_the_state_of_its_moment():
    replica = Replica(*make("SGD"))
    servers = Servers(replica, count=1)
    [shard] = servers.shards
    before = shard.pull(None)[0].packed()
    shard.snapshot(0)
    servers.push(0, clock=1, tensors=set_gradients(replica.model, seed=1))
    servers.apply([(0, 1)])
    assert torch.equal(shard.pull_shared(0).packed(), before)
    assert not torch.equal(shard.pull(None)[0].packed(), before)


def test_payload_that_does_not_fit_its_slices_is_refused():
    servers = Servers(Replica(*make("SGD")), count=1)
    payload = torch.zeros(12, dtype=torch.uint8)
    with pytest.raises(ExchangeError, match="12 bytes"):
        servers.shards[0].push(3, clock=1, payloads=[Payload(payload.numpy())], groups=None)


class Own(torch.optim.SGD):
    pass


def compressed_shard() -> tuple[Shard, SliceLayout]:
    layout = SliceLayout.of([("w", torch.zeros(8), "parameter", 0)], num_servers=1)
    block = torch.zeros(layout.block_bytes(0), dtype=torch.uint8)
    return Shard(layout.servers[0], block=block, update="delta", optimizer=None), layout


@pytest.mark.parametrize(
    ("compressed", "num_bytes", "message"),
    [
        ("qsgd:8", 11, "cannot be read as qsgd:8"),
        ("qsgd:8", 13, "has 13 bytes; its slices make 12"),
        ("topk:0.5", 3, "cannot be read as topk:0.5"),
        ("powersgd:1", 32, "it is added up among workers"),
        ("zip", 4, 'unknown compression "zip"'),
    ],
)
def test_compressed_payload_that_cannot_be_read_is_refused(compressed: str, num_bytes: int, message: str):
    shard, _ = compressed_shard()
    payload = torch.full((num_bytes,), 255, dtype=torch.uint8).numpy()
    with pytest.raises(ExchangeError, match=message):
        shard.push(0, clock=1, payloads=[Payload(payload, None, compressed)], groups=None)


def test_a_compressed_pull_has_what_the_one_before_left_out():
    shard, layout = compressed_shard()
    held = torch.zeros(8)
    assert not shard.pull(None, worker=3, compressed="topk:0.25")[0].compressed, "the first is in full"
    codec = make_codec(parse_compression("topk:0.25"), num_elements=8, seed=0, rank=3)
    delta = torch.arange(1.0, 9.0)
    shard.push(0, clock=1, payloads=[Payload(delta.view(torch.uint8).numpy())], groups=None)
    shard.apply(ApplyOrder(updates=((0, 1),), weight=1.0, version=1, num_live=1))
    for kept in ([0, 0, 0, 0, 0, 0, 7, 8], [0, 0, 0, 0, 5, 6, 7, 8]):
        [pulled] = shard.pull(1, worker=3, compressed="topk:0.25")
        assert pulled.compressed
        codec.add(pulled.packed(), to=held, clock=1)
        assert held.tolist() == kept
    shard.forget(3)
    assert shard.pull(1, worker=3, compressed="topk:0.25")[0].packed().numel() == layout.payload_bytes(0)


@pytest.mark.parametrize("name", ["LBFGS", "Own"])
def test_optimizer_that_servers_cannot_run_is_named_with_those_that_they_can(name: str):
    parameters = [nn.Parameter(torch.zeros(2))]
    optimizer = torch.optim.LBFGS(parameters) if name == "LBFGS" else Own(parameters, lr=0.1)
    with pytest.raises(ExchangeError, match=f"cannot run {name}.*AdamW.*update=delta"):
        optimizer_spec(optimizer)
