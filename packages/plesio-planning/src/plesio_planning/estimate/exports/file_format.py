"""The parts that files of all programs have in common."""

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from plesio.core.errors import ArgumentError, ConfigError
from plesio_planning.estimate.layout import Layout
from plesio_planning.estimate.model import Convolutional, Model, Transformer

_Value = TypeVar("_Value", bool, int, str, list[Any], dict[str, Any])
_KINDS = {bool: "true or false", int: "a whole number", str: "a text", list: "a list", dict: "a section of values"}
"""Words for the types that a file's values have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedRun:
    """The content of a program's file.

    Attributes:
        layout: Attributes of `Layout`, by name.
        sizes: Attributes of `Transformer`, by name; empty where a file has none.
        settings: Attributes of `Software`, by name.
        global_batch: Sequences of a step; None where a file does not say.
        part_layers: Layers of a part of an interleaved stage, of which ``vpp`` follows; None where there are none.
        instances: Groups of replicas that hold the same, of which ``shard`` follows.
        unread: Names in the file that nothing is read from.
    """

    layout: Mapping[str, Any]
    sizes: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    global_batch: int | None = None
    part_layers: int | None = None
    instances: int = 1
    unread: tuple[str, ...] = ()

    def layout_on(self, num_devices: int, *, num_layers: int) -> Mapping[str, Any]:
        """Return the layout's attributes, with those that follow from the devices and the model's layers."""
        found = dict(self.layout)
        if self.part_layers is not None:
            found["vpp"] = -(-num_layers // (found["pp"] * self.part_layers))
        if self.instances > 1:
            found["shard"] = num_devices // (found["tp"] * found["pp"] * self.instances)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFormat:
    """A program's file.

    Attributes:
        suffix: End of its name.
        write: Makes its text of a model, a layout and a global batch.
        read: The inverse.
    """

    suffix: str
    write: Callable[[Model, Layout, int], str]
    read: Callable[[str], ImportedRun]


def read_values(text: str, kind: Literal["JSON", "TOML"], *, names: tuple[str, str], program: str) -> dict[str, Any]:
    """Read the values of a file of this kind; a program's has one of these names.

    Raises:
        ConfigError: It is of another kind, or of another program.
    """
    try:
        values = json.loads(text) if kind == "JSON" else tomllib.loads(text)
    except ValueError as error:
        raise ConfigError(f"no {kind}: {error}") from None
    if not isinstance(values, dict) or not values.keys() & set(names):
        raise ConfigError(f"neither {names[0]} nor {names[1]}; write a configuration of {program}")
    return values


def value_of(values: Mapping[str, Any], name: str, usual: _Value, *, among: Sequence[str] = ()) -> _Value:
    """Return a value of a file, or the usual one where there is none, whose type it must have.

    Raises:
        ConfigError: It is of another type, or not among the texts that it may be.
    """
    found = values.get(name, usual)
    if type(found) is not type(usual):
        raise ConfigError(f'"{name}" is {json.dumps(found, default=str)}; write {_KINDS[type(usual)]}')
    if among and found not in among:
        raise ConfigError(f'"{name}" is "{found}", which is not modelled; write {" or ".join(among)}')
    return found


def degree_of(values: Mapping[str, Any], name: str, usual: int = 1) -> int:
    """Return a whole number of 1 or more of a file.

    Raises:
        ConfigError: It is none.
    """
    found = value_of(values, name, usual)
    if found < 1:
        raise ConfigError(f'"{name}" is {found}; write 1 or more')
    return found


def unread_names(values: Mapping[str, Any], known: Mapping[str, str]) -> tuple[str, ...]:
    """Return the keys that are not known, with their sections; ``known`` has the keys of each, and all without any."""
    found = [name for name in values if name not in known]
    for section, keys in known.items():
        if keys:
            found += [f"{section}.{key}" for key in values.get(section, {}) if key not in keys.split()]
    return tuple(found)


def refuse(program: str, layout: Layout, unable: Mapping[str, tuple[bool, str]]) -> None:
    """Make sure that nothing of a layout is beyond a program.

    Args:
        program: Its name.
        layout: Layout to express.
        unable: By the attribute: whether it is beyond the program, and what to write instead.

    Raises:
        ConfigError: Something is.
    """
    for name, (beyond, instead) in unable.items():
        if beyond:
            raise ArgumentError(f"{program} has no option for `{name}` {getattr(layout, name)}; {instead}")


def layers_of_part(program: str, model: Transformer, layout: Layout, *, more: int = 0) -> int:
    """Return the layers of a part of a stage, of layers that are as many more.

    Raises:
        ConfigError: Stages do not have as many layers each.
    """
    parts = layout.pp * layout.vpp
    if (model.num_layers + more) % parts:
        raise ArgumentError(
            f"{program} wants as many layers in each of {parts} parts, and {model.name} has {model.num_layers}; write "
            "a `pp` that divides them"
        )
    return (model.num_layers + more) // parts


def transformer_of(program: str, model: Model) -> Transformer:
    """Return the model, if it is a transformer.

    Raises:
        ConfigError: It is not.
    """
    if isinstance(model, Convolutional):
        raise ArgumentError(f"{program} trains transformers, and {model.name} is none; leave `export` out")
    return model
