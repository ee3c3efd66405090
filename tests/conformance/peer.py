"""A second implementation of Skep's protocol, in plain Python.

Written from docs/protocol.md, docs/methods.md and docs/records.md alone; python3-nacl gives the
primitives and python3-msgpack the maps. It uses nothing of Skep's library, so that a fault in the
library and in its own tests alike shows here.
"""

import hashlib
import hmac
import math
import os
import socket
import struct
import threading

import msgpack
from nacl import bindings as sodium

MAGIC, MAJOR, MINOR = b"SKEP", 1, 1
PLAINTEXT, CHACHAPOLY = 0, 1
PSK_FLAG = 1
HEADERS, DATA, END, CANCEL, PING, PONG, GOAWAY, WINDOW, READY = range(1, 10)
MAX_PAYLOAD = 65000
STREAM_WINDOW, CONNECTION_WINDOW = 1 << 20, 4 << 20
STATUS = {"OK": 0, "CANCELLED": 1, "INVALID_ARGUMENT": 3, "DEADLINE_EXCEEDED": 4, "NOT_FOUND": 5,
          "PERMISSION_DENIED": 7, "RESOURCE_EXHAUSTED": 8, "FAILED_PRECONDITION": 9,
          "UNIMPLEMENTED": 12, "INTERNAL": 13, "UNAVAILABLE": 14, "DATA_LOSS": 15,
          "UNAUTHENTICATED": 16}
NAME = {number: name for name, number in STATUS.items()}


class Refused(Exception):
    """The responder's refusal, in place of its part of the handshake."""

    def __init__(self, raw):
        _, self.major, self.minor, self.mode, self.flags, self.status, size = struct.unpack(
            "<HBBBBBH", raw[:9])
        self.text = raw[9:9 + size].decode()
        super().__init__("%s: %s" % (NAME.get(self.status), self.text))


class Ended(Exception):
    """The other side ended the connection: by GOAWAY, or without a word (status None)."""

    def __init__(self, status=None, text=""):
        super().__init__("%s: %s" % (NAME.get(status), text))
        self.status, self.text = status, text


class ProtocolError(Exception):
    """The other side did what the documents do not allow."""


class Identity:
    """An Ed25519 key pair; its public key is the peer id."""

    def __init__(self, seed=None):
        self.peer_id, self.secret = sodium.crypto_sign_seed_keypair(seed or os.urandom(32))
        self.x_public = sodium.crypto_sign_ed25519_pk_to_curve25519(self.peer_id)
        self.x_secret = sodium.crypto_sign_ed25519_sk_to_curve25519(self.secret)

    def sign(self, message):
        return sodium.crypto_sign(message, self.secret)[:64]


# ---- Noise, revision 34: XX and XXpsk3 over 25519, ChaChaPoly, BLAKE2b

def blake2b(data, key=b"", size=64):
    return hashlib.blake2b(data, key=key, digest_size=size).digest()


def hmac_hash(key, data):
    return hmac.new(key, data, hashlib.blake2b).digest()


def hkdf(chaining_key, material, count):
    secret, out = hmac_hash(chaining_key, material), []
    for i in range(count):
        out.append(hmac_hash(secret, (out[-1] if out else b"") + bytes([i + 1])))
    return out


class Cipher:
    def __init__(self, key=None):
        self.key, self.nonce = key, 0

    def _nonce(self):
        nonce, self.nonce = struct.pack("<IQ", 0, self.nonce), self.nonce + 1
        return nonce

    def encrypt(self, ad, plaintext):
        if self.key is None:
            return plaintext
        return sodium.crypto_aead_chacha20poly1305_ietf_encrypt(plaintext, ad, self._nonce(),
                                                                self.key)

    def decrypt(self, ad, ciphertext):
        if self.key is None:
            return ciphertext
        return sodium.crypto_aead_chacha20poly1305_ietf_decrypt(ciphertext, ad, self._nonce(),
                                                                self.key)


