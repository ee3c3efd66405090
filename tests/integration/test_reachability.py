"""B37: a node finds out whether others can reach it, and says which fault it is and what mends it."""

import json

from namespaces import Firewall, Network, need_namespaces
from swarm import Swarm, free_port, main, refused, run, until


def swarm_of_askers(swarm, net):
    """A bootstrap peer and two nodes on host a, which are asked."""
    bootstrap = swarm.bootstrap(listen="10.9.0.1:*", inside=net.a.inside)
    for name in ("left", "right"):
        swarm.node(name, ["%s.0" % name], [bootstrap.peer], listen="10.9.0.1:*",
                   inside=net.a.inside)
    # Only a node that has been listed can be asked.
    until(lambda: run("peers", "--initial-peers", bootstrap.peer, "--no-ping", code=None,
                      inside=net.a.inside)[1].count("online") == 2, 30, "both are listed")
    return bootstrap


def node_on_b(swarm, net, bootstrap, *arguments, listen="0.0.0.0:*", ports=(), **more):
    """A node on host b; `ports`: of TCP and UDP, where they must be known before."""
    if ports:
        listen = "0.0.0.0:%d" % ports[0]
        arguments += ("--dht-listen", "0.0.0.0:%d" % ports[1])
    return swarm.node("node", ["ffn.0"], [bootstrap.peer], *arguments, listen=listen,
                      inside=net.b.inside, **more)


def said(node, seconds=40):
    """What the first check has found; one line."""
    def line():
        return [text for text in node.read_log().splitlines() if "reachability: " in text]
    return until(line, seconds, "the node says what it has found")[0]


def expect(line, warns, *texts):
    assert ("WARN" in line) == warns, line
    for text in texts:
        assert text in line, "%r not in: %s" % (text, line)


def states(node):
    """What it has told programs, in order, and what it said at the end."""
    assert node.stop() == 0
    events = node.events()
    return ([e["state"] for e in events if e["event"] == "reachability"],
            events[-1]["reachability"])


def case_all_is_well():
    with Network() as net, Swarm() as swarm:
        node = node_on_b(swarm, net, swarm_of_askers(swarm, net))
        expect(said(node), False, "has reached 10.9.0.2:%d" % node.port, "and the DHT's port")
        told, last = states(node)
        assert told in (["reachable"], []) and last == "reachable", (told, last)


def case_inbound_tcp_is_blocked_and_opened():
    with Network() as net, Swarm() as swarm:
        bootstrap = swarm_of_askers(swarm, net)
        ports = free_port(), free_port()
        firewall = Firewall(net.b)
        firewall.block("tcp", ports[0])
        node = node_on_b(swarm, net, bootstrap, ports=ports)
        line = said(node)
        expect(line, True, "sees this node at 10.9.0.2, but gets no connection to TCP port %d" %
               ports[0], "inbound TCP in the firewall", "--listen")
        assert "UDP" not in line, line
        firewall.open()  # it is checked again by itself
        node.wait_log("has reached 10.9.0.2:%d" % ports[0], 60)
        told, last = states(node)
        assert told[0] == "tcp_blocked" and last == "reachable", (told, last)


def case_inbound_udp_is_blocked():
    """As most firewalls do it: answers to what was asked come in, questions of strangers do not."""
    with Network() as net, Swarm() as swarm:
        bootstrap = swarm_of_askers(swarm, net)
        ports = free_port(), free_port()
        firewall = Firewall(net.b)
        for process in swarm.processes:
            port = process.facts.get("dht_port") or int(process.peer.rsplit(":", 1)[1])
            firewall.allow("udp", port)
        firewall.block("udp")
        node = node_on_b(swarm, net, bootstrap, ports=ports)
        line = said(node)
        expect(line, True, "no answer from UDP port %d" % ports[1], "inbound UDP in the firewall",
               "--dht-listen")
        assert "TCP" not in line, line
        assert states(node)[1] == "udp_blocked"


def case_both_are_blocked():
    with Network() as net, Swarm() as swarm:
        bootstrap = swarm_of_askers(swarm, net)
        ports = free_port(), free_port()
        firewall = Firewall(net.b)
        for process in swarm.processes:
            port = process.facts.get("dht_port") or int(process.peer.rsplit(":", 1)[1])
            firewall.allow("udp", port)
        firewall.block("udp")
        firewall.block("tcp", ports[0])
        node = node_on_b(swarm, net, bootstrap, ports=ports)
        expect(said(node), True, "TCP port %d" % ports[0], "UDP port %d" % ports[1], "--listen",
               "--dht-listen")


def case_all_udp_is_blocked():
    """Then there is nobody to ask, and what the node says is about UDP all the same."""
    with Network() as net, Swarm() as swarm:
        bootstrap = swarm_of_askers(swarm, net)
        Firewall(net.b).block("udp")
        node = node_on_b(swarm, net, bootstrap)
        expect(said(node), False, "could not check: no DHT peer answers", "--initial-peers",
               "open UDP port %d" % node.facts["dht_port"], "--dht-listen")
        assert states(node)[1] == "unchecked"


