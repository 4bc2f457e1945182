"""Does a training run go on as before while strangers and a hostile member of the job do what they can?

Two workers train under ``ssp:2``, with steps of 20 ms in which they mostly sleep, as with an accelerator. Meanwhile, in
windows of a few seconds that alternate with quiet ones, come

* connections of strangers: garbage, half a handshake, frames that announce 24 MiB, idle ones that stay, a handshake
  that was recorded from a worker and is replayed, guessed tickets;
* messages of a holder of the job's secret: unknown kinds, bodies and heads that cannot be read, sizes of a petabyte,
  chunks that continue nothing, runs long over, folders of others.

    python benchmarks/stress.py [--connections 100000] [--messages 10000] [--rate 500]

The attacker lets the job have the processor first, as if it had one of its own. Prints what was sent, what the servers
say they refused, how their memory grew, and steps a second under attack by those in the quiet windows of the same run;
writes benchmarks/results/stress.json. It ends with status 1 unless all is met.
"""

import argparse
import itertools
import json
import os
import random
import socket
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import torch
import zmq
from torch.distributed import PrefixStore
from torch.utils.data import DataLoader, TensorDataset

import plesio
from plesio.protocol.message import kind_of
from plesio.protocol.to_server import Join
from plesio.runtime.transport import ClientEndpoint, ControlClient, Header, JobKeys
from plesio.runtime.transport.wire import encode_chunk, encode_control, job_digest
from plesio.testing import LocalJob
from record import print_verdict, save

STEP_S = 0.02
WINDOW_S = 5.0
MEMORY_LIMIT_BYTES = 128 * 2**20
SLOWDOWN_LIMIT = 0.05
NUM_IDLE = 300
WARM_UP_STEPS = 30


def train(*, folder: str) -> tuple[list[float], dict[str, int]]:
    """Train as one worker: return the ends of its steps, and the refused messages by the run's result."""
    torch.set_num_threads(1)
    model = torch.nn.Linear(256, 256)
    data = TensorDataset(torch.randn(4096, 256))
    ended_s: list[float] = []
    stop = Path(folder, "stop")
    with plesio.join(model, torch.optim.SGD(model.parameters(), lr=1e-3), policy="ssp:2") as session:
        while not stop.exists():
            for (x,) in session.shard(DataLoader(data, batch_size=8, shuffle=True)):
                loss = model(x).square().mean()
                loss.backward()
                time.sleep(STEP_S)
                session.step(loss)
                ended_s.append(time.monotonic())
                Path(folder, f"trains-{session.rank}").touch()
                if stop.exists():
                    break
    return ended_s, dict(session.report().refused_peers)


def address_of(text: str) -> tuple[str, int]:
    host, port = text.removeprefix("tcp://").split(":")
    return host, int(port)


def greeting(mechanism: bytes) -> bytes:
    return b"\xff" + bytes(8) + b"\x7f\x03\x00" + mechanism.ljust(20, b"\0") + bytes(32)


class Job:
    """The attackers' information about the job; the holder of the secret has it all."""

    def __init__(self, addresses: dict[str, str], *, name: str, secret: str) -> None:
        self.addresses = addresses
        self.name = name
        self.keys = JobKeys.derive(secret)
        self.control, self.data = address_of(addresses["control"]), address_of(addresses["data_tcp"])


class Strangers:
    """Connections of those who have no key."""

    def __init__(self, job: Job) -> None:
        self._idle: deque[socket.socket] = deque()
        self._replay = recorded_handshake(job)
        hello = b"\x05HELLO\x08worker-0\x05guess"
        announced = b"\x02" + (24 * 2**20).to_bytes(8, "big") + bytes(2**16)
        self.ways: list[tuple[tuple[str, int], bytes]] = [
            (job.control, b"GET / HTTP/1.1\r\n\r\n"),
            (job.data, random.Random(0).randbytes(300)),
            (job.control, greeting(b"CURVE")),
            (job.control, greeting(b"CURVE") + announced),
            (job.data, greeting(b"PLAIN") + announced),
            (job.control, self._replay),
            (job.data, greeting(b"PLAIN") + b"\x04" + bytes([len(hello)]) + hello),
        ]

    def one(self, number: int) -> None:
        """Open a connection and say something."""
        address, said = self.ways[number % len(self.ways)]
        with suppress(OSError):
            stranger = socket.create_connection(address, timeout=5.0)
            stranger.settimeout(1.0)
            self._idle.append(stranger)  # stays a while, saying no more
            stranger.sendall(said)
        while len(self._idle) > NUM_IDLE:
            self._idle.popleft().close()

    def close(self) -> None:
        """End the connections that have stayed."""
        while self._idle:
            self._idle.popleft().close()


