"""What people get wrong when they join: a client and a node tell the mistakes apart."""

import shutil
import socket
import subprocess

from namespaces import Firewall, Network, lacks_namespaces, only_with
from swarm import SWARM, Swarm, find, free_port, main, refused, run, until, until_found


def client_says(peers, texts, *extra, seconds=2, inside=()):
    """A client that cannot join. It has a second to find out why: on a machine that is very busy
    that is too short, for it or for who should answer it."""
    for _ in range(6):
        said = refused(4, ["no DHT peer answered", peers], "find", "ffn.0.0", "--initial-peers",
                       peers, "--timeout", "%ds" % seconds, *extra, inside=inside)
        if all(text in said for text in texts):
            return said
    raise AssertionError("said %r, expected %r in it" % (said, texts))


def node_says(swarm, peers, texts, *extra):
    """A node that cannot join warns, and does not say how others join."""
    node = swarm.node("lost%d" % len(swarm.processes), ["lost.0"], [peers], *extra)
    for text in texts:
        node.wait_log(text)
    node.wait_log("not joined: no initial peer has answered")
    log = node.read_log()
    assert "bootstrap peer %s: does not answer on UDP: " % peers in log, log
    assert "the next node joins with" not in log, log
    return node


def port_of(endpoint):
    return int(endpoint.rsplit(":", 1)[1])


def case_a_wrong_port():
    with Swarm() as swarm:
        port = free_port(socket.SOCK_DGRAM)
        text = "nothing listens on UDP port %d: the port is wrong, or the peer has ended" % port
        client_says("127.0.0.1:%d" % port, [text])
        node_says(swarm, "127.0.0.1:%d" % port, [text])


def case_a_dead_peer():
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap()
        run("find", "ffn.0.0", "--initial-peers", bootstrap.peer, code=3)
        bootstrap.kill()
        client_says(bootstrap.peer, ["nothing listens on UDP port"])


def case_the_port_for_calls():
    with Swarm() as swarm:
        node = swarm.node("node", ["ffn.0.0"], [])
        text = "port %d is the TCP port on which a Skep node serves calls: give its DHT port" % (
            node.port)
        client_says(node.endpoint, [text])
        node_says(swarm, node.endpoint, [text])
        log = node.read_log()  # their look at the port is no failed connection of the node's
        assert "WARN" not in log and "initiator 0.0" not in log, log


def case_the_port_of_a_tracker():
    with Swarm() as swarm:
        node = swarm.node("node", ["ffn.0.0"], [])
        tracker = node.facts["tracker"]
        client_says(tracker, ["port %d is the TCP port of a tracker: write tracker://" %
                              port_of(tracker)])
        until_found("tracker://" + tracker, "ffn.0.0", node)


def case_another_swarm():
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap()
        texts = ["UDP port %d is open, but no DHT peer of this swarm answers" %
                 port_of(bootstrap.peer), "another --swarm or --swarm-key"]
        client_says(bootstrap.peer, texts, "--swarm", SWARM + "-other")
        node_says(swarm, bootstrap.peer, texts, "--swarm", SWARM + "-other")


def case_the_default_swarm():
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap("bootstrap", "--swarm", "skep")
        client_says(bootstrap.peer, ['a DHT peer of the default swarm ("skep", without a swarm key) '
                                     "answers there"])


def case_a_key_too_much():
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap()
        key = swarm.path("swarm.key")
        run("keygen", "--swarm-key", key)
        client_says(bootstrap.peer, ['a DHT peer of swarm "%s" without a swarm key answers there' %
                                     SWARM], "--swarm-key", key)


