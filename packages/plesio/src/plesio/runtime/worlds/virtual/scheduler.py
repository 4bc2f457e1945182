"""Threads that take turns in virtual time: exactly one runs, the others hold still wherever they are.

A thread runs, at one moment of virtual time, until it sleeps or waits; then it hands the turn to whoever is next: those
that are ready, in the order in which they became so, or else the next event of the kernel, which makes somebody ready.
The thread that gives up its turn runs the kernel itself, so a turn that comes back to the same thread costs no switch.

Short work of a thread's own (packing a message) need not be slept through: a thread may *spend* time and is then ahead
of the kernel, by so little that nobody could have told it anything that it would have heeded meanwhile. Its next
actions happen at its own time (`now_s`); its next sleep takes the kernel there.

State that Python and torch have once per process although every worker has its own (random number streams) is put away
and brought back with the turns. State per thread (gradient mode, autocast) needs no help; that is why workers are
threads and not greenlets.
"""

import ctypes
import random
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from plesio.core.errors import PlesioError
from plesio.sim.kernel import Cancellable, Kernel


class StallError(PlesioError):
    """Everybody waits for something that nothing under way will bring."""


class WorkerGone(BaseException):
    """Raised in the thread of a worker at the moment of its simulated death; nothing should catch it."""


@dataclass(slots=True)
class _RandomStreams:
    """The generators that are global to a process: Python's and torch's as states, numpy's as the generator itself.

    numpy makes two normal numbers at once and keeps the second beside the generator. That is part of its full state,
    which takes long to read; so it is read only if the turn can have made or left one.
    """

    python: Any
    numpy: Any
    torch: torch.Tensor
    kept_normal: Any = None
    """numpy's full state, if it keeps a normal number."""
    drawn: tuple[int, int] | None = None
    """How far numpy's generator was when the turn began."""

    @classmethod
    def now(cls) -> "_RandomStreams":
        streams = cls(random.getstate(), np.random.mtrand.get_bit_generator(), torch.get_rng_state())
        streams._keep_normal()
        return streams

    @classmethod
    def of_seed(cls, seed: int) -> "_RandomStreams":
        generator = torch.Generator().manual_seed(seed)
        return cls(random.Random(seed).getstate(), np.random.MT19937(seed), generator.get_state())

    def update(self) -> None:
        """Take them as they are now, at the end of a turn."""
        self.python, self.torch = random.getstate(), torch.get_rng_state()
        self.numpy = np.random.mtrand.get_bit_generator()
        if self.kept_normal is not None or self.drawn != _drawn(self.numpy):
            self._keep_normal()

    def _keep_normal(self) -> None:
        state = np.random.get_state(legacy=False)
        assert isinstance(state, dict), "asked for"
        self.kept_normal = state if state["has_gauss"] else None

    def restore(self) -> None:
        random.setstate(self.python)
        np.random.mtrand.set_bit_generator(self.numpy)
        if self.kept_normal is not None:
            np.random.set_state(self.kept_normal)
        torch.set_rng_state(self.torch)
        self.drawn = _drawn(self.numpy)


def _drawn(generator: Any) -> tuple[int, int] | None:
    """Return a Mersenne Twister's position in a block of 624 words, and the block's first word; None of others."""
    if type(generator) is not np.random.MT19937:
        return None
    words = ctypes.cast(generator.ctypes.state_address, ctypes.POINTER(ctypes.c_uint32))
    return words[624], words[0]


@dataclass(slots=True, eq=False)
class ThreadTurn:
    """One thread's place in the order of turns."""

    name: str
    streams: _RandomStreams
    gate: threading.Lock = field(default_factory=threading.Lock)
    """Held but for the moment in which the thread is given the turn; a bare lock takes less time than a semaphore."""
    busy_until_s: float = 0.0
    """End of what the thread has spent time on."""
    waits: bool = False
    alarm: Cancellable | None = None
    raises: BaseException | None = None
    """The error that the thread meets when its turn comes next."""
    gone: bool = False
    """Met at every turn from now on."""
    sleeps: int = 0
    """How often it has slept: what was to end an earlier sleep does not end a later one."""


