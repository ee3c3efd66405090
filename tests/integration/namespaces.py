"""Two hosts with a wire between them, as network namespaces of their own, and firewalls."""

import os
import shutil
import subprocess
import sys

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


def need_namespaces():
    """Ends the script as skipped where they cannot be made."""
    for tool in ("unshare", "nsenter", "ip"):
        if shutil.which(tool) is None:
            skip(tool + " is not installed")
    try:
        with Network() as net:
            Firewall(net.b).block("udp", 9)
    except (AssertionError, OSError, subprocess.CalledProcessError) as error:
        skip("no network namespaces here: %s" % error)