def recorded_handshake(job: Job) -> bytes:
    """Record the bytes that a worker sends to the control channel until it is welcome, as one on the way reads them."""
    recorded = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listener, zmq.Context() as context:
        between = f"tcp://127.0.0.1:{listener.getsockname()[1]}"

        def pass_on() -> None:
            here, _ = listener.accept()
            there = socket.create_connection(job.control)
            back = threading.Thread(target=forward, args=(there, here, bytearray()))
            back.start()
            forward(here, there, recorded)
            back.join()
            here.close()
            there.close()

        on_the_way = threading.Thread(target=pass_on)
        on_the_way.start()
        client_of(ControlClient, job, b"heartbeat-800", context, control=between).close()
        on_the_way.join()
    return bytes(recorded)


def forward(source: socket.socket, target: socket.socket, recorded: bytearray) -> None:
    with suppress(OSError):
        while data := source.recv(2**16):
            recorded += data
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def client_of(kind: Callable[..., Any], job: Job, identity: bytes, context: Any, **changes: str) -> Any:
    addresses = job.keys.sealed({**{k: v for k, v in job.addresses.items() if k != "seal"}, **changes})
    settings = {"max_bulk_bytes": 2**20} if kind is ClientEndpoint else {}
    return kind(addresses, identity=identity, job=job.name, keys=job.keys, context=context, timeout_s=30.0, **settings)


class HostileMember:
    """A holder of the secret."""

    def __init__(self, job: Job, context: Any) -> None:
        self._endpoint: ClientEndpoint = client_of(ClientEndpoint, job, b"worker-900", context, data_ipc="")
        self._job = job_digest(job.name)
        self._control = self._endpoint.sockets[0]
        self._random = random.Random(1)

    def one(self, number: int) -> None:
        """Send a message that makes no sense."""
        member, rng = self._endpoint, self._random
        match number % 8:
            case 0:
                member.send_control(rng.randrange(40, 240), {})
            case 1:
                member.send_control(kind_of(Join), {"policy": 7, "folder": "/etc"})
            case 2:
                self._control.send(encode_control(1, {}, job=self._job, generation=0)[:-2] + b'{"a":' * 1000)
            case 3:
                self._control.send(rng.randbytes(200))
            case 4:
                member.push(Header(kind=rng.randrange(9, 200), generation=0), meta={"x": [None]})
            case 5:
                self._chunk(Header(kind=2, generation=0), total_bytes=2**50, offset=0)
            case 6:
                self._chunk(Header(kind=2, generation=0, request=number), total_bytes=100, offset=50)
            case 7:
                member.push(Header(kind=2, generation=12345))
        if number % 50 == 0:
            member.poll(0.0)

    def _chunk(self, header: Header, *, total_bytes: int, offset: int) -> None:
        data = self._endpoint._data
        head = encode_chunk(header, job=self._job, total_bytes=total_bytes, offset=offset, meta=None)
        seal = data._link_to(b"").seal
        assert seal is not None, "over tcp"
        data.socket.send_multipart(seal.close_chunk(head, memoryview(b"1234")))

    def close(self) -> None:
        """Leave."""
        self._endpoint.close()


@contextmanager
def training(folder: str) -> Iterator[tuple[LocalJob, Job, psutil.Process]]:
    """Start a job whose two workers are past their first steps, and return its server's process."""
    with LocalJob(2) as local:
        for rank in range(2):
            local.start(rank, Path(__file__), "train", folder=folder)
        while not all(Path(folder, f"trains-{rank}").exists() for rank in range(2)):
            time.sleep(0.1)
        time.sleep(WARM_UP_STEPS * STEP_S * 2)
        meeting = PrefixStore("plesio/0/0", local._store)
        addresses = json.loads(meeting.get("server/0"))
        job = Job(addresses, name=meeting.get("job").decode(), secret=local._secret)
        [server] = [one for one in psutil.process_iter() if listens(one, job.control[1])]
        yield local, job, server


def listens(process: psutil.Process, port: int) -> bool:
    with suppress(psutil.Error):
        return any(one.laddr.port == port and one.status == "LISTEN" for one in process.net_connections("tcp"))
    return False


