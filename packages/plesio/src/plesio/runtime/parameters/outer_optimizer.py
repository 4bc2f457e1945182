"""The outer optimizer of local steps, as one of torch's, where the servers of the store step it."""

import torch
from torch.optim import Optimizer

from plesio.policies.outer_rule import OUTER_BETA2, OUTER_EPSILON, OuterRule

__all__ = ["outer_optimizer"]


def outer_optimizer(rule: OuterRule, inner: Optimizer) -> Optimizer:
    """Make torch's own optimizer of a rule, for the parameters that ``inner`` has, in the same groups."""
    groups = [{"params": group["params"]} for group in inner.param_groups]
    if rule.kind == "adam":
        return torch.optim.Adam(groups, lr=rule.rate, betas=(rule.momentum, OUTER_BETA2), eps=OUTER_EPSILON)
    nesterov = rule.kind == "nesterov" and rule.momentum > 0
    return torch.optim.SGD(groups, lr=rule.rate, momentum=rule.momentum, nesterov=nesterov)
