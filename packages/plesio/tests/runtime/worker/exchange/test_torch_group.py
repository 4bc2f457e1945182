"""A group that is called off raises from every operation that begins afterwards: nothing else would wake its caller."""

import contextlib
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import plesio.runtime.worker.exchange.group as group_module
from plesio.runtime.transport import TcpTraffic
from plesio.runtime.worker.exchange.group import FORGOTTEN_S, CutOffError, TorchGroup
from support.processes import on_processes

OPERATIONS: dict[str, Callable[[TorchGroup], object]] = {
    "broadcast": lambda group: group.broadcast(torch.zeros(1)),
    "all_reduce": lambda group: group.all_reduce(torch.zeros(1)).wait(),
    "all_gather": lambda group: group.all_gather(torch.zeros(1)).wait(),
    "all_to_all": lambda group: group.all_to_all(torch.zeros(1, 1)).wait(),
    "split": lambda group: group.split([[0]]),
}
PAIRED: dict[str, Callable[[TorchGroup], object]] = OPERATIONS | {
    "all_to_all": lambda group: group.all_to_all(torch.zeros(2, 1)).wait(),
    "split": lambda group: group.split([[0, 1]]),
    "assured": lambda group: group.assured(begun(group).get_future(), ended).wait(),
}


def begun(group: TorchGroup, tensor: torch.Tensor | None = None) -> dist.Work:
    tensor = torch.zeros(1) if tensor is None else tensor
    work = dist.all_reduce(tensor, group=group.process_group, async_op=True)
    assert work is not None
    return work


def ended(done: "torch.futures.Future[object]") -> object:
    return done.value()


def begins(operation: Callable[[TorchGroup], object], group: TorchGroup) -> bool:
    try:
        operation(group)
    except CutOffError:
        return False
    return True


def call_off() -> tuple[list[str], list[str], bool]:
    """Return the operations that begin before a group is called off and after, and whether a part can be made then."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    assert dist.group.WORLD is not None
    group = TorchGroup(dist.group.WORLD)
    part = group.split([[0]])
    assert part is not None
    before = [name for name, operation in OPERATIONS.items() if begins(operation, group) and begins(operation, part)]
    group.abort()
    after = [name for name, operation in OPERATIONS.items() if begins(operation, group) or begins(operation, part)]

    @contextlib.contextmanager
    def called_off() -> Iterator[None]:
        yield
        late.abort()

    late = TorchGroup(dist.group.WORLD, connecting=called_off)
    made = begins(OPERATIONS["split"], late)
    dist.destroy_process_group()
    return before, after, made


def test_what_begins_when_the_group_is_called_off_raises_and_a_part_that_was_being_made_is_not_handed_out():
    """The part's connections were not known when those of the group were ended: nobody would be woken in it."""
    assert on_processes(1, __file__, "call_off") == [(list(OPERATIONS), [], False)]


def late() -> list[str]:
    """Do every operation with a rank that comes to it much later than a forgotten one is waited for."""
    group_module.FORGOTTEN_S = 0.05
    group = pair("late")
    done = []
    for name, operation in PAIRED.items():
        if group.rank == 1:
            time.sleep(0.4)
        operation(group)
        done.append(name)
    dist.destroy_process_group()
    return done


def test_a_rank_that_comes_late_is_waited_for():
    assert on_processes(2, __file__, "late") == [list(PAIRED)] * 2


def outlived(*, part: bool, assured: bool) -> list[str]:
    """Leave the last reference of a group to a callback on Gloo's thread; return the threads of Gloo that stay."""
    group: TorchGroup | None = pair("outlived")
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    if part:
        group = group.split([[0, 1]])
    assert group is not None
    if group.rank == 1:
        store.get("begun")
    future = begun(group).get_future()
    entered: torch.futures.Future[None] = torch.futures.Future()
    left = threading.Event()

    def hold(_done: object, _group: TorchGroup = group) -> None:
        entered.set_result(None)
        left.wait(timeout=30)

    if group.rank == 0:  # before the other has begun, so that it is called on Gloo's thread
        (group.assured(future, ended) if assured else future).add_done_callback(hold)
        store.set("begun", "")
        entered.wait()
    gone = weakref.ref(group.process_group)
    held = group.rank == 0
    dist.destroy_process_group()
    del hold, future, group
    assert (gone() is not None) == held
    left.set()
    deadline_s = time.monotonic() + 30
    while (names := gloo_threads()) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return names


def gloo_threads() -> list[str]:
    names = []
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread may end between the two
            names.append(path.read_text().strip())
    return [name for name in names if name == "pt_gloo_runloop"]


@pytest.mark.parametrize("part", [False, True])
@pytest.mark.parametrize("assured", [False, True])
def test_a_group_whose_last_reference_goes_on_its_own_thread_ends_without_an_abort(part: bool, assured: bool):
    """torch's would join the thread that it is destroyed on: the process would end with signal 6 after its work."""
    assert on_processes(2, __file__, "outlived", part=part, assured=assured) == [[], []]


def pair(name: str) -> TorchGroup:
    """Return the group of this job's two workers."""
    torch.set_num_threads(1)
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", store=dist.PrefixStore(name, store), rank=rank, world_size=2)
    assert dist.group.WORLD is not None
    dist.barrier()
    return TorchGroup(dist.group.WORLD)


def aborts(*, rounds: int, by_future: bool) -> int:
    """End groups of two ranks at drawn moments in small collectives; returns how many of them Gloo has forgotten."""
    world = pair("aborts")
    store, rank = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False), world.rank
    rng, groups, forgotten = random.Random(7), [], 0
    for number in range(rounds):
        traffic = TcpTraffic()
        group = TorchGroup(world.process_group, connecting=traffic.recording).split([[0, 1]])
        assert group is not None
        groups.append(group)
        store.set(f"ready/{number}/{rank}", str(time.time()))
        at_s = max(float(store.get(f"ready/{number}/{other}")) for other in range(2)) + 0.005 + 0.01 * rng.random()
        tensor = torch.ones(rng.choice([10, 1000, 30_000]))
        ending = threading.Timer(at_s - time.time(), end, (group, traffic))
        ending.start()
        with contextlib.suppress(RuntimeError):
            while True:
                if by_future:
                    group.assured(begun(group, tensor).get_future(), ended).wait()
                else:
                    group.all_reduce(tensor).wait()
        ending.join()
        forgotten += time.time() > at_s + FORGOTTEN_S
        dist.barrier()
    dist.destroy_process_group()
    return forgotten


def end(group: TorchGroup, traffic: TcpTraffic) -> None:
    group.abort()
    traffic.shut()


@pytest.mark.parametrize("by_future", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_collective_that_gloo_forgets_as_its_group_is_ended_is_waited_for_no_longer(by_future: bool):
    """Without a limit one in some ten of these waits half an hour, until Gloo's own limit."""
    found = on_processes(2, __file__, "aborts", rounds=40, by_future=by_future)
    assert all(0 <= number < 20 for number in found), "most of them are woken"