def attack(
    job: Job, server: psutil.Process, *, num_connections: int, num_messages: int, rate: float, window_s: float
) -> tuple[list[tuple[float, float]], int]:
    """Return the windows of the attack, and the largest growth of the server's memory."""
    windows = []
    os.nice(10)
    before = most = server.memory_info().rss
    with ExitStack() as stack:
        strangers, context = Strangers(job), stack.enter_context(zmq.Context())
        member = HostileMember(job, context)
        stack.callback(member.close)
        stack.callback(strangers.close)
        num_sent = itertools.count()
        number = next(num_sent)
        per_message = num_connections / max(1, num_messages)
        due = 0.0
        while number < num_connections:
            begun_s = time.monotonic()
            done = 0
            while number < num_connections and time.monotonic() - begun_s < window_s:
                strangers.one(number)
                due += 1
                while due >= per_message:
                    member.one(int(number / per_message))
                    due -= per_message
                number, done = next(num_sent), done + 1
                ahead_s = done / rate - (time.monotonic() - begun_s)
                if ahead_s > 0:
                    time.sleep(ahead_s)
                if number % 100 == 0:
                    most = max(most, server.memory_info().rss)
            windows.append((begun_s, time.monotonic()))
            strangers.close()
            time.sleep(0.5 + window_s)  # the quiet window, after what is still on its way
    return windows, most - before


def steps_per_s(ended_s: list[float], windows: list[tuple[float, float]]) -> float:
    num = sum(begin <= at < end for at in ended_s for begin, end in windows)
    return num / sum(end - begin for begin, end in windows)


def measure(*, num_connections: int, num_messages: int, rate: float, window_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, training(folder) as (local, job, server):
        time.sleep(window_s)
        windows, grown_bytes = attack(
            job,
            server,
            num_connections=num_connections,
            num_messages=num_messages,
            rate=rate,
            window_s=window_s,
        )
        alive = server.is_running()
        Path(folder, "stop").touch()
        endings = local_endings(local)
    ended_s = sorted(at for ending in endings for at in ending[0])
    first_s = windows[0][0]
    quiet = [(first_s - window_s, first_s), *((end + 0.5, end + 0.5 + window_s) for _, end in windows)]
    return {
        "connections": num_connections,
        "messages": num_messages,
        "refused": endings[0][1],
        "memory_grown_bytes": grown_bytes,
        "steps_per_s_quiet": steps_per_s(ended_s, quiet),
        "steps_per_s_attacked": steps_per_s(ended_s, windows),
        "rate_per_s": num_connections / sum(end - begin for begin, end in windows),
        "alive": alive,
    }


def local_endings(local: LocalJob) -> list[tuple[list[float], dict[str, int]]]:
    endings = local.wait(timeout_s=60.0)
    failed = [ending.message or ending.exit_status for ending in endings.values() if ending.value is None]
    if failed:
        raise SystemExit(f"workers failed: {failed}")
    return [endings[rank].value for rank in sorted(endings)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=100_000)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=500.0, help="connections a second, in the windows")
    parser.add_argument("--window", type=float, default=WINDOW_S, help="seconds")
    parser.add_argument("--no-save", action="store_true", help="write no file")
    arguments = parser.parse_args()
    found = measure(
        num_connections=arguments.connections,
        num_messages=arguments.messages,
        rate=arguments.rate,
        window_s=arguments.window,
    )
    print(json.dumps(found, indent=1))
    num_refused, num_sent = sum(found["refused"].values()), arguments.connections + arguments.messages
    slowdown = 1 - found["steps_per_s_attacked"] / found["steps_per_s_quiet"]
    verdicts = {
        f"all refused and counted ({num_refused} of {num_sent})": num_refused >= 0.99 * num_sent,
        f"memory grew by at most {MEMORY_LIMIT_BYTES >> 20} MiB ({found['memory_grown_bytes'] / 2**20:.0f})": found[
            "memory_grown_bytes"
        ]
        <= MEMORY_LIMIT_BYTES,
        f"training at most {SLOWDOWN_LIMIT:.0%} slower ({slowdown:.1%})": slowdown <= SLOWDOWN_LIMIT,
        "the server lives": found["alive"],
    }
    for criterion, met in verdicts.items():
        print_verdict(criterion, met=met)
    if not arguments.no_save:
        save("stress", settings=vars(arguments), results=found, met=all(verdicts.values()))
    sys.exit(0 if all(verdicts.values()) else 1)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
