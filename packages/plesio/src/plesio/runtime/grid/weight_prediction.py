"""Forward passes at predicted weights: what late gradients need under Adam and its kin.

**What delay does.** Adam divides each number's gradient by the root of v, the mean of its squares. Along an eigenvector
of ``V^-1/2 H V^-1/2``, H being the curvature and V = diag(v), with an eigenvalue that is κ over the learning rate,

    w[t+1] = w[t] - κ m[t+1],    m[t+1] = β m[t] + (1-β) w[t-d]

is stable up to ``κ = 2 (1+β) / (1-β)`` without delay, 38 at the usual β of 0.9, but only up to about ``1/d`` with it: 1
for d = 1, 0.18 for d = 6. A small transformer under Adam is trained at a κ of 1 to 2.

**Prediction.** A forward pass is done at ``w + d Δ``, Δ being the last update: where the weights will be when its
gradient is applied, if the updates until then are like it (SpecTrain, Chen et al. 2018, equation 4; XPipe, Guan et al.
2019, under Adam). In the recursion ``w[t-d]`` becomes ``w + d (w - w_before)`` at t - d. The limit is then 2.7 for
d = 1 and 0.29 for d = 6. So prediction suffices for gradients that are at most one update late, and not for later ones.

**Several micro-batches in an update** are of unlike delays, 0 and 1 say. All go forward at the weights of the longest
delay: with 3 of 4 one update late the limit is 4.3, and would be 3.2 if each were at the weights of its own.

**Optimizers.** The rule is for those that keep ``exp_avg`` and ``exp_avg_sq``, found after their first step. The others
are left alone, to the bit. docs/evidence.md has what it is worth ("What a grid learns from a sample").
"""

from collections.abc import Mapping

from torch import Tensor
from torch.optim import Optimizer

_MOMENTS = frozenset({"exp_avg", "exp_avg_sq"})


class WeightPrediction:
    """Makes the steps of one stage's optimizer, and predicts its weights.

    Args:
        weights: Those that it steps, by name.
        num_updates: d, how far ahead; with 0 nothing is predicted.
    """

    def __init__(self, optimizer: Optimizer, weights: Mapping[str, Tensor], *, num_updates: int) -> None:
        self._optimizer = optimizer
        self._weights = weights
        self._num_updates = num_updates
        self._moved: dict[str, Tensor] = {}
        """Δ of each weight."""

    def step(self) -> None:
        """Step the optimizer with the gradients that the weights have."""
        # whether it steps as Adam does is known after the first step
        adam = any(state.keys() >= _MOMENTS for state in self._optimizer.state.values())
        predicts = self._num_updates > 0 and adam
        before = {name: weight.detach().clone() for name, weight in self._weights.items()} if predicts else {}
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._moved = {name: self._weights[name].detach() - then for name, then in before.items()}

    def predicted(self) -> dict[str, Tensor]:
        """Return the weights where they will be; themselves where nothing is predicted."""
        return {
            name: weight.detach() + self._num_updates * self._moved[name] if name in self._moved else weight
            for name, weight in self._weights.items()
        }

    def state(self) -> dict[str, Tensor]:
        return {name: moved.clone() for name, moved in self._moved.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        self._moved = {name: moved.clone() for name, moved in state.items()}
