"""Loopback by whatever name: the machine's own name, which Debian's /etc/hosts leads to 127.0.1.1, and
names that lead nowhere beside it."""

import json
import subprocess
import tempfile

from namespaces import OwnHosts
from swarm import Swarm, call, find, has_ipv6, main, run, until, until_found, write_npy

NAME = "debian.test"


def tensors(swarm):
    x = swarm.path("x.npy")
    write_npy(x, (1, 16), range(16))
    return "--input", x, "--output", swarm.path("y.npy")


def all_commands(swarm, peers, node, uid="ffn.0.0", inside=()):
    """`find`, `call` and `peers` come to the node through these peers."""
    until_found(peers, uid, node, inside=inside)
    answer = call(uid, *tensors(swarm), peers=peers, inside=inside)
    assert answer["peer_id"] == node.facts["peer_id"], answer
    until(lambda: [p["reached"] for p in listed(peers, inside)
                   if p["peer_id"] == node.facts["peer_id"]] == ["OK"], 30, "it is listed")


def listed(peers, inside):
    return json.loads(run("peers", "--initial-peers", peers, "--json", code=(0, 3),
                          inside=inside)[0])


def port_of(peer):
    return int(peer.rsplit(":", 1)[1])


def own_hosts(swarm, address="127.0.1.1"):
    return OwnHosts(swarm.folder, ["127.0.0.1 localhost", "%s %s" % (address, NAME)])


def lacks_hosts():
    try:
        with tempfile.TemporaryDirectory() as folder, OwnHosts(folder, ["127.0.1.1 " + NAME]) as own:
            said = subprocess.run(own.inside + ["getent", "ahostsv4", NAME], check=True,
                                  stdout=subprocess.PIPE, stdin=subprocess.DEVNULL).stdout
            return "" if said.startswith(b"127.0.1.1 ") else "names are not those of /etc/hosts"
    except (AssertionError, OSError, subprocess.CalledProcessError) as error:
        return "no mount namespaces here: %s" % error


def with_name(case):
    def wrapped():
        reason = lacks_hosts()
        return "skipped: " + reason if reason else case()
    return wrapped


@with_name
def case_a_node_listens_on_the_own_name():
    with Swarm() as swarm, own_hosts(swarm) as own:
        node = swarm.node("node", ["ffn.0.0"], [], listen=NAME + ":*", inside=own.inside)
        assert node.peer.startswith(NAME + ":"), node.facts
        for host in (NAME, "127.0.0.1", "localhost"):
            all_commands(swarm, "%s:%d" % (host, port_of(node.peer)), node, inside=own.inside)
        # Others join by the line that it has printed, listening on the name and on an address.
        second = swarm.node("second", ["ffn.0.1"], [node.peer], listen=NAME + ":*",
                            inside=own.inside)
        third = swarm.node("third", ["ffn.0.2"], [node.peer], inside=own.inside)
        for one, via in ((node, third), (second, node), (third, second)):
            all_commands(swarm, via.peer, one, one.facts["experts"][0]["uid"], inside=own.inside)


@with_name
def case_peers_are_given_by_the_own_name():
    """The others listen on addresses."""
    with Swarm() as swarm, own_hosts(swarm) as own:
        bootstrap = swarm.bootstrap(inside=own.inside)
        by_name = "%s:%d" % (NAME, port_of(bootstrap.peer))
        node = swarm.node("node", ["ffn.0.0"], [by_name], inside=own.inside)
        all_commands(swarm, by_name, node, inside=own.inside)
        all_commands(swarm, bootstrap.peer, node, inside=own.inside)
        # Behind a wildcard: what it announces depends on where the name leads.
        wild = swarm.node("wild", ["ffn.0.1"], [by_name], listen="0.0.0.0:*", inside=own.inside)
        until(lambda: [p["endpoint"] for p in find(by_name, "ffn.0.1", inside=own.inside)[
            "ffn.0.1"]] == ["127.0.0.1:%d" % wild.port], 30, "it is found")


@with_name
def case_the_own_name_is_ipv6_loopback():
    if not has_ipv6():
        return "skipped: no IPv6 here"
    with Swarm() as swarm, own_hosts(swarm, "::1") as own:
        node = swarm.node("node", ["ffn.0.0"], [], listen=NAME + ":*", inside=own.inside)
        all_commands(swarm, node.peer, node, inside=own.inside)
    return None


def case_other_loopback_addresses():
    """All of 127.0.0.0/8 is this machine."""
    with Swarm() as swarm:
        node = swarm.node("node", ["ffn.0.0"], [], listen="127.0.1.1:*")
        assert node.peer.startswith("127.0.1.1:"), node.facts
        all_commands(swarm, node.peer, node)
        second = swarm.node("second", ["ffn.0.1"], [node.peer], listen="127.0.1.1:*")
        all_commands(swarm, node.peer, second, "ffn.0.1")
        all_commands(swarm, second.peer, node)


def case_a_name_that_leads_nowhere_holds_up_nobody():
    """Beside an address; for a node on loopback, one behind a wildcard, and clients."""
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap()
        peers = "nosuch.invalid:4222,%s,tracker://nosuch.invalid:9190" % bootstrap.peer
        node = swarm.node("node", ["ffn.0.0"], peers.split(","))
        wild = swarm.node("wild", ["ffn.0.1"], peers.split(","), listen="0.0.0.0:*")
        all_commands(swarm, bootstrap.peer, node)
        all_commands(swarm, peers, node)
        seen = "127.0.0.1:%d" % wild.port
        until(lambda: [p["endpoint"] for p in find(peers, "ffn.0.1")["ffn.0.1"]] == [seen], 30,
              "the one behind a wildcard is found")
        assert "nothing is published" not in node.read_log() + wild.read_log(), node.read_log()
        node.wait_log("nosuch.invalid")


main(globals())
