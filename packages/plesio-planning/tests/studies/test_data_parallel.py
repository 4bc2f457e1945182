from itertools import pairwise

import pytest

from plesio.cli.commands import invoke
from plesio.core.charts import Timeline
from plesio_planning.studies import data_parallel


def test_reference_values():
    """studies/reference.md, study 1."""
    answer = data_parallel()
    assert answer.at.all_reduce_s == pytest.approx(60.9e-3, abs=0.05e-3)
    assert answer.total == pytest.approx(185.9e-3, abs=0.05e-3)
    assert answer.at.efficiency == pytest.approx(0.672, abs=0.0005)
    assert answer.at.speedup == pytest.approx(172, abs=0.5)
    assert data_parallel(bytes_per_s=50e9).at.all_reduce_s == pytest.approx(33.0e-3, abs=0.05e-3)
    nvlink = data_parallel(bytes_per_s=600e9, latency_s=1e-6)
    assert nvlink.at.all_reduce_s == pytest.approx(2.83e-3, abs=0.006e-3)


def test_what_overlaps_is_hidden_up_to_the_share_of_the_backward_pass_that_it_may():
    half = data_parallel(overlap=0.5)
    assert half.at.exposed_s == pytest.approx(data_parallel().at.exposed_s - 0.5 * 0.080)
    assert data_parallel(overlap=1.0).at.exposed_s == 0


def test_communication_overtakes_computing_where_it_says():
    slow = data_parallel(bytes_per_s=10e9)
    assert slow.overtaken_at is not None
    before = data_parallel(num_workers=slow.overtaken_at - 1, bytes_per_s=10e9)
    at = data_parallel(num_workers=slow.overtaken_at, bytes_per_s=10e9)
    assert before.at.all_reduce_s <= 0.125 < at.at.all_reduce_s
    assert data_parallel().overtaken_at is None


def test_bits_for_bytes_are_refused_on_the_command_line(capsys: pytest.CaptureFixture[str]):
    assert invoke(["study", "data-parallel", "--bandwidth", "25 Gb/s"]) == 2
    assert 'write "25 Gbit/s" (bits) or "25 GB/s" (bytes)' in capsys.readouterr().err


def test_a_tree_is_faster_than_a_ring_below_the_size_that_is_said():
    below = data_parallel().tree_below_bytes
    smaller, larger = (
        {name: times[256] for name, times in data_parallel(gradient_bytes=factor * below).all_reduces_s.items()}
        for factor in (0.9, 1.1)
    )
    assert smaller["tree"] < smaller["ring"]
    assert larger["tree"] > larger["ring"]
    assert data_parallel(algorithm="tree").at.all_reduce_s == pytest.approx(16 * (10e-6 + 700e6 / 25e9))


def test_workers_of_one_host_use_its_links_and_more_use_both():
    scaling = {point.num_workers: point.all_reduce_s for point in data_parallel().scaling}
    assert scaling[8] == pytest.approx(14 * (1e-6 + 700e6 / 8 / 600e9))
    assert scaling[16] == pytest.approx(30 * (10e-6 + 700e6 / 16 / 25e9))
    assert data_parallel(algorithm="hierarchical").at.all_reduce_s == pytest.approx(9.46e-3, abs=0.005e-3)


def test_computing_grows_with_the_batch_and_communication_does_not():
    doubled = data_parallel(batch_size=64)
    assert (doubled.forward_s, doubled.backward_s) == pytest.approx((0.09, 0.16))
    assert doubled.at.all_reduce_s == data_parallel().at.all_reduce_s
    assert doubled.at == data_parallel().by_batch[64]


def test_who_waits_for_the_slowest_is_idle():
    """The slowest of 256 lognormal times with a CV of 0.2 takes 1.722 times the mean (reference, study 2)."""
    varied = data_parallel(cv=0.2)
    assert varied.at.waiting_s == pytest.approx(0.722 * 0.125, rel=0.002)
    assert sum(varied.parts.values()) == pytest.approx(varied.total)
    (timeline,) = [chart for chart in varied.charts() if isinstance(chart, Timeline)]
    for row in range(len(timeline.rows)):
        spans = sorted((span for span in timeline.spans if span.row == row), key=lambda span: span.start)
        assert all(one.end == pytest.approx(next_one.start) for one, next_one in pairwise(spans))
    assert {span.kind for span in timeline.spans} >= {"waits for the slowest", "link idle", "all-reduce"}
