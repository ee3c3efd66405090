"""What a tracker does with bytes that no stock peer sends: B09, B10, B15, B17, B18."""

import json
import socket
import struct
import threading

from swarm import PATIENCE, Swarm, free_port, main, refused, run, until
from tvm import (FAIL, GET_PENDING_MATCHKEYS, PING, PUT, REQUEST, SUCCESS, SUMMARY, TRACKER_MAGIC,
                 UPDATE_INFO, Raw, frame)

MAGIC = struct.pack("<i", TRACKER_MAGIC)
# Each ends the connection it comes on, and nothing else.
BAD_MESSAGES = (
    "x", "{}", "[]", "1", "null", '"3"', "[", "[1", "[1]x", "[3]", '[3,"k"]', '[3,"k",[1]]',
    '[3,1,[1,"m"]]', '[3,"k",[1,2]]', '[3,"k",[null,"m"]]', '[3,"k",[1,"m"],7]',
    '[3,"k","m"]', '[4,"k"]', '[4,"k",""]', '[4,"k","","1"]', '[4,"k","",null]', '[4,{},"",1]',
    '[4,"k",[],1]', "[5,{}]", '[5,{"addr":[]}]', '[5,{"addr":[null,null]}]',
    '[5,{"addr":[1,1]}]', '[5,{"addr":"h:1"}]', '[5,{"addr":[null,1],"key":7}]', "[5,[]]", "[2]", "[0]",
    "[-1]", "[8]", "[99]", "[-2147483649]", '["3"]', "[1.5]", "[true]", "[null]", "[[1]]", "[" * 10000,
    "[" * (1 << 20), '{"a":' * 5000, '[4,"k","",nan]', '[4,"k","",+Infinity]', b'[4,"\xff\xfe","",1]',
    b'[4,"\xc0\x80","",1]', b"\xff\xfe[1]", b"\x00", '[4,"\\ud800","",1]',
    json.dumps([REQUEST, "k" * 1000000, "", 1]), json.dumps([PUT, "k", [1, "m" * 5000]]),
)


def tracker(swarm, *arguments):
    # --no-dht: what is tried here is the tracker's port alone.
    return swarm.start("tracker", "tracker", "--host", "127.0.0.1", "--port", "0", "--no-dht", *arguments)


class Bystander:
    """A server and a waiting client that must not notice anything."""

    def __init__(self, port):
        self.server, self.client = Raw(port), Raw(port)
        assert self.server.ask([UPDATE_INFO, {"key": "server:by", "addr": [None, 7]}]) == SUCCESS
        assert self.server.put("by", "m") == SUCCESS
        self.client.send([REQUEST, "stander", "", 1])
        until(lambda: self.server.summary()["queue_info"] == self.queues(), 30, "it waits")

    @staticmethod
    def queues():
        return {"by": {"free": 1, "pending": 0}, "stander": {"free": 0, "pending": 1}}

    def check(self):
        summary = self.server.summary()
        assert summary == {"queue_info": self.queues(), "server_info": [
            {"key": "server:by", "addr": ["127.0.0.1", 7]}]}, summary
        assert not self.client.has_answer()

    def close(self):
        assert self.server.put("stander", "n") == SUCCESS
        assert self.client.receive()[1][2] == "n"
        self.server.close()
        self.client.close()


def case_bad_messages_end_their_connection_only():
    """B15."""
    with Swarm() as swarm:
        process = tracker(swarm)
        port = process.facts["port"]
        bystander = Bystander(port)
        for message in BAD_MESSAGES:
            with Raw(port) as bad:
                bad.send([PING])
                assert bad.receive() == SUCCESS
                try:
                    bad.send(message)
                except ConnectionError:
                    pass
                assert bad.is_closed(), "still open after %r" % (message[:60],)
            bystander.check()
        bystander.close()
        assert process.stop() == 0
        lines = [l for l in process.read_log().splitlines() if "WARN" in l]
        assert 1 <= len(lines) <= 5, "one line every ten seconds:\n" + "\n".join(lines)
        (stopped,) = process.events()
        assert stopped["protocol_errors"] == len(BAD_MESSAGES), stopped


