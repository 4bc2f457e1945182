"""Consistency policies: how far workers may drift apart, and how their updates count. Pure: events in, actions out.

==============  ========================================================================  ===========================
file            concept                                                                   machine it starts
==============  ========================================================================  ===========================
bsp             every step waits for everyone                                             barrier
fsdp            the same, with parameters, gradients and optimizer state in parts         barrier
delayed         every step applies the mean gradient of d steps before                    barrier, d rounds open
local_sgd       train alone for H steps, then average; with a delay, behind the steps     barrier
diloco          train alone for H steps, whose mean is an outer optimizer's gradient      barrier, decoupled (store)
post_local_sgd  torch's own: gradients for a while, then parameters every H steps         barrier
hierarchical    one policy within a rack, another between racks                           the outer's
ssp             never more than s steps ahead of the slowest                              barrier (s = 0), asynchronous
asp             no worker waits                                                           asynchronous
switch          one policy after another, by a schedule                                   steered
adaptive        finds period, delay and shares while training                             steered
interruptible   another policy, whose workers can be made to stand still together         steered
==============  ========================================================================  ===========================

`events` and `policy` are the interface to the worlds, `steered` changes from one policy to another, `weighting` counts
updates by staleness, `compression` shortens them, `torch_hook` names torch's own compressions, `spec` is the text form,
and `replay` records a machine and checks a record.
"""

from plesio.policies.adaptive import Adaptive
from plesio.policies.asp import ASP
from plesio.policies.bsp import BSP
from plesio.policies.delayed import Delayed
from plesio.policies.diloco import DiLoCo
from plesio.policies.events import (
    UNLIMITED,
    Action,
    Admit,
    Apply,
    Arrived,
    Await,
    Elapsed,
    Event,
    Grant,
    Halt,
    Joined,
    LeaveReason,
    Left,
    Pause,
    Ready,
    Refuse,
    RefuseReason,
    Resumed,
    Reviewed,
    Stay,
    Steer,
)
from plesio.policies.fsdp import FSDP
from plesio.policies.hierarchical import Hierarchical
from plesio.policies.interruptible import Interruptible
from plesio.policies.local_sgd import LocalSGD
from plesio.policies.policy import ExchangeKind, Policy, PolicyMachine, UpdateKind
from plesio.policies.post_local_sgd import PostLocalSGD
from plesio.policies.replay import (
    EventLog,
    Recorder,
    decode_event,
    encode_event,
    read_log,
    replay,
    verify,
    write_log,
)
from plesio.policies.spec import ALIASES, POLICY_HELP, describe, parse_policy
from plesio.policies.ssp import SSP
from plesio.policies.switch import Switch
from plesio.policies.torch_hook import TorchHook, parse_torch_hook
from plesio.policies.weighting import (
    UNWEIGHTED,
    Cap,
    Exponential,
    Inverse,
    Product,
    Unweighted,
    Weighting,
    parse_weighting,
)

__all__ = [
    "ALIASES",
    "ASP",
    "BSP",
    "FSDP",
    "POLICY_HELP",
    "SSP",
    "UNLIMITED",
    "UNWEIGHTED",
    "Action",
    "Adaptive",
    "Admit",
    "Apply",
    "Arrived",
    "Await",
    "Cap",
    "Delayed",
    "DiLoCo",
    "Elapsed",
    "Event",
    "EventLog",
    "ExchangeKind",
    "Exponential",
    "Grant",
    "Halt",
    "Hierarchical",
    "Interruptible",
    "Inverse",
    "Joined",
    "LeaveReason",
    "Left",
    "LocalSGD",
    "Pause",
    "Policy",
    "PolicyMachine",
    "PostLocalSGD",
    "Product",
    "Ready",
    "Recorder",
    "Refuse",
    "RefuseReason",
    "Resumed",
    "Reviewed",
    "Stay",
    "Steer",
    "Switch",
    "TorchHook",
    "Unweighted",
    "UpdateKind",
    "Weighting",
    "decode_event",
    "describe",
    "encode_event",
    "parse_policy",
    "parse_torch_hook",
    "parse_weighting",
    "read_log",
    "replay",
    "verify",
    "write_log",
]
