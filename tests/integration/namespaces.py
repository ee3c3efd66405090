"""Two hosts with a wire between them, as network namespaces of their own, firewalls, and disks that
are soon full."""

import errno
import functools
import os
import shutil
import subprocess
import sys
import tempfile

from swarm import skip, until


class Host:
    """A namespace, kept by a process that waits for its standard input to end."""

    def __init__(self):
        self.holder = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        own = os.readlink("/proc/self/ns/net")

        def is_apart():
            assert self.holder.poll() is None, "unshare --net is not allowed"
            return os.readlink("/proc/%d/ns/net" % self.holder.pid) != own
        until(is_apart, 30, "a namespace of its own", pause=0.01)
        self.inside = ["nsenter", "--net=/proc/%d/ns/net" % self.holder.pid]
        self.ip("link", "set", "lo", "up")

    def ip(self, *arguments):
        subprocess.run(self.inside + ["ip"] + list(arguments), check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def close(self):
        self.holder.stdin.close()
        self.holder.kill()
        self.holder.wait()


class Network:
    """Hosts a (10.9.0.1) and b (10.9.0.2)."""

    def __enter__(self):
        self.hosts = []
        try:
            self.hosts = [Host(), Host()]
            self.a, self.b = self.hosts
            self.a.ip("link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns",
                      str(self.b.holder.pid))
            for host, address in ((self.a, "10.9.0.1/24"), (self.b, "10.9.0.2/24")):
                host.ip("address", "add", address, "dev", "wire")
                host.ip("link", "set", "wire", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for host in self.hosts:
            host.close()

    def cut(self):
        self.b.ip("link", "set", "wire", "down")

    def mend(self):
        self.b.ip("link", "set", "wire", "up")


class SilentDns:
    """A host (10.9.0.1) on which a name is looked up for minutes, as its DNS servers say nothing.
    `inside` and `environment` are for programs there."""

    SERVER = """
import socket, sys
held = []
for address in sys.argv[1:]:
    held.append(socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET,
                              socket.SOCK_DGRAM))
    held[-1].bind((address, 53))
print("ready", flush=True)
sys.stdin.read()
"""

    environment = {"RES_OPTIONS": "timeout:30 attempts:5"}

    def __enter__(self):
        self.host = Host()
        self.server = None
        self.inside = self.host.inside
        try:
            self.host.ip("address", "add", "10.9.0.1/24", "dev", "lo")
            addresses = self.addresses()
            for address in addresses:
                if not address.startswith("127.") and address != "::1":
                    self.host.ip("address", "add", address, "dev", "lo")
            self.server = subprocess.Popen(self.inside + [sys.executable, "-c", self.SERVER] +
                                           addresses, stdin=subprocess.PIPE,
                                           stdout=subprocess.PIPE)
            assert self.server.stdout.readline() == b"ready\n", "DNS ports cannot be taken"
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.server is not None:
            self.server.kill()
            self.server.wait()
            self.server.stdin.close()
            self.server.stdout.close()
        self.host.close()

    def addresses(self):
        """Of the servers that the system's resolver asks."""
        try:
            with open("/etc/resolv.conf") as file:
                lines = [line.split() for line in file]
        except OSError:
            lines = []
        return [line[1] for line in lines if len(line) > 1 and line[0] == "nameserver"][:3] or \
            ["127.0.0.1"]

    def is_silent(self):
        """Whether it is those servers that are asked for names."""
        try:
            subprocess.run(self.inside + ["getent", "hosts", "hangs.test"], timeout=2,
                           env=dict(os.environ, **self.environment), stdout=subprocess.DEVNULL)
            return False
        except subprocess.TimeoutExpired:
            return True


class Firewall:
    """Drops what comes into a host, before any socket of it sees it. Connections that exist go on,
    as they do behind a firewall that knows them."""

    def __init__(self, host):
        self.host = host
        self.priority = 10
        # What is for this host is looked up first of all; the rules must come before that.
        host.ip("rule", "add", "priority", "100", "lookup", "local")
        host.ip("rule", "delete", "priority", "0")

    def rule(self, *what):
        self.host.ip("rule", "add", "priority", str(self.priority), *what)
        self.priority += 1

    def block(self, protocol, port=None):
        """Inbound packets of a protocol, to a port or to any."""
        self.rule("iif", "wire", "ipproto", protocol, *(["dport", str(port)] if port else []),
                  "blackhole")

    def allow(self, protocol, port):
        """Inbound packets from a port, whatever is blocked later."""
        self.rule("iif", "wire", "ipproto", protocol, "sport", str(port), "lookup", "local")

    def open(self):
        for priority in range(10, self.priority):
            self.host.ip("rule", "delete", "priority", str(priority))
        self.priority = 10


def mount_namespace():
    """A process that keeps a mount namespace of its own alive, and the command that enters it."""
    holder = subprocess.Popen(["unshare", "--mount", "cat"], stdin=subprocess.PIPE,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return holder, ["nsenter", "--mount=/proc/%d/ns/mnt" % holder.pid]


def until_apart(holder):
    """Waits until that process has left our namespace."""
    own = os.readlink("/proc/self/ns/mnt")

    def is_apart():
        assert holder.poll() is None, "unshare --mount is not allowed"
        return os.readlink("/proc/%d/ns/mnt" % holder.pid) != own
    until(is_apart, 30, "a mount namespace of its own", pause=0.01)


class OwnHosts:
    """A mount namespace with an /etc/hosts of its own, for who runs `inside` it. `lines`: of that
    file."""

    def __init__(self, folder, lines):
        path = os.path.join(folder, "hosts")
        with open(path, "w") as file:
            file.write("".join(line + "\n" for line in lines))
        self.holder, self.inside = mount_namespace()
        try:
            until_apart(self.holder)
            subprocess.run(self.inside + ["mount", "--bind", path, "/etc/hosts"], check=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        except BaseException:
            self.close()
            raise

    def close(self):
        self.holder.stdin.close()
        self.holder.kill()
        self.holder.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class SmallDisk:
    """A file system of a few KiB on a folder, for who runs `inside` a mount namespace of its own."""

    def __init__(self, folder, kib):
        self.folder = folder
        os.makedirs(folder, exist_ok=True)
        self.holder, self.inside = mount_namespace()
        try:
            until_apart(self.holder)
            self.mount("-t", "tmpfs", "-o", "size=%dk" % kib, "disk")
        except BaseException:
            self.close()
            raise

    def mount(self, *what):
        subprocess.run(self.inside + ["mount"] + list(what) + [self.folder], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    @property
    def seen(self):
        """The folder as those inside see it, for this process."""
        return "/proc/%d/root%s" % (self.holder.pid, self.folder)

    def fill(self):
        with open(self.seen + "/filler", "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(512))
            except OSError as error:
                assert error.errno == errno.ENOSPC, error

    def make_room(self):
        os.remove(self.seen + "/filler")

    def close(self):
        self.holder.stdin.close()
        self.holder.kill()
        self.holder.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def lacks_namespaces():
    """Why hosts with a wire cannot be made here; "" if they can."""
    for tool in ("unshare", "nsenter", "ip"):
        if shutil.which(tool) is None:
            return tool + " is not installed"
    try:
        with Network() as net:
            Firewall(net.b).block("udp", 9)
    except (AssertionError, OSError, subprocess.CalledProcessError) as error:
        return "no network namespaces here: %s" % error
    return ""


def lacks_disks():
    """The same of small disks."""
    for tool in ("unshare", "nsenter", "mount"):
        if shutil.which(tool) is None:
            return tool + " is not installed"
    try:
        with tempfile.TemporaryDirectory() as folder, SmallDisk(folder, 64) as disk:
            os.listdir(disk.seen)
    except (AssertionError, OSError, subprocess.CalledProcessError) as error:
        return "no mount namespaces here: %s" % error
    return ""


def only_with(lacks):
    """Of one case: it is skipped, and says so, where something is lacking."""
    def wrap(case):
        @functools.wraps(case)
        def wrapped():
            reason = lacks()
            return "skipped: " + reason if reason else case()
        return wrapped
    return wrap


def need_namespaces():
    """Ends the script as skipped where they cannot be made."""
    reason = lacks_namespaces()
    if reason:
        skip(reason)
