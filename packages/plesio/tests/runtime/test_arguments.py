"""Arguments that cannot be are refused in one line, before anything has begun."""

import dataclasses
import functools
import inspect
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import plesio
from plesio.advisor import Advice, Question, advise
from plesio.bench.recipe import load_recipe, make_recipe
from plesio.core.errors import ConfigError, PlesioError
from plesio.cost.cluster import Cluster
from plesio.cost.faults import Failures, Fault
from plesio.cost.host_costs import HostCosts
from plesio.policies.compression import Qsgd, TopK
from plesio.policies.grid import GridSetting
from plesio.policies.weighting import Cap, Exponential
from plesio.runtime.worlds.virtual import simulate
from plesio.tasks import load_task
from support.advisor import Clock, KnownWorld, question, situation


def joined(**arguments: Any) -> plesio.Session:
    model = nn.Linear(2, 1)
    return plesio.join(model, torch.optim.SGD(model.parameters(), lr=0.1), **arguments)


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ({"policy": 3}, "join: policy is 3"),
        ({"trace": 3}, "join: trace is 3; write a path or None"),
        ({"total_samples": -1}, "total_samples is -1; write a whole number of 1 or more"),
        ({"total_samples": True}, "total_samples is True"),
        ({"on_transition": 3}, "on_transition is 3; write a function"),
        ({"racks": 3}, 'racks is 3; write "auto", "host"'),
        ({"racks": "hosts"}, "racks is 'hosts'"),
        ({"scaler": "cpu"}, "scaler is 'cpu'; write a GradScaler or None"),
        ({"checkpoint": 3}, "checkpoint is 3; write a path"),
        ({"every": None}, "every is None; write a text or a number"),
        ({"keep": 1.5}, "keep is 1.5; write a whole number of 1 or more"),
        ({"keep": "3"}, "keep is '3'"),
        ({"keep": 0}, "keep is 0"),
        ({"resume": True}, "resume is True"),
        ({"options": {"num_servers": 2}}, "options is .*; write a JoinOptions"),
    ],
)
def test_an_argument_of_join_that_cannot_be_is_refused_in_a_line(argument: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words) as caught:
        joined(**argument)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_servers": -2}, "num_servers is -2; write a whole number of 1 or more or None"),
        ({"snapshot_every": -1}, "snapshot_every is -1"),
        ({"elastic": "no"}, "elastic is 'no'; write True or False"),
        ({"log_bytes": 1.5}, "log_bytes is 1.5"),
        ({"info": "digits"}, "info is 'digits'; write a RunInfo"),
    ],
)
def test_an_option_that_cannot_be_is_refused_in_a_line(options: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        plesio.JoinOptions(**options)


@pytest.mark.parametrize(("loss", "words"), [("loss", "the loss is 'loss'"), (torch.ones(3), r"shape \(3,\)")])
def test_a_loss_is_one_number(loss: Any, words: str):
    with joined(policy="bsp") as session, pytest.raises(ConfigError, match=words):
        session.step(loss)


def test_a_job_takes_a_place_and_a_time():
    with pytest.raises(ConfigError, match="Job: place is 3; write a WorkerPlace"):
        plesio.Job(3)  # type: ignore[arg-type]


def test_checkpoints_without_a_folder_and_nothing_to_register_are_refused():
    with pytest.raises(ConfigError, match="every=30, keep=3: there is no folder for checkpoints; write checkpoint="):
        joined(every=30)
    with joined() as session, pytest.raises(ConfigError, match=r"session.register\(\): write an object by its name"):
        session.register()


@pytest.mark.parametrize("argument", ["trace", "checkpoint"])
def test_a_folder_that_cannot_be_written_to_is_refused_before_anything_begins(argument: str, tmp_path: Path):
    (tmp_path / "file").touch()
    for folder, why in ((Path("/proc/none"), "No such file"), (tmp_path / "file", "a file is in its place")):
        with pytest.raises(ConfigError, match=f"s cannot be written to {folder}: {why}"):
            joined(**{argument: folder})
    if argument == "trace":
        with pytest.raises(ConfigError, match="traces cannot be written to"):
            plesio.grid(**SURFACE["grid"][1](), trace="/proc/none")


def test_what_can_be_is_taken():
    with joined(policy="bsp", total_samples=np.int64(8)) as session:
        session.step(torch.ones(1, 1))
        session.step(np.float32(1.0))  # type: ignore[arg-type]


class Counted:
    """A class that nothing takes."""


ODD: dict[str, Any] = {
    "None": None,
    "text": "a text",
    "whole": 3,
    "broken": 2.5,
    "nan": math.nan,
    "negative": -3,
    "switch": True,
    "list": ["a text"],
    "object": Counted(),
}
"""Values tried for every parameter; below, the word in its type that allows each."""
ALLOWED_BY = {
    "None": ("None", "Optional"),
    "text": ("str",),
    "whole": ("int", "float"),
    "broken": ("float",),
    "switch": ("bool",),
    "list": ("tuple[str", "Sequence[str", "Mapping"),
}


def linear() -> dict[str, Any]:
    model = nn.Linear(2, 1)
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}


def fields_of(made: Any) -> dict[str, Any]:
    return {one.name: getattr(made, one.name) for one in dataclasses.fields(made)}


def asked() -> Question:
    return question(situation(num_workers=2), target=None, measure_s=1.0)


@functools.cache
def answered() -> Advice:
    clock = Clock()
    return advise(asked(), KnownWorld(asked().at, clock), now_s=clock)