class Noise:
    """The handshake of one side."""

    def __init__(self, initiator, identity, prologue, psk):
        name = b"Noise_XX%s_25519_ChaChaPoly_BLAKE2b" % (b"psk3" if psk else b"")
        self.hash = name.ljust(64, b"\0")
        self.chaining_key = self.hash
        self.initiator, self.psk, self.cipher = initiator, psk, Cipher()
        self.s, self.s_public = identity.x_secret, identity.x_public
        self.e = os.urandom(32)
        self.e_public = sodium.crypto_scalarmult_base(self.e)
        self.rs = self.re = None
        self.mix_hash(prologue)

    def mix_hash(self, data):
        self.hash = blake2b(self.hash + data)

    def mix_key(self, material):
        self.chaining_key, key = hkdf(self.chaining_key, material, 2)
        self.cipher = Cipher(key[:32])

    def mix_psk(self):
        self.chaining_key, extra, key = hkdf(self.chaining_key, self.psk, 3)
        self.mix_hash(extra)
        self.cipher = Cipher(key[:32])

    def encrypt_and_hash(self, plaintext):
        out = self.cipher.encrypt(self.hash, plaintext)
        self.mix_hash(out)
        return out

    def decrypt_and_hash(self, ciphertext):
        out = self.cipher.decrypt(self.hash, ciphertext)
        self.mix_hash(ciphertext)
        return out

    def dh(self, token):
        mine = self.e if (token[0] == "e") == self.initiator or token == "ee" else self.s
        theirs = self.re if (token[1] == "e") == self.initiator or token == "ee" else self.rs
        self.mix_key(sodium.crypto_scalarmult(mine, theirs))

    PATTERN = (("e",), ("e", "ee", "s", "es"), ("s", "se"))

    def _tokens(self, number):
        return self.PATTERN[number] + (("psk",) if number == 2 and self.psk else ())

    def write(self, number, payload):
        out = b""
        for token in self._tokens(number):
            if token == "e":
                out += self.e_public
                self.mix_hash(self.e_public)
                if self.psk:
                    self.mix_key(self.e_public)
            elif token == "s":
                out += self.encrypt_and_hash(self.s_public)
            elif token == "psk":
                self.mix_psk()
            else:
                self.dh(token)
        return out + self.encrypt_and_hash(payload)

    def read(self, number, message):
        for token in self._tokens(number):
            if token == "e":
                self.re, message = message[:32], message[32:]
                self.mix_hash(self.re)
                if self.psk:
                    self.mix_key(self.re)
            elif token == "s":
                size = 32 + (16 if self.cipher.key else 0)
                self.rs = self.decrypt_and_hash(message[:size])
                message = message[size:]
            elif token == "psk":
                self.mix_psk()
            else:
                self.dh(token)
        return self.decrypt_and_hash(message)

    def split(self):
        """The ciphers for sending and receiving."""
        first, second = (Cipher(k[:32]) for k in hkdf(self.chaining_key, b"", 2))
        return (first, second) if self.initiator else (second, first)


class Bare:
    """Plaintext mode: messages are their payloads."""

    rs = None

    def write(self, number, payload):
        return payload

    def read(self, number, message):
        return message

    def split(self):
        return None, None


def psk_of(swarm_key):
    return blake2b(b"skep swarm psk v1", swarm_key, 32) if swarm_key else None


# ---- connections

