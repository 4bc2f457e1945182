"""The transport of the store exchange: control messages and bulk payloads between clients and servers, over ZeroMQ.

Each server has two channels. *Control* carries small JSON messages, encrypted and authenticated (CURVE). *Data* carries
payloads of up to hundreds of megabytes, over a Unix socket between processes of one host and over tcp otherwise:

* Between processes of one host the payload lies in shared memory (`SegmentPool`) and only a reference to it crosses the
  socket. The receiver reads it where the sender packed it, and gives the memory back when it has released the message.
  Where a process cannot open the other's memory, or there is none left, the payload goes through the socket.
* Over a socket it is cut into chunks: a ZeroMQ message is delivered whole or not at all, so only separate messages let
  the receiver take the first while the next are on their way. Over tcp the chunks are encrypted (`Seal`). Where a
  server does not encrypt, a payload of up to 24 MiB is one message instead, and is read where it arrives (`Pieces`).

Whoever packs a payload anyhow packs it into an array from ``endpoint.stage(num_bytes)``: it is sent without a copy.

What is protected, and what is not. All members of a job hold one secret and trust each other. Whoever does not hold it
cannot open a control connection, and without one gets no ticket, so cannot open a data connection either; both are
refused before a message of theirs is read, and counted (`ServerEndpoint.refused`). How many connections may wait to be
let in is limited (`ServerWatch`), and so is the memory that each of them can take (`Pieces`). A message of another
job or generation is refused and counted by what its head says. Nothing that arrives is ever unpickled or evaluated, no
announced size is believed beyond the limit that the endpoint was made with, and nothing a peer sends raises in the
server's loop. Whoever can read or change packets between two hosts learns how many bytes go when and between whom, and
can end a connection. Only if both ends are made with ``encrypt=False`` are bulk data sent as they are; then that one
can read and change them. Shared memory can be opened by processes of the same user, as all other memory of theirs can;
a receiver opens only what the sender's encrypted greeting has announced.

A lost connection is an error for the client and a `Gone` for the server. Neither resumes: the client connects again
and asks the server what it has. With a server that has a backup it does go on (`plesio.runtime.transport.failover`).
Threads: an endpoint belongs to one thread; `ControlClient` gives another thread, such as the one that sends heartbeats,
a connection of its own. ZeroMQ's own thread sends and receives meanwhile.
"""

from plesio.runtime.transport.client import ClientEndpoint
from plesio.runtime.transport.control_client import CONNECT_S, ControlClient
from plesio.runtime.transport.outbox import Sending
from plesio.runtime.transport.running_jobs import RunningJob
from plesio.runtime.transport.security import JobKeys, Names
from plesio.runtime.transport.server import ServerEndpoint
from plesio.runtime.transport.sockets import LinkBytes, Traffic
from plesio.runtime.transport.tcp_traffic import TcpTraffic
from plesio.runtime.transport.wire import Bulk, Control, Gone, Header, Incoming, Refusal

__all__ = [
    "CONNECT_S",
    "Bulk",
    "ClientEndpoint",
    "Control",
    "ControlClient",
    "Gone",
    "Header",
    "Incoming",
    "JobKeys",
    "LinkBytes",
    "Names",
    "Refusal",
    "RunningJob",
    "Sending",
    "ServerEndpoint",
    "TcpTraffic",
    "Traffic",
]
