"""What strangers and liars send to a node's RPC port, while others are served."""

import random
import socket
import struct

import wire
from swarm import Swarm, call, find, main, until, until_found, write_npy

TVM_MAGIC = struct.pack("<i", 0x2F271)
SEED = 20240607


def dial(node, timeout=20):
    host, port = node.endpoint.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=timeout)


def served(swarm, node, peer=None):
    """An honest caller gets its answer, and the DHT its own."""
    x = swarm.path("x.npy")
    write_npy(x, (1, 16), range(16))
    call("ffn.0.0", "--input", x, "--output", swarm.path("y.npy"), peers=peer, node=node)
    if peer is not None:
        assert find(peer, "ffn.0.0")["ffn.0.0"], "the DHT does not answer"


def closed_by_node(s):
    """Waits until the node has ended the connection; returns what it wrote before."""
    s.settimeout(40)
    said = b""
    try:
        while True:
            piece = s.recv(65536)
            if not piece:
                return said
            said += piece
    except ConnectionResetError:
        return said


def memory_kb(process):
    with open("/proc/%d/status" % process.popen.pid) as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def case_what_is_no_skep_is_closed_without_an_answer():
    """B10."""
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap()
        node = swarm.node("node", ["ffn.0.0"], [bootstrap.peer])
        until_found(bootstrap.peer, "ffn.0.0", node)
        numbers = random.Random(SEED)
        for first in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", TVM_MAGIC, b"\x16\x03\x01\x02\x00",
                      b"\x00" * 64, b"SSH-2.0-x\r\n",
                      b"\x93" + bytes(numbers.randrange(256) for _ in range(4000))):
            with dial(node) as s:
                s.sendall(first)
                assert closed_by_node(s) == b"", "the node answered %r" % first[:8]
        for cut in (b"", b"S", b"SKE", b"SKEP", b"SKEP\x01\x00\x01", b"SKEP\x01\x00\x01\x00",
                    b"SKEP\x01\x00\x01\x00\x20", b"SKEP\x01\x00\x01\x00\x20\x00abc"):
            with dial(node) as s:
                s.sendall(cut)
            with dial(node) as s:  # the same, and a reset instead of an end
                s.sendall(cut)
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with dial(node) as s:  # half open: nothing more will come, an answer may
                s.sendall(cut)
                s.shutdown(socket.SHUT_WR)
                closed_by_node(s)
        node.wait_log("not a Skep connection")
        served(swarm, node, bootstrap.peer)
        assert node.alive()


def case_versions_and_modes_are_told_apart():
    """B68: a refusal says both versions and which side to update."""
    with Swarm() as swarm:
        node = swarm.node("node", ["ffn.0.0"], [])
        for preamble, text in ((b"SKEP\x02\x00\x01\x00", b"update the responder"),
                               (b"SKEP\x00\x07\x01\x00", b"update the initiator"),
                               (b"SKEP\x00\x00\x01\x00", b"only asked whether Skep listens"),
                               (b"SKEP\x01\x00\x00\x00", b"takes encrypted only"),
                               (b"SKEP\x01\x00\x09\x00", b"takes encrypted only"),
                               (b"SKEP\x01\x00\x01\x01", b"swarm key")):
            with dial(node) as s:
                s.sendall(preamble)
                said = closed_by_node(s)
                assert said[:2] == b"\x00\x00" and text in said, (preamble, said)


def case_garbled_handshakes_end():
    with Swarm() as swarm:
        node = swarm.node("node", ["ffn.0.0"], [])
        numbers = random.Random(SEED + 1)
        for mode in (b"\x01", b"\x02"):
            for size in (1, 31, 32, 33, 48, 64, 1000, 65535):
                with dial(node) as s:
                    try:
                        s.sendall(b"SKEP\x01\x00" + mode + b"\x00" + struct.pack("<H", size) +
                                  bytes(numbers.randrange(256) for _ in range(size)) +
                                  struct.pack("<H", 64) + bytes(64))
                    except (BrokenPipeError, ConnectionResetError):
                        pass
                    closed_by_node(s)
        served(swarm, node)
        assert node.alive()


