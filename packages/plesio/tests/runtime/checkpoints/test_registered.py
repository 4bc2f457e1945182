"""An accepted state loads equal and of the same types; `register` refuses any other by name and place."""

import io
import re
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import plesio
from plesio.core.errors import ConfigError, DataError
from plesio.runtime.worker.registered import kept, restored


class Holds:
    """Has a state."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert (one.dtype, one.requires_grad, one.shape) == (other.dtype, other.requires_grad, other.shape)
        assert torch.equal(one.detach().nan_to_num(), other.detach().nan_to_num())
    elif isinstance(one, np.ndarray | np.generic):
        assert one.dtype == other.dtype
        assert one.tobytes() == other.tobytes()
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key, own in zip(one, other, strict=True):
            assert_same(key, own)
            assert_same(one[key], other[own])
        assert getattr(one, "default_factory", None) == getattr(other, "default_factory", None)
        assert getattr(one, "__dict__", None) == getattr(other, "__dict__", None)
    elif isinstance(one, list | tuple | deque):
        assert len(one) == len(other)
        assert getattr(one, "maxlen", None) == getattr(other, "maxlen", None)
        for pair in zip(one, other, strict=True):
            assert_same(*pair)
    else:
        assert one == other or one != one


def through_a_file(state: Any) -> Any:
    """Write the state into a checkpoint's file, and read it."""
    file = io.BytesIO()
    torch.save(kept("one", state), file)
    file.seek(0)
    return restored(torch.load(file, weights_only=True))


hashable = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=2**1020, max_value=2**2100),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.complex_numbers(allow_nan=False),
    st.dates(),
    st.datetimes(timezones=st.sampled_from([None, UTC, timezone(timedelta(hours=2), "there")])),
    st.timedeltas(),
    st.builds(range, st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 3)),
    st.builds(Path, st.from_regex(r"[a-z/]{1,9}", fullmatch=True)),
    st.frozensets(st.integers()),
    st.tuples(st.integers(), st.text()),
    st.sampled_from([torch.float16, torch.device("cpu"), torch.Size([2, 3]), np.float64(0.1), np.int8(3)]),
)
leaf = st.one_of(
    hashable,
    st.just(float("nan")),
    st.binary().map(bytearray),
    arrays.arrays(arrays.scalar_dtypes() | arrays.unicode_string_dtypes(), arrays.array_shapes(min_side=0)),
    st.sampled_from([torch.ones(2, 3).t(), torch.ones(2, requires_grad=True), torch.nn.Parameter(torch.ones(2))]),
    st.sets(hashable),
)
states = st.recursive(
    leaf,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(hashable, inner, max_size=3),
        st.dictionaries(st.text(), inner, max_size=3).map(OrderedDict),
        st.dictionaries(hashable, inner, max_size=3).map(lambda items: defaultdict(list, items)),
        st.dictionaries(st.text(), st.integers(), max_size=3).map(Counter),
        st.builds(deque, st.lists(inner, max_size=3), st.sampled_from([None, 5])),
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(states)
def test_what_is_kept_loads_equal_and_of_the_same_types(state: Any):
    assert_same(state, through_a_file(state))


def test_a_copy_is_kept():
    state = {"tensor": torch.ones(2), "array": np.ones(2), "list": [[1]]}
    copied = kept("one", state)
    state["tensor"].zero_(), state["array"].fill(0), state["list"][0].append(2)
    assert_same(restored(copied), {"tensor": torch.ones(2), "array": np.ones(2), "list": [[1]]})


class Colour(Enum):
    RED = 1


class Level(IntEnum):
    LOW = 1


@dataclass
class Point:
    x: int = 1


Pair = namedtuple("Pair", "a b")
itself: list[Any] = []
itself.append(itself)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"a": {"colour": [0, Colour.RED]}}, r"its state at a\.colour\[1\] is of the type .*Colour; .* its value"),
        ({"level": Level.LOW}, "Level; have state_dict give its value"),
        ({"at": Point()}, r"Point; have state_dict give dataclasses\.asdict of it"),
        ({"pair": Pair(1, 2)}, r"Pair; have state_dict give tuple\(\.\.\.\) of it"),
        ({"rng": np.random.RandomState(1)}, r"RandomState; have state_dict give its get_state\(\)"),
        ({"rng": np.random.default_rng(1)}, r"Generator; have state_dict give its bit_generator\.state"),
        ({"rule": len}, r"its state at rule is of the type builtin_function_or_method; have state_dict give numbers"),
        ({"objects": np.array([{}], dtype=object)}, "ndarray"),
        ({"zone": datetime(2026, 1, 1, tzinfo=ZoneInfo("UTC"))}, "ZoneInfo"),
        ({"inner": torch.nn.Linear(1, 1)}, r"Linear; have state_dict give its state_dict\(\)"),
        ({(1, Colour.RED): 1}, "Colour"),
        ({"lazy": defaultdict(Point)}, "defaultdict"),
        (itself, "holds itself"),
    ],
)
def test_what_cannot_be_kept_is_refused_where_it_is_registered(state: Any, said: str, tmp_path: Path):
    model = torch.nn.Linear(2, 1)
    with plesio.join(model, torch.optim.SGD(model.parameters(), lr=0.1), checkpoint=tmp_path) as session:
        with pytest.raises(ConfigError, match=f'"one" cannot be saved: .*{said}'):
            session.register(one=Holds(state))
        with pytest.raises(ConfigError, match='"one" is a int: only what has state_dict and load_state_dict'):
            session.register(one=1)  # type: ignore[arg-type]


def step(session: plesio.Session) -> None:
    session.model(torch.ones(1, 2)).sum().backward()
    session.step()


def test_a_run_goes_on_from_it_and_says_what_is_missing(tmp_path: Path):
    def run(**objects: Any) -> list[str]:
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with plesio.join(model, optimizer, policy="bsp", checkpoint=tmp_path, every="1 steps") as session:
            session.register(**objects)
            step(session)
        return list(session.report().fallbacks)

    state = {"history": deque([np.float32(1)], maxlen=2), "when": date(2026, 1, 2), "best": np.arange(3.0)}
    assert run(one=Holds(state), other=Holds(1)) == []
    one = Holds(None)
    said = run(one=one, new=Holds(1))
    assert_same(one.state, state)
    assert any('has a state of "other", which the program has not registered' in line for line in said)
    assert any('has no state of "new"' in line for line in said)

    class Refuses(Holds):
        def load_state_dict(self, state: Any) -> None:
            raise KeyError("nope")

    with pytest.raises(DataError, match=r'"one" .*Refuses.* does not take the state that was saved of it: KeyError'):
        run(one=Refuses(0))


def test_what_becomes_unsavable_later_is_told_and_leaves_nothing_behind(tmp_path: Path):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    one = Holds({"seen": 1})
    with plesio.join(model, optimizer, policy="bsp", checkpoint=tmp_path, every="1 steps") as session:
        session.register(one=one)
        one.state["seen"] = Colour.RED
        step(session)
    [line] = session.report().fallbacks
    assert re.search('could not be written.*"one" cannot be saved: its state at seen is of the type', line)
    assert list(tmp_path.glob("step-*")) == []


def test_an_optimizer_with_what_cannot_be_saved_is_refused_at_join(tmp_path: Path):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.param_groups[0]["seen"] = deque([1])
    with pytest.raises(ConfigError, match=r'its param_groups\[0\]\["seen"\] is a collections\.deque'):
        plesio.join(model, optimizer, policy="bsp", checkpoint=tmp_path)
