"""A tracker with stock servers and clients of TVM's protocol, and what the command line says."""

import json
import signal
import socket

from swarm import PATIENCE, Swarm, free_port, has_ipv6, main, refused, run, until
from tvm import (FAIL, GET_PENDING_MATCHKEYS, PING, PUT, REQUEST, STOP, SUCCESS, SUMMARY, UPDATE_INFO,
                 Raw, Server, Session, connect)


def tracker(swarm, *arguments, name="tracker", host="127.0.0.1", port=0, **more):
    return swarm.start(name, "tracker", "--host", host, "--port", str(port), *arguments, **more)


def queue(raw, key):
    facts = raw.summary()["queue_info"].get(key, {"free": 0, "pending": 0})
    return facts["free"], facts["pending"]


def registered(raw, count):
    return lambda: len(raw.summary()["server_info"]) == count


def case_answers_byte_for_byte():
    """B18: what stock peers parse with less than a JSON parser."""
    with Swarm() as swarm:
        port = tracker(swarm).facts["port"]
        with Raw(port) as server, Raw(port) as client:
            assert server.ask_text([PING]) == "0"
            assert server.ask_text('[5, {"key": "server:k", "addr": [null, "9091"]}]') == "0"
            assert server.ask_text('[3, "k", [9091, "k:0.5"], null]') == "0"
            assert server.ask_text([GET_PENDING_MATCHKEYS]) == '["k:0.5"]'
            assert client.ask_text([GET_PENDING_MATCHKEYS]) == "[]"
            assert client.ask_text([STOP, "tracker:0.1"]) == "-1"
            assert client.ask_text([SUMMARY]) == (
                '[0, {"queue_info": {"k": {"free": 1, "pending": 0}}, "server_info": '
                '[{"key": "server:k", "addr": ["127.0.0.1", 9091]}]}]')
            assert client.ask_text([REQUEST, "k", "", 1]) == '[0, ["127.0.0.1", 9091, "k:0.5"]]'
            assert server.ask_text([GET_PENDING_MATCHKEYS]) == "[]"
            fields = {"key": "server:\u00e9", "addr": ["h", 1], "a": [1.5, 1e16, 1e-7, None, True],
                      "b": {"c": "\u2603\U0001f600\x7f\"\\"}}
            assert server.ask([UPDATE_INFO, fields]) == SUCCESS
            text = client.ask_text([SUMMARY])
            assert text == json.dumps([0, {"queue_info": {"k": {"free": 0, "pending": 0}},
                                           "server_info": [fields]}]), text


def case_summary_of_nothing():
    with Swarm() as swarm, Raw(tracker(swarm).facts["port"]) as raw:
        assert raw.ask_text([SUMMARY]) == '[0, {"queue_info": {}, "server_info": []}]'


def case_a_server_registers_is_used_and_comes_back():
    with Swarm() as swarm:
        port = tracker(swarm).facts["port"]
        with Server(port, "rasp3b") as first, Server(port, "rasp3b", cpp=True) as second:
            session = Session(port)
            until(lambda: queue(session.raw, "rasp3b") == (2, 0), 20, "both servers are free")
            servers = session.summary()["server_info"]
            assert sorted(s["addr"] for s in servers) == sorted(
                ["127.0.0.1", s.port] for s in (first, second)), servers
            assert {s["key"] for s in servers} == {"server:rasp3b"}
            table = session.text_summary()
            assert "rasp3b   2      2     0" in table, table
            used = set()
            for _ in range(6):
                connection = session.connect("rasp3b")
                used.add(connection.getpeername()[1])
                connection.sendall(b"hello")
                assert connection.recv(5) == b"hello"
                connection.close()
            assert used == {first.port, second.port}, "each in turn"
            until(lambda: queue(session.raw, "rasp3b") == (2, 0), 20, "both are free again")
            keys = first.match_keys + second.match_keys
            assert len(keys) == len(set(keys)) == 8, keys
            session.close()


