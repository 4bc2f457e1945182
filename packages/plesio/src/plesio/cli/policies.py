"""`plesio list policies`: the consistency policies, one line each, and the options of a grid and of adaptive."""

import dataclasses
from collections.abc import Mapping

from plesio.cli.listing import Lists, tell
from plesio.cli.options import Json, Overwrite

EXAMPLES = """\b
Examples:
  plesio list policies
  plesio compare recipes/demo.toml --out runs/two --policies bsp,ssp:8
  plesio compare recipes/grid.toml --out runs/grid --world virtual
\b
ssp and asp take a weight for stale updates: weight=inverse, weight=exp:0.1,
weight=cap:8, or several joined by "+", and rate=undivided, which applies
each update at the whole learning rate.
\b
bsp,backup=1 does not wait for the slowest worker.
\b
bsp, delayed, local_sgd and diloco take a compression of what is sent:
compress=fp16, bf16, topk:0.01, randk:0.05, qsgd:8 or powersgd:2, and
options of it joined by "+", as in compress=topk:0.01+no_feedback.
In hier it is a matter of what goes between racks, as in
hier:bsp/local_sgd:8,compress=qsgd:8.
\b
diloco's outer optimizer is outer=nesterov or sgd, with outer_lr=0.7 and
outer_momentum=0.9. alpha=0.5 is the share of its own parameters that a
worker keeps behind a delay; merge=rda averages lengths and directions.
\b
bsp,hook=fp16, bf16 and powersgd:2 are torch's own hooks of DDP, and
post_local_sgd is torch's own, to be compared with."""


def policies(json_file: Json = None, overwrite: Overwrite = False) -> None:
    """List the policies and the options they take.

    A policy says how far workers may drift apart, and how their updates count.
    """
    tell(_lists(), json_file=json_file, overwrite=overwrite)


def num_policies() -> int:
    return len(_lines())


def _lists() -> Lists:
    from plesio.core.inputs import explanations
    from plesio.policies.adaptive.numbers import Numbers, Options
    from plesio.policies.fields import as_text
    from plesio.policies.grid import GRID_OPTIONS

    meanings = explanations(Numbers, "Attributes") | explanations(Options, "Attributes")
    options = {f"{one.name}={as_text(one.default)}": meanings[one.name] for one in dataclasses.fields(Options)}
    return {
        "Policies": _lines(),
        "Options of a grid, as in grid:2x4,mixing=ring,every=4": GRID_OPTIONS,
        "Options of adaptive, as in adaptive,price=0.03,store=off": {
            default: meaning.replace("`", "").rstrip(".") for default, meaning in options.items()
        },
    }


def _lines() -> Mapping[str, str]:
    from plesio.policies import ALIASES, POLICY_HELP
    from plesio.policies.grid import GRID_HELP

    return {**POLICY_HELP, "grid": GRID_HELP, **{name: f"another name of {spec}" for name, spec in ALIASES.items()}}
