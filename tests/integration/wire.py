"""The plaintext wire protocol, written once more from its description: for clients that misbehave
in ways `skep` itself never would. Only nodes with --insecure-plaintext speak it.
"""

import socket
import struct

from swarm import SWARM

HEADERS, DATA, END, CANCEL, PING, PONG, GOAWAY, WINDOW, READY = range(1, 10)


def pack(value):
    """msgpack of the few types the protocol has."""
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return b"\xcf" + struct.pack(">Q", value)
    if isinstance(value, str):
        return b"\xda" + struct.pack(">H", len(value.encode())) + value.encode()
    if isinstance(value, bytes):
        return b"\xc5" + struct.pack(">H", len(value)) + value
    if isinstance(value, (list, tuple)):
        return b"\xdc" + struct.pack(">H", len(value)) + b"".join(map(pack, value))
    return b"\xde" + struct.pack(">H", len(value)) + b"".join(
        pack(k) + pack(v) for k, v in value.items())


def frame(kind, stream=0, payload=b""):
    return struct.pack("<IBI", len(payload), kind, stream) + payload


def tensor(dtype, shape, size):
    return [dtype, list(shape), 0, size]


class Connection:
    """An initiator. `window` is how many bytes of replies it allows."""

    def __init__(self, node, swarm=SWARM, window=1 << 20, timeout=20):
        host, port = node.endpoint.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=timeout)
        hello = pack({"major": 1, "minor": 0, "agent": "test", "peer": b"\x01" * 32,
                      "swarm": swarm, "features": 0, "stream_window": window,
                      "connection_window": window, "max_streams": 64})
        self.socket.sendall(b"SKEP\x01\x00\x00\x00" + struct.pack("<H", 0))
        self.read_exactly(struct.unpack("<H", self.read_exactly(2))[0])
        self.socket.sendall(struct.pack("<H", len(hello)) + hello)
        kind, _, _ = self.read_frame()
        assert kind == READY, "the node answered frame type %d, expected READY" % kind

    def read_exactly(self, size):
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise EOFError("connection ended after %d of %d bytes" % (len(data), size))
            data += piece
        return data

    def read_frame(self):
        """(type, stream, payload)."""
        size, kind, stream = struct.unpack("<IBI", self.read_exactly(9))
        return kind, stream, self.read_exactly(size)

    def headers(self, stream, uid, tensors, method="forward", **more):
        fields = {"timeout": 60000, "method": method, "uid": uid, "tensors": tensors}
        return frame(HEADERS, stream, pack(dict(fields, **more)))

    def forward(self, stream, uid, shape, data):
        """The bytes of a whole call of one float32 tensor."""
        frames = [self.headers(stream, uid, [tensor("F32", shape, len(data))])]
        for start in range(0, len(data), 65000):
            frames.append(frame(DATA, stream, data[start:start + 65000]))
        return b"".join(frames) + frame(END, stream)

    def close(self):
        self.socket.close()