def case_a_key_too_few_or_another():
    with Swarm() as swarm:
        keys = [swarm.path("one.key"), swarm.path("two.key")]
        for key in keys:
            run("keygen", "--swarm-key", key)
        port = free_port()
        node = swarm.node("node", ["ffn.0.0"], [], "--swarm-key", keys[0], "--dht-listen",
                          "127.0.0.1:%d" % port, listen="127.0.0.1:%d" % port)
        is_open = "UDP port %d is open, but no DHT peer of this swarm answers" % port
        # Calls are served on the same port, where a preamble tells whether there is a key.
        client_says(node.peer, [is_open, "wants a --swarm-key"])
        said = client_says(node.peer, [is_open], "--swarm-key", keys[1])
        assert "wants a --swarm-key" not in said, said
        assert find(node.peer, "ffn.0.0", extra=("--swarm-key", keys[0]))["ffn.0.0"]


def case_another_program():
    with Swarm() as swarm, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        where = "127.0.0.1:%d" % other.getsockname()[1]
        client_says(where, ["is open, but no DHT peer of this swarm answers", "another program"])
        node = node_says(swarm, where, ["is open, but no DHT peer"])
        # What is wrong ends, and the node joins by itself.
        port = other.getsockname()[1]
        other.close()
        bootstrap = swarm.bootstrap(listen="127.0.0.1:%d" % port)
        node.wait_log("the next node joins with: --initial-peers " + node.peer, 60)
        until_found(bootstrap.peer, "lost.0", node)


def case_a_frozen_peer():
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap()
        bootstrap.freeze()
        client_says(bootstrap.peer, ["a process that hangs"])


def case_the_public_network():
    if shutil.which("dhtnode") is None:
        return "skipped: dhtnode is not installed"
    with Swarm() as swarm:
        port = free_port(socket.SOCK_DGRAM)
        stranger = subprocess.Popen(["dhtnode", "-p", str(port)], stdin=subprocess.PIPE,
                                    stdout=subprocess.DEVNULL, cwd=swarm.folder)
        try:
            text = "OpenDHT's public network"
            until(lambda: text in run("find", "ffn.0.0", "--initial-peers", "127.0.0.1:%d" % port,
                                      "--timeout", "2s", code=4)[1], 30, "it is recognized")
        finally:
            stranger.kill()
            stranger.communicate()
    return None


def case_several_peers_are_told_apart():
    with Swarm() as swarm:
        node = swarm.node("node", ["ffn.0.0"], [])
        dead = "127.0.0.1:%d" % free_port(socket.SOCK_DGRAM)
        def said():
            return run("find", "ffn.0.0", "--initial-peers",
                       ",".join([dead, node.endpoint, "nosuch.invalid:4222"]), "--timeout", "3s",
                       code=4)[1]
        texts = [dead + ": nothing listens", node.endpoint + ": port %d is the TCP port" % node.port,
                 'nosuch.invalid:4222: host "nosuch.invalid"']
        until(lambda: all(text in said() for text in texts), 60, "each is told by what it is")


@only_with(lacks_namespaces)
def case_on_another_host():
    """A closed port, another swarm, a firewall, a host that is down, and a host that nobody has."""
    with Network() as net, Swarm() as swarm:
        bootstrap = swarm.bootstrap(listen="10.9.0.1:*", inside=net.a.inside)
        port = port_of(bootstrap.peer)
        closed = port - 1 if port > 2000 else port + 1
        client_says("10.9.0.1:%d" % closed, ["nothing listens on UDP port %d" % closed],
                    inside=net.b.inside)
        client_says(bootstrap.peer, ["UDP port %d is open, but no DHT peer of this swarm" % port],
                    "--swarm", SWARM + "-other", inside=net.b.inside)
        # An address that nobody has: the system says so after some seconds.
        client_says("10.9.0.99:4222", ["10.9.0.99:4222: "], inside=net.b.inside)
        client_says("198.51.100.7:4222", ["cannot be reached from here: Network is unreachable"],
                    inside=net.b.inside)
        Firewall(net.a).block("udp")
        client_says(bootstrap.peer, ["UDP port %d gives no sign" % port, "a firewall drops UDP",
                                     "--swarm-key"], inside=net.b.inside)


main(globals())
