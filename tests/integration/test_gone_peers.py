"""Peers and clients that have been there and are gone: they cost neither lookups nor traffic."""

import concurrent.futures
import socket
import time

from swarm import Swarm, find, free_port, main, run, timeout_option, until, until_found

UIDS = ["d.%d" % i for i in range(50)]
VISITORS = 60


def visit(swarm, bootstrap, number):
    """A peer that joins and ends soon; every other one without a word. Returns its port."""
    peer = swarm.bootstrap("visitor%d" % number, "--initial-peers", bootstrap.peer)
    time.sleep(2)
    if number % 2:
        peer.kill()
    else:
        assert peer.stop() == 0
    return peer.facts["dht_port"]


def visits(swarm, bootstrap, count):
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        return list(pool.map(lambda number: visit(swarm, bootstrap, number), range(count)))


class Ears:
    """Listens at the ports of the gone, for what is still sent to them."""

    def __init__(self, ports):
        self.sockets = []
        for port in ports:
            ear = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            ear.setblocking(False)
            try:
                ear.bind(("127.0.0.1", port))
            except OSError:
                ear.close()  # another program has it by now
                continue
            self.sockets.append(ear)
        assert len(self.sockets) >= len(ports) * 3 // 4, "most ports are free again"

    def __enter__(self):
        return self

    def __exit__(self, *what):
        for ear in self.sockets:
            ear.close()

    def heard(self):
        """How many datagrams have come since the last time."""
        count = 0
        for ear in self.sockets:
            while True:
                try:
                    ear.recv(2048)
                except BlockingIOError:
                    break
                count += 1
        return count

    def heard_in(self, seconds):
        self.heard()
        time.sleep(seconds)
        return self.heard()


def finds_all(bootstrap):
    """A fresh client, within a second."""
    code, _, _ = run("find", *UIDS, "--initial-peers", bootstrap.peer, timeout_option(1), code=None)
    return code == 0


def case_lookups_do_not_wait_for_the_gone():
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap()
        swarm.node("node", UIDS, [bootstrap.peer])
        until(lambda: finds_all(bootstrap), 30, "all are found at first")
        visits(swarm, bootstrap, 2 * VISITORS)
        until(lambda: all(finds_all(bootstrap) for _ in range(10)), 40,
              "ten clients in a row find all experts")


def case_nothing_is_sent_to_peers_that_are_gone():
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap()
        node = swarm.node("node", UIDS[:20], [bootstrap.peer])
        until_found(bootstrap.peer, UIDS[0], node)
        with Ears(visits(swarm, bootstrap, VISITORS)) as ears:
            start = time.monotonic()
            total = 0
            while time.monotonic() < start + 60:
                total += ears.heard_in(1)
            # About 30 a peer; and none any more, also when the node publishes.
            assert total <= 60 * VISITORS, total
            heard = ears.heard_in(35)
            assert heard <= 10, heard
        return "ok, %d datagrams before, %d after" % (total, heard)


def case_clients_that_have_left_are_sent_nothing():
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap()
        node = swarm.node("node", UIDS[:20], [bootstrap.peer])
        until_found(bootstrap.peer, UIDS[0], node)
        ports = [free_port(socket.SOCK_DGRAM) for _ in range(10)]
        for port in ports:
            run("find", *UIDS[:20], "--initial-peers", bootstrap.peer, "--dht-listen",
                "127.0.0.1:%d" % port)
        with Ears(ports) as ears:
            heard = ears.heard_in(35)
        assert heard <= 10, heard


def case_a_peer_that_comes_back_is_talked_to_again():
    """At the same address and under the same name, after it was given up."""
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap()
        stays = swarm.node("stays", ["stays.0"], [bootstrap.peer], "--stats-report-interval", "1")
        endpoint = "127.0.0.1:%d" % free_port(socket.SOCK_DGRAM)
        options = ("--dht-listen", endpoint, "--identity", swarm.path("key"), "--update-period", "2")

        def reports(count):
            return stays.next_event().get("dht_peers") == count

        for number in range(3):
            node = swarm.node("back%d" % number, ["back.0"], [bootstrap.peer], *options)
            until_found(stays.peer, "back.0", node)
            until(lambda: reports(2), 60, "the other node knows it", pause=0)
            node.kill() if number % 2 else node.stop()
            until(lambda: reports(1), 60, "the other node has given it up", pause=0)
        node = swarm.node("back", ["back.0"], [bootstrap.peer], *options)
        until_found(stays.peer, "back.0", node)
        assert find(node.peer, "stays.0")["stays.0"]


main(globals())
