"""Every codec against the laws that are stated of it."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from plesio.policies.compression import Compression, PowerSgd, parse_compression
from plesio.runtime.parameters.codecs import make_codec
from plesio.runtime.worker.compression.power_sgd import Factoring

CODECS = ["fp16", "bf16", "topk:0.01", "topk:0.5", "topk:1", "randk:0.05", "randk:0.05+no_feedback", "randk:1",
          "qsgd:8", "qsgd:4", "qsgd:2", "topk:0.02+chunks:64", "topk:0.1+chunks:64+bits:2"]  # fmt: skip
EXACT = [text for text in CODECS if parse_compression(text).keeps_residual and ":2" not in text]
SIZES = [1, 2, 127, 128, 1000, 4097]


def vector(size: int, *, seed: int = 0) -> Tensor:
    """Numbers of very different magnitudes, as gradients have them."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=generator) * torch.rand(size, generator=generator).pow(3)


def through(text: str, update: Tensor, *, clock: int = 0, rank: int = 0) -> Tensor:
    codec = make_codec(parse_compression(text), num_elements=len(update), seed=7, rank=rank)
    return codec.decode(codec.encode(update, clock=clock), clock=clock)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("text", CODECS)
def test_a_payload_is_as_long_as_its_closed_form_says(text: str, size: int):
    compression = parse_compression(text)
    update = vector(size)
    kept = update.clone()
    payload = make_codec(compression, num_elements=size, seed=7, rank=0).encode(update, clock=3)
    assert payload.view(torch.uint8).numel() == -(-compression.payload_bits(size) // 8)
    assert payload.untyped_storage().nbytes() == payload.view(torch.uint8).numel(), "nothing else travels along"
    assert torch.equal(update, kept)


@pytest.mark.parametrize("text", CODECS)
def test_the_same_seed_rank_and_clock_give_the_same_bytes_whatever_else_is_drawn(text: str):
    update = vector(1000)
    once = make_codec(parse_compression(text), num_elements=1000, seed=7, rank=1).encode(update, clock=5)
    torch.manual_seed(99)
    before = torch.get_rng_state()
    codec = make_codec(parse_compression(text), num_elements=1000, seed=7, rank=1)
    codec.encode(update, clock=4)
    assert torch.equal(codec.encode(update, clock=5), once)
    assert torch.equal(torch.get_rng_state(), before), "the global generator is the user's"


@pytest.mark.parametrize("text", CODECS)
def test_adding_a_payload_is_adding_what_it_decodes_to(text: str):
    codec = make_codec(parse_compression(text), num_elements=1000, seed=7, rank=0)
    payload = codec.encode(vector(1000), clock=2)
    decoded = codec.decode(payload, clock=2)
    for dtype in (torch.float32, torch.float64):
        into = vector(1000, seed=1).to(dtype)
        expected = into - 0.5 * decoded.to(dtype)
        codec.add(payload, to=into, clock=2, scale=-0.5)
        torch.testing.assert_close(into, expected)


@pytest.mark.parametrize("text", EXACT)
def test_what_a_sparse_codec_sends_is_sent_exactly(text: str):
    update = vector(1000)
    decoded = through(text, update)
    sent = decoded != 0
    assert torch.equal(decoded[sent], update[sent])
    assert int(sent.sum()) == parse_compression(text).num_kept(1000)  # type: ignore[attr-defined]


def test_top_k_sends_the_largest_and_of_equal_ones_the_first():
    update = torch.tensor([1.0, -5.0, 2.0, 0.5, -2.0, 2.0, 0.0, 4.0, 2.0, -0.1])
    assert through("topk:0.4", update).tolist() == [0, -5, 2, 0, -2, 0, 0, 4, 0, 0]
    assert through("topk:0.2", torch.zeros(10)).tolist() == [0] * 10
    decoded = through("topk:0.3", torch.tensor([1.0, math.nan, -math.inf, 2.0, 0.0, 3.0, 0.0, 0.0, 0.0, 0.0]))
    assert math.isnan(decoded[1])
    assert decoded[2:].tolist() == [-math.inf, 0, 0, 3, 0, 0, 0, 0]


def test_top_k_in_chunks_sends_the_largest_of_each():
    update = torch.tensor([1.0, -5.0, 2.0, 0.5, -2.0, 2.0, 0.0, 0.0, 0.3, -0.1])
    assert through("topk:0.5+chunks:4", update).tolist() == [0, -5, 2, 0, -2, 2, 0, 0, pytest.approx(0.3), 0]


def test_two_bits_are_the_mean_magnitudes_of_large_and_small_numbers():
    update = torch.tensor([1.0, -1.0, 2.0, -2.0, 10.0, -12.0, 0.0])
    assert through("qsgd:2", update).tolist() == pytest.approx([1.2, -1.2, 1.2, -1.2, 11, -11, 1.2])
    kept = through("qsgd:2", normal := torch.randn(10**5, generator=torch.Generator().manual_seed(1)))
    assert float((kept - normal).square().sum() / normal.square().sum()) == pytest.approx(0.1175, abs=2e-3), "Max 1960"
    assert through("qsgd:2", torch.full((3,), math.nan)).isnan().all()
    assert through("qsgd:2", torch.full((600,), 3e38)).tolist() == [pytest.approx(3e38)] * 600


def test_top_k_on_other_devices_finds_the_same_threshold(monkeypatch: pytest.MonkeyPatch):
    magnitudes = vector(1000).view(torch.int32) & 0x7FFF_FFFF
    for number in (1, 10, 500, 1000):
        assert magnitudes.sort(descending=True).values[number - 1] == magnitudes.kthvalue(1000 - number + 1).values


def test_random_places_are_one_in_each_block_alike_on_all_ranks_and_others_at_every_clock():
    compression = parse_compression("randk:0.1")
    drawn = []
    for clock in range(300):
        ranks = [make_codec(compression, num_elements=103, seed=7, rank=rank) for rank in range(3)]
        places = [codec.decode(codec.encode(torch.ones(103), clock=clock), clock=clock) for codec in ranks]
        assert torch.equal(places[0], places[1])
        assert torch.equal(places[0], places[2])
        drawn.append(places[0])
    counts = torch.stack(drawn).sum(0)
    assert torch.stack(drawn).sum(1).eq(11).all()
    # every place is drawn with probability 1/9 or 1/10 (103 in 11 blocks): 30 to 33 of 300, standard deviation 5.4
    assert counts.min() > 30 - 4 * 5.4
    assert counts.max() < 33.4 + 4 * 5.4


@pytest.mark.parametrize("bits", [4, 8])
def test_qsgd_packs_levels_of_either_sign(bits: int):
    levels = 7 if bits == 4 else 127
    update = torch.arange(-levels, levels + 1).float()
    decoded = through(f"qsgd:{bits}", update)
    torch.testing.assert_close(decoded, update, msg="numbers that lie on a level come back")


@pytest.mark.parametrize("text", ["qsgd:4", "qsgd:8"])
def test_qsgd_of_zeros_tiny_and_huge_numbers(text: str):
    assert through(text, torch.zeros(300)).tolist() == [0.0] * 300
    assert through(text, torch.full((300,), 1e-38)).tolist() == [0.0] * 300
    for size in (1e-25, 1e38):
        decoded = through(text, size * vector(300).sign())
        torch.testing.assert_close(decoded, size * vector(300).sign())
    assert through(text, torch.full((3,), math.nan)).isnan().all()
    assert not through(text, torch.tensor([1.0, math.inf, 0.0])).isfinite().any()


def variance(text: str, update: Tensor) -> Tensor:
    """Return the variance of each number of a decoded payload, in closed form."""
    if text.startswith("randk"):  # in 70 blocks of 10: sent times 10 with probability 1/10
        return 9 * update.double() ** 2
    size, levels = (128, 7) if text == "qsgd:4" else (512, 127)
    steps = torch.cat([(bucket.abs().max() / levels).expand(len(bucket)) for bucket in update.split(size)]).double()
    part = (update / steps).frac().abs()
    return steps**2 * part * (1 - part)


@pytest.mark.parametrize("text", ["qsgd:4", "qsgd:8", "randk:0.1+no_feedback"])
def test_unbiased_within_standard_errors(text: str):
    update = vector(700)
    codec = make_codec(parse_compression(text), num_elements=700, seed=3, rank=0)
    repeats = 600
    mean = torch.zeros(700, dtype=torch.float64)
    for clock in range(repeats):
        mean += codec.decode(codec.encode(update, clock=clock), clock=clock) / repeats
    off = mean - update.double()
    error = (variance(text, update) / repeats).sqrt()
    # The first direction is where a bias towards or away from zero would show. QSGD rounds numbers independently. Of a
    # block of ten random-k sends one, so a sum along a direction varies at most by 10/9 more than if it were so.
    directions = [update.sign(), *torch.randn(20, 700, generator=torch.Generator().manual_seed(1))]
    for direction in directions:
        assert abs(float(off @ direction.double())) < 4 * math.sqrt(10 / 9) * (error * direction).norm()
    varies = error > 1e-6 * update.abs().max()  # a bucket's largest does not
    assert int(varies.sum()) > 650
    assert (off / error)[varies].square().mean() == pytest.approx(1.0, abs=0.25)


@pytest.mark.parametrize("text", ["topk:0.01", "topk:0.3", "fp16", "bf16"])
def test_deterministic_codecs_are_contractions_always(text: str):
    compression = parse_compression(text)
    for seed in range(20):
        for update in (vector(1000, seed=seed), torch.ones(1000), torch.eye(1000)[seed]):
            lost = (update - through(text, update)).square().sum()
            # float32 itself rounds the sum of squares
            assert lost <= (1 - compression.contraction(1000)) * update.square().sum() * (1 + 1e-5)


@pytest.mark.parametrize("text", ["randk:0.05", "qsgd:4", "qsgd:8"])
def test_random_codecs_are_contractions_in_the_mean(text: str):
    compression = parse_compression(text)
    worst = torch.zeros(1000)
    worst[::128] = 14.0  # the others between two levels, of 4 bits: as bad for QSGD as can be
    worst[worst == 0] = 1.0
    for update in (vector(1000), torch.ones(1000), worst):
        lost = [float((update - through(text, update, clock=clock)).square().sum()) for clock in range(100)]
        spread = torch.tensor(lost).std() / math.sqrt(len(lost))
        allowed = (1 - compression.contraction(1000)) * float(update.square().sum())
        assert sum(lost) / len(lost) <= allowed + 3 * float(spread) + 1e-6


def test_qsgd_of_four_bits_loses_much_less_of_a_gradient_than_at_worst():
    update = torch.randn(12_800, generator=torch.Generator().manual_seed(0))
    lost = (update - through("qsgd:4", update)).square().sum() / update.square().sum()
    assert lost < 0.05
    assert 1 - parse_compression("qsgd:4").contraction(12_800) > 0.6


def factored(factoring: Factoring, update: Tensor) -> Tensor:
    """Return the update as one rank alone sends it."""
    first = factoring.first(update)
    bases = factoring.bases(first)
    second = factoring.second(update, bases)
    decoded = torch.zeros_like(update)
    factoring.add(first, bases, second, to=decoded)
    residual = update.clone()
    factoring.subtract(bases, second, of=residual)
    torch.testing.assert_close(residual, update - decoded, atol=1e-6, rtol=0)
    factoring.begin_next_at(second)
    return decoded


SHAPES = [(24, 4, 3), (24,), (30, 40), (3, 2), ()]


def test_factors_are_as_long_as_their_closed_form_says():
    compression = PowerSgd(rank=3)
    factoring = Factoring(compression, shapes=SHAPES, seed=0)
    update = vector(factoring.num_elements)
    first = factoring.first(update)
    second = factoring.second(update, factoring.bases(first))
    assert 32 * (len(first) + len(second)) == compression.payload_bits(SHAPES)


def test_factoring_a_contraction_and_ever_better_from_a_warm_start():
    compression = PowerSgd(rank=2)
    ratios = []
    for seed in range(30):
        factoring = Factoring(compression, shapes=SHAPES, seed=seed)
        update = vector(factoring.num_elements, seed=seed)
        lost = [float((update - factored(factoring, update)).square().sum()) for _ in range(12)]
        assert all(later <= earlier * (1 + 1e-5) for earlier, later in itertools.pairwise(lost))
        assert lost[-1] < lost[0]
        ratios.append(lost[0] / float(update.square().sum()))
    assert max(ratios) < 1
    assert sum(ratios) / len(ratios) <= 1 - compression.contraction(SHAPES)


def test_factoring_a_matrix_of_low_rank_loses_nothing_and_vectors_are_sent_in_full():
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(30, 2, generator=generator) @ torch.randn(2, 40, generator=generator)
    vectors = torch.randn(7, generator=generator)
    update = torch.cat([vectors[:3], matrix.view(-1), vectors[3:]])
    factoring = Factoring(PowerSgd(rank=2), shapes=[(3,), (30, 40), (4,)], seed=0)
    decoded = factored(factoring, update)
    assert torch.equal(decoded[:3], update[:3])
    assert torch.equal(decoded[-4:], update[-4:])
    torch.testing.assert_close(decoded, update, atol=1e-4, rtol=1e-4)


def test_factoring_zeros_and_nan():
    factoring = Factoring(PowerSgd(rank=2), shapes=[(30, 40)], seed=0)
    assert not factored(factoring, torch.zeros(1200)).any()
    update = vector(1200)
    assert (update - factored(factoring, update)).norm() < update.norm(), "zeros left a start to go on from"
    poisoned = factoring.first(torch.full((1200,), math.nan))
    bases = factoring.bases(poisoned)
    second = factoring.second(torch.full((1200,), math.nan), bases)
    assert second.isnan().all()
    factoring.begin_next_at(second)
    assert factored(factoring, update).isfinite().all(), "it began where it was before"


def test_a_model_of_vectors_alone_has_no_second_payload():
    factoring = Factoring(PowerSgd(rank=2), shapes=[(3,), (4,)], seed=0)
    assert not factoring.factors_something
    assert torch.equal(factored(factoring, torch.arange(7.0)), torch.arange(7.0))


@pytest.mark.parametrize("text", CODECS)
def test_an_update_of_nan_says_so(text: str):
    codec = make_codec(parse_compression(text), num_elements=50, seed=0, rank=0)
    assert not codec.decode(codec.encode(torch.full((50,), math.nan), clock=0), clock=0).isfinite().all()


def test_only_what_has_payloads_has_a_codec():
    for compression in map(parse_compression, ("none", "powersgd:2")):
        assert isinstance(compression, Compression)
        with pytest.raises(AssertionError, match="no codec"):
            make_codec(compression, num_elements=3, seed=0, rank=0)


@pytest.mark.parametrize("text", ["qsgd:4", "qsgd:8"])
def test_qsgd_rounds_parts_at_once_each_with_scales_of_its_own(text: str):
    codec = make_codec(parse_compression(text), num_elements=501, seed=0, rank=0)
    parts = torch.randn(3, 501) * torch.tensor([[1e-3], [1.0], [1e3]])
    payloads = codec.encode(parts, clock=4)
    decoded = torch.zeros_like(parts)
    codec.add(payloads, to=decoded, clock=4)
    torch.testing.assert_close(decoded, torch.stack([codec.decode(payload, clock=4) for payload in payloads]))
    levels = 7 if text == "qsgd:4" else 127
    assert ((decoded - parts).abs().amax(1) <= parts.abs().amax(1) / levels).all()
