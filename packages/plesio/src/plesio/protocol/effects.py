"""The coordinator's decisions: orders, which every server carries out on its shard, and messages to workers."""

from typing import Any, Self

from plesio.core.records import Record, from_values, to_values
from plesio.protocol.message import Message
from plesio.protocol.to_worker import ToWorker


def _name(name: str) -> str:
    return name.removesuffix("Order").lower()


class _Order(Record, frozen=True, kw_only=True, tag_field="kind", tag=_name):
    """An order to every server about its shard; all servers carry orders out in the same sequence."""


class AdmitOrder(_Order, frozen=True, kw_only=True):
    """The worker takes part from ``clock`` on."""

    worker: int
    clock: int


class CreditOrder(_Order, frozen=True, kw_only=True):
    """The worker may run until its clock is ``clock``."""

    worker: int
    clock: int


class ApplyOrder(_Order, frozen=True, kw_only=True):
    """The mean of these updates, times ``weight``, becomes ``version``.

    Attributes:
        updates: (worker, clock) of each.
        weight: Weight, as in `plesio.policies.Apply`.
        num_live: Workers that are there, resting ones too.
        counts: What each update counts in their mean: the workers whose work it is, or its samples; None is one each.
        share: Share, as in `plesio.policies.Apply`.
        age: The same.
        samples: Samples of all workers that have been trained on with these.
        fragment: Fragment, as in `plesio.policies.Apply`.
        by_directions: The same.
        late: Which of the updates are corrected; None: none.
    """

    updates: tuple[tuple[int, int], ...]
    weight: float
    version: int
    num_live: int
    counts: tuple[int, ...] | None = None
    share: float = 1.0
    age: float = 0.0
    samples: int = 0
    fragment: int = 0
    by_directions: bool = False
    late: tuple[bool, ...] | None = None

    def left_out(self) -> tuple[str, ...]:
        """Share and age go together."""
        whole: tuple[str, ...] = ("share", "age") if (self.share, self.age) == (1.0, 0.0) else ()
        plain = (("fragment", 0), ("by_directions", False), ("late", None))
        whole = (*(key for key, usual in plain if getattr(self, key) == usual), *whole)
        return whole if self.counts is not None else ("counts", *whole)


class DropOrder(_Order, frozen=True, kw_only=True):
    """The worker's update at ``clock`` is dropped."""

    worker: int
    clock: int


class SnapshotOrder(_Order, frozen=True, kw_only=True):
    """Keep the parameters as they are now under this number."""

    number: int


class HaltOrder(_Order, frozen=True, kw_only=True):
    """The stage on the store ends: whoever pulls is told to stop, whatever its credit."""


class StayOrder(_Order, frozen=True, kw_only=True):
    """It does not end after all."""


Order = AdmitOrder | CreditOrder | ApplyOrder | DropOrder | SnapshotOrder | HaltOrder | StayOrder


class Tell(Record, frozen=True, kw_only=True):
    """A message for one worker."""

    worker: int
    message: ToWorker


Effect = Order | Tell


class Orders(Message, frozen=True, kw_only=True, tag=21):
    """Server 0 to the other servers: what to do to their shards.

    >>> Orders.of([HaltOrder(), CreditOrder(worker=1, clock=5)]).orders
    (('halt', {}), ('credit', {'worker': 1, 'clock': 5}))
    """

    orders: tuple[tuple[str, dict[str, Any]], ...]
    """The kind and the fields of each order."""

    @classmethod
    def of(cls, orders: list[Order]) -> Self:
        fields = [to_values(order) for order in orders]
        return cls(orders=tuple((values.pop("kind"), values) for values in fields))

    def unpacked(self) -> list[Order]:
        """Unpack the orders.

        Raises:
            DataError: One is none.
        """
        return [from_values({"kind": kind, **values}, Order) for kind, values in self.orders]


class EndRun(Message, frozen=True, kw_only=True, tag=32):
    """Server 0 to the other servers: the run is over. Answered with `Ended`."""


FromFirst = Orders | EndRun
"""Messages from server 0 to the other servers."""
