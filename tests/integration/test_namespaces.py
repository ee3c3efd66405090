"""Two hosts with a wire between them, as network namespaces of their own."""

from namespaces import Network, need_namespaces
from swarm import Swarm, call, find, main, refused, until, until_found, until_gone, write_npy


def tensors(swarm):
    x = swarm.path("x.npy")
    write_npy(x, (1, 16), range(16))
    return "--input", x, "--output", swarm.path("y.npy")


def case_the_announced_address_is_the_one_that_peers_see():
    with Network() as net, Swarm() as swarm:
        bootstrap = swarm.bootstrap(listen="0.0.0.0:*", inside=net.a.inside)
        assert bootstrap.peer.startswith("10.9.0.1:"), bootstrap.facts
        node = swarm.node("node", ["ffn.0.0"], [bootstrap.peer], listen="0.0.0.0:*",
                          inside=net.b.inside)
        assert node.peer.startswith("10.9.0.2:"), node.facts
        seen = "10.9.0.2:%d" % node.port

        def found(host):
            return [p["endpoint"] for p in find(bootstrap.peer, "ffn.0.0", inside=host.inside)[
                "ffn.0.0"]] == [seen]
        for host in net.hosts:
            until(lambda: found(host), 30, "the node is found at " + seen)
            answer = call("ffn.0.0", *tensors(swarm), peers=bootstrap.peer, inside=host.inside)
            assert answer["peer_id"] == node.facts["peer_id"], answer
        # A second one, which joins through the first, and serves on the other host.
        other = swarm.node("other", ["ffn.1.0"], [node.peer], listen="10.9.0.1:*",
                           inside=net.a.inside)
        until_found(node.peer, "ffn.1.0", other, inside=net.b.inside)
        call("ffn.1.0", *tensors(swarm), peers=node.peer, inside=net.b.inside)
        assert node.stop() == 0
        until_gone(bootstrap.peer, "ffn.0.0", 20, inside=net.a.inside)


def case_loopback_is_not_published_to_other_hosts():
    """B36."""
    with Network() as net, Swarm() as swarm:
        bootstrap = swarm.bootstrap(listen="10.9.0.1:*", inside=net.a.inside)
        node = swarm.node("node", ["ffn.0.0"], [bootstrap.peer], "--dht-listen", "0.0.0.0:*",
                          listen="127.0.0.1:*", inside=net.b.inside)
        node.wait_log("nothing is published")
        # Its neighbour is published as ever, and by then so would it be.
        other = swarm.node("other", ["ffn.1.0"], [bootstrap.peer], listen="0.0.0.0:*",
                           inside=net.b.inside)
        until(lambda: find(bootstrap.peer, "ffn.1.0", inside=net.a.inside)["ffn.1.0"], 30,
              "the neighbour is found")
        assert find(bootstrap.peer, "ffn.0.0", inside=net.a.inside) == {"ffn.0.0": []}
        assert other.alive() and node.alive()


def case_every_way_to_announce():
    """B36: behind a wildcard, in a swarm that is not on loopback. What was said wins over what peers
    see, unless nobody could dial it."""
    with Network() as net, Swarm() as swarm:
        bootstrap = swarm.bootstrap(listen="10.9.0.1:*", inside=net.a.inside)
        net.b.ip("link", "add", "second", "type", "veth", "peer", "name", "third")
        net.b.ip("address", "add", "10.10.0.2/24", "dev", "second")
        net.b.ip("link", "set", "second", "up")
        ways = {None: "10.9.0.2", "10.9.0.2:0": "10.9.0.2", "10.10.0.2:*": "10.10.0.2",
                "node.example:*": "node.example", "127.0.0.1:*": None, "localhost:*": None}
        nodes = []
        for i, announce in enumerate(ways):
            extra = ("--announce", announce) if announce else ()
            nodes.append(swarm.node("n%d" % i, ["n%d.0" % i], [bootstrap.peer], *extra,
                                    listen="0.0.0.0:*", inside=net.b.inside))
        uids = ["n%d.0" % i for i in range(len(ways))]

        def expected():
            found = find(bootstrap.peer, *uids, inside=net.a.inside)
            return [[p["endpoint"] for p in found[uid]] for uid in uids] == [
                ["%s:%d" % (host, node.port)] if host else []
                for host, node in zip(ways.values(), nodes)]
        until(expected, 30, "each is published as it should be")
        for host, node in zip(ways.values(), nodes):
            if host is None:
                node.wait_log("announces loopback in a swarm that is not: nothing is published")
        for announce, text in (("", "empty"), ("0.0.0.0:*", "no address others can dial"),
                               ("[::]:1", "no address others can dial"), ("host", "host")):
            refused(2, ["announce", text], "node", "--announce", announce, inside=net.b.inside)


