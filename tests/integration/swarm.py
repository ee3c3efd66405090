"""Starts real `skep` processes on loopback for the integration tests, and ends every one of them.

Each test script makes one Swarm, uses it as a context manager, and exits non-zero through an
AssertionError that says what was expected. Waiting is always for an event with a deadline.
"""

import json
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

SKEP = os.environ["SKEP_PROGRAM"]
# Sanitized builds are slower: every deadline is stretched by this factor.
PATIENCE = float(os.environ.get("SKEP_TEST_PATIENCE", "1"))


def skip(reason):
    """Ends the script as skipped (exit code 77, told to ctest)."""
    print("skipped: " + reason)
    sys.exit(77)


def until(condition, seconds, what, pause=0.05):
    """Asks `condition` again and again until it is true; fails after `seconds`."""
    deadline = time.monotonic() + seconds * PATIENCE
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, "not within %s s: %s" % (seconds, what)
        time.sleep(pause)


class Process:
    """One background `skep` whose first output line is its facts as JSON."""

    def __init__(self, name, arguments, folder):
        self.name = name
        self.log_path = os.path.join(folder, name + ".log")
        self.log = open(self.log_path, "wb")
        self.popen = subprocess.Popen([SKEP] + arguments + ["--json"], stdout=subprocess.PIPE,
                                      stderr=self.log, stdin=subprocess.DEVNULL)
        self.facts = None

    def wait_ready(self, seconds=20):
        deadline = time.monotonic() + seconds * PATIENCE
        line = b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            assert left > 0, "%s did not start in %s s:\n%s" % (self.name, seconds, self.read_log())
            if not select.select([self.popen.stdout], [], [], left)[0]:
                continue
            piece = os.read(self.popen.stdout.fileno(), 65536)
            assert piece, "%s ended at start, exit code %s:\n%s" % (
                self.name, self.popen.wait(), self.read_log())
            line += piece
        self.facts = json.loads(line.split(b"\n")[0])
        return self

    def read_log(self):
        with open(self.log_path, errors="replace") as log:
            return log.read()

    def signal(self, number):
        self.popen.send_signal(number)

    def stop(self, seconds=10):
        """SIGTERM; returns the exit code."""
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGTERM)
        try:
            return self.popen.wait(seconds * PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError("%s did not stop within %s s:\n%s" % (
                self.name, seconds, self.read_log()))

    def kill(self):
        """SIGKILL, as a crash."""
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()

    def close(self):
        self.kill()
        self.popen.stdout.close()
        self.log.close()


class Swarm:
    """Processes and files of one test."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="skep-test-")
        self.processes = []

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        for process in reversed(self.processes):
            if kind is not None:
                print("---- log of %s (pid %d)\n%s" % (
                    process.name, process.popen.pid, process.read_log()[-4000:]))
            process.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def path(self, name):
        return os.path.join(self.folder, name)

    def start(self, name, *arguments, ready=True):
        process = Process(name, list(arguments), self.folder)
        self.processes.append(process)
        if ready:
            process.wait_ready()
        return process

    def bootstrap(self, name="bootstrap", *arguments, listen="127.0.0.1:*"):
        return self.start(name, "dht", "--listen", listen, *arguments)

    def node(self, name, uids, peers, *arguments, cls="nop", hidden=16, listen="127.0.0.1:*",
             ready=True):
        command = ["node", "--listen", listen, "--hidden-dim", str(hidden), "--expert-cls", cls]
        if uids:
            command += ["--expert-uids", ",".join(uids)]
        if peers:
            command += ["--initial-peers", ",".join(peers)]
        return self.start(name, *command, *arguments, ready=ready)


def run(*arguments, code=0, seconds=60, environment=None):
    """Runs `skep` to its end; its exit code must be `code`. Returns (stdout, stderr)."""
    full = dict(os.environ, **(environment or {}))
    done = subprocess.run([SKEP] + list(arguments), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=seconds * PATIENCE, env=full)
    out = done.stdout.decode(errors="replace")
    err = done.stderr.decode(errors="replace")
    assert code is None or done.returncode == code, \
        "skep %s: exit code %d, expected %d\n%s%s" % (
            " ".join(arguments), done.returncode, code, out, err)
    return (out, err) if code is not None else (done.returncode, out, err)


def find(peer, *uids, code=0, extra=()):
    """`skep find --json`: the parsed answer."""
    out, _ = run("find", *uids, "--initial-peers", peer, "--json", *extra, code=code)
    return json.loads(out)


def write_safetensors(path, tensors):
    """tensors: name -> (shape, list of floats), written as F32."""
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        raw = struct.pack("<%df" % len(values), *values)
        header[name] = {"dtype": "F32", "shape": list(shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text + data)


def read_safetensors(path):
    """name -> (dtype, shape, raw bytes)."""
    with open(path, "rb") as file:
        raw = file.read()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + size])
    header.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"],
                   raw[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]])
            for name, t in header.items()}