def case_lengths():
    with Swarm() as swarm:
        port = tracker(swarm).facts["port"]
        bystander = Bystander(port)
        for length in (0, -1, -2**31, 2**20 + 1, 0x7fffffff):
            for rest in (b"", b"[1]"):
                with Raw(port) as bad:
                    bad.sock.sendall(struct.pack("<i", length) + rest)
                    assert bad.is_closed(), length
        with Raw(port) as good:
            assert good.ask("[1]" + " " * (2**20 - 3)) == SUCCESS  # the limit itself
            bystander.check()
            key = "k" * 4096
            assert good.put(key, key) == SUCCESS
            assert good.ask([REQUEST, key, "", 1])[1][2] == key
        bystander.close()


def case_keys_are_bounded_by_connection_and_address():
    """What strangers register must not push SUMMARY beyond what clients take."""
    control = "\x01" * 4080  # each takes six bytes in JSON
    with Swarm() as swarm:
        port = tracker(swarm).facts["port"]
        bystander = Bystander(port)
        counts, raws = [], []
        for connection in range(6):
            raw = Raw(port)
            raws.append(raw)
            for n in range(1000):
                if raw.put("%s%d.%d" % (control, connection, n), "m%d" % n) != SUCCESS:
                    break
            counts.append(n)
            code, why = raw.ask([REQUEST, control + "?", "", 1])
            assert code == FAIL and "keys of" in why, why
        one = (4 << 20) // (6 * 4080 + 2 + 80 + 3)
        assert counts[0] in range(one - 1, one + 2), counts
        assert counts[:3] == [counts[0]] * 3 and sum(counts) in range(4 * one - 4, 4 * one + 5), counts
        summary = bystander.server.ask_text([SUMMARY])
        assert len(summary) < (17 << 20), len(summary)
        # Another address is not concerned, nor those who were there before.
        with Raw(port, source="127.0.0.2") as other:
            assert other.put("other", "m") == SUCCESS
            assert other.ask([REQUEST, "other", "", 1])[1][2] == "m"
        for raw in raws:
            raw.close()
        until(lambda: len(bystander.server.ask_text([SUMMARY])) < (8 << 20), 30, "keys are forgotten")
        with Raw(port) as again:
            assert again.put(control, "m") == SUCCESS
        out, _ = run("query-tracker", "--host", "127.0.0.1", "--port", str(port), "--json")
        assert len(json.loads(out)["server_info"]) == 1
        bystander.close()


def case_info_is_bounded_by_address():
    info = {"key": "server:k", "addr": [None, 7], "x": "y" * 16000}
    with Swarm() as swarm:
        port = tracker(swarm, "--max-connections", "4000").facts["port"]
        raws = []
        for _ in range(2200):
            raws.append(Raw(port))
            if raws[-1].ask([UPDATE_INFO, info]) != SUCCESS:
                break
        limit = (32 << 20) // len(json.dumps(dict(info, addr=["127.0.0.1", 7])))
        assert len(raws) == limit + 1, (len(raws), limit)
        raws.pop(0).close()
        until(lambda: raws[-1].ask([UPDATE_INFO, info]) == SUCCESS, 30, "there is room again")
        with Raw(port, source="127.0.0.2") as other:
            assert other.ask([UPDATE_INFO, info]) == SUCCESS
        for raw in raws:
            raw.close()


