"""The reducer between racks: its means against those of the decoded slices, its bytes against the closed forms."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from plesio.policies.compression import parse_compression
from plesio.runtime.parameters.codecs import make_codec
from plesio.runtime.worker.exchange.rack_reducer import RackReducer
from plesio.runtime.worker.exchange.racks import BetweenRacks, Racks
from plesio.runtime.worlds.virtual import simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from support.workers import cluster_of_racks, workers_of

EQUAL, UNEQUAL = (2, 2), (3, 2)
"""Workers of each rack."""
TEXTS = ["fp16", "bf16", "bf16+feedback", "topk:0.05", "topk:0.05+no_feedback", "randk:0.05", "randk:0.05+no_feedback",
         "qsgd:8", "qsgd:4", "qsgd:4+feedback", "powersgd:2", "powersgd:2+no_feedback"]  # fmt: skip
SHAPES = [(20, 30), (3,), (600,)]
SIZE = 1203


def update(rack: int, clock: int) -> Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(100 * clock + rack)) + rack


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The results of one rank: its means, and its residual before the last of them."""

    means: list[Tensor]
    reducer: RackReducer
    residual_before: Tensor | None


def reduce(
    text: str, sizes: Sequence[int], *, num_exchanges: int, update: Callable[[int, int], Tensor] = update
) -> tuple[list[Found], int]:
    """Return every rank's results, and the bytes that crossed racks."""

    def work(job: VirtualJob) -> Found:
        compression, group = parse_compression(text), job.group("cpu")
        between = BetweenRacks(group, Racks.among(group), rails=compression.cuts)
        reducer = RackReducer(between, compression, shapes=SHAPES, seed=5)
        means: list[Tensor] = []
        before: Tensor | None = None
        for clock in range(num_exchanges):
            before = None if reducer.residual is None else reducer.residual.clone()
            means.append(reducer.begin(update(group.rack, clock), clock, weight=1 / group.size).wait())
        return Found(means=means, reducer=reducer, residual_before=before)

    simulation = simulate(work, num_workers=sum(sizes), cluster=cluster_of_racks(sizes))
    return workers_of(simulation), simulation.cross_rack_bytes


def num_rails(text: str, sizes: Sequence[int]) -> int:
    return sizes[0] if len(set(sizes)) == 1 and parse_compression(text).cuts else 1


def first_rank(rack: int, sizes: Sequence[int]) -> int:
    return sum(sizes[:rack])


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    "sizes", [UNEQUAL, (3, 3, 3), *(pytest.param(sizes, marks=pytest.mark.slow) for sizes in (EQUAL, (4, 4)))], ids=str
)
@pytest.mark.parametrize("text", TEXTS)
def test_what_crosses_racks_is_as_the_closed_form_says(text: str, sizes: Sequence[int]):
    (found, in_all), (_, before) = (reduce(text, sizes, num_exchanges=number) for number in (6, 0))
    rails = num_rails(text, sizes)
    shapes = SHAPES if rails == 1 else [(-(-SIZE // rails),)]
    each = 6 * parse_compression(text).sent_bytes(shapes, num_ranks=len(sizes))
    assert in_all - before == rails * len(sizes) * each
    sent_bytes = [one.reducer.figures().sent_bytes for one in found]
    assert sorted(sent_bytes) == [0] * (sum(sizes) - rails * len(sizes)) + [each] * rails * len(sizes)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("sizes", [pytest.param(EQUAL, marks=pytest.mark.slow), UNEQUAL, (3, 3, 3)], ids=str)
@pytest.mark.parametrize("text", [text for text in TEXTS if parse_compression(text).keeps_residual])
def test_means_and_residuals_are_all_that_was_given(text: str, sizes: Sequence[int]):
    num_exchanges, rails = 30, num_rails(text, sizes)
    found, _ = reduce(text, sizes, num_exchanges=num_exchanges)
    width = -(-SIZE // rails)
    returned = torch.zeros(rails * width, dtype=torch.float64)
    for mean in found[0].means:
        returned[:SIZE] += mean
    for rack in range(len(sizes)):
        for rail in range(rails):
            residual = found[first_rank(rack, sizes) + rail].reducer.residual
            assert residual is not None
            returned[rail * width : (rail + 1) * width] += residual
    given = torch.zeros(SIZE, dtype=torch.float64)
    for clock in range(num_exchanges):
        for rack, size in enumerate(sizes):
            given += update(rack, clock).double() * size / sum(sizes)
    # sums of 30 in float32; bf16's are added up over the ranks in bf16, which no rank's residual knows of
    torch.testing.assert_close(returned[:SIZE], given, atol=0.5 if text == "bf16+feedback" else 1e-4, rtol=0)


@pytest.mark.parametrize("sizes", [EQUAL, UNEQUAL], ids=str)
@pytest.mark.parametrize("text", ["fp16", "topk:0.05+no_feedback", "randk:0.05+no_feedback"])
def test_the_mean_is_that_of_the_racks_decoded_slices(text: str, sizes: Sequence[int]):
    found, _ = reduce(text, sizes, num_exchanges=1)
    rails = num_rails(text, sizes)
    width = -(-SIZE // rails)
    expected = torch.zeros(rails * width)
    for rack, size in enumerate(sizes):
        padded = torch.nn.functional.pad(update(rack, 0) * size / sum(sizes), (0, rails * width - SIZE))
        codec = make_codec(parse_compression(text), num_elements=width, seed=5, rank=rack)
        expected += torch.cat([codec.decode(codec.encode(part, clock=0), clock=0) for part in padded.split(width)])
    for one in found:
        # 16-bit numbers of up to 4 are added up in 16 bits, the others as here
        tolerance = 4 * 2**-10 if text == "fp16" else 1e-5
        torch.testing.assert_close(one.means[0], expected[:SIZE], atol=tolerance, rtol=1e-6)
        assert torch.equal(one.means[0], found[0].means[0])


@pytest.mark.parametrize("text", ["fp16", "bf16"])
@pytest.mark.parametrize("sizes", [EQUAL, (3, 1)], ids=str)
def test_numbers_that_16_bits_hold_come_as_they_would_in_full(text: str, sizes: Sequence[int]):
    def small(rack: int, clock: int) -> Tensor:
        return torch.arange(SIZE) % 13 - 6.0 + 4 * rack

    expected = small(0, 0) * sizes[0] / sum(sizes) + small(1, 0) * sizes[1] / sum(sizes)
    for one in reduce(text, sizes, num_exchanges=1, update=small)[0]:
        assert torch.equal(one.means[0], expected)


@pytest.mark.parametrize("text", ["topk:0.05", "qsgd:4+feedback", "bf16+feedback"])
@pytest.mark.parametrize("bad", [0, SIZE - 1])
def test_a_mean_that_is_not_finite_in_one_slice_is_refused_on_all_rails(text: str, bad: int):
    def poisoned(rack: int, clock: int) -> Tensor:
        found = update(rack, clock)
        if (rack, clock) == (1, 3):
            found[bad] = float("inf")
        return found

    for one in reduce(text, EQUAL, num_exchanges=4, update=poisoned)[0]:
        assert [bool(torch.isfinite(mean).all()) for mean in one.means] == [True, True, True, False]
        assert one.reducer.figures().num_refused == 1
        assert one.residual_before is not None
        assert one.reducer.residual is not None
        assert torch.equal(one.reducer.residual, one.residual_before)
