"""skep.Client with NumPy, against real nodes."""

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import skep
from conftest import ROOT, new_swarm_name


def ones(rows=3, width=16):
    return np.ones((rows, width), "float32")


def test_find_and_call(swarm):
    expert = swarm.client.find("ffn.0.0")
    y, = expert.forward(ones())
    assert y.shape == (3, 16) and y.dtype == np.float32
    assert np.array_equal(y[0], y[2])
    grad, = expert.backward([ones()], [ones()])
    assert grad.shape == (3, 16)
    assert expert.peer_id == swarm.node.peer_id
    assert expert.providers()[0].endpoint == swarm.node.endpoint
    assert expert.info.cls == "ffn" and expert.info.inputs[0].shape == (-1, 16)


def test_results_live_as_long_as_their_arrays(swarm):
    row = swarm.client.call("ffn.0.0", ones(64))[0][5]
    kept = row.copy()
    for _ in range(50):
        swarm.client.call("ffn.0.1", ones(64))
    assert np.array_equal(row, kept)


def test_arrays_that_are_not_contiguous(swarm):
    x = np.random.default_rng(1).normal(size=(16, 6)).astype("float32")
    expert = swarm.client.find("ffn.0.0")
    assert np.array_equal(expert.forward(x.T)[0], expert.forward(x.T.copy())[0])
    assert np.array_equal(expert.forward(np.asfortranarray(x.T))[0], expert.forward(x.T)[0])
    assert np.allclose(expert.forward(x.T[::2])[0], expert.forward(x.T)[0][::2], atol=1e-5)


def test_find_many_and_prefixes(swarm):
    found = swarm.client.find_many(["ffn.0.1", "ffn.7.7", "ffn.1.1"])
    assert [e and e.uid for e in found] == ["ffn.0.1", None, "ffn.1.1"]
    assert swarm.client.find_many([]) == []
    assert sorted(swarm.client.find_prefix("ffn.1.")) == ["ffn.1.0", "ffn.1.1"]
    assert [p.peer_id for p in swarm.client.peers()] == [swarm.node.peer_id]
    peer = swarm.client.peer_at(swarm.node.endpoint)
    assert peer.peer_id == swarm.node.peer_id and peer.status == "OK"


def test_errors_are_classes(swarm):
    with pytest.raises(skep.NotFound, match="ffn.9.9") as failed:
        swarm.client.find("ffn.9.9")
    assert isinstance(failed.value, KeyError) and failed.value.status == "NOT_FOUND"
    with pytest.raises(ValueError, match="leading zero"):
        swarm.client.find("ffn.00")
    expert = swarm.client.find("ffn.0.0")
    with pytest.raises(skep.InvalidArgument, match=r"input 0 \(x\): \[3, 17\] F32, expected"):
        expert.forward(ones(3, 17))
    with pytest.raises(skep.InvalidArgument, match=r"F64, expected \[any, 16\] F32"):
        expert.forward(ones().astype("float64"))
    with pytest.raises(skep.InvalidArgument, match="expected 1"):
        expert.forward(ones(), ones())
    with pytest.raises(skep.InvalidArgument):
        expert.forward(np.empty((0, 16), "float32"))
    with pytest.raises(TypeError, match="complex64"):
        expert.forward(np.ones((1, 16), "complex64"))
    with pytest.raises(ValueError, match="compression 'zip'"):
        expert.forward(ones(), compression="zip")
    for bad in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="timeout"):
            expert.forward(ones(), timeout=bad)
    assert issubclass(skep.DeadlineExceeded, TimeoutError)
    assert issubclass(skep.Unavailable, ConnectionError)


def test_without_any_peer():
    with pytest.raises(skep.Unavailable):
        with skep.Client("127.0.0.1:9", swarm=new_swarm_name(), dht_listen="127.0.0.1:*") as client:
            client.find("ffn.0.0", timeout=1.5)
    with skep.Client(no_dht=True) as client:
        with pytest.raises(skep.FailedPrecondition):
            client.find("ffn.0.0")
        with pytest.raises(ConnectionError):
            client.expert_at("ffn.0.0", "127.0.0.1:9").forward(ones(), timeout=5)


def test_compression(swarm):
    expert = swarm.client.find("ffn.0.0")
    x = np.random.default_rng(2).normal(size=(8, 16)).astype("float32")
    exact, = expert.forward(x)
    for name in ("float16", "bfloat16", "blockwise8", "FLOAT16", skep.CompressionType.MEANSTD_16BIT):
        y, = expert.forward(x, compression=name)
        assert np.abs(y - exact).max() < 0.1
    assert not np.array_equal(expert.forward(x, compression="float16")[0], exact)


