"""The check that what was given for an estimate changes it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from plesio.core.errors import ArgumentError, ConfigError
from plesio_planning.estimate.layout import Layout, Software
from plesio_planning.estimate.memory import estimate_memory
from plesio_planning.estimate.model import Model, Transformer
from plesio_planning.estimate.named_models import find_model
from plesio_planning.estimate.step import estimate_step
from plesio_planning.estimate.training import Training
from plesio_planning.estimate.training_charts import format_layout

_DERIVED: Mapping[str, Callable[[Transformer], int]] = {
    "head_size": lambda model: model.hidden_size // model.num_heads,
    "num_window_layers": lambda model: model.num_layers,
}
"""The values of sizes that follow from others where they are left out."""
_INPUTS = {"gradient_bytes": "gradients"}
"""Names of the inputs that set a program, where they differ."""


def check_effects(
    training: Training, *, usual: Software, settings: Mapping[str, Any], model: str | None, sizes: Mapping[str, Any]
) -> None:
    """Make sure that every setting and size which was given changes the step or the memory of the run.

    Whether one does depends on all the others, so that it is not looked up but tried: the step and the memory are
    estimated again as they would be without it. In a search it is not asked, because other layouts may be changed.
    ``usual`` is the program without the settings.

    Raises:
        ConfigError: Something changes nothing.
    """
    for name, without in [*_other_layouts(training, usual, settings), *_other_models(training, model, sizes)]:
        try:
            same = _estimated(training, *without) == _estimated(training, training.model, training.layout)
        except ConfigError:
            continue  # without it there is no run
        if same:
            given = f"{_INPUTS.get(name, name)}{' = False' if settings.get(name) is False else ''}"
            raise ArgumentError(
                f"`{given}` has no effect on {training.model.name} on {training.machine.name} with "
                f"{format_layout(training.layout)}; leave it out"
            )


def _other_layouts(
    training: Training, usual: Software, settings: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[Model, Layout]]]:
    """Yield the layout without each setting that is not the program's own, and without a recomputation."""
    layout = training.layout
    for name, value in settings.items():
        own = getattr(usual, name)
        if value != own:
            yield name, (training.model, replace(layout, software=replace(layout.software, **{name: own})))
    if layout.recomputation != "none":
        yield "recomputation", (training.model, replace(layout, recomputation="none", recomputed_layers=None))


def _other_models(
    training: Training, model: str | None, sizes: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[Model, Layout]]]:
    """Yield the model without each size that is not its own."""
    for name in sizes:
        try:
            without = find_model(model, **{other: value for other, value in sizes.items() if other != name})
        except ConfigError:
            continue  # it needs that size
        # a size that only repeats the model's own is no mistake
        own = _DERIVED[name](without) if name in _DERIVED and isinstance(without, Transformer) else None
        if sizes[name] not in (own, getattr(without, name)):
            yield name, (without, training.layout)


def _estimated(training: Training, model: Model, layout: Layout) -> tuple[Any, ...]:
    global_batch = training.step.num_samples
    step = estimate_step(model, layout, training.machine, global_batch=global_batch, constants=training.constants)
    memory = estimate_memory(model, layout, training.machine, global_batch=global_batch)
    return step.parts, step.model_flops, memory
