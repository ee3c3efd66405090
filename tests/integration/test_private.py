"""Who may not take part: strangers to a private swarm, other swarms, plaintext, impostors."""

from swarm import (SWARM, Swarm, call, find, kill_named, main, refused, run, timeout_option,
                   until_found, write_npy)


def tensors(swarm):
    x = swarm.path("x.npy")
    write_npy(x, (1, 16), range(16))
    return "--input", x, "--output", swarm.path("y.npy")


def private_swarm(swarm):
    """A bootstrap peer and a node of a private swarm; the files of its key and of another one."""
    key, other = swarm.path("swarm.key"), swarm.path("other.key")
    run("keygen", "--swarm-key", key)
    run("keygen", "--swarm-key", other)
    bootstrap = swarm.bootstrap("bootstrap", "--swarm-key", key)
    node = swarm.node("member", ["ffn.0.0"], [bootstrap.peer], "--swarm-key", key)
    return bootstrap, node, key, other


def case_members_find_and_call():
    with Swarm() as swarm:
        bootstrap, node, key, _ = private_swarm(swarm)
        member = ("--swarm-key", key)
        until_found(bootstrap.peer, "ffn.0.0", node, extra=member)
        answer = call("ffn.0.0", *tensors(swarm), *member, peers=bootstrap.peer)
        assert answer["peer_id"] == node.facts["peer_id"], answer
        for process in (bootstrap, node):
            process.wait_log("--initial-peers %s --swarm %s --swarm-key FILE (the same key)" %
                             (process.peer, SWARM))
        second = swarm.node("second", ["ffn.0.1"], [node.peer], *member)
        until_found(bootstrap.peer, "ffn.0.1", second, extra=member)


def case_strangers_cannot_find():
    with Swarm() as swarm:
        bootstrap, node, key, other = private_swarm(swarm)
        until_found(bootstrap.peer, "ffn.0.0", node, extra=("--swarm-key", key))
        for stranger in ((), ("--swarm-key", other)):
            # Not even the network answers them, or its records are unreadable.
            code, out, err = run("find", "ffn.0.0", "--initial-peers",
                                 bootstrap.peer + "," + node.peer, timeout_option(3), *stranger,
                                 code=None)
            assert code in (3, 4), (code, out, err)
            assert node.endpoint not in out, out


def case_strangers_cannot_call():
    with Swarm() as swarm:
        bootstrap, node, key, other = private_swarm(swarm)
        public = swarm.node("public", ["ffn.0.0"], [])
        said = call("ffn.0.0", *tensors(swarm), node=node, code=1)
        assert "the initiator has no swarm key, the responder's swarm is private" in said, said
        said = call("ffn.0.0", *tensors(swarm), "--swarm-key", other, node=node, code=1)
        assert "swarm keys differ" in said, said
        said = call("ffn.0.0", *tensors(swarm), "--swarm-key", key, node=public, code=1)
        assert "the initiator has a swarm key, the responder's swarm is public" in said, said
        call("ffn.0.0", *tensors(swarm), "--swarm-key", key, node=node)


def case_strangers_cannot_publish():
    with Swarm() as swarm:
        bootstrap, node, key, other = private_swarm(swarm)
        member = ("--swarm-key", key)
        until_found(bootstrap.peer, "ffn.0.0", node, extra=member)
        strangers = [swarm.node("none", ["ffn.0.0", "ffn.5.0"], [bootstrap.peer, node.peer]),
                     swarm.node("wrong", ["ffn.0.0", "ffn.5.0"], [bootstrap.peer, node.peer],
                                "--swarm-key", other)]
        for stranger in strangers:
            until_found(stranger.peer, "ffn.5.0", stranger,
                        extra=("--swarm-key", other) if stranger.name == "wrong" else ())
        found = find([bootstrap.peer, node.peer], "ffn.0.0", "ffn.5.0", extra=member)
        assert found["ffn.5.0"] == [], "a stranger published in the private swarm"
        assert [p["peer_id"] for p in found["ffn.0.0"]] == [node.facts["peer_id"]], found


def case_swarms_of_other_names_do_not_meet():
    with Swarm() as swarm:
        red, blue = swarm.bootstrap("red"), swarm.bootstrap("blue", "--swarm", "blue")
        node = swarm.node("node", ["ffn.0.0"], [red.peer, blue.peer], "--swarm", "blue")
        until_found(blue.peer, "ffn.0.0", node, extra=("--swarm", "blue"))
        assert find([red.peer], "ffn.0.0") == {"ffn.0.0": []}
        node.wait_log("bootstrap peer %s: does not answer" % red.peer)
        refused(4, "swarm %s: no DHT peer answered" % SWARM, "find", "ffn.0.0", "--initial-peers",
                blue.peer, timeout_option(2))
        said = call("ffn.0.0", *tensors(swarm), node=node, code=1)
        assert 'the initiator is in "%s", the responder in "blue"' % SWARM in said, said


def case_plaintext_and_encrypted_do_not_mix():
    with Swarm() as swarm:
        plain = swarm.node("plain", ["ffn.0.0"], [], "--insecure-plaintext")
        sealed = swarm.node("sealed", ["ffn.0.0"], [])
        plain.wait_log("plaintext")
        said = call("ffn.0.0", *tensors(swarm), node=plain, code=1)
        assert "responder takes plaintext only" in said, said
        said = call("ffn.0.0", *tensors(swarm), "--insecure-plaintext", node=sealed, code=1)
        assert "responder takes encrypted only" in said, said
        call("ffn.0.0", *tensors(swarm), "--insecure-plaintext", node=plain)
        call("ffn.0.0", *tensors(swarm), node=sealed)


def case_an_impostor_is_refused():
    with Swarm() as swarm:
        node, other = swarm.node("node", ["ffn.0.0"], []), swarm.node("other", ["ffn.0.0"], [])
        wanted, seen = other.facts["peer_id"], node.facts["peer_id"]
        said = call("ffn.0.0", *tensors(swarm), "--peer-id", wanted, node=node, code=1)
        assert "the peer is %s, expected %s" % (seen, wanted) in said, said
        answer = call("ffn.0.0", *tensors(swarm), "--peer-id", seen, node=node)
        assert answer["peer_id"] == seen, answer


def case_an_impostor_at_a_published_endpoint_is_refused():
    """The node is gone, another process has its port, and the record still leads there."""
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap()
        node = swarm.node("node", ["ffn.0.0"], [bootstrap.peer])
        until_found(bootstrap.peer, "ffn.0.0", node)
        kill_named(node, bootstrap.peer, "ffn.0.0")
        impostor = swarm.node("impostor", ["ffn.0.0"], [], listen=node.endpoint)
        said = call("ffn.0.0", *tensors(swarm), peers=bootstrap.peer, code=1)
        assert "the peer is %s, expected %s" % (impostor.facts["peer_id"],
                                                node.facts["peer_id"]) in said, said


def case_key_files_of_members_are_checked():
    with Swarm() as swarm:
        absent = swarm.path("absent.key")
        for command in (("node", "--listen", "127.0.0.1:*"), ("dht", "--listen", "127.0.0.1:*"),
                        ("find", "ffn.0.0", "--initial-peers", "127.0.0.1:9")):
            refused(1, absent, *command, "--swarm-key", absent)


main(globals())