class Scheduler:
    """Runs threads in virtual time."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.num_switches = 0
        self._on_turn: Callable[[], None] | None = None
        self._ready: deque[ThreadTurn] = deque()
        self._live: dict[ThreadTurn, threading.Thread] = {}
        self._all_ended = threading.Event()
        self._failure: BaseException | None = None

    def spawn(self, name: str, main: Callable[[], None], *, seed: int) -> ThreadTurn:
        """Start a new thread at the present moment of virtual time; ``main`` must not raise."""
        turn = ThreadTurn(name, _RandomStreams.of_seed(seed))
        turn.gate.acquire()

        def body() -> None:
            turn.gate.acquire()
            try:
                main()
            finally:
                del self._live[turn]
                self._hand_over(turn, ends=True)

        self._live[turn] = threading.Thread(target=body, name=name, daemon=True)
        self._live[turn].start()
        self._ready.append(turn)
        return turn

    def run(self, *, on_turn: Callable[[], None] | None = None) -> None:
        """Run until all threads have ended; called by the main thread, which is not one of them.

        Ctrl-C is a `KeyboardInterrupt` in every thread, which they meet one after the other, each at its next turn.

        Args:
            on_turn: Called at every turn, by the thread that gives it up; must not sleep or wait.
        """
        self._on_turn = on_turn
        outside = _RandomStreams.now()
        self._give(self._next())
        try:
            while not self._all_ended.is_set():
                try:
                    self._all_ended.wait()
                except KeyboardInterrupt:
                    self.interrupt()
        finally:
            outside.restore()
        if self._failure is not None:
            raise self._failure

    def interrupt(self) -> None:
        for turn in list(self._live):
            turn.raises = KeyboardInterrupt()

    def now_s(self, turn: ThreadTurn) -> float:
        return max(self.kernel.now_s, turn.busy_until_s)

    def spend(self, turn: ThreadTurn, duration_s: float) -> None:
        """Let virtual seconds pass for this thread alone."""
        turn.busy_until_s = self.now_s(turn) + duration_s

    def do(self, turn: ThreadTurn, action: Callable[[], None]) -> None:
        if turn.busy_until_s > self.kernel.now_s:
            self.kernel.at(turn.busy_until_s, action)
        else:
            action()

    def sleep(self, turn: ThreadTurn, duration_s: float) -> None:
        """Let virtual seconds pass; called by the thread whose turn it is."""
        until_s = self.now_s(turn) + max(0.0, duration_s)
        if until_s > self.kernel.now_s:
            self.kernel.at(until_s, self._end_of_sleep(turn))
            self._hand_over(turn)
        self.meet(turn)

    def pause(self, turn: ThreadTurn, begin: Callable[[Callable[[], None]], None]) -> None:
        """Begin something that takes virtual time and sleep until it is done; ``begin`` is given what to call then."""
        done = self._end_of_sleep(turn)
        self.do(turn, lambda: begin(done))
        self._hand_over(turn)
        self.meet(turn)

    def wait(self, turn: ThreadTurn, timeout_s: float | None = None) -> None:
        """Sleep until somebody calls `wake`, or ``timeout_s`` is over."""
        turn.waits = True
        if timeout_s is not None:
            turn.alarm = Cancellable(lambda: self.wake(turn))
            self.kernel.at(self.now_s(turn) + timeout_s, turn.alarm)
        self._hand_over(turn)
        self.meet(turn)

    def wake(self, turn: ThreadTurn) -> None:
        """End a `wait`, if the thread is in one."""
        if turn.waits:
            turn.waits = False
            if turn.alarm is not None:
                turn.alarm.cancel()
                turn.alarm = None
            self._ready.append(turn)

    def end(self, turn: ThreadTurn) -> None:
        """Simulate a death: the thread meets `WorkerGone` now, and at every turn after."""
        turn.gone = True
        if turn in self._live:
            self.wake(turn)

    def _end_of_sleep(self, turn: ThreadTurn) -> Callable[[], None]:
        """Make the function that ends the sleep that the thread begins now, unless something else has."""
        turn.sleeps = number = turn.sleeps + 1

        def end() -> None:
            if turn.sleeps == number and turn in self._live:
                self._ready.append(turn)

        return end

    def meet(self, turn: ThreadTurn) -> None:
        """Raise what the thread is to meet, if anything."""
        if turn.gone:
            raise WorkerGone
        if turn.raises is not None:
            error, turn.raises = turn.raises, None
            raise error

    def _hand_over(self, turn: ThreadTurn, *, ends: bool = False) -> None:
        """Give up the turn, and return when it comes back (never, if the thread ends)."""
        if self._on_turn is not None:
            self._on_turn()
        following = self._next()
        if following is turn:
            return
        if not ends:
            turn.streams.update()
        self._give(following)
        if not ends:
            turn.gate.acquire()

    def _next(self) -> ThreadTurn | None:
        while not self._ready:
            if not self._live:
                return None
            try:
                moved = self.kernel.step()
            except BaseException as error:  # of an event's action: a bug of ours, not of the thread that ran it
                self._failure = self._failure or error
                moved = False
            if not moved:
                self._stall()
        return self._ready.popleft()

    def _stall(self) -> None:
        names = ", ".join(turn.name for turn in self._live)
        error = self._failure or StallError(
            f"at {self.kernel.now_s:g} s of virtual time {names} wait, and nothing is under way: "
            "do all workers make the same calls (as many epochs, evaluations, steps)?"
        )
        self._failure = error
        for turn in list(self._live):
            turn.raises = error
            turn.waits = False
            turn.sleeps += 1  # what would have woken it comes too late
            if turn.alarm is not None:
                turn.alarm.cancel()
                turn.alarm = None
            self._ready.append(turn)

    def _give(self, turn: ThreadTurn | None) -> None:
        if turn is None:
            self._all_ended.set()
            return
        self.num_switches += 1
        turn.streams.restore()
        turn.gate.release()
