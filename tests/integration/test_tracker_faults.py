"""Floods, slow readers, crashes and restarts of a tracker."""

import os
import resource
import socket
import struct
import threading
import time

from swarm import PATIENCE, Swarm, main, until
from tvm import (GET_PENDING_MATCHKEYS, PING, PUT, REQUEST, SUCCESS, SUMMARY, TRACKER_MAGIC, UPDATE_INFO,
                 Raw, Server, Session, frame)

MAGIC = struct.pack("<i", TRACKER_MAGIC)


# Sanitizers keep freed memory for a while; here it is measured, so they keep little.
LEAN = {"ASAN_OPTIONS": ":".join((os.environ.get("ASAN_OPTIONS", ""), "quarantine_size_mb=1",
                                 "thread_local_quarantine_size_kb=64"))}


def tracker(swarm, *arguments, port=0, name="tracker"):
    return swarm.start(name, "tracker", "--host", "127.0.0.1", "--port", str(port), *arguments,
                       environment=LEAN)


def resident_kib(process):
    with open("/proc/%d/status" % process.popen.pid) as file:
        for line in file:
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
    return 0


def queue(raw, key):
    facts = raw.summary()["queue_info"].get(key, {"free": 0, "pending": 0})
    return facts["free"], facts["pending"]


def is_free(raw, key, count=1):
    return lambda: queue(raw, key)[0] == count


def case_port_flood():
    """The newest are refused with a line in the log; the others go on."""
    with Swarm() as swarm:
        process = tracker(swarm, "--max-connections", "50")
        port = process.facts["port"]
        old = [Raw(port) for _ in range(50)]
        flood = []
        for _ in range(500):
            new = socket.create_connection(("127.0.0.1", port), timeout=20 * PATIENCE)
            flood.append(new)
        for new in flood:
            try:
                assert new.recv(1) == b""
            except ConnectionError:
                pass
            new.close()
        for raw in old:
            assert raw.ask([PING]) == SUCCESS
        process.wait_log("all 50 connections are taken")
        old.pop().close()
        until(lambda: try_ping(port), 30, "there is room again")
        for raw in old:
            raw.close()
        assert process.stop() == 0
        assert process.events()[0]["connections_refused"] >= 500


def try_ping(port):
    try:
        with Raw(port) as raw:
            return raw.ask([PING]) == SUCCESS
    except OSError:
        return False


def case_half_open_connections():
    """Those that begin and do not go on are closed in time; idle ones are not."""
    with Swarm() as swarm:
        process = tracker(swarm, "--timeout", "1")
        port = process.facts["port"]
        with Raw(port) as server, Raw(port) as idle, Raw(port) as waiting:
            assert server.put("k", "m") == SUCCESS
            waiting.send([REQUEST, "other", "", 1])
            silent = [Raw(port, greet=False) for _ in range(20)]
            for i, begun in enumerate((MAGIC[:1], MAGIC[:3], MAGIC + b"\5", MAGIC + b"\5\0\0\0[1")):
                silent[i].sock.sendall(begun)
            for raw in silent:
                try:
                    while raw.sock.recv(16):
                        pass
                except ConnectionError:
                    pass
                raw.close()
            assert idle.ask([REQUEST, "k", "", 1])[1][2] == "m"
            assert server.put("other", "n") == SUCCESS
            assert waiting.receive()[1][2] == "n"
        assert process.stop() == 0
        assert process.events()[0]["timeouts"] == 20


def case_a_byte_at_a_time():
    """A message has so long as a whole, however busily its bytes drip in."""
    with Swarm() as swarm:
        port = tracker(swarm, "--timeout", "1").facts["port"]
        with Raw(port) as slow, Raw(port) as other:
            message = frame("[1]" + " " * 1000)
            end = time.monotonic() + 20 * PATIENCE
            closed = False
            for at in range(len(message)):
                try:
                    slow.sock.sendall(message[at:at + 1])
                except ConnectionError:
                    closed = True
                    break
                assert time.monotonic() < end
                time.sleep(0.02)  # the drip itself
            assert closed or slow.is_closed()
            assert other.ask([PING]) == SUCCESS