def case_an_address_that_is_wrong_costs_the_deadline_only():
    with Network() as net, Swarm() as swarm:
        bootstrap = swarm.bootstrap(listen="10.9.0.1:*", inside=net.a.inside)
        node = swarm.node("node", ["ffn.0.0"], [bootstrap.peer], "--announce", "10.9.0.77:4000",
                          listen="0.0.0.0:*", inside=net.b.inside)
        until(lambda: [p["endpoint"] for p in find(bootstrap.peer, "ffn.0.0", inside=net.a.inside)[
            "ffn.0.0"]] == ["10.9.0.77:4000"], 30, "--announce is what is published")
        said = call("ffn.0.0", *tensors(swarm), peers=bootstrap.peer, inside=net.a.inside,
                    code=(1, 4), seconds=4)
        assert "10.9.0.77:4000" in said, said
        assert node.alive()


def case_an_address_that_changes_is_announced_anew():
    """Behind a wildcard: its address is taken away and another one added."""
    with Network() as net, Swarm() as swarm:
        bootstrap = swarm.bootstrap(listen="0.0.0.0:*", inside=net.a.inside)
        node = swarm.node("node", ["ffn.0.0"], [bootstrap.peer], "--update-period", "2",
                          listen="0.0.0.0:*", inside=net.b.inside)
        fixed = swarm.node("fixed", ["ffn.1.0"], [bootstrap.peer], listen="10.9.0.2:*",
                           inside=net.b.inside)

        def endpoints():
            return [p["endpoint"] for p in find(bootstrap.peer, "ffn.0.0", inside=net.a.inside)[
                "ffn.0.0"]]
        until(lambda: endpoints() == ["10.9.0.2:%d" % node.port], 30, "the node is found")
        net.b.ip("address", "delete", "10.9.0.2/24", "dev", "wire")
        net.b.ip("address", "add", "10.9.0.3/24", "dev", "wire")
        # Two periods, and the time that a look takes.
        until(lambda: endpoints() == ["10.9.0.3:%d" % node.port], 4 + 2, "at the new address")
        node.wait_log("announces 10.9.0.3:%d instead of 10.9.0.2:%d: the addresses of this machine "
                      "have changed" % (node.port, node.port), 1)
        call("ffn.0.0", *tensors(swarm), peers=bootstrap.peer, inside=net.a.inside)
        fixed.wait_log("%s, where calls are served, is no longer an address" % fixed.endpoint, 5)
        # Back again: what peers have seen in the past counts once more.
        net.b.ip("address", "delete", "10.9.0.3/24", "dev", "wire")
        net.b.ip("address", "add", "10.9.0.2/24", "dev", "wire")
        until(lambda: endpoints() == ["10.9.0.2:%d" % node.port], 4 + 2, "at the first address")
        fixed.wait_log("%s is an address of this machine again" % fixed.endpoint, 5)


def case_an_outage_heals():
    """B32 b: the wire is cut until the node finds itself alone, and mended."""
    with Network() as net, Swarm() as swarm:
        bootstrap = swarm.bootstrap(listen="10.9.0.1:*", inside=net.a.inside)
        node = swarm.node("node", ["ffn.0.0"], [bootstrap.peer], "--update-period", "2",
                          listen="10.9.0.2:*", inside=net.b.inside)
        until_found(bootstrap.peer, "ffn.0.0", node, inside=net.a.inside)
        net.cut()
        said = call("ffn.0.0", *tensors(swarm), peers=bootstrap.peer, inside=net.a.inside,
                    code=(1, 4), seconds=3)
        assert "ffn.0.0" in said, said
        node.wait_log("DHT: no peer answers any more", 120)
        net.mend()
        node.wait_log("DHT: connected to 1 peer\n", 60)
        until(lambda: node.read_log().count("DHT: connected") == 2, 60, "connected once more")
        until_found(bootstrap.peer, "ffn.0.0", node, 60, inside=net.a.inside)
        call("ffn.0.0", *tensors(swarm), peers=bootstrap.peer, inside=net.a.inside)


need_namespaces()
main(globals())
