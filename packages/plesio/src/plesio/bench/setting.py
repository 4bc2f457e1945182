"""The common setting of the runs in a folder: a comparison resumed with another setting is not mixed with them."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from plesio.bench.recipe import Recipe
from plesio.core.errors import DataError
from plesio.core.files import write_whole
from plesio.core.results import RunResult
from plesio.cost.calibration import Calibration

OUTPUT_NAME = "output.txt"
"""The file in a run's folder that takes what the workers of a script print."""
SETTING_NAME = "setting.json"


def keep_setting(out: Path, recipe: Recipe, *, world: str, calibration: Calibration | None, resume: bool) -> None:
    """Write ``out/setting.json``; when resuming, make sure first that it is what the runs there were made with.

    All counts that a run depends on besides its policy and seed. The target does not: kept runs are timed anew.

    Raises:
        DataError: The runs there were made with another setting, which is named, or the file cannot be read.
    """
    setting = _setting(recipe, world=world, calibration=calibration)
    path = out / SETTING_NAME
    if resume and path.exists():
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"{path} is garbled: {error}; start anew with --overwrite") from None
        different = list(_differences(found, setting))
        if different:
            raise DataError(
                f"{out} has runs with other settings ({', '.join(different)}); resume with those that they were made "
                "with, or start anew with --overwrite"
            )
    elif resume and (out / "results.json").exists():
        raise DataError(
            f"{out} has runs, but no {SETTING_NAME} that says how they were made; start anew with --overwrite"
        )
    write_whole(path, json.dumps(setting, indent=1) + "\n")


def timed_to(run: RunResult, target: float | None) -> RunResult:
    """Return the run with its time to ``target``, from its evaluations, if it was timed to another."""
    if run.target == target or target is None:
        return run
    sign = 1 if run.metric_goal == "max" else -1
    reached = (point.at_s for point in run.evaluations if sign * point.metric >= sign * target)
    return replace(run, target=target, time_to_target_s=next(reached, None))


def _setting(recipe: Recipe, *, world: str, calibration: Calibration | None) -> dict[str, Any]:
    values = recipe.model_dump(
        mode="json", exclude={"run": {"policies", "seeds", "target"}, "checkpoint": True, "adaptive": True}
    )
    if not values["task"]["arguments"]:
        del values["task"]["arguments"]
    values["world"] = world
    values["calibration"] = None if calibration is None else calibration.to_json()
    plain: dict[str, Any] = json.loads(json.dumps(values))
    return plain


def _differences(found: Any, wanted: Mapping[str, Any]) -> Iterator[str]:
    """Return the names of what differs, as ``workers.count``."""
    for key, value in wanted.items():
        was = found.get(key) if isinstance(found, dict) else None
        if was == value:
            continue
        if key in ("task", "run", "workers") and isinstance(was, dict) and isinstance(value, dict):
            yield from (f"{key}.{name}" for name in sorted({*was, *value}) if was.get(name) != value.get(name))
        else:
            yield key
