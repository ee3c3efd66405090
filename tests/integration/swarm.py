"""Starts real `skep` processes for the integration tests, and ends every one of them.

A test script defines functions `case_...`, each of which makes a Swarm and uses it as a context
manager, and ends with `main(globals())`. A case fails by an AssertionError that says what was
expected. Waiting is always for an event with a deadline.
"""

import ast
import concurrent.futures
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback

# What is set for the tests. The programs they start would take SKEP_ variables for options: none of
# these, nor any of whoever runs the tests, is for them.
SETTINGS = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("SKEP_")}
SKEP = SETTINGS["SKEP_PROGRAM"]
GOLDEN = SETTINGS.get("SKEP_GOLDEN_DIR", "")
# Sanitized builds are slower: every deadline is stretched by this factor.
# A swarm of each script's own: scripts run beside each other, on loopback, and under one name a UDP
# port that one of them leaves and another takes would make one swarm of two.
SWARM = "test-%d" % os.getpid()
os.environ["SKEP_SWARM"] = SWARM
PATIENCE = float(SETTINGS.get("SKEP_TEST_PATIENCE", "1"))


def skip(reason):
    """Ends the script as skipped (exit code 77, told to ctest)."""
    print("skipped: " + reason)
    sys.exit(77)


def main(names, at_once=1):
    """Runs every case of a script (or those named on its command line), then tells which failed.
    `at_once`: so many beside each other, where they mostly wait."""
    failed = []

    def run_case(name, case):
        start = time.monotonic()
        outcome = "ok"
        try:
            outcome = case() or outcome
        except Exception:
            traceback.print_exc(file=sys.stdout)
            failed.append(name)
            outcome = "FAILED"
        print("%s: %s (%.1f s)" % (name, outcome, time.monotonic() - start), flush=True)

    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        for name, case in names.items():
            if name.startswith("case_") and (not sys.argv[1:] or name[5:] in sys.argv[1:]):
                pool.submit(run_case, name[5:], case)
    if failed:
        sys.exit("failed: " + ", ".join(failed))


