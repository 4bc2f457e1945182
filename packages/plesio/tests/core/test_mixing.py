"""Mixing matrices: what all of them keep, how late their mixings may be, and which are refused."""

import re
from collections import deque
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from plesio.core.errors import ConfigError
from plesio.core.mixing import GRAPHS, Mixing

graphs = st.sampled_from(GRAPHS)
sizes = st.integers(1, 40)


@st.composite
def matrices(draw: st.DrawFn) -> Mixing:
    """``I - ε Laplacian`` of a random connected graph with random weights; what is widest apart varies."""
    size = draw(st.integers(2, 6))
    weights = np.zeros((size, size))
    for place in range(1, size):
        weights[place, draw(st.integers(0, place - 1))] = draw(st.floats(0.2, 1))
    for _ in range(draw(st.integers(0, 4))):
        one, other = draw(st.integers(0, size - 1)), draw(st.integers(0, size - 1))
        if one > other:
            weights[one, other] = draw(st.floats(0.2, 1))
    weights += weights.T
    laplacian = np.diag(weights.sum(axis=1)) - weights
    mixing = np.eye(size) - draw(st.floats(0.1, 1)) * laplacian / np.diag(laplacian).max()
    assume(np.abs(np.sort(np.linalg.eigvalsh(mixing))[:-1]).max() < 1 - 1e-6)
    return Mixing.given(mixing.tolist())


def left_of(mixing: Mixing, lost: Sequence[int]) -> np.ndarray:
    """The matrix that is left: neighbours of lost replicas keep their share for themselves."""
    left = [place for place in range(mixing.size) if place not in lost]
    rest = np.array([[mixing.neighbours(place).get(other, 0.0) for other in left] for place in left])
    return rest + np.diag(1 - rest.sum(axis=1))


@given(graph=graphs, size=sizes)
def test_a_graphs_matrix_is_symmetric_doubly_stochastic_and_connected(graph: str, size: int):
    mixing = Mixing.on(graph, size)
    assert Mixing.given(mixing.matrix).matrix == mixing.matrix
    assert mixing.size == size
    assert mixing.unreached(lost=()) == []
    assert 0 < mixing.spectral_gap <= 1


@pytest.mark.parametrize("graph", GRAPHS)
def test_one_replica_has_nobody_to_mix_with(graph: str):
    mixing = Mixing.on(graph, 1)
    assert mixing.matrix == ((1.0,),)
    assert mixing.neighbours(0) == {}
    assert mixing.rho == 0


@pytest.mark.parametrize("size", [3, 8, 15])
def test_a_rings_gap_is_the_closed_form(size: int):
    cosines = np.cos(2 * np.pi * np.arange(1, size) / size)
    assert Mixing.on("ring", size).rho == pytest.approx(np.abs((1 + 2 * cosines) / 3).max())


def test_a_better_connected_graph_has_the_larger_gap():
    gaps = [Mixing.on(graph, 16).spectral_gap for graph in ("ring", "exponential", "all")]
    assert gaps == sorted(gaps)
    assert gaps[-1] == pytest.approx(1)


@given(mixing=matrices(), seed=st.integers(0, 99))
def test_a_mixing_keeps_the_mean_and_shrinks_the_distance_by_rho(mixing: Mixing, seed: int):
    x = np.random.default_rng(seed).normal(size=(mixing.size, 3))
    mixed = np.array(mixing.matrix) @ x
    assert mixed.mean(axis=0) == pytest.approx(x.mean(axis=0), abs=1e-12)
    distance = np.linalg.norm(x - x.mean(axis=0))
    assert np.linalg.norm(mixed - x.mean(axis=0)) <= mixing.rho * distance + 1e-12


