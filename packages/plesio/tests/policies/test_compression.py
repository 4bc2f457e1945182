import math

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given

from plesio.core.errors import PolicySpecError
from plesio.policies.compression import (
    NO_COMPRESSION,
    Compression,
    HalfPrecision,
    PowerSgd,
    Qsgd,
    RandomK,
    TopK,
    TwoBits,
    parse_compression,
    place_bits,
)

SHAPES = [(16, 1, 3, 3), (16,), (64, 512), (64,), (10, 64), (10,)]
DENSITIES = st.floats(1e-6, 1.0)


@st.composite
def compressions(draw: st.DrawFn) -> Compression:
    feedback = draw(st.booleans())
    guard = draw(st.none() | st.floats(1e-3, 1e30)) if feedback else None
    kind = draw(st.sampled_from(["none", "fp16", "bf16", "topk", "randk", "qsgd", "powersgd"]))
    match kind:
        case "none":
            return NO_COMPRESSION
        case "topk":
            chunk, bits = draw(st.none() | st.integers(1, 10**6)), draw(st.sampled_from([2, 32]))
            return TopK(density=draw(DENSITIES), chunk=chunk, bits=bits, feedback=feedback, guard=guard)
        case "randk":
            return RandomK(density=draw(DENSITIES), feedback=feedback, guard=guard)
        case "qsgd":
            if draw(st.booleans()):
                return TwoBits(feedback=feedback, guard=guard)
            return Qsgd(bits=draw(st.sampled_from([4, 8])), feedback=feedback, guard=guard)
        case "powersgd":
            return PowerSgd(rank=draw(st.integers(1, 64)), feedback=feedback, guard=guard)
    return HalfPrecision(form="fp16" if kind == "fp16" else "bf16", feedback=feedback, guard=guard)


@given(compressions())
def test_spec_reads_back_as_the_same_compression(compression: Compression):
    assert parse_compression(compression.spec) == compression
    assert hash(parse_compression(compression.spec)) == hash(compression)
    assert "," not in compression.spec


@pytest.mark.parametrize(
    ("text", "spec", "keeps"),
    [
        ("none", "none", False),
        (" BF16 ", "bf16", False),
        ("fp16+feedback", "fp16+feedback", True),
        ("topk:0.01", "topk:0.01", True),
        ("topk : 1e-3 + no_feedback", "topk:0.001+no_feedback", False),
        ("randk:1+feedback", "randk:1", True),
        ("qsgd:4", "qsgd:4", False),
        ("qsgd:2", "qsgd:2", True),
        ("topk:0.016+no_feedback+bits:2+chunks:4096", "topk:0.016+chunks+bits:2+no_feedback", False),
        ("qsgd:4+feedback+guard:20", "qsgd:4+feedback+guard:20", True),
        ("powersgd:2+guard:1.5", "powersgd:2+guard:1.5", True),
    ],
)
def test_options_and_their_defaults(text: str, spec: str, keeps: bool):
    assert (parse_compression(text).spec, parse_compression(text).keeps_residual) == (spec, keeps)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("topj:0.01", 'unknown compression "topj"; did you mean "topk"?'),
        ("zip", 'unknown compression "zip"; known: bf16, fp16, none, powersgd, qsgd, randk, topk'),
        ("topk", 'topk needs the share of the numbers that is sent, as in "topk:0.01"'),
        ("topk:few", 'topk needs the share of the numbers that is sent, as in "topk:0.01"'),
        ("topk:2", "density is 2; write a number of more than 0, at most 1"),
        ("randk:nan", "density is nan; write a number of more than 0, at most 1"),
        ("qsgd:3", "bits is 3; write 2, 4 or 8"),
        ("qsgd:8.0", 'qsgd needs 2, 4 or 8 bits, as in "qsgd:8"'),
        ("powersgd:0", "rank is 0; write a whole number of 1 or more"),
        ("bf16:8", 'bf16 takes no ":8"; write "bf16"'),
        ("none+feedback", 'none loses nothing and has no options; write "none"'),
        (
            "topk:0.1+memory",
            'unknown option "memory"; known: bits:2, chunks:NUMBERS, feedback, guard:MULTIPLE, no_feedback',
        ),
        ("qsgd:4+chunks", 'unknown option "chunks"; known: feedback, guard:MULTIPLE, no_feedback'),
        ("topk:0.1+chunks:0", 'chunks is "0"; write a whole number above 0, as in "chunks:4096" or "bits:2"'),
        ("topk:0.1+chunks:4+chunks", '"chunks" is given twice; write it once'),
        ("topk:0.1+bits:4", "bits is 4; write 2 or 32"),
        ("topk:0.1+chunks:all", 'chunks is "all"; write a whole number above 0, as in "chunks:4096" or "bits:2"'),
        ("topk:0.1+feedback+no_feedback", '"feedback" is given twice; write it once'),
        ("topk:0.1+guard", 'guard is ""; write a multiple above 0, as in "guard:20"'),
        ("topk:0.1+guard:0", 'guard is "0"; write a multiple above 0, as in "guard:20"'),
        ("qsgd:8+guard:3", "qsgd:8: without feedback there is nothing to guard; leave the guard out"),
    ],
)
def test_errors_say_what_to_write(text: str, message: str):
    with pytest.raises(PolicySpecError) as caught:
        parse_compression(text)
    assert str(caught.value) == (message if message.startswith("unknown c") else f'compression "{text}": {message}')