def case_slow_readers():
    """Megabytes of answers that nobody reads: bounded, then closed."""
    with Swarm() as swarm:
        process = tracker(swarm, "--timeout", "2")
        port = process.facts["port"]
        with Raw(port) as server, Raw(port) as other:
            assert server.ask([UPDATE_INFO, {"key": "server:k", "addr": [None, 1],
                                             "filler": "x" * 12000}]) == SUCCESS
            before = resident_kib(process)
            slow = []
            for _ in range(20):
                raw = Raw(port)
                raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                raw.sock.setblocking(False)
                sent = 0
                try:
                    while sent < 20000:  # a gigabyte of answers, if it were not bounded
                        raw.sock.sendall(frame([SUMMARY]) * 100)
                        sent += 100
                except BlockingIOError:
                    pass
                slow.append(raw)
            until(lambda: other.ask([PING]) == SUCCESS, 30, "others are served")
            peak = resident_kib(process)
            assert peak - before < 40 * 1024 * PATIENCE, "%d KiB more" % (peak - before)
            for raw in slow:
                assert raw_is_gone(raw)
            assert other.ask([PING]) == SUCCESS
            assert server.ask([PING]) == SUCCESS
        assert process.stop() == 0
        assert process.events()[0]["timeouts"] >= 20


def raw_is_gone(raw):
    """Without reading: its writes fail in the end."""
    def fails():
        try:
            raw.sock.send(frame([PING]))
        except BlockingIOError:
            return False
        except OSError:
            return True
        return False
    until(fails, 20, "it is closed")
    raw.close()
    return True


def case_memory_stays():
    """10,000 rounds of all kinds, good and bad: no growth."""
    with Swarm() as swarm:
        process = tracker(swarm)
        port = process.facts["port"]

        def rounds(count, first):
            for i in range(first, first + count):
                with Raw(port) as raw:
                    raw.send([UPDATE_INFO, {"key": "server:k%d" % i, "addr": [None, 1], "x": "y" * 200}])
                    raw.send([PUT, "k%d" % i, [1, "m%d" % i], None])
                    raw.send([REQUEST, "other%d" % i, "", i])
                    raw.send([GET_PENDING_MATCHKEYS])
                    assert raw.receive() == SUCCESS
                    assert raw.receive() == SUCCESS
                    assert raw.receive() == ["m%d" % i]
                    bad = ("[3]", "x", '[4,"k"]', "[" * 100)[i % 4]
                    raw.send(bad)
        rounds(2000, 0)
        with Raw(port) as raw:
            until(lambda: len(raw.summary()["queue_info"]) <= 1100, 20, "old keys are forgotten")
            before = resident_kib(process)
            rounds(8000, 2000)
            until(lambda: len(raw.summary()["queue_info"]) <= 1100, 20, "old keys are forgotten")
            after = resident_kib(process)
            assert after - before < 8 * 1024 * PATIENCE, "%d KiB more" % (after - before)
            assert raw.summary()["server_info"] == []


def case_a_server_dies_after_being_handed_out():
    """Between being handed out and being used: the client sees it, asks again, gets another."""
    with Swarm() as swarm:
        port = tracker(swarm).facts["port"]
        session = Session(port)
        first = Server(port, "k")
        first.start()
        until(is_free(session.raw, "k"), 30, "the first is free")
        address, at, _ = session.request("k")
        assert at == first.port
        first.stop()
        try:
            socket.create_connection((address, at), timeout=5).close()
            raise AssertionError("it is still there")
        except ConnectionRefusedError:
            pass
        with Server(port, "k") as second:
            connection = session.connect("k")
            assert connection.getpeername()[1] == second.port
            connection.close()
        session.close()


def case_kill_and_restart():
    """kill -9 while clients wait: they see the close; after a restart on the same port everything
    registers again."""
    with Swarm() as swarm:
        first = tracker(swarm)
        port = first.facts["port"]
        servers = [Server(port, "k", ping_period=0.2, cpp=i % 2 == 1) for i in range(4)]
        for server in servers:
            server.start()
        try:
            with Raw(port) as raw:
                until(is_free(raw, "k", 4), 20, "all are free")
                waiting = [Raw(port) for _ in range(5)]
                for client in waiting:
                    client.send([REQUEST, "none", "", 1])
                until(lambda: queue(raw, "none") == (0, 5), 30, "five wait")
                first.kill()
                for client in waiting:
                    assert client.is_closed()
                    client.close()
            second = tracker(swarm, "--port-end", str(port + 1), port=port, name="second")
            assert second.facts["port"] == port
            with Raw(port) as raw:
                until(is_free(raw, "k", 4), 30, "all have registered again")
                assert len(raw.summary()["server_info"]) == 4
            assert {server.registrations for server in servers} == {2}
            session = Session(port)
            connection = session.connect("k")
            connection.close()
            session.close()
            assert second.stop() == 0
        finally:
            for server in servers:
                server.stop()