def case_a_client_waits_for_a_server():
    with Swarm() as swarm:
        port = tracker(swarm).facts["port"]
        waiting = Raw(port)
        waiting.send([REQUEST, "k", "", 1])
        with Raw(port) as watcher:
            until(lambda: queue(watcher, "k") == (0, 1), 30, "one waits")
            assert not waiting.has_answer()
            with Server(port, "k") as server:
                code, (address, at, match_key) = waiting.receive()
                assert (code, address, at) == (SUCCESS, "127.0.0.1", server.port)
                connect(address, at, match_key).close()
            until(lambda: queue(watcher, "k") == (0, 0), 30, "the server has gone")
        waiting.close()


def case_priority_and_order():
    with Swarm() as swarm:
        port = tracker(swarm).facts["port"]
        clients = []
        with Raw(port) as server:
            for i, priority in enumerate((1, 5, 5, -2, 2**40, 2**70, 1.5)):
                client = Raw(port)
                client.send([REQUEST, "k", "user", priority])
                clients.append(client)
                until(lambda: queue(server, "k") == (0, i + 1), 30, "%d wait" % (i + 1))
            for i in (5, 4, 1, 2, 6, 0, 3):
                assert server.put("k", "m%d" % i) == SUCCESS
                assert clients[i].receive() == [SUCCESS, ["127.0.0.1", 9090, "m%d" % i]]
                assert not any(c.has_answer() for c in clients)
            for client in clients:
                client.close()


def case_key_handed_out_and_never_used():
    """B02: the client takes the key and never dials; the server notices and offers another."""
    with Swarm() as swarm:
        port = tracker(swarm).facts["port"]
        with Server(port, "k", ping_period=0.2) as server, Raw(port) as client:
            until(lambda: queue(client, "k") == (1, 0), 30, "the server is free")
            _, (_, _, first) = client.ask([REQUEST, "k", "", 1])
            assert first == server.match_keys[0]
            until(lambda: len(server.match_keys) == 2 and queue(client, "k")[0] > 0, 20,
                  "it offers a new key")
            assert queue(client, "k") == (1, 0), "one server, one resource"
            address, at, second = client.ask([REQUEST, "k", "", 1])[1]
            assert second == server.match_keys[1] != first
            try:
                connect(address, at, first)
                raise AssertionError("an old match key was taken")
            except ConnectionRefusedError:
                pass
            connect(address, at, second).close()
            until(lambda: server.served == 1, 30, "it has served")


def case_polling_at_its_own_pace():
    """The real period of two seconds; an unused key stays."""
    with Swarm() as swarm:
        port = tracker(swarm).facts["port"]
        with Server(port, "k") as server, Server(port, "c", cpp=True) as second:
            until(lambda: server.polls >= 2 and second.polls >= 2, 20, "both have polled twice")
            assert len(server.match_keys) == len(second.match_keys) == 1


def case_match_key_put_twice_counts_once():
    with Swarm() as swarm, Raw(tracker(swarm).facts["port"]) as server:
        for _ in range(3):
            assert server.put("k", "same") == SUCCESS
        assert queue(server, "k") == (1, 0)
        assert server.ask([GET_PENDING_MATCHKEYS]) == ["same"]
        assert server.put("k", "same", port=7) == SUCCESS
        assert server.ask([REQUEST, "k", "", 1]) == [SUCCESS, ["127.0.0.1", 7, "same"]]
        assert queue(server, "k") == (0, 0)


def case_keys_of_any_characters():
    """B03, B11."""
    keys = ("192.168.0.143:5555", "a:b:c", "", " ", "Prague", "prague ", "\u00e9\U0001f600", "a\"b\\c",
            "\x01\n", "k" * 4096, "server:x", "0", "__proto__")
    with Swarm() as swarm:
        port = tracker(swarm).facts["port"]
        with Raw(port) as server, Raw(port) as client:
            for i, key in enumerate(keys):
                assert server.put(key, "m:%d" % i) == SUCCESS
            assert client.summary()["queue_info"] == {k: {"free": 1, "pending": 0} for k in keys}
            for i, key in reversed(list(enumerate(keys))):
                assert client.ask([REQUEST, key, "", 1])[1][2] == "m:%d" % i
            client.send([REQUEST, "prague", "", 1])  # no such key: waits
            assert queue(server, "prague") == (0, 1)
            assert not client.has_answer()


