"""What the program says to options, names and files it cannot take, and with which exit code."""

import datetime
import json
import os
import pwd
import re
import socket
import subprocess

from swarm import SKEP, Swarm, has_ipv6, main, refused, run, timeout_option, write_npy

NODE = ("node", "--listen", "127.0.0.1:*")


def case_values_of_options():
    """Each refusal names option, value and expectation."""
    for option, value, expected in (
            ("--hidden-dim", "0", "from 1 to 65536"), ("--hidden-dim", "65537", "from 1 to 65536"),
            ("--hidden-dim", "12x", "whole number"), ("--hidden-dim", "1e3", "whole number"),
            ("--update-period", "0", "from 1s to 30m"), ("--update-period", "1801", "1s to 30m"),
            ("--update-period", "2h", "1s to 30m"), ("--drain-timeout", "3601", "0 to 1h"),
            ("--checkpoint-period", "9ms", "from 10ms to 1000h"), ("--max-batch-size", "-1", "from 1"),
            ("--max-batch-size", "9223372036854775808", "whole number"),
            ("--num-handlers", "65", "from 1 to 64"), ("--learning-rate", "-1", "number from 0"),
            ("--learning-rate", "nan", "number from 0"), ("--max-message-bytes", "1K", "from 4096"),
            ("--seed", "-1", "from 0")):
        refused(2, ["skep node: %s: \"%s\"" % (option, value), expected], *NODE, option, value)
    refused(2, ["--no-such-option: unknown option"], *NODE, "--no-such-option", "1")
    refused(2, ["--expert-uid: unknown option, did you mean --expert-uids?"], *NODE,
            "--expert-uid", "ffn.0")
    refused(2, ["--listen"], "node", "--listen")
    refused(2, ["extra"], *NODE, "extra")
    refused(2, ["--num-experts", "--expert-pattern"], *NODE, "--num-experts", "3")
    refused(2, ["no_such_class", "ffn"], *NODE, "--expert-uids", "a.0", "--expert-cls",
            "no_such_class")
    refused(2, ["no_such_optimizer", "adam"], *NODE, "--expert-uids", "a.0", "--optimizer",
            "no_such_optimizer")
    refused(2, ["--min-batch-size: 9, expected at most --max-batch-size, 8"], *NODE,
            "--min-batch-size", "9", "--max-batch-size", "8")
    for name, text in (("x" * 128, "1 to 127 bytes"), ("a\nb", "\\x0a"), ("\udcff", "\\xff"),
                       ("\u009b", "control")):
        for command in (NODE, ("dht", "--listen", "127.0.0.1:*"), ("tracker",),
                        ("find", "ffn.0", "--initial-peers", "127.0.0.1:9"),
                        ("call", "ffn.0", "--endpoint", "127.0.0.1:9")):
            refused(2, ["--swarm", text], *command, "--swarm", name)


def case_uids_and_patterns():
    uids = ("ffn", "ffn.", "ffn.01", "ffn.-1", "ffn.1.", ".1", "a.b.1",
            "ffn.99999999999999999999", "ffn. 1", "ffn.1 ", "ffn.\u0661", "x" * 10000 + ".1",
            "ffn.+1", "ffn.0x1", "ffn..1")
    for uid in uids:
        if not uid.endswith(" "):  # spaces around the elements of a list belong to the list
            said = refused(2, "--expert-uids", *NODE, "--expert-uids", uid)
            assert uid[:20] in said or "\\x" in said or "?" in said, said
        for command in ("find", "call"):
            if command == "find" and uid in ("ffn.", "ffn.1."):
                continue  # prefixes: what is under them is listed
            said = refused(2, "expert UID", command, uid, "--initial-peers", "127.0.0.1:9")
            assert uid[:20] in said or "\\x" in said or "?" in said, said
    for pattern in ("ffn", "ffn.[0:0]", "ffn.[3:1]", "ffn.[0:4", "ffn.[a:4]", "ffn.[0:4].x",
                    "[0:4]", "ffn.[-1:4]", "ffn.[0:99999999999999999999]"):
        refused(2, ["--expert-pattern", pattern], *NODE, "--expert-pattern", pattern)
    refused(2, ["5", "4"], *NODE, "--expert-pattern", "ffn.[0:2].[0:2]", "--num-experts", "5")
    refused(2, ["ffn.1"], *NODE, "--expert-uids", "ffn.1,ffn.1")
    run("find", code=2)
    run("call", code=2)