def case_a_wrong_address_is_announced():
    with Network() as net, Swarm() as swarm:
        bootstrap = swarm_of_askers(swarm, net)
        node = node_on_b(swarm, net, bootstrap, "--announce", "10.9.0.77:*")
        expect(said(node), True, "10.9.0.77:%d of --announce does not lead here" % node.port,
               "sees this node at 10.9.0.2, where it is reachable",
               "give --announce 10.9.0.2:%d" % node.port)
        assert states(node)[1] == "wrong_address"


def case_a_wrong_port_is_announced():
    with Network() as net, Swarm() as swarm:
        bootstrap = swarm_of_askers(swarm, net)
        node = node_on_b(swarm, net, bootstrap, "--announce", "10.9.0.2:9")
        expect(said(node), True, "port 9 is announced", "gets one at port %d" % node.port,
               "--announce")
        assert states(node)[1] == "wrong_address"


def case_a_name_that_is_none_is_announced():
    with Network() as net, Swarm() as swarm:
        bootstrap = swarm_of_askers(swarm, net)
        node = node_on_b(swarm, net, bootstrap, "--announce", "nowhere.invalid:*")
        expect(said(node), True, "nowhere.invalid:%d" % node.port, "a name without an address",
               "give --announce 10.9.0.2:%d" % node.port)


def case_nobody_to_ask():
    with Network() as net, Swarm() as swarm:
        alone = swarm.node("alone", ["ffn.0"], [], listen="10.9.0.1:*", inside=net.a.inside)
        expect(said(alone), False, "could not check: nobody has joined yet")
        bootstrap = swarm.bootstrap(listen="10.9.0.1:*", inside=net.a.inside)
        node = node_on_b(swarm, net, bootstrap)
        expect(said(node), False, "could not check: the swarm has no other node")


def case_neighbours_are_asked_on_loopback_only():
    """At the same address they see nothing of a firewall; but where all is on loopback, so do all."""
    with Network() as net, Swarm() as swarm:
        bootstrap = swarm_of_askers(swarm, net)
        third = swarm.node("third", ["ffn.0"], [bootstrap.peer], listen="10.9.0.1:*",
                           inside=net.a.inside)
        expect(said(third), False, "could not check: the swarm has no other node at another address")
    with Swarm() as swarm:
        first = swarm.node("first", ["ffn.0"], [])
        second = swarm.node("second", ["ffn.1"], [first.peer])
        for node in (first, second):
            node.wait_log("has reached %s" % node.endpoint, 60)


def case_nothing_to_announce():
    """A wildcard says nothing of an address, and who joins by loopback cannot tell one either; nor
    has the machine another one."""
    with Network() as net, Swarm() as swarm:
        net.a.ip("link", "set", "wire", "down")
        net.a.ip("address", "flush", "dev", "wire")
        first = swarm.node("first", ["ffn.0"], [], listen="0.0.0.0:*", inside=net.a.inside)
        swarm.node("second", ["ffn.1"], ["127.0.0.1:%d" % first.facts["dht_port"]],
                   listen="0.0.0.0:*", inside=net.a.inside)
        expect(said(first), False, "could not check: nothing is announced", "127.0.0.1",
               "--announce")


def health(node, host):
    """`skep peers` of the node alone, asked on its own host: what it says of itself."""
    out, _ = run("peers", "--endpoint", "%s:%d" % (host, node.port), "--json",
                 inside=node.inside)
    (entry,) = json.loads(out)
    assert entry["reached"] == "OK" and entry["experts"] == 1, entry
    return entry["health"]


def case_health_tells_its_parts_apart():
    """B91: the process, its DHT, its reachability; of a node that nobody is led to."""
    with Network() as net, Swarm() as swarm:
        bootstrap = swarm_of_askers(swarm, net)
        ports = free_port(), free_port()
        firewall = Firewall(net.b)
        # Nothing gets out: the node is ready and serves all the same.
        firewall.rule("to", "10.9.0.1", "blackhole")
        node = node_on_b(swarm, net, bootstrap, ports=ports)
        node.inside = net.b.inside
        assert health(node, "127.0.0.1") == {"dht_peers": 0, "experts_stalled": 0,
                                             "reachability": "unknown"}
        expect(said(node), False, "could not check: no DHT peer answers")
        assert health(node, "127.0.0.1")["reachability"] == "unchecked"
        # Then the network is there, but for inbound TCP.
        firewall.open()
        firewall.block("tcp", ports[0])
        node.wait_log("gets no connection to TCP port", 90)
        found = health(node, "10.9.0.2")
        assert found["dht_peers"] >= 1 and found["reachability"] == "tcp_blocked", found
        table, _ = run("peers", "--endpoint", "127.0.0.1:%d" % node.port, inside=node.inside)
        assert "tcp_blocked" in table and "DHT peers" in table, table
        # From elsewhere it is listed, and found to be out of reach.
        out, _ = run("peers", "--initial-peers", bootstrap.peer, "--json", "--timeout", "4s",
                     inside=net.a.inside)
        entry = {p["peer_id"]: p for p in json.loads(out)}[node.facts["peer_id"]]
        assert entry["reached"] != "OK" and entry["health"] is None, entry
        refused((1, 4), "10.9.0.2:%d" % node.port, "peers", "--endpoint", "10.9.0.2:%d" % node.port,
                "--timeout", "2s", inside=net.a.inside)


need_namespaces()
main(globals(), at_once=4)  # they wait for time-outs