class Deadline:
    """So many seconds from now, for several waits together."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.at = time.monotonic() + seconds * PATIENCE


def until(condition, seconds, what, pause=0.05):
    """Asks `condition` again and again until it is true; fails after `seconds`, or at a Deadline."""
    deadline = seconds if isinstance(seconds, Deadline) else Deadline(seconds)
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline.at, "not within %s s: %s" % (deadline.seconds, what)
        time.sleep(pause)


def stands_still(pid):
    """Whether every thread of a process is stopped."""
    for task in os.listdir("/proc/%d/task" % pid):
        with open("/proc/%d/task/%s/stat" % (pid, task)) as stat:
            if stat.read().rsplit(")", 1)[1].split()[0] != "T":
                return False
    return True


class Process:
    """One background `skep` whose first output line is its facts as JSON."""

    def __init__(self, name, arguments, folder, inside=(), environment=None, inherit=False):
        self.name = name
        self.log_path = os.path.join(folder, name + ".log")
        self.log = open(self.log_path, "ab")
        self.popen = subprocess.Popen(list(inside) + [SKEP] + arguments + ["--json"],
                                      stdout=subprocess.PIPE, stderr=self.log,
                                      stdin=subprocess.DEVNULL, close_fds=not inherit,
                                      env=dict(os.environ, **(environment or {})))
        self.facts = None
        self.unread = b""  # printed, and not asked for yet

    @property
    def peer(self):
        """What the next node gives to --initial-peers."""
        return self.facts["initial_peers"]

    @property
    def endpoint(self):
        return self.facts["endpoint"]

    @property
    def port(self):
        return int(self.endpoint.rsplit(":", 1)[1])

    def alive(self):
        return self.popen.poll() is None

    def wait_ready(self, seconds=60):
        deadline = time.monotonic() + seconds * PATIENCE
        readable = select.poll()  # select() takes no descriptors from 1024 on
        readable.register(self.popen.stdout, select.POLLIN)
        line = b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            assert left > 0, "%s did not start in %s s:\n%s" % (self.name, seconds, self.read_log())
            if not readable.poll(left * 1000):
                continue
            piece = os.read(self.popen.stdout.fileno(), 65536)
            assert piece, "%s ended at start, exit code %s:\n%s" % (
                self.name, self.popen.wait(), self.read_log())
            line += piece
        first, self.unread = line.split(b"\n", 1)
        self.facts = json.loads(first)
        return self

    def next_event(self, seconds=40):
        """The next line of JSON that it prints."""
        deadline = time.monotonic() + seconds * PATIENCE
        readable = select.poll()
        readable.register(self.popen.stdout, select.POLLIN)
        while b"\n" not in self.unread:
            left = deadline - time.monotonic()
            assert left > 0, "%s prints nothing in %s s" % (self.name, seconds)
            if readable.poll(left * 1000):
                piece = os.read(self.popen.stdout.fileno(), 65536)
                assert piece, "%s has ended" % self.name
                self.unread += piece
        line, self.unread = self.unread.split(b"\n", 1)
        return json.loads(line)

    def read_log(self):
        with open(self.log_path, errors="replace") as log:
            return log.read()

    def wait_log(self, text, seconds=40):
        """Waits until the log holds a text."""
        until(lambda: text in self.read_log(), seconds,
              "%s logs %r; it has logged:\n%s" % (self.name, text, self.read_log()))

    def send(self, number):
        self.popen.send_signal(number)

    def wait(self, seconds=40):
        """Waits for its end; returns the exit code (negative: the signal that ended it)."""
        try:
            return self.popen.wait(seconds * PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError("%s did not stop within %s s:\n%s" % (
                self.name, seconds, self.read_log())) from None

    def stop(self, seconds=40, number=signal.SIGTERM):
        """Sends a signal; returns the exit code."""
        if self.alive():
            self.popen.send_signal(number)
        return self.wait(seconds)

    def events(self):
        """The lines of JSON after the facts, once the process has ended."""
        assert not self.alive()
        return [json.loads(line) for line in (self.unread + self.popen.stdout.read()).splitlines()]

    def kill(self):
        """SIGKILL, as a crash."""
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()

    def freeze(self):
        """SIGSTOP, and waits until it stands still: its sockets stay open, and nothing answers."""
        self.popen.send_signal(signal.SIGSTOP)
        until(lambda: stands_still(self.popen.pid), 20, "%s stands still" % self.name, 0.005)

    def thaw(self):
        self.popen.send_signal(signal.SIGCONT)

    def freeze_while(self, named, what, seconds=60):
        """Freezes it at a moment when `named()` holds without its help, as when others keep its
        record: a node that has just been found may have answered for itself, while its record was
        still on its way to the others."""
        def frozen_and_named():
            assert self.alive(), "%s has ended:\n%s" % (self.name, self.read_log())
            self.freeze()
            if named():
                return True
            self.thaw()
            return False
        until(frozen_and_named, seconds, what, pause=0.5)

    def kill_while(self, named, what):
        """SIGKILL at such a moment: its record does not die with it."""
        self.freeze_while(named, what)
        self.kill()

    def close(self):
        self.kill()
        self.popen.stdout.close()
        self.log.close()


class HeldThread:
    """One thread of a process of ours, by its name, which stands still as long as it is held, while
    the others go on: as if what it waits for took for ever. For use by one thread."""

    SEIZE, CONTINUE, INTERRUPT, DETACH = 0x4206, 7, 0x4207, 17
    WALL = 0x40000000

    def __init__(self, process, name):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.ptrace.argtypes = [ctypes.c_long] * 4
        self.libc.ptrace.restype = ctypes.c_long
        # A thread names itself, a moment after it has begun.
        self.tid = until(lambda: self.find(process.popen.pid, name), 20,
                         "%s has a thread %s" % (process.name, name))
        self.ask(self.SEIZE)
        self.held = False

    @staticmethod
    def find(pid, name):
        for task in os.listdir("/proc/%d/task" % pid):
            with open("/proc/%d/task/%s/comm" % (pid, task)) as comm:
                if comm.read().strip() == name:
                    return int(task)
        return 0

    def ask(self, request):
        if self.libc.ptrace(request, self.tid, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "ptrace: " + os.strerror(ctypes.get_errno()))

    def hold(self):
        self.ask(self.INTERRUPT)
        os.waitpid(self.tid, self.WALL)
        self.held = True

    def release(self):
        self.ask(self.CONTINUE)
        self.held = False

    def __enter__(self):
        return self

    def __exit__(self, *what):
        if not self.held:
            self.hold()
        self.ask(self.DETACH)


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

    def start(self, name, *arguments, ready=True, **more):
        """`more`: inside (a command that runs it), environment, inherit (open descriptors)."""
        process = Process(name, list(arguments), self.folder, **more)
        self.processes.append(process)
        if ready:
            process.wait_ready()
        return process

    def bootstrap(self, name="bootstrap", *arguments, listen="127.0.0.1:*", **more):
        return self.start(name, "dht", "--listen", listen, *arguments, **more)

    def node(self, name, uids, peers, *arguments, cls="nop", hidden=16, listen="127.0.0.1:*",
             **more):
        command = ["node", "--listen", listen]
        if uids or "--expert-pattern" in arguments:
            command += ["--hidden-dim", str(hidden), "--expert-cls", cls]
        if uids:
            command += ["--expert-uids", ",".join(uids)]
        if peers:
            command += ["--initial-peers", ",".join(peers)]
        return self.start(name, *command, *arguments, **more)


def run(*arguments, code=0, seconds=60, environment=None, inside=()):
    """Runs `skep` to its end; its exit code must be `code`, or one of them. Returns (stdout,
    stderr), or with code=None (exit code, stdout, stderr)."""
    full = dict(os.environ, **(environment or {}))
    done = subprocess.run(list(inside) + [SKEP] + list(arguments), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=seconds * PATIENCE, env=full)
    out = done.stdout.decode(errors="replace")
    err = done.stderr.decode(errors="replace")
    if code is None:
        return done.returncode, out, err
    allowed = code if isinstance(code, tuple) else (code,)
    assert done.returncode in allowed, "skep %s: exit code %d, expected %s\n%s%s" % (
        " ".join(arguments), done.returncode, code, out, err)
    return out, err


def refused(code, texts, *arguments, **more):
    """Runs `skep`, which must end with this exit code and say all of these texts. Returns what it
    said."""
    _, err = run(*arguments, code=code, **more)
    for text in [texts] if isinstance(texts, str) else texts:
        assert text in err, "skep %s: said %r, expected %r in it" % (" ".join(arguments), err, text)
    return err


def timeout_option(seconds):
    return "--timeout=%dms" % (seconds * PATIENCE * 1000)


def find(peers, *uids, extra=(), seconds=15, inside=()):
    """`skep find`: uid -> list of providers, freshest first. Fails if a lookup itself fails."""
    peers = peers if isinstance(peers, str) else ",".join(peers)
    out, _ = run("find", *uids, "--initial-peers", peers, "--json", timeout_option(seconds), *extra,
                 code=(0, 3), inside=inside)
    answers = json.loads(out)
    assert [a["uid"] for a in answers] == list(uids), out
    for answer in answers:
        assert answer["status"] == ("OK" if answer["providers"] else "NOT_FOUND"), out
    return {a["uid"]: a["providers"] for a in answers}


def until_found(peers, uid, node, seconds=30, at=None, **more):
    """Waits until the freshest provider of a UID is this node at its own endpoint, or `at`."""
    at = at or node.endpoint

    def first():
        providers = find(peers, uid, **more)[uid]
        return providers and (providers[0]["peer_id"], providers[0]["endpoint"]) == (
            node.facts["peer_id"], at)
    until(first, seconds, "%s is found at %s" % (uid, at))


def is_named(peers, uid, node):
    return any(p["endpoint"] == node.endpoint for p in find(peers, uid)[uid])


def kill_named(node, peers, uid):
    """Kills a node whose record for this UID stays with others of the swarm."""
    node.kill_while(lambda: is_named(peers, uid, node), "others name %s" % node.name)


def until_gone(peers, uid, seconds=30, **more):
    until(lambda: not find(peers, uid, **more)[uid], seconds, "%s is found no more" % uid)


def call(uid, *arguments, peers=None, node=None, code=0, seconds=20, **more):
    """`skep call --json`, through DHT peers or straight to a node: its parsed answer, or with a
    code other than 0 what it said."""
    where = ["--initial-peers", peers] if peers else ["--endpoint", node.endpoint]
    out, err = run("call", uid, *where, "--json", timeout_option(seconds), *arguments, code=code,
                   **more)
    return json.loads(out) if code == 0 else err


def free_port(kind=socket.SOCK_STREAM, host="127.0.0.1"):
    """A port that nobody has; whoever wants it should take it soon."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind) as s:
        s.bind((host, 0))
        return s.getsockname()[1]


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as s:
            s.bind(("::1", 0))
        return True
    except OSError:
        return False