def plain_node(swarm, *arguments, **more):
    return swarm.node("node", ["ffn.0.0"], [], "--insecure-plaintext", *arguments, **more)


def plain_served(swarm, node):
    connection = wire.Connection(node)
    data = struct.pack("<16f", *range(16))
    connection.socket.sendall(connection.forward(1, "ffn.0.0", (1, 16), data))
    status, reply = reply_to(connection, 1)
    assert status == 0 and data in reply, reply
    connection.close()


def reply_to(connection, stream):
    """(status, all bytes of the reply). Status as msgpack's small numbers have it."""
    seen = b""
    status = None
    while True:
        kind, which, payload = connection.read_frame()
        if which != stream:
            assert kind != wire.GOAWAY, payload
            continue
        if kind == wire.HEADERS:
            at = payload.index(b"\xa6status") + 7
            status = payload[at]
            assert status < 128, payload
        seen += payload
        if kind in (wire.END, wire.CANCEL):
            return status, seen


def case_bad_calls_are_answered_and_the_connection_goes_on():
    """B51, B53: shapes that lie, types and names nobody knows."""
    with Swarm() as swarm:
        node = plain_node(swarm)
        c = wire.Connection(node)
        good = wire.tensor("F32", (1, 16), 64)
        bad_calls = [
            ([wire.tensor("F32", (1, 10), 20)], "ffn.0.0", "forward"),  # 5 floats
            ([wire.tensor("F32", (1, 10), 60)], "ffn.0.0", "forward"),  # 15 floats
            ([wire.tensor("F32", (1, 17), 68)], "ffn.0.0", "forward"),
            ([wire.tensor("F32", (0, 16), 0)], "ffn.0.0", "forward"),
            ([wire.tensor("F32", (1 << 32, 1 << 32), 64)], "ffn.0.0", "forward"),
            ([wire.tensor("F32", (1 << 62, 16), 64)], "ffn.0.0", "forward"),
            ([wire.tensor("F32", (1 << 31, 16), 1 << 37)], "ffn.0.0", "forward"),
            ([wire.tensor("F32", (1,) * 9, 4)], "ffn.0.0", "forward"),
            ([wire.tensor("F32", (), 4)], "ffn.0.0", "forward"),
            ([wire.tensor("F31", (1, 16), 64)], "ffn.0.0", "forward"),
            ([wire.tensor("", (1, 16), 64)], "ffn.0.0", "forward"),
            ([["F32", [1, 16], 77, 64]], "ffn.0.0", "forward"),  # an encoding
            ([good] * 65, "ffn.0.0", "forward"),
            ([good, good], "ffn.0.0", "forward"),
            ([], "ffn.0.0", "forward"),
            ([good], "ffn.0.1", "forward"),
            ([good], "", "forward"),
            ([good], "ffn.0.0", "no_such_method"),
            ([good], "ffn.0.0", "backward"),  # without a request id, and a gradient
        ]
        for stream, (tensors, uid, method) in enumerate(bad_calls, 1):
            c.socket.sendall(c.headers(stream, uid, tensors, method))
            status, reply = reply_to(c, stream)
            assert status in (3, 5, 12, 15), (tensors, uid, method, status, reply)
        # Still the same connection.
        stream = len(bad_calls) + 1
        data = struct.pack("<16f", *range(16))
        c.socket.sendall(c.forward(stream, "ffn.0.0", (1, 16), data))
        status, reply = reply_to(c, stream)
        assert status == 0 and data in reply, reply
        c.close()


