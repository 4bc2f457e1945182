"""Gradient descent on a quadratic, of whose gradients only what a compression sends is applied.

The loss is ``½ Σ λᵢxᵢ²`` with eigenvalues spread evenly on a logarithmic scale from 1/κ to 1, so L = 1, and it begins
at standard normal numbers. A step of α sends C(αg), or with error feedback C(αg + e) and keeps e, what was not sent.

==================  =============================================================  ===================================
text                what is sent of n numbers                                      unbiased, with variance ω‖g‖²
==================  =============================================================  ===================================
as in               the library's own: ``none``, ``fp16``, ``bf16``,               ``randk`` without feedback:
`plesio.policies`   ``topk:RHO``, ``randk:RHO``, ``qsgd:BITS``                     ω = 1/ρ - 1; ``qsgd``: ω = 1 - δ
``levels:S``        multiples of ‖g‖/S, rounded at random (Alistarh et al. 2017,   ω = min(n/S², √n/S) (lemma 3.1)
                    equation 4)
``sign``            signs times the mean ‖g‖₁/n (Karimireddy et al. 2019)          no
==================  =============================================================  ===================================

``@STEP`` behind a text is the step as a multiple of 1/L. Without it, it is 1, or ``1/(1 + ω)`` for those that are
unbiased: the longest for which ``E‖C(g)‖² <= (1 + ω)‖g‖²`` guarantees descent.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, singledispatch
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from plesio.core.errors import ConfigError
from plesio.policies.compression import (
    Collective,
    Compression,
    HalfPrecision,
    NoCompression,
    Qsgd,
    RandomK,
    Shapes,
    TopK,
    TwoBits,
    num_elements,
    parse_compression,
)
from plesio.policies.compression.stage import FLOAT_BITS, Lossy

LOOK_EVERY = 10
"""Iterations between two looks at the loss: counts are multiples of it."""
_DIVERGED = 1e6
Vector = NDArray[np.float64]
Compressor = Callable[[Vector], Vector]


class _SummedByParts(Lossy):
    """Codes that cannot be added up on the way: every rank adds up an n-th and sends that round, coded once more."""

    __slots__ = ()
    feedback_by_default: ClassVar[bool] = False
    bits: int

    def payload_bits(self, shapes: Shapes) -> int:
        """Count so many bits a number, and 32 for the scale."""
        return self.bits * num_elements(shapes) + FLOAT_BITS

    def collectives(self, shapes: Shapes, *, num_ranks: int) -> tuple[Collective, ...]:
        """Return the collectives of `Qsgd`."""
        num_bytes = num_ranks * math.ceil(self.payload_bits(-(-num_elements(shapes) // num_ranks)) / 8)
        return (Collective("all_to_all", num_bytes), Collective("all_gather", num_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels(_SummedByParts):
    """Every number on one of ``levels`` multiples of the norm over ``levels``, of its sign; in a fixed number of bits.

    >>> [Levels(levels=levels).bits for levels in (1, 3, 15, 127)]
    [2, 3, 5, 8]
    """

    levels: int
    feedback: bool = False

    @property
    def head(self) -> str:
        """``levels:S``."""
        return f"levels:{self.levels}"

    @property
    def bits(self) -> int:  # type: ignore[override]
        """``⌈log2(2S + 1)⌉``."""
        return (2 * self.levels).bit_length()

    def variance(self, number: int) -> float:
        """Return ω of vectors of so many numbers."""
        return min(number / self.levels**2, math.sqrt(number) / self.levels)

    def contraction(self, shapes: Shapes) -> float:
        """Return ``1 - ω``, which few levels do not have."""
        return 1 - self.variance(num_elements(shapes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign(_SummedByParts):
    """A bit a number, and their mean magnitude."""

    feedback: bool = True
    feedback_by_default: ClassVar[bool] = True
    bits: ClassVar[int] = 1  # type: ignore[misc]

    @property
    def head(self) -> str:
        """``sign``."""
        return "sign"

    def contraction(self, shapes: Shapes) -> float:
        """Return ``1 / n``: that of a vector with one number that is not zero; a gradient's is far larger."""
        return 1 / num_elements(shapes)


