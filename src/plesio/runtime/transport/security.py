"""Who may talk to a server: the job's keys, the tickets of its data connections, and the handler that checks both.

All keys of a job follow from one secret, so whoever holds the secret is a member and nobody else is. A worker proves it
on the control channel (CURVE, Curve25519), and is given a *ticket* there: a random password for its data connection,
which ZeroMQ's PLAIN mechanism presents. ZeroMQ asks a ZAP handler (RFC 27) about both; ours is a socket that the
server's own loop answers, so that there is no thread to own, to wake, or to leak.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

import zmq
from zmq.utils import z85

from plesio.runtime.transport.wire import Refusal

__all__ = ["CONTROL_DOMAIN", "DATA_DOMAIN", "JobKeys", "KeyPair", "Tickets", "ZapHandler", "new_job_secret"]

CONTROL_DOMAIN = b"control"
DATA_DOMAIN = b"data"

_ZAP_ADDRESS = "inproc://zeromq.zap.01"


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A CURVE key pair in ZeroMQ's Z85 text form."""

    public: bytes
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKeys:
    """The keys of one job's servers and of its workers.

    Attributes:
        server: What servers prove themselves with.
        worker: What workers prove themselves with; all workers of a job share it.
    """

    server: KeyPair
    worker: KeyPair

    @classmethod
    def derive(cls, secret: str) -> "JobKeys":
        """The keys that follow from a job's secret; the same on every host.

        >>> JobKeys.derive("a secret") == JobKeys.derive("a secret")
        True
        """
        return cls(server=_derive(secret, role=b"plesio server"), worker=_derive(secret, role=b"plesio worker"))


def new_job_secret() -> str:
    """A fresh secret with 256 random bits; give it to the job's processes and to nobody else."""
    return secrets.token_hex(32)


def _derive(secret: str, *, role: bytes) -> KeyPair:
    seed = hashlib.blake2b(secret.encode(), digest_size=32, person=role).digest()
    text = z85.encode(seed)
    return KeyPair(public=zmq.curve_public(text), secret=text)


class Tickets:
    """The passwords of a server's data connections, one per identity."""

    def __init__(self) -> None:
        self._tickets: dict[bytes, bytes] = {}

    def issue(self, identity: bytes) -> str:
        """A new ticket for ``identity``; an older one of the same identity ends."""
        ticket = secrets.token_urlsafe(32)
        self._tickets[identity] = ticket.encode()
        return ticket

    def revoke(self, identity: bytes) -> None:
        """End the ticket of ``identity``, if it has one."""
        self._tickets.pop(identity, None)

    def admits(self, identity: bytes, ticket: bytes) -> bool:
        """Whether this is the current ticket of ``identity``."""
        expected = self._tickets.get(identity)
        return expected is not None and hmac.compare_digest(expected, ticket)


class ZapHandler:
    """Answers ZeroMQ's question whether a connection is let in; to be called from the owner's poll loop.

    Args:
        context: The context of the server's sockets. There can be one handler in a context.
        worker_key: Public key (Z85) of the workers that may open a control connection.
        tickets: What data connections are checked against.
        on_refused: Called once for each connection turned away.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        *,
        worker_key: bytes,
        tickets: Tickets,
        on_refused: Callable[[Refusal], None],
    ) -> None:
        self._worker_key = z85.decode(worker_key)
        self._tickets = tickets
        self._on_refused = on_refused
        self.socket: zmq.Socket[bytes] = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind(_ZAP_ADDRESS)

    def answer_all(self) -> None:
        """Answer every waiting question."""
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
                return b"worker", None if hmac.compare_digest(key, self._worker_key) else Refusal.KEY
            case (b"data", b"PLAIN", [user, ticket]):
                return user, None if self._tickets.admits(user, ticket) else Refusal.TICKET
        return b"", Refusal.HANDSHAKE

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()
