"""Two real processes over Gloo: what they make is what virtual ranks make, and what torch's own hooks make."""

from pathlib import Path
from typing import Any

import pytest
import torch

from plesio.cost.cluster import parse_cluster
from plesio.policies.compression import parse_compression
from plesio.runtime.worker.compression import CompressedReducer
from plesio.runtime.worlds.virtual import simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from support.processes import on_processes

PROGRAMS = Path(__file__).with_name("programs.py")
SHAPES = [(16, 12), (5,), (20, 30)]
SIZE = 16 * 12 + 5 + 600
TEXTS = ["none", "fp16", "bf16", "topk:0.05", "randk:0.05", "qsgd:4", "powersgd:2"]


def update(rank: int, clock: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * clock + rank)
    steady = torch.Generator().manual_seed(rank)
    return torch.randn(SIZE, generator=generator) + torch.randn(SIZE, generator=steady)


def virtual(text: str) -> tuple[list[torch.Tensor], int]:
    def main(job: VirtualJob) -> tuple[list[torch.Tensor], int]:
        reducer = CompressedReducer(job.group("cpu"), parse_compression(text), shapes=SHAPES, seed=5)
        means = [reducer.begin(update(job.place.rank, clock), clock).wait() for clock in range(3)]
        return means, reducer.figures().sent_bytes

    first, second = simulate(main, num_workers=2, cluster=parse_cluster("4x1gbe")).values()
    assert first is not None
    assert second is not None
    return first


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    return on_processes(2, PROGRAMS, "collect", texts=TEXTS)


def test_all_gather_brings_every_ranks_tensor_in_the_order_of_the_ranks(found: list[dict[str, Any]]):
    for value in found:
        assert value["gathered"] == [[0, 1, 2, 3, 4], [10, 11, 12, 13, 14]]


@pytest.mark.parametrize("text", TEXTS)
def test_processes_make_what_virtual_ranks_make(text: str, found: list[dict[str, Any]]):
    means, num_bytes = virtual(text)
    for value in found:
        theirs, sent_bytes = value[text]
        assert theirs == found[0][text][0]
        assert sent_bytes == num_bytes
        for mine, mean in zip(means, theirs, strict=True):
            # with two ranks the order of a sum does not matter; factorings may differ in the last bits
            torch.testing.assert_close(torch.tensor(mean), mine, atol=1e-5 if "powersgd" in text else 0.0, rtol=0)


def test_power_sgd_makes_what_torch_makes_and_keeps_less_back(found: list[dict[str, Any]]):
    for figures in (value["torch"] for value in found):
        # of numbers of up to 13, after ten exchanges whose rounding errors (1e-6) grow
        assert figures["apart"] < 2e-4
        # data that differ add up in torch's residuals: half the steady difference, 40 times
        assert figures["theirs"] > 10 * figures["update"]
        assert figures["ours"] < figures["theirs"] / 2


@pytest.mark.parametrize("text", ["fp16", "bf16"])
def test_torchs_16_bit_hooks_make_the_same_mean_but_for_rounding(text: str, found: list[dict[str, Any]]):
    roundoff = 2.0**-11 if text == "fp16" else 2.0**-8
    for value in found:
        # three roundings: of each part and of their sum, each of numbers of up to 4
        torch.testing.assert_close(
            torch.tensor(value["hooks"][text]), torch.tensor(value[text][0][0]), atol=3 * 4 * roundoff, rtol=0
        )
