"""Where a node listens, what it publishes, and whether that is the same."""

import os
import re
import select
import shutil
import signal
import socket
import subprocess

from swarm import (PATIENCE, SWARM, Swarm, call, find, has_ipv6, main, run, until, until_found,
                   write_npy)


def tensors(swarm):
    x = swarm.path("x.npy")
    write_npy(x, (1, 16), range(16))
    return "--input", x, "--output", swarm.path("y.npy")


def listening(process, kind):
    """Local ports of the process's own sockets of a kind ("tcp", "udp"), as the kernel has them."""
    folder = "/proc/%d/fd" % process.popen.pid
    inodes = set()
    for fd in os.listdir(folder):
        try:
            target = os.readlink(os.path.join(folder, fd))
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    ports = set()
    for family in ("", "6"):
        try:
            with open("/proc/net/%s%s" % (kind, family)) as table:
                rows = [line.split() for line in table][1:]
        except OSError:
            continue
        ports |= {int(row[1].rsplit(":", 1)[1], 16) for row in rows if row[9] in inodes and
                  (kind == "udp" or row[3] == "0A")}
    return ports


def case_published_is_bound():
    """B06: log, facts, record and the kernel agree on the port."""
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap()
        node = swarm.node("node", ["ffn.0.0"], [bootstrap.peer])
        until_found(bootstrap.peer, "ffn.0.0", node)
        tracker = int(node.facts["tracker"].rsplit(":", 1)[1])
        assert listening(node, "tcp") == {node.port, tracker}, (listening(node, "tcp"), node.facts)
        assert "tracker on 127.0.0.1:%d\n" % tracker in node.read_log(), node.read_log()
        assert listening(node, "udp") == {node.facts["dht_port"]}, node.facts
        assert "serving on %s\n" % node.endpoint in node.read_log(), node.read_log()
        assert "--initial-peers %s --swarm %s\n" % (node.peer, SWARM) in node.read_log(), node.read_log()
        # The two transports use descriptors that the DHT leaves alone, and the other way round.
        call("ffn.0.0", *tensors(swarm), peers=bootstrap.peer)


def case_hosts_of_listen():
    """B08: each host reaches the node through every name of it that its sockets cover."""
    hosts = {"127.0.0.1": ["127.0.0.1", "localhost"], "0.0.0.0": ["127.0.0.1", "localhost"]}
    hosts["localhost"] = ["127.0.0.1", "localhost"]
    if has_ipv6():
        hosts["[::1]"] = ["[::1]"]
        if any(a[4][0] == "::1" for a in socket.getaddrinfo("localhost", 1)):
            hosts["[::1]"].append("localhost")
        hosts["[::]"] = ["[::1]", "127.0.0.1", "localhost"]
    with Swarm() as swarm:
        for i, (listen, reachable) in enumerate(hosts.items()):
            node = swarm.node("node%d" % i, ["ffn.0.0"], [], listen=listen + ":*")
            for host in reachable:
                run("call", "ffn.0.0", "--endpoint", "%s:%d" % (host, node.port),
                    *tensors(swarm))
        said = run("call", "ffn.0.0", "--endpoint", "127.0.0.2:%d" % swarm.processes[0].port,
                   *tensors(swarm), code=1)[1]
        assert "127.0.0.2" in said and "refused" in said, said


def case_ipv6_swarm():
    if not has_ipv6():
        return "skipped: no IPv6 here"
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap(listen="[::1]:*")
        assert bootstrap.peer.startswith("[::1]:"), bootstrap.facts
        node = swarm.node("node", ["ffn.0.0"], [bootstrap.peer], listen="[::1]:*")
        until_found(bootstrap.peer, "ffn.0.0", node)
        call("ffn.0.0", *tensors(swarm), peers=bootstrap.peer)
    return None


def case_a_wildcard_announces_what_peers_see():
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap()
        node = swarm.node("node", ["ffn.0.0"], [bootstrap.peer], listen="0.0.0.0:*")
        seen = "127.0.0.1:%d" % node.port
        until(lambda: [p["endpoint"] for p in find(bootstrap.peer, "ffn.0.0")["ffn.0.0"]] == [seen],
              30, "the node is published as " + seen)
        call("ffn.0.0", *tensors(swarm), peers=bootstrap.peer)


def case_announce_wins():
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap()
        node = swarm.node("node", ["ffn.0.0"], [bootstrap.peer], "--announce", "localhost:*",
                          listen="0.0.0.0:*")
        name = "localhost:%d" % node.port
        until(lambda: [p["endpoint"] for p in find(bootstrap.peer, "ffn.0.0")["ffn.0.0"]] == [name],
              30, "the node is published as " + name)
        call("ffn.0.0", *tensors(swarm), peers=bootstrap.peer)


def case_who_is_alone_behind_a_wildcard():
    """B36: nobody has told the node its address. It is found by those that join by the address that
    it prints, and by those on this machine that join by 127.0.0.1."""
    with Swarm() as swarm:
        node = swarm.node("node", ["ffn.0.0"], [], listen="0.0.0.0:*")
        if node.peer.startswith("127."):
            node.wait_log("as soon as the first peer has told at which address")
            return "skipped: this machine has loopback addresses only"
        node.wait_log("node: announces %s:%d, an address of this machine" % (
            node.peer.rsplit(":", 1)[0], node.port))
        assert "WARN" not in node.read_log(), node.read_log()
        for peer in ("127.0.0.1:" + node.peer.rsplit(":", 1)[1], node.peer):
            until_found(peer, "ffn.0.0", node, at="%s:%d" % (node.peer.rsplit(":", 1)[0], node.port))
            call("ffn.0.0", *tensors(swarm), peers=peer)
        second = swarm.node("second", ["ffn.0.1"], [node.peer], listen="0.0.0.0:*")
        until(lambda: find(second.peer, "ffn.0.0")["ffn.0.0"], 60, "the node is published", pause=1)
        (provider,) = find(second.peer, "ffn.0.0")["ffn.0.0"]
        host = node.peer.rsplit(":", 1)[0]
        assert provider["endpoint"] == "%s:%d" % (host, node.port), provider
    return None


