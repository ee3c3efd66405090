"""Skep's nodes and clients against the second implementation of their protocol (peer.py)."""

import math
import os
import random
import re
import socket
import struct
import subprocess
import sys

import msgpack
import pytest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
sys.path.insert(0, os.path.join(ROOT, "tests", "python"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import peer
from conftest import SKEP, Node, new_swarm_name
from peer import STATUS, Tensor

WIDTH = 16
NAMES = {1: "float16", 2: "bfloat16", 3: "meanstd16", 4: "uniform8", 5: "quantile8",
         6: "blockwise8"}
# How far the values of a standard normal sample may move.
CLOSE = {0: 0.0, 1: 2e-3, 2: 2e-2, 3: 4e-3, 4: 1.5, 5: 1.5, 6: 2e-2}


def address(node):
    host, port = node.endpoint.rsplit(":", 1)
    return host, int(port)


@pytest.fixture(scope="module")
def node():
    started = Node(new_swarm_name(), "--expert-uids", "nop.0,ffn.0", "--expert-cls", "nop",
                   "--hidden-dim", str(WIDTH))
    started.swarm = started.process.args[started.process.args.index("--swarm") + 1]
    yield started
    started.stop()


@pytest.fixture(scope="module")
def trained():
    started = Node(new_swarm_name(), "--expert-uids", "ffn.0,ffn.1", "--hidden-dim", str(WIDTH))
    started.swarm = started.process.args[started.process.args.index("--swarm") + 1]
    yield started
    started.stop()


@pytest.fixture
def connection(node):
    c = peer.dial(address(node), peer.Identity(), node.swarm)
    yield c
    c.close()


def sample(rows, seed=1):
    rng = random.Random(seed)
    return [peer.f32(rng.gauss(0, 1)) for _ in range(rows * WIDTH)]


def ok(reply):
    headers, tensors = reply
    assert headers["status"] == STATUS["OK"], headers
    return headers, tensors


# ---- handshakes

def test_the_node_proves_its_peer_id(node, connection):
    assert connection.peer["peer"].hex() == node.peer_id
    assert connection.peer["major"] == 1 and connection.peer["minor"] >= 1
    assert connection.peer["swarm"] == node.swarm
    assert connection.peer["max_streams"] == 1024


def test_a_private_swarm(tmp_path):
    path = tmp_path / "swarm.key"
    subprocess.run([SKEP, "keygen", "--swarm-key", str(path)], check=True, capture_output=True)
    key = bytes.fromhex(path.read_text().split()[0])
    name = new_swarm_name()
    private = Node(name, "--expert-uids", "nop.0", "--expert-cls", "nop", "--hidden-dim",
                   str(WIDTH), "--swarm-key", str(path))
    try:
        c = peer.dial(address(private), peer.Identity(), name, swarm_key=key)
        assert c.peer.get("swarm", "") == ""  # strangers can ask for message 2
        ok(c.call("ping"))
        c.close()
        with pytest.raises((peer.Refused, peer.Ended)) as refused:
            peer.dial(address(private), peer.Identity(), name, swarm_key=os.urandom(32))
        assert refused.value.status == STATUS["UNAUTHENTICATED"]
        with pytest.raises(peer.Refused):
            peer.dial(address(private), peer.Identity(), name)
    finally:
        private.stop()


def test_plaintext_where_it_is_allowed(node):
    name = new_swarm_name()
    plain = Node(name, "--expert-uids", "nop.0", "--expert-cls", "nop", "--hidden-dim", str(WIDTH),
                 "--insecure-plaintext")
    try:
        c = peer.dial(address(plain), peer.Identity(), name, mode=peer.PLAINTEXT)
        ok(c.call("ping"))
        c.close()
        with pytest.raises(peer.Refused):  # it speaks nothing else then
            peer.dial(address(plain), peer.Identity(), name)
    finally:
        plain.stop()
    with pytest.raises(peer.Refused) as refused:
        peer.dial(address(node), peer.Identity(), node.swarm, mode=peer.PLAINTEXT)
    assert refused.value.major == 1 and refused.value.mode in (1, 2) and refused.value.text


@pytest.mark.parametrize("preamble", [
    b"SKEP\x02\x01\x01\x00", b"SKEP\x01\x01\x07\x00", b"SKEP\x01\x01\x01\x01"],
    ids=["major", "mode", "psk"])
def test_preambles_that_are_refused(node, preamble):
    with pytest.raises(peer.Refused) as refused:
        peer.dial(address(node), peer.Identity(), node.swarm, preamble=preamble)
    assert refused.value.status in peer.NAME and refused.value.status != 0
    assert (refused.value.major, refused.value.flags) == (1, 0) and refused.value.text


def test_another_minor_and_unknown_flags_are_no_obstacle(node):
    for preamble in (b"SKEP\x01\x63\x01\x00", b"SKEP\x01\x00\x01\x80"):
        c = peer.dial(address(node), peer.Identity(), node.swarm, preamble=preamble, minor=99,
                      unknown="ignored")
        ok(c.call("ping"))
        c.close()


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n\r\n", b"\x71\xf2\x02\x00", b"SKEQ1234"])
def test_strangers_get_no_byte(node, first):
    with socket.create_connection(address(node), 20) as sock:
        sock.settimeout(20)
        sock.sendall(first)
        assert sock.recv(1) == b""


@pytest.mark.parametrize("fields", [
    dict(swarm="another"), dict(peer=peer.Identity().peer_id), dict(major=2), dict(peer=b"short"),
    dict(stream_window=None), dict(max_streams=1 << 40)])
def test_hellos_that_are_refused(node, fields):
    with pytest.raises((peer.Ended, peer.Refused)) as ended:
        peer.dial(address(node), peer.Identity(), **dict({"swarm": node.swarm}, **fields))
    assert ended.value.status not in (None, 0) and ended.value.text


# ---- calls

def test_info(node, connection):
    headers, _ = ok(connection.call("info", "nop.0"))
    info = msgpack.unpackb(headers["result"])
    assert info["uid"] == "nop.0" and info["class"] == "nop"
    assert info["inputs"][0]["shape"] == [-1, WIDTH] and info["inputs"][0]["dtype"] == "F32"
    assert len(info["schema_digest"]) == 16


def test_forward_bit_for_bit(connection):
    values = sample(3)
    values[0], values[1] = -0.0, 1e-40
    x = Tensor.of(values, [3, WIDTH])
    _, (y,) = ok(connection.call("forward", "nop.0", [x]))
    assert (y.dtype, y.shape, y.data) == ("F32", [3, WIDTH], x.data)


def test_many_calls_on_one_connection(connection):
    for i in range(50):
        _, (y,) = ok(connection.call("forward", "nop.0", [Tensor.of(sample(1, i), [1, WIDTH])]))
        assert y.values() == sample(1, i)


def test_a_call_larger_than_every_window(connection):
    """2 MB against a window of 1 MiB at this side, and 20 MB against both of the node's."""
    rows = 4096 * 8
    data = struct.pack("<f", 0.5) * (rows * WIDTH)
    headers, _ = connection.call("forward", "nop.0", [Tensor("F32", [rows, WIDTH], data)])
    assert headers["status"] == STATUS["INVALID_ARGUMENT"]  # more rows than max_batch_size
    for _ in range(12):
        part = data[:4096 * WIDTH * 4]
        _, (y,) = ok(connection.call("forward", "nop.0", [Tensor("F32", [4096, WIDTH], part)]))
        assert y.data == part
    assert connection.credit <= 64 << 20


@pytest.mark.parametrize("encoding", list(NAMES))
def test_encodings_of_requests_and_replies(connection, encoding):
    rows = 100
    values = sample(rows, encoding)
    x = Tensor.of(values, [rows, WIDTH], encoding)
    _, (plain,) = ok(connection.call("forward", "nop.0", [x], reply_encoding=0))
    assert plain.encoding == 0
    ours = x.values()
    assert all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-7)
               for a, b in zip(plain.values(), ours))
    _, (coded,) = ok(connection.call("forward", "nop.0", [Tensor.of(values, [rows, WIDTH])],
                                     reply_encoding=encoding))
    assert coded.encoding == encoding
    assert max(abs(a - b) for a, b in zip(coded.values(), values)) <= CLOSE[encoding]


