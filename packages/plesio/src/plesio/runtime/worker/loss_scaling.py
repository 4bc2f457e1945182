"""`torch.amp.GradScaler` under every policy: the judgement whether a scaled gradient overflowed, and what follows.

A loss is multiplied by a scale S before the backward pass, so that gradients stay in the range of float16 (Micikevicius
et al. 2018). `plesio_planning.studies.models.loss_scaling` has the model. In a session:

    backward()          the gradient is S times too large; where DDP averages it meanwhile, S is equal on all ranks
    the step begins     it is divided by S, unless the user has done so to clip it (`GradScaler.unscale_`)
    the exchange        measures, compresses and sends true units
    the verdict         of all ranks where the step is common: on the mean, which has what any of them has; else this
                        worker's own, on its own gradient, of which an island's ranks have a part each
    the step ends       after an overflow the scale backs off, and after many steps without one it grows

Where verdicts are common, scale and growth counter stay equal on all ranks to the bit, as the replicas do. Where they
are not, every worker has a scale of its own. Before workers that had their own step together they `agree` on the
smallest, which none of them has seen overflow.

A gradient with NaN or infinity is an overflow unless the loss itself is not finite: that no scale explains.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.amp import GradScaler
from torch.amp.grad_scaler import OptState

from plesio.core.errors import ConfigError
from plesio.runtime.worker.exchange.group import Group
from plesio.runtime.worker.objects import objects_of

_TWICE = "leave out {call}: session.step(loss) steps the optimizer and updates the scaler that plesio.join was given"


class LossScaler:
    """One worker's scaler in a session."""

    def __init__(self, scaler: GradScaler, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.scaler, self._optimizers = scaler, optimizers
        self._states = scaler._per_optimizer_states
        """The scaler makes others in every update, so an update by others is noticed."""
        self._finite: bool | None = None
        """The verdict on the step under way; None between two steps."""
        self._clock = 0
        self._on_change: Callable[[int, float], None] = lambda clock, scale: None

    @property
    def scale(self) -> float:
        """S, by which gradients are too large after the backward pass."""
        return float(self.scaler.get_scale())

    @property
    def overflowed(self) -> bool:
        """True if this step has no finite gradient, as far as is known."""
        return self._finite is False

    def on_change(self, call: Callable[[int, float], None]) -> None:
        """Have ``call`` called with the clock of the step whenever the scale has become another, and with it."""
        self._on_change = call

    @contextmanager
    def step(self, clock: int) -> Iterator[None]:
        """Unscale the gradients of this step within this context; afterwards the scale is that of the next one.

        A step that ends with an exception has no verdict.

        Raises:
            ConfigError: The loss was not scaled, or the program has stepped or updated the scaler by itself.
        """
        self._clock = clock
        self._unscale()
        try:
            yield
        except BaseException:
            self._forget()
            raise
        self._update()

    def common(self, finite: bool) -> None:
        self._finite = finite

    def agree(self, group: Group, *, device: torch.device) -> None:
        """Set the smallest scale and growth counter of all ranks on each. All of the group call it alike."""
        self._update()
        state = self.scaler.state_dict()
        own = torch.tensor([state["scale"], state["_growth_tracker"]], dtype=torch.float64, device=device)
        scale, tracker = torch.stack(group.all_gather(own).wait()).amin(0).tolist()
        self.scaler.load_state_dict({**state, "scale": scale, "_growth_tracker": int(tracker)})
        if scale != state["scale"]:
            self._on_change(self._clock, scale)

    @property
    def _entries(self) -> list[tuple[torch.optim.Optimizer, dict[str, Any]]]:
        """The scaler's record of each optimizer's gradients in this step."""
        return [(optimizer, self.scaler._per_optimizer_states[id(optimizer)]) for optimizer in self._optimizers]

    def _unscale(self) -> None:
        scaler = self.scaler
        if self._states is not scaler._per_optimizer_states:
            raise ConfigError(_TWICE.format(call="scaler.update()"))
        if any(entry["stage"] is OptState.STEPPED for _, entry in self._entries):
            raise ConfigError(_TWICE.format(call="scaler.step(optimizer)"))
        if scaler._scale is None:
            raise ConfigError("the scaler that plesio.join was given has scaled no loss: scaler.scale(loss).backward()")
        self._finite = True
        for optimizer, entry in self._entries:
            by_user = entry["stage"] is OptState.UNSCALED
            if not by_user:
                scaler.unscale_(optimizer)
            if any(found.item() for found in scaler._found_inf_per_device(optimizer).values()):
                self._finite = False
                if by_user:
                    self._spoil(optimizer)

    @torch.no_grad()
    def _spoil(self, optimizer: torch.optim.Optimizer) -> None:
        """Let an overflow be seen that clipping by value has hidden since."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(torch.nan)
                    return

    def _update(self) -> None:
        """Move the scale by the verdict, once."""
        if self._finite is None:
            return
        before = self.scale
        device = self.scaler._scale.device  # type: ignore[union-attr]  # a loss has been scaled
        found = torch.full((), float(not self._finite), dtype=torch.float32, device=device)
        for _, entry in self._entries:
            entry["found_inf_per_device"] = {device: found}
        self.scaler.update()
        self._forget()
        if (after := self.scale) != before:
            self._on_change(self._clock, after)

    def _forget(self) -> None:
        for optimizer in self._optimizers:
            self.scaler._per_optimizer_states.pop(id(optimizer), None)
        self._states, self._finite = self.scaler._per_optimizer_states, None


_given: "weakref.WeakSet[GradScaler]" = weakref.WeakSet()


def given_scaler(scaler: GradScaler | None) -> None:
    if scaler is not None:
        _given.add(scaler)


def stray_scaler() -> str | None:
    """Return a line where a scaler has scaled losses that no session was given; None if there is none."""
    if all(one in _given or vars(one).get("_scale") is None for one in objects_of(GradScaler)):
        return None
    return (
        "a GradScaler has scaled losses, and plesio.join was not given it: gradients that it scaled are trained on as "
        "they are, too large; write plesio.join(..., scaler=scaler), and session.step(loss) in place of "
        "scaler.step(optimizer) and scaler.update()"
    )