def case_server_that_dies():
    """B03: a closed connection takes its resources along, whatever its keys look like and whether
    or not it has said who it is."""
    for key, match_key, info in (("192.168.0.143:5555", "192.168.0.143:5555:0.42", True),
                                 ("k", "k:0.1", False), ("k", "nocolon", True)):
        with Swarm() as swarm:
            port = tracker(swarm).facts["port"]
            with Raw(port) as watcher:
                for end in (Raw.reset, Raw.close):
                    server = Raw(port)
                    if info:
                        assert server.ask([UPDATE_INFO, {"key": "server:" + key,
                                                         "addr": [None, 1]}]) == SUCCESS
                    assert server.put(key, match_key) == SUCCESS
                    assert queue(watcher, key) == (1, 0)
                    end(server)
                    until(lambda: queue(watcher, key) == (0, 0), 30, "it is gone")
                    assert watcher.summary()["server_info"] == []
                with Raw(port) as client:
                    client.send([REQUEST, key, "", 1])
                    until(lambda: queue(watcher, key) == (0, 1), 30, "the request waits")
                    assert not client.has_answer()


def case_clients_that_leave():
    """B04: they are not counted and swallow nothing."""
    with Swarm() as swarm:
        port = tracker(swarm).facts["port"]
        clients = [Raw(port) for _ in range(3)]
        with Raw(port) as server:
            for client in clients:
                client.send([REQUEST, "k", "", 1])
            until(lambda: queue(server, "k") == (0, 3), 30, "three wait")
            clients[0].close()
            clients[1].reset()
            until(lambda: queue(server, "k") == (0, 1), 30, "one waits")
            assert server.put("k", "m") == SUCCESS
            assert clients[2].receive()[1][2] == "m"
            assert queue(server, "k") == (0, 0)
            clients[2].close()
            # The tracker has not looked at the one that left when the resource comes.
            for i in range(30):
                gone, there = Raw(port), Raw(port)
                gone.send([REQUEST, "k", "", 9])
                there.send([REQUEST, "k", "", 1])
                until(lambda: queue(server, "k") == (0, 2), 30, "two wait", pause=0.001)
                gone.close()
                assert server.put("k", "n%d" % i) == SUCCESS
                assert there.receive()[1][2] == "n%d" % i
                there.close()


def case_addresses_as_told():
    """B05: the listing says what REQUEST answers."""
    with Swarm() as swarm:
        port = tracker(swarm).facts["port"]
        for given, expected in (([None, 9091], ["127.0.0.1", 9091]),
                                (["10.1.2.3", 9091], ["10.1.2.3", 9091]),
                                ([None, "9091"], ["127.0.0.1", 9091]), (["", 9091], ["127.0.0.1", 9091])):
            with Raw(port) as server:
                assert server.ask([UPDATE_INFO, {"key": "server:k", "addr": given}]) == SUCCESS
                assert server.ask([PUT, "k", [given[1], "m"], given[0]]) == SUCCESS
                assert server.summary()["server_info"] == [{"key": "server:k", "addr": expected}]
                assert server.ask([REQUEST, "k", "", 1]) == [SUCCESS, expected + ["m"]]
        with Raw(port) as server:  # the third element may be missing
            assert server.ask([PUT, "k", [5, "m"]]) == SUCCESS
            assert server.ask([REQUEST, "k", "", 1]) == [SUCCESS, ["127.0.0.1", 5, "m"]]
            # Later fields are added to earlier ones.
            assert server.ask([UPDATE_INFO, {"key": "server:k", "addr": [None, 5], "a": 1}]) == SUCCESS
            assert server.ask([UPDATE_INFO, {"addr": [None, 6], "b": [2]}]) == SUCCESS
            assert server.summary()["server_info"] == [
                {"key": "server:k", "addr": ["127.0.0.1", 6], "a": 1, "b": [2]}]
            assert server.ask([UPDATE_INFO, {"key": "client:k", "addr": [None, 5]}]) == SUCCESS
            assert server.summary()["server_info"] == []