def case_a_node_that_publishes_nothing():
    """`find` says that peers are there, and that none of them is published; the node says why."""
    with Swarm() as swarm:
        node = swarm.node("node", ["ffn.0.0"], [], "--dht-listen", "0.0.0.0:*")
        node.wait_log("nothing is published; use another --listen, or --announce")
        for what in ("ffn.0.0", "ffn."):
            said = run("find", what, "--initial-peers", node.peer, code=3)[1]
            assert "no node of this swarm is listed, though " in said, said
        other = swarm.node("other", ["ffn.0.1"], [node.peer], listen="0.0.0.0:*")
        until(lambda: find(node.peer, "ffn.0.1")["ffn.0.1"], 30, "another one is published")
        said = run("find", "ffn.0.0", "--initial-peers", node.peer, code=3)[1]
        assert "is listed" not in said and "expert ffn.0.0: no node of swarm" in said, said
        assert other.alive()


def case_an_unreachable_endpoint_is_only_one_candidate():
    """A reader skips what it cannot reach, and goes on to who can be."""
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap()
        good = swarm.node("good", ["ffn.0.0"], [bootstrap.peer])
        until_found(bootstrap.peer, "ffn.0.0", good)
        bad = swarm.node("bad", ["ffn.0.0"], [bootstrap.peer], "--announce", "127.0.0.1:9")
        until(lambda: any(p["endpoint"] == "127.0.0.1:9"
                          for p in find(bootstrap.peer, "ffn.0.0")["ffn.0.0"]), 30, "published")
        answer = call("ffn.0.0", *tensors(swarm), peers=bootstrap.peer)
        assert answer["peer_id"] == good.facts["peer_id"], answer
        assert bad.alive()


def case_no_dht_serves_and_publishes_nothing():
    with Swarm() as swarm:
        node = swarm.node("node", ["ffn.0.0"], [], "--no-dht")
        assert listening(node, "udp") == set(), node.facts
        call("ffn.0.0", *tensors(swarm), node=node)
        assert node.stop() == 0


class Dhtnode:
    """OpenDHT's own program, as a stranger that wants to join."""

    def __init__(self, swarm, peer):
        self.said = b""
        self.popen = subprocess.Popen(["dhtnode", "-b", peer], stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                      cwd=swarm.folder)

    def ask(self, command, answer, seconds=30):
        """Gives a command and waits for a text in the answer, which it returns."""
        self.popen.stdin.write(command.encode() + b"\n")
        self.popen.stdin.flush()
        start = len(self.said)

        def answered():
            if select.select([self.popen.stdout], [], [], 0.1)[0]:
                self.said += os.read(self.popen.stdout.fileno(), 65536)
            return answer in self.said[start:].decode(errors="replace")
        until(answered, seconds, "dhtnode answers %r with %r" % (command, answer))
        return self.said[start:].decode(errors="replace")

    def close(self):
        self.popen.kill()
        self.popen.communicate()


def case_the_public_network_stays_out():
    """B35: a stock peer cannot join our swarm, nor does a node join its network."""
    if shutil.which("dhtnode") is None:
        return "skipped: dhtnode is not installed"
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap()
        node = swarm.node("node", ["ffn.0.0"], [bootstrap.peer])
        until_found(bootstrap.peer, "ffn.0.0", node)
        stranger = Dhtnode(swarm, bootstrap.peer)
        try:
            stranger.ask("g " + "ab" * 20, "Get: ")  # ends when nobody has answered
            said = stranger.ask("ll", "IPv6 stats:")
            port = re.search(r"running on port (\d+)", stranger.said.decode()).group(1)
            # The other way round: its address is given to a node, which stays without a peer.
            other = swarm.node("other", [], ["127.0.0.1:" + port])
            other.wait_log("bootstrap peer 127.0.0.1:%s: does not answer on UDP" % port)
        finally:
            stranger.close()
        assert "Known nodes: 0 good" in said, said
        assert other.stop() == 0
        assert other.events()[-1]["dht_peers"] == 0, other.events()
        assert bootstrap.stop() == 0
        assert bootstrap.events()[-1]["dht_peers"] <= 1  # the node, and no stranger
    return None


def case_a_node_alone_talks_to_nobody():
    """B35: no built-in bootstrap peers, no discovery."""
    strace = shutil.which("strace")
    if strace is None or PATIENCE > 1:
        return "skipped: needs strace, and a program without sanitizer"
    with Swarm() as swarm:
        trace = swarm.path("trace")
        tracer = swarm.node("node", ["ffn.0.0"], [], listen="0.0.0.0:*", inside=[
            strace, "-f", "-o", trace, "-e", "trace=sendto,sendmsg,sendmmsg,connect"])
        with open("/proc/%d/task/%d/children" % (tracer.popen.pid, tracer.popen.pid)) as file:
            os.kill(int(file.read().split()[0]), signal.SIGTERM)
        assert tracer.wait() == 0
        with open(trace) as file:
            sent = [line for line in file if "sin_addr" in line or "sin6_addr" in line]
        # Looking which of its own addresses leads out connects a UDP socket, and sends nothing.
        sent = [line for line in sent if " connect(" not in line]
        assert not sent, sent
    return None


main(globals())