def parse_scheme(text: str, *, dimension: int) -> tuple[Compression, float]:
    """Parse the compression and the step, as a multiple of 1/L, of ``TEXT[@STEP]``.

    >>> parse_scheme("topk:0.05@0.3", dimension=1000)[1], round(parse_scheme("levels:3", dimension=1000)[1], 4)
    (0.3, 0.0866)

    Raises:
        ConfigError: It stands for none.
    """
    spec, at, step_text = text.partition("@")
    stage = _parse_stage(spec)
    if not at:
        return stage, step_of(stage, dimension=dimension)
    try:
        step = float(step_text)
    except ValueError:
        step = math.nan
    if not 0 < step <= 2:
        raise ConfigError(
            f'"{text}": the step is "{step_text}"; write a multiple of 1/L up to 2, as in "topk:0.05@0.3"'
        )
    return stage, step


def _parse_stage(spec: str) -> Compression:
    name, _, options = spec.partition("+")
    head, _, value = name.partition(":")
    if head not in ("levels", "sign"):
        stage = parse_compression(spec)
        if isinstance(stage, TwoBits) or (isinstance(stage, TopK) and stage != replace(stage, chunk=None, bits=32)):
            raise ConfigError(f'"{spec}" is not modelled; write qsgd:4, qsgd:8, or topk without chunks and bits')
        if not isinstance(stage, (NoCompression, HalfPrecision, TopK, RandomK, Qsgd)):
            raise ConfigError(f'"{spec}" needs matrices, and this is a vector; write topk, randk, qsgd, levels or sign')
        return stage
    if options not in ("", "feedback", "no_feedback"):
        raise ConfigError(f'"{spec}" has the option "{options}"; write +feedback or +no_feedback')
    if head == "sign" and not value:
        return Sign(feedback=options != "no_feedback")
    if head == "levels" and value.isdecimal() and int(value) > 0:
        return Levels(levels=int(value), feedback=options == "feedback")
    raise ConfigError(f'"{spec}" is no compression; write "sign", or levels above zero as in "levels:15"')


def step_of(stage: Compression, *, dimension: int) -> float:
    """Return the default step, as a multiple of 1/L: ``1/(1 + ω)`` for an unbiased compression, otherwise 1."""
    if isinstance(stage, Levels):
        return 1 / (1 + stage.variance(dimension))
    if isinstance(stage, RandomK) and not stage.feedback:
        return stage.num_kept(dimension) / dimension
    if isinstance(stage, Qsgd) and not stage.feedback:
        return 1 / (2 - stage.contraction(dimension))
    return 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CompressedDescent:
    """How a descent went.

    Attributes:
        iterations: Iterations until the target was reached; None if it was not.
        diverged: Whether it was given up because the loss had grown.
        at: Iterations at which the loss was looked at.
        losses: Losses over the first one, as many.
        error: Mean of ``‖C(v) - v‖² / ‖v‖²`` over what was to be sent.
    """

    iterations: int | None
    diverged: bool
    at: tuple[int, ...]
    losses: tuple[float, ...]
    error: float