def test_asyncio(swarm):
    async def many():
        expert = await swarm.client.afind("ffn.0.0")
        return await asyncio.gather(*[expert.aforward(ones(1 + i)) for i in range(30)])

    results = asyncio.run(many())
    assert [r[0].shape[0] for r in results] == list(range(1, 31))

    async def cancelled():
        expert = await swarm.client.afind("ffn.0.0")
        task = asyncio.ensure_future(expert.aforward(ones()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return (await expert.aforward(ones()))[0].shape

    assert asyncio.run(cancelled()) == (3, 16)


def test_eight_threads(swarm):
    expert = swarm.client.find("ffn.0.0")
    expected, = expert.forward(ones())
    failures = []

    def work():
        for _ in range(100):
            if not np.allclose(expert.forward(ones())[0], expected, atol=1e-6):
                failures.append("other outputs")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def test_watch(swarm, nodes):
    appeared = threading.Event()
    seen = []

    def changed(event, uid, providers):
        seen.append((event, uid, len(providers)))
        if uid == "late.0":
            appeared.set()

    with swarm.client.watch("late.", changed) as watch:
        watch.wait_ready(20)
        nodes(swarm.name, "--expert-uids", "late.0", "--hidden-dim", "8",
              initial_peers=[swarm.node.address])
        assert appeared.wait(30)
        assert ("appeared", "late.0", 1) in seen
        assert "late.0" in watch.experts() and len(watch) == 1


def test_a_killed_node_is_replaced(nodes):
    name = new_swarm_name()
    common = ["--expert-uids", "r.0", "--hidden-dim", "16", "--seed", "3", "--optimizer", "none"]
    first = nodes(name, *common)
    second = nodes(name, *common, initial_peers=[first.address])
    peers = [first.address, second.address]
    with skep.Client(peers, swarm=name, timeout=30) as client:
        client.wait_joined(20)
        expert = client.find("r.0")
        expected, = expert.forward(ones())
        first.kill()
        for _ in range(5):
            assert np.allclose(expert.forward(ones())[0], expected, atol=1e-6)


def test_use_after_close(swarm):
    client = skep.Client(swarm.node.address, swarm=swarm.name)
    client.wait_joined(20)
    expert = client.find("ffn.0.0")
    client.close()
    client.close()
    for use in (lambda: expert.forward(ones()), lambda: client.find("ffn.0.0"),
                lambda: expert.info):
        with pytest.raises(skep.FailedPrecondition, match="closed"):
            use()


def test_closing_ends_calls(nodes):
    name = new_swarm_name()
    node = nodes(name, "--expert-uids", "slow.0", "--hidden-dim", "16")
    client = skep.Client(node.address, swarm=name, timeout=60)
    client.wait_joined(20)
    expert = client.find("slow.0")
    expert.forward(ones())
    os.kill(node.process.pid, signal.SIGSTOP)
    failed = []

    def call():
        try:
            expert.forward(ones())
        except skep.Error as e:
            failed.append(e)

    thread = threading.Thread(target=call)
    thread.start()
    while client.stats["calls"] < 2:
        pass
    client.close()
    thread.join(30)
    os.kill(node.process.pid, signal.SIGCONT)
    assert not thread.is_alive() and failed


CTRL_C = """
import os, signal, sys, threading, time
import numpy as np, skep
client = skep.Client(sys.argv[1], swarm=sys.argv[2], timeout=60)
client.wait_joined(20)
expert = client.find("ffn.0.0")
os.kill(int(sys.argv[3]), signal.SIGSTOP)
def interrupt():
    while client.stats["calls"] < 1:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
    expert.forward(np.ones((1, 16), "float32"))
except KeyboardInterrupt:
    print("interrupted")
try:
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    client.find("nobody.0", timeout=15)
except KeyboardInterrupt:
    print("interrupted")
os.kill(int(sys.argv[3]), signal.SIGCONT)
client.close()
"""


def run_python(program, *arguments, timeout=60):
    environment = dict(os.environ, PYTHONPATH=os.path.join(ROOT, "python"))
    return subprocess.run([sys.executable, "-c", program, *arguments], timeout=timeout,
                          capture_output=True, text=True, env=environment)


def test_ctrl_c_ends_a_waiting_call(nodes):
    name = new_swarm_name()
    node = nodes(name, "--expert-uids", "ffn.0.0", "--hidden-dim", "16")
    done = run_python(CTRL_C, node.address, name, str(node.process.pid))
    assert done.stdout.split() == ["interrupted"] * 2, done.stderr


FORK = """
import os, sys
import numpy as np, skep
client = skep.Client(sys.argv[1], swarm=sys.argv[2])
client.wait_joined(20)
expert = client.find("ffn.0.0")
child = os.fork()
if child == 0:
    for use in (lambda: expert.forward(np.ones((1, 16), "float32")),
                lambda: client.find("ffn.0.0"), lambda: skep.Client(no_dht=True)):
        try:
            use()
            os._exit(1)
        except skep.FailedPrecondition as e:
            assert "forked" in str(e) and "spawn" in str(e)
    del expert, client
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
expert.forward(np.ones((1, 16), "float32"))
client.close()
print("fine")
"""


def test_a_forked_child_gets_an_error(swarm):
    done = run_python(FORK, swarm.node.address, swarm.name)
    assert done.stdout.strip() == "fine", done.stderr


def test_pickling_keeps_the_address(swarm):
    expert = swarm.client.find("ffn.0.0")
    expected, = expert.forward(ones())
    copy = pickle.loads(pickle.dumps(expert))
    assert copy is not expert and copy.uid == "ffn.0.0"
    assert np.allclose(copy.forward(ones())[0], expected, atol=1e-6)
    copy.client.close()


def test_many_calls_without_growth(swarm):
    expert = swarm.client.find("ffn.0.0")

    def resident():
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    for _ in range(1000):
        expert.forward(ones(64))
    before, descriptors = resident(), len(os.listdir("/proc/self/fd"))
    for _ in range(10000):
        expert.forward(ones(64))
    # 10,000 results of 4 KiB would be 40 MB.
    assert resident() - before < 10 << 20
    assert len(os.listdir("/proc/self/fd")) <= descriptors