def case_experts_that_need_more_memory_than_there_is():
    """B61: refused at the start, not at the first large batch."""
    refused(1, ["rows", "MiB", "max_batch_size"], *NODE, "--expert-uids", "ffn.0", "--hidden-dim",
            "65536", "--max-batch-size", "2147483647")


def case_addresses():
    """B34. What is accepted is in docs/operations.md."""
    bad = ("host", "host:", "host:99999", "host:-1", "host:1x", ":4222", "a b:1", "::1", "[::1]",
           "[::1:4222", "1.2.3.4.5:1", "", " ", "host:1:2")
    for text in bad:
        refused(2, ["--listen", text], "node", "--listen", text)
        refused(2, ["--initial-peers", text], *NODE, "--initial-peers", text)
        refused(2, ["--endpoint", text], "call", "ffn.0", "--endpoint", text)
    for text in ("127.0.0.1:4222,", ",127.0.0.1:4222", "127.0.0.1:1,,127.0.0.1:2"):
        refused(2, ["--initial-peers"], *NODE, "--initial-peers", text)
    for text in ("127.0.0.1:*", "127.0.0.1:0"):
        refused(2, ["--initial-peers", text], *NODE, "--initial-peers", text)
    refused(2, ["announce", "0.0.0.0:1"], *NODE, "--announce", "0.0.0.0:1")
    refused(2, ["announce", "[::]:1"], *NODE, "--announce", "[::]:1")
    with Swarm() as swarm:
        good = ["localhost:4222", "127.0.0.1:4222", "[::1]:4222", "a-b.example:1"]
        node = swarm.node("node", [], good)
        assert node.stop() == 0


def case_contradictions_of_call():
    peers = ("--initial-peers", "127.0.0.1:9")
    refused(2, "--no-cast: needs --input", "call", "ffn.0", *peers, "--no-cast")
    refused(2, "--output: needs --input", "call", "ffn.0", *peers, "--output", "x.npy")
    refused(2, "--grad: needs --input", "call", "ffn.0", *peers, "--grad", "x.npy")
    refused(2, "--peer-id: needs --endpoint", "call", "ffn.0", *peers, "--peer-id", "00" * 32)
    refused(2, "--request-id: needs --grad", "call", "ffn.0", *peers, "--request-id", "00" * 16)
    refused(2, "--request-id needs --identity", "call", "ffn.0", *peers, "--input", "x", "--output",
            "y.npy", "--grad", "z", "--request-id", "00" * 16)
    refused(2, "32 hex digits", "call", "ffn.0", *peers, "--input", "x", "--output", "y.npy",
            "--grad", "z", "--request-id", "xyz", "--identity", "never-made.key")
    refused(2, ["--request-id needs --endpoint", "another node"], "call", "ffn.0", *peers,
            "--input", "x", "--output", "y.npy", "--grad", "z", "--request-id", "00" * 16,
            "--identity", "never-made.key")
    refused(2, "--initial-peers is needed", "call", "ffn.0")
    refused(2, "--initial-peers is needed", "find", "ffn.0")
    refused(2, ['prefix "ffn."', "alone"], "find", "ffn.", "ffn.0.0", *peers)
    for output in ("y", "y.npz", ".npy", "y.npy/"):
        refused(2, ["--output %s" % output, ".npy or .safetensors"], "call", "ffn.0", *peers,
                "--input", "x", "--output", output)
    refused(2, ["--peer-id", "64 hex digits"], "call", "ffn.0", "--endpoint", "127.0.0.1:9", "--peer-id",
            "12")


def case_ports_in_use():
    with Swarm() as swarm:
        for kind, option in ((socket.SOCK_STREAM, "--listen"), (socket.SOCK_DGRAM, "--dht-listen")):
            with socket.socket(socket.AF_INET, kind) as s:
                s.bind(("127.0.0.1", 0))
                if kind == socket.SOCK_STREAM:
                    s.listen(1)
                taken = "127.0.0.1:%d" % s.getsockname()[1]
                others = ("--listen", "127.0.0.1:*") if option != "--listen" else ()
                said = refused(1, [taken, "in use"], "node", *others, option, taken)
                assert ("UDP" in said) == (kind == socket.SOCK_DGRAM), said
                if kind == socket.SOCK_DGRAM:
                    refused(1, [taken, "in use", "UDP"], "dht", "--listen", taken)
                    refused(1, [taken, "in use", "UDP"], "find", "ffn.0", "--dht-listen", taken,
                            "--initial-peers", "127.0.0.1:9")
        first = swarm.node("first", [], [])
        refused(1, [first.endpoint, "in use"], "node", "--listen", first.endpoint)