class Connection:
    """A connection after its handshake: frames both ways."""

    def __init__(self, sock, initiator, send, receive, hello, peer_hello):
        self.sock, self.initiator = sock, initiator
        self.send_cipher, self.receive_cipher = send, receive
        self.hello, self.peer = hello, peer_hello
        self.buffer = b""
        self.next_stream = 1
        self.credit = peer_hello["connection_window"]
        self.stream_credit = {}

    @staticmethod
    def read_exactly(sock, size):
        data = b""
        while len(data) < size:
            more = sock.recv(size - len(data))
            if not more:
                raise Ended()
            data += more
        return data

    def write_bytes(self, data):
        if self.send_cipher is None:
            self.sock.sendall(data)
            return
        for at in range(0, len(data), 65519):
            sealed = self.send_cipher.encrypt(b"", data[at:at + 65519])
            self.sock.sendall(struct.pack("<H", len(sealed)) + sealed)

    def read_bytes(self, size):
        while len(self.buffer) < size:
            if self.receive_cipher is None:
                self.buffer += self.read_exactly(self.sock, size - len(self.buffer))
                continue
            head = self.read_exactly(self.sock, 2)
            (length,) = struct.unpack("<H", head)
            if length == 0:  # a refusal in place of the first transport message
                rest = self.read_exactly(self.sock, 7)
                raise Refused(head + rest + self.read_exactly(
                    self.sock, struct.unpack("<H", rest[5:])[0]))
            self.buffer += self.receive_cipher.decrypt(b"", self.read_exactly(self.sock, length))
        out, self.buffer = self.buffer[:size], self.buffer[size:]
        return out

    def send_frame(self, kind, stream, payload=b""):
        self.write_bytes(struct.pack("<IBI", len(payload), kind, stream) + payload)

    def read_frame(self):
        size, kind, stream = struct.unpack("<IBI", self.read_bytes(9))
        if size > MAX_PAYLOAD:
            raise ProtocolError("a frame of %d bytes" % size)
        payload = self.read_bytes(size)
        if kind == GOAWAY:
            raise Ended(payload[0], payload[1:].decode())
        return kind, stream, payload

    def take(self, kind, stream, payload):
        """What every side does with a frame that is not of a call's content. True: it was one."""
        if kind == PING:
            self.send_frame(PONG, 0, payload)
        elif kind == WINDOW:
            (more,) = struct.unpack("<I", payload)
            if stream == 0:
                self.credit += more
            elif stream in self.stream_credit:
                self.stream_credit[stream] += more
        elif kind < 128 and kind not in (PONG, READY):
            return False
        return True

    def send_data(self, stream, data):
        """DATA within the credit of both windows; waits for WINDOW where there is none."""
        at = 0
        while at < len(data):
            size = min(MAX_PAYLOAD, self.credit, self.stream_credit[stream], len(data) - at)
            if size == 0:
                frame = self.read_frame()
                if not self.take(*frame):
                    return frame
                continue
            self.send_frame(DATA, stream, data[at:at + size])
            self.credit -= size
            self.stream_credit[stream] -= size
            at += size
        return None

    def read_message(self, stream, frame=None):
        """HEADERS, DATA and END of one stream: the map and its tensors."""
        headers, data = None, b""
        while True:
            kind, number, payload = frame or self.read_frame()
            frame = None
            if self.take(kind, number, payload):
                continue
            if number != stream:
                raise ProtocolError("stream %d, expected %d" % (number, stream))
            if kind == HEADERS:
                headers = msgpack.unpackb(payload, raw=False, strict_map_key=False)
            elif kind == DATA:
                data += payload
                self.send_frame(WINDOW, 0, struct.pack("<I", len(payload)))
                self.send_frame(WINDOW, stream, struct.pack("<I", len(payload)))
            elif kind == CANCEL:
                raise ProtocolError("the stream was cancelled: %s" % NAME.get(payload[0]))
            elif kind == END:
                tensors, at = [], 0
                for dtype, shape, encoding, size, *_ in headers.get("tensors", []):
                    tensors.append(Tensor(dtype, shape, data[at:at + size], encoding))
                    at += size
                if at != len(data):
                    raise ProtocolError("%d bytes of DATA, %d announced" % (len(data), at))
                return headers, tensors

    def send_message(self, stream, headers, tensors=()):
        if tensors:
            headers = dict(headers, tensors=[t.descriptor() for t in tensors])
        self.stream_credit[stream] = self.peer["stream_window"]
        self.send_frame(HEADERS, stream, msgpack.packb(headers, use_bin_type=True))
        frame = self.send_data(stream, b"".join(t.data for t in tensors))
        if frame is None:
            self.send_frame(END, stream)
        return frame

    def call(self, method, uid="", tensors=(), **fields):
        """One call and its reply: (headers, tensors)."""
        stream, self.next_stream = self.next_stream, self.next_stream + 1
        headers = dict({"method": method, "uid": uid}, **fields)
        return self.read_message(stream, self.send_message(stream, headers, tensors))

    def close(self):
        self.sock.close()


