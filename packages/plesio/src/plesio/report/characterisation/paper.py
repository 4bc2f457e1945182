"""The paper whose measurements stand beside ours: `ovi.toml` has its numbers and its layout."""

import tomllib
from importlib.resources import files
from typing import Literal

import msgspec


class PaperLayout(msgspec.Struct, frozen=True, kw_only=True):
    """A table or a figure of the paper.

    Attributes:
        number: Its number there.
        of: What it shows; of a figure over time, the field of a worker's samples.
        strategies: Names of the paper's strategies in it.
        title: Its title; empty for a figure's finding.
        theirs: What a figure shows there.
    """

    number: str
    of: Literal["time", "accuracy", "regained", "decisions", "activity", "memory", "cpu", "memory_bytes"]
    strategies: tuple[str, ...]
    title: str = ""
    theirs: str = ""


class Strategy(msgspec.Struct, frozen=True, kw_only=True):
    """A strategy of the paper.

    Attributes:
        policies: Specs of the policies that are the strategy; the first that was run stands for it.
        short: Its name where there is little room.
        time_s: Training time by model and number of workers.
        accuracy_points: Final accuracy likewise, in percent.
    """

    policies: tuple[str, ...]
    short: str
    time_s: dict[str, tuple[float, ...]] = {}
    accuracy_points: dict[str, tuple[float, ...]] = {}


class Paper(msgspec.Struct, frozen=True, kw_only=True):
    """A paper's measurements.

    Attributes:
        workers: Numbers of workers that it has.
        time_limit_s: Where its runs were stopped; infinite times are beyond it.
        model: The model that its figures over time are of.
        models: Its names of models, by ours.
        decisions: Its words on strategies, by feature.
    """

    name: str
    workers: tuple[int, ...]
    time_limit_s: float
    model: str
    models: dict[str, str]
    strategies: dict[str, Strategy]
    decisions: dict[str, tuple[str, ...]]
    tables: tuple[PaperLayout, ...]
    figures: tuple[PaperLayout, ...]

    @property
    def regained(self) -> PaperLayout:
        """The table of what a modified strategy wins back over a plain one."""
        return next(table for table in self.tables if table.of == "regained")


PAPER = msgspec.convert(tomllib.loads(files(__package__).joinpath("ovi.toml").read_text(encoding="utf-8")), Paper)
