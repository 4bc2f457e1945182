"""Islands: workers of several ranks, each of which holds and exchanges its own part of the replica."""

import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard
from torch.nn import functional as F  # noqa: N812  # as everyone calls it
from torch.testing._internal.distributed.fake_pg import FakeStore

from plesio.core.errors import ConfigError, TaskError
from plesio.runtime import island as island_module
from plesio.runtime.checkpoints import tensors
from plesio.runtime.parameters import TensorBlock
from plesio.runtime.worker.environment import WorkerPlace
from plesio.runtime.worker.exchange import local_part, mean_moments
from plesio.runtime.worker.exchange.replica import Replica
from plesio.testing import LocalJob
from runtime import island_programs as programs
from support.processes import values_of

pytestmark = pytest.mark.timeout(240)

PROGRAMS = Path(programs.__file__)
LIMIT_S = 200.0
ROUNDS = [
    ("fsdp", "bsp,exchange=store", "momentum"),
    ("ddp|tensor", "local_sgd:3,exchange=store", "AdamW"),
    ("fsdp-scaled", "diloco:3,exchange=store,quorum=2", "AdamW"),
    ("fsdp", "local_sgd:3", "AdamW"),
    ("tensor", "diloco:3,merge=rda", "momentum"),
    ("fsdp-scaled", "local_sgd:3,moments=mean", "AdamW"),
    ("tensor", "local_sgd:3,compress=topk:0.5+chunks:2", "AdamW"),
    ("ddp|tensor", "diloco:3,exchange=store,quorum=2,compress=topk:0.5+chunks:2", "AdamW"),
    ("fsdp|tensor", "diloco:3,exchange=store,quorum=2,merge=rda,compress=qsgd:8", "momentum"),
    ("fsdp", "diloco:3,compress=qsgd:8", "momentum"),
]


class ByHand:
    """The training of the islands in one process: a replica each, whose gradients or deltas are averaged."""

    def __init__(self, way: str, policy: str, optimizer: str) -> None:
        self.policy, self.scaled = policy, way.endswith("scaled")
        self.models = [programs.make_model(policy) for _ in range(programs.NUM_ISLANDS)]
        self.replicas = [[p for p in model.parameters() if p.requires_grad] for model in self.models]
        self.optimizers = [programs.OPTIMIZERS[optimizer](model) for model in self.models]
        self.moments = []
        if "moments=mean" in policy:
            self.moments = [mean_moments.MeanMoments(one, num_replicas=programs.NUM_ISLANDS) for one in self.optimizers]
        self.shared = [p.detach().clone() for p in self.replicas[0]]
        self.held = [[p.clone() for p in self.shared] for _ in self.models]
        self.kept_back = [[torch.zeros_like(p) for p in self.shared] for _ in self.models]
        self.outer = torch.optim.SGD(self.shared, lr=0.7, momentum=0.9, nesterov=True)

    def train(self) -> Mapping[str, list[float]]:
        for step in range(programs.NUM_STEPS):
            for worker, model in enumerate(self.models):
                x, y = programs.batch(step, worker, features=model[0].in_features)
                F.cross_entropy(model(x), y).backward()
            if self.policy.startswith("bsp"):
                for alike in zip(*self.replicas, strict=True):
                    mean = torch.stack([p.grad for p in alike]).mean(dim=0)
                    for p in alike:
                        p.grad = mean.clone()
            for worker, one in enumerate(self.optimizers):
                if not (self.scaled and (step, worker) == programs.OVERFLOW):
                    one.step()
                one.zero_grad()
            if not self.policy.startswith("bsp") and (step + 1) % 3 == 0:
                self.meet()
        with torch.no_grad():
            for start, left in zip(self.shared, zip(*self.kept_back, strict=True), strict=True):
                start.add_(torch.stack(left).mean(dim=0), alpha=0.7 if self.policy.startswith("diloco") else 1.0)
            for p, start in zip(self.replicas[0], self.shared, strict=True):
                if not self.policy.startswith("bsp"):
                    p.copy_(start)
        return programs.whole(self.models[0])

    @torch.no_grad()
    def meet(self) -> None:
        for moments in self.moments:
            moments.begun()
        for number, start in enumerate(self.shared):
            deltas = []
            for replica, held, kept_back in zip(self.replicas, self.held, self.kept_back, strict=True):
                delta = replica[number] - held[number] + kept_back[number]
                deltas.append(self.sent(delta))
                kept_back[number] = delta - deltas[-1]
            mean = torch.stack(deltas).mean(dim=0)
            if "rda" in self.policy:
                length = torch.stack([delta.norm() for delta in deltas]).mean()
                mean = torch.stack([delta / delta.norm() for delta in deltas]).mean(dim=0)
                mean *= length / mean.norm()
            for moments, replica in zip(self.moments, self.replicas, strict=False):
                moments.met({replica[number]: mean.clone()})
            start.grad = -mean
            if self.policy.startswith("local_sgd"):
                start.add_(mean)
        if self.policy.startswith("diloco"):
            self.outer.step()
        for replica, held in zip(self.replicas, self.held, strict=True):
            for p, have, start in zip(replica, held, self.shared, strict=True):
                have.add_(self.sent(start - have) if "exchange=store" in self.policy else start - have)
                p.copy_(have)

    def sent(self, update: torch.Tensor) -> torch.Tensor:
        """Return what is sent of an update: all, or the larger of each two numbers."""
        if "topk" not in self.policy:
            return update
        pairs = update.reshape(-1, 2)
        return torch.where(pairs.abs() >= pairs.abs().amax(dim=1, keepdim=True), pairs, 0.0).view_as(update)