def test_nan_travels_as_it_is(connection):
    values = sample(100)
    values[3] = math.nan
    _, (y,) = ok(connection.call("forward", "nop.0", [Tensor.of(values, [100, WIDTH])],
                                 reply_encoding=6))
    assert y.encoding == 0 and math.isnan(y.values()[3])


def test_unknown_reply_encodings_are_read_as_none(connection):
    _, (y,) = ok(connection.call("forward", "nop.0", [Tensor.of(sample(100), [100, WIDTH])],
                                 reply_encoding=99))
    assert y.encoding == 0


def test_a_peer_without_features_gets_no_encoding(node):
    c = peer.dial(address(node), peer.Identity(), node.swarm, features=None)
    _, (y,) = ok(c.call("forward", "nop.0", [Tensor.of(sample(100), [100, WIDTH])],
                        reply_encoding=1))
    assert y.encoding == 0
    c.close()


def test_backward_trains_once_for_one_id(trained):
    c = peer.dial(address(trained), peer.Identity(), trained.swarm)
    x, g = Tensor.of(sample(2), [2, WIDTH]), Tensor.of(sample(2, 5), [2, WIDTH])

    def updates():
        return msgpack.unpackb(ok(c.call("info", "ffn.0"))[0]["result"])["updates"]

    identity = os.urandom(16)
    _, (first,) = ok(c.call("backward", "ffn.0", [x, g], id=identity))
    _, (again,) = ok(c.call("backward", "ffn.0", [x, g], id=identity))
    assert first.data == again.data and updates() == 1
    headers, _ = c.call("backward", "ffn.1", [x, g], id=identity)
    assert headers["status"] == STATUS["INVALID_ARGUMENT"]
    headers, _ = c.call("backward", "ffn.0", [g, x], id=identity)
    assert headers["status"] == STATUS["INVALID_ARGUMENT"]
    headers, _ = c.call("backward", "ffn.0", [x, g])
    assert headers["status"] == STATUS["INVALID_ARGUMENT"] and updates() == 1
    ok(c.call("backward", "ffn.0", [x, g], id=os.urandom(16)))
    assert updates() == 2
    c.close()