def case_a_start_that_must_fail_is_told_before_joining():
    """Nobody has heard of the node then, and nobody has waited for peers that do not answer."""
    with Swarm() as swarm, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer, \
            socket.create_server(("127.0.0.1", 0)) as server:
        peer.bind(("127.0.0.1", 0))
        peer.setblocking(False)
        taken = "127.0.0.1:%d" % server.getsockname()[1]
        file = write(swarm.path("file"), b"", 0o600)
        rows = [(["--listen", taken], [taken, "in use"]),
                ([*NODE[1:], "--tracker-listen", taken], ["tracker", "in use"]),
                ([*NODE[1:], "--checkpoint-dir", file], [file, "not a folder"]),
                ([*NODE[1:], "--checkpoint-dir", file + "/below"], [file + "/below", "make this"]),
                ([*NODE[1:], "--checkpoint-dir", "/proc"], ["/proc", "write checkpoints"])]
        for arguments, texts in rows:
            said = refused(1, texts, "node", *arguments, "--expert-pattern", "ffn.[0:4].[0:4]",
                           "--hidden-dim", "16", "--initial-peers",
                           "127.0.0.1:%d" % peer.getsockname()[1])
            assert "peer" not in said, said
            try:
                raise AssertionError("%s: joined: %s" % (arguments, peer.recv(2048)))
            except BlockingIOError:
                pass