@lru_cache(maxsize=128)
def descend(
    stage: Compression, *, step: float, dimension: int, condition: float, tolerance: float, most: int, seed: int
) -> CompressedDescent:
    """Descend until the loss is at most ``tolerance`` times the first; what was asked before is known.

    Args:
        stage: Compression to apply.
        step: α L.
        dimension: n.
        condition: κ.
        tolerance: Tolerance of the loss.
        most: Iterations after which it is given up.
        seed: Seed of the start; what is random in a compression has the next.
    """
    eigenvalues = np.logspace(-math.log10(condition), 0, dimension)
    x = np.random.default_rng(seed).standard_normal(dimension)
    compress = compressor(stage, np.random.default_rng(seed + 1), dimension)
    first = float(eigenvalues @ (x * x))
    residual = np.zeros(dimension)
    at, losses, errors = [0], [1.0], []
    for iteration in range(1, most + 1):
        update = step * eigenvalues * x
        if stage.keeps_residual:
            update += residual
        sent = compress(update)
        if stage.keeps_residual:
            residual = update - sent
        x -= sent
        # looking costs as much as a step
        if iteration % LOOK_EVERY:
            continue
        missing = update - sent
        errors.append(float(missing @ missing / (update @ update)))
        losses.append(float(eigenvalues @ (x * x)) / first)
        at.append(iteration)
        # NaN counts as diverged
        if losses[-1] <= tolerance or not losses[-1] < _DIVERGED:
            break
    reached, diverged = losses[-1] <= tolerance, not losses[-1] < _DIVERGED
    return CompressedDescent(
        iterations=at[-1] if reached else None,
        diverged=diverged,
        at=tuple(at),
        losses=tuple(losses),
        error=float(np.mean(errors)) if errors else math.nan,
    )


@singledispatch
def compressor(stage: Compression, rng: np.random.Generator, dimension: int) -> Compressor:
    """Return a function that applies the compression to a vector of ``dimension`` numbers, as the receiver gets it."""
    assert isinstance(stage, NoCompression), f"nobody compresses by {stage.spec}"
    return lambda vector: vector


@compressor.register
def _(stage: TopK, rng: np.random.Generator, dimension: int) -> Compressor:
    kept = stage.num_kept(dimension)

    def top_k(vector: Vector) -> Vector:
        places = np.argpartition(np.abs(vector), dimension - kept)[dimension - kept :]
        sent = np.zeros(dimension)
        sent[places] = vector[places]
        return sent

    return top_k


@compressor.register
def _(stage: RandomK, rng: np.random.Generator, dimension: int) -> Compressor:
    edges = np.arange(stage.num_kept(dimension) + 1) * dimension // stage.num_kept(dimension)
    starts, sizes = edges[:-1], np.diff(edges)

    def random_k(vector: Vector) -> Vector:
        places = starts + (rng.random(len(sizes)) * sizes).astype(int)
        sent = np.zeros(dimension)
        sent[places] = vector[places] if stage.feedback else vector[places] * sizes
        return sent

    return random_k


@compressor.register
def _(stage: Levels, rng: np.random.Generator, dimension: int) -> Compressor:
    def levels(vector: Vector) -> Vector:
        unit = math.sqrt(vector @ vector) / stage.levels
        rounded: Vector = np.floor(vector / unit + rng.random(dimension)) * unit
        return rounded

    return levels


@compressor.register
def _(stage: Qsgd, rng: np.random.Generator, dimension: int) -> Compressor:
    starts = np.arange(0, dimension, stage.bucket)
    sizes = np.diff([*starts, dimension])

    def qsgd(vector: Vector) -> Vector:
        units = np.repeat(np.maximum.reduceat(np.abs(vector), starts) / stage.num_levels, sizes)
        rounded: Vector = np.floor(vector / units + rng.random(dimension)) * units
        return rounded

    return qsgd


@compressor.register
def _(stage: Sign, rng: np.random.Generator, dimension: int) -> Compressor:
    return lambda vector: np.sign(vector) * np.abs(vector).mean()


@compressor.register
def _(stage: HalfPrecision, rng: np.random.Generator, dimension: int) -> Compressor:
    if stage.form == "fp16":
        return lambda vector: vector.astype(np.float16).astype(float)
    return rounded_to_bf16


def rounded_to_bf16(vector: NDArray[np.floating]) -> Vector:
    """Return the numbers with 8 bits of precision and float32's range, rounded to the nearest, ties to even.

    >>> rounded_to_bf16(np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1e-39]))[:3]
    array([1.      , 1.      , 1.015625])
    """
    bits = np.ascontiguousarray(vector, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32).astype(float)