X = Tensor.of(sample(1), [1, WIDTH])


@pytest.mark.parametrize("method, uid, tensors, fields, status, part", [
    ("nosuch", "", [], {}, "UNIMPLEMENTED", "nosuch"),
    ("forward", "nop.9", [X], {}, "NOT_FOUND", "nop.9"),
    ("forward", "nop.0", [], {}, "INVALID_ARGUMENT", "expected 1"),
    ("forward", "nop.0", [X, X], {}, "INVALID_ARGUMENT", "expected 1"),
    ("forward", "nop.0", [Tensor("F32", [1, 3], bytes(12))], {}, "INVALID_ARGUMENT", "3"),
    ("forward", "nop.0", [Tensor("F64", [1, WIDTH], bytes(8 * WIDTH))], {}, "INVALID_ARGUMENT",
     "F64"),
    ("forward", "nop.0", [Tensor("F32", [0, WIDTH], b"")], {}, "INVALID_ARGUMENT", "0"),
    ("forward", "nop.0", [Tensor("F33", [1, WIDTH], bytes(4 * WIDTH))], {}, "INVALID_ARGUMENT", ""),
    ("forward", "nop.0", [Tensor("F32", [1, WIDTH], bytes(63))], {}, "INVALID_ARGUMENT", "63"),
    ("forward", "nop.0", [Tensor("F32", [1, WIDTH], bytes(64), 77)], {}, "INVALID_ARGUMENT", "77"),
    ("forward", "nop.0", [Tensor("I64", [1, WIDTH], bytes(32), 1)], {}, "INVALID_ARGUMENT", ""),
    ("forward", "nop.0", [Tensor("F32", [1] * 9, bytes(4))], {}, "INVALID_ARGUMENT", ""),
    ("forward", "nop.0", [Tensor("U8", [1], b"a")] * 65, {}, "INVALID_ARGUMENT", "64"),
    ("info", "u" * 256, [], {}, "DATA_LOSS", "uid"),
    ("", "", [], {}, "DATA_LOSS", "method"),
    ("ping", "", [], {"params": bytes(32769)}, "INVALID_ARGUMENT", "params"),
    ("ping", "", [], {"id": b"short"}, "DATA_LOSS", "id"),
    ("lease", "", [], {"params": msgpack.packb({"match_key": "x"})}, "UNIMPLEMENTED", ""),
])
def test_calls_that_are_refused_alone(connection, method, uid, tensors, fields, status, part):
    headers, _ = connection.call(method, uid, tensors, **fields)
    assert headers["status"] == STATUS[status], headers
    assert part in headers["message"]
    ok(connection.call("ping"))  # the connection lives


