"""Warnings about exchanges by racks that take longer or less than a probe predicts."""

import math

import pytest
import torch

from plesio.runtime.worker.exchange.group import Gathering
from plesio.runtime.worker.exchange.host_racks import HostRacks, PairSpeed
from plesio.runtime.worker.exchange.racks import OFF_BY, WINDOW, RackWatch

FOUND = HostRacks(
    racks=(0, 0, 1, 1),
    within=PairSpeed(latency_s=0.0, bytes_per_s=1e8),
    between=PairSpeed(latency_s=0.0, bytes_per_s=1e7),
    num_bytes=0,
    took_s=1.0,
)
NUM_BYTES = 20_000_000
SUM_S = 1.0
"""Half of them, over two racks, at 10 MB/s."""
SPREAD_S = 0.1
"""Half of them, from one other, at 100 MB/s."""


class _Others:
    """A group in which the others' quickest were ``ratios`` of what was predicted."""

    def __init__(self, *ratios: float) -> None:
        self._ratios = ratios
        self.current = self

    def all_gather(self, tensor: torch.Tensor) -> Gathering:
        return _Gathered([tensor, *(torch.full_like(tensor, ratio) for ratio in self._ratios)])


class _Gathered:
    def __init__(self, parts: list[torch.Tensor]) -> None:
        self._parts = parts

    def wait(self) -> list[torch.Tensor]:
        return self._parts


def said(
    summed_s: list[float], spread_s: float = SPREAD_S, *, others: tuple[float, ...] = (), hosts: int = 1
) -> list[str]:
    sentences: list[str] = []
    group = _Others(*others)
    watch = RackWatch(FOUND, group=group, workers_per_host=hosts, warn=sentences.append)  # type: ignore[arg-type]
    for each_s in summed_s:
        watch.saw(summed_s=each_s, spread_s=spread_s, num_bytes=NUM_BYTES, num_rails=2, sizes=[2, 2])
    return sentences


def test_what_is_as_predicted_is_not_mentioned():
    assert said([SUM_S] * 5 * WINDOW) == []
    assert said([SUM_S * (OFF_BY - 0.01)] * WINDOW) == []


@pytest.mark.parametrize(("ratio", "words"), [(4.0, "4.0 times as long as"), (0.25, "4.0 times less than")])
def test_what_is_off_is_said_once(ratio: float, words: str):
    [sentence] = said([SUM_S * ratio] * 4 * WINDOW)
    assert sentence.startswith(f"exchanges between racks take {words} the probe at the start predicts")
    assert "name the racks with racks=" in sentence


def test_exchanges_within_racks_are_watched_too():
    [sentence] = said([SUM_S] * WINDOW, 5 * SPREAD_S)
    assert sentence.startswith("exchanges within racks take 5.0 times as long as")
    assert said([SUM_S] * WINDOW, SPREAD_S / 5) == []  # nobody is worse off


def test_a_window_counts_by_its_quickest_exchange_on_any_rank():
    slow = SUM_S * 5
    assert said([slow] * (WINDOW - 1) + [SUM_S]) == []
    assert said([slow] * (WINDOW - 1)) == []
    assert said([slow] * WINDOW, others=(1.0,)) == []  # this rank has waited for others
    assert said([math.inf] * WINDOW, others=(1.0,)) == []
    assert len(said([math.inf] * WINDOW, others=(6.0,))) == 1


def test_what_changes_later_is_said_then():
    assert len(said([SUM_S] * WINDOW + [SUM_S * 5] * WINDOW)) == 1


def test_workers_of_a_host_share_its_way():
    assert said([2 * SUM_S * (OFF_BY - 0.01)] * WINDOW, hosts=2) == []


def test_what_takes_no_time_makes_no_difference():
    sentences: list[str] = []
    watch = RackWatch(FOUND, group=_Others(), workers_per_host=1, warn=sentences.append)  # type: ignore[arg-type]
    for _ in range(WINDOW):
        watch.saw(summed_s=0.05, spread_s=0.05, num_bytes=1000, num_rails=2, sizes=[2, 2])
    assert sentences == []