@pytest.fixture(scope="module")
def rounds() -> list[list[dict[str, Any]]]:
    """By rank and run, what ranks of two islands of two have trained; all in one job, session after session."""
    with LocalJob(4) as job:
        return values_of(job.run(PROGRAMS, "train_all", timeout_s=LIMIT_S, sizes="2", runs=ROUNDS))


@pytest.mark.parametrize("number", range(len(ROUNDS)), ids=["-".join(run) for run in ROUNDS])
def test_islands_train_what_one_process_trains(rounds: list[list[dict[str, Any]]], number: int):
    expected = ByHand(*ROUNDS[number]).train()
    atol = 1e-2 if "qsgd" in ROUNDS[number][1] else 1e-6  # the reference does not round
    for rank in (0, 1):  # the leader of island 0 and its follower have the final parameters
        found = rounds[rank][number]["whole"]
        assert found.keys() == expected.keys()
        for name in expected:
            torch.testing.assert_close(torch.tensor(found[name]), torch.tensor(expected[name]), rtol=1e-4, atol=atol)


def test_a_gradient_that_overflows_on_one_rank_lowers_the_scale_of_its_island_alone(rounds: list[list[dict[str, Any]]]):
    for number in (index for index, (way, *_) in enumerate(ROUNDS) if way.endswith("scaled")):
        assert [ranks[number]["scale"] for ranks in rounds] == [1024.0, 1024.0, 512.0, 512.0]


def test_an_island_counts_as_one_worker(rounds: list[list[dict[str, Any]]]):
    for run in zip(*rounds, strict=True):
        assert [one["rank"] for one in run] == [0, 0, 1, 1]
        assert {one["steps"] for one in run} == {programs.NUM_STEPS * programs.NUM_ISLANDS}
        assert {one["samples"] for one in run} == {programs.NUM_STEPS * programs.NUM_ISLANDS * programs.BATCH}
        assert run[0]["metric"] == run[1]["metric"] is not None
        assert len({one["sha256"] for one in run}) == 1


VARIABLES = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "LOCAL_RANK": "3"}


@pytest.mark.parametrize(
    ("sizes", "on_host", "line"),
    [
        ("3", 8, "PLESIO_ISLAND 3: 8 ranks do not divide into islands of 3"),
        ("16", 8, "PLESIO_ISLAND 16: .* 16 ranks, and there are 8; start 16, .* or write 1, 2, 4 or 8$"),
        ("2,1", 8, "PLESIO_ISLAND 2,1: these are 3 ranks, and there are 8"),
        ("two", 8, "PLESIO_ISLAND two: write the ranks of an island"),
        ("0", 8, "PLESIO_ISLAND 0: write the ranks of an island"),
        ("4,2,2", 4, "islands of unequal sizes are for one host"),
        ("2", 5, "hosts of 5 ranks do not divide into islands of that"),
    ],
)
def test_ranks_that_make_no_islands_are_refused(sizes: str, on_host: int, line: str):
    with pytest.raises(ConfigError, match=line):
        WorkerPlace.from_environment({**VARIABLES, "PLESIO_ISLAND": sizes, "LOCAL_WORLD_SIZE": str(on_host)})


@pytest.mark.parametrize(
    ("sizes", "on_host", "worker", "rank", "hosts"),
    [("2", 8, 1, 1, 1), ("2", 4, 1, 1, 2), ("8", 4, 0, 3, 1), ("4", 4, 0, 3, 2), ("1,3,4", 8, 1, 2, 1)],
)
def test_a_process_finds_its_island(sizes: str, on_host: int, worker: int, rank: int, hosts: int):
    place = WorkerPlace.from_environment({**VARIABLES, "PLESIO_ISLAND": sizes, "LOCAL_WORLD_SIZE": str(on_host)})
    assert place is not None
    assert place.island is not None
    assert (place.rank, place.island.rank, place.num_hosts) == (worker, rank, hosts)
    assert not place.leads