def test_a_uid_with_nul(connection):
    headers, _ = connection.call("info", "nop\0.0")
    assert headers["status"] == STATUS["DATA_LOSS"]


def test_pings_unknown_frames_and_late_ones(connection):
    connection.send_frame(200, 0, b"a hint of a later minor")
    connection.send_frame(255, 7)
    connection.send_frame(peer.PING, 0, b"12345678")
    assert connection.read_frame() == (peer.PONG, 0, b"12345678")
    ok(connection.call("ping"))
    for late in (peer.DATA, peer.END, peer.CANCEL):  # of a stream that is over
        connection.send_frame(late, 1, b"x" if late != peer.END else b"")
    ok(connection.call("ping"))


def cancel(c):
    """A call that is given up before it is whole."""
    c.send_frame(peer.HEADERS, 1, msgpack.packb(
        {"method": "forward", "uid": "nop.0", "tensors": [X.descriptor()]}))
    c.send_frame(peer.CANCEL, 1, bytes([STATUS["CANCELLED"]]))


def test_cancel_frees_the_stream(connection):
    cancel(connection)
    connection.next_stream = 5  # gaps are allowed
    ok(connection.call("ping"))


def headers_frame(stream, **fields):
    return peer.HEADERS, stream, msgpack.packb(dict({"method": "ping"}, **fields))


def forward_frame(stream):
    return headers_frame(stream, method="forward", uid="nop.0", tensors=[X.descriptor()])


@pytest.mark.parametrize("frames", [
    [(50, 0, b"")],
    [(0, 0, b"")],
    [headers_frame(0)],
    [(peer.PING, 0, b"short")],
    [(peer.PING, 3, b"12345678")],
    [(peer.WINDOW, 0, b"\0\0\0\0")],
    [(peer.WINDOW, 0, b"\xff\xff\xff\xff")],
    [(peer.READY, 0, b"")],
    [(peer.DATA, 9, b"x")],
    [(peer.END, 9, b"")],
    [headers_frame(5), (peer.END, 5, b""), headers_frame(3)],
    [forward_frame(1), (peer.END, 1, b"")],
    [forward_frame(1), (peer.DATA, 1, bytes(4 * WIDTH + 1))],
    [(peer.HEADERS, 1, b"")],
])
def test_frames_that_end_the_connection(connection, frames):
    for frame in frames:
        connection.send_frame(*frame)
    with pytest.raises(peer.Ended):
        while True:
            connection.read_frame()


def test_a_frame_that_is_too_long(connection):
    connection.write_bytes(struct.pack("<IBI", 65001, peer.DATA, 1))
    with pytest.raises(peer.Ended):
        while True:
            connection.read_frame()


def test_a_changed_byte_ends_the_connection(connection):
    sealed = bytearray(connection.send_cipher.encrypt(b"", struct.pack("<IBI", 8, peer.PING, 0)
                                                      + b"12345678"))
    sealed[3] ^= 1
    connection.sock.sendall(struct.pack("<H", len(sealed)) + sealed)
    with pytest.raises((peer.Ended, ConnectionError)):
        while True:
            connection.read_frame()


def test_boundaries_of_messages_carry_no_meaning(connection):
    """A call whose bytes travel one by one, each in a message of its own."""
    message = msgpack.packb({"method": "ping"})
    data = (struct.pack("<IBI", len(message), peer.HEADERS, 1) + message
            + struct.pack("<IBI", 0, peer.END, 1))
    for byte in data:
        connection.write_bytes(bytes([byte]))
    headers, _ = connection.read_message(1)
    assert headers["status"] == 0


