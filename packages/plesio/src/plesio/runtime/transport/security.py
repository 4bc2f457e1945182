"""Access to a server: the job's keys, the tickets of its data connections, and the handler that checks both.

All keys of a job follow from one secret, so the holders of the secret are its members, and nobody else is. Each
connection has a key of its own, by its name (``worker-3``): it proves both on the control channel (CURVE, Curve25519),
so no key is used twice and none lets its holder speak for another. There a client is given a *ticket*: a random
password that opens one data connection, once, which ZeroMQ's PLAIN mechanism presents. ZeroMQ asks a ZAP handler (RFC
27) about both; ours is a socket that the server's own loop answers, so that there is no thread to own, to wake, or to
leak.

Clients find the addresses of servers in a place that others may write to. So they carry a *seal*, which only members
can make.
"""

import hashlib
import hmac
import json
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import zmq
from zmq.utils import z85

from plesio.core.errors import TransportError
from plesio.runtime.transport.wire import Refusal

Names = Callable[[int], Iterable[bytes]]
"""The names of the connections that member number n of a job may open."""

_ZAP_ADDRESS = "inproc://zeromq.zap.01"

_MAX_MEMBERS = 4096
"""Numbers that members of a job may have; beyond that a worker cannot join. Bounds what a stranger's key costs."""
_MEMBERS_AT_ONCE = 512


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A CURVE key pair in ZeroMQ's Z85 text form."""

    public: bytes
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKeys:
    """The keys of one job.

    Attributes:
        server: What servers prove themselves with.
        peers: What the keys of connections to servers follow from.
        seals: What addresses are sealed with.
    """

    server: KeyPair
    peers: bytes = field(repr=False)
    seals: bytes = field(repr=False)

    @classmethod
    def derive(cls, secret: str) -> "JobKeys":
        """Derive the keys from a job's secret; the same on every host.

        >>> JobKeys.derive("a secret") == JobKeys.derive("a secret")
        True
        """
        server, peers, seals = (
            hashlib.blake2b(secret.encode(), digest_size=32, person=role).digest()
            for role in (b"plesio server", b"plesio peers", b"plesio seals")
        )
        return cls(server=_pair(server), peers=peers, seals=seals)

    def of_peer(self, name: bytes) -> KeyPair:
        """Return the keys by which the connection of this name proves itself.

        >>> keys = JobKeys.derive("a secret")
        >>> keys.of_peer(b"worker-1") == keys.of_peer(b"worker-2")
        False
        """
        return _pair(hashlib.blake2b(name, key=self.peers, digest_size=32).digest())

    def sealed(self, addresses: Mapping[str, str]) -> dict[str, str]:
        """Seal a server's addresses, to be published where others may write."""
        return {**addresses, "seal": self._seal(addresses)}

    def check_seal(self, addresses: Mapping[str, str]) -> None:
        """Raise unless a member of the job has sealed these addresses.

        Raises:
            TransportError: They are another job's.
        """
        if not hmac.compare_digest(self._seal(addresses), addresses.get("seal", "")):
            raise TransportError(
                f"the addresses of the server at {addresses.get('control')} are not of this job: "
                "another secret, or somebody has changed them"
            )

    def _seal(self, addresses: Mapping[str, str]) -> str:
        text = json.dumps({name: value for name, value in addresses.items() if name != "seal"}, sort_keys=True)
        return hashlib.blake2b(text.encode(), key=self.seals, digest_size=32).hexdigest()


def _pair(seed: bytes) -> KeyPair:
    text = z85.encode(seed)
    return KeyPair(public=zmq.curve_public(text), secret=text)


class KeyRing:
    """The public keys of all connections that a job may have; made a few at a time, when an unknown one comes.

    Args:
        names: What the members' connections are called.
    """

    def __init__(self, keys: JobKeys, *, names: Names) -> None:
        self._keys = keys
        self._names = names
        self._known: dict[bytes, bytes] = {}
        self._num_members = 0

    def name_of(self, public: bytes) -> bytes | None:
        """Find the connection that this key (32 bytes) belongs to; None if it is none of this job's."""
        while public not in self._known and self._num_members < _MAX_MEMBERS:
            for number in range(self._num_members, self._num_members + _MEMBERS_AT_ONCE):
                self._known.update((z85.decode(self._keys.of_peer(name).public), name) for name in self._names(number))
            self._num_members += _MEMBERS_AT_ONCE
        return self._known.get(public)


class Tickets:
    """The passwords of a server's data connections, one per identity; each opens one connection."""

    def __init__(self) -> None:
        self._tickets: dict[bytes, bytes] = {}

    def issue(self, identity: bytes) -> str:
        """Issue a new ticket for ``identity``; an older one of the same identity ends."""
        ticket = secrets.token_urlsafe(32)
        self._tickets[identity] = ticket.encode()
        return ticket

    def take(self, identity: bytes, ticket: bytes) -> bool:
        """Tell whether this is the current ticket of ``identity``, and end it: others may have read it on its way."""
        expected = self._tickets.get(identity)
        admitted = expected is not None and hmac.compare_digest(expected, ticket)
        if admitted:
            del self._tickets[identity]
        return admitted


class ZapHandler:
    """Answers ZeroMQ's question whether a connection is let in; to be called from the owner's poll loop.

    Args:
        context: The context of the server's sockets. There can be one handler in a context.
        key_ring: Keys that may open a control connection.
        on_refused: Called once for each connection turned away.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        *,
        key_ring: KeyRing,
        tickets: Tickets,
        on_refused: Callable[[Refusal], None],
    ) -> None:
        self._key_ring = key_ring
        self._tickets = tickets
        self._on_refused = on_refused
        self.socket: zmq.Socket[bytes] = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind(_ZAP_ADDRESS)

    def answer_all(self) -> None:
        while self.socket.poll(0):
            version, sequence, domain, _, _, mechanism, *credentials = self.socket.recv_multipart()
            user, refusal = self._judge(domain, mechanism, credentials)
            if refusal is not None:
                self._on_refused(refusal)
            verdict = [b"200", b"OK", user] if refusal is None else [b"400", b"refused", b""]
            self.socket.send_multipart([version, sequence, *verdict, b""])

    def _judge(self, domain: bytes, mechanism: bytes, credentials: list[bytes]) -> tuple[bytes, Refusal | None]:
        match (domain, mechanism, credentials):
            case (b"control", b"CURVE", [key]):
                name = self._key_ring.name_of(key)
                return name or b"", Refusal.KEY if name is None else None
            case (b"data", b"PLAIN", [user, ticket]):
                return user, None if self._tickets.take(user, ticket) else Refusal.TICKET
        return b"", Refusal.HANDSHAKE

    def close(self) -> None:
        self.socket.close()
