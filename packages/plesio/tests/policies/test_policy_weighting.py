import math

import hypothesis.strategies as st
import pytest
from hypothesis import given

from plesio.core.errors import PolicySpecError
from plesio.policies import UNWEIGHTED, Cap, Exponential, Inverse, Product, Weighting, parse_weighting

SINGLE: tuple[st.SearchStrategy[Weighting], ...] = (
    st.builds(Inverse),
    st.builds(Exponential, rate=st.floats(0, 1e30)),
    st.builds(Cap, limit=st.integers(0, 10**6)),
)


@st.composite
def weightings(draw: st.DrawFn) -> Weighting:
    kinds = draw(st.lists(st.sampled_from(range(len(SINGLE))), unique=True, max_size=3))
    factors = tuple(draw(SINGLE[kind]) for kind in kinds)
    if not factors:
        return UNWEIGHTED
    return factors[0] if len(factors) == 1 else Product(factors)


@given(weightings())
def test_spec_reads_back_as_the_same_weighting(weighting: Weighting):
    assert parse_weighting(weighting.spec) == weighting


@given(weightings(), st.integers(0, 10**6), st.integers(0, 10**6))
def test_fresh_updates_count_fully_and_older_ones_never_more(weighting: Weighting, tau: int, later: int):
    assert weighting(0) == 1.0
    assert 0.0 <= weighting(tau + later) <= weighting(tau) <= 1.0
    assert weighting.discards(tau) == (weighting(tau) == 0.0)


@pytest.mark.parametrize(
    ("spec", "weights"),
    [
        ("none", (1.0, 1.0, 1.0, 1.0)),
        ("inverse", (1.0, 1 / 2, 1 / 3, 1 / 4)),
        ("exp:0.5", (1.0, math.exp(-0.5), math.exp(-1.0), math.exp(-1.5))),
        ("cap:2", (1.0, 1.0, 1.0, 0.0)),
        ("inverse+cap:1", (1.0, 1 / 2, 0.0, 0.0)),
        ("exp:1+inverse", (1.0, math.exp(-1) / 2, math.exp(-2) / 3, math.exp(-3) / 4)),
    ],
)
def test_weights_by_hand(spec: str, weights: tuple[float, ...]):
    weighting = parse_weighting(spec)
    assert tuple(weighting(tau) for tau in range(4)) == pytest.approx(weights, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("invers", 'unknown weighting "invers"; did you mean "inverse"?'),
        ("", "unknown weighting"),
        ("inverse:2", 'write "inverse"'),
        ("exp", 'as in "exp:0.1"'),
        ("exp:-1", "write a number of 0 or more"),
        ("exp:nan", "write a number of 0 or more"),
        ("exp:inf", "write a number of 0 or more"),
        ("cap", 'as in "cap:8"'),
        ("cap:1.5", 'as in "cap:8"'),
        ("cap:-1", "write a whole number of 0 or more"),
        ("none+cap:3", "joins different weightings"),
        ("cap:3+cap:4", "joins different weightings"),
        ("inverse+", "unknown weighting"),
    ],
)
def test_bad_text_is_refused_with_what_to_write(text: str, message: str):
    with pytest.raises(PolicySpecError) as error:
        parse_weighting(text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