# ---- this side answers

class Scale:
    """An expert of Python's: y = 2 x, with the gradient 2 g."""

    def info(self, headers, tensors):
        spec = {"name": "x", "dtype": "F32", "shape": [-1, WIDTH]}
        return {"status": 0, "result": msgpack.packb({
            "uid": headers["uid"], "class": "scale", "precision": "float32", "parameters": 0,
            "updates": 0, "max_batch_size": 4096, "schema_digest": bytes(16), "inputs": [spec],
            "outputs": [dict(spec, name="y")],
            "load": {"examples_per_s": 0.0, "queued_tasks": 0, "stalled": False}})}, []

    def double(self, tensor, headers):
        values = [2 * v for v in tensor.values()]
        return {"status": 0}, [Tensor.of(values, tensor.shape, headers.get("reply_encoding", 0))]

    def forward(self, headers, tensors):
        return self.double(tensors[0], headers)

    def backward(self, headers, tensors):
        assert len(headers["id"]) == 16
        return self.double(tensors[1], headers)

    def methods(self):
        return {"info": self.info, "forward": self.forward, "backward": self.backward}


def npy(path, values, shape):
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (%s,), }" % ", ".join(
        map(str, shape))
    header += " " * (-(len(header) + 11) % 64) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()
                     + struct.pack("<%df" % len(values), *values))
    return str(path)


def read_npy(path):
    raw = path.read_bytes()
    return peer.floats(raw[10 + struct.unpack("<H", raw[8:10])[0]:])


def skep_call(responder, swarm, *options):
    return subprocess.run(
        [SKEP, "call", "scale.0", "--endpoint", responder.endpoint, "--peer-id",
         responder.identity.peer_id.hex(), "--swarm", swarm, *options], capture_output=True,
        text=True, timeout=60, env={k: v for k, v in os.environ.items()
                                    if not k.startswith("SKEP_")})


@pytest.mark.parametrize("encoding", [0, *NAMES])
def test_skeps_client_calls_this_side(tmp_path, encoding):
    swarm = new_swarm_name()
    responder = peer.Responder(peer.Identity(), swarm, Scale().methods())
    values = sample(100, 9)
    x = npy(tmp_path / "x.npy", values, [100, WIDTH])
    g = npy(tmp_path / "g.npy", values[::-1], [100, WIDTH])
    coded = ["--compression", NAMES[encoding]] if encoding else []
    coded_grad = ["--grad-compression", NAMES[encoding]] if encoding else []
    out = skep_call(responder, swarm, "--input", x, "--output", str(tmp_path / "y.npy"), *coded)
    assert out.returncode == 0, (out.stderr, responder.failures)
    assert max(abs(a - 2 * b) for a, b in zip(read_npy(tmp_path / "y.npy"), values)) <= \
        4 * CLOSE[encoding]
    out = skep_call(responder, swarm, "--input", x, "--grad", g, "--output",
                    str(tmp_path / "gx.npy"), *coded, *coded_grad)
    assert out.returncode == 0, (out.stderr, responder.failures)
    assert max(abs(a - 2 * b) for a, b in zip(read_npy(tmp_path / "gx.npy"), values[::-1])) <= \
        4 * CLOSE[encoding]
    assert not responder.failures
    sent = [c["tensors"][0][2] for c in responder.calls if c.get("tensors")]
    assert sent == [encoding, encoding]
    responder.close()


def test_skeps_client_checks_who_answers(tmp_path):
    swarm = new_swarm_name()
    responder = peer.Responder(peer.Identity(), swarm, Scale().methods())
    x = npy(tmp_path / "x.npy", sample(1), [1, WIDTH])
    other = peer.Identity().peer_id.hex()
    out = subprocess.run([SKEP, "call", "scale.0", "--endpoint", responder.endpoint, "--peer-id",
                          other, "--swarm", swarm, "--input", x], capture_output=True, text=True,
                         timeout=60)
    assert out.returncode != 0 and not responder.calls
    assert "identity" in out.stderr or "peer" in out.stderr
    responder.close()