def case_priorities_and_numbers_are_those_of_python():
    with Swarm() as swarm:
        port = tracker(swarm).facts["port"]
        clients = []
        for priority in (-float("inf"), False, 0.5, True, 2**70, float("inf")):
            clients.append(Raw(port))
            clients[-1].send([REQUEST, "k", "", priority])
            until(lambda: clients[0].sock and Raw(port).summary()["queue_info"]["k"]["pending"] ==
                  len(clients), 30, "it waits")
        with Raw(port) as server:
            for client in reversed(clients):
                assert server.put("k", "m") == SUCCESS
                assert client.receive()[1][2] == "m"
                client.close()
            # Numbers come back digit for digit; more elements are ignored.
            numbers = "[1.50, 1E5, -0, 12345678901234567890123, 1e999, Infinity, -Infinity, NaN]"
            assert server.ask_text('[5, {"key": "server:k", "addr": [null, 7, "more"], "n": %s}, 1]'
                                   % numbers) == "0"
            assert server.ask_text('[5, {"addr": ["h", 8, []], "m": 2.50}]') == "0"
            assert server.ask_text([PUT, "k", [7, "m", "more"], None, "more"]) == "0"
            text = server.ask_text([SUMMARY])
            assert text == ('[0, {"queue_info": {"k": {"free": 1, "pending": 0}}, "server_info": '
                            '[{"key": "server:k", "addr": ["h", 8], "n": %s, "m": 2.50}]}]' % numbers)
            out, _ = run("query-tracker", "--host", "127.0.0.1", "--port", str(port), "--json")
            (info,) = json.loads(out)["server_info"]
            assert info["n"] == [1.5, 1e5, 0, 12345678901234567890123.0, None, None, None, None], info


def case_keys_that_were_only_asked_for_are_no_suggestion():
    with Swarm() as swarm:
        port = tracker(swarm).facts["port"]
        with Raw(port) as server, Raw(port) as client, Raw(port) as busy:
            client.send([REQUEST, "typo", "", 1])
            ask = ("query-tracker", "--host", "127.0.0.1", "--port", str(port), "--request", "wrong",
                   "--timeout", "400ms")
            said = refused(4, "no server there offers another key", *ask)
            assert "typo" not in said, said
            assert server.put("right", "m") == SUCCESS
            assert busy.ask([UPDATE_INFO, {"key": "server:busy", "addr": [None, 7]}]) == SUCCESS
            assert busy.put("busy", "m") == SUCCESS and client.ask([REQUEST, "busy", "", 1])[0] == 0
            said = refused(4, 'other keys there: ', *ask)
            assert '"right"' in said and '"busy"' in said and "typo" not in said, said


def case_messages_and_packets():
    """One over many packets, many in one."""
    with Swarm() as swarm:
        port = tracker(swarm).facts["port"]
        stream = MAGIC + frame([PING]) + frame([PUT, "k", [1, "m"], None]) + frame(
            [GET_PENDING_MATCHKEYS]) + frame([REQUEST, "k", "", 1]) + frame([PING])
        answers = MAGIC + b"".join(frame(a) for a in (
            "0", "0", '["m"]', '[0, ["127.0.0.1", 1, "m"]]', "0"))
        for step in (1, 2, 3, 5, 7, 100, len(stream)):
            with Raw(port, greet=False) as raw:
                for at in range(0, len(stream), step):
                    raw.sock.sendall(stream[at:at + step])
                got = b""
                while len(got) < len(answers):
                    got += raw.sock.recv(4096)
                assert got == answers, got


def case_ports_out_of_range_are_refused():
    """B17: refused by name, nothing wraps round, the connection goes on."""
    with Swarm() as swarm:
        port = tracker(swarm).facts["port"]
        with Raw(port) as raw:
            for wrong in (0, -1, 65536, 2**32 + 80, 2**33, 2**64 + 80, -2**63, 80.5, 80.0, "0", "65536",
                          "99999999999999999999", ""):
                assert raw.ask([PUT, "k", [wrong, "m"], None]) == FAIL, wrong
                assert raw.ask([UPDATE_INFO, {"key": "server:k", "addr": [None, wrong]}]) == FAIL, wrong
            assert raw.ask([GET_PENDING_MATCHKEYS]) == []
            assert raw.summary() == {"queue_info": {}, "server_info": []}
            for right in (1, 65535, "65535"):
                assert raw.ask([PUT, "k", [right, "m"], None]) == SUCCESS
                assert raw.ask([REQUEST, "k", "", 2**40])[1] == ["127.0.0.1", int(right), "m"]


