"""``[checkpoint]`` of a recipe: where the checkpoints of its runs go, and how often they are taken."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from plesio.bench.recipe_section import RecipePath, RecipeSection, as_finding
from plesio.runtime.checkpoints.setting import parse_every


def _readable(every: str) -> str:
    with as_finding():
        parse_every(every)
    return every


class CheckpointSection(RecipeSection):
    """``[checkpoint]``: the checkpoints of each run.

    Attributes:
        folder: Folder for checkpoints; each run has its own in it, POLICY-seedN.
        every: Time or steps between two checkpoints of a run.
        keep: How many of a run are kept, the latest.
        resume: Whether a run goes on from its latest checkpoint ("auto") or begins anew ("no").
    """

    folder: RecipePath
    every: Annotated[str, AfterValidator(_readable)] = "10 min"
    keep: int = Field(default=3, ge=1)
    resume: Literal["auto", "no"] = "auto"
