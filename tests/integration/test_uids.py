"""UIDs picked at random stay apart: nodes that start together, late joiners, restarts, and what is
said of UIDs that two nodes serve all the same."""

import json
import os
import socket

from swarm import Swarm, find, free_port, main, refused, until

PATTERN = "w.[0:4].[0:4]"


def arguments(count=5, pattern=PATTERN):
    return ["--expert-pattern", pattern, "--num-experts", str(count), "--update-period", "2s"]


def start_together(swarm, names, peers, *more, count=5, pattern=PATTERN):
    """Starts nodes at the same moment; they are not ready yet."""
    return [swarm.node(name, [], peers, *arguments(count, pattern), *more, ready=False)
            for name in names]


class Uids:
    """What a node says of its experts: when it is ready, and whenever that changes."""

    def __init__(self, node):
        self.node = node
        self.uids = sorted(e["uid"] for e in node.facts["experts"])

    def now(self):
        """Takes in what it has printed meanwhile."""
        os.set_blocking(self.node.popen.stdout.fileno(), False)
        self.node.unread += self.node.popen.stdout.read() or b""
        os.set_blocking(self.node.popen.stdout.fileno(), True)
        while b"\n" in self.node.unread:
            line, self.node.unread = self.node.unread.split(b"\n", 1)
            event = json.loads(line)
            if event["event"] == "experts":
                self.uids = sorted(e["uid"] for e in event["experts"])
        return self.uids


def all_of(nodes):
    return [uid for node in nodes for uid in node.now()]


def all_differ(nodes):
    uids = all_of(nodes)
    return len(set(uids)) == len(uids)


def served_once(peer, uids):
    """Whether the DHT names one node for each of these UIDs."""
    answers = find(peer, *uids)
    return all(len(providers) == 1 for providers in answers.values())


def check_apart(nodes, peer, count=5):
    nodes = [Uids(node) for node in nodes]
    for node in nodes:
        assert len(node.now()) == count, (node.node.name, node.uids)
    until(lambda: all_differ(nodes), 30, "no UID is served twice: %s" % [n.uids for n in nodes])
    until(lambda: served_once(peer, sorted(all_of(nodes))), 30, "the DHT names one node each")
    for node in nodes:  # still, and as many as were asked for
        assert len(node.now()) == count, (node.node.name, node.uids)
    assert all_differ(nodes)


def case_nodes_that_start_together_end_with_uids_of_their_own():
    for trial in range(4):
        with Swarm() as swarm:
            bootstrap = swarm.bootstrap()
            nodes = start_together(swarm, "abc", [bootstrap.peer])
            for node in nodes:
                node.wait_ready()
            # Ready means settled: with a peer from the beginning nobody changes afterwards.
            uids = [e["uid"] for node in nodes for e in node.facts["experts"]]
            assert len(uids) == 15, uids
            check_apart(nodes, bootstrap.peer)


def case_the_bootstrap_peer_may_start_last():
    with Swarm() as swarm:
        port = free_port(socket.SOCK_DGRAM)
        peer = "127.0.0.1:%d" % port
        nodes = start_together(swarm, "abc", [peer])
        bootstrap = swarm.bootstrap(listen=peer)
        for node in nodes:
            node.wait_ready()
        check_apart(nodes, bootstrap.peer)


def case_nodes_that_served_alone_part_when_they_meet():
    """Longer than they wait for peers: each has picked without asking, and serves."""
    with Swarm() as swarm:
        port = free_port(socket.SOCK_DGRAM)
        peer = "127.0.0.1:%d" % port
        nodes = start_together(swarm, "abc", [peer])
        for node in nodes:
            node.wait_ready()
            assert "without asking" in node.read_log()
        uids = [e["uid"] for node in nodes for e in node.facts["experts"]]
        bootstrap = swarm.bootstrap(listen=peer)
        check_apart(nodes, bootstrap.peer)
        if len(set(uids)) < len(uids):
            assert any("given up, untrained, for" in node.read_log() for node in nodes)


def case_others_join_a_lone_node_at_once():
    for trial in range(3):
        with Swarm() as swarm:
            port = free_port(socket.SOCK_DGRAM)
            peer = "127.0.0.1:%d" % port
            first = start_together(swarm, "a", [], "--dht-listen", peer)
            nodes = first + start_together(swarm, "bc", [peer])
            for node in nodes:
                node.wait_ready()
            check_apart(nodes, nodes[0].peer)