def case_bad_frames_end_their_connection_only():
    with Swarm() as swarm:
        node = plain_node(swarm)
        good = [wire.tensor("F32", (1, 16), 64)]
        numbers = random.Random(SEED + 2)
        witness = wire.Connection(node)
        for frames in (
                struct.pack("<IBI", 0xFFFFFFFF, wire.DATA, 1), wire.frame(77, 1, b"x"),
                wire.frame(wire.HEADERS, 0, b"x"), wire.frame(wire.DATA, 1, b"x"),
                wire.frame(wire.END, 5), wire.frame(wire.WINDOW, 0, struct.pack("<I", 0)),
                wire.frame(wire.WINDOW, 0, struct.pack("<I", 0xFFFFFFFF)) * 2,
                wire.frame(wire.PING, 0, b"short"), wire.frame(wire.READY),
                wire.frame(wire.HEADERS, 2, b"\xc1"),
                b"".join(wire.frame(wire.HEADERS, 1, witness.headers(1, "ffn.0.0", good)[9:])
                         for _ in range(2)),
                witness.headers(1, "ffn.0.0", good) + wire.frame(wire.END, 1),
                witness.headers(1, "ffn.0.0", good) + wire.frame(wire.DATA, 1, bytes(65)),
                bytes(numbers.randrange(256) for _ in range(20000))):
            c = wire.Connection(node)
            try:
                c.socket.sendall(frames)
                c.socket.shutdown(socket.SHUT_WR)
            except (BrokenPipeError, ConnectionResetError, OSError):
                pass
            closed_by_node(c.socket)
            c.close()
        # Who had nothing to do with it goes on.
        data = struct.pack("<16f", *range(16))
        witness.socket.sendall(witness.forward(1, "ffn.0.0", (1, 16), data))
        status, reply = reply_to(witness, 1)
        assert status == 0 and data in reply
        witness.close()
        assert node.alive()


