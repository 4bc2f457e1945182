"""Measurements: the real thing on this machine, beside the model of a study.

A measurement is a module with the name of its study and a function ``measure``, whose keyword arguments are those of
the study's inputs that it has, with the values that this machine can do beside their types. ``FOUND`` names the inputs
that it measures instead. Its first argument is a `plesio_planning.measured.twin.Twin`, by which it also reports its
progress, because it may take a minute; nothing else should run meanwhile. The study explains its inputs. Other
positional arguments have defaults: sizes and repeats that no study has an input for.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from plesio.core.errors import ConfigError

if TYPE_CHECKING:
    from plesio.core.inputs import Input
    from plesio_planning.studies.measured import Measured

__all__ = ["has_measurement", "measure_study", "measured_inputs"]


def has_measurement(study: str) -> bool:
    """Return True if this machine can do what the study models; failures of thousands of devices it cannot.

    >>> has_measurement("pipeline"), has_measurement("goodput")
    (True, False)
    """
    return find_spec(f"plesio_planning.measured.{study.replace('-', '_')}") is not None


def measured_inputs(study: str) -> "tuple[Input, ...]":
    """Return the inputs of a study that its measurement has too; they mean the same, and may be less large."""
    from plesio.core.inputs import inputs_of
    from plesio_planning.studies import find_study

    module = import_module(f"plesio_planning.measured.{study.replace('-', '_')}")
    return inputs_of(module.measure, as_in=find_study(study).function)


def measure_study(study: str, *, inputs: Mapping[str, Any] | None = None, on_step: Callable[[str], None]) -> "Measured":
    """Do what the study ``study`` models.

    Inputs that are no part of the measurement, or that this machine cannot do, are left out; the answer says so.
    What is not in ``inputs`` is as the measurement has it; ``on_step`` is told what is being measured.

    Raises:
        ConfigError: There is no such study, it has no such input, or nothing to measure.
        PlesioError: It cannot be measured here.
    """
    from plesio_planning.measured.twin import Twin
    from plesio_planning.studies import find_study
    from plesio_planning.studies.measured import Scope

    asked = dict(inputs or {})
    known = {one.name: one for one in find_study(study).inputs()}
    unknown = [name for name in asked if name not in known]
    if unknown:
        raise ConfigError(f'the study {study} has no input "{unknown[0]}"')
    if not has_measurement(study):
        raise ConfigError(f"the study {study} has no measurement on one machine; leave it out")
    module = import_module(f"plesio_planning.measured.{study.replace('-', '_')}")
    own = {one.name: one for one in measured_inputs(study)}
    # inputs of the study that the measurement cannot set, unless it finds them itself
    left_out = {
        one.option: f"asked for: {one.format(asked[name])}" if name in asked else ""
        for name, one in known.items()
        if name not in own and (name not in module.FOUND or name in asked)
    }
    values = {name: one.default for name, one in own.items()}
    # a value that is too large to measure falls back to the measurement's own
    for name in asked.keys() & own.keys():
        refusal = _refusal(own[name], asked[name])
        if refusal:
            left_out[known[name].option] = (
                f"asked for: {known[name].format(asked[name])}; {refusal} to have it measured"
            )
        else:
            values[name] = tuple(asked[name]) if isinstance(asked[name], list) else asked[name]
    measured: Measured = module.measure(Twin(on_step), **values)
    return replace(
        measured,
        scope=Scope(
            taken={known[name].option: own[name].format(value) for name, value in values.items() if value is not None},
            found=tuple(known[name].option for name in module.FOUND),
            left_out=left_out,
        ),
    )


def _refusal(own: "Input", value: Any) -> str:
    """Return advice on what to write instead of a value that cannot be measured; empty if it can."""
    try:
        own.check(value)
    except ConfigError as error:
        return str(error).rpartition("; ")[2]
    return ""
