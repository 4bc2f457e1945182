import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from zmq.utils import z85

from plesio.core.errors import TransportError
from plesio.runtime.transport.assembly import Assembler, BufferPool
from plesio.runtime.transport.job_secret import new_job_secret
from plesio.runtime.transport.security import JobKeys, KeyRing, Tickets
from plesio.runtime.transport.wire import (
    MAX_CONTROL_BYTES,
    MAX_META_BYTES,
    Header,
    Refusal,
    WireError,
    decode_chunk,
    decode_control,
    encode_chunk,
    encode_control,
)

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
HEADERS = st.builds(
    Header, kind=st.integers(0, 239), generation=U32, worker=U32, clock=U64, base_version=U64, request=U64
)
JSON = st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.text(max_size=5), max_size=3)


@given(HEADERS, U64, U64, U64, JSON)
def test_a_chunk_head_decodes_to_what_was_encoded(
    header: Header, job: int, total_bytes: int, offset: int, meta: dict[str, object]
):
    frame = encode_chunk(header, job=job, total_bytes=total_bytes, offset=offset, meta=meta)
    chunk = decode_chunk(frame, job=job, generation=header.generation)
    assert (chunk.header, chunk.total_bytes, chunk.offset, chunk.meta) == (header, total_bytes, offset, meta)


@given(st.binary() | st.binary().map(lambda tail: encode_control(1, {}, job=1, generation=1)[:20] + tail))
def test_any_bytes_are_a_message_or_a_wire_error(frame: bytes):
    for decode in (
        lambda: decode_control(frame, peer=b"w", job=1, generation=1).body,
        lambda: decode_chunk(frame, job=1, generation=1).meta,
    ):
        try:
            value = decode()
        except WireError:
            continue
        assert isinstance(value, dict)


def json_of(num_bytes: int) -> dict[str, str]:
    """An object that takes so many bytes of JSON."""
    return {"a": "x" * (num_bytes - len('{"a":""}'))}


def test_the_largest_json_is_decoded_and_one_byte_more_is_refused_before_it_is_read():
    header = Header(kind=1, generation=1)
    chunk = encode_chunk(header, job=1, total_bytes=0, offset=0, meta=json_of(MAX_META_BYTES))
    assert decode_chunk(chunk, job=1, generation=1).meta == json_of(MAX_META_BYTES)
    room = MAX_CONTROL_BYTES - len(encode_control(1, {}, job=1, generation=1)) + len("{}")
    control = encode_control(1, json_of(room), job=1, generation=1)
    assert len(control) == MAX_CONTROL_BYTES
    assert decode_control(control, peer=b"w", job=1, generation=1).body == json_of(room)
    with pytest.raises(WireError, match="bytes of JSON where at most") as of_chunk:
        decode_chunk(chunk + b"]", job=1, generation=1)  # no JSON: read, it would be malformed
    with pytest.raises(WireError, match="bytes of JSON where at most") as of_control:
        decode_control(control + b"]", peer=b"w", job=1, generation=1)
    assert [error.value.reason for error in (of_chunk, of_control)] == 2 * [Refusal.OVERSIZE]


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.binary(max_size=40)), max_size=12), st.data())
def test_chunks_of_interleaved_peers_assemble_to_what_each_sent(sent: list[tuple[bytes, bytes]], data: st.DataObject):
    pool = BufferPool(max_free_bytes=1 << 20)
    assembler = Assembler(pool, max_bytes=64)
    queues = {peer: [p for who, p in sent if who == peer] for peer in {who for who, _ in sent}}
    offsets = dict.fromkeys(queues, 0)
    received = {peer: [] for peer in queues}
    while any(queues.values()):
        peer = data.draw(st.sampled_from(sorted(peer for peer, queue in queues.items() if queue)))
        payload = queues[peer][0]
        body = payload[offsets[peer] : offsets[peer] + data.draw(st.integers(1, 40))]
        head = encode_chunk(
            Header(kind=1, generation=1), job=1, total_bytes=len(payload), offset=offsets[peer], meta=None
        )
        place = assembler.place(peer, decode_chunk(head, job=1, generation=1))
        place[: len(body)] = np.frombuffer(body, dtype=np.uint8)
        offsets[peer] += len(body)
        message = assembler.commit(peer, len(body))
        if message is not None:
            received[peer].append(message.payload.tobytes())
            pool.give_back(message.payload)
            queues[peer].pop(0)
            offsets[peer] = 0
    assert (len(assembler._open), assembler.num_abandoned) == (0, 0)
    assert received == {peer: [p for who, p in sent if who == peer] for peer in queues}
    assert pool.num_allocated <= len(queues)


def test_a_pool_keeps_no_more_than_it_is_told_to():
    pool = BufferPool(max_free_bytes=10_000)
    first, second = pool.take(8_000), pool.take(8_000)
    pool.give_back(first)
    pool.give_back(second)
    again = pool.take(8_000)
    assert np.shares_memory(again, first)
    assert not np.shares_memory(pool.take(8_000), second)


def test_a_pool_takes_back_only_what_is_its_own_and_only_once():
    pool = BufferPool(max_free_bytes=1 << 20)
    mine, theirs = pool.take(5_000), np.empty(6_000, dtype=np.uint8)
    pool.give_back(theirs[:5_000])
    pool.give_back(mine)
    pool.give_back(mine)
    first, second = pool.take(5_000), pool.take(5_000)
    assert np.shares_memory(first, mine)
    assert not np.shares_memory(first, second)
    assert not np.shares_memory(second, theirs)


def test_keys_follow_from_the_secret_and_the_name_alone():
    secret = new_job_secret()
    keys = JobKeys.derive(secret)
    assert keys == JobKeys.derive(secret) != JobKeys.derive(new_job_secret())
    assert len({keys.server.public, keys.of_peer(b"w0").public, keys.of_peer(b"w1").public}) == 3
    assert keys.server.secret.decode() not in repr(keys)
    assert str(keys.peers) not in repr(keys)


def test_a_key_has_one_name_and_a_stranger_s_has_none_whoever_asks_for_how_many():
    keys, asked = JobKeys.derive(new_job_secret()), []

    def names(number: int) -> list[bytes]:
        asked.append(number)
        return [b"w%d" % number]

    ring = KeyRing(keys, names=names)
    assert ring.name_of(z85.decode(keys.of_peer(b"w3").public)) == b"w3"
    for _ in range(3):
        assert ring.name_of(z85.decode(JobKeys.derive(new_job_secret()).of_peer(b"w3").public)) is None
    assert asked == list(range(4096))


def test_addresses_that_no_member_has_sealed_are_refused():
    keys = JobKeys.derive(new_job_secret())
    addresses = keys.sealed({"control": "tcp://10.0.0.1:1", "data_ipc": ""})
    keys.check_seal(addresses)
    for changed in ({**addresses, "data_ipc": "/tmp/mine"}, {"control": "tcp://10.0.0.1:1"}):
        with pytest.raises(TransportError, match="not of this job"):
            keys.check_seal(changed)


def test_a_ticket_is_good_once_and_ends_with_the_next():
    tickets = Tickets()
    first = tickets.issue(b"w0").encode()
    assert not tickets.take(b"w1", first)
    assert tickets.take(b"w0", first)
    assert not tickets.take(b"w0", first)
    second = tickets.issue(b"w0").encode()
    third = tickets.issue(b"w0").encode()
    assert not tickets.take(b"w0", second)
    assert tickets.take(b"w0", third)
