"""Twelve small families of tasks, made from a seed: no file is read and nothing is downloaded.

`FAMILIES` is the catalogue: how a family's problem is made, and the optimizers that it is trained with. A family takes
one option, ``difficulty``, between 0 and 1. Problems of one family with different seeds have different data.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from families.convex import bandit, logistic
from families.factors import autoencoder, contrastive, factorisation
from families.images import resnet
from families.problem import Problem
from families.sequences import copying, gru
from families.teachers import imbalance, label_noise, non_iid, ordered, teacher

__all__ = ["FAMILIES", "Family", "Problem"]

GRADIENT = ("sgd", "momentum", "nesterov")
NORMALISED = ("adam", "adamw", "adagrad", "rmsprop")
EVERY = GRADIENT + NORMALISED


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How a problem is made from its seed and its difficulty, and what may train it.

    Attributes:
        make: Makes the problem.
        optimizers: Names in `plain.OPTIMIZERS`: those with which a single process learns it in a few hundred steps.
        schedules: Names in `plain.SCHEDULES`; none are left out unless the family is about its schedule.
    """

    make: Callable[[int, float], Problem]
    optimizers: tuple[str, ...] = EVERY
    schedules: tuple[str, ...] = ("constant", "cosine", "warm-up", "step")


FAMILIES: Mapping[str, Family] = {
    "teacher": Family(make=teacher),
    "resnet": Family(make=resnet, schedules=("cosine", "warm-up")),
    "gru": Family(make=gru, optimizers=("momentum", "nesterov", *NORMALISED)),
    "copying": Family(make=copying, optimizers=("adam", "adamw", "rmsprop")),
    "factorisation": Family(make=factorisation, optimizers=NORMALISED),
    "logistic": Family(make=logistic),
    "bandit": Family(make=bandit),
    "autoencoder": Family(make=autoencoder),
    "contrastive": Family(make=contrastive),
    "label_noise": Family(make=label_noise),
    "imbalance": Family(make=imbalance),
    "non_iid": Family(make=non_iid),
    "ordered": Family(make=ordered),
}