def case_stopping_under_load():
    """SIGTERM drains: answers that were given arrive, and it ends with 0."""
    with Swarm() as swarm:
        process = tracker(swarm)
        port = process.facts["port"]
        ended = []

        def load():
            raw = Raw(port)
            count = 0
            try:
                while True:
                    assert raw.ask([PING]) == SUCCESS
                    count += 1
            except OSError:
                ended.append(count)
        threads = [threading.Thread(target=load, daemon=True) for _ in range(8)]
        for thread in threads:
            thread.start()
        with Raw(port) as raw:
            for _ in range(200):
                assert raw.ask([PING]) == SUCCESS
        assert process.stop() == 0
        for thread in threads:
            thread.join(20 * PATIENCE)
        assert len(ended) == 8 and all(ended), ended


def case_out_of_descriptors():
    """It goes on with those it has, and takes more when there is room."""
    with Swarm() as swarm:
        limit = 1024 + 64
        process = swarm.start("tracker", "tracker", "--host", "127.0.0.1", "--port", "0", "--no-dht",
                              inside=("prlimit", "--nofile=%d:%d" % (limit, limit)))
        port = process.facts["port"]
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        if hard < limit + 400:
            return "skipped: at most %d open files here" % hard
        first = Raw(port)
        many = [socket.create_connection(("127.0.0.1", port)) for _ in range(limit + 100)]
        for connection in many:  # silent ones would make room
            connection.sendall(MAGIC)
        process.wait_log("cannot accept")
        assert first.ask([PING]) == SUCCESS
        for connection in many:
            connection.close()
        until(lambda: try_ping(port), 20, "there is room again")
        first.close()
        assert process.stop() == 0
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return None


def case_silent_ones_make_room_at_the_descriptor_limit():
    with Swarm() as swarm:
        limit = 1024 + 64
        process = swarm.start("tracker", "tracker", "--host", "127.0.0.1", "--port", "0", "--no-dht",
                              "--timeout", "0",
                              inside=("prlimit", "--nofile=%d:%d" % (limit, limit)))
        port = process.facts["port"]
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        if hard < limit + 400:
            return "skipped: at most %d open files here" % hard
        many = [socket.create_connection(("127.0.0.1", port)) for _ in range(limit + 100)]
        until(lambda: try_ping(port), 20, "somebody is served beside those who say nothing")
        for connection in many:
            connection.close()
        assert process.stop() == 0
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return None


def case_many_servers():
    """Thousands of registered servers; all are listed, all are handed out, all go."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(5000, hard - 500) if PATIENCE == 1 else 500
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with Swarm() as swarm:
        process = tracker(swarm)
        port = process.facts["port"]
        servers = []
        for i in range(count):
            raw = Raw(port)
            raw.sock.sendall(frame([UPDATE_INFO, {"key": "server:k", "addr": [None, 1 + i]}]) +
                             frame([PUT, "k", [1 + i, "m%d" % i], None]))
            servers.append(raw)
        for raw in servers:
            assert raw.receive() == SUCCESS and raw.receive() == SUCCESS
        with Raw(port) as raw:
            summary = raw.summary()
            assert summary["queue_info"] == {"k": {"free": count, "pending": 0}}
            assert [s["addr"][1] for s in summary["server_info"]] == list(range(1, count + 1))
            for i in range(count):
                assert raw.ask([REQUEST, "k", "", 1]) == [SUCCESS, ["127.0.0.1", 1 + i, "m%d" % i]]
            for server in servers:
                server.close()
            until(lambda: raw.summary()["server_info"] == [], 30, "all have gone")
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


main(globals())
