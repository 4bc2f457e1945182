"""The sections by which a sharded model is gathered: its blocks one at a time, then together what is in no block.

A section's parameters are sent in one collective, each cut along its first dimension into as many parts as there are
ranks and filled up with zeros where that does not divide (as FSDP2 does). So a rank's part of a parameter of shape (d,
...) has ``ceil(d / n)`` rows.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from plesio.core.errors import TaskError
from plesio.runtime.worker.exchange.replica import Replica

_LISTS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


@dataclass(frozen=True, slots=True)
class Section:
    """Parameters that are gathered together.

    Attributes:
        parameters: Parameters of the module that are in no section within it, trained ones and others.
        is_root: Whether it is the model, which stays whole from its forward to its backward pass.
    """

    module: nn.Module
    parameters: tuple[nn.Parameter, ...]
    is_root: bool

    def part_numel(self, num_ranks: int, *, trained: bool = False) -> int:
        """Count the numbers in a rank's part of the parameters, or of the trained ones alone."""
        return sum(
            math.ceil(len(parameter) / num_ranks) * math.prod(parameter.shape[1:])
            for parameter in self.parameters
            if parameter.requires_grad or not trained
        )


def sections_of(model: nn.Module, names: Sequence[str] = ()) -> list[Section]:
    """Return the sections of a model, inner ones before those that they are in; the last is the model's own.

    It raises TaskError if no module is of a class that is named. ``names`` are classes of blocks, in lower case;
    without, blocks are the elements of the outermost lists of modules.
    """
    blocks = list(_named(model, names)) if names else list(_elements(model))
    taken: set[int] = set()
    sections = []
    for module in reversed(blocks):  # a module's own modules come after it
        parameters = tuple(parameter for parameter in module.parameters() if id(parameter) not in taken)
        if parameters and not _shares(model, module):
            taken |= {id(parameter) for parameter in parameters}
            sections.append(Section(module, parameters, is_root=False))
    rest = tuple(parameter for parameter in model.parameters() if id(parameter) not in taken)
    return [*sections, Section(model, rest, is_root=True)]


def check_sections(replica: Replica, sections: Sequence[Section]) -> None:
    """Return when all of the replica can be cut; TaskError if not."""
    model = replica.model
    if _only_holds(model):
        raise TaskError(f"a {type(model).__name__} has no forward pass that fsdp could gather it for; use a module")
    for name in replica.sparse:
        raise TaskError(f'the gradient of "{name}" is sparse, which fsdp cannot cut; use sparse=False, or bsp')
    for name, parameter in model.named_parameters():
        if parameter.dim() == 0:
            raise TaskError(f'"{name}" is one number without a dimension, which fsdp cannot cut; give it one: (1,)')
        if not parameter.numel():
            raise TaskError(f'"{name}" has no elements, and fsdp would wait for its gradient; leave it out, or use bsp')
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise TaskError(
                f'"{name}" has a hook on its gradient, which under fsdp is there in parts only; change gradients '
                "between backward() and session.step(), or use bsp"
            )
        if not parameter.is_contiguous():
            raise TaskError(f'"{name}" is not contiguous in memory, which fsdp needs; use .contiguous() for it')
    for section in sections:
        dtypes = {str(parameter.dtype) for parameter in section.parameters if parameter.requires_grad}
        if len(dtypes) > 1:
            raise TaskError(
                f"{type(section.module).__name__} has parameters of {' and '.join(sorted(dtypes))}, which fsdp sends "
                "together; name blocks in which all are alike (fsdp,blocks=CLASS), or use one type"
            )


def _named(model: nn.Module, names: Sequence[str]) -> Iterator[nn.Module]:
    inside = [module for module in model.modules() if module is not model]
    classes = {type(module).__name__.lower() for module in inside}
    for name in names:
        if name not in classes:
            raise TaskError(
                f'no module of the model is a "{name}"; it has {", ".join(sorted(classes)) or "none in it"}'
            )
    yield from (module for module in inside if type(module).__name__.lower() in names and not _only_holds(module))


def _elements(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the elements of the outermost lists; a list that only holds modules is no block, its elements are."""
    for child in model.children():
        if isinstance(model, _LISTS) and not _only_holds(child):
            yield child
        else:
            yield from _elements(child)


def _only_holds(module: nn.Module) -> bool:
    return isinstance(module, nn.ModuleList | nn.ModuleDict)


def _shares(model: nn.Module, block: nn.Module) -> bool:
    """Tell whether something outside the block has a parameter of it, too."""
    inside = set(block.modules())
    own = {id(parameter) for parameter in block.parameters()}
    others = (module for module in model.modules() if module not in inside)
    return any(id(parameter) in own for module in others for parameter in module._parameters.values())
