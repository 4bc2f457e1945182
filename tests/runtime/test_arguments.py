"""Arguments that cannot be are refused in one line, before anything has begun."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import plesio
from plesio.core.errors import ConfigError


def joined(**arguments: Any) -> plesio.Session:
    model = nn.Linear(2, 1)
    return plesio.join(model, torch.optim.SGD(model.parameters(), lr=0.1), **arguments)


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ({"policy": None}, r"join\(policy=None\): a policy or its text"),
        ({"policy": 3}, r"join\(policy=3\): a policy"),
        ({"trace": 3}, r"join\(trace=3\): a path, or None, is needed"),
        ({"total_samples": -1}, r"join\(total_samples=-1\): a whole number of at least 1"),
        ({"total_samples": True}, r"join\(total_samples=True\)"),
        ({"on_transition": 3}, r"join\(on_transition=3\): a function"),
        ({"racks": 3}, r'join\(racks=3\): "auto", "host"'),
        ({"racks": "hosts"}, r"join\(racks='hosts'\)"),
        ({"scaler": "cpu"}, r"join\(scaler='cpu'\): a torch.amp.GradScaler"),
        ({"checkpoint": 3}, r"join\(checkpoint=3\): a path"),
        ({"every": None}, r"join\(every=None\): a time or steps"),
        ({"keep": 1.5}, r"join\(keep=1.5\): a whole number of at least 1 is needed"),
        ({"keep": "3"}, r"join\(keep='3'\)"),
        ({"keep": 0}, r"join\(keep=0\)"),
        ({"resume": True}, r"join\(resume=True\)"),
        ({"options": {"num_servers": 2}}, r"join\(options=.*plesio.JoinOptions\(...\) is needed"),
    ],
)
def test_an_argument_of_join_that_cannot_be_is_refused_in_a_line(argument: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words) as caught:
        joined(**argument)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_servers": -2}, r"JoinOptions\(num_servers=-2\): a whole number of at least 1, or None, is needed"),
        ({"snapshot_every": -1}, r"JoinOptions\(snapshot_every=-1\)"),
        ({"elastic": "no"}, r"JoinOptions\(elastic='no'\): True or False"),
        ({"log_bytes": 1.5}, r"JoinOptions\(log_bytes=1.5\)"),
        ({"info": "digits"}, r"JoinOptions\(info='digits'\): plesio.RunInfo"),
        ({"info": plesio.RunInfo(metric_goal="less")}, r"RunInfo\(metric_goal='less'\): \"max\" or \"min\""),  # type: ignore[arg-type]
        ({"info": plesio.RunInfo(target="0.9")}, r"RunInfo\(target='0.9'\): a number"),  # type: ignore[arg-type]
    ],
)
def test_an_option_that_cannot_be_is_refused_in_a_line(options: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        plesio.JoinOptions(**options)


@pytest.mark.parametrize(("loss", "words"), [("loss", "the loss is 'loss'"), (torch.ones(3), r"shape \(3,\)")])
def test_a_loss_is_one_number(loss: Any, words: str):
    with joined(policy="bsp") as session, pytest.raises(ConfigError, match=words):
        session.step(loss)


def test_what_can_be_is_taken():
    with joined(policy="bsp", total_samples=np.int64(8), every=30) as session:
        session.step(torch.ones(1, 1))
        session.step(np.float32(1.0))  # type: ignore[arg-type]
