"""The mean of sparse gradients: of any rows, weights and types of number, and the rows that it has."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from plesio.cost.cluster import parse_cluster
from plesio.runtime.worker.exchange.sparse_mean import SparseMean
from plesio.runtime.worlds.virtual import simulate
from plesio.runtime.worlds.virtual.job import VirtualJob

SHAPES = [((7, 3), torch.float64), ((5, 2, 2), torch.float32), ((9, 1), torch.float64)]


def sparse(rows: list[int], shape: tuple[int, ...], dtype: torch.dtype, *, rank: int) -> Tensor:
    """A row may be there twice."""
    generator = torch.Generator().manual_seed(rank)
    values = torch.randn(len(rows), *shape[1:], generator=generator, dtype=dtype)
    places = torch.tensor([rows], dtype=torch.int64)
    return torch.sparse_coo_tensor(places, values, shape, check_invariants=False)


rows_of_a_rank = st.tuples(*(st.lists(st.integers(0, shape[0] - 1), max_size=6) for shape, _ in SHAPES))


@given(rows=st.lists(rows_of_a_rank, min_size=1, max_size=4), data=st.data())
def test_it_is_the_weighted_sum_on_the_union_of_rows(rows: list[tuple[list[int], ...]], data: st.DataObject):
    weights = data.draw(st.lists(st.floats(0.125, 1), min_size=len(rows), max_size=len(rows)))
    own = [
        [sparse(each, shape, dtype, rank=rank) for each, (shape, dtype) in zip(one, SHAPES, strict=True)]
        for rank, one in enumerate(rows)
    ]

    def main(job: VirtualJob) -> list[Tensor]:
        rank = job.place.rank
        return SparseMean(own[rank], group=job.group("cpu"), weight=weights[rank]).wait()

    found = simulate(main, num_workers=len(rows), cluster=parse_cluster("4x1gbe")).values()
    for number, (shape, dtype) in enumerate(SHAPES):
        expected = sum(weight * one[number].to_dense() for weight, one in zip(weights, own, strict=True))
        for means in found:
            assert means is not None
            mean = means[number]
            assert (mean.shape, mean.dtype, mean.is_coalesced()) == (shape, dtype, True)
            assert mean.indices()[0].tolist() == sorted({row for one in rows for row in one[number]})
            torch.testing.assert_close(mean.to_dense(), expected)


def test_few_rows_take_the_time_and_the_bytes_of_few_rows():
    def main(job: VirtualJob) -> tuple[float, int]:
        gradient = sparse([job.place.rank, 3], (1_000_000, 25), torch.float32, rank=0)
        SparseMean([gradient], group=job.group("cpu"), weight=0.25).wait()
        return job.clock.now_s(), job.bytes_sent()["collective"]

    for took_s, sent_bytes in simulate(
        main, num_workers=4, cluster=replace(parse_cluster("4x1gbe"), collectives="nccl")
    ).values():
        assert sent_bytes == 3 * (8 + 2 * 8 + 2 * 100)
        assert took_s == pytest.approx(3 * 3 * 50e-6, rel=0.02)
