"""The reducer among virtual ranks: its means against those of the decoded parts, its bytes against the closed forms."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from plesio.cost.cluster import parse_cluster
from plesio.policies.compression import parse_compression
from plesio.runtime.parameters.codecs import make_codec
from plesio.runtime.worker.compression import CompressedReducer, CompressionFigures
from plesio.runtime.worlds.virtual import Simulation, simulate
from plesio.runtime.worlds.virtual.job import VirtualJob

SHAPES = [(8, 3, 3), (8,), (16, 20), ()]
SIZE = 72 + 8 + 320 + 1
RANKS = 4
TEXTS = ["none", "fp16", "bf16", "bf16+feedback", "topk:0.05", "topk:0.05+no_feedback", "randk:0.05",
         "randk:0.05+no_feedback", "qsgd:8", "qsgd:4", "qsgd:4+feedback", "qsgd:2", "topk:0.05+chunks:100+bits:2",
         "powersgd:2", "powersgd:2+no_feedback"]  # fmt: skip


def update(rank: int, clock: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * clock + rank)
    return torch.randn(SIZE, generator=generator) + rank


def run(main: Callable[[VirtualJob], Any], *, num_workers: int = RANKS) -> list[Any]:
    return simulation(main, num_workers=num_workers).values()


def simulation(main: Callable[[VirtualJob], Any], *, num_workers: int = RANKS) -> Simulation[Any]:
    return simulate(main, num_workers=num_workers, cluster=parse_cluster("4x1gbe"))


def reducer_of(job: VirtualJob, text: str, **options: Any) -> CompressedReducer:
    return CompressedReducer(job.group("cpu"), parse_compression(text), shapes=SHAPES, seed=5, **options)


@pytest.mark.parametrize("text", TEXTS)
def test_all_ranks_get_the_same_bits_and_bytes_are_as_the_closed_form_says(text: str):
    clocks = 6

    def main(job: VirtualJob) -> tuple[list[Tensor], CompressionFigures, int]:
        reducer = reducer_of(job, text)
        means = [reducer.begin(update(job.place.rank, clock), clock).wait() for clock in range(clocks)]
        return means, reducer.figures(), job.bytes_sent()["collective"]

    values = run(main)
    for means, figures, counted in values:
        assert all(torch.equal(mine, first) for mine, first in zip(means, values[0][0], strict=True))
        expected = clocks * parse_compression(text).sent_bytes(SHAPES, num_ranks=RANKS)
        assert figures.sent_bytes == expected < counted  # Gloo's message heads come on top
        assert figures.num_exchanges == clocks
        assert figures.uncompressed_bytes == clocks * round(2 * 3 / 4 * 4 * SIZE)
        assert figures.ratio == pytest.approx(figures.uncompressed_bytes / expected)
        assert (figures.num_refused, figures.flushes) == (0, ())
        assert (figures.worst_residual_ratio > 0) == parse_compression(text).keeps_residual


@pytest.mark.parametrize("text", [text for text in TEXTS if not text.startswith(("none", "powersgd", "qsgd"))])
def test_the_mean_is_that_of_the_decoded_parts(text: str):
    def main(job: VirtualJob) -> Tensor:
        return reducer_of(job, text).begin(update(job.place.rank, 3), 3).wait()

    [mean, *_] = run(main)
    parts = torch.zeros(SIZE)
    for rank in range(RANKS):
        codec = make_codec(parse_compression(text), num_elements=SIZE, seed=5, rank=rank)
        parts += codec.decode(codec.encode(update(rank, 3) / RANKS, clock=3), clock=3)
    # 16-bit numbers are added up in 16 bits, the others exactly as here or in the payload's own order
    tolerance = {"fp16": 2**-10, "bf16": 2**-7}.get(text[:4], 1e-6)
    torch.testing.assert_close(mean, parts, atol=4 * tolerance, rtol=tolerance)
    if text.startswith("topk"):
        assert torch.equal(mean, parts)


@pytest.mark.parametrize("text", ["powersgd:2", "powersgd:2+no_feedback"])
def test_power_sgd_factors_the_mean(text: str):
    def main(job: VirtualJob) -> tuple[Tensor, Tensor | None]:
        reducer = reducer_of(job, text)
        return reducer.begin(update(job.place.rank, 0), 0).wait(), reducer.residual

    def alone(job: VirtualJob) -> Tensor:
        updates = torch.stack([update(rank, 0) for rank in range(RANKS)])
        return reducer_of(job, text).begin(updates.mean(0), 0).wait()

    values = run(main)
    [expected] = run(alone, num_workers=1)
    torch.testing.assert_close(values[0][0], expected, atol=1e-5, rtol=1e-5)
    if text == "powersgd:2":
        total = sum(residual for _, residual in values)
        mean = sum(update(rank, 0) for rank in range(RANKS)) / RANKS
        torch.testing.assert_close(values[0][0] + total, mean, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("text", TEXTS)
def test_equal_arguments_give_equal_bits(text: str):
    def main(job: VirtualJob) -> list[Tensor]:
        reducer = reducer_of(job, text)
        return [reducer.begin(update(job.place.rank, clock), clock).wait() for clock in range(3)]

    torch.manual_seed(1)
    once = run(main)
    torch.manual_seed(2)
    again = run(main)
    for mine, theirs in zip(once, again, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("text", [text for text in TEXTS if parse_compression(text).keeps_residual])
def test_means_and_residuals_are_all_that_was_given_also_with_weights_that_change(text: str):
    clocks = 40

    def weight(rank: int, clock: int) -> float | None:
        return None if clock < 10 else [0.4, 0.3, 0.3, 0.0][(rank + clock) % RANKS]

    def main(job: VirtualJob) -> tuple[Tensor, Tensor]:
        reducer, rank = reducer_of(job, text), job.place.rank
        total = torch.zeros(SIZE, dtype=torch.float64)
        for clock in range(clocks):
            total += reducer.begin(update(rank, clock), clock, weight=weight(rank, clock)).wait()
        assert reducer.residual is not None
        return total, reducer.residual

    values = run(main)
    given = torch.zeros(SIZE, dtype=torch.float64)
    for clock in range(clocks):
        for rank in range(RANKS):
            given += update(rank, clock).double() * (weight(rank, clock) or (1 / RANKS if clock < 10 else 0))
    returned = values[0][0] + sum(residual for _, residual in values)
    # sums of 40 in float32; bf16's are added up over the ranks in bf16, which no rank's residual knows of
    tolerance = 0.5 if text == "bf16+feedback" else 1e-4
    torch.testing.assert_close(returned, given, atol=tolerance, rtol=0)


def test_sent_in_full_when_asked_and_nothing_is_left():
    def main(job: VirtualJob) -> tuple[Tensor, Tensor | None]:
        reducer, rank = reducer_of(job, "topk:0.05"), job.place.rank
        total = sum(reducer.begin(update(rank, clock), clock).wait() for clock in range(5))
        total += reducer.begin(update(rank, 5), 5, in_full=True).wait()
        assert reducer.figures().flushes == (), "those are what guards ask for"
        return total, reducer.residual

    given = sum(update(rank, clock) for rank in range(RANKS) for clock in range(6)) / RANKS
    for total, residual in run(main):
        assert residual is None
        torch.testing.assert_close(total, given, atol=1e-4, rtol=0)


@pytest.mark.parametrize("text", ["topk:0.05", "randk:0.05", "powersgd:1"])
def test_one_guard_makes_all_ranks_send_in_full_once(text: str):
    """Rank 2's updates shrink, so its residual outweighs them: the exchange after the one that says so is in full."""

    def main(job: VirtualJob) -> tuple[list[bool], Tensor, CompressionFigures]:
        reducer, rank = reducer_of(job, f"{text}+guard:3"), job.place.rank
        total = torch.zeros(SIZE)
        before = []
        for clock in range(60):
            size = 1e-6 if rank == 2 and clock >= 1 else 1.0
            total += reducer.begin(size * update(rank, clock), clock).wait()
            before.append(reducer.residual is None)
        rest = torch.zeros(SIZE) if reducer.residual is None else reducer.residual
        return before, total, reducer.figures(), rest

    values = run(main)
    flushes = [figures.flushes for _, _, figures, _ in values]
    clocks = [[flush.clock for flush in own] for own in flushes]
    assert clocks[0], "it was sent in full"
    assert all(own == clocks[0] for own in clocks)
    assert flushes[2][0].asked
    assert flushes[2][0].ratio > flushes[2][0].limit == 3.0
    for before, *_ in values:
        assert [clock for clock, empty in enumerate(before) if empty] == clocks[0]
    given = sum((1e-6 if rank == 2 and clock >= 1 else 1.0) * update(rank, clock) for rank in range(RANKS)
                for clock in range(60)) / RANKS  # fmt: skip
    torch.testing.assert_close(values[0][1] + sum(value[3] for value in values), given, atol=1e-3, rtol=0)


