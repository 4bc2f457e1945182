"""Islands: workers of several ranks, each of which holds and exchanges its own part of the replica."""

import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F  # noqa: N812  # as everyone calls it

from plesio.core.errors import ConfigError, TaskError
from plesio.runtime import island as island_module
from plesio.runtime.parameters import TensorBlock
from plesio.runtime.worker.environment import WorkerPlace
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
    ("fsdp", "diloco:3,exchange=store,quorum=2", "AdamW"),
    ("fsdp", "local_sgd:3", "AdamW"),
    ("tensor", "diloco:3", "momentum"),
]


def by_hand(policy: str, optimizer: str) -> Mapping[str, list[float]]:
    """Train as the islands do, in one process: a replica each, whose gradients or parameters are averaged."""
    models = [programs.make_model() for _ in range(programs.NUM_ISLANDS)]
    optimizers = [programs.OPTIMIZERS[optimizer](model) for model in models]
    base = [p.detach().clone() for p in models[0].parameters()]
    outer = torch.optim.SGD(base, lr=0.7, momentum=0.9, nesterov=True)
    for step in range(programs.NUM_STEPS):
        for worker, model in enumerate(models):
            x, y = programs.batch(step, worker)
            F.cross_entropy(model(x), y).backward()
        replicas = [list(model.parameters()) for model in models]
        if policy.startswith("bsp"):
            for alike in zip(*replicas, strict=True):
                if alike[0].grad is not None:
                    mean = torch.stack([p.grad for p in alike]).mean(dim=0)
                    for p in alike:
                        p.grad = mean.clone()
        for one in optimizers:
            one.step()
            one.zero_grad()
        if policy.startswith("bsp") or (step + 1) % 3:
            continue
        with torch.no_grad():
            for start, alike in zip(base, zip(*replicas, strict=True), strict=True):
                start.grad = -torch.stack([p - start for p in alike]).mean(dim=0)
                if policy.startswith("local_sgd"):
                    start.sub_(start.grad)
            if policy.startswith("diloco"):
                outer.step()
            for start, alike in zip(base, zip(*replicas, strict=True), strict=True):
                for p in alike:
                    p.copy_(start)
    return programs.whole(models[0])


@pytest.fixture(scope="module")
def rounds() -> list[list[dict[str, Any]]]:
    """By rank and run, what ranks of two islands of two have trained; all in one job, session after session."""
    with LocalJob(4) as job:
        return values_of(job.run(PROGRAMS, "train_all", timeout_s=LIMIT_S, sizes="2", runs=ROUNDS))


@pytest.mark.parametrize("number", range(len(ROUNDS)), ids=["-".join(run) for run in ROUNDS])
def test_islands_train_what_one_process_trains(rounds: list[list[dict[str, Any]]], number: int):
    _, policy, optimizer = ROUNDS[number]
    expected = by_hand(policy, optimizer)
    for rank in (0, 1):  # the leader of island 0 and its follower have the final parameters
        found = rounds[rank][number]["whole"]
        assert found.keys() == expected.keys()
        for name in expected:
            torch.testing.assert_close(torch.tensor(found[name]), torch.tensor(expected[name]), rtol=1e-4, atol=1e-6)


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


@pytest.mark.parametrize(
    ("what", "sizes", "line"),
    [
        ("bsp", "2", "bsp cannot train islands"),
        ("local_sgd:4", "2,1", "islands of 2, 1 ranks cannot average their parts"),
        ("partial", "2", "of which islands exchange no parts"),
    ],
)
def test_islands_refuse_what_they_cannot_do(what: str, sizes: str, line: str):
    with LocalJob(sum(map(int, sizes.split(",")))) as job:
        found = values_of(job.run(PROGRAMS, "refused", timeout_s=LIMIT_S, sizes=sizes, what=what))
    assert all(line in one for one in found), found


@pytest.mark.slow
def test_a_lost_rank_takes_its_island_with_it_and_no_other():
    with LocalJob(4) as job:
        endings = job.run(PROGRAMS, "lose_one", timeout_s=LIMIT_S, policy="asp")
    assert endings[3].exit_status == -9
    assert endings[2].error == "WorkerLostError", endings[2]
    assert [endings[rank].value for rank in (0, 1)] == [(0, (1,), 160)] * 2


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
