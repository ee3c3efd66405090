"""Peers of TVM's tracker protocol, written from its facts: the loop of a stock RPC server, a stock
client's session, and raw connections for what stock peers never do."""

import json
import random
import select
import socket
import struct
import threading

from swarm import PATIENCE

TRACKER_MAGIC = 0x2F271
RPC_MAGIC = 0xFF271
RPC_MISMATCH = RPC_MAGIC + 2
FAIL, SUCCESS = -1, 0
PING, STOP, PUT, REQUEST, UPDATE_INFO, SUMMARY, GET_PENDING_MATCHKEYS = range(1, 8)


def receive_exactly(sock, size):
    data = b""
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            raise ConnectionError("closed after %d of %d bytes" % (len(data), size))
        data += piece
    return data


def frame(message):
    """Bytes of a message: text or bytes as they are, anything else as JSON."""
    if not isinstance(message, (str, bytes)):
        message = json.dumps(message)
    if isinstance(message, str):
        message = message.encode()
    return struct.pack("<i", len(message)) + message


class Raw:
    """A connection that has exchanged the magic numbers."""

    def __init__(self, port, host="127.0.0.1", greet=True, seconds=20, source=""):
        self.sock = socket.create_connection((host, port), timeout=seconds * PATIENCE,
                                             source_address=(source, 0) if source else None)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if greet:
            self.sock.sendall(struct.pack("<i", TRACKER_MAGIC))
            assert struct.unpack("<i", receive_exactly(self.sock, 4))[0] == TRACKER_MAGIC

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def send(self, message):
        self.sock.sendall(frame(message))

    def receive_text(self):
        size = struct.unpack("<i", receive_exactly(self.sock, 4))[0]
        return receive_exactly(self.sock, size).decode()

    def receive(self):
        return json.loads(self.receive_text())

    def ask(self, message):
        self.send(message)
        return self.receive()

    def ask_text(self, message):
        self.send(message)
        return self.receive_text()

    def put(self, key, match_key, port=9090, address=None):
        return self.ask([PUT, key, [port, match_key], address])

    def summary(self):
        code, value = self.ask([SUMMARY])
        assert code == SUCCESS
        return value

    def has_answer(self, seconds=0.0):
        return bool(select.select([self.sock], [], [], seconds)[0])

    def is_closed(self, seconds=20):
        """Waits for the end of the connection; false if something else comes."""
        self.sock.settimeout(seconds * PATIENCE)
        try:
            return self.sock.recv(1) == b""
        except ConnectionError:
            return True

    def reset(self):
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def close(self):
        self.sock.close()


def random_key(prefix, taken=()):
    while True:
        key = prefix + ":" + str(random.random())
        if key not in taken:
            return key


