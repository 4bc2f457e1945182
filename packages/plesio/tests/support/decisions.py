"""Decisions of the adaptive policy that a test takes in place of its controller."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from plesio.policies import Policy, Reviewed
from plesio.policies.adaptive.controller import Controller
from plesio.policies.adaptive.system.setting import Sent, Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A decision with the attributes that a machine reads, and the controller's setting that it follows from."""

    setting: Setting
    shares: tuple[float, ...] = ()
    keep: bool = False
    restore: bool = False
    relearn: bool = False
    alarm: bool = False
    reason: str = "as scripted"
    inputs: tuple[tuple[str, float], ...] = ()

    @property
    def policy(self) -> Policy:
        return self.setting.policy


def to(
    period: int,
    delay: int = 0,
    *,
    by_racks: bool = False,
    sent: Sent = Sent.FULL,
    memory: float = math.inf,
    **values: Any,
) -> Decision:
    """A decision for a setting on the collective."""
    setting = Setting.of(period=period, delay=delay, memory=memory, by_racks=by_racks, sent=sent)
    return to_setting(setting, **values)


def to_setting(setting: Setting, **values: Any) -> Decision:
    """A decision for this setting."""
    return Decision(setting=setting, **values)


def script(monkeypatch: pytest.MonkeyPatch, *decisions: Decision) -> None:
    """Have the controller take these decisions, one a review, and stay with the last."""
    coming = itertools.chain(decisions, itertools.repeat(replace(decisions[-1], restore=False, alarm=False)))

    def review(self: Controller, reviews: Mapping[int, Reviewed]) -> Decision:
        decision = next(coming)
        self.setting, self.shares = decision.setting, decision.shares
        return decision

    monkeypatch.setattr(Controller, "review", review)
