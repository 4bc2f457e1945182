"""All workers begin from rank 0's model, and a replica that becomes another one is found out."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable import replicate
from torch.nn.parallel import DistributedDataParallel

import plesio
from plesio.core.errors import TaskError
from plesio.runtime.worker.exchange.replica import Replica
from plesio.runtime.worker.replica_checks import check_beginning
from plesio.testing import Ending, LocalJob
from runtime.replica_programs import Backbone

pytestmark = pytest.mark.timeout(120)

PROGRAMS = Path(__file__).with_name("replica_programs.py")


def run(function: str, **arguments: Any) -> dict[int, Ending]:
    with LocalJob(2) as job:
        return job.run(PROGRAMS, function, timeout_s=100, **arguments)


@pytest.mark.parametrize(
    "policy",
    ["bsp", "asp", *(pytest.param(p, marks=pytest.mark.slow) for p in ("adaptive", "local_sgd:2", "hier:bsp/asp"))],
)
def test_what_no_step_moves_is_rank_0s_too(policy: str):
    model = Backbone(0)
    expected = [t.tolist() for t in (model.backbone.weight, model.backbone.bias, model.table, model.mask)]
    for ending in run("still", policy=policy).values():
        assert ending.error is None, ending.trace
        assert ending.value == {"begun": expected, "ended": (model.table + 1).tolist()}


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("rate", "the optimizer of worker {rank} has lr={own} in group 0, the others lr={others} in group 0"),
        ("class", "the optimizer of worker {rank} has "),
        ("gradient", '"weight" has a gradient already'),
        ("foreign", "group 1 of the optimizer has a parameter of shape (7,) that is not the model's"),
    ],
)
@pytest.mark.parametrize("policy", ["bsp", pytest.param("asp", marks=pytest.mark.slow)])
def test_workers_that_would_train_other_than_one_process_are_refused_at_join(policy: str, what: str, line: str):
    endings = run("unlike", policy=policy, what=what)
    first = {0: line.format(rank=0, own=0.1, others=0.2), 1: line.format(rank=1, own=0.2, others=0.1)}
    for ending in endings.values():
        assert ending.error is not None
        assert any(said in ending.message for said in first.values()), ending.message


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (lambda: nn.Sequential(nn.DataParallel(nn.Linear(2, 1))), "the model is in DataParallel"),
        (lambda: nn.LazyLinear(1), '"weight" has no shape yet'),
        (lambda: nn.Linear(2, 1, device="meta"), '"weight" is on the meta device'),
    ],
)
def test_a_model_that_cannot_be_trained_as_it_is_is_refused(model: Callable[[], nn.Module], line: str):
    made = model()
    with pytest.raises(TaskError, match=line):
        plesio.join(made, torch.optim.SGD(made.parameters(), lr=0.1))


@pytest.fixture
def one_rank() -> Iterator[None]:
    """A process group that the program has made by itself."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("wrapped", ["the wrapper", "a part of it", "the module in it", "replicate"])
@pytest.mark.usefixtures("one_rank")
def test_a_model_whose_gradients_others_exchange_is_refused(wrapped: str):
    model: nn.Module = nn.Linear(2, 1)
    if wrapped == "replicate":
        replicate(model)
    else:
        wrapper = DistributedDataParallel(model)
        model = {"the wrapper": wrapper, "a part of it": nn.Sequential(wrapper)}.get(wrapped, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TaskError, match="exchanges gradients too; pass and call the module itself"):
        check_beginning(Replica(model, optimizer).model, optimizer)


def test_parameters_that_no_optimizer_has_are_named():
    model = nn.Linear(2, 1)
    with plesio.join(model, torch.optim.SGD([model.weight], lr=0.1)) as session:
        loss = model(torch.ones(1, 2)).sum()
        loss.backward()
        session.step(loss)
        [line] = session.report().fallbacks
    assert line.startswith('the optimizer has not "bias", so that stays as it is')