def uids_of(node):
    return sorted(e["uid"] for e in node.facts["experts"])


def case_a_late_joiner_hosts_what_is_free_or_names_the_option():
    with Swarm() as swarm:
        first = swarm.node("first", [], [], *arguments(13))
        refused(1, ["3 of 16 UIDs are free", "expected 5", "--allow-fewer"], "node", "--listen",
                "127.0.0.1:*", "--initial-peers", first.peer, "--hidden-dim", "16", "--expert-cls",
                "nop", *arguments())
        late = swarm.node("late", [], [first.peer], "--allow-fewer", *arguments())
        assert len(uids_of(late)) == 3, late.facts
        assert "3 UIDs are free, 5 were wanted" in late.read_log(), late.read_log()
        assert not set(uids_of(late)) & set(uids_of(first))
        # Nothing at all is free: it serves no expert, and says so.
        last = swarm.node("last", [], [late.peer], "--allow-fewer", *arguments())
        assert not uids_of(last) and "0 UIDs are free" in last.read_log(), last.read_log()
        refused(2, ["--allow-fewer", "--expert-pattern"], "node", "--allow-fewer")


def case_too_few_for_nodes_that_start_together():
    """Twelve are wanted, eight are there: whatever each ends with, none is served twice."""
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap()
        nodes = start_together(swarm, "abc", [bootstrap.peer], "--allow-fewer", count=4,
                               pattern="w.[0:8]")
        for node in nodes:
            node.wait_ready()
        seen = [Uids(node) for node in nodes]
        until(lambda: all_differ(seen), 30, "no UID is served twice")
        assert len(all_of(seen)) <= 8
        until(lambda: served_once(bootstrap.peer, sorted(all_of(seen))), 30, "one node each")


def names(node, other, *texts):
    """Whether one line of the node's log names the other node, and holds these texts."""
    peer = other.facts["peer_id"][:12]
    return any(peer in line and all(text in line for text in texts)
               for line in node.read_log().splitlines())


def until_both_name(a, b, *texts):
    for node, other in ((a, b), (b, a)):
        until(lambda: names(node, other, *texts), 40,
              "%s names the other one and says %s:\n%s" % (node.name, texts, node.read_log()))


def case_restored_uids_are_kept_and_a_double_is_warned_of_on_both_sides():
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap()
        folder = swarm.path("experts")
        kept = [*arguments(), "--checkpoint-dir", folder]
        node = swarm.node("node", [], [bootstrap.peer], *kept)
        uids = uids_of(node)
        assert node.stop() == 0, node.read_log()
        # Somebody takes one of them while the node is away, by its name.
        other = swarm.node("other", uids[:1], [bootstrap.peer], "--update-period", "2s")
        again = swarm.node("again", [], [bootstrap.peer], *kept)
        assert uids_of(again) == uids, (uids, again.facts)
        until_both_name(other, again, "expert %s: " % uids[0], " WARN ", "serves the same UID",
                        "for ", "picked it at random")
        assert uids_of(again) == Uids(again).now() == uids


def case_a_replica_asked_for_by_name_is_noted_on_both_sides():
    with Swarm() as swarm:
        first = swarm.node("first", ["ffn.0.0"], [], "--update-period", "2s")
        second = swarm.node("second", ["ffn.0.0"], [first.peer], "--update-period", "2s")
        until_both_name(first, second, "expert ffn.0.0: ", " INFO ", "serves the same UID for ",
                        "fail over")
        for node in (first, second):
            assert " WARN " not in node.read_log(), node.read_log()
            assert node.read_log().count("serves the same UID") == 1, node.read_log()


def case_another_schema_is_warned_of_on_both_sides():
    with Swarm() as swarm:
        wide = swarm.node("wide", ["ffn.0.0"], [], "--update-period", "2s", cls="ffn", hidden=64)
        narrow = swarm.node("narrow", ["ffn.0.0"], [wide.peer], "--update-period", "2s", cls="ffn",
                            hidden=32)
        until_both_name(wide, narrow, "expert ffn.0.0: ", " WARN ", "another schema", " s with",
                        "refuses it")


main(globals())