def hello_of(identity, swarm, **fields):
    hello = {"major": MAJOR, "minor": MINOR, "peer": identity.peer_id, "agent": "conformance peer",
             "swarm": swarm, "features": 0x7e, "stream_window": STREAM_WINDOW,
             "connection_window": CONNECTION_WINDOW, "max_streams": 64}
    hello.update(fields)
    return {k: v for k, v in hello.items() if v is not None}


def dial(address, identity, swarm, swarm_key=None, mode=CHACHAPOLY, preamble=None, peer_id=None,
         **hello):
    """Dials a node: its handshake as initiator. `hello`: fields to change; None leaves one out."""
    sock = socket.create_connection(address, 20)
    sock.settimeout(20)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    start = preamble or MAGIC + bytes([MAJOR, MINOR, mode, PSK_FLAG if swarm_key else 0])
    noise = Noise(True, identity, start, psk_of(swarm_key)) if mode else Bare()
    first = noise.write(0, b"")
    sock.sendall(start + struct.pack("<H", len(first)) + first)
    head = Connection.read_exactly(sock, 2)
    (size,) = struct.unpack("<H", head)
    if size == 0:
        rest = Connection.read_exactly(sock, 7)
        text = Connection.read_exactly(sock, struct.unpack("<H", rest[5:])[0])
        raise Refused(head + rest + text)
    peer = msgpack.unpackb(noise.read(1, Connection.read_exactly(sock, size)), raw=False)
    if mode and sodium.crypto_sign_ed25519_pk_to_curve25519(peer["peer"]) != noise.rs:
        raise ProtocolError("the hello's peer id is not the key that Noise has authenticated")
    if peer_id is not None and peer["peer"] != peer_id:
        raise ProtocolError("another peer than expected")
    own = hello_of(identity, swarm, **hello)
    third = noise.write(2, msgpack.packb(own, use_bin_type=True))
    sock.sendall(struct.pack("<H", len(third)) + third)
    send, receive = noise.split()
    connection = Connection(sock, True, send, receive, own, peer)
    if connection.read_frame() != (READY, 0, b""):
        raise ProtocolError("the first frame is not READY")
    return connection


def accept(sock, identity, swarm, swarm_key=None, **hello):
    """The handshake as responder on a connection that was accepted."""
    sock.settimeout(20)
    start = Connection.read_exactly(sock, 8)
    if start[:4] != MAGIC:
        raise Ended()
    mode, psk = start[6], psk_of(swarm_key)
    if start[4] != MAJOR or mode not in (PLAINTEXT, CHACHAPOLY) or bool(start[7] & 1) != bool(psk):
        text = b"this peer speaks ChaChaPoly"
        sock.sendall(struct.pack("<HBBBBBH", 0, MAJOR, MINOR, CHACHAPOLY, PSK_FLAG if psk else 0,
                                 STATUS["FAILED_PRECONDITION"], len(text)) + text)
        raise ProtocolError("refused a preamble of mode %d" % mode)
    noise = Noise(False, identity, start, psk) if mode else Bare()

    def message():
        (size,) = struct.unpack("<H", Connection.read_exactly(sock, 2))
        return Connection.read_exactly(sock, size)

    noise.read(0, message())
    own = hello_of(identity, None if psk else swarm, **hello)
    second = noise.write(1, msgpack.packb(own, use_bin_type=True))
    sock.sendall(struct.pack("<H", len(second)) + second)
    peer = msgpack.unpackb(noise.read(2, message()), raw=False)
    if mode and sodium.crypto_sign_ed25519_pk_to_curve25519(peer["peer"]) != noise.rs:
        raise ProtocolError("the hello's peer id is not the key that Noise has authenticated")
    if peer.get("swarm", "") != swarm:
        raise ProtocolError("swarm %r" % peer.get("swarm"))
    send, receive = noise.split()
    connection = Connection(sock, False, send, receive, own, peer)
    connection.send_frame(READY, 0)
    return connection