@pytest.mark.parametrize("text", TEXTS)
def test_one_nan_refuses_the_exchange_on_all_ranks_and_nothing_kept_back_is_lost(text: str):
    def main(job: VirtualJob) -> tuple[list[bool], Tensor, Tensor, CompressionFigures]:
        reducer, rank = reducer_of(job, text), job.place.rank
        finite, total = [], torch.zeros(SIZE)
        for clock in range(8):
            own = update(rank, clock)
            if clock in (0, 4) and rank == 1:
                own[17] = math.nan if clock else math.inf
            mean = reducer.begin(own, clock).wait()
            finite.append(bool(mean.isfinite().all()))
            if finite[-1]:
                total += mean
        rest = torch.zeros(SIZE) if reducer.residual is None else reducer.residual
        return finite, total, rest, reducer.figures()

    values = run(main)
    for finite, _, rest, figures in values:
        assert finite == [clock not in (0, 4) for clock in range(8)]
        assert figures.num_refused == 2
        assert rest.isfinite().all()
    if parse_compression(text).keeps_residual and not text.startswith("bf16"):
        given = sum(update(rank, clock) for rank in range(RANKS) for clock in (1, 2, 3, 5, 6, 7)) / RANKS
        torch.testing.assert_close(values[0][1] + sum(value[2] for value in values), given, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("text", "num_bytes"), [("qsgd:8", 503_908), ("powersgd:1", None)])
