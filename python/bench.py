#!/usr/bin/python3
"""What Python costs: calls, mixtures and hosted modules, each beside its baseline in the same run.

    python/bench.py [--build build/release] [--rounds 5] [--json]

Baselines: a C program (python/bench_baseline.c) that makes the same calls to the same nodes, and a
plain training loop of PyTorch. Measurements and baselines take turns; medians and ratios are shown.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
SWARM = "python-bench-%d" % os.getpid()
WIDTH = 1024  # float32: a row has 4 KB
ROWS_8MB = 2048
MB_BOTH_WAYS = 2 * ROWS_8MB * WIDTH * 4 / 1e6
CALLS, LARGE_CALLS, PASSES = 500, 12, 50
HOSTED_WIDTH, HOSTED_BATCH = 1024, 512


class Processes:
    """Nodes and the C program, ended with this one."""

    def __init__(self, build):
        self.build, self.all = build, []

    def start(self, *command, **options):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)
        self.all.append(process)
        return process

    def node(self, *options, peers=()):
        process = self.start(
            os.path.join(self.build, "src/cli/skep"), "node", "--listen", "127.0.0.1:*",
            "--dht-listen", "127.0.0.1:*", "--swarm", SWARM, "--no-tracker", "--json",
            "--log-level", "error", *options,
            *(["--initial-peers", ",".join(peers)] if peers else []))
        return json.loads(process.stdout.readline())["initial_peers"]

    def end(self):
        for process in self.all:
            process.send_signal(signal.SIGTERM)
        for process in self.all:
            process.wait(20)


def baseline_program(build, folder):
    """Compiles the C program against this tree's headers and library."""
    out = os.path.join(folder, "bench_baseline")
    subprocess.run(["cc", "-std=gnu17", "-O2", "-I", os.path.join(ROOT, "include"), "-o", out,
                    os.path.join(HERE, "bench_baseline.c"),
                    os.path.join(build, "libskep.so.0"), "-Wl,-rpath," + build], check=True)
    return out


class Measure:
    """Runs of one thing and of its baseline, by turns."""

    def __init__(self, name, unit, limit, ours, baseline):
        self.name, self.unit, self.limit = name, unit, limit
        self.ours, self.baseline = [], []
        self.functions = ours, baseline

    def turn(self):
        self.ours.append(self.functions[0]())
        self.baseline.append(self.functions[1]())

    def row(self):
        ours, baseline = statistics.median(self.ours), statistics.median(self.baseline)
        return {"name": self.name, "unit": self.unit, "python": round(ours, 3),
                "baseline": round(baseline, 3), "ratio": round(ours / baseline, 3),
                "difference": round(ours - baseline, 3), "wanted": self.limit}