class Responder:
    """Serves one expert to whoever dials: `methods` maps names to functions of (headers, tensors)
    that return (headers, tensors)."""

    def __init__(self, identity, swarm, methods, swarm_key=None):
        self.identity, self.swarm, self.methods = identity, swarm, methods
        self.swarm_key, self.failures, self.calls = swarm_key, [], []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = "127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                sock = self.listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock):
        try:
            connection = accept(sock, self.identity, self.swarm, self.swarm_key)
            while True:
                kind, stream, payload = connection.read_frame()
                if connection.take(kind, stream, payload):
                    continue
                headers, tensors = connection.read_message(stream, (kind, stream, payload))
                self.calls.append(headers)
                method = self.methods.get(headers["method"])
                reply = (method(headers, tensors) if method else
                         ({"status": STATUS["UNIMPLEMENTED"], "message": "unknown method"}, ()))
                connection.send_message(stream, *reply)
        except Ended:
            pass
        except Exception as e:  # the test that looks will show it
            self.failures.append(e)
        finally:
            sock.close()

    def close(self):
        self.listener.close()


# ---- tensors and encodings

SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1,
         "BOOL": 1}
BLOCK = 4096


def f32(x):
    """Rounded to float32."""
    return struct.unpack("<f", struct.pack("<f", x))[0]


class Tensor:
    """A tensor as it travels."""

    def __init__(self, dtype, shape, data, encoding=0):
        self.dtype, self.shape, self.data, self.encoding = dtype, list(shape), data, encoding

    @classmethod
    def of(cls, values, shape, encoding=0):
        """A float32 tensor in an encoding."""
        return cls("F32", shape, encode(values, shape, encoding), encoding)

    def descriptor(self):
        return [self.dtype, self.shape, self.encoding, len(self.data)]

    def values(self):
        """Its elements as float32 numbers."""
        return decode(self.data, self.shape, self.encoding)


