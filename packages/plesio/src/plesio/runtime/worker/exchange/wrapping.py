"""Takes what torch's `fully_shard` adds to a model off, and on again.

`fully_shard` changes a model for good: it gives modules another class, hooks that gather parameters, and attributes of
its own. Plesio takes that off while one worker alone uses the model (others would have to take part in every
gathering), while its state is read or set, when it is cut anew for another group, and when the session ends. Nothing of
`fully_shard` is called for that: a module is set to what it was, except for hooks that others have added meanwhile.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed._composable_state import _module_state_mapping
from torch.utils._pytree import tree_leaves, tree_map

_FSDP = "torch.distributed.fsdp"


@dataclass(slots=True)
class _Coat:
    """The changes to one module."""

    bare: type[nn.Module]
    worn: type[nn.Module]
    attributes: tuple[str, ...]
    hooks: dict[str, list[tuple[int, Any]]]
    """By the table of the module that they are in, all hooks in their order while they are off."""


def without_views(module: nn.Module, arguments: Any, output: Any) -> Any:
    """Copy outputs of a module that are views: FSDP would lose its hook on one, and gradients, by ``output += other``.

    A hook for after the forward pass, in front of FSDP's.
    """
    if torch.is_grad_enabled() and any(map(_is_trained_view, tree_leaves(output))):
        return tree_map(lambda one: one.clone() if _is_trained_view(one) else one, output)
    return output


def _is_trained_view(one: Any) -> bool:
    return isinstance(one, torch.Tensor) and one.requires_grad and one._base is not None


class Wrapping:
    """Takes what `fully_shard` adds to a model off, and on again; made before that is called."""

    def __init__(self, model: nn.Module) -> None:
        self._before = {module: (type(module), frozenset(vars(module))) for module in model.modules()}
        self._coats: dict[nn.Module, _Coat] = {}

    def put_on(self) -> None:
        for module, (bare, names) in self._before.items():
            self._coats[module] = _Coat(bare, type(module), tuple(vars(module).keys() - names), {})

    def take_off(self) -> None:
        """Make the modules what they were; parameters are not touched."""
        for module, coat in self._coats.items():
            module.__class__ = coat.bare
            for name, table in _hook_tables(module):
                if any(_is_of_fsdp(hook) for hook in table.values()):
                    coat.hooks[name] = list(table.items())
                    for number in [number for number, hook in table.items() if _is_of_fsdp(hook)]:
                        del table[number]

    def put_back(self) -> None:
        for module, coat in self._coats.items():
            module.__class__ = coat.worn
            for name, hooks in coat.hooks.items():
                table = getattr(module, name)
                before = {number: hook for number, hook in hooks if _is_of_fsdp(hook) or number in table}
                added = {number: hook for number, hook in table.items() if number not in before}
                table.clear()
                table.update(before | added)
            coat.hooks.clear()

    def remove(self) -> None:
        self.take_off()
        for module, coat in self._coats.items():
            for name in coat.attributes:
                vars(module).pop(name, None)
            _module_state_mapping.pop(module, None)  # where torch looks whether it has been called for a module
        self._coats.clear()


def _hook_tables(module: nn.Module) -> Iterator[tuple[str, dict[int, Any]]]:
    """Yield the module's dictionaries of hooks by number (flags of hooks are in others)."""
    for name, table in vars(module).items():
        if isinstance(table, dict) and name.endswith("_hooks"):
            yield name, table


def _is_of_fsdp(hook: Any) -> bool:
    function = getattr(hook, "hook", hook)  # load_state_dict's are in an object
    return function is without_views or str(getattr(function, "__module__", "")).startswith(_FSDP)
