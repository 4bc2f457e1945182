"""The steering of a worker under a changing policy by server 0, over the worker's connection to it."""

from collections.abc import Callable

from msgspec.structs import replace

from plesio.policies import Reviewed
from plesio.protocol.to_server import Review, StageStop
from plesio.protocol.to_worker import Entered, ServerState, StageEnd, Steering
from plesio.runtime.worker.exchange.store_client import StoreClient
from plesio.runtime.worker.rack_batches import Rack

__all__ = ["ServerSteering"]


class ServerSteering:
    """A worker's reports about itself, and its instructions.

    Args:
        check: Called while waiting; raises when the workers' group is no more.
    """

    def __init__(self, client: StoreClient, *, check: Callable[[], None]) -> None:
        self._client = client
        self._check = check

    def review(self, review: Reviewed) -> None:
        self._client.send(Review(event=review))

    def steer(self) -> Steering:
        return self._client.await_message(Steering, check=self._check)

    def news(self, rack: Rack | None) -> Steering | None:
        """Return the answer to the last review, if it has come; not waited for. A rack's leader broadcasts it."""
        news = self._client.received(Steering) if rack is None or rack.leads else None
        return news if rack is None else rack.broadcast(news, Steering)

    def server_state(self) -> ServerState:
        """Fetch all pages of the state of server 0, after the order to take a checkpoint; this worker saves them."""
        pages = [self._client.await_message(ServerState)]
        while pages[-1].left:
            pages.append(self._client.await_message(ServerState))
        return replace(pages[-1], text="".join(page.text for page in pages))

    def enter_store(self, stop: StageStop) -> None:
        """Report that this worker stands still and the store has its state; return when all have reported so."""
        self._client.send(stop)
        self._client.await_message(Entered, check=self._check)

    def leave_store(self, stop: StageStop) -> StageEnd:
        """Report that this worker has handed in all it had; return when the server has decided how it goes on."""
        self._client.send(stop)
        return self._client.await_message(StageEnd)
