import numpy as np
import pytest
import torch

from plesio.runtime.monitor import Sketch


def sketch_of(parts: list[torch.Tensor], *, size: int = 64) -> np.ndarray:
    sketch = Sketch(size)
    for part in parts:
        sketch.add(part)
    return np.array(sketch.take())


def test_the_norm_is_exact_and_the_sketch_linear():
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(1000, generator=generator) for _ in range(2))
    assert sketch_of([x])[0] == pytest.approx(float(x.square().sum()), rel=1e-6)
    np.testing.assert_allclose(sketch_of([x])[1:] - sketch_of([y])[1:], sketch_of([x - y])[1:], atol=1e-4)


def test_parts_make_the_whole_and_positions_matter():
    x = torch.arange(200, dtype=torch.float32)
    assert sketch_of([x]).shape == (65,)
    assert sketch_of([x[:64], x[64:]]) == pytest.approx(sketch_of([x]), rel=1e-5)
    assert not np.allclose(sketch_of([x[:60], x[60:]])[1:], sketch_of([x[60:], x[:60]])[1:])


def test_inner_products_are_kept_without_bias():
    """Over 400 pairs the mean of <s(x), s(y)> - <x, y> is within four of its standard errors of 0."""
    generator = torch.Generator().manual_seed(2)
    errors = []
    for _ in range(400):
        x, y = (torch.randn(2048, generator=generator) for _ in range(2))
        y += 0.5 * x
        exact = float(torch.dot(x, y))
        errors.append((float(sketch_of([x])[1:] @ sketch_of([y])[1:]) - exact) / float(x.norm() * y.norm()))
    assert abs(np.mean(errors)) < 4 * np.std(errors) / 20
    assert np.std(errors) < 1.5 * np.sqrt(2 / 64)


def test_nothing_measured_is_nothing_told():
    assert Sketch(8).take() == ()
