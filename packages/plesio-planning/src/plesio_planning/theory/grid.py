"""An S x K grid: how noisy its gradient is, which learning rates suffice, how far its groups are apart; proved here.

A network's parameters are K blocks, one a stage, and each of S groups has its own: ``x_s = (x_s^0 .. x_s^(K-1))``. Let
t count the updates of a stage, one a tick. Micro-batch t goes forward through stage k when that has been updated
``t - d_k`` times, ``d_k = D (K-1-k)`` with D the grid's `delay` (2 in Pham & Ahn 2025, so no delay exceeds 2K). With
stashed weights its gradient is therefore that of f at *one* point, whose blocks are of different ages:

    x̂_s,t = (x_s,t-d_0^0 .. x_s,t-d_(K-1)^(K-1)),    g_s,t = ∇f(x̂_s,t) + ξ_s,t,    X_t+1 = P (X_t - α G_t),

with a row for each group and the doubly stochastic P, which is I in updates without a mixing. That is the inconsistent
read of Lian et al. 2015, with ages that are known. Before the start there is the start, and all groups begin alike.

*Variance.* σ² bounds the variance of one sample's gradient to the parameters of one stage, so that of K stages together
is at most Kσ². The mean over the groups moves by their mean gradient, a mean over the B_S samples that all groups
together take in a tick: ``V = Kσ²/B_S``. (Pham & Ahn state Kσ²/B_S; we read B_S so because it then follows.)

*Disagreement.* ``C_t = 1/S Σ_s ‖x_s,t - x̄_t‖²``. Let λ be the eigenvalues of P but the 1, ρ the largest of their
absolute values, and H the updates from mixing to mixing.

1. Deviations from the mean are ``-α Σ_i P^m(i,t) (I-J) (∇_i + Ξ_i)``, with m(i,t) the mixings since update i, and J the
   mean. Noise of different updates is uncorrelated; in the mean over t it comes to at most ``α²V N``,
   ``N = Σ_λ (Hλ²/(1-λ²) + (H-1)/2)``.
2. The groups' gradients differ by at most L times the distance of their x̂ from the mean x̂. The sum of its squares over
   t is at most that of C_t, each block of which is only late. The kernel ``ρ^m(i,t)`` has rows and columns that add up
   to at most ``R = H/(1-ρ) - 1``. So by Schur's test and Minkowski's inequality ``c ≤ α √(VN) + αLR c`` for
   ``c² = mean E C_t``, and with ``αLR < 1``

       mean E C_t ≤ α²VN / (1-αLR)².

*Descent.* With ``b_t = 1/S Σ_s ∇f(x̂_s,t)`` the descent lemma and ``2⟨a,b⟩ = ‖a‖² + ‖b‖² - ‖a-b‖²`` give

    E f(x̄_t+1) ≤ E f(x̄_t) - α/2 E‖∇f(x̄_t)‖² - α/2 (1-αL) E‖b_t‖² + α²LV/2 + αL²/2 · 1/S Σ_s E‖x̄_t - x̂_s,t‖².

The last mean is *exactly* ``Σ_k ‖x̄_t^k - x̄_t-d_k^k‖²``, which is staleness, plus ``Σ_k C_t-d_k^k``, disagreement:
deviations from the groups' mean have the mean 0. Staleness is at most ``2α² Σ_k d_k Σ_window ‖b^k‖²`` plus
``2α² Σ_k d_k σ²/B_S``. Summed over t the former is at most ``2α²τ² Σ ‖b_t‖²``, τ = d_0 being the longest delay, and
``αL + 2α²L²τ² ≤ 1`` lets us leave it out; the latter is ``2α²d̄V``, d̄ being the stages' *mean* delay. Together, with
``Δ = f(x_0) - f*``,

    mean E‖∇f(x̄_t)‖² ≤ 2Δ/(αT) + αLV + 2α²L²d̄V + L²α²VN/(1-αLR)².

The first two parts are SGD's; the others are of second order in α, and are what staleness and mixing cost. With one
stage it is decentralised SGD (Koloskova et al. 2020, for like data), with one group asynchronous SGD (Lian et al.
2015). With α as 1/√T all parts go to 0. The source has a *smoothing parameter* and we do not know which: here it is ρ
with H, how much a mixing smooths and how often.

Limits: momentum and Adam; gradients that are recomputed at present weights, shrunk or compensated,
which are biased ones of ``∇f(x̂)``; a mixing that is added later than it begins (`GridSetting.bound`) or is compressed;
groups with unlike data. Samples that are drawn once an epoch are not independent either. How fast disagreement
shrinks by mixing alone, late mixing included, is `consensus_rate`.

Sources: Pham & Ahn 2025 (arXiv 2509.05679) for the grid, the variance and the kind of bound, of which we know the
statement alone; Zhuang et al. 2022 (TNNLS) for the decoupled rule; Lian, Huang, Li & Liu 2015 for late gradients;
Nedic & Ozdaglar 2009 and Koloskova, Loizou, Boreiri, Jaggi & Stich 2020 for consensus.
"""

import math
from typing import Annotated

import numpy as np

from plesio.core.checks import check_count, check_not_negative, check_positive
from plesio.core.mixing import GraphName, Mixing
from plesio.core.within import Within
from plesio_planning.theory.bound import Bound, Condition
from plesio_planning.theory.premises import largest_late_step