def test_a_script_that_does_not_ask_for_its_island_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(island_module, "_made", [])
    place = WorkerPlace.from_environment({**VARIABLES, "PLESIO_ISLAND": "2", "LOCAL_WORLD_SIZE": "8"})
    with pytest.raises(ConfigError, match=r"call it before the model is made"):
        island_module.asked_for(place)


class HeardIsland:
    """Two ranks that look at their gradients one after the other, each with those of the first."""

    size = 2

    def __init__(self) -> None:
        self._said: list[torch.Tensor] = []

    def all_texts(self, text: str) -> list[str]:
        return [text, text]

    def gathered(self, values: torch.Tensor) -> list[torch.Tensor]:
        self._said.append(values)
        return [self._said[-1 - (len(self._said) + 1) % 2], values]


def test_ranks_that_take_slices_of_a_batch_without_ddp_are_refused_at_any_step():
    island: Any = HeardIsland()
    models = [programs.make_model() for _ in range(2)]
    replicas = [Replica(model, programs.OPTIMIZERS["momentum"](model), island=island) for model in models]

    def look(rank: int, step: int, cut: slice) -> bool:
        x, y = (one[cut] for one in programs.batch(step, 0))
        F.cross_entropy(models[rank](x), y).backward()
        return replicas[rank].gradients_finite()

    assert look(0, 0, slice(None))
    assert look(1, 0, slice(None))
    assert look(0, 1, slice(0, None, 2))
    with pytest.raises(TaskError, match=r'hold "\S+" alike and have different gradients .* whole batch'):
        look(1, 1, slice(1, None, 2))


