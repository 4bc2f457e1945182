"""The ranks of a collective exchange, in whichever world they are; and how they agree on plain values.

**What Gloo forgets.** When a connection ends after a rank has read that its peer is ready for a message, and before it
has sent that, Gloo wakes nobody: the collective neither completes nor fails (torch 2.13; one abort in 25 in the midst
of small collectives). So whoever waits for a collective of a group that was aborted waits for `FORGOTTEN_S` at most.
Gloo's thread waits on, and the group would wait for it when it is destroyed: it is kept for ever.

**Which thread destroys a group.** Gloo's group ends its threads when its last reference goes. A callback of a future
may hold that, and Gloo's own thread drops it after the waiting one has been woken: a thread that joins itself aborts
the process (torch 2.13; "Resource deadlock avoided"). So `TorchGroup` has another thread destroy it then.
"""

import ctypes
import json
import math
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import torch
import torch.distributed as dist

from plesio.core.results import Found

T = TypeVar("T")

SPLIT_TIMEOUT = timedelta(seconds=10)
"""How long ranks wait for each other when they make parts of their group: one may be lost meanwhile."""
FORGOTTEN_S = 1.0
"""A collective that has not ended so long after its group was aborted will not end."""
_CPU = torch.device("cpu")


class CutOffError(RuntimeError):
    """The workers' group is no more."""


class Work(Protocol):
    """A collective under way."""

    def wait(self) -> object: ...

    def took_s(self) -> float:
        """Return the seconds from when this rank began it until its result was there; call it after `wait`."""
        ...


class Gathering(Work, Protocol):
    """An all-gather or all-to-all under way."""

    def wait(self) -> list[torch.Tensor]: ...


class Summing(Protocol):
    """Ranks that make sums."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce(self, tensor: torch.Tensor) -> Work:
        """Begin to overwrite ``tensor`` with the sum over the ranks."""
        ...


class Group(Summing, Protocol):
    """All ranks call the same operations in the same order, on tensors that are alike."""

    def all_reduce_gradient(self, gradient: torch.Tensor) -> Work:
        """Begin to overwrite the gradient of a step with the sum; a simulation takes as long for it as DDP does."""
        ...

    @property
    def rack(self) -> int:
        """Number of the place of this rank: equal on ranks whose ways to each other are short."""
        ...

    def broadcast(self, tensor: torch.Tensor, *, source: int = 0) -> None:
        """Overwrite ``tensor`` with the source's."""
        ...

    def all_gather(self, tensor: torch.Tensor) -> Gathering:
        """Begin to collect every rank's ``tensor``; it must stay as it is until they are there."""
        ...

    def all_to_all(self, rows: torch.Tensor) -> Gathering:
        """Begin to send row r of ``rows`` to rank r; collects every rank's row for this one."""
        ...

    def split(self, parts: Sequence[Sequence[int]]) -> "Group | None":
        """Split a job's group into groups of some ranks each, whose collectives run side by side.

        Args:
            parts: Ranks in ascending order, no rank twice.

        Returns:
            The group that this rank is in, the same for the same parts; None if it is in none.
        """
        ...


def connect(group: dist.ProcessGroup) -> None:
    """Open a new group's connections, by a first use that must end within its timeout; from then on it has torch's."""
    dist.barrier(group=group)
    dist.distributed_c10d._set_pg_timeout(dist.default_pg_timeout, group)


class _TorchWork(Generic[T]):
    """A collective of torch.distributed's, timed by whichever of its threads completes it.

    On a device the result may be there only later than it is known to come; for that the time waited counts.
    """

    def __init__(self, work: dist.Work, result: T, group: "TorchGroup") -> None:
        self._work, self._result, self._group = work, result, group
        self._began_s = time.perf_counter()
        self._ended_s = math.inf
        self._waited_s = math.inf
        work.get_future().then(self._end)

    def _end(self, _future: object) -> None:
        self._ended_s = time.perf_counter()

    def wait(self) -> T:
        self._group.finish(self._work)
        self._waited_s = time.perf_counter()
        return self._result

    def took_s(self) -> float:
        return min(self._ended_s, self._waited_s) - self._began_s


class _CalledOff:
    """A collective of a group that was called off before."""

    def wait(self) -> NoReturn:
        raise CutOffError("the group was called off")

    def took_s(self) -> float:
        return 0.0


def _own(work: dist.Work | None) -> dist.Work:
    assert work is not None, "this process is a member of the group"
    return work


def _drop(gloos: list[Any]) -> None:
    """Destroy what has threads of its own, but not on one of these."""
    if isinstance(threading.current_thread(), threading._DummyThread):  # Python did not start it
        threading.Thread(target=gloos.clear, name="plesio-group-end").start()
    else:
        gloos.clear()


