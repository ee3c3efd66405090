"""B32: whatever comes up late, goes away or is cut off, it ends as one swarm, within a minute."""

import contextlib
import json
import os
import select
import socket
import struct
import time

from namespaces import Firewall, Network, lacks_namespaces, only_with
from swarm import Deadline, Swarm, find, free_port, main, until, until_found
from tvm_peer import DHT_PEERS, Peer

OFTEN = ("--update-period", "5", "--stats-report-interval", "1")


def udp_peer():
    return "127.0.0.1:%d" % free_port(socket.SOCK_DGRAM)


def until_one_swarm(nodes, peers=None, inside=()):
    """Each node knows so many others, and each answers for everybody's expert; nodes: uid -> node.
    All of it within a minute from now."""
    left = Deadline(60)
    for node in nodes.values():
        until(lambda: dht_peers(node) >= (peers or len(nodes) - 1), left,
              "%s knows all others" % node.name, pause=0.2)
        until(lambda: all(find(node.peer, *nodes, inside=inside).values()), left,
              "%s sees all of %s" % (node.name, ", ".join(nodes)), pause=0.5)


def dht_peers(node):
    """As the node has reported last."""
    said = select.poll()
    said.register(node.popen.stdout, select.POLLIN)
    node.said = getattr(node, "said", b"")
    while said.poll(0):
        piece = os.read(node.popen.stdout.fileno(), 65536)
        assert piece, "%s has ended:\n%s" % (node.name, node.read_log())
        node.said = node.said[-65536:] + piece
    reports = [json.loads(line) for line in node.said.split(b"\n")[:-1] if line.startswith(b"{")]
    return ([0] + [r["dht_peers"] for r in reports if "dht_peers" in r])[-1]


def case_four_at_once_and_the_bootstrap_peer_last():
    with Swarm() as swarm:
        peer = udp_peer()
        nodes = {}
        for i in range(4):
            nodes["a%d.0" % i] = swarm.node("a%d" % i, ["a%d.0" % i], [peer], *OFTEN, ready=False)
        for node in nodes.values():
            node.wait_ready()
        for node in nodes.values():
            node.wait_log("bootstrap peer %s: does not answer" % peer)
        swarm.bootstrap(listen=peer)
        until_one_swarm(nodes, peers=4)


def pings(network, count):
    """OpenDHT's, of peers with ids of their own that nobody answers for."""
    for number in range(count):
        yield b"".join((b"\x86\xa1a\x81\xa2id\xc4\x14", os.urandom(20), b"\xa1q\xa4ping\xa1t\xce",
                        struct.pack(">I", number + 1), b"\xa1y\xa1q\xa1v\xa4RNG1\xa1n\xce",
                        struct.pack(">I", network)))


def case_a_stranger_with_hundreds_of_ids_that_answer_nothing():
    """They are waited for once, and the peers that do answer are not forgotten over them."""
    with Swarm() as swarm, contextlib.ExitStack() as sockets:
        bootstrap = swarm.bootstrap()
        nodes = {uid: swarm.node(uid, [uid], [bootstrap.peer], *OFTEN) for uid in ("a.0", "b.0")}
        until_one_swarm(nodes, peers=2)
        network = Peer(nodes["a.0"].facts["tracker"]).call(DHT_PEERS)[1]["network"]
        for ping in pings(network, 400):
            stranger = sockets.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            for process in (bootstrap, *nodes.values()):
                stranger.sendto(ping, ("127.0.0.1", process.facts["dht_port"]))
            time.sleep(0.001)  # no more at once than a receive buffer holds
        last = {uid: swarm.node(uid, [uid], [bootstrap.peer], *OFTEN) for uid in ("c.0",)}
        nodes.update(last)
        end = time.monotonic() + 40
        while time.monotonic() < end:
            for node in nodes.values():
                assert "no peer answers any more" not in node.read_log(), node.read_log()
            time.sleep(0.5)
        until_one_swarm(nodes, peers=3)


@only_with(lacks_namespaces)
def case_all_udp_is_dropped_for_a_while():
    """On both sides of the wire a part of the swarm goes on by itself, and looks healthy."""
    with Network() as net, Swarm() as swarm:
        bootstrap = swarm.bootstrap(listen="10.9.0.1:*", inside=net.a.inside)
        nodes = {}
        for name, host, address in (("a1", net.a, "10.9.0.1"), ("b1", net.b, "10.9.0.2"),
                                    ("b2", net.b, "10.9.0.2")):
            nodes[name + ".0"] = swarm.node(name, [name + ".0"], [bootstrap.peer], "--update-period",
                                            "2", "--stats-report-interval", "1",
                                            listen=address + ":*", inside=host.inside)
        until_one_swarm(nodes, peers=3, inside=net.a.inside)
        walls = [Firewall(net.a), Firewall(net.b)]
        for wall in walls:
            wall.block("udp")
        until(lambda: max(dht_peers(node) for node in nodes.values()) == 1, 60, "it has come apart")
        for wall in walls:
            wall.open()
        # Not only through the bootstrap peer, which may be gone the next time.
        until_one_swarm(nodes, peers=3, inside=net.a.inside)


def case_the_bootstrap_peer_is_killed_and_comes_back():
    with Swarm() as swarm:
        peer = udp_peer()
        first = swarm.bootstrap("first", listen=peer)
        saved = swarm.path("peers")
        nodes = {}
        for name in ("c1", "c2"):
            nodes[name + ".0"] = swarm.node(name, [name + ".0"], [peer], "--peers-file",
                                            saved + name, *OFTEN)
        until_one_swarm(nodes, peers=2)
        assert nodes["c2.0"].stop() == 0  # it comes back by who it remembers
        first.kill()
        nodes["c2.0"] = swarm.node("remembers", ["c2.0"], [peer], "--peers-file", saved + "c2",
                                   *OFTEN)
        until_found(nodes["c1.0"].peer, "c2.0", nodes["c2.0"])
        # This one knows nobody else, and has to wait.
        nodes["c3.0"] = swarm.node("waits", ["c3.0"], [peer], *OFTEN)
        nodes["c3.0"].wait_log("bootstrap peer %s: does not answer" % peer)
        assert find(nodes["c1.0"].peer, "c3.0") == {"c3.0": []}
        swarm.bootstrap("second", listen=peer)
        until_one_swarm(nodes, peers=3)


@only_with(lacks_namespaces)
def case_the_bootstrap_peer_is_gone_for_good():
    """Two that were cut off, and whose only configured peer will never be back, remember each
    other."""
    with Network() as net, Swarm() as swarm:
        bootstrap = swarm.bootstrap(listen="10.9.0.1:*", inside=net.a.inside)
        nodes = {}
        for name, host, address in (("d1", net.a, "10.9.0.1"), ("d2", net.b, "10.9.0.2")):
            nodes[name + ".0"] = swarm.node(name, [name + ".0"], [bootstrap.peer], "--update-period",
                                            "2", "--stats-report-interval", "1",
                                            listen=address + ":*", inside=host.inside)
        until_one_swarm(nodes, peers=2, inside=net.a.inside)
        wall = Firewall(net.b)
        wall.block("udp")
        bootstrap.kill()
        for node in nodes.values():
            until(lambda: dht_peers(node) == 0, 60, "%s is alone" % node.name)
        wall.open()
        until_one_swarm(nodes, peers=1, inside=net.a.inside)


main(globals(), at_once=4)