def case_announced_bytes_take_no_memory():
    """B69: 100 connections each announce 16 MiB, and send nothing of it."""
    with Swarm() as swarm:
        node = swarm.node("node", ["ffn.0.0"], [], "--insecure-plaintext", hidden=1024)
        before = memory_kb(node)
        connections = []
        for _ in range(100):
            c = wire.Connection(node)
            c.socket.sendall(c.headers(1, "ffn.0.0", [wire.tensor("F32", (4096, 1024), 16 << 20)]))
            connections.append(c)
        # Each of them was taken and is waited for: a ping is answered, and no refusal came.
        for c in connections:
            c.socket.sendall(wire.frame(wire.PING, 0, b"12345678"))
            assert c.read_frame()[0] == wire.PONG
        grown = memory_kb(node) - before
        assert grown < 400 * 1024, "100 announcements took %d MB" % (grown // 1024)
        for c in connections:
            c.close()
        assert node.stop() == 0


def case_a_client_that_reads_nothing_is_bounded():
    with Swarm() as swarm:
        node = plain_node(swarm)
        plain_served(swarm, node)
        before = memory_kb(node)
        # It asks for 64 MB of replies and takes none. The node stops reading, or refuses, when it
        # owes too much; in no case does it keep all.
        c = wire.Connection(node, window=1 << 30)
        c.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        c.socket.settimeout(2)
        rows = 4096
        data = bytes(rows * 16 * 4)
        asked = 0
        try:
            for stream in range(1, 1001):
                c.socket.sendall(c.forward(stream, "ffn.0.0", (rows, 16), data))
                asked += len(data)
        except (TimeoutError, BrokenPipeError, ConnectionResetError):
            pass  # the node does not read on, or has given this client up
        grown = (memory_kb(node) - before) * 1024
        assert grown < 200 << 20, "%d MB asked for, %d MB kept" % (asked >> 20, grown >> 20)
        plain_served(swarm, node)
        c.close()
        plain_served(swarm, node)
        assert node.alive()


def busy_expert(swarm):
    """A node whose expert is at work for seconds, and the connection that waits for it: three
    backward passes, streams 1 to 3, each of them a batch of its own."""
    node = swarm.node("node", ["ffn.0.0"], [], "--insecure-plaintext", "--max-batch-size", "512",
                      cls="ffn", hidden=2048)
    c = wire.Connection(node, window=64 << 20, timeout=200)
    rows = 512
    data = struct.pack("<f", 0.01) * (rows * 2048)
    tensors = [wire.tensor("F32", (rows, 2048), len(data))] * 2
    for stream in (1, 2, 3):
        frames = [c.headers(stream, "ffn.0.0", tensors, "backward", id=bytes([stream]) * 16)]
        for start in range(0, 2 * len(data), 65000):
            frames.append(wire.frame(wire.DATA, stream, (data * 2)[start:start + 65000]))
        c.socket.sendall(b"".join(frames) + wire.frame(wire.END, stream))
    return node, c


def end_of(node):
    assert node.stop(60) == 0, node.read_log()
    return node.events()[-1]


def case_cancelled_calls_do_no_work():
    with Swarm() as swarm:
        node, busy = busy_expert(swarm)
        c = wire.Connection(node)
        data = bytes(2048 * 4)
        for stream in range(1, 11):
            c.socket.sendall(c.forward(stream, "ffn.0.0", (1, 2048), data))
        for stream in range(1, 6):  # five are given up, five lose their caller
            c.socket.sendall(wire.frame(wire.CANCEL, stream, b"\x01"))
        c.socket.sendall(wire.frame(wire.PING, 0, b"12345678"))
        while c.read_frame()[0] != wire.PONG:
            pass
        c.close()
        status, _ = reply_to(busy, 3)
        assert status == 0
        # One that is patient comes after them.
        busy.socket.sendall(busy.forward(4, "ffn.0.0", (1, 2048), data))
        status, _ = reply_to(busy, 4)
        assert status == 0
        busy.close()
        forward = end_of(node)["forward"]
        assert (forward["tasks"], forward["cancelled"]) == (1, 10), forward


def case_expired_calls_do_no_work():
    """B57."""
    with Swarm() as swarm:
        node, busy = busy_expert(swarm)
        c = wire.Connection(node)
        data = bytes(2048 * 4)
        for stream in range(1, 11):
            call_frames = c.forward(stream, "ffn.0.0", (1, 2048), data)
            c.socket.sendall(call_frames.replace(wire.pack(60000), wire.pack(20), 1))
        status, _ = reply_to(busy, 3)
        assert status == 0
        for stream in range(1, 11):
            status, _ = reply_to(c, stream)
            assert status == 4, status
        c.close()
        busy.close()
        forward = end_of(node)["forward"]
        assert (forward["tasks"], forward["expired"]) == (0, 10), forward


def case_the_number_of_connections_is_bounded():
    with Swarm() as swarm:
        node = plain_node(swarm, "--max-connections", "5")
        held = [wire.Connection(node) for _ in range(5)]
        for _ in range(3):
            with dial(node) as s:
                s.sendall(b"SKEP\x01\x00\x00\x00\x00\x00")
                closed_by_node(s)
        node.wait_log("max_connections")
        held.pop().close()
        until(lambda: try_connect(node), 20, "a place is free again")
        for c in held:
            c.close()


def try_connect(node):
    try:
        wire.Connection(node).close()
        return True
    except (EOFError, OSError):
        return False


def case_a_message_over_the_limit_is_refused_at_both_ends():
    """B64: the caller is told the limit and may go on."""
    with Swarm() as swarm:
        node = swarm.node("node", ["ffn.0.0"], [], "--max-message-bytes", "4096")
        x, y = swarm.path("x.npy"), swarm.path("y.npy")
        for rows, code in ((64, 0), (65, 1), (64, 0)):
            write_npy(x, (rows, 16), [0] * (rows * 16))
            said = call("ffn.0.0", "--input", x, "--output", y, node=node, code=code)
            assert code == 0 or "4096" in said, said


main(globals())