def consensus_rate(mixing: Mixing, *, late: int = 0) -> float:
    """By what the groups' distance from their mean shrinks at each mixing, in the long run, with nothing learned.

    The largest root of ``z^(n+1) - z^n + 1 - λ`` over all eigenvalues λ of P but the 1; ρ if no mixing is late.

    >>> round(consensus_rate(Mixing.on("ring", 8)), 4)
    0.8047
    >>> lazy = Mixing.given([[0.75, 0.25], [0.25, 0.75]])
    >>> round(consensus_rate(lazy), 4), round(consensus_rate(lazy, late=1), 4)
    (0.5, 0.7071)

    Args:
        mixing: P.
        late: n, how many mixings late the result of one is added.
    """
    check_not_negative(late=late)
    radii = [0.0]
    for eigenvalue in _eigenvalues(mixing):
        polynomial = np.zeros(late + 2)
        polynomial[0], polynomial[1] = 1, -1
        polynomial[-1] += 1 - eigenvalue
        radii.append(float(np.abs(np.roots(polynomial)).max(initial=0.0)))
    return max(radii)


def grid(
    *,
    num_stages: int = 4,
    num_groups: Annotated[int, Within(1, 256)] = 4,
    smoothness: float = 1.0,
    gap: float = 10.0,
    gradient_variance: float = 1.0,
    batch_size: int = 128,
    learning_rate: float = 0.05,
    num_ticks: int = 10_000,
    delay: int = 2,
    mixing: GraphName = "ring",
    every: int = 1,
) -> Bound:
    """An S x K grid, decoupled stages in groups that mix: mean squared gradient norm of the groups' mean.

    ``2Δ/(αT) + αLV + 2α²L²d̄V + L²α²VN/(1-αLR)²`` with V = Kσ²/B_S the variance of the gradient, d̄ the stages' mean
    delay, and of the mixing matrix, with eigenvalues λ, ρ = max |λ| and H updates from mixing to mixing: N =
    Σ (Hλ²/(1-λ²) + (H-1)/2) and R = H/(1-ρ) - 1. It holds for ``αL + 2α²L²τ² ≤ 1``, τ = D(K-1) the longest delay, and
    ``αLR < 1``: for stashed weights, plain SGD, and groups with like data that begin alike and mix at once. After Pham
    & Ahn 2025; the proof, and what it does not cover, are at the head of `plesio_planning.theory.grid`.

    >>> bound = grid(num_stages=4, num_groups=4)
    >>> {name: round(part, 5) for name, part in bound.parts.items()}
    {'start': 0.04, 'noise': 0.00156, 'staleness': 0.00047, 'disagreement': 3e-05}
    >>> bound.also["variance of the gradient, Kσ²/B_S"], round(bound.also["largest learning rate"], 4)
    (0.03125, 0.1111)

    Args:
        num_stages: K, stages of each group.
        num_groups: S.
        smoothness: L, of the gradient.
        gap: Δ, from the start's value to the lowest: the initial error.
        gradient_variance: σ², of one sample's gradient to one stage's parameters.
        batch_size: B_S, samples that all groups together take in a tick.
        learning_rate: α, constant.
        num_ticks: T, ticks, in each of which every stage is updated once.
        delay: D, micro-batches that a stage is ahead for each stage behind it; 2 in the source.
        mixing: Graph on which the groups mix.
        every: H, updates from mixing to mixing.

    Raises:
        ConfigError: A premise does not hold, or an argument is out of range.
    """
    check_count(num_stages=num_stages, num_groups=num_groups, batch_size=batch_size, num_ticks=num_ticks, every=every)
    check_positive(smoothness=smoothness, gap=gap, learning_rate=learning_rate)
    check_not_negative(gradient_variance=gradient_variance, delay=delay)
    step, longest = learning_rate * smoothness, delay * (num_stages - 1)
    matrix = Mixing.on(mixing, num_groups)
    kernel, spread = _reach(matrix, every=every), _noise_spread(matrix, every=every)
    variance = num_stages * gradient_variance / batch_size
    by_delay = largest_late_step(longest)
    largest = min(by_delay, 1 / kernel if kernel else math.inf) / smoothness
    left = 1 - step * kernel or math.inf  # at 0 the premise fails, which `Bound` says
    distance = learning_rate**2 * variance * spread / left**2
    how = "of at most" if largest == by_delay / smoothness else "below"
    remedy = f"write a `learning_rate` {how} {largest:.4g}"
    return Bound(
        quantity="mean E‖∇f‖²",
        parts={
            "start": 2 * gap / (learning_rate * num_ticks),
            "noise": step * variance,
            "staleness": step**2 * longest * variance,  # 2 d̄, and d̄ is half of the longest
            "disagreement": smoothness**2 * distance,
        },
        conditions=(
            Condition(premise="αL + 2α²L²τ² ≤ 1", value=step + 2 * (step * longest) ** 2, limit=1.0, remedy=remedy),
            Condition(premise="αL(H/(1-ρ) - 1) < 1", value=step * kernel, limit=1.0, strict=True, remedy=remedy),
        ),
        also={
            "variance of the gradient, Kσ²/B_S": variance,
            "longest delay (updates)": longest,
            "largest learning rate": largest,
            "spectral gap": matrix.spectral_gap,
            "shrinking of the groups' distance at each mixing, ρ": matrix.rho,
            "mean squared distance of a group from the mean": distance,
        },
    )


def _eigenvalues(mixing: Mixing) -> list[float]:
    """All of P's but the 1."""
    return [float(value) for value in np.sort(np.linalg.eigvalsh(np.array(mixing.matrix)))[:-1]]


def _reach(mixing: Mixing, *, every: int) -> float:
    """R: updates whose disagreement is still there, each as far as it is."""
    return every / mixing.spectral_gap - 1 if mixing.size > 1 else 0.0


def _noise_spread(mixing: Mixing, *, every: int) -> float:
    """N: variances of an update's noise that the groups are apart by, in squared distance."""
    return sum(every * value**2 / (1 - value**2) + (every - 1) / 2 for value in _eigenvalues(mixing))