def _drift_apart(mixing: Mixing, late: int) -> bool:
    """Return True if replicas drift apart under ``x_{j+1} = x_j + (P - I) x_{j-n}``, by a hundredfold change.

    They begin with the difference that is the first to grow: others may shrink a hundredfold before it is seen.
    """
    change = np.array(mixing.matrix) - np.eye(mixing.size)
    start = np.linalg.eigh(change)[1][:, 0]
    states = deque([start] * (late + 1))
    distances = deque([1.0], maxlen=2 * late + 2)  # more than a half swing
    while 1e-2 < max(distances) < 1e2:
        states.append(states[-1] + change @ states[0])
        states.popleft()
        distances.append(float(np.linalg.norm(states[-1])))
    return max(distances) > 1


@settings(max_examples=50)
@given(mixing=matrices())
def test_late_mixings_are_stable_exactly_as_far_as_is_said(mixing: Mixing):
    late = mixing.most_mixings_late()
    widest = 1 - np.linalg.eigvalsh(np.array(mixing.matrix))[0]
    limits = [2 * np.sin(np.pi / (2 * (2 * n + 1))) for n in (late, late + 1)]
    assume(min(abs(widest / limit - 1) for limit in limits) > 0.03)  # nearer, the simulation takes forever to tell
    assert not _drift_apart(mixing, late)
    assert _drift_apart(mixing, late + 1)


@given(mixing=matrices(), data=st.data())
def test_what_is_left_when_replicas_are_lost_is_a_mixing_that_may_be_as_late(mixing: Mixing, data: st.DataObject):
    lost = data.draw(st.lists(st.integers(0, mixing.size - 1), max_size=mixing.size - 1, unique=True))
    rest = left_of(mixing, lost)
    assert rest == pytest.approx(rest.T)
    assert rest.sum(axis=0) == pytest.approx(1)
    assert rest.min() >= -1e-12
    before, after = (np.linalg.eigvalsh(matrix)[0] for matrix in (np.array(mixing.matrix), rest))
    assert after >= before - 1e-9  # by interlacing: so no delay that was stable is unstable now
    reaches_all = np.linalg.matrix_power(rest > 0, mixing.size).all()
    assert (mixing.unreached(lost=lost) == []) == reaches_all


_THIRD = 1 / 3


@pytest.mark.parametrize(
    ("matrix", "said"),
    [
        ([], "a mixing matrix is square"),
        ([[0.5, 0.5]], "a mixing matrix is square; this one has rows of [2]"),
        ([[1.0], [0.5, 0.5]], "square; this one has rows of [1, 2]"),
        ([[0.5, float("nan")], [0.5, 0.5]], "one of these is negative, or no number"),
        ([[0.5, float("inf")], [0.5, 0.5]], "one of these is negative, or no number"),
        ([[1.5, -0.5], [-0.5, 1.5]], "one of these is negative, or no number"),
        ([[0.5, 0.4], [0.4, 0.6]], "doubly stochastic; its row 0 adds up to 0.9, not 1"),
        ([[0.5, 0.5, 0], [0, 0.5, 0.5], [0.5, 0, 0.5]], "symmetric; this one has 0.5 at (0, 1) and 0 at (1, 0)"),
        ([[1.0, 0.0], [0.0, 1.0]], "not connected: group 1 never hears of group 0; give some pair"),
        ([[0.0, 1.0], [1.0, 0.0]], "a spectral gap of 0: its groups pass their weights to and fro and never agree"),
        (
            [[0, 0.5, 0, 0.5], [0.5, 0, 0.5, 0], [0, 0.5, 0, 0.5], [0.5, 0, 0.5, 0]],
            "give some group a weight of its own, on the diagonal",
        ),
    ],
)
def test_a_matrix_that_cannot_be_mixed_with_is_refused_in_one_line(matrix: list[list[float]], said: str):
    with pytest.raises(ConfigError, match=re.escape(said)) as error:
        Mixing.given(matrix)
    assert "\n" not in str(error.value)


def test_a_graph_that_is_none_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match='there is no graph "rign" to mix on; did you mean "ring"'):
        Mixing.on("rign", 4)


def test_a_matrix_that_is_symmetric_but_for_rounding_keeps_the_mean_all_the_same():
    mixing = Mixing.given([[0.5, 0.5000004], [0.5, 0.5]])
    assert mixing.matrix[0][1] == mixing.matrix[1][0]
