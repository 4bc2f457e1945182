"""The S x K grid: what it is, and the order in which a stage does its work. Pure: no clock, tensor or socket."""

from plesio.policies.grid.schedule import (
    Action,
    Backward,
    BeginMixing,
    EndMixing,
    Forward,
    StageMachine,
    StageState,
    Update,
)
from plesio.policies.grid.setting import (
    GRID_HELP,
    GRID_OPTIONS,
    SCHEDULES,
    GridSetting,
    ScheduleName,
    Weights,
    canonical_spec,
    is_grid,
)

__all__ = [
    "GRID_HELP",
    "GRID_OPTIONS",
    "SCHEDULES",
    "Action",
    "Backward",
    "BeginMixing",
    "EndMixing",
    "Forward",
    "GridSetting",
    "ScheduleName",
    "StageMachine",
    "StageState",
    "Update",
    "Weights",
    "canonical_spec",
    "is_grid",
]
