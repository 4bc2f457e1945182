from collections import Counter

from plesio.protocol.figures import RunInfo
from plesio.protocol.to_server import Ended
from plesio.runtime.coordinator.ledger import Ledger
from plesio.runtime.server.server_traffic import ServerTraffic
from plesio.runtime.transport import Refusal
from support.endpoints import KeepingEndpoint


def make_ledger() -> Ledger:
    return Ledger(policy="asp", info=RunInfo(), num_workers=1)


def test_a_run_has_what_came_since_it_began():
    endpoint = KeepingEndpoint()
    crossed = [100]
    traffic = ServerTraffic(endpoint, cross_rack_bytes=lambda: crossed[0])
    endpoint.traffic.tcp.sent_payload = 70
    endpoint.refused[Refusal.MALFORMED] = 2
    traffic.begin_run()
    endpoint.traffic.tcp.sent_payload = 75
    endpoint.traffic.ipc.sent_payload = 3
    endpoint.refused[Refusal.MALFORMED] = 3
    crossed[0] = 140
    assert traffic.own() == Ended(sent={"ipc": 3, "tcp": 5}, refused={str(Refusal.MALFORMED): 1})
    ledger = make_ledger()
    traffic.enter(ledger)
    assert ledger.servers.cross_rack_bytes == 40


def test_the_servers_are_added_up_and_the_next_run_begins_with_none_of_it():
    endpoint = KeepingEndpoint()
    traffic = ServerTraffic(endpoint)
    endpoint.traffic.tcp.sent_payload = 5
    traffic.add(Ended(sent={"tcp": 10}, refused={"key": 1}))
    traffic.add(Ended(sent={"tcp": 1, "ipc": 2}, refused={}))
    ledger = make_ledger()
    traffic.enter(ledger)
    assert (ledger.servers.bytes_sent, ledger.servers.refused) == (Counter(tcp=16, ipc=2), Counter(key=1))
    traffic.begin_run()
    traffic.enter(ledger)
    assert (ledger.servers.bytes_sent, ledger.servers.refused) == (Counter(), Counter())
