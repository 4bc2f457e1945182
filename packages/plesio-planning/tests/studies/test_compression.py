import math

import pytest

from plesio.core.errors import ConfigError
from plesio.policies.compression import NO_COMPRESSION, Compression, parse_compression
from plesio_planning.studies import compression
from plesio_planning.studies.compressed_descent import Levels, descend, parse_scheme


def iterations(text: str, *, seed: int = 0) -> int | None:
    stage, step = parse_scheme(text, dimension=1000)
    return _descent(stage, step, seed=seed)


def _descent(stage: Compression, step: float, *, seed: int) -> int | None:
    return descend(
        stage, step=step, dimension=1000, condition=1000.0, tolerance=1e-4, most=40_000, seed=seed
    ).iterations


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        ("none", 870),
        ("none@0.3", 2890),
        ("topk:0.05@0.3", 2890),
        ("topk:0.05+no_feedback@0.3", 15850),
        ("topk:0.1", 870),
        ("topk:0.1+no_feedback", 2370),
        ("topk:0.01@0.1", 8660),
        ("topk:0.01@0.3", None),
    ],
)
def test_reference_values(scheme: str, expected: int | None):
    """studies/reference.md, study 6: what is not random is exact."""
    assert iterations(scheme) == expected


@pytest.mark.parametrize(("levels", "expected"), [(1, 28330), (3, 10000), (15, 2700), (127, 930)])
def test_reference_values_of_random_rounding(levels: int, expected: int):
    """The same start with other roundings: the reference is among them, at 1 % or the 10 that counts are rounded to."""
    assert iterations(f"levels:{levels}") == pytest.approx(expected, rel=0.01, abs=10)
    assert Levels(levels=levels).variance(1000) == min(1000 / levels**2, math.sqrt(1000) / levels)


def test_feedback_is_what_makes_top_k_as_good_as_sending_everything():
    answer = compression(schemes=("topk:0.1", "topk:0.1+no_feedback", "topk:0.01@0.3"))
    assert answer.run("topk:0.1").iterations == answer.dense.iterations
    assert answer.run("topk:0.1").iterations < answer.run("topk:0.1+no_feedback").iterations  # type: ignore[operator]
    assert answer.run("topk:0.01@0.3").diverged
    assert "topk:0.01@0.3" in answer.finding


@pytest.mark.parametrize("scheme", ["topk:0.1", "levels:127", "sign", "fp16"])
def test_at_the_break_even_bandwidth_both_take_as_long(scheme: str):
    limit = compression(schemes=(scheme,)).run(scheme).break_even_bytes_per_s
    assert limit is not None
    at = compression(schemes=(scheme,), bytes_per_s=limit)
    assert at.run(scheme).total_s == pytest.approx(at.dense.total_s)
    below = compression(schemes=(scheme,), bytes_per_s=limit / 2)
    assert below.run(scheme).total_s < below.dense.total_s


def test_bytes_are_those_of_the_librarys_own_collectives():
    answer = compression(schemes=("topk:0.1",), gradient_bytes=4e6, num_workers=4)
    stage = parse_compression("topk:0.1")
    assert answer.run("topk:0.1").sent_bytes == stage.sent_bytes(1_000_000, num_ranks=4)
    assert answer.dense.sent_bytes == NO_COMPRESSION.sent_bytes(1_000_000, num_ranks=4)
    places = stage.payload_bits(1_000_000) - 32 * 100_000
    assert places > 100_000 * math.log2(10)  # a place takes more than its entropy's leading term


def test_a_slow_codec_makes_compressing_pay_less():
    fast, slow = (compression(schemes=("topk:0.1",), codec_bytes_per_s=speed) for speed in (1e10, 1e8))
    assert fast.run("topk:0.1").break_even_bytes_per_s > slow.run("topk:0.1").break_even_bytes_per_s  # type: ignore[operator]
    assert compression(schemes=("topk:0.5",)).run("topk:0.5").break_even_bytes_per_s is None  # gathered, it is more


@pytest.mark.parametrize("wrong", [{"num_workers": 0}, {"condition_number": 1.0}])
def test_nobody_and_one_curvature_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="write"):
        compression(schemes=("none",), **wrong)  # type: ignore[arg-type]