def test_a_forward_pass_is_of_the_parameters_that_were_set_last():
    """FSDP2 leaves parameters whole that a forward pass without a backward one has gathered."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    try:
        island: Any = HeardIsland()
        model = programs.make_model()
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        replica = Replica(model, programs.OPTIMIZERS["AdamW"](model), island=island)
        x, y = programs.batch(0, 0)
        F.cross_entropy(model(x), y).backward()
        replica.optimizer.step()
        with torch.no_grad():
            own = model(x)
            with replica.loaded({name: torch.zeros_like(value) for name, value in replica.state().items()}):
                assert model(x).count_nonzero() == 0
            assert torch.equal(model(x), own)
        assert tensors.state_of(replica)["optimizer"]["state"].keys() == replica.parameters.keys()
    finally:
        dist.destroy_process_group()


def test_a_scaler_beside_parameters_of_two_kinds_is_refused():
    island: Any = HeardIsland()
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        model, mesh = programs.make_model(), init_device_mesh("cpu", (2,))
        placed = distribute_tensor(model[0].weight.detach(), mesh, [Shard(0)], src_data_rank=None)
        model[0].weight = torch.nn.Parameter(placed)
        scaler = torch.amp.GradScaler("cpu")
        with pytest.raises(TaskError, match=r'"0.bias" is an ordinary tensor beside DTensors'):
            Replica(model, programs.OPTIMIZERS["momentum"](model), scaler=scaler, island=island)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("what", "sizes", "line"),
    [
        ("bsp", "2", "bsp cannot train islands"),
        ("diloco:4,compress=powersgd:2", "2", "powersgd:2 factors whole matrices"),
        ("local_sgd:4", "2,1", "islands of 2, 1 ranks cannot average their parts"),
        ("partial", "2", "of which islands exchange no parts"),
    ],
)
def test_islands_refuse_what_they_cannot_do(what: str, sizes: str, line: str):
    with LocalJob(sum(map(int, sizes.split(",")))) as job:
        found = values_of(job.run(PROGRAMS, "refused", timeout_s=LIMIT_S, sizes=sizes, what=what))
    assert all(line in one for one in found), found


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "rank"), [("asp", 3), ("local_sgd:2", 3), ("diloco:2,merge=rda", 2)])
def test_a_lost_rank_takes_its_island_with_it_and_the_others_train_as_workers_do(policy: str, rank: int):
    with LocalJob(6) as job:
        endings = job.run(PROGRAMS, "lose_one", timeout_s=LIMIT_S, policy=policy, size=2, lost=rank - 2)
    assert endings[rank].exit_status == -9
    assert endings[5 - rank].error == "WorkerLostError", endings[5 - rank]
    others = [endings[one].value for one in (0, 1, 4, 5)]
    assert [one[:3] for one in others] == [(0, (1,), 160)] * 2 + [(2, (1,), 160)] * 2
    if policy == "asp":
        return  # whose order of updates is another in each run
    with LocalJob(3) as job:
        alone = job.run(PROGRAMS, "lose_one", timeout_s=LIMIT_S, policy=policy, size=1, lost=0)
    assert alone[1].exit_status == -9
    for values in others:
        for name, expected in alone[0].value[3].items():
            torch.testing.assert_close(torch.tensor(values[3][name]), torch.tensor(expected), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_without_elastic_a_lost_rank_ends_a_collective_and_the_error_names_its_island():
    with LocalJob(4) as job:
        endings = job.run(PROGRAMS, "lose_one", timeout_s=LIMIT_S, policy="local_sgd:2", size=2, lost=1, elastic=False)
    assert endings[3].exit_status == -9
    assert endings[0].message.startswith("island 1 (ranks 2 and 3) was lost, and a collective"), endings[0]
    assert {endings[rank].error for rank in range(3)} == {"WorkerLostError"}


@st.composite
def boxes(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    shape = draw(st.lists(st.integers(1, 5), max_size=4))
    ends = [sorted(draw(st.tuples(st.integers(0, size), st.integers(0, size)))) for size in shape]
    return shape, [begin for begin, _ in ends], [end - begin for begin, end in ends]


@given(box=boxes(), data=st.data())
def test_a_block_is_a_range_of_its_own_tensor_in_each_slice(box: tuple[list[int], ...], data: st.DataObject):
    shape, offsets, sizes = box
    block = TensorBlock.of_box(shape, offsets=offsets, sizes=sizes)
    cut = [size != whole for size, whole in zip(sizes, shape, strict=True)]
    if block is None:
        assert sum(cut) > 1, "a part of one dimension is a block"
        return
    tensor = torch.arange(math.prod(shape)).reshape(shape)
    own = tensor[tuple(slice(begin, begin + size) for begin, size in zip(offsets, sizes, strict=True))].reshape(-1)
    ends = sorted(data.draw(st.lists(st.integers(0, tensor.numel()), max_size=3)))
    for start, stop in itertools.pairwise([0, *ends, tensor.numel()]):
        first, last = block.within(start, stop)
        views = [view.reshape(-1) for view in block.views(tensor.reshape(-1)[start:stop], start=start, stop=stop)]
        assert torch.cat([own[:0], *views]).tolist() == own[first:last].tolist()
    count = data.draw(st.integers(1, 4))
    shares = [block.share(number, of=count) for number in range(count)]
    assert sum(share.numel for share in shares) == block.numel == own.numel()


@given(rows=st.integers(0, 20), data_ranks=st.integers(1, 4), tensor_ranks=st.integers(1, 4))
def test_fsdp_over_a_column_wise_layer_cuts_what_each_of_its_ranks_has(rows: int, data_ranks: int, tensor_ranks: int):
    def cut(indices: torch.Tensor, number: int, *, of: int) -> torch.Tensor:
        return [*indices.chunk(of), *[indices[:0]] * of][number]

    placements = [_StridedShard(0, split_factor=tensor_ranks), Shard(0)]
    for at in itertools.product(range(data_ranks), range(tensor_ranks)):
        held = cut(cut(torch.arange(rows), at[1], of=tensor_ranks), at[0], of=data_ranks).tolist()
        box = local_part.box_of((rows, 3), mesh=(data_ranks, tensor_ranks), at=at, placements=placements)
        if rows % (data_ranks * tensor_ranks):
            assert box is None
            continue
        assert box is not None
        (first, _), sizes = box
        assert (list(range(first, first + sizes[0])), sizes[1]) == (held, 3)
    unknown = [_StridedShard(0, split_factor=tensor_ranks + 1), Shard(0)]
    assert local_part.box_of((rows, 3), mesh=(data_ranks, tensor_ranks), at=at, placements=unknown) is None


def test_fsdp_over_tensor_parallelism_trains_beside_a_worker_of_one_process():
    with LocalJob(5) as job:
        run = ("two dimensions", "diloco:3,exchange=store,quorum=2,compress=topk:0.5+chunks:2", "AdamW")
        found = values_of(job.run(PROGRAMS, "train_all", timeout_s=LIMIT_S, sizes="4,1", runs=[run]))
    for name, expected in ByHand(*run).train().items():
        for rank in range(4):
            torch.testing.assert_close(torch.tensor(found[rank][0]["whole"][name]), torch.tensor(expected))
