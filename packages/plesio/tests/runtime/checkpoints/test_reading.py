import pickle
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict, set_state_dict

from plesio.core.errors import DataError
from plesio.runtime.checkpoints import reading, tensors
from plesio.runtime.worker.exchange.replica import Replica


def trained(*, optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW, seed: int = 0, **options: Any) -> Replica:
    """A replica after a step; its convolution lies in memory otherwise than its shape says."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last),
        torch.nn.BatchNorm2d(4),
        torch.nn.Flatten(),
        torch.nn.Linear(36, 2, dtype=torch.float32),
    )
    model.register_buffer("mask", torch.tensor([True, False]))
    model.register_buffer("short", torch.arange(3, dtype=torch.bfloat16))
    model.register_buffer("nothing", torch.empty(0, 3))
    replica = Replica(model, optimizer(model.parameters(), lr=0.01, **options))
    model(torch.randn(5, 3, 4, 4)).square().mean().backward()
    replica.optimizer.step()
    return replica


def write(replica: Replica, path: Path, *, num_shares: int = 2) -> None:
    path.mkdir(exist_ok=True)
    shares = [tensors.Share(number, tensors.state_of(replica), num_shares=num_shares) for number in range(num_shares)]
    places = [share.write(path)[1] for share in shares]
    shares[0].finish(path, [place for one in places for place in one])


def assert_equal(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    else:
        assert one == other


@pytest.mark.parametrize("num_shares", [1, 3])
def test_what_was_written_is_read(tmp_path: Path, num_shares: int):
    replica = trained()
    write(replica, tmp_path / "one", num_shares=num_shares)
    state = tensors.state_of(replica)
    groups = state["optimizer"].pop("param_groups")
    found = reading.read(tmp_path / "one")
    assert [{**group} for group in found["optimizer"].pop("param_groups")] == groups
    assert_equal(found, state)


def test_an_optimizer_without_state_is_read_as_such(tmp_path: Path):
    replica = trained(optimizer=torch.optim.SGD)
    write(replica, tmp_path / "one")
    found = reading.read(tmp_path / "one")
    assert found["optimizer"]["state"] == {}
    tensors.load(trained(optimizer=torch.optim.SGD, seed=1), found)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_torch_s_own_reader_gives_the_same(tmp_path: Path):
    replica, other = trained(), trained(seed=1)
    write(replica, tmp_path / "one")
    state = {
        "model": get_model_state_dict(other.model),
        "optimizer": get_optimizer_state_dict(other.model, other.optimizer),
    }
    dcp.load(state, checkpoint_id=tmp_path / "one")
    set_state_dict(other.model, other.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    assert_equal(dict(other.model.state_dict()), dict(replica.model.state_dict()))
    assert_equal(tensors.state_of(other)["optimizer"]["state"], tensors.state_of(replica)["optimizer"]["state"])


class _Runs:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return eval, ("1/0",)


@pytest.mark.parametrize("content", [_Runs(), OrderedDict()])
def test_a_table_of_contents_can_run_nothing(tmp_path: Path, content: object):
    write(trained(), tmp_path / "one")
    (tmp_path / "one" / ".metadata").write_bytes(pickle.dumps(content))
    with pytest.raises(DataError, match="which no table of contents has"):
        reading.read(tmp_path / "one")


def test_a_table_of_contents_of_another_shape_is_one_line(tmp_path: Path):
    write(trained(), tmp_path / "one")
    path = tmp_path / "one" / ".metadata"
    table = pickle.loads(path.read_bytes())
    for changed in (
        {"planner_data": dict.fromkeys(table.planner_data, ("model",))},
        {"planner_data": dict.fromkeys(table.planner_data, ())},
        {"planner_data": None},
        {"storage_data": {}},
        {"storage_data": {"a": "b"}},
        {"state_dict_metadata": {}},
        {"storage_data": {key: replace(place, relative_path="../x") for key, place in table.storage_data.items()}},
        {"storage_data": {key: replace(place, offset=-1) for key, place in table.storage_data.items()}},
    ):
        path.write_bytes(pickle.dumps(replace(table, **changed)))
        with pytest.raises(DataError, match=r"the tensors of .*one cannot be read: \w+: ."):
            reading.plain(reading.read(tmp_path / "one"))


def test_a_file_that_is_cut_off_is_named(tmp_path: Path):
    write(trained(), tmp_path / "one")
    file = tmp_path / "one" / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"the tensors of .*one cannot be read: "):
        reading.read(tmp_path / "one")
