"""A DNS server that says nothing holds up neither calls nor the end of a process."""

import json
import subprocess

from namespaces import SilentDns, need_namespaces
from swarm import Swarm, call, main, refused, run, skip, until, until_found, write_npy


NAME = "hangs.test:9000"
LISTEN = "10.9.0.1:*"


def tensors(swarm):
    x = swarm.path("x.npy")
    write_npy(x, (1, 16), range(16))
    return "--input", x, "--output", swarm.path("y.npy")


def there(dns):
    return {"inside": dns.inside, "environment": dns.environment}


def case_a_call_to_a_name_ends_by_its_limit():
    with SilentDns() as dns, Swarm() as swarm:
        refused(4, "the call's time was up while looking up hangs.test", "call", "ffn.0",
                "--endpoint", NAME, "--timeout=1s", *tensors(swarm), **there(dns))


def case_who_finds_nobody_to_ask_ends_by_its_limit():
    with SilentDns() as dns:
        for command in (["find", "ffn.0"], ["find", "ffn."], ["peers"]):
            refused(4, NAME, *command, "--initial-peers", NAME + ",tracker://hangs-too.test:9190",
                    "--timeout=1s", **there(dns))


def case_a_client_says_what_it_waits_for():
    with SilentDns() as dns:
        refused(4, "its name is still being looked up", "find", "ffn.0", "--initial-peers", NAME,
                "--timeout=6s", **there(dns))


def case_a_provider_announced_by_name():
    """A call to it is not its whole limit's wait, and calls to others are as before."""
    with SilentDns() as dns, Swarm() as swarm:
        bootstrap = swarm.bootstrap(listen=LISTEN, **there(dns))
        named = swarm.node("named", ["ffn.0"], [bootstrap.peer], "--announce", NAME, listen=LISTEN,
                           **there(dns))
        plain = swarm.node("plain", ["ffn.1"], [bootstrap.peer], listen=LISTEN, **there(dns))

        def is_found():
            code, out, _ = run("find", "ffn.0", "--initial-peers", bootstrap.peer, "--json",
                               code=None, **there(dns))
            return code == 0 and NAME in [p["endpoint"] for p in json.loads(out)[0]["providers"]]
        until(is_found, 30, "it is found at " + NAME)
        named.kill()  # while it runs it is reached on this machine, whatever its name
        error = call("ffn.0", *tensors(swarm), peers=bootstrap.peer, code=1, **there(dns))
        assert "hangs.test:9000: the name cannot be resolved: no answer in" in error, error
        until_found(bootstrap.peer, "ffn.1", plain, inside=dns.inside)
        call("ffn.1", *tensors(swarm), peers=bootstrap.peer, **there(dns))
        for process in (plain, bootstrap):
            assert process.stop(10) == 0, process.read_log()


def case_a_node_whose_peers_are_names_joins_others_and_stops():
    with SilentDns() as dns, Swarm() as swarm:
        bootstrap = swarm.bootstrap(listen=LISTEN, **there(dns))
        node = swarm.node("node", ["ffn.0"],
                          [NAME, "tracker://hangs-too.test:9190", bootstrap.peer], listen=LISTEN,
                          **there(dns))
        until_found(bootstrap.peer, "ffn.0", node, inside=dns.inside)
        node.wait_log("bootstrap peer %s: its name is still being looked up" % NAME)
        assert node.stop(10) == 0, node.read_log()
        alone = swarm.node("alone", ["ffn.0"], [NAME, "tracker://hangs-too.test:9190"],
                           listen=LISTEN, **there(dns))
        assert alone.stop(10) == 0, alone.read_log()


if __name__ == "__main__":
    need_namespaces()
    try:
        with SilentDns() as silent_dns:
            if not silent_dns.is_silent():
                skip("the resolver does not ask the servers of /etc/resolv.conf")
    except (AssertionError, OSError, subprocess.CalledProcessError) as error:
        skip("no silent DNS server here: %s" % error)
    main(globals())