def unprivileged():
    """A prefix to run a command as nobody, or None."""
    if os.getuid() != 0:
        return []
    try:
        pwd.getpwnam("nobody")
        prefix = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        subprocess.run(prefix + [SKEP, "--version"], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        return prefix
    except (KeyError, OSError, subprocess.CalledProcessError):
        return None


def case_forbidden_ports():
    """B28."""
    prefix = unprivileged()
    with open("/proc/sys/net/ipv4/ip_unprivileged_port_start") as file:
        if prefix is None or int(file.read()) <= 80:
            return "skipped: every port may be bound here"
    refused(1, ["127.0.0.1:80", "may not be bound by this user"], "node", "--listen",
            "127.0.0.1:80", inside=prefix)
    refused(1, ["127.0.0.1:81", "no permission to bind", "UDP"], *NODE, "--dht-listen",
            "127.0.0.1:81", inside=prefix)
    return None


def case_foreign_addresses():
    refused(1, ["192.0.2.1", "not an address of this machine"], "node", "--listen",
            "192.0.2.1:4000")
    refused(1, ["192.0.2.1:4000", "UDP"], *NODE, "--dht-listen", "192.0.2.1:4000")
    refused(1, ["no-such-host.invalid"], "node", "--listen", "no-such-host.invalid:4000")


def write(path, content, mode):
    with open(path, "wb") as file:
        file.write(content)
    os.chmod(path, mode)
    return path


def case_identity_files():
    with Swarm() as swarm:
        good = swarm.path("good.key")
        run("keygen", "--identity", good)
        with open(good, "rb") as file:
            content = file.read()
        for mode in (0o644, 0o640, 0o604):
            bad = write(swarm.path("open.key"), content, mode)
            refused(1, [bad, "mode 0%o" % mode, "chmod 600"], *NODE, "--identity", bad)
        for name, wrong in (("empty", b""), ("short", content[:-2]), ("long", content * 2),
                            ("letters", b"g" * 64 + b"\n"), ("binary", bytes(range(256))),
                            ("pem", b"-----BEGIN PRIVATE KEY-----\nMC4CAQ\n"
                                    b"-----END PRIVATE KEY-----\n")):
            bad = write(swarm.path(name + ".key"), wrong, 0o600)
            said = refused(1, [bad, "expected"], *NODE, "--identity", bad)
            assert content.decode().strip()[:32] not in said, "a secret was shown"
            with open(bad, "rb") as file:
                assert file.read() == wrong, "a bad key file was changed"
            refused(1, [bad, "expected"], "dht", "--listen", "127.0.0.1:*", "--identity", bad)
            refused(1, [bad, "expected"], "find", "ffn.0", "--initial-peers", "127.0.0.1:9",
                    "--identity", bad)
        refused(1, [swarm.folder], *NODE, "--identity", swarm.folder)
        prefix = unprivileged()
        if prefix:
            os.chmod(swarm.folder, 0o755)
            refused(1, [good, "ermission"], *NODE, "--identity", good, inside=prefix)
        # One that is missing is made, and is the node's from then on.
        made = swarm.path("deep/made.key")
        first = swarm.start("first", *NODE, "--identity", made)
        assert os.stat(made).st_mode & 0o777 == 0o600
        assert first.stop() == 0
        assert swarm.start("second", *NODE, "--identity", made).facts["peer_id"] == \
            first.facts["peer_id"]


def case_a_key_of_the_other_kind():
    """In the place of the swarm's key an identity would be known to all who have the former."""
    with Swarm() as swarm:
        node, key = swarm.path("node.key"), swarm.path("swarm.key")
        run("keygen", "--identity", node, "--swarm-key", key)
        for command in (NODE, ("dht", "--listen", "127.0.0.1:*"), ("tracker", "--port", "0"),
                        ("find", "ffn.0", "--initial-peers", "127.0.0.1:9")):
            refused(1, [node, "is the identity of a node", "keygen --swarm-key"], *command,
                    "--swarm-key", node)
            refused(1, [key, "is the key of a private swarm", "keygen --identity"], *command,
                    "--identity", key)


def case_options_that_would_do_nothing_are_refused():
    for arguments, said in (
            (["--checkpoint-period", "9s"], "--checkpoint-period: needs --checkpoint-dir"),
            (["--keep-checkpoints", "3"], "--keep-checkpoints: needs --checkpoint-dir"),
            (["--strict-checkpoints"], "--strict-checkpoints: needs --load-experts"),
            (["--num-warmup-steps", "3"], "--num-warmup-steps: needs --schedule"),
            (["--num-training-steps", "3"], "--num-training-steps: needs --schedule"),
            (["--schedule", "linear-with-warmup", "--num-warmup-steps", "9",
              "--num-training-steps", "8"], "--num-warmup-steps: 9, expected at most"),
            (["--schedule", "none", "--num-warmup-steps", "9"],
             "--num-warmup-steps: needs --schedule"),
            (["--schedule", "constant-with-warmup", "--num-warmup-steps", "9",
              "--num-training-steps", "8"],
             "--num-training-steps: does nothing with --schedule constant-with-warmup"),
            (["--tracker", "127.0.0.1:9"], "--tracker: needs --tracker-key"),
            (["--no-dht", "--announce", "127.0.0.1:9"],
             "--announce: does nothing with --no-dht and without --tracker-key"),
            (["--min-batch-size", "2"], "--min-batch-size: needs --batch-timeout"),
            (["--batch-timeout", "50ms"], "--batch-timeout: needs --min-batch-size"),
            (["--batch-timeout", "50ms", "--min-batch-size", "1"],
             "--batch-timeout: needs --min-batch-size"),
            (["--no-dht", "--initial-peers", "127.0.0.1:9"], "--initial-peers: contradicts --no-dht"),
            (["--no-dht", "--peers-file", "p"], "--peers-file: contradicts --no-dht"),
            (["--lease-timeout", "1m"], "--lease-timeout: needs --tracker-key"),
            (["--lease-silence", "1m"], "--lease-silence: needs --tracker-key"),
            (["--no-tracker", "--no-federation"],
             "--no-federation: does nothing with --no-tracker"),
            (["--no-dht", "--no-federation"], "--no-federation: does nothing with --no-dht"),
            (["--no-dht", "--dht-listen", "127.0.0.1:*"],
             "--dht-listen: does nothing with --no-dht"),
            (["--no-dht", "--update-period", "9"], "--update-period: does nothing with --no-dht"),
            (["--momentum", "0.9"], "--momentum: does nothing with --optimizer adam"),
            (["--optimizer", "adamw", "--momentum", "0.9"],
             "--momentum: does nothing with --optimizer adamw"),
            (["--optimizer", "sgd", "--beta1", "0.8"],
             "--beta1: does nothing with --optimizer sgd"),
            (["--optimizer", "none", "--learning-rate", "0.1"],
             "--learning-rate: does nothing with --optimizer none"),
            (["--intermediate-dim", "8"], "--intermediate-dim: does nothing with --expert-cls ffn"),
            (["--padding-mask"], "--padding-mask: does nothing with --expert-cls ffn"),
            (["--expert-cls", "swiglu", "--max-sequence", "8"],
             "--max-sequence: does nothing with --expert-cls swiglu"),
            (["--expert-cls", "transformer", "--float-mask"],
             "--float-mask: does nothing with --expert-cls transformer"),
            (["--expert-cls", "nop", "--evaluation"],
             "--evaluation: does nothing with --expert-cls nop")):
        refused(2, said, *NODE, *arguments)
    # Of experts, which are none, or as they were saved.
    for option, value in (("--expert-cls", "nop"), ("--hidden-dim", "8"), ("--seed", "1")):
        refused(2, "%s: needs --expert-uids or --expert-pattern" % option, *NODE, option, value)
        refused(2, "%s: does nothing with --load-experts alone" % option, *NODE, option, value,
                "--load-experts", "--checkpoint-dir", "never-made")
    refused(2, "--intermediate-dim: does nothing with --load-experts alone", *NODE,
            "--intermediate-dim", "8", "--load-experts", "--checkpoint-dir", "never-made")
    for option, value in (("--max-batch-size", "8"), ("--checkpoint-dir", "never-made"),
                          ("--optimizer", "sgd"), ("--compression", "float16")):
        refused(2, "%s: needs --expert-uids, --expert-pattern or --load-experts" % option, *NODE,
                option, value)
    assert not os.path.exists("never-made")
    for arguments, said in (
            (["--port", "0", "--port-end", "9199"], "--port-end: does nothing with --port 0"),
            (["--silent", "--stats-report-interval", "9s"],
             "--stats-report-interval: does nothing with --silent"),
            (["--no-dht", "--initial-peers", "127.0.0.1:9"],
             "--initial-peers: does nothing with --no-dht"),
            (["--no-dht", "--peers-file", "p"], "--peers-file: does nothing with --no-dht")):
        refused(2, said, "tracker", *arguments)
    for command in (("call", "ffn.0.0"), ("peers",)):
        for option, value in (("--initial-peers", "127.0.0.1:9"), ("--dht-listen", "127.0.0.1:*")):
            refused(2, "%s: does nothing with --endpoint" % option, *command, "--endpoint",
                    "127.0.0.1:9", option, value)
    refused(2, '--host: "localhost:9190" holds a port, expected "localhost" and --port 9190',
            "query-tracker", "--host", "localhost:9190")
    refused(2, "--no-ping: contradicts --endpoint", "peers", "--endpoint", "127.0.0.1:9", "--no-ping")
    refused(2, "--watch: needs a prefix", "find", "ffn.0", "--watch", "--initial-peers",
            "127.0.0.1:9")
    refused(2, "--resource: does not go together with UIDs", "find", "ffn.0", "--resource", "k",
            "--initial-peers", "127.0.0.1:9")
    refused(2, "--update-period: does nothing with --no-dht", "tracker", "--no-dht", "--port", "0",
            "--update-period", "9")
    nobody = ("--endpoint", "127.0.0.1:9")
    for arguments, said in (
            (["--compression", "float16"], "--compression: needs --input"),
            (["--grad-compression", "float16"], "--grad-compression: needs --grad"),
            (["--input", "x.npy", "--output", "y.npy", "--grad-compression", "float16"],
             "--grad-compression: needs --grad"),
            (["--input", "x.npy", "--output", "y.npy", "--hedge-after", "9"],
             "--hedge-after: needs --input, and a swarm of nodes"),
            (["--input", "x.npy", "--grad", "g.npy", "--output", "y.npy", "--hedge-after", "9"],
             "--hedge-after: does nothing with --grad")):
        refused(2, said, "call", "ffn.0.0", *nobody, *arguments)


def case_options_that_do_nothing_in_a_shared_file_are_warned_about():
    """Several setups may share a file, or an environment: each uses what it can of it."""
    with Swarm() as swarm:
        config = swarm.path("node.conf")
        with open(config, "w") as file:
            file.write("momentum = 0.9\nkeep-checkpoints = 3\n")
        node = swarm.start("node", *NODE, "--config", config,
                           environment={"SKEP_INTERMEDIATE_DIM": "8", "SKEP_LEASE_TIMEOUT": "1m",
                                        "SKEP_BATCH_TIMEOUT": "1s", "SKEP_HIDEN_DIM": "7"})
        log = node.read_log()
        for said in (
                "--momentum, as the configuration file has it: does nothing with --optimizer adam",
                "--keep-checkpoints, as the configuration file has it: needs --checkpoint-dir",
                "--intermediate-dim, as the environment has it: does nothing with --expert-cls ffn",
                "--lease-timeout, as the environment has it: needs --tracker-key",
                "--batch-timeout, as the environment has it: needs --min-batch-size",
                '"SKEP_HIDEN_DIM" is no option of any command, it does nothing; did you mean '
                "SKEP_HIDDEN_DIM?"):
            assert log.count(said) == 1, log
        # What uses them is not warned about.
        quiet = swarm.start("quiet", *NODE, "--config", config, "--optimizer", "sgd",
                            "--checkpoint-dir", swarm.path("experts"), "--expert-uids", "ffn.0",
                            "--hidden-dim", "8")
        assert "WARN" not in quiet.read_log(), quiet.read_log()


def case_the_command_line_wins_over_what_contradicts_it():
    """What a file has is then left out with a warning, a variable of the environment without."""
    with Swarm() as swarm:
        node = swarm.node("node", ["ffn.0.0"], [])
        out, said = run("call", "ffn.0.0", "--endpoint", node.endpoint,
                        environment={"SKEP_INITIAL_PEERS": "127.0.0.1:9", "SKEP_OUTPUT": "y.npy"})
        assert "[rows, 16] F32" in out, out
        assert "--initial-peers" not in said, said
        assert "--output, as the environment has it: needs --input" in said, said
        out, said = run("peers", "--endpoint", node.endpoint, environment={"SKEP_NO_PING": "yes"})
        assert said == "", said
        out, said = run("peers", "--endpoint", node.endpoint, "--log-level", "debug",
                        environment={"SKEP_NO_PING": "yes"})
        assert "--no-ping, as the environment has it: left out, as --endpoint, on the command " \
            "line, contradicts it" in said, said
        said = refused(4, "127.0.0.1:9", "call", "ffn.0.0", "--initial-peers", "127.0.0.1:9",
                       timeout_option(1), environment={"SKEP_ENDPOINT": node.endpoint})
        assert "WARN" not in said, said
        out, said = run("find", "ffn.0.0", "--initial-peers", node.peer,
                        environment={"SKEP_RESOURCE": "k", "SKEP_WATCH": "yes"}, code=(0, 3))
        assert "--resource, as the environment has it: does not go together with UIDs" in said, said
        assert "--watch, as the environment has it: needs a prefix" in said, said
        config = swarm.path("node.conf")
        with open(config, "w") as file:
            file.write("no-dht = yes\nno-tracker = yes\nmax-batch-size = 4\n")
        joined = swarm.start("joined", *NODE, "--config", config, "--initial-peers", node.peer,
                             "--tracker-listen", "127.0.0.1:*", "--min-batch-size", "8",
                             "--batch-timeout", "1ms", "--expert-uids", "ffn.0.1", "--hidden-dim",
                             "16")
        log = joined.read_log()
        for lower, higher in (("no-dht", "initial-peers"), ("no-tracker", "tracker-listen"),
                              ("max-batch-size", "min-batch-size")):
            said = "--%s, as the configuration file has it: left out, as --%s, on the command line" % (
                lower, higher)
            assert log.count(said) == 1, log
        assert joined.facts["tracker"] is not None and joined.facts["dht_port"] > 0, joined.facts
        alone = swarm.start("alone", *NODE, "--no-dht", "--no-tracker",
                            environment={"SKEP_INITIAL_PEERS": node.peer, "SKEP_TRACKER_KEY": "k"})
        assert "WARN" not in alone.read_log(), alone.read_log()
        assert alone.facts["tracker"] is None and alone.facts["dht_port"] == 0, alone.facts
        tracker = swarm.start("tracker", "tracker", "--no-dht", "--port", "0",
                              environment={"SKEP_PORT_END": "9199"})
        assert "--port-end" not in tracker.read_log(), tracker.read_log()
        # Whoever contradicts himself in one place is told.
        refused(2, "--port-end 9100: expected more than --port 9190", "tracker", "--port", "9190",
                "--port-end", "9100")


def case_what_a_node_without_experts_says():
    """And the line to join by is complete, for a shell."""
    with Swarm() as swarm:
        node = swarm.node("node", [], [], "--swarm", "it's ours")
        log = node.read_log()
        assert "hosting no experts" in log and "WARN" not in log, log
        assert "--initial-peers %s --swarm 'it'\\''s ours'\n" % node.peer in log, log
        peer = swarm.bootstrap("peer", "--swarm", "plain-1")
        peer.wait_log("--initial-peers %s --swarm plain-1\n" % peer.peer)


def case_bootstrap_peers_that_do_not_answer():
    """The node starts, serves, says so and keeps trying."""
    with Swarm() as swarm:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
            silent.bind(("127.0.0.1", 0))
            address = "127.0.0.1:%d" % silent.getsockname()[1]
            node = swarm.node("node", ["ffn.0.0"], ["no-such-host.invalid:4222", address])
            node.wait_log("bootstrap peer no-such-host.invalid:4222: ")
            node.wait_log("bootstrap peer %s: does not answer on UDP" % address)
            silent.settimeout(30)
            for _ in range(3):
                silent.recv(2048)  # asked again and again
        x = swarm.path("x.npy")
        write_npy(x, (1, 16), [0] * 16)
        run("call", "ffn.0.0", "--endpoint", node.endpoint, "--input", x, "--output",
            swarm.path("y.npy"))
        assert node.stop() == 0
        refused(4, ["no DHT peer answered", "skep", "127.0.0.1:9: nothing listens on UDP port 9"], "find", "ffn.0.0", "--initial-peers",
                "127.0.0.1:9", timeout_option(1))
        refused(4, "no DHT peer answered", "find", "ffn.0.0", "--initial-peers",
                "no-such-host.invalid:4222", timeout_option(1))


def case_endpoints_that_are_no_nodes():
    closed = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    closed.bind(("127.0.0.1", 0))
    silent = socket.create_server(("127.0.0.1", 0))
    where = "127.0.0.1:%d" % closed.getsockname()[1]
    refused(1, [where, "refused"], "call", "ffn.0", "--endpoint", where)
    where = "127.0.0.1:%d" % silent.getsockname()[1]
    # Not stretched: less than the 3 s after which a client gives the handshake up by itself.
    refused(4, [where], "call", "ffn.0", "--endpoint", where, "--timeout", "1s")
    refused(1, ["no-such-host.invalid"], "call", "ffn.0", "--endpoint", "no-such-host.invalid:1")
    closed.close()
    silent.close()


def case_an_http_server_is_no_node():
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = "127.0.0.1:%d" % server.getsockname()[1]
        client = subprocess.Popen([SKEP, "call", "ffn.0", "--endpoint", where, timeout_option(20)],
                                  stderr=subprocess.PIPE, stdout=subprocess.PIPE)
        server.settimeout(30)
        connection, _ = server.accept()
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        _, said = client.communicate(timeout=60)
        connection.close()
        assert client.returncode == 1, said
        assert where in said.decode() and "Skep" in said.decode(), said


def case_settings_come_from_file_and_environment():
    with Swarm() as swarm:
        config = swarm.path("node.conf")
        with open(config, "w") as file:
            file.write("; a node\nlisten = 127.0.0.1:*\nexpert-uids = ffn.0.0\n  ffn.0.1\n"
                       "expert-cls = nop\nhidden-dim = 8\n")
        node = swarm.start("node", "node", "--config", config, "--expert-uids", "ffn.7.7",
                           environment={"SKEP_HIDDEN_DIM": "4", "SKEP_EXPERT_CLS": "ffn"})
        (expert,) = node.facts["experts"]
        assert (expert["uid"], expert["class"]) == ("ffn.7.7", "ffn"), expert
        out, _ = run("call", "ffn.7.7", "--endpoint", node.endpoint)
        assert "[rows, 4] F32" in out, out
        with open(config, "a") as file:
            file.write("hiden-dim = 8\n")
        refused(2, ["node.conf:7", "hiden-dim"], "node", "--config", config)


def case_one_node_says_who_it_is():
    with Swarm() as swarm:
        node = swarm.node("node", ["ffn.0.0"], [])
        (entry,) = json.loads(run("peers", "--endpoint", node.endpoint, "--json")[0])
        (listed,) = json.loads(run("peers", "--initial-peers", node.peer, "--json")[0])
        for field in ("peer_id", "endpoint", "state", "version", "experts"):
            assert entry[field] == listed[field], (field, entry, listed)
        assert entry["peer_id"] == node.facts["peer_id"] and entry["state"] == "online", entry
        table, _ = run("peers", "--endpoint", node.endpoint)
        row = table.splitlines()[1].split()
        assert row[:3] == [entry["peer_id"][:12], "online", entry["version"]], table
        alone = swarm.start("alone", *NODE, "--no-dht", "--insecure-plaintext")
        (entry,) = json.loads(run("peers", "--endpoint", alone.endpoint, "--insecure-plaintext",
                                  "--json")[0])
        assert (entry["peer_id"], entry["state"]) == (alone.facts["peer_id"], "online"), entry


def case_a_multiaddr_is_told_as_an_endpoint():
    for option in ("--initial-peers", "--endpoint"):
        refused(2, option + ': endpoint "/ip4/192.0.2.1/tcp/4222/p2p/Qm": a multiaddr, expected '
                "host:port, here 192.0.2.1:4222", "call", "ffn.0.0", option,
                "/ip4/192.0.2.1/tcp/4222/p2p/Qm")


def case_variables_of_a_kubernetes_service_do_no_harm():
    """What a pod gets beside a Service named `skep` with two ports."""
    service = {"SKEP_SERVICE_HOST": "10.96.3.7", "SKEP_SERVICE_PORT": "9190",
               "SKEP_SERVICE_PORT_TRACKER": "9190", "SKEP_SERVICE_PORT_DHT": "4222",
               "SKEP_PORT": "tcp://10.96.3.7:9190"}
    for port, protocol in (("9190", "TCP"), ("4222", "UDP")):
        name = "SKEP_PORT_%s_%s" % (port, protocol)
        service[name] = "%s://10.96.3.7:%s" % (protocol.lower(), port)
        service[name + "_PROTO"] = protocol.lower()
        service[name + "_PORT"] = port
        service[name + "_ADDR"] = "10.96.3.7"
    with Swarm() as swarm:
        tracker = swarm.start("tracker", "tracker", "--host", "127.0.0.1", "--no-dht",
                              environment=service)
        log = tracker.read_log()
        assert "environment: 13 variables of a Kubernetes Service" in log, log
        assert "is no option of any command" not in log, log
        at = str(tracker.facts["port"])
        out, said = run("query-tracker", "--port", at, environment=service)
        assert "Queue Status" in out and said == "", out + said
        # The same variable is the option where it has the form of one.
        out, _ = run("query-tracker", environment=dict(service, SKEP_PORT=at))
        assert "127.0.0.1" in out or "localhost:" + at in out, out
        node = swarm.node("node", ["ffn.0.0"], [], environment=service)
        assert "WARN" not in node.read_log(), node.read_log()


def case_log_lines_have_date_and_zone_or_are_json():
    form = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d "
                      r"(ERROR|WARN |INFO |DEBUG) \[[^]]+\] .")
    long_running = (("node", "--listen", "127.0.0.1:*"), ("dht", "--listen", "127.0.0.1:*"),
                    ("tracker", "--host", "127.0.0.1", "--port", "0"))
    with Swarm() as swarm:
        for command in long_running:
            process = swarm.start(command[0], *command, environment={"SKEP_TYPO_OF_\xe4": "1"})
            json_one = swarm.start(command[0] + "-json", *command, "--log-format", "json",
                                   environment={"SKEP_LOG_LEVEL": "debug", "SKEP_TYPO_\xe4\n\"": "1"})
            process.stop()
            json_one.stop()
            lines = process.read_log().splitlines()
            assert len(lines) > 2 and all(form.match(line) for line in lines), process.read_log()
            objects = [json.loads(line) for line in json_one.read_log().splitlines()]
            assert len(objects) > 2, objects
            for line in objects:
                assert list(line) == ["time", "level", "thread", "message"], line
                then = datetime.datetime.fromisoformat(line["time"])
                assert then.utcoffset() is not None, line
            assert any("TYPO" in line["message"] for line in objects), objects


def case_ipv6_has_its_own_messages():
    if not has_ipv6():
        return "skipped: no IPv6 here"
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as s:
        s.bind(("::1", 0))
        taken = "[::1]:%d" % s.getsockname()[1]
        refused(1, [taken, "in use", "UDP"], "dht", "--listen", taken)
    return None


main(globals())
