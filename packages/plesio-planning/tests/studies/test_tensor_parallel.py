"""The cuts are also done, with numpy, to count what they send."""

import numpy as np
import pytest
from numpy.typing import NDArray

from plesio_planning.studies import tensor_parallel
from plesio_planning.studies.tensor_cuts import cut_bytes, pays_from_tokens

Matrix = NDArray[np.float64]


def test_reference_values():
    """studies/reference.md, study 17."""
    at = tensor_parallel().at
    assert at.sent_bytes == pytest.approx(33.8e9, abs=0.05e9)
    assert at.communicating_s == pytest.approx(0.113, abs=0.0005)
    assert at.computing_s == pytest.approx(1.76, abs=0.005)
    assert at.share == pytest.approx(0.060, abs=0.0005)
    one_all_reduce = 2048 * 12288 * 2
    assert at.sent_bytes == 96 * 4 * one_all_reduce * 2 * 7 / 8


def test_megatrons_pair_needs_one_sum_a_pass():
    """An MLP in four shards: what is summed up, forward and backward, is all that shards have to exchange."""
    random = np.random.default_rng(0)
    x, first, second, output_gradient = (random.normal(size=shape) for shape in ((6, 8), (8, 32), (32, 8), (6, 8)))
    columns, rows = np.split(first, 4, axis=1), np.split(second, 4, axis=0)
    between = [np.maximum(x @ one, 0) for one in columns]
    partial_outputs = [one @ row for one, row in zip(between, rows, strict=True)]
    np.testing.assert_allclose(sum(partial_outputs), np.maximum(x @ first, 0) @ second)
    between_gradients = [(output_gradient @ row.T) * (one > 0) for one, row in zip(between, rows, strict=True)]
    input_gradients = [one @ column.T for one, column in zip(between_gradients, columns, strict=True)]
    whole = ((output_gradient @ second.T) * (x @ first > 0)) @ first.T
    np.testing.assert_allclose(sum(input_gradients), whole)
    assert partial_outputs[0].size == input_gradients[0].size == x.size  # all-reduces of tokens x hidden


def summa(left: Matrix, right: Matrix, grid: int) -> tuple[Matrix, int]:
    """A product on a grid of devices, and the elements that all of them receive."""
    lefts = [np.split(row, grid, axis=1) for row in np.split(left, grid, axis=0)]
    rights = [np.split(row, grid, axis=1) for row in np.split(right, grid, axis=0)]
    received = 0
    blocks: list[list[Matrix]] = [[np.zeros(()) for _ in range(grid)] for _ in range(grid)]
    for step in range(grid):
        for i in range(grid):
            for j in range(grid):
                received += lefts[i][step].size * (j != step) + rights[step][j].size * (i != step)
                blocks[i][j] = blocks[i][j] + lefts[i][step] @ rights[step][j]
    return np.block(blocks), received


@pytest.mark.parametrize("grid", [1, 2, 4])
def test_the_2d_cut_receives_what_it_says(grid: int):
    tokens, hidden = 32, 16
    random = np.random.default_rng(1)
    received = 0
    for a, b in ((1, 3), (1, 1), (1, 4), (4, 1)):
        left, right = random.normal(size=(tokens, a * hidden)), random.normal(size=(a * hidden, b * hidden))
        product, elements = summa(left, right, grid)
        np.testing.assert_allclose(product, left @ right)
        received += elements
    cut = cut_bytes(num_devices=grid**2, tokens=tokens, hidden=hidden, element_bytes=1)["2D"]
    assert cut.forward * grid**2 == received
    assert cut.backward == 2 * cut.forward


def test_pairs_send_less_than_matrices_by_themselves():
    cuts = cut_bytes(num_devices=8, tokens=2048, hidden=12288)
    assert cuts["Megatron"].both < min(cuts["columns"].both, cuts["rows"].both)
    assert cuts["columns"].both / cuts["Megatron"].both == pytest.approx(23 / 8)
    assert cuts["rows"].both / cuts["Megatron"].both == pytest.approx(25 / 8)
    assert cuts["sequence"].forward == cuts["Megatron"].forward
    assert "2D" not in cuts


@pytest.mark.parametrize("devices", [4, 16, 64])
def test_the_2d_cut_pays_from_where_it_says(devices: int):
    tokens = pays_from_tokens(num_devices=devices, hidden=1024)
    before, after = (
        cut_bytes(num_devices=devices, tokens=round(tokens * factor), hidden=1024) for factor in (0.99, 1.01)
    )
    assert before["2D"].both > before["Megatron"].both
    assert after["2D"].both < after["Megatron"].both


def test_the_nodes_boundary_shows():
    points = {point.num_devices: point for point in tensor_parallel().by_devices}
    assert points[1].communicating_s == 0
    assert points[16].communicating_s > 1.5 * points[8].communicating_s
    one_node = {point.num_devices: point for point in tensor_parallel(devices_per_host=64).by_devices}
    assert one_node[16].communicating_s < 1.1 * one_node[8].communicating_s
    assert points[8].sequence_activation_bytes < points[8].activation_bytes