def test_unknown_half_form():
    with pytest.raises(PolicySpecError, match=r'form is "fp8"; '):
        HalfPrecision(form="fp8")  # type: ignore[arg-type]


@given(st.integers(1, 10**9), st.data())
def test_places_take_no_more_bits_than_plain_ones_or_a_bitmap_and_little_more_than_their_entropy(
    among: int, data: st.DataObject
):
    places = data.draw(st.integers(1, among))
    bits = place_bits(places, among=among)
    assert bits <= among
    if places >= 8:
        assert bits <= places * max(1, math.ceil(math.log2(among)))
    assume(places <= among // 3)
    choices = math.lgamma(among + 1) - math.lgamma(places + 1) - math.lgamma(among - places + 1)
    # Elias-Fano: at most 2 + log2(n/k) bits a place, where log2(e) + log2(n/k) is the entropy of few among many
    assert bits <= places * (2 + math.log2(among / places))
    assert bits >= choices / math.log(2) - 1


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("none", 32 * 1000),
        ("fp16", 16 * 1000),
        ("topk:0.01", 10 * 32 + 10 * (6 + 1) + (999 >> 6)),
        ("topk:0.5", 500 * 32 + 1000),
        ("topk:0.001", 32 + 9 + 1 + (999 >> 9)),
        ("randk:0.05", 50 * 32),
        ("randk:0.0501", 51 * 32),
        ("qsgd:8", 8 * 1000 + 2 * 32),
        ("qsgd:4", 4 * 1000 + 8 * 32),
        ("qsgd:2", 2 * 1000 + 2 * 64),
        ("topk:0.01+chunks:300", 10 * 32 + 10 * (6 + 1) + (999 >> 6)),
        ("topk:0.005+chunks:300+bits:2", 8 * (8 + 2) + 7 * (7 + 1) + (999 >> 7)),
        ("powersgd:2", 32 * 1000),
    ],
)
def test_closed_forms_of_a_thousand_numbers(text: str, bits: int):
    compression = parse_compression(text)
    assert compression.payload_bits(1000) == compression.payload_bits([(1000,)]) == bits


def test_the_density_counts_as_it_is_written():
    assert TopK(density=0.07).num_kept(100) == 7, "0.07 * 100 is more than 7 in floating point"


def test_power_sgd_factors_what_becomes_smaller():
    # of (16, 9), (64, 512) and (10, 64); the bias vectors and nothing else are sent in full
    numbers = 2 * (16 + 9) + 16 + 2 * (64 + 512) + 64 + 2 * (10 + 64) + 10
    compression = PowerSgd(rank=2)
    assert compression.payload_bits(SHAPES) == 32 * numbers
    assert compression.contraction(SHAPES) == 2 / 64
    assert PowerSgd(rank=8).factors((10, 64)) == (10, 64, 8)
    assert PowerSgd(rank=9).factors((10, 64)) is None, "9 * 74 numbers are more than 640"


@given(compressions(), st.integers(1, 300))
def test_what_is_sent_follows_from_what_is_contributed(compression: Compression, num_ranks: int):
    collectives = compression.collectives(SHAPES, num_ranks=num_ranks)
    payload = -(-compression.payload_bits(SHAPES) // 8)
    gathered, reduced, scattered = (
        sum(each.num_bytes for each in collectives if each.operation == operation)
        for operation in ("all_gather", "all_reduce", "all_to_all")
    )
    if scattered:  # parts are rounded up, and each has scales of its own
        assert gathered == scattered
        assert payload <= scattered <= payload + num_ranks * (9 + compression.keeps_residual)
    else:
        assert 0 <= gathered / num_ranks + reduced - payload <= 4 * compression.keeps_residual
    sent = compression.sent_bytes(SHAPES, num_ranks=num_ranks)
    assert sent == pytest.approx((num_ranks - 1) / num_ranks * (scattered + gathered + 2 * reduced), abs=1.5)


@given(compressions())
def test_all_are_contractions_with_a_limit_for_the_residual(compression: Compression):
    delta = compression.contraction(SHAPES)
    assert 0 < delta <= 1
    limit = compression.residual_limit(SHAPES)
    assert limit > 0
    if getattr(compression, "guard", None) is None:
        assert limit >= 1
        assert limit >= 2 * math.sqrt(1 - delta) / delta


def test_the_more_ranks_the_less_a_gathering_saves_and_a_sum_by_parts_always_as_much():
    dense, sparse, levels = (parse_compression(text) for text in ("none", "topk:0.01", "qsgd:8"))
    saved = [dense.sent_bytes(10**6, num_ranks=n) / levels.sent_bytes(10**6, num_ranks=n) for n in (2, 4, 8)]
    assert [round(ratio, 2) for ratio in saved] == [3.97, 3.97, 3.97]
    assert sparse.sent_bytes(10**6, num_ranks=157) < dense.sent_bytes(10**6, num_ranks=157)
    assert sparse.sent_bytes(10**6, num_ranks=159) > dense.sent_bytes(10**6, num_ranks=159)