class TorchGroup:
    """The ranks of a torch.distributed process group.

    Args:
        connecting: A context in which connections of further groups are opened.
        tells_late: Whether a collective that cannot begin raises where it is waited for, as one that fails later does.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup,
        *,
        rack: int = 0,
        connecting: Callable[[], AbstractContextManager[None]] = nullcontext,
        tells_late: bool = False,
    ) -> None:
        self.process_group = process_group
        self.rank = dist.get_rank(process_group)
        self.size = dist.get_world_size(process_group)
        self.rack = rack
        self._connecting, self._tells_late = connecting, tells_late
        self._aborted_s = math.inf
        self._forgets = dist.get_backend(process_group) == "gloo"
        if _CPU in process_group._device_types:
            gloos = [process_group._get_backend(_CPU)]
            weakref.finalize(process_group, _drop, gloos).atexit = False
        self._assured: dict[torch.futures.Future[Any], Callable[[torch.futures.Future[Any]], Any]] = {}
        """Futures whose collectives are under way, and what makes their results."""
        self._settling = threading.Lock()
        self._parts: dict[tuple[tuple[int, ...], ...], TorchGroup | None] = {}

    def broadcast(self, tensor: torch.Tensor, *, source: int = 0) -> None:
        self.enter()
        self.finish(dist.broadcast(tensor, group=self.process_group, group_src=source, async_op=True))

    def all_reduce(self, tensor: torch.Tensor) -> "_TorchWork[None] | _CalledOff":
        if not self._begins():
            return _CalledOff()
        work = dist.all_reduce(tensor, group=self.process_group, async_op=True)
        return _TorchWork(_own(work), None, self)

    def all_reduce_gradient(self, gradient: torch.Tensor) -> "_TorchWork[None] | _CalledOff":
        return self.all_reduce(gradient)

    def all_gather(self, tensor: torch.Tensor) -> "_TorchWork[list[torch.Tensor]] | _CalledOff":
        if not self._begins():
            return _CalledOff()
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        work = dist.all_gather(parts, tensor, group=self.process_group, async_op=True)
        return _TorchWork(_own(work), parts, self)

    def all_to_all(self, rows: torch.Tensor) -> "_TorchWork[list[torch.Tensor]] | _CalledOff":
        if not self._begins():
            return _CalledOff()
        received = torch.empty_like(rows)
        work = dist.all_to_all_single(received, rows.contiguous(), group=self.process_group, async_op=True)
        return _TorchWork(_own(work), list(received), self)

    def pass_on(self, tensor: torch.Tensor, *, into: torch.Tensor) -> None:
        """Send ``tensor`` to the next rank, and write what the one before has sent ``into`` another one."""
        self.enter()
        sends, takes = [0] * self.size, [0] * self.size
        sends[(self.rank + 1) % self.size], takes[(self.rank - 1) % self.size] = tensor.numel(), into.numel()
        self.finish(dist.all_to_all_single(into, tensor, takes, sends, group=self.process_group, async_op=True))

    def meet(self) -> None:
        """Wait for all ranks where one may wait in another collective for ever; Gloo takes nothing else for this.

        Of two collectives of one kind and unequal sizes it would take one for the other, and end the process.
        """
        if self._forgets:
            self.enter()
            self.finish(dist.barrier(group=self.process_group, async_op=True))

    def split(self, parts: Sequence[Sequence[int]]) -> "TorchGroup | None":
        key = tuple(tuple(part) for part in parts)
        self.enter()
        if key not in self._parts:
            with self._connecting():
                groups = [dist.new_group(list(part), timeout=SPLIT_TIMEOUT) for part in key]  # every rank makes all
                own = next((group for group, part in zip(groups, key, strict=True) if self.rank in part), None)
                if own is not None:
                    connect(own)
            self._parts[key] = None if own is None else TorchGroup(own, rack=self.rack)
            self.enter()  # what would have woken this rank came before the part's connections were known
        return self._parts[key]

    def _begins(self) -> bool:
        """Tell whether a collective can begin; else raise, unless that is to be done later."""
        if not self._tells_late:
            self.enter()
        return self._aborted_s == math.inf

    def enter(self) -> None:
        """Return if collectives can begin; CutOffError if the group was called off."""
        if self._aborted_s < math.inf:
            raise CutOffError("the group was called off")

    def finish(self, work: dist.Work | None) -> None:
        """Wait for a collective of this group; not for a message, whose wait would end the connection at its limit.

        Raises:
            CutOffError: The group was aborted, and Gloo has forgotten this one.
            RuntimeError: It cannot be done.
        """
        work = _own(work)
        if not self._forgets:
            work.wait()
            return
        while True:
            try:
                work.wait(timedelta(seconds=FORGOTTEN_S))
                return
            except RuntimeError:
                if work.is_completed():
                    work.wait()
                    return
                if time.monotonic() > self._aborted_s + FORGOTTEN_S:
                    self._keep_for_ever()
                    raise CutOffError("the group was called off") from None

    def assured(
        self, future: "torch.futures.Future[Any]", take: Callable[["torch.futures.Future[Any]"], T]
    ) -> "torch.futures.Future[T]":
        """Return a future of ``take``'s result for this one of the group, when that has ended.

        If Gloo has forgotten it, ``take`` gets one that has failed with `CutOffError`.
        """
        if not self._forgets:
            return future.then(take)
        assured: torch.futures.Future[T] = torch.futures.Future()
        with self._settling:  # so that an abort either refuses it or ends it
            self.enter()
            self._assured[assured] = take
        future.add_done_callback(lambda done: self._settle(assured, done))
        return assured

    def _settle(self, assured: "torch.futures.Future[Any]", done: "torch.futures.Future[Any] | None") -> None:
        with self._settling:
            take = self._assured.pop(assured, None)
        if take is None:
            return
        if done is None:
            self._keep_for_ever()
            done = torch.futures.Future()
            done.set_exception(CutOffError("the group was called off"))
        try:
            assured.set_result(take(done))
        except RuntimeError as error:
            assured.set_exception(error)

    def _forget(self) -> None:
        for assured in list(self._assured):
            self._settle(assured, None)

    def _keep_for_ever(self) -> None:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.process_group))

    def abort(self) -> None:
        """Have collectives that begin from now on raise `CutOffError`, and end the waits that nothing else would."""
        with self._settling:
            self._aborted_s = min(self._aborted_s, time.monotonic())
        if torch.cuda.is_available():
            self.process_group._get_backend(torch.device("cuda")).abort()
        if self._assured:
            timer = threading.Timer(FORGOTTEN_S, self._forget)
            timer.daemon = True
            timer.start()
        for part in list(self._parts.values()):  # the training thread may be making one
            if part is not None:
                part.abort()


class AwaitedGroup:
    """The group of a worker that has none, as one that joins: it is cut off from whatever needs the others."""

    def __init__(self, *, rack: int, rank: int = 0, size: int = 1) -> None:
        self.rack, self.rank, self.size = rack, rank, size

    def _cut_off(self, *_: object, **__: object) -> NoReturn:
        raise CutOffError("this worker has yet to join the others' group")

    broadcast = all_reduce = all_reduce_gradient = all_gather = all_to_all = split = _cut_off


def takes_blame(group: Summing, *, guilty: bool, device: torch.device) -> bool:
    """Decide whether this rank counts a refused mean: every guilty one does, and if there is none, rank 0 for all.

    All see that it is not finite, and none can trace it to an update but its own. All of the group call this.
    """
    flags = torch.tensor([1.0 if guilty else 0.0], device=device)
    group.all_reduce(flags).wait()
    return guilty or (flags.item() == 0 and group.rank == 0)


def broadcast_text(text: str, *, group: Group, source: int) -> str:
    """Return the source's text on all of the group; all call it."""
    return broadcast_bytes(text.encode(), group=group, source=source).decode()