def in_session(name: str) -> Callable[..., Any]:
    """A method of a session that is open for this call."""

    @functools.wraps(getattr(plesio.Session, name))
    def call(**arguments: Any) -> Any:
        with joined(policy="bsp") as session:
            session.step()
            return getattr(session, name)(**arguments)

    return call


LOADER = DataLoader(TensorDataset(torch.ones(4, 2)), batch_size=2)
SURFACE: dict[str, tuple[Callable[..., Any], Callable[[], dict[str, Any]]]] = {
    **{
        kind.__name__: (kind, dict)
        for kind in (
            *(plesio.ASP, plesio.BSP, plesio.FSDP, plesio.SSP, plesio.Adaptive, plesio.Delayed, plesio.Hierarchical),
            *(
                plesio.LocalSGD,
                plesio.DiLoCo,
                plesio.PostLocalSGD,
                plesio.Switch,
                plesio.JoinOptions,
                plesio.RunInfo,
                HostCosts,
            ),
        )
    },
    "TorchHook": (plesio.TorchHook, lambda: {"form": "powersgd"}),
    "Task": (plesio.Task, lambda: fields_of(load_task("quadratic"))),
    "join": (plesio.join, linear),
    "grid": (
        plesio.grid,
        lambda: {
            "stages": nn.Sequential(nn.Linear(2, 1)),
            "optimizer_factory": lambda weights: torch.optim.SGD(weights, lr=0.1),
            "loss": nn.functional.mse_loss,
        },
    ),
    "parse_policy": (plesio.parse_policy, lambda: {"text": "bsp"}),
    "GridSetting": (GridSetting, dict),
    "TopK": (TopK, lambda: {"density": 0.5}),
    "Qsgd": (Qsgd, lambda: {"bits": 8}),
    "Exponential": (Exponential, lambda: {"rate": 0.5}),
    "Cap": (Cap, lambda: {"limit": 3}),
    "Cluster": (Cluster, lambda: {"name": "one", "hosts": 1, "workers_per_host": 2, "cores_per_host": 2}),
    "Question": (Question, lambda: fields_of(asked())),
    "Advice": (Advice, lambda: fields_of(answered())),
    "Fault": (Fault, lambda: {"at_s": 1.0, "kind": "join"}),
    "Failures": (Failures, lambda: {"mtbf_s": 1.0}),
    "simulate": (simulate, lambda: {"main": lambda job: None, "num_workers": 1, "cluster": Cluster.one_host(1)}),
    "Session.shard": (in_session("shard"), lambda: {"loader": LOADER}),
    "Session.steps_per_epoch": (in_session("steps_per_epoch"), lambda: {"loader": LOADER}),
    "Session.step": (in_session("step"), dict),
    "Session.evaluate": (in_session("evaluate"), lambda: {"metric": lambda: 1.0}),
    "Session.finish": (in_session("finish"), dict),
    "Session.schedule": (in_session("schedule"), lambda: {"scheduler": None}),
    "Session.load_state_dict": (in_session("load_state_dict"), lambda: {"state": {}}),
    "load_recipe": (load_recipe, lambda: {"path": Path("recipes/demo.toml").absolute()}),
    "make_recipe": (make_recipe, lambda: {"data": {}, "folder": Path(), "where": "here"}),
}
TAKEN = {("target", "negative"), ("loss", "negative"), ("loss", "nan"), ("loss", "switch")}
NOT_CALLED = {"Job", "Policy", "Session", "Transition", "island"}
"""Waits for other processes; is a protocol; Plesio makes it itself; takes no argument. It makes errors, too."""


def test_every_public_name_is_tried():
    found = {name: getattr(plesio, name) for name in plesio.__all__}
    errors = {name for name, one in found.items() if isinstance(one, type) and issubclass(one, Exception)}
    assert found.keys() - NOT_CALLED - errors <= SURFACE.keys()


@pytest.mark.parametrize("name", SURFACE)
def test_no_odd_argument_is_a_raw_error_or_taken_silently(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    call, base = SURFACE[name]
    usual = base()
    monkeypatch.chdir(tmp_path)
    told = []
    for parameter in inspect.signature(call).parameters.values():
        if parameter.name == "self":
            continue
        for odd, value in ODD.items():
            allowed = (parameter.name, odd) in TAKEN or any(
                word in str(parameter.annotation) for word in ALLOWED_BY.get(odd, ())
            )
            try:
                made = call(**usual | {parameter.name: value})
            except PlesioError as error:
                if not allowed and not re.search(rf"\b{parameter.name}\b", str(error)):
                    told.append(f"{parameter.name}={value!r}: the error does not name it: {error}")
            except Exception as error:  # any other is what this test is for
                told.append(f"{parameter.name}={value!r}: {type(error).__name__}: {error}")
            else:
                getattr(made, "close", lambda: None)()
                if not allowed:
                    told.append(f"{parameter.name}={value!r}: is taken")
    assert not told, "\n".join(told)


def test_the_tables_of_the_guide_have_every_argument_of_join_and_every_option():
    guide = (Path(__file__).parents[4] / "docs" / "session.md").read_text(encoding="utf-8")
    for heading, call, beside in (
        ("argument", plesio.join, {"model", "optimizer", "options"}),
        ("option", plesio.JoinOptions, set()),
    ):
        rows = guide.partition(f"| {heading} | meaning |\n| --- | --- |\n")[2].partition("\n\n")[0].splitlines()
        told = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
        assert told == inspect.signature(call).parameters.keys() - beside