def test_statuses_reach_skeps_client(tmp_path):
    swarm = new_swarm_name()
    methods = dict(Scale().methods(), forward=lambda h, t: (
        {"status": STATUS["RESOURCE_EXHAUSTED"], "message": "no room in Python", "retry": 1}, []))
    responder = peer.Responder(peer.Identity(), swarm, methods)
    x = npy(tmp_path / "x.npy", sample(1), [1, WIDTH])
    out = skep_call(responder, swarm, "--input", x, "--timeout", "2s")
    assert out.returncode != 0 and "no room in Python" in out.stderr
    responder.close()


# ---- records

def test_the_vectors_of_the_documents():
    with open(os.path.join(ROOT, "docs", "records.md")) as f:
        text = f.read()
    public, private = text.split("The same swarm, private")
    table = dict(re.findall(r"\| ([^|\n]+?) \| `([0-9a-f]+)` \|", public))
    secret = dict(re.findall(r"\| ([^|\n]+?) \| `([0-9a-f]+)` \|", private))
    seed = b"\x01" + bytes(31)
    identity = peer.Identity(seed)
    space = peer.RecordSpace("skep")
    uid = b"ffn.3.17"
    key = space.dht_key(b"expert", uid)
    made = {
        "network id": "%08x" % space.network_id(),
        "peer id": identity.peer_id.hex(),
        "key of expert `ffn.3.17`": key.hex(),
        "key of root prefix `ffn.`, shard 15": space.dht_key(
            b"root", b"ffn.", struct.pack("<Q", 15)).hex(),
        "key of the node": space.dht_key(b"node", identity.peer_id).hex(),
        "value id of its record about `ffn.3.17`": "%016x" % space.value_id(
            identity.peer_id, struct.pack("<Q", 1), uid),
        "key of trackers, shard 12": space.dht_key(b"trackers", struct.pack("<Q", 12)).hex(),
        "key of resource `rpi:4`": space.dht_key(b"resource", b"rpi:4").hex(),
        "value id of its record as a tracker": "%016x" % space.value_id(
            identity.peer_id, struct.pack("<Q", 4)),
        "value id of its record about resource `rpi:4`": "%016x" % space.value_id(
            identity.peer_id, struct.pack("<Q", 5), b"rpi:4"),
        "order of its claim to `ffn.3.17`": space.h0(b"skep claim v1", uid,
                                                     identity.peer_id).hex(),
    }
    assert made == table
    other = peer.RecordSpace("skep", seed)
    assert other.key.hex() == secret["record key"]
    assert "%08x" % other.network_id() == secret["network id"]
    assert other.dht_key(b"expert", uid).hex() == secret["key of expert `ffn.3.17`"]

    example = bytes.fromhex("".join(re.search(r"seq 1800000000000, expires at 1800000060:\n\n"
                                              r"((?:    [0-9a-f]+\n)+)", public).group(1).split()))
    fields = space.check(key, example)
    assert fields["seq"] == 1800000000000 and fields["expires_at"] == 1800000060
    body = {"uid": "ffn.3.17", "endpoints": ["192.0.2.7:4000"], "class": "ffn",
            "schema": bytes(range(16)), "features": 1, "load": [12.5, 9]}
    assert fields["body"] == body and list(fields["body"]) == list(body)
    assert space.make(key, 1, identity, 1800000000000, 1800000060, body) == example
    with pytest.raises(ValueError):
        space.check(space.dht_key(b"expert", b"ffn.3.18"), example)
    for at in (10, len(example) // 2, len(example) - 1):
        with pytest.raises(ValueError):
            space.check(key, example[:at] + bytes([example[at] ^ 1]) + example[at + 1:])


def test_sealed_records():
    space = peer.RecordSpace("skep", os.urandom(32))
    identity = peer.Identity()
    key = space.dht_key(b"node", identity.peer_id)
    record = space.make(key, 3, identity, 1, 2, {"state": "online"})
    assert space.check(key, record)["body"] == {"state": "online"}
    assert record != space.make(key, 3, identity, 1, 2, {"state": "online"})  # another nonce
    with pytest.raises(Exception):
        peer.RecordSpace("skep", os.urandom(32)).check(key, record)
