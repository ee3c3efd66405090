"""A way to a DHT peer on which the peer's replies take their time."""

import heapq
import select
import socket
import threading
import time


class SlowReplies:
    """Forwards UDP packets to a peer at once, and back after `delay_s` seconds."""

    def __init__(self, peer, delay_s):
        host, port = peer.rsplit(":", 1)
        self.target, self.delay_s = (host, int(port)), delay_s
        self.near = self.bound()  # where those that ask find the peer
        self.peer = "127.0.0.1:%d" % self.near.getsockname()[1]
        self.far = {}  # for each that asks a socket of its own
        self.late = []  # (when, number, packet, for whom)
        self.closing = False
        self.thread = threading.Thread(target=self.forward)

    @staticmethod
    def bound():
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        s.bind(("127.0.0.1", 0))
        return s

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, kind, value, traceback):
        self.closing = True
        self.thread.join()
        for s in [self.near, *self.far.values()]:
            s.close()

    def receive(self, s, asking):
        packet, source = s.recvfrom(65536)
        if s is not self.near:
            heapq.heappush(self.late, (time.monotonic() + self.delay_s, len(self.late), packet,
                                       asking[s]))
            return
        if source not in self.far:
            self.far[source] = self.bound()
        self.far[source].sendto(packet, self.target)

    def forward(self):
        while not self.closing:
            asking = {s: source for source, s in self.far.items()}
            for s in select.select([self.near, *asking], [], [], 0.01)[0]:
                try:
                    self.receive(s, asking)
                except OSError:  # who asked has gone, and its port says so
                    pass
            while self.late and self.late[0][0] <= time.monotonic():
                _, _, packet, source = heapq.heappop(self.late)
                try:
                    self.near.sendto(packet, source)
                except OSError:
                    pass
