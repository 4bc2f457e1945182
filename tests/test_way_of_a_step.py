"""The way of a step, traced among virtual workers: the files that design.md lists, and the number of calls.

A call is one of a function that has a name; what carries messages and time in the virtual world is left out.
"""

import dis
import re
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from types import CodeType, FrameType

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import plesio
from plesio.cost.cluster import Cluster
from plesio.runtime.worker.exchange.store_client import StoreClient
from plesio.runtime.worlds.virtual import simulate
from plesio.runtime.worlds.virtual.job import VirtualJob

DESIGN = Path(__file__).parents[1] / "docs" / "design.md"
SOURCE = f"{Path(plesio.__file__).parent}/"
WORLD = ("runtime/worlds/virtual/", "sim/", "cost/")
NUM_WORKERS, FIRST, LAST = 2, 10, 40
"""The steps from the first to the last are traced: nothing begins there, and nothing ends."""
MOST_CALLS = {"ssp:2": (256, 52), "bsp": (78, 21)}
"""Calls in a step of one worker, and files that they are in. The numbers only fall, but for fragments and islands."""


def module(code: CodeType) -> str | None:
    """The file of the package that this code is in; None where it is no part of a step."""
    name = code.co_filename.removeprefix(SOURCE)
    counts = name != code.co_filename and not name.startswith(WORLD) and not code.co_name.startswith("<")
    return name if counts else None


@cache
def begins_at(code: CodeType) -> int:
    """The place in a function's code where it begins."""
    return next(instruction.offset for instruction in dis.get_instructions(code) if instruction.opname == "RESUME")


class Trace:
    """Counts calls by file, and keeps the ways to the push of an update and to the decision about it."""

    def __init__(self) -> None:
        self.on = False
        self.calls: Counter[str] = Counter()
        self.pushes: set[tuple[str, ...]] = set()
        self.decisions: set[tuple[str, ...]] = set()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        name = module(frame.f_code) if self.on and event == "call" else None
        if name is None or frame.f_lasti > begins_at(frame.f_code):  # a generator goes on after a yield
            return
        self.calls[name] += 1
        if frame.f_code is StoreClient.push.__code__:
            self.pushes.add(way(frame))
        elif name.startswith("policies/") and frame.f_code.co_name == "handle":
            whole = way(frame)
            server = next(at for at, name in enumerate(whole) if name.startswith("runtime/server/"))
            self.decisions.add(whole[server:])  # before it stands the thread that happens to run the server


def way(frame: FrameType | None) -> tuple[str, ...]:
    """The files from the outermost call to this one; calls within a file are one."""
    names: list[str] = []
    while frame is not None:
        name = module(frame.f_code)
        if name is not None and names[-1:] != [name]:
            names.append(name)
        frame = frame.f_back
    return tuple(reversed(names))


def trace(policy: str) -> Trace:
    """Trace a run of some virtual workers."""
    traced = Trace()
    data = TensorDataset(x := torch.randn(400, 5), x.sum(1, keepdim=True))

    def work(job: VirtualJob) -> None:
        model = torch.nn.Linear(5, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        sys.setprofile(traced)
        try:
            with plesio.join(model, optimizer, policy=policy, options=plesio.JoinOptions(num_servers=1)) as session:
                for x, y in session.shard(DataLoader(data, batch_size=4)):
                    (loss := (model(x) - y).square().mean()).backward()
                    if job.place.rank == 0:
                        traced.on = FIRST <= session.clock < LAST
                    session.step(loss)
        finally:
            sys.setprofile(None)

    cluster = Cluster(name="hosts", hosts=NUM_WORKERS, workers_per_host=1, cores_per_host=1)
    simulate(work, num_workers=NUM_WORKERS, cluster=cluster).values()
    return traced


def listed() -> list[str]:
    """The files from a step to the decision about it, as design.md lists them."""
    text = DESIGN.read_text(encoding="utf-8").partition("**From a step to the decision about it**")[2]
    block = text.partition("\n\n")[2].partition("\n\n")[0]
    return re.findall(r"^    (\S+\.py) ", block, flags=re.MULTILINE)


@pytest.fixture(scope="module", params=list(MOST_CALLS))
def traced(request: pytest.FixtureRequest) -> tuple[str, Trace]:
    return request.param, trace(request.param)


def test_a_step_comes_to_the_decision_through_the_files_that_the_design_lists(traced: tuple[str, Trace]) -> None:
    policy, found = traced
    ways = {
        tuple(name.removeprefix("runtime/") for name in (*push, *decision))
        for push in found.pushes
        for decision in found.decisions
    }
    assert ways == ({tuple(listed())} if policy.startswith("ssp") else set())


def test_a_step_makes_few_calls(traced: tuple[str, Trace]) -> None:
    policy, found = traced
    num_calls, num_files = MOST_CALLS[policy]
    steps = NUM_WORKERS * (LAST - FIRST)
    assert sum(found.calls.values()) / steps <= num_calls, found.calls
    assert len(found.calls) <= num_files, sorted(found.calls)