def case_hosts():
    """B08."""
    hosts = [("127.0.0.1", ("127.0.0.1", "localhost")), ("0.0.0.0", ("127.0.0.1", "localhost"))]
    if has_ipv6():
        named = {a[4][0] for a in socket.getaddrinfo("localhost", None)}
        hosts += [("::", ("127.0.0.1", "::1", "[::1]", "localhost")), ("localhost", ("localhost",)),
                  ("::1", ("::1", "localhost") if "::1" in named else ("::1",)),
                  ("[::1]", ("::1",))]
    for host, reached in hosts:
        with Swarm() as swarm:
            port = str(tracker(swarm, host=host).facts["port"])
            for by in reached:
                out, _ = run("query-tracker", "--host", by, "--port", port, "--json")
                assert json.loads(out) == {"queue_info": {}, "server_info": []}
            if host == "::1":
                refused(1, ["127.0.0.1", "refused"], "query-tracker", "--host", "127.0.0.1", "--port",
                        port)
            if host == "::":  # told so that IPv4 clients can dial it
                with Raw(int(port)) as server:
                    assert server.put("k", "m") == SUCCESS
                    assert server.ask([REQUEST, "k", "", 1])[1][0] == "127.0.0.1"
    refused(1, ["no-such-host.invalid"], "tracker", "--host", "no-such-host.invalid")
    refused(1, ["192.0.2.1", "not an address of this machine"], "tracker", "--host", "192.0.2.1")


def case_ports():
    """B06: the first free port of the range, told everywhere the same."""
    with Swarm() as swarm:
        first = tracker(swarm)
        port = first.facts["port"]
        if port > 65000:
            return "skipped: no room above port %d" % port
        second = tracker(swarm, "--port-end", str(port + 20), name="second", port=port)
        assert port < second.facts["port"] < port + 20
        assert second.facts["endpoint"] == "127.0.0.1:%d" % second.facts["port"]
        second.wait_log("tracker on " + second.facts["endpoint"])
        with Raw(second.facts["port"]) as raw:
            assert raw.ask([PING]) == SUCCESS
        refused(1, ["port %d is in use" % port], "tracker", "--host", "127.0.0.1", "--port",
                str(port), "--port-end", str(port + 1))
        refused(2, ["--port-end"], "tracker", "--port", "9190", "--port-end", "9190")
        refused(2, ["--port", "70000"], "tracker", "--port", "70000")
        refused(2, ["--max-connections"], "tracker", "--max-connections", "0")
    return None


def case_reuse_addr():
    """Connections that linger on a port keep it only from those who do not want it anyway."""
    with Swarm() as swarm:
        port = free_port()
        first = tracker(swarm, port=port)
        with Raw(port) as raw:
            assert raw.ask([STOP, first.facts["stop_key"]]) == SUCCESS
            assert raw.is_closed()
            assert first.wait() == 0
        refused(1, ["port %d is in use" % port], "tracker", "--host", "127.0.0.1", "--port", str(port),
                "--port-end", str(port + 1), "--reuse-addr=false")
        assert tracker(swarm, "--port-end", str(port + 1), name="second",
                       port=port).facts["port"] == port


def case_stop():
    with Swarm() as swarm:
        process = tracker(swarm)
        port, key = process.facts["port"], process.facts["stop_key"]
        assert key.startswith("tracker:") and len(key) > 20
        with Raw(port) as raw, Raw(port) as other:
            for wrong in ("tracker:", key[:-1], key + "x", "", 5, None):
                assert raw.ask([STOP, wrong]) == FAIL
            assert raw.put("k", "m") == SUCCESS, "nothing has changed"
            assert raw.ask([STOP, key]) == SUCCESS
            assert raw.is_closed() and other.is_closed()
        assert process.wait() == 0
        (stopped,) = process.events()
        assert stopped["event"] == "stopped" and stopped["puts"] == 1


def case_signals():
    for number in (signal.SIGTERM, signal.SIGINT):
        with Swarm() as swarm:
            process = tracker(swarm)
            with Raw(process.facts["port"]) as waiting:
                waiting.send([REQUEST, "k", "", 1])
                assert process.stop(number=number) == 0
                assert waiting.is_closed()


