"""What a service manager learns of the long-running commands, and what the unit says of them."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile

from swarm import PATIENCE, SKEP, Swarm, main, refused, run

COMMANDS = (("node", ("--listen", "127.0.0.1:*", "--expert-uids", "ffn.0", "--hidden-dim", "8")),
            ("dht", ("--listen", "127.0.0.1:*")),
            ("tracker", ("--host", "127.0.0.1", "--port", "0")),
            ("tracker", ("--host", "127.0.0.1", "--port", "0", "--no-dht")))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Manager:
    """Receives what sd_notify(3) sends, at a path or under an abstract name."""

    def __init__(self, name):
        self.name = name
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + name[1:] if name.startswith("@") else name)
        self.socket.settimeout(40 * PATIENCE)

    def next(self):
        return self.socket.recv(4096).decode()

    def rest(self):
        """What lies there, once the process has ended."""
        self.socket.setblocking(False)
        states = []
        try:
            while True:
                states.append(self.next())
        except BlockingIOError:
            return states

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()


def names(swarm):
    return swarm.path("notify"), "@skep-test-%d" % os.getpid()


def case_ready_and_stopping_are_sent():
    for i, (command, arguments) in enumerate(COMMANDS):
        with Swarm() as swarm:
            for name in names(swarm):
                with Manager(name) as manager:
                    process = swarm.start("%s-%d%s" % (command, i, name[0] == "@"), command,
                                          *arguments, environment={"NOTIFY_SOCKET": name})
                    assert manager.next() == "READY=1"
                    assert process.stop() == 0
                    assert manager.rest() == ["STOPPING=1"], name
                    assert "NOTIFY_SOCKET" not in process.read_log(), process.read_log()


def case_stopping_is_sent_when_the_stop_begins():
    """A STOP message ends a tracker too; a node may take its time for what is under way."""
    with Swarm() as swarm:
        path = names(swarm)[0]
        with Manager(path) as manager:
            tracker = swarm.start("tracker", "tracker", *COMMANDS[3][1],
                                  environment={"NOTIFY_SOCKET": path})
            assert manager.next() == "READY=1"
            key = tracker.facts["stop_key"].encode()
            with socket.create_connection(("127.0.0.1", tracker.facts["port"])) as client:
                message = b'[2, "%s"]' % key
                client.sendall(b"\x71\xf2\x02\x00" + len(message).to_bytes(4, "little") + message)
                assert manager.next() == "STOPPING=1"
            assert tracker.wait() == 0
            assert manager.rest() == []


def case_a_start_that_fails_is_never_ready():
    with Swarm() as swarm:
        path = names(swarm)[0]
        with Manager(path) as manager, socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            refused(1, "in use", "node", "--listen", "127.0.0.1:%d" % taken.getsockname()[1],
                    environment={"NOTIFY_SOCKET": path})
            refused(2, "--hidden-dim", "node", "--hidden-dim", "0",
                    environment={"NOTIFY_SOCKET": path})
            assert manager.rest() == []


def case_the_watchdog_is_fed_while_all_threads_answer():
    for i, (command, arguments) in enumerate(COMMANDS):
        with Swarm() as swarm:
            path = names(swarm)[0]
            with Manager(path) as manager:
                process = swarm.start("%s-%d" % (command, i), command, *arguments,
                                      environment={"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "100000"})
                assert manager.next() == "READY=1"
                for _ in range(4):
                    assert manager.next() == "WATCHDOG=1"
                process.freeze()
                manager.rest()
                manager.socket.settimeout(0.5)
                try:
                    raise AssertionError("a process that stands still sends %r" % manager.next())
                except TimeoutError:
                    pass
                process.send(signal.SIGCONT)
                manager.socket.settimeout(40 * PATIENCE)
                assert manager.next() == "WATCHDOG=1"
                assert process.stop() == 0
                assert "STOPPING=1" in manager.rest()


def case_the_watchdog_of_another_process_is_not_ours():
    with Swarm() as swarm:
        path = names(swarm)[0]
        with Manager(path) as manager:
            process = swarm.start("dht", "dht", "--listen", "127.0.0.1:*",
                                  environment={"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "1000",
                                               "WATCHDOG_PID": "1"})
            assert manager.next() == "READY=1"
            assert process.stop() == 0
            assert manager.rest() == ["STOPPING=1"]


def case_a_socket_that_is_not_there_stops_nothing():
    for name, said in (("/nowhere/notify", "READY=1 not sent: No such file"),
                       ("notify", "expected an absolute path"), ("@", "too short or too long"),
                       ("/" + 120 * "x", "too short or too long")):
        with Swarm() as swarm:
            process = swarm.start("dht", "dht", "--listen", "127.0.0.1:*",
                                  environment={"NOTIFY_SOCKET": name})
            process.wait_log("NOTIFY_SOCKET: ")
            assert process.stop() == 0
            assert said in process.read_log(), process.read_log()


def unit_settings():
    with open(os.path.join(ROOT, "deploy", "systemd", "skep-node.service")) as file:
        lines = [line.strip() for line in file if "=" in line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def case_the_unit_waits_for_ready_and_gives_up_on_bad_settings():
    settings = unit_settings()
    assert settings["Type"] == "notify", settings
    assert settings["Restart"] == "on-failure" and settings["RestartPreventExitStatus"] == "2"
    # That is what a wrong setting ends with.
    with tempfile.TemporaryDirectory() as folder:
        config = os.path.join(folder, "node.conf")
        with open(config, "w") as file:
            file.write("hidden-dim = 0\n")
        run("node", "--config", config, code=2)
    if shutil.which("systemd-analyze") is None:
        return "without systemd-analyze"
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "skep-node.service")
        with open(os.path.join(ROOT, "deploy", "systemd", "skep-node.service")) as file:
            text = file.read().replace("/usr/local/bin/skep", SKEP)
        with open(path, "w") as file:
            file.write(text)
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", path],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60 * PATIENCE)
        ours = [line for line in done.stdout.decode(errors="replace").splitlines()
                if "skep-node" in line]
        assert not ours, ours
    return None


main(globals())