def measures(processes, program, peer, gate):
    import torch
    from torch import nn

    import skep

    c = processes.start(program, SWARM, peer, stdin=subprocess.PIPE)

    def ask(line):
        c.stdin.write(line + "\n")
        c.stdin.flush()
        return float(c.stdout.readline())

    dht = skep.DHT([peer], swarm=SWARM, client_mode=True)
    expert = dht.client.find("bench.0")

    def seconds(function, count):
        start = time.perf_counter()
        for _ in range(count):
            function()
        return (time.perf_counter() - start) / count

    small, large = torch.randn(1, WIDTH), torch.randn(ROWS_8MB, WIDTH)
    mixture = skep.RemoteMixtureOfExperts(in_features=64, grid_size=(4, 4), dht=dht,
                                          uid_prefix="grid.", k_best=4)
    x, grad = torch.randn(64, 64), torch.randn(64, 64)

    with open(gate, "wb") as f:  # so that both choose the same experts
        for t in (x, mixture.proj.weight, mixture.proj.bias):
            f.write(t.detach().numpy().tobytes())

    def one_pass():
        mixture(x.requires_grad_()).backward(grad)

    class FFN(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.layers = nn.Sequential(
                nn.Linear(width, 4 * width), nn.LayerNorm(4 * width), nn.ReLU(),
                nn.Linear(4 * width, 4 * width), nn.LayerNorm(4 * width), nn.ReLU(),
                nn.Linear(4 * width, width))

        def forward(self, x):
            return x + self.layers(x)

    def importing(module):
        program = ("import time; t = time.perf_counter(); import %s; "
                   "print(time.perf_counter() - t)" % module)
        return 1000 * float(subprocess.run([sys.executable, "-c", program], capture_output=True,
                                           text=True, check=True).stdout)

    hosted, local = FFN(HOSTED_WIDTH), FFN(HOSTED_WIDTH)
    local.load_state_dict(hosted.state_dict())
    adam = torch.optim.Adam(local.parameters())
    backend = skep.ModuleBackend("hosted.0", hosted,
                                 optimizer=torch.optim.Adam(hosted.parameters()),
                                 args_schema=(skep.BatchTensorDescriptor(HOSTED_WIDTH),))
    server = skep.Server(dht, {"hosted.0": backend}, start=True)
    hosted_expert = dht.client.find("hosted.0")
    batch, up = torch.randn(HOSTED_BATCH, HOSTED_WIDTH), torch.randn(HOSTED_BATCH, HOSTED_WIDTH)

    def plain_step():
        inputs = batch.clone().requires_grad_()
        local(inputs).backward(up)
        adam.step()
        adam.zero_grad()

    yield Measure("call of 4 KB, nop", "us", "difference at most 100",
                  lambda: 1e6 * seconds(lambda: expert.forward(small), CALLS),
                  lambda: 1e6 * ask("call 1 %d %d" % (WIDTH, CALLS)) / CALLS)
    yield Measure("calls of 8 MB, nop", "MB/s", "ratio at least 0.9",
                  lambda: MB_BOTH_WAYS / seconds(lambda: expert.forward(large), LARGE_CALLS),
                  lambda: MB_BOTH_WAYS * LARGE_CALLS / ask(
                      "call %d %d %d" % (ROWS_8MB, WIDTH, LARGE_CALLS)))
    yield Measure("mixture, 64 samples, k 4", "passes/s", "ratio at least 0.85",
                  lambda: 1 / seconds(one_pass, PASSES), lambda: PASSES / ask("moe %d %s" % (PASSES, gate)))
    yield Measure("import skep; baseline: numpy", "ms", "at most 150",
                  lambda: importing("skep"), lambda: importing("numpy"))
    yield Measure("hosted ffn 1024 with Adam, 512 rows", "steps/s", "ratio at least 0.9",
                  lambda: 1 / seconds(
                      lambda: hosted_expert.backward([batch], [up], timeout=600), 1),
                  lambda: 1 / seconds(plain_step, 1))
    server.shutdown()
    dht.shutdown()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(ROOT, "build/release"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help="a part of the names of what to measure")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    build = os.path.abspath(arguments.build)
    os.environ["SKEP_LIBRARY"] = os.path.join(build, "libskep.so.0")
    os.environ["PYTHONPATH"] = HERE
    sys.path.insert(0, HERE)
    processes, rows = Processes(build), []
    with tempfile.TemporaryDirectory() as folder:
        try:
            peer = processes.node("--expert-uids", "bench.0", "--expert-cls", "nop",
                                  "--hidden-dim", str(WIDTH), "--max-batch-size", str(ROWS_8MB))
            for i in range(4):
                processes.node("--expert-uids", ",".join("grid.%d.%d" % (i, k) for k in range(4)),
                               "--hidden-dim", "64", peers=[peer])
            for measure in measures(processes, baseline_program(build, folder), peer,
                                    os.path.join(folder, "gate")):
                if arguments.only and arguments.only not in measure.name:
                    continue
                measure.turn()  # warms both up
                measure.ours.clear()
                measure.baseline.clear()
                for _ in range(arguments.rounds):
                    measure.turn()
                rows.append(measure.row())
                if not arguments.json:
                    r = rows[-1]
                    print("%-38s %10.4g %10.4g %-9s ratio %.2f  (%s)"
                          % (r["name"], r["python"], r["baseline"], r["unit"], r["ratio"],
                             r["wanted"]), flush=True)
        finally:
            processes.end()
    if arguments.json:
        json.dump(rows, sys.stdout, indent=2)
        print()


if __name__ == "__main__":
    main()
