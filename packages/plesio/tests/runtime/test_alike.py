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
        check_beginning(Replica(model, optimizer).model, optimizer, in_island=False)


def test_parameters_that_no_optimizer_has_are_named():
    model = nn.Linear(2, 1)
    with plesio.join(model, torch.optim.SGD([model.weight], lr=0.1)) as session:
        loss = model(torch.ones(1, 2)).sum()
        loss.backward()
        session.step(loss)
        [line] = session.report().fallbacks
    assert line.startswith('the optimizer has not "bias", so that stays as it is')


@pytest.mark.parametrize(
    ("policy", "what", "line"),
    [
        ("bsp", "gradient", '"bias" differs on workers 0 and 1 after step 1'),
        ("local_sgd:2", "rate", "the learning rate of group 0 is 0.1 on worker 0 and 0.05 on worker 1 after step 4"),
        pytest.param("bsp", "bias", '"bias" differs on workers 0 and 1 after step 4', marks=pytest.mark.slow),
    ],
)
def test_a_replica_that_becomes_another_one_ends_the_run(policy: str, what: str, line: str):
    endings = run("drift", policy=policy, what=what)
    assert any(ending.error == "ExchangeError" and line in ending.message for ending in endings.values()), endings


@pytest.mark.parametrize("alike", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("policy", ["asp", pytest.param("local_sgd:3", marks=pytest.mark.slow)])
def test_rates_that_differ_after_an_evaluation_are_a_line(policy: str, alike: bool):
    endings = run("unlike_rates", policy=policy, alike=alike)
    assert all(ending.error is None for ending in endings.values()), endings
    assert len(endings[0].value) == (not alike), endings
    if not alike:
        assert endings[0].value[0].startswith("after 1 evaluation worker ")


EQUAL = [
    "bsp,compress=topk:0.5", "bsp,compress=powersgd:1", "delayed:1", "local_sgd:2,delay=1", "fsdp",
    "local_sgd:2,compress=topk:0.5", "post_local_sgd:2,warmup=1", "adaptive", "hier:bsp/local_sgd:2",
]  # fmt: skip


@pytest.mark.parametrize("what", ["rounding", "end"])
def test_what_processors_round_differently_and_what_is_changed_at_the_end_is_a_line(what: str):
    for ending in run("drift", policy="bsp", what=what).values():
        assert ending.error is None, ending.trace


@pytest.mark.slow
@pytest.mark.parametrize("policy", EQUAL)
def test_replicas_that_are_to_be_equal_are_so_to_the_bit(policy: str):
    for ending in run("drift", policy=policy, what="nothing").values():
        assert ending.error is None, ending.trace


@pytest.mark.parametrize("policy", ["local_sgd:2", pytest.param("asp", marks=pytest.mark.slow)])
def test_what_is_frozen_in_mid_run_stays_as_it_is(policy: str):
    for ending in run("freeze", policy=policy).values():
        assert ending.error is None, ending.trace


def _step_too(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    optimizer.step()


def _step_another(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    torch.optim.SGD(model.parameters(), lr=0.1).step()


@pytest.mark.parametrize("step", [_step_too, _step_another])
def test_a_step_beside_the_sessions_own_is_refused(step: Callable[[torch.optim.Optimizer, nn.Module], None]):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with plesio.join(model, optimizer) as session:
        loss = model(torch.ones(1, 2)).sum()
        loss.backward()
        with pytest.raises(TaskError, match=r"SGD.step\(\) was called beside session.step\(\)"):
            step(optimizer, model)
        session.step(loss)
    step(optimizer, model)  # nobody minds when the session is over


def test_an_optimizer_in_a_hook_on_gradients_is_refused():
    model = nn.Linear(2, 1)
    own = torch.optim.SGD([model.bias], lr=0.1)
    model.bias.register_post_accumulate_grad_hook(lambda _: own.step())
    with plesio.join(model, torch.optim.SGD(model.parameters(), lr=0.1)):
        loss = model(torch.ones(1, 2)).sum()
        with pytest.raises(TaskError, match="optimizers in hooks on gradients too"):
            loss.backward()


def test_a_session_in_which_nothing_steps_says_so():
    model = nn.Linear(2, 1)
    with plesio.join(model, torch.optim.SGD(model.parameters(), lr=0.1)) as session:
        model(torch.ones(1, 2)).sum().backward()
    assert session.report().fallbacks == (
        "the session has ended without a step: call session.step(loss) where optimizer.step() was",
    )
