"""Peers of a tracker as TVM has them: a client, and a server that offers itself."""

import json
import random
import socket
import struct

from swarm import PATIENCE

MAGIC = 0x2F271
PING, STOP, PUT, REQUEST, UPDATE_INFO, SUMMARY, PENDING, DHT_PEERS = 1, 2, 3, 4, 5, 6, 7, 100


class Peer:
    """One connection to a tracker."""

    def __init__(self, endpoint, seconds=20):
        host, port = endpoint.rsplit(":", 1)
        self.socket = socket.create_connection((host.strip("[]"), int(port)),
                                               timeout=seconds * PATIENCE)
        self.socket.sendall(struct.pack("<I", MAGIC))
        assert struct.unpack("<I", self._receive(4))[0] == MAGIC

    def _receive(self, size):
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise ConnectionError("the tracker closed the connection")
            data += piece
        return data

    def send(self, message):
        data = json.dumps(message).encode()
        self.socket.sendall(struct.pack("<i", len(data)) + data)

    def receive(self):
        return json.loads(self._receive(struct.unpack("<i", self._receive(4))[0]))

    def call(self, *message):
        self.send(list(message))
        return self.receive()

    def has_answer(self, seconds):
        """Whether something comes within the time; it stays to be received."""
        before = self.socket.gettimeout()
        self.socket.settimeout(seconds)
        try:
            return len(self.socket.recv(1, socket.MSG_PEEK)) == 1
        except socket.timeout:
            return False
        finally:
            self.socket.settimeout(before)

    def request(self, key, priority=0):
        self.send([REQUEST, key, "", priority])

    def granted(self):
        code, resource = self.receive()
        assert code == 0, (code, resource)
        return resource

    def summary(self):
        code, facts = self.call(SUMMARY)
        assert code == 0
        return facts

    def queue(self, key):
        """(free, pending) of a key."""
        facts = self.summary()["queue_info"].get(key, {"free": 0, "pending": 0})
        return facts["free"], facts["pending"]

    def close(self):
        self.socket.close()


class Server(Peer):
    """A server that has registered under a key and offers itself."""

    def __init__(self, endpoint, key, port=9090, host=None):
        super().__init__(endpoint)
        self.key, self.port, self.host = key, port, host
        assert self.call(UPDATE_INFO, {"key": "server:" + key, "addr": [host, port]}) == 0
        self.offer()

    def offer(self):
        self.match_key = "%s:%s" % (self.key, random.random())
        assert self.call(PUT, self.key, [self.port, self.match_key], self.host) == 0