def write_safetensors(path, tensors):
    """tensors: name -> (shape, list of values), written as BOOL if they are, else as F32."""
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        dtype, letter = ("BOOL", "?") if isinstance(values[0], bool) else ("F32", "f")
        raw = struct.pack("<%d%s" % (len(values), letter), *values)
        header[name] = {"dtype": dtype, "shape": list(shape),
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


NPY_TYPES = {"e": "<f2", "f": "<f4", "d": "<f8", "q": "<i8"}


def write_npy(path, shape, values, letter="f", fortran=False):
    """A .npy file of NumPy format version 1.0; `letter` as in struct: e, f, d or q."""
    text = "{'descr': '%s', 'fortran_order': %s, 'shape': (%s), }" % (
        NPY_TYPES[letter], fortran, "".join("%d, " % n for n in shape))
    text += " " * (-(len(text) + 11) % 64) + "\n"
    with open(path, "wb") as out:
        out.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode())
        out.write(struct.pack("<%d%s" % (len(values), letter), *values))


def read_npy(path):
    """(type, shape, raw bytes)."""
    with open(path, "rb") as file:
        raw = file.read()
    assert raw[:8] == b"\x93NUMPY\x01\x00", raw[:8]
    size = struct.unpack("<H", raw[8:10])[0]
    header = ast.literal_eval(raw[10:10 + size].decode())
    assert header["fortran_order"] is False
    return header["descr"], list(header["shape"]), raw[10 + size:]
