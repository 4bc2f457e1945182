from collections.abc import Iterable

from plesio.protocol.effects import CreditOrder, HaltOrder, Order, Orders, Tell
from plesio.protocol.message import decode, kind_of
from plesio.protocol.to_worker import Entered, Lost
from plesio.runtime.server.effect_carrier import EffectCarrier
from support.endpoints import KeepingEndpoint

ORDERS = [CreditOrder(worker=0, clock=4), HaltOrder()]


class Shard:
    def __init__(self, endpoint: KeepingEndpoint) -> None:
        self.endpoint = endpoint
        self.done: list[Order] = []
        self.told_before = 0

    def carry_out(self, orders: Iterable[Order]) -> None:
        self.told_before = len(self.endpoint.controls)
        self.done += orders


def carrier(*, num_servers: int) -> tuple[EffectCarrier, Shard, KeepingEndpoint]:
    endpoint = KeepingEndpoint()
    shard = Shard(endpoint)
    made = EffectCarrier(endpoint, shard=shard)  # type: ignore[arg-type]
    made.begin_run(num_servers)
    return made, shard, endpoint


def test_orders_go_to_every_shard_in_one_message_and_workers_hear_afterwards():
    made, shard, endpoint = carrier(num_servers=3)
    made.carry_out([Tell(worker=1, message=Entered()), *ORDERS])
    assert shard.done == ORDERS
    assert shard.told_before == 2
    assert [(peer, kind) for peer, kind, _ in endpoint.controls] == [
        (b"server-1", kind_of(Orders)),
        (b"server-2", kind_of(Orders)),
        (b"worker-1", kind_of(Entered)),
    ]
    message = decode(kind_of(Orders), endpoint.controls[0][2], Orders, peer="server 0")
    assert message.unpacked() == ORDERS


def test_what_is_urgent_goes_to_the_heartbeat():
    made, shard, endpoint = carrier(num_servers=1)
    made.carry_out([Tell(worker=1, message=Lost(workers=(0,), fatal=True))])
    assert [peer for peer, *_ in endpoint.controls] == [b"heartbeat-1"]
    assert shard.done == []