def case_silent():
    with Swarm() as swarm:
        process = tracker(swarm, "--silent")
        with Raw(process.facts["port"]) as raw:
            assert raw.ask([PING]) == SUCCESS
        assert process.stop() == 0
        assert process.read_log() == "", process.read_log()


def until_reported(process, wanted):
    """The next report of which this is true."""
    for _ in range(20):
        event = process.next_event()
        assert event["event"] == "stats", event
        if wanted(event):
            return event
    raise AssertionError("never reported; the last one: %s" % event)


def metrics_of(process):
    """What is told of two keys after one request was served and while another waits."""
    with Raw(process.facts["port"]) as server, Raw(process.facts["port"]) as client:
        assert server.ask([UPDATE_INFO, {"key": "server:a:b", "addr": [None, 1]}]) == SUCCESS
        assert server.put("a:b", "m1") == SUCCESS
        assert server.put("a:b", "m2") == SUCCESS
        assert client.ask([REQUEST, "a:b", "", 1])[0] == SUCCESS
        client.send([REQUEST, "c", "", 1])
        return until_reported(process, lambda e: e["pending"] == 1)


def case_metrics():
    for dht in ((), ("--no-dht",)):
        with Swarm() as swarm:
            process = tracker(swarm, "--stats-report-interval", "1", *dht)
            event = metrics_of(process)
            wanted = {"connections": 2, "connections_accepted": 2, "connections_refused": 0, "servers": 1,
                      "keys": 2, "free": 1, "pending": 1, "puts": 2, "requests": 2,
                      "requests_served": 1, "requests_undelivered": 0, "protocol_errors": 0}
            assert {name: event[name] for name in wanted} == wanted, event
            assert sum(event["waits"]) == 1 and len(event["waits"]) == 14, event
            assert event["bytes_in"] > 0 and event["bytes_out"] > 0, event
            for name in ("requests_federated", "records_published", "records_failed"):
                assert (name in event) == (dht == ()), event
            first, second = event["by_key"]
            assert (first["key"], first["servers"], first["free"], first["pending"], first["puts"],
                    first["requests"], first["requests_served"], sum(first["waits"])) == (
                        "a:b", 1, 1, 0, 2, 1, 1, 1), first
            assert (second["key"], second["pending"], second["requests"], sum(second["waits"])) == (
                "c", 1, 1, 0), second
            process.wait_log("1 of servers; 2 keys, 1 free, 1 pending")
            assert process.stop() == 0
            assert process.events()[-1]["requests_withdrawn"] == 1, process.events()


def case_no_line_when_silent():
    with Swarm() as swarm:
        process = tracker(swarm, "--silent", "--stats-report-interval", "1")
        metrics_of(process)  # a report has gone by in which there was something to say
        process.next_event()
        assert process.stop() == 0
        assert process.read_log() == "", process.read_log()


def case_metrics_of_a_nodes_tracker():
    with Swarm() as swarm:
        node = swarm.start("node", "node", "--listen", "127.0.0.1:*", "--tracker-listen", "127.0.0.1:0",
                           "--tracker-key", "bees", "--stats-report-interval", "1")
        event = until_reported(node, lambda e: e["tracker"]["free"] == 1)
        keys = event["tracker"]["by_key"]
        assert [(k["key"], k["servers"], k["free"], k["puts"]) for k in keys] == [("bees", 1, 1, 1)], keys
        assert event["tracker"]["servers"] == 1 and len(event["tracker"]["waits"]) == 14, event
        assert event["tracker"]["bytes_in"] > 0 and "records_failed" in event["tracker"], event
        assert event["handshakes_evicted"] == 0, event