class Server(threading.Thread):
    """A stock server: registers, offers a match key, waits for a client while it asks every
    `ping_period` seconds which of its keys are still there, and makes a new one when its key was
    handed out and nobody came. Serves one client at a time, by echoing."""

    def __init__(self, tracker_port, key, custom_address=None, ping_period=2, cpp=False):
        super().__init__(daemon=True)
        self.tracker_port = tracker_port
        self.key = key
        self.custom_address = custom_address
        self.ping_period = ping_period
        self.cpp = cpp  # as the C++ server writes and reads
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.stopping = False
        self.tracker = None
        self.registrations = 0
        self.match_keys = []
        self.served = 0
        self.polls = 0
        self.failure = None

    def run(self):
        while not self.stopping:
            try:
                if self.tracker is None:
                    self.register()
                client = self.accept()
                if client is not None:
                    self.serve(client)
            except OSError:
                if self.tracker is not None:
                    self.tracker.close()
                self.tracker = None
            except Exception as error:  # told to the test
                self.failure = error
                return

    def ask(self, message):
        """The answer as this kind of server reads it: text, or parsed."""
        self.tracker.send(message)
        return self.tracker.receive_text() if self.cpp else self.tracker.receive()

    def must_succeed(self, message):
        reply = self.ask(message)
        assert int(reply) == SUCCESS, reply  # C++: std::stoi

    def register(self):
        self.tracker = Raw(self.tracker_port, seconds=5)
        address = json.dumps(self.custom_address)
        port = '"%d"' % self.port if self.cpp else str(self.port)
        self.must_succeed('[%d, {"key": "server:%s", "addr": [%s, %s]}]' %
                          (UPDATE_INFO, self.key, address, port))
        self.registrations += 1

    def offer(self, match_key):
        self.match_keys.append(match_key)  # before others can see that it is free
        self.must_succeed('[%d, "%s", [%d, "%s"], %s]' % (PUT, self.key, self.port, match_key,
                                                        json.dumps(self.custom_address)))

    def accept(self):
        old, unmatched = set(), 0
        match_key = random_key(self.key)
        self.offer(match_key)
        while not self.stopping:
            if not select.select([self.listener], [], [], self.ping_period)[0]:
                pending = self.ask([GET_PENDING_MATCHKEYS])  # C++: searched as text
                self.polls += 1
                old.add(match_key)
                unmatched = 0 if match_key in pending else unmatched + 1
                if unmatched > 3:  # 4 s and one period more, as periods of 2 s
                    match_key = random_key(self.key, old)
                    self.offer(match_key)
                    unmatched = 0
                continue
            client, _ = self.listener.accept()
            if self.greet(client, match_key):
                return client
            client.close()
        return None

    def greet(self, client, match_key):
        client.settimeout(20 * PATIENCE)
        if struct.unpack("<i", receive_exactly(client, 4))[0] != RPC_MAGIC:
            return False
        size = struct.unpack("<i", receive_exactly(client, 4))[0]
        key = receive_exactly(client, size).decode()
        if key.split()[0] != "client:" + match_key:
            client.sendall(struct.pack("<i", RPC_MISMATCH))
            return False
        name = ("server:" + self.key).encode()
        client.sendall(struct.pack("<ii", RPC_MAGIC, len(name)) + name)
        return True

    def serve(self, client):
        with client:
            while True:
                data = client.recv(4096)
                if not data:
                    break
                client.sendall(data)
        self.served += 1

    def stop(self):
        self.stopping = True
        self.listener.close()
        if self.tracker is not None:
            try:
                self.tracker.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self.join(30 * PATIENCE)
        if self.failure is not None:
            raise self.failure

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()


class Session:
    """A stock client's connection to a tracker."""

    def __init__(self, port, host="127.0.0.1"):
        self.raw = Raw(port, host)

    def summary(self):
        return self.raw.summary()

    def text_summary(self):
        """The table that stock tools print."""
        data = self.summary()
        total = {}
        text = "Server List\n" + "-" * 30 + "\nserver-address           key\n" + "-" * 30 + "\n"
        for item in sorted(data["server_info"], key=lambda x: x["key"]):
            text += "%21s    " % ":".join(map(str, item["addr"])) + item["key"] + "\n"
            key = item["key"].split(":")[1]
            total[key] = total.get(key, 0) + 1
        text += "-" * 30 + "\n\n"
        queue = data["queue_info"]
        width = max([len(k) for k in queue]) if queue else 0
        text += "Queue Status\n"
        title = "%%-%ds" % width % "key" + "   total  free  pending\n"
        line = "-" * len(title) + "\n"
        text += line + title + line
        for k in sorted(queue):
            free, pending = queue[k]["free"], queue[k]["pending"]
            if total.get(k, 0) or pending:
                text += "%%-%ds" % width % k + "   %-5d  %-4d  %-7d\n" % (total.get(k, 0), free,
                                                                        pending)
        return text + line

    def request(self, key, priority=1):
        """(address, port, match key) once there is one."""
        code, value = self.raw.ask([REQUEST, key, "", priority])
        assert code == SUCCESS, value
        return value

    def connect(self, key, priority=1):
        """A connection to a server, which has accepted the match key."""
        address, port, match_key = self.request(key, priority)
        return connect(address, port, match_key)

    def close(self):
        self.raw.close()


def connect(address, port, match_key):
    """Presents a match key to a server; ConnectionRefusedError if it is not the right one."""
    sock = socket.create_connection((address, port), timeout=20 * PATIENCE)
    key = ("client:" + match_key).encode()
    sock.sendall(struct.pack("<ii", RPC_MAGIC, len(key)) + key)
    code = struct.unpack("<i", receive_exactly(sock, 4))[0]
    if code != RPC_MAGIC:
        sock.close()
        raise ConnectionRefusedError("match key %s: code %x" % (match_key, code))
    size = struct.unpack("<i", receive_exactly(sock, 4))[0]
    receive_exactly(sock, size)
    return sock
