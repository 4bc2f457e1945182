"""Carries out what the coordinator decides: orders go to the shards of all servers, messages to the workers."""

from collections.abc import Sequence

from plesio.protocol.effects import Effect, Orders, Tell
from plesio.protocol.message import Message, encode
from plesio.protocol.peers import heartbeat_identity, server_identity, worker_identity
from plesio.runtime.server.shard_server import ShardServer
from plesio.runtime.transport.connection import WorkerConnections


class EffectCarrier:
    """The hands of server 0."""

    def __init__(self, endpoint: WorkerConnections, *, shard: ShardServer) -> None:
        self._endpoint = endpoint
        self._shard = shard
        self._holders: tuple[str, ...] = ()
        """The other servers that hold a part of the parameters."""

    def begin_run(self, num_servers: int) -> None:
        self._holders = tuple(server_identity(index) for index in range(1, num_servers))

    def carry_out(self, effects: Sequence[Effect]) -> None:
        """Give orders before messages: a worker that receives a decision finds it done, or under way."""
        orders = [effect for effect in effects if not isinstance(effect, Tell)]
        if orders:
            if self._holders:
                kind, body = encode(Orders.of(orders))
                for peer in self._holders:
                    self._endpoint.send_control(peer.encode(), kind, body)
            self._shard.carry_out(orders)
        for effect in effects:
            if isinstance(effect, Tell):
                identity = heartbeat_identity if effect.message.urgent else worker_identity
                self.tell(identity(effect.worker).encode(), effect.message)

    def tell(self, peer: bytes, message: Message) -> None:
        self._endpoint.send_control(peer, *encode(message))