def floats(data):
    return list(struct.unpack("<%df" % (len(data) // 4), data))


def bf16_bits(x):
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16


def encode(values, shape, encoding):
    n = len(values)
    if encoding == 0:
        return struct.pack("<%df" % n, *values)
    if encoding == 1:
        return struct.pack("<%de" % n, *(max(-65504.0, min(65504.0, x)) for x in values))
    if encoding == 2:
        return struct.pack("<%dH" % n, *(bf16_bits(x) for x in values))
    if encoding == 3:
        width = shape[-1]
        rows = [values[i:i + width] for i in range(0, n, width)]
        means = [f32(math.fsum(r) / width) for r in rows]
        stds = [f32(max(2 ** -23, math.sqrt(math.fsum((x - m) ** 2 for x in r) / width)))
                for r, m in zip(rows, means)]
        codes = [(x - m) / s for r, m, s in zip(rows, means, stds) for x in r]
        return struct.pack("<%df%df%de" % (len(rows), len(rows), n), *means, *stds, *codes)
    if encoding in (4, 5):
        if encoding == 4:
            mean = math.fsum(values) / n
            std = math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (n - 1))
            codes = [max(0, min(255, round((x - mean) / (6 * std / 256)) + 128)) for x in values]
        else:
            order = sorted(range(n), key=lambda i: values[i])
            codes = [0] * n
            for rank, i in enumerate(order):
                codes[i] = rank * 256 // n
        book = []
        for c in range(256):
            of_code = [x for x, k in zip(values, codes) if k == c]
            book.append(math.fsum(of_code) / len(of_code) if of_code else 0.0)
        return struct.pack("<256f%dB" % n, *book, *codes)
    if encoding == 6:
        blocks = [values[i:i + BLOCK] for i in range(0, n, BLOCK)]
        tops = [f32(max(abs(x) for x in b)) for b in blocks]
        codes = [round(x / t * 127) if t else 0 for b, t in zip(blocks, tops) for x in b]
        return struct.pack("<%df%db" % (len(blocks), n), *tops, *codes)
    raise ValueError("encoding %d" % encoding)


def decode(data, shape, encoding):
    n = math.prod(shape)
    if n == 0:
        return []
    if encoding == 0:
        return floats(data)
    if encoding == 1:
        return list(struct.unpack("<%de" % n, data))
    if encoding == 2:
        return [struct.unpack("<f", struct.pack("<I", h << 16))[0]
                for h in struct.unpack("<%dH" % n, data)]
    if encoding == 3:
        width = shape[-1]
        rows = n // width
        means, stds = floats(data[:4 * rows]), floats(data[4 * rows:8 * rows])
        codes = struct.unpack("<%de" % n, data[8 * rows:])
        return [f32(codes[i] * stds[i // width] + means[i // width]) for i in range(n)]
    if encoding in (4, 5):
        book = floats(data[:1024])
        return [book[c] for c in data[1024:]]
    if encoding == 6:
        blocks = -(-n // BLOCK)
        tops = floats(data[:4 * blocks])
        codes = struct.unpack("<%db" % n, data[4 * blocks:])
        return [f32(codes[i] * tops[i // BLOCK] / 127) for i in range(n)]
    raise ValueError("encoding %d" % encoding)


# ---- records

def lp(data):
    return struct.pack("<I", len(data)) + data


class RecordSpace:
    """Keys and records of one swarm."""

    def __init__(self, swarm, swarm_key=None):
        self.swarm = swarm.encode()
        self.key = blake2b(b"skep swarm record v1", swarm_key, 32) if swarm_key else b""

    def h(self, *parts):
        return blake2b(b"".join(lp(p) for p in parts), self.key, 32)

    @staticmethod
    def h0(*parts):
        return blake2b(b"".join(lp(p) for p in parts), b"", 32)

    def network_id(self):
        return struct.unpack("<I", self.h(b"skep network v1", self.swarm)[:4])[0] or 1

    def dht_key(self, kind, *subject):
        return self.h(b"skep key v1", self.swarm, kind, *subject)[:20]

    @classmethod
    def value_id(cls, *parts):
        return struct.unpack("<Q", cls.h0(b"skep value v1", *parts)[:8])[0] or 1

    def make(self, key, kind, identity, seq, expires_at, body):
        """A signed record; sealed in a private swarm."""
        if self.key:
            nonce = os.urandom(24)
            body = nonce + sodium.crypto_aead_xchacha20poly1305_ietf_encrypt(
                msgpack.packb(body, use_bin_type=True), b"skep record v1" + key, nonce, self.key)
        packer = msgpack.Packer(use_bin_type=True)
        unsigned = packer.pack_array_header(7) + b"".join(
            packer.pack(field) for field in (1, kind, identity.peer_id, seq, expires_at, body))
        return unsigned + b"\xc4\x40" + identity.sign(b"skep record v1" + key + unsigned)

    def check(self, key, record):
        """The fields of a record whose signature holds under this key; ValueError otherwise."""
        version, kind, peer_id, seq, expires_at, body, signature = msgpack.unpackb(record,
                                                                                  raw=False)
        if version != 1 or record[-66:-64] != b"\xc4\x40" or record[-64:] != signature:
            raise ValueError("not a record of version 1")
        try:
            sodium.crypto_sign_open(signature + b"skep record v1" + key + record[:-66], peer_id)
        except Exception as e:
            raise ValueError("the signature does not hold") from e
        if self.key:
            plain = sodium.crypto_aead_xchacha20poly1305_ietf_decrypt(
                body[24:], b"skep record v1" + key, body[:24], self.key)
            body = msgpack.unpackb(plain, raw=False)
        return dict(kind=kind, peer_id=peer_id, seq=seq, expires_at=expires_at, body=body)