def case_what_is_no_client():
    """B10: closed, written nothing to, logged once."""
    with Swarm() as swarm:
        process = tracker(swarm)
        port = process.facts["port"]
        bystander = Bystander(port)
        for hello in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", struct.pack("<i", 0xFF271), b"\0\0\0\0",
                      b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)):
            with Raw(port, greet=False) as raw:
                raw.sock.sendall(hello)
                assert raw.is_closed(), hello
        with Raw(port, greet=False) as raw:
            raw.sock.sendall(MAGIC[:3])
            raw.sock.shutdown(socket.SHUT_WR)
            assert raw.is_closed()
        bystander.check()
        bystander.close()
        assert process.read_log().count("magic number") == 1, process.read_log()


def case_a_tensor_client_at_a_trackers_port():
    """B10, the other way round too."""
    with Swarm() as swarm:
        process = tracker(swarm)
        where = "127.0.0.1:%d" % process.facts["port"]
        refused(1, where, "call", "ffn.0", "--endpoint", where, "--timeout", "%dms" % (5000 * PATIENCE))
        node = swarm.node("node", ["ffn.0.0"], [])
        refused(1, ["127.0.0.1:%d" % node.port, "this is not a tracker"], "query-tracker", "--host",
                "127.0.0.1", "--port", str(node.port), "--timeout", "%dms" % (5000 * PATIENCE))
        run("call", "ffn.0.0", "--endpoint", node.endpoint)
        with Raw(process.facts["port"]) as raw:
            assert raw.ask([PING]) == SUCCESS


def case_query_of_what_is_no_tracker():
    """B09: ends in time, says which address and why."""
    closed = free_port()
    refused(1, ["127.0.0.1:%d" % closed, "refused"], "query-tracker", "--host", "127.0.0.1", "--port",
            str(closed))
    refused(1, ["no-such-host.invalid"], "query-tracker", "--host", "no-such-host.invalid")
    refused(2, ["--port"], "query-tracker", "--port", "0")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = str(silent.getsockname()[1])
        # With the default limit, which is five seconds.
        said = refused(4, ["127.0.0.1:" + port, "silent"], "query-tracker", "--host", "127.0.0.1",
                       "--port", port)
        assert len(said.strip().splitlines()) == 1, said
        refused(4, ["127.0.0.1:" + port], "query-tracker", "--host", "127.0.0.1", "--port", port,
                "--timeout", "200ms", "--request", "k")
    for answer in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", MAGIC[:2], struct.pack("<i", 0xFF271)):
        refused(1, ["this is not a tracker"], *query_impostor(answer))
    for answer in (MAGIC + frame("x"), MAGIC + struct.pack("<i", -1), MAGIC, MAGIC + frame("[0, {}]"),
                   MAGIC + frame("[0, [1]]"), MAGIC + frame("5"), MAGIC + frame('[-1, "why"]'),
                   MAGIC + frame("[" * 5000)):
        refused(1, ["skep query-tracker: "], *query_impostor(answer))


def query_impostor(answer):
    """The command that asks a server which answers this and closes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer_once():
        connection, _ = listener.accept()
        with connection, listener:
            connection.sendall(answer)
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(20 * PATIENCE)
            while connection.recv(4096):
                pass
    threading.Thread(target=answer_once, daemon=True).start()
    return ("query-tracker", "--host", "127.0.0.1", "--port", str(listener.getsockname()[1]),
            "--timeout", "%dms" % (4000 * PATIENCE))


def case_a_black_hole():
    """An address that answers nothing at all: a listener whose queue is full."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    fillers = []
    for _ in range(4):
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(listener.getsockname())
        fillers.append(filler)
    port = str(listener.getsockname()[1])
    refused(4, ["127.0.0.1:" + port], "query-tracker", "--host", "127.0.0.1", "--port", port, "--timeout",
            "500ms")
    for filler in fillers:
        filler.close()
    listener.close()


main(globals())