def test_a_transfer_goes_on_behind_the_steps(text: str, num_bytes: int | None):
    def main(job: VirtualJob, *, sleeps_s: float, goes_on: bool) -> tuple[float, float | None]:
        reducer = CompressedReducer(job.group("cpu"), parse_compression(text), shapes=[(2_000, 1_000)], seed=0)
        begun_s = job.clock.now_s()
        pending = reducer.begin(torch.ones(2_000_000), 0)
        job.clock.sleep_s(sleeps_s / 2)
        if goes_on:
            pending.go_on()
        job.clock.sleep_s(sleeps_s / 2)
        pending.wait()
        return job.clock.now_s() - begun_s, pending.took_s()

    alone_s, own_s = run(lambda job: main(job, sleeps_s=0.0, goes_on=False))[0]
    assert own_s == pytest.approx(alone_s)
    if num_bytes is not None:  # twice three quarters of 2 MB on links of 1 Gbit/s
        assert 2 * 3 * num_bytes / 125e6 <= alone_s < 2.1 * 3 * num_bytes / 125e6
    waited_s, own_s = run(lambda job: main(job, sleeps_s=1.0, goes_on=False))[0]
    assert 1.0 < waited_s < 1.0 + 0.9 * alone_s, "of two collectives only the first goes on behind one second of steps"
    assert own_s == pytest.approx(alone_s)
    hidden_s, own_s = run(lambda job: main(job, sleeps_s=1.0, goes_on=True))[0]
    assert hidden_s == pytest.approx(1.0)
    assert own_s == pytest.approx(alone_s)