def case_query_tracker():
    with Swarm() as swarm:
        port = tracker(swarm).facts["port"]
        at = ("--host", "127.0.0.1", "--port", str(port))
        with Raw(port) as a, Raw(port) as b, Raw(port) as waiting:
            assert a.ask([UPDATE_INFO, {"key": "server:rasp3b", "addr": [None, 9090]}]) == SUCCESS
            assert a.put("rasp3b", "m") == SUCCESS
            assert b.ask([UPDATE_INFO, {"key": "server:gpu", "addr": ["10.0.0.9", 1]}]) == SUCCESS
            waiting.send([REQUEST, "gpu", "", 1])
            until(lambda: queue(a, "gpu") == (0, 1), 30, "one waits")
            out, _ = run("query-tracker", *at)
            assert out == "Tracker address 127.0.0.1:%d\n\n" % port + Session(port).text_summary(), out
            out, _ = run("query-tracker", *at, "--json")
            assert json.loads(out) == a.summary()
            out, _ = run("query-tracker", *at, "--request", "rasp3b", "--json")
            assert json.loads(out) == {"host": "127.0.0.1", "port": 9090, "match_key": "m"}
            # B11: a name that is spelled otherwise looks like an endless wait.
            said = refused(4, ["Rasp3b", "rasp3b", "gpu"], "query-tracker", *at, "--request", "Rasp3b",
                           "--timeout", "%dms" % (2000 * PATIENCE))
            assert "in time" in said
            until(lambda: queue(a, "Rasp3b") == (0, 0), 30, "its request is withdrawn")


def case_the_table_cannot_drive_a_terminal():
    with Swarm() as swarm:
        port = tracker(swarm).facts["port"]
        with Raw(port) as raw:
            assert raw.ask([UPDATE_INFO, {"key": "server:\x1b[2J\n\u009bx", "addr": [None, 1]}]) == SUCCESS
            assert raw.put("\x1b[2J\n", "m") == SUCCESS
            assert raw.put("\u202etfel", "m\u2066") == SUCCESS
            out, _ = run("query-tracker", "--host", "127.0.0.1", "--port", str(port))
            assert "\x1b" not in out and "\u009b" not in out and "?[2J?" in out, out
            assert "\u202e" not in out and "???tfel" in out, out
            out, _ = run("query-tracker", "--host", "127.0.0.1", "--port", str(port), "--request",
                         "\u202etfel")
            assert out == "127.0.0.1:9090 m???\n", out


def case_no_key_or_info_of_a_stranger_keeps_a_tracker_from_being_read():
    """NUL, which jansson takes in no name, and info as deep as a request may have it."""
    with Swarm() as swarm:
        port = tracker(swarm).facts["port"]
        at = ("query-tracker", "--host", "127.0.0.1", "--port", str(port))
        with Raw(port) as stranger, Raw(port) as server:
            deep = "[" * 30 + "]" * 30
            assert stranger.ask('[5, {"key": "server:a\\u0000b", "addr": [null, 1], "x": %s}]' % deep) == SUCCESS
            assert stranger.put("a\0b", "m\0n") == SUCCESS
            assert stranger.put("\\u0000", "back") == SUCCESS
            assert server.put("good", "m") == SUCCESS
            out, _ = run(*at)
            row = next(line.split() for line in out.splitlines() if line.startswith("a\ufffdb "))
            assert row == ["a\ufffdb", "1", "1", "0"], out
            out, _ = run(*at, "--json")
            assert set(json.loads(out)["queue_info"]) == {"a\ufffdb", "\\u0000", "good"}, out
            said = refused(4, ["good", "in time"], *at, "--request", "nobody", "--timeout",
                           "%dms" % (2000 * PATIENCE))
            assert "a\ufffdb" in said, said
            # Who chose such a key is served as anybody.
            assert stranger.ask([REQUEST, "a\0b", "", 1]) == [SUCCESS, ["127.0.0.1", 9090, "m\0n"]]


def case_a_measurement_stands_beside_its_baseline():
    """How fast is no matter here; the benchmark itself fails if the two do not carry the same."""
    out, _ = run("bench", "tracker", "--num-servers", "100", "--num-clients", "4", "--num-pairs",
                 "1000", "--runs", "2", "--json", seconds=120)
    rows = json.loads(out)
    assert sum(row["case"].startswith("SUMMARY, 100 servers") for row in rows) == 2, rows
    for row in rows:
        assert row["value"] > 0, row
        if not row["case"].startswith("resident memory"):
            assert row["baseline"] > 0 and row["ratio"] > 0 and row["runs"] == 2, row


main(globals())
