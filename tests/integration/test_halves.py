"""Swarms that were started apart, or at one instant, and must become one."""

import socket

from swarm import Deadline, Swarm, find, free_port, main, until, until_found


def udp_peer():
    return "127.0.0.1:%d" % free_port(socket.SOCK_DGRAM)


def until_one_swarm(nodes, seconds=60):
    """Waits until each peer answers for everybody's expert, all of it so long from now at most;
    nodes: uid -> node."""
    left = Deadline(seconds)
    for node in nodes.values():
        def sees_all():
            found = find(node.peer, *nodes)
            return all(found.values())
        until(sees_all, left, "%s sees all of %s" % (node.name, ", ".join(nodes)), pause=0.5)


def case_a_node_that_knows_both_halves_joins_them():
    with Swarm() as swarm:
        left, right = swarm.bootstrap("left"), swarm.bootstrap("right")
        nodes = {"ffn.0.0": swarm.node("l", ["ffn.0.0"], [left.peer]),
                 "ffn.1.0": swarm.node("r", ["ffn.1.0"], [right.peer])}
        until_found(left.peer, "ffn.0.0", nodes["ffn.0.0"])
        until_found(right.peer, "ffn.1.0", nodes["ffn.1.0"])
        assert find(left.peer, "ffn.1.0") == {"ffn.1.0": []}, "the halves are not apart"
        nodes["ffn.2.0"] = swarm.node("bridge", ["ffn.2.0"], [left.peer, right.peer])
        until_one_swarm(nodes)


def case_halves_whose_configured_peers_come_later_heal():
    """Each node has its own bootstrap peer, which answers, and one of the other half, which does
    not exist yet: it is contacted again every minute."""
    with Swarm() as swarm:
        left_peer, right_peer = udp_peer(), udp_peer()
        left = swarm.bootstrap("left", listen=left_peer)
        nodes = {"ffn.0.0": swarm.node("l", ["ffn.0.0"], [left.peer, right_peer])}
        until_found(left.peer, "ffn.0.0", nodes["ffn.0.0"])
        nodes["ffn.0.0"].wait_log("bootstrap peer %s: does not answer" % right_peer)
        right = swarm.bootstrap("right", listen=right_peer)
        nodes["ffn.1.0"] = swarm.node("r", ["ffn.1.0"], [right.peer])
        until_found(right.peer, "ffn.1.0", nodes["ffn.1.0"])
        # Neither half is alone, so each looks once a minute, and takes some seconds more to hear.
        until_one_swarm(nodes, 90)
        nodes["ffn.0.0"].wait_log("bootstrap peer %s: answers now" % right_peer)


def case_nodes_started_before_their_bootstrap_peer_join():
    with Swarm() as swarm:
        peer = udp_peer()
        nodes = {}
        for i in range(4):
            uid = "ffn.%d.0" % i
            nodes[uid] = swarm.node("n%d" % i, [uid], [peer], "--update-period", "5", ready=False)
        for node in nodes.values():
            node.wait_ready()  # without a single peer, each serves
        for node in nodes.values():
            node.wait_log("bootstrap peer %s: does not answer" % peer)
        swarm.bootstrap(listen=peer)
        until_one_swarm(nodes)


def case_nodes_heal_when_their_bootstrap_peer_was_away():
    with Swarm() as swarm:
        peer = udp_peer()
        first = swarm.bootstrap("first", listen=peer)
        nodes = {"ffn.0.0": swarm.node("a", ["ffn.0.0"], [peer], "--update-period", "5")}
        until_found(peer, "ffn.0.0", nodes["ffn.0.0"])
        first.kill()
        # Newcomers that know the absent peer only, and must wait for it.
        for i in (1, 2):
            uid = "ffn.%d.0" % i
            nodes[uid] = swarm.node("b%d" % i, [uid], [peer], "--update-period", "5")
        nodes["ffn.2.0"].wait_log("bootstrap peer %s: does not answer" % peer)
        swarm.bootstrap("second", listen=peer)
        until_one_swarm(nodes)


main(globals())
