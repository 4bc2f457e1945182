"""Fourteen small families of tasks, made from a seed: no file is read and nothing is downloaded.

`FAMILIES` is the catalogue: how a family's problem is made, and the optimizers that it is trained with. A family takes
one option, ``difficulty``, between 0 and 1. Problems of one family with different seeds have different data.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from families.convex import bandit, logistic
from families.factors import autoencoder, contrastive, factorisation
from families.images import resnet
from families.problem import Leapt, Problem
from families.sequences import copying, gru, tags
from families.teachers import imbalance, label_noise, non_iid, ordered, teacher

__all__ = ["FAMILIES", "Family", "Leapt", "Problem"]

GRADIENT = ("sgd", "momentum", "nesterov")
NORMALISED = ("adam", "adamw", "adagrad", "rmsprop")
EVERY = GRADIENT + NORMALISED
MORE = ("fixed_length", "lion", "muon", "nadam", "radam", "adadelta")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How a problem is made from its seed and its difficulty, and what may train it.

    Attributes:
        make: Makes the problem.
        optimizers: Names in `plain.OPTIMIZERS`: those with which a single process learns it in a few hundred steps.
        schedules: Names in `plain.SCHEDULES`; none are left out unless the family is about its schedule.
        more_optimizers: What may train it in wide scenarios, beside those.
        backbone: The part of its model that may be frozen; empty if none may be.
        sparse: Its gradients are; it is of wide scenarios alone.
    """

    make: Callable[[int, float], Problem]
    optimizers: tuple[str, ...] = EVERY
    schedules: tuple[str, ...] = ("constant", "cosine", "warm-up", "step")
    more_optimizers: tuple[str, ...] = MORE
    backbone: str = ""
    sparse: bool = False


FAMILIES: Mapping[str, Family] = {
    "teacher": Family(make=teacher, backbone="0"),
    "resnet": Family(make=resnet, schedules=("cosine", "warm-up"), backbone="0"),
    "gru": Family(make=gru, optimizers=("momentum", "nesterov", *NORMALISED)),
    "copying": Family(
        make=copying,
        optimizers=("adam", "adamw", "rmsprop"),
        more_optimizers=("lion", "muon", "nadam", "radam"),
        backbone="symbol",
    ),
    "factorisation": Family(make=factorisation, optimizers=NORMALISED),
    "logistic": Family(make=logistic),
    "bandit": Family(make=bandit, backbone="0"),
    "autoencoder": Family(make=autoencoder, backbone="0"),
    "contrastive": Family(make=contrastive, backbone="0"),
    "label_noise": Family(make=label_noise, backbone="0"),
    "imbalance": Family(make=imbalance, backbone="0"),
    "non_iid": Family(make=non_iid, backbone="0"),
    "ordered": Family(make=ordered, backbone="0"),
    "tags": Family(make=tags, optimizers=("sgd", "adagrad", "sparse_adam"), more_optimizers=(), sparse=True),
}
