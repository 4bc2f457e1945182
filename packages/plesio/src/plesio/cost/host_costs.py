"""The costs of training on a host's processors, besides the steps that a recipe or a distribution gives."""

from dataclasses import dataclass
from typing import Annotated

from plesio.core.arguments import check_fields
from plesio.core.within import ABOVE_0, AT_LEAST_0

LEAST_SERVED_BYTES = 16_384
"""By one server: they take about as long on a link of 1 Gbit/s as a message to one server more (docs/log.md, 37)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCosts:
    """Seconds of processor time. The defaults are a typical machine's; `plesio lab calibrate` measures one.

    Attributes:
        pack_s: Seconds that a worker takes for any update or parameters, large or small.
        pack_bytes_per_s: Bytes per second that it copies in or out.
        message_s: Seconds that it takes for each further server that has a part of them.
        serve_s: Seconds that a server takes for any message.
        serve_bytes_per_s: Bytes per second that it applies or answers.
        step_s: Seconds that a worker takes for what follows a step's gradient: the optimizer, the records.
        gradient_s: Seconds that the gradient of a step really takes. A paced step lasts as long as was drawn, or as
            long as this takes on cores that are shared.
        memory_bytes: Peak memory of a worker; 0 is not known.
        cores: Cores of a host that all this shares, with what its workers and servers do at the same time; need not be
            whole. None: each has a core of its own.
        all_reduce_s: Seconds of an all-reduce among the workers, however small, and
        all_reduce_bytes_per_s: bytes per second that it adds up, if they were measured. None: as the links have it.
        collective_s: Seconds of processor time that any collective takes besides what the links have it take.

    >>> HostCosts(pack_s=1e-4, pack_bytes_per_s=1e9).pack(1_000_000)
    0.0011
    """

    pack_s: Annotated[float, AT_LEAST_0] = 200e-6
    pack_bytes_per_s: Annotated[float, ABOVE_0] = 4e9
    message_s: Annotated[float, AT_LEAST_0] = 200e-6
    serve_s: Annotated[float, AT_LEAST_0] = 150e-6
    serve_bytes_per_s: Annotated[float, ABOVE_0] = 2e9
    step_s: Annotated[float, AT_LEAST_0] = 0.0
    gradient_s: Annotated[float, AT_LEAST_0] = 0.0
    memory_bytes: Annotated[int, AT_LEAST_0] = 0
    cores: Annotated[float, ABOVE_0] | None = None
    all_reduce_s: Annotated[float, AT_LEAST_0] | None = None
    all_reduce_bytes_per_s: Annotated[float, ABOVE_0] | None = None
    collective_s: Annotated[float, AT_LEAST_0] = 0.0

    def __post_init__(self) -> None:
        check_fields(self, "HostCosts: ")

    def pack(self, num_bytes: int, *, further: bool = False) -> float:
        """Seconds that a worker takes to pack or unpack the ``num_bytes`` of the first, or of a further server."""
        return (self.message_s if further else self.pack_s) + num_bytes / self.pack_bytes_per_s

    def serve(self, num_bytes: int) -> float:
        """Return the seconds that a server takes for a message of ``num_bytes``."""
        return self.serve_s + num_bytes / self.serve_bytes_per_s

    def all_reduce(self, num_bytes: int) -> float | None:
        """Seconds of an all-reduce of ``num_bytes``, if it was measured."""
        if self.all_reduce_s is None or self.all_reduce_bytes_per_s is None:
            return None
        return self.all_reduce_s + num_bytes / self.all_reduce_bytes_per_s