def broadcast_bytes(data: bytes, *, group: Group, source: int) -> bytes:
    length = torch.tensor([len(data)])
    group.broadcast(length, source=source)
    return _broadcast(data, int(length), group=group, source=source)


def _broadcast(data: bytes, length: int, *, group: Group, source: int) -> bytes:
    tensor = torch.empty(length, dtype=torch.uint8)
    if group.rank == source:
        tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    group.broadcast(tensor, source=source)
    return tensor.numpy().tobytes()


def broadcast_metric(found: Found, group: Group) -> Found:
    """Broadcast rank 0's result to the group; all of it call this."""
    several = json.dumps(found).encode() if isinstance(found, dict) else b""
    single = float("nan") if found is None or isinstance(found, dict) else found
    value = torch.tensor([single, len(several)], dtype=torch.float64)
    group.broadcast(value)
    if not value[1]:
        return float(value[0])
    numbers: dict[str, float] = json.loads(_broadcast(several, int(value[1]), group=group, source=0))
    return numbers


class LiveGroup:
    """Has the present group. An exchange is built on `current`, and built anew when that changes."""

    def __init__(self, first: Group, workers: Sequence[int]) -> None:
        self.current = first
        self.workers = tuple(workers)

    def become(self, group: Group, workers: Sequence[int]) -> None:
        self.current, self.workers = group, tuple(workers)

    @property
    def worker(self) -> int:
        """This one's number in the run, whatever its rank here is."""
        return self.workers[self.current.rank]

    @property
    def rank(self) -> int:
        return self.current.rank
