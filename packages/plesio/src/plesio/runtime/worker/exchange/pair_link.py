"""Latency and bandwidth between a pair of ranks, over the job's own process group (Gloo).

Latency is half the median of many round trips of 8 bytes. Bandwidth is that of messages which take about `TARGET_S`,
found by growing sizes; each is acknowledged, the sender's clock times both, and the latency of both is taken off.
"""

import statistics
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from plesio.runtime.worker.exchange.group import TorchGroup

PINGS = 40
WARM_UP = 5
REPEATS = 3
TARGET_S = 0.02
"""How long a message takes whose bandwidth counts."""
SHARED_REPEATS = 2
LATENCIES = 10
"""Or so many latencies, where that is longer."""
FIRST_BYTES, MOST_BYTES = 2**16, 2**25
GROWTH = 8.0
WAIT_S = 30.0
"""After so long without a word the other end is taken for lost."""


class PairLink:
    """Messages between the ranks of a group; one that sends nothing for `WAIT_S` ends the probe: RuntimeError."""

    def __init__(self, group: TorchGroup, *, most_bytes: int = MOST_BYTES) -> None:
        self._group = group
        self._wait = timedelta(seconds=WAIT_S)
        self._most_bytes = most_bytes
        self._buffer, self._inbox = torch.ones(2, most_bytes, dtype=torch.uint8)
        self._latency_s: dict[int, float] = {}
        self.num_bytes_sent = 0
        """To other ranks, headers and what collectives send left out."""

    def meet(self) -> None:
        self.gathered(torch.zeros(1))

    def gathered(self, own: torch.Tensor) -> torch.Tensor:
        """Return the sum over all ranks: parts of a whole, if each fills in its own and has 0 elsewhere."""
        whole = own.clone()
        work = dist.all_reduce(whole, group=self._group.process_group, async_op=True)
        assert work is not None
        work.wait(self._wait)
        return whole

    def ping(self, peer: int, *, begins: bool, pings: int = PINGS) -> float:
        """Measure a small message's seconds one way: half the median round trip. Both ends call it, one begins."""
        small = self._buffer[:8]
        round_trips = []
        for _ in range(WARM_UP + pings):
            begun_s = time.perf_counter()
            for sends in (begins, not begins):
                (self._send if sends else self._receive)(small, peer)
            round_trips.append(time.perf_counter() - begun_s)
        self._latency_s[peer] = statistics.median(round_trips[WARM_UP:]) / 2
        return self._latency_s[peer]

    def send_rate(self, peer: int) -> float:
        target_s = max(TARGET_S, LATENCIES * self._latency_s[peer])
        size = FIRST_BYTES
        while (took_s := self.send_timed(peer, size)) < 0.75 * target_s and size < self._most_bytes:
            size = min(round(size * max(2.0, min(GROWTH, target_s / took_s))), self._most_bytes)
        self.end(peer)
        return size / max(took_s - 2 * self._latency_s[peer], took_s / 2)

    def exchange_rate(self, peer: int, num_sent: int, num_received: int) -> float:
        """Measure bytes per second from ``peer`` while both send; both ends call this."""
        durations = []
        for _ in range(SHARED_REPEATS):
            self.swap(peer, peer, num_sent=1, num_received=1)  # so that both begin
            durations.append(self.swap(peer, peer, num_sent=num_sent, num_received=num_received))
        took_s = statistics.fmean(durations)
        return num_received / max(took_s - self._latency_s[peer], took_s / 2)

    def swap(self, target: int, source: int, *, num_sent: int, num_received: int) -> float:
        """Measure the seconds until a message from ``source`` has come, while one goes to ``target``."""
        begun_s = time.perf_counter()
        sent = self._begin_sending(self._buffer[:num_sent], target)
        self._receive(self._inbox[:num_received], source)
        took_s = time.perf_counter() - begun_s
        sent.wait(self._wait)
        return took_s

    def larger(self, peer: int, value: float) -> float:
        """Return the larger of this rank's value and ``peer``'s; both ends call this."""
        own, other = torch.tensor([value], dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
        sent = self._begin_sending(own, peer)
        self._receive(other, peer)
        sent.wait(self._wait)
        return max(value, float(other))

    def send_timed(self, peer: int, size: int, *, repeats: int = REPEATS) -> float:
        """Return the least seconds of a message and its acknowledgement: disturbances only make one slower."""
        self._send(torch.tensor([size, repeats]), peer)
        self._receive(self._buffer[:1], peer)
        durations = []
        for _ in range(repeats):
            begun_s = time.perf_counter()
            self._send(self._buffer[:size], peer)
            self._receive(self._buffer[:1], peer)
            durations.append(time.perf_counter() - begun_s)
        return min(durations)

    def end(self, peer: int) -> None:
        self._send(torch.zeros(2, dtype=torch.int64), peer)

    def receive(self, peer: int) -> None:
        """Take and acknowledge what ``peer`` sends until it ends."""
        while True:
            header = torch.zeros(2, dtype=torch.int64)
            self._receive(header, peer)
            size, repeats = header.tolist()
            if size == 0:
                return
            self._send(self._buffer[:1], peer)
            for _ in range(repeats):
                self._receive(self._buffer[:size], peer)
                self._send(self._buffer[:1], peer)

    def _send(self, tensor: torch.Tensor, peer: int) -> None:
        self._begin_sending(tensor, peer).wait(self._wait)

    def _begin_sending(self, tensor: torch.Tensor, peer: int) -> dist.Work:
        self.num_bytes_sent += tensor.numel() * tensor.element_size()
        work = dist.isend(tensor, group=self._group.process_group, group_dst=peer)
        assert work is not None
        return work

    def _receive(self, tensor: torch.Tensor, peer: int) -> None:
        work = dist.irecv(tensor, group=self._group.process_group, group_src=peer)
        assert work is not None
        work.wait(self._wait)
