"""Fully sharded data parallel: bulk synchronous, with parameters, gradients and optimizer state cut among the workers.

Rajbhandari et al. 2020, "ZeRO: memory optimizations toward training trillion parameter models", stage 3; Zhao et al.
2023, "PyTorch FSDP". Each of n workers holds an n-th of every parameter, of its mean gradient and of what the optimizer
remembers of it. A block of the model is whole on a worker only while it is computed: it is gathered before its forward
pass, gathered again before its backward pass, and its gradient is reduce-scattered behind that. So a step sends up to
half as much again as the all-reduce of BSP, and the numbers are those of BSP, since the optimizer's step is made of the
same mean gradient.
"""

from dataclasses import dataclass
from typing import ClassVar

from plesio.core.errors import PolicySpecError
from plesio.policies.barrier import BarrierMachine
from plesio.policies.policy import Policy, PolicyMachine, UpdateKind


@dataclass(frozen=True, slots=True, kw_only=True)
class FSDP(Policy):
    """All workers finish a step with the mean of their gradients, of which each holds and steps its own part.

    Args:
        blocks: Names of classes, in any case: the modules of these are gathered one at a time. None named are the
            elements of the model's outermost ``Sequential``, ``ModuleList`` and ``ModuleDict``.
        mirror: Steps after which each worker renews its copy of the previous worker's part; 0 for no copies, with which
            the loss of a worker ends the run.

    Raises:
        PolicySpecError: Something that is no name of a class, or a negative number.

    >>> FSDP(blocks=("EncoderLayer",), mirror=1).spec
    'fsdp,blocks=encoderlayer,mirror=1'
    """

    name: ClassVar[str] = "fsdp"
    update: ClassVar[UpdateKind] = "gradient"
    shards: ClassVar[bool] = True

    blocks: tuple[str, ...] = ()
    mirror: int = 0

    def __post_init__(self) -> None:
        Policy.__post_init__(self)
        if self.mirror < 0:
            raise PolicySpecError(f"fsdp: mirror is {self.mirror}; write a number of steps, as in fsdp,mirror=1")
        for block in self.blocks:
            if not block.isidentifier():
                raise PolicySpecError(f"fsdp: {block!r} is no name of a class; write it as in blocks=encoderlayer+mlp")
        object.__setattr__(self, "blocks", tuple(sorted({block.lower() for block in self.blocks})))

    def start(self, *, clock: int = 0) -> PolicyMachine:
        return BarrierMachine(period=1, clock=clock)


def parse_blocks(text: str) -> tuple[str, ...]:
    """Split the names of a ``+``-separated text.

    >>> parse_blocks("encoderlayer+mlp")
    ('encoderlayer', 'mlp')
    """
    return tuple(name.strip() for name in text.split("+"))
