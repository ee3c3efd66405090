"""A node that comes back, under the same identity, and two that want one identity at once."""

import os
import signal
import socket

from swarm import (Swarm, call, find, free_port, kill_named, main, refused, until, until_found,
                   write_npy)


def endpoints(peer):
    return [p["endpoint"] for p in find(peer, "ffn.3.0")["ffn.3.0"]]


def start_again(kill, listen_again="127.0.0.1:*"):
    """Starts a node, ends it, starts it again under its identity at another port."""
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap()
        identity = swarm.path("node.key")
        first = swarm.node("first", ["ffn.3.0"], [bootstrap.peer], "--identity", identity)
        until_found(bootstrap.peer, "ffn.3.0", first)
        old_endpoint, peer_id = first.endpoint, first.facts["peer_id"]
        if kill:
            kill_named(first, bootstrap.peer, "ffn.3.0")  # the old record stays behind
        else:
            assert first.stop() == 0, first.read_log()
        # The old port stays taken, by one who would answer a call wrongly.
        other = swarm.node("other", ["ffn.3.0"], [], listen=old_endpoint)
        second = swarm.node("second", ["ffn.3.0"], [bootstrap.peer], "--identity", identity)
        assert second.facts["peer_id"] == peer_id
        assert second.endpoint != old_endpoint == other.endpoint
        # It publishes at once, to peers that know it again. Once its record has reached them, every
        # lookup, whomever it asks, puts the new port first: the records' sequence decides.
        both = (bootstrap.peer, second.peer)
        until(lambda: all(endpoints(peer) == [second.endpoint] for peer in both * 2), 30,
              "each peer finds ffn.3.0 at %s" % second.endpoint)
        for peer in both * 5:
            assert endpoints(peer) == [second.endpoint], (second.endpoint, endpoints(peer))
        x, y = swarm.path("x.npy"), swarm.path("y.npy")
        write_npy(x, (1, 16), range(16))
        answer = call("ffn.3.0", "--input", x, "--output", y, peers=bootstrap.peer)
        assert answer["peer_id"] == peer_id, answer
        assert second.stop() == 0, second.read_log()


def case_new_port_comes_first_after_a_clean_stop():
    start_again(kill=False)


def case_new_port_comes_first_after_a_crash():
    start_again(kill=True)


def case_one_identity_is_one_process():
    with Swarm() as swarm:
        identity = swarm.path("node.key")
        first = swarm.node("first", ["ffn.0.0"], [], "--identity", identity)
        second = ["node", "--listen", "127.0.0.1:*", "--identity", identity]
        refused(1, [identity, "in use by process %d" % first.popen.pid], *second)
        # The crash of the holder frees it, and so does its end.
        first.kill()
        again = swarm.start("again", *second)
        assert again.facts["peer_id"] == first.facts["peer_id"]
        refused(1, [identity, "in use by process %d" % again.popen.pid], *second)
        assert again.stop(number=signal.SIGINT) == 0
        assert not os.path.exists(identity + ".lock"), "the lock stayed behind"


def case_peers_file_leads_back_without_initial_peers():
    with Swarm() as swarm:
        dht_port = free_port(socket.SOCK_DGRAM)
        bootstrap = swarm.bootstrap(listen="127.0.0.1:%d" % dht_port)
        saved = swarm.path("peers")
        node = swarm.node("node", ["ffn.0.0"], [bootstrap.peer], "--peers-file", saved)
        until_found(bootstrap.peer, "ffn.0.0", node)
        assert node.stop() == 0
        assert os.path.exists(saved), "no peers were saved"
        again = swarm.node("again", ["ffn.0.1"], [], "--peers-file", saved)
        until_found(bootstrap.peer, "ffn.0.1", again)


main(globals())
