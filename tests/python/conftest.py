"""Real nodes for the tests of the Python package: `skep node` processes on loopback."""

import json
import os
import signal
import subprocess
import sys
import threading

import pytest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
sys.path.insert(0, os.path.join(ROOT, "python"))

SKEP = os.environ.get("SKEP_TEST_PROGRAM", os.path.join(ROOT, "build/release/src/cli/skep"))
GOLDEN = os.environ.get("SKEP_GOLDEN_DIR", os.path.join(ROOT, "tests/golden"))
START_S = 60

_count = 0


class Node:
    """One process of `skep node`."""

    def __init__(self, swarm, *options, initial_peers=()):
        command = [SKEP, "node", "--listen", "127.0.0.1:*", "--dht-listen", "127.0.0.1:*",
                   "--swarm", swarm, "--no-tracker", "--json", "--update-period", "5s",
                   "--drain-timeout", "1s", *options]
        if initial_peers:
            command += ["--initial-peers", ",".join(initial_peers)]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SKEP_")}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, env=environment)
        self.log = []
        threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True).start()
        timer = threading.Timer(START_S, self.process.kill)
        timer.start()
        line = self.process.stdout.readline()
        timer.cancel()
        assert line, "the node ended: %s" % "".join(self.log)
        self.ready = json.loads(line)
        self.address = self.ready["initial_peers"]
        self.endpoint = self.ready["endpoint"]
        self.peer_id = self.ready["peer_id"]
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def new_swarm_name():
    """A name of its own: swarms of tests that run at the same time must not meet."""
    global _count
    _count += 1
    return "pytest-%d-%d" % (os.getpid(), _count)


@pytest.fixture
def nodes():
    """Starts nodes that end with the test: nodes(swarm, *options, initial_peers=...)."""
    started = []

    def start(swarm, *options, initial_peers=()):
        node = Node(swarm, *options, initial_peers=initial_peers)
        started.append(node)
        return node

    yield start
    for node in started:
        node.stop()


class Swarm:
    """A swarm of one node, shared by the tests of a module, and a client of it."""

    def __init__(self):
        import skep
        self.name = new_swarm_name()
        self.node = Node(self.name, "--expert-uids", "ffn.0.0,ffn.0.1,ffn.1.0,ffn.1.1",
                         "--hidden-dim", "16", "--seed", "1", "--optimizer", "none")
        self.client = skep.Client(self.node.address, swarm=self.name, timeout=20)
        self.client.wait_joined(20)

    def close(self):
        self.client.close()
        self.node.stop()


@pytest.fixture(scope="session")
def swarm():
    shared = Swarm()
    yield shared
    shared.close()
