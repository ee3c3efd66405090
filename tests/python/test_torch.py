"""Remote experts and mixtures as modules of PyTorch: gradients equal local autograd."""

import copy
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import torch

import skep
from conftest import GOLDEN, ROOT, SKEP, new_swarm_name

SKEP_PYTHON = os.path.join(ROOT, "python")


class LocalFFN(torch.nn.Module):
    """docs/classes.md, "ffn"."""

    def __init__(self, width):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width), torch.nn.LayerNorm(4 * width), torch.nn.ReLU(),
            torch.nn.Linear(4 * width, 4 * width), torch.nn.LayerNorm(4 * width), torch.nn.ReLU(),
            torch.nn.Linear(4 * width, width))

    def forward(self, x):
        return x + self.layers(x)


def save_file(tensors, path):
    """A safetensors file of float32 tensors."""
    header, data = {}, b""
    for name, t in tensors.items():
        raw = t.detach().numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(t.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def remote(swarm, uid="ffn.0.0"):
    return skep.get_experts(swarm.client, [uid])[0]


def test_get_experts(swarm):
    found = skep.get_experts(swarm.client, ["ffn.0.0", "ffn.8.8"])
    assert isinstance(found[0], skep.RemoteExpert) and found[1] is None
    assert found[0].uid == "ffn.0.0" and found[0].peer_id == swarm.node.peer_id
    future = skep.get_experts(swarm.client, ["ffn.0.1"], return_future=True)
    assert future.result(20)[0].uid == "ffn.0.1"
    with pytest.raises(ValueError, match="not an expert UID"):
        skep.get_experts(swarm.client, ["ffn"])


def test_outputs_gradients_and_steps_equal_local_autograd(nodes, tmp_path):
    """The same weights here and at a node that trains with SGD, for three steps."""
    name, folder = new_swarm_name(), str(tmp_path / "experts")
    torch.manual_seed(5)
    local = LocalFFN(8)
    optimizer = torch.optim.SGD(local.parameters(), lr=0.05)
    save_file(local.state_dict(), str(tmp_path / "ffn.safetensors"))
    subprocess.run([SKEP, "import", str(tmp_path / "ffn.safetensors"), "--uid", "step.0",
                    "--expert-cls", "ffn", "--checkpoint-dir", folder], check=True)
    node = nodes(name, "--load-experts", "--checkpoint-dir", folder, "--optimizer", "sgd",
                 "--learning-rate", "0.05")
    with skep.Client(node.address, swarm=name) as client:
        client.wait_joined(20)
        expert = skep.get_experts(client, ["step.0"])[0]
        for step in range(3):
            x = torch.randn(6, 8)
            ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
            y, expected = expert(ours), local(theirs)
            assert torch.allclose(y, expected, atol=1e-4)
            y.pow(2).sum().backward()
            optimizer.zero_grad()
            expected.pow(2).sum().backward()
            optimizer.step()
            assert torch.allclose(ours.grad, theirs.grad, atol=1e-3, rtol=1e-4)
        assert expert.expert.fetch_info().updates == 3


def test_an_input_that_needs_no_gradient_trains_all_the_same(nodes):
    name = new_swarm_name()
    node = nodes(name, "--expert-uids", "t.0", "--hidden-dim", "8", "--optimizer", "sgd")
    with skep.Client(node.address, swarm=name) as client:
        client.wait_joined(20)
        expert = skep.get_experts(client, ["t.0"])[0]
        expert(torch.ones(2, 8)).sum().backward()
        assert expert.expert.fetch_info().updates == 1
        with torch.no_grad():
            assert not expert(torch.ones(2, 8)).requires_grad
        assert expert.expert.fetch_info().updates == 1
        inner = torch.ones(2, 8, requires_grad=True)
        grad = torch.autograd.grad(expert(inner).pow(2).sum(), inner, create_graph=True)[0]
        with pytest.raises(RuntimeError, match="once_differentiable|twice"):
            grad.sum().backward()


def test_names_of_inputs_and_messages(swarm):
    expert = remote(swarm)
    x = torch.ones(2, 16)
    assert torch.equal(expert(x=x), expert(x))
    with pytest.raises(TypeError, match="z is unexpected, x is missing"):
        expert(z=x)
    with pytest.raises(TypeError, match="input 0 is list"):
        expert([1, 2])
    with pytest.raises(skep.InvalidArgument, match=r"input 0 \(x\): \[2, 15\] F32, expected"):
        expert(torch.ones(2, 15))
    with pytest.raises(skep.InvalidArgument, match="F64"):
        expert(torch.ones(2, 16, dtype=torch.float64))
    assert expert(torch.ones(16, 3).t()).shape == (3, 16)


def test_two_inputs_of_which_one_needs_gradients(nodes):
    name = new_swarm_name()
    node = nodes(name, "--expert-uids", "d.0", "--expert-cls", "det_dropout", "--hidden-dim", "8",
                 "--optimizer", "none")
    with skep.Client(node.address, swarm=name) as client:
        client.wait_joined(20)
        expert = skep.get_experts(client, ["d.0"])[0]
        specs = expert.info.inputs
        x = torch.randn(3, 8, requires_grad=True)
        mask = torch.ones([3 if n == -1 else n for n in specs[1].shape],
                          dtype=getattr(torch, specs[1].dtype))
        y = expert(x, mask)
        y.sum().backward()
        assert x.grad is not None and mask.grad is None
        assert torch.allclose(expert(x, **{specs[1].name: mask}), y)


def test_deepcopy_and_pickle(swarm):
    expert = remote(swarm)
    x = torch.ones(2, 16)
    assert torch.allclose(copy.deepcopy(expert)(x), expert(x), atol=1e-6)
    again = pickle.loads(pickle.dumps(expert))
    assert torch.allclose(again(x), expert(x), atol=1e-6)
    again.expert.client.close()
    assert list(expert.parameters()) == [] and expert.state_dict() == {}


def test_bfloat16_and_booleans_without_numpy(swarm):
    from skep import _tensors
    for t in (torch.ones(2, 3, dtype=torch.bfloat16), torch.ones(2, dtype=torch.float16),
              torch.tensor([True, False])):
        views = _tensors.Views([t])
        assert views.tensors[0].data == t.data_ptr()


def test_a_capsule_that_nobody_takes_is_freed():
    """400 MB of them would show."""
    import ctypes

    from skep import _abi, _tensors
    from skep._library import library
    shape = (ctypes.c_int64 * 1)(1 << 20)

    def make():
        out = ctypes.POINTER(_abi.DLManagedTensor)()
        assert library().skep_tensor_new(_abi.DLDataType(2, 32, 1), 1, shape, ctypes.byref(out),
                                         None) == 0
        ctypes.memset(out.contents.dl_tensor.data, 1, 4 << 20)
        return _tensors.Tensor(out)

    def resident():
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    make().__dlpack__()
    before = resident()
    for _ in range(100):
        make().__dlpack__()
    assert resident() - before < 100 << 20
    assert torch.from_dlpack(make()).shape == (1 << 20,)


def make_mixture(client, **options):
    settings = dict(in_features=16, grid_size=(2, 2), dht=client, uid_prefix="ffn.", k_best=4)
    settings.update(options)
    torch.manual_seed(7)
    return skep.RemoteMixtureOfExperts(**settings)


def test_mixture_equals_the_sum_over_its_experts(swarm):
    mixture = make_mixture(swarm.client)
    x = torch.randn(5, 16, requires_grad=True)
    y = mixture(x)
    y.pow(2).sum().backward()

    x2 = x.detach().clone().requires_grad_()
    proj = copy.deepcopy(mixture.proj)
    proj.zero_grad()
    first, second = proj(x2).split_with_sizes((2, 2), dim=-1)
    scores = torch.stack([first[:, i] + second[:, j] for i in range(2) for j in range(2)], dim=1)
    weights = torch.softmax(scores, dim=1)
    experts = skep.get_experts(swarm.client, ["ffn.%d.%d" % (i, j) for i in range(2)
                                              for j in range(2)])
    expected = sum(weights[:, n:n + 1] * experts[n](x2) for n in range(4))
    expected.pow(2).sum().backward()
    assert torch.allclose(y, expected, atol=1e-4)
    assert torch.allclose(x.grad, x2.grad, atol=1e-3)
    assert torch.allclose(mixture.proj.weight.grad, proj.weight.grad, atol=1e-2, rtol=1e-3)
    chosen = mixture.choices(0)
    assert chosen == [] or len(chosen) == 4


def test_mixture_tells_its_choices(swarm):
    mixture = make_mixture(swarm.client, k_best=2)
    mixture(torch.randn(3, 16))
    chosen = mixture.choices(1)
    assert len(chosen) == 2 and abs(sum(c["weight"] for c in chosen) - 1) < 1e-6
    assert chosen[0]["score"] >= chosen[1]["score"] and chosen[0]["status"] == "OK"


def test_mixture_state_dict_and_copies(swarm):
    mixture = make_mixture(swarm.client)
    assert list(mixture.state_dict()) == ["proj.weight", "proj.bias"]
    buffer = io.BytesIO()
    torch.save(mixture.state_dict(), buffer)
    buffer.seek(0)
    other = make_mixture(swarm.client)
    with torch.no_grad():
        other.proj.weight.zero_()
    other.load_state_dict(torch.load(buffer))
    x = torch.randn(2, 16)
    assert torch.allclose(other(x), mixture(x), atol=1e-5)
    assert torch.allclose(copy.deepcopy(mixture)(x), mixture(x), atol=1e-5)
    again = pickle.loads(pickle.dumps(mixture))
    assert torch.allclose(again(x), mixture(x), atol=1e-5)
    again._layer.client.close()


def test_mixture_of_what_is_not_there(swarm):
    nothing = make_mixture(swarm.client, uid_prefix="nobody.", forward_timeout=3)
    with pytest.raises(skep.Error, match="nobody"):
        nothing(torch.randn(2, 16))
    with pytest.raises(ValueError, match="uid_prefix"):
        make_mixture(swarm.client, uid_prefix=".")
    with pytest.raises(NotImplementedError):
        make_mixture(swarm.client)(torch.randn(2, 16), torch.randn(2, 16))


def test_a_node_killed_in_the_middle(nodes):
    name = new_swarm_name()
    common = ["--hidden-dim", "16", "--optimizer", "sgd"]
    first = nodes(name, "--expert-uids", "m.0.0,m.0.1", *common)
    second = nodes(name, "--expert-uids", "m.1.0,m.1.1", *common, initial_peers=[first.address])
    with skep.Client([first.address, second.address], swarm=name, timeout=20) as client:
        client.wait_joined(20)
        client.find_many(["m.0.0", "m.1.0"])
        mixture = make_mixture(client, uid_prefix="m.", forward_timeout=5, backward_timeout=5)
        for step in range(8):
            if step == 3:
                second.kill()
            x = torch.randn(4, 16, requires_grad=True)
            mixture(x).sum().backward()
            assert torch.isfinite(x.grad).all()


def test_switch(swarm):
    torch.manual_seed(3)
    switch = skep.RemoteSwitchMixtureOfExperts(in_features=16, grid_size=(2, 2), dht=swarm.client,
                                               uid_prefix="ffn.", jitter_eps=0)
    x = torch.randn(6, 16, requires_grad=True)
    y, loss = switch(x)
    (y.pow(2).sum() + 0.1 * loss).backward()
    assert y.shape == x.shape and loss.item() > 0
    assert switch.proj.weight.grad.abs().sum() > 0 and x.grad.abs().sum() > 0
    assert abs(float(switch.utilization(0).sum()) - 1) < 1e-6
    switch.eval()
    first, second = switch.proj(x).split_with_sizes((2, 2), dim=-1)
    p, q = torch.softmax(first, 1).max(1), torch.softmax(second, 1).max(1)
    expected = torch.stack([
        p.values[n] * q.values[n]
        * remote(swarm, "ffn.%d.%d" % (p.indices[n], q.indices[n]))(x[n:n + 1])[0]
        for n in range(6)])
    assert torch.allclose(switch(x)[0], expected, atol=1e-4)


@pytest.mark.parametrize("grid", ["grid_4x4", "grid_8x8x8"])
def test_beam_search_finds_what_pytorch_found(nodes, grid):
    with open(os.path.join(GOLDEN, "moe", grid + ".json")) as f:
        data = json.load(f)
    searched = 0
    for scenario in data["scenarios"]:
        if not scenario["alive"]:
            continue
        name = new_swarm_name()
        node = nodes(name, "--expert-uids", ",".join(scenario["alive"]), "--hidden-dim", "8",
                     "--expert-cls", "nop")
        with skep.Client(node.address, swarm=name) as client:
            client.wait_joined(20)
            searcher = skep.MoEBeamSearcher(client, data["uid_prefix"], data["grid"])
            samples = scenario["samples"]
            batch = [np.array([s["grid_scores"][d] for s in samples])
                     for d in range(len(data["grid"]))]
            found = searcher.batch_find_best_experts(batch, data["k"])
            for sample, experts in zip(samples, found):
                assert [e.uid for e in experts] == sample["beam"]
            first = searcher.find_best_experts(samples[0]["grid_scores"], data["k"])
            assert [e.uid for e in first] == samples[0]["beam"]
            successors = searcher.get_active_successors([data["uid_prefix"]])
            assert sorted(successors[data["uid_prefix"]]) == sorted(
                {int(u.split(".")[1]) for u in scenario["alive"]})
            searched += 1
        node.stop()
    assert searched >= 3


def test_dht_of_its_own(nodes):
    name = new_swarm_name()
    with skep.DHT(swarm=name, listen="127.0.0.1:*") as dht:
        assert len(dht.get_visible_maddrs()) == 1 and dht.is_alive()
        nodes(name, "--expert-uids", "own.0", "--hidden-dim", "8",
              initial_peers=dht.get_visible_maddrs())
        expert = skep.get_experts(dht, ["own.0"])[0]
        assert expert(torch.ones(2, 8)).shape == (2, 8)
        with skep.DHT(dht.get_visible_maddrs(), swarm=name, client_mode=True) as other:
            assert skep.get_experts(other, ["own.0"])[0] is not None
        with pytest.raises(NotImplementedError, match="signed records"):
            dht.store("key", 1, 2)
    assert not dht.is_alive()
    with pytest.raises(skep.FailedPrecondition):
        dht.client


def test_threads_with_autograd(swarm):
    expert = remote(swarm)
    failures = []

    def work():
        try:
            for _ in range(20):
                x = torch.randn(3, 16, requires_grad=True)
                expert(x).sum().backward()
                assert x.grad is not None
        except Exception as e:  # told by the main thread
            failures.append(e)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def test_the_digits_are_learned_while_a_node_is_killed(nodes, tmp_path):
    """examples/python/digits.py on three nodes, of which one is killed halfway."""
    name = new_swarm_name()
    uids = ["digits.%d.%d" % (i, j) for i in range(4) for j in range(4)]
    started = []
    for k in range(3):
        started.append(nodes(name, "--expert-uids", ",".join(uids[k::3]), "--hidden-dim", "64",
                             "--learning-rate", "3e-4",
                             initial_peers=[n.address for n in started]))
    progress = tmp_path / "progress"
    example = os.path.join(os.path.dirname(SKEP_PYTHON), "examples/python/digits.py")
    trainer = subprocess.Popen(
        [sys.executable, example, "--initial-peers", started[0].address, "--swarm", name,
         "--epochs", "8", "--progress", str(progress)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=dict(os.environ, PYTHONPATH=SKEP_PYTHON))
    while trainer.poll() is None:
        if progress.exists() and len(progress.read_text().splitlines()) >= 4:
            started[1].kill()
            break
        time.sleep(0.02)
    said = trainer.communicate(timeout=300)[0]
    assert trainer.returncode == 0, said  # 96% or more
    assert len(progress.read_text().splitlines()) == 8


@pytest.mark.parametrize("x, part", [
    (torch.zeros(0, 16), "0 rows, expected 1 or more"),
    (torch.zeros(2, 17), r"\[2, 17\] F32, expected \[any, 16\] F32"),
    (torch.zeros(2, 16, dtype=torch.float64), r"\[2, 16\] F64, expected \[any, 16\] F32"),
    (torch.zeros(16), r"\[16\] F32, expected \[any, 16\] F32"),
])
def test_inputs_that_do_not_fit_are_named(swarm, x, part):
    with pytest.raises(skep.InvalidArgument, match=r"input 0 \(x\): " + part):
        remote(swarm)(x)


def test_a_mixture_of_no_samples_is_empty(swarm):
    mixture = skep.RemoteMixtureOfExperts(in_features=16, grid_size=(2, 2), dht=swarm.client,
                                          uid_prefix="ffn.", k_best=2)
    x = torch.zeros(0, 16, requires_grad=True)
    y = mixture(x)
    y.sum().backward()
    assert y.shape == x.grad.shape == (0, 16)
