"""Settings of frameworks that no session honours are refused in one line, which says what to write."""

from functools import cache
from pathlib import Path

import pytest

from plesio.integrations.joined import checked_policy
from plesio.runtime.worker.environment import POLICY_VARIABLE
from support.frameworks import LIMIT_S
from support.processes import on_processes

pytestmark = pytest.mark.timeout(LIMIT_S + 20)
LINES = {
    "accelerate": {
        "fsdp": "use its own FSDP",
        "other model": "no model that these optimizers train",
        "optimizer first": "no model that these optimizers train",
        "two calls": "all of them in one call",
        "comm_hook": "compress by the policy",
        "uneven": "join_uneven_inputs",
    },
    "transformers": {"fsdp": "use its own FSDP", "buffers": "broadcast_buffers=False"},
    "lightning": {
        "fsdp": "use its own FSDP",
        "adaptive": "write adaptive,store=off",
        "hook": '"ddp_comm_hook" is for DDP',
        "not started": "plesio run --workers 2",
    },
}


def test_without_a_policy_it_is_the_launchers_or_one_that_adapts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(POLICY_VARIABLE, raising=False)
    assert checked_policy(None, framework="Accelerate").spec == "adaptive,store=off"
    monkeypatch.setenv(POLICY_VARIABLE, "ssp:4")
    assert checked_policy(None, framework="Accelerate").spec == "ssp:4"


@cache
def refused(framework: str) -> dict[str, str]:
    program = Path(__file__).with_name(f"{framework}_programs.py")
    (found,) = on_processes(1, program, "refused", limit_s=LIMIT_S)
    return found


@pytest.mark.parametrize(("framework", "what"), [(framework, what) for framework in LINES for what in LINES[framework]])
def test_it_is_one_line(framework: str, what: str):
    line = refused(framework)[what]
    assert LINES[framework][what] in line
    assert "\n" not in line