@pytest.mark.parametrize("text", ["qsgd:8", "qsgd:4", "qsgd:4+feedback"])
def test_each_rank_sums_up_a_part_and_rounds_it_once_more(text: str):
    def main(job: VirtualJob) -> tuple[Tensor, Tensor | None]:
        reducer = reducer_of(job, text)
        return reducer.begin(update(job.place.rank, 3), 3).wait(), reducer.residual

    values = run(main)
    part = -(-SIZE // RANKS)
    codecs = [make_codec(parse_compression(text), num_elements=part, seed=5, rank=rank) for rank in range(RANKS)]
    shares = [torch.nn.functional.pad(update(rank, 3) / RANKS, (0, RANKS * part - SIZE)) for rank in range(RANKS)]
    totals = torch.zeros(RANKS, part)
    for codec, share in zip(codecs, shares, strict=True):
        codec.add(codec.encode(share.view(RANKS, part), clock=2 * 3), to=totals, clock=0)
    parts = [
        codec.decode(codec.encode(total, clock=2 * 3 + 1), clock=0) for codec, total in zip(codecs, totals, strict=True)
    ]
    expected = torch.cat(parts)[:SIZE]
    for mean, _ in values:
        torch.testing.assert_close(mean, expected, atol=1e-6, rtol=1e-6)
    if "feedback" in text:
        kept_back = sum(residual for _, residual in values)
        torch.testing.assert_close(expected + kept_back, sum(shares)[:SIZE], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("text", [pytest.param("qsgd:8", marks=pytest.mark.slow), "qsgd:4"])
def test_rounding_twice_is_right_in_the_mean(text: str):
    exchanges = 400

    def main(job: VirtualJob) -> Tensor:
        reducer = reducer_of(job, text)
        return torch.stack([reducer.begin(update(job.place.rank, 0), clock).wait() for clock in range(exchanges)])

    [means, *_] = run(main)
    exact = sum(update(rank, 0) for rank in range(RANKS)) / RANKS
    error = (means.mean(0) - exact).norm() / exact.norm()
    assert error < 2 * (means[0] - exact).norm() / exact.norm() / math.sqrt(exchanges)


def test_dtypes_come_back_and_updates_stay_as_they_are():
    def main(job: VirtualJob) -> None:
        for text in TEXTS:
            for clock, dtype in enumerate((torch.float64, torch.float32, torch.bfloat16, torch.float16)):
                own = update(job.place.rank, 0).to(dtype)
                before = own.clone()
                mean = reducer_of(job, text).begin(own, clock).wait()
                assert mean.dtype == dtype
                assert torch.equal(own, before)

    run(main)


def test_one_rank_alone():
    def main(job: VirtualJob) -> CompressionFigures:
        reducer = reducer_of(job, "topk:0.05")
        mean = reducer.begin(update(0, 0), 0).wait()
        assert int((mean != 0).sum()) == math.ceil(0.05 * SIZE)
        return reducer.figures()

    [figures] = run(main, num_workers=1)
    assert (figures.sent_bytes, figures.ratio) == (0, 1.0)


def test_one_exchange_at_a_time():
    def main(job: VirtualJob) -> None:
        reducer = reducer_of(job, "bf16")
        pending = reducer.begin(update(0, 0), 0)
        with pytest.raises(AssertionError, match="one exchange at a time"):
            reducer.begin(update(0, 1), 1)
        assert pending.wait() is pending.wait()
        with pytest.raises(AssertionError, match="shapes"):
            reducer.begin(torch.zeros(3), 2)

    run(main)
