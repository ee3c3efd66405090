"""Thousands of connections at once: the node serves on, and so does its DHT, whose sockets must
keep numbers below 1024 (B27)."""

import os
import resource
import shutil
import socket

import wire
from swarm import Swarm, call, find, main, skip, until, until_found, write_npy

NEEDED = 4096  # descriptors, here and in the node

soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
if hard < NEEDED:
    skip("the limit of open files is %d, this test needs %d" % (hard, NEEDED))
resource.setrlimit(resource.RLIMIT_NOFILE, (NEEDED, hard))
# The node starts with the usual soft limit, and has to raise it itself.
USUAL = ["prlimit", "--nofile=1024:%d" % hard] if shutil.which("prlimit") else []


def connect(node, count, first_bytes=b""):
    host, port = node.endpoint.rsplit(":", 1)
    sockets = []
    for _ in range(count):
        s = socket.create_connection((host, int(port)), timeout=60)
        if first_bytes:
            s.sendall(first_bytes)
        sockets.append(s)
    return sockets


def descriptors(process):
    """(numbers of its UDP sockets, number of its open descriptors)"""
    folder = "/proc/%d/fd" % process.popen.pid
    with open("/proc/%d/net/udp" % process.popen.pid) as table:
        udp = {line.split()[9] for line in list(table)[1:]}
    numbers, count = [], 0
    for fd in os.listdir(folder):
        try:
            target = os.readlink(os.path.join(folder, fd))
        except OSError:
            continue
        count += 1
        if target.startswith("socket:[") and target[8:-1] in udp:
            numbers.append(int(fd))
    return numbers, count


def serves(swarm, node, bootstrap):
    x = swarm.path("x.npy")
    write_npy(x, (1, 16), range(16))
    answer = call("ffn.0.0", "--input", x, "--output", swarm.path("y.npy"), peers=bootstrap.peer,
                  seconds=60)
    assert answer["peer_id"] == node.facts["peer_id"], answer
    until_found(node.peer, "ffn.0.0", node, 60)
    assert find([node.peer], "ffn.9.9") == {"ffn.9.9": []}


def two_thousand(swarm, first_bytes):
    bootstrap = swarm.bootstrap()
    node = swarm.node("node", ["ffn.0.0"], [bootstrap.peer], "--update-period", "2",
                      inside=USUAL)
    until_found(bootstrap.peer, "ffn.0.0", node)
    sockets = connect(node, 2000, first_bytes)
    until(lambda: descriptors(node)[1] > 2000, 60, "the node has taken 2,000 connections")
    udp, _ = descriptors(node)
    assert udp and max(udp) < 1024, "UDP sockets are numbered %s" % udp
    serves(swarm, node, bootstrap)
    # A node that joins now, through the crowded one alone, is found by others.
    late = swarm.node("late", ["ffn.1.0"], [node.peer])
    until_found(bootstrap.peer, "ffn.1.0", late)
    for s in sockets:
        s.close()
    until(lambda: descriptors(node)[1] < 200, 60, "the descriptors are free again")
    serves(swarm, node, bootstrap)
    assert node.stop() == 0, node.read_log()
    assert node.events()[-1]["publish_rounds_failed"] == 0, node.events()[-1]


def case_two_thousand_silent_connections():
    """B55 too: nobody else is kept waiting."""
    with Swarm() as swarm:
        two_thousand(swarm, b"")


def case_two_thousand_handshakes_half_way():
    with Swarm() as swarm:
        two_thousand(swarm, b"SKEP\x01\x00\x01\x00" + (32).to_bytes(2, "little") + b"\x09" * 32)


def case_two_thousand_callers():
    """All of them established, each with a call and its answer."""
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap()
        node = swarm.node("node", ["ffn.0.0"], [bootstrap.peer], "--insecure-plaintext",
                          inside=USUAL)
        callers = [wire.Connection(node, timeout=60) for _ in range(2000)]
        data = bytes(64)
        for c in callers:
            c.socket.sendall(c.forward(1, "ffn.0.0", (1, 16), data))
        for c in callers:
            ended = False
            while not ended:
                kind, stream, payload = c.read_frame()
                assert kind not in (wire.GOAWAY, wire.CANCEL), payload
                ended = kind == wire.END
        until_found(bootstrap.peer, "ffn.0.0", node)
        for c in callers:
            c.close()
        assert node.stop() == 0, node.read_log()
        last = node.events()[-1]
        assert last["calls"] == 2000 and last["forward"]["tasks"] == 2000, last


def case_open_files_at_the_start_are_no_harm():
    """B27: a node that inherits 900 descriptors."""
    with Swarm() as swarm:
        files = [os.open("/dev/null", os.O_RDONLY) for _ in range(900)]
        for fd in files:
            os.set_inheritable(fd, True)
        node = swarm.node("node", ["ffn.0.0"], [], inherit=True, inside=USUAL)
        until_found(node.peer, "ffn.0.0", node)
        for fd in files:
            os.close(fd)


main(globals())
