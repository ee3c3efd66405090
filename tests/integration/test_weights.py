"""Weights out of checkpoints and into them: plain files, PyTorch's, whole mixtures of experts."""

import json
import math
import os
import random
import struct
import subprocess

from safetensors_files import write_shard
from swarm import (PATIENCE, SKEP, Swarm, call, main, read_safetensors, refused, run, until,
                   write_safetensors)

TORCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_modules.py")
PYTHON = "/usr/bin/python3"  # Debian's, which python3-torch is for


def with_torch(*arguments):
    """Runs the script beside this one; None if PyTorch is not installed."""
    if not os.path.exists(PYTHON):
        return None
    done = subprocess.run([PYTHON, TORCH, *arguments], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=120 * PATIENCE)
    if done.returncode == 77:
        return None
    assert done.returncode == 0, done.stdout.decode()
    return True


def host(swarm, name, folder, *arguments):
    return swarm.start(name, "node", "--no-dht", "--listen", "127.0.0.1:*", "--checkpoint-dir",
                       folder, "--load-experts", *arguments)


def floats(path, name):
    dtype, shape, raw = read_safetensors(path)[name]
    assert dtype == "F32", dtype
    return shape, struct.unpack("<%df" % (len(raw) // 4), raw)


def test_input(path, shape, seed=5):
    values = random.Random(seed)
    count = math.prod(shape)
    write_safetensors(path, {"input.0": (shape, [values.uniform(-1, 1) for _ in range(count)])})


def case_exported_weights_and_checkpoints_load_into_pytorch():
    skipped = False
    for cls, hidden in (("ffn", 24), ("transformer", 32), ("transformer", 20), ("swiglu", 16)):
        with Swarm() as swarm:
            folder = swarm.path("kept")
            more = ("--intermediate-dim", str(3 * hidden)) if cls == "swiglu" else ()
            node = swarm.start("node", "node", "--no-dht", "--listen", "127.0.0.1:*",
                               "--checkpoint-dir", folder, "--expert-uids", "e.1", "--expert-cls",
                               cls, "--hidden-dim", str(hidden), *more)
            x, y = swarm.path("x.safetensors"), swarm.path("y.safetensors")
            test_input(x, (2, 5, hidden) if cls == "transformer" else (3, hidden))
            for _ in range(3):  # so that biases and norms differ from how they start
                call("e.1", "--input", x, "--grad", x.replace("x.s", "g.s"), "--output",
                     swarm.path("dx.safetensors"), node=node) if make_grad(x) else None
            call("e.1", "--input", x, "--output", y, node=node)
            assert node.stop() == 0
            weights = swarm.path("w.safetensors")
            said = json.loads(run("export", "e.1", "--checkpoint-dir", folder, "--output", weights,
                                  "--json")[0])
            assert said["updates"] == 3 and said["class"] == cls, said
            assert not any(n.startswith("optimizer") for n in read_safetensors(weights))
            checkpoint = os.path.join(folder, "e.1", "checkpoint_last")
            if with_torch("check", cls, str(hidden), weights, checkpoint, x, y) is None:
                skipped = True
    return "ok, without PyTorch: python3-torch is not installed" if skipped else "ok"


def output_of(swarm, node, inputs):
    x, y = swarm.path("in.safetensors"), swarm.path("out.safetensors")
    write_safetensors(x, {"input.%d" % i: tensor for i, tensor in enumerate(inputs)})
    call("e.1", "--input", x, "--output", y, node=node)
    return floats(y, "output.0")[1]


def inputs_of(node):
    return [(i["name"], i["dtype"]) for i in call("e.1", node=node)["inputs"]]


def fresh(swarm, name, cls, folder, *arguments):
    return swarm.start(name, "node", "--no-dht", "--listen", "127.0.0.1:*", "--checkpoint-dir",
                       folder, "--expert-uids", "e.1", "--expert-cls", cls, "--hidden-dim", "8",
                       "--seed", "1", *arguments)


def case_a_transformer_takes_a_padding_mask():
    masked = [("x", "F32"), ("padding_mask", "BOOL")]
    with Swarm() as swarm:
        config, folder = swarm.path("node.conf"), swarm.path("kept")
        with open(config, "w") as file:
            file.write("padding-mask = yes\nmax-sequence = 3\n")
        node = fresh(swarm, "node", "transformer", folder, "--config", config)
        assert inputs_of(node) == masked

        def outputs(last, mask):  # of the first two positions; what the third is, differs
            x = [i / 16 for i in range(16)] + [last * (i + 1) for i in range(8)]
            return output_of(swarm, node, [((1, 3, 8), x), ((1, 3), mask)])[:16]
        ignoring = [False, False, True]
        assert outputs(0.1, ignoring) == outputs(-0.2, ignoring)
        assert outputs(0.1, [False] * 3) != outputs(-0.2, [False] * 3)
        x = swarm.path("long.safetensors")
        write_safetensors(x, {"input.0": ((1, 4, 8), [0.0] * 32), "input.1": ((1, 4), [False] * 4)})
        said = call("e.1", "--input", x, "--output", swarm.path("y.npy"), node=node, code=1)
        assert "sequence length 4, expected at most 3" in said, said
        assert node.stop() == 0
        # Both are kept with the weights, and wanted anew for weights from elsewhere.
        assert inputs_of(host(swarm, "kept", folder)) == masked
        w, other = swarm.path("w.safetensors"), swarm.path("other")
        run("export", "e.1", "--checkpoint-dir", folder, "--output", w)
        run("import", w, "--uid", "e.1", "--expert-cls", "transformer", "--checkpoint-dir", other,
            "--padding-mask")
        assert inputs_of(host(swarm, "imported", other)) == masked
        refused(2, "--padding-mask: does nothing with --expert-cls swiglu", "import", w, "--uid",
                "e.2", "--expert-cls", "swiglu", "--checkpoint-dir", other, "--padding-mask")


def case_det_dropout_takes_its_mask_as_the_options_say():
    x = ((1, 8), [i / 8 for i in range(8)])
    masks = [((1, 8), [1.0] * 8), ((1, 8), [0.0] * 8)]
    with Swarm() as swarm:
        folder = swarm.path("kept")
        training = fresh(swarm, "training", "det_dropout", folder, "--float-mask")
        assert inputs_of(training) == [("x", "F32"), ("mask", "F32")]
        seen = [output_of(swarm, training, [x, mask]) for mask in masks]
        assert seen[0] != seen[1]
        assert training.stop() == 0
        # Of an expert that has a checkpoint the command line decides, too.
        evaluating = fresh(swarm, "evaluating", "det_dropout", folder, "--float-mask",
                           "--evaluation")
        seen = [output_of(swarm, evaluating, [x, mask]) for mask in masks]
        assert seen[0] == seen[1]
        assert evaluating.stop() == 0
        plain = fresh(swarm, "plain", "det_dropout", folder)
        assert inputs_of(plain) == [("x", "F32"), ("mask", "I64")]


def make_grad(x):
    shape, values = floats(x, "input.0")
    write_safetensors(x.replace("x.s", "g.s"), {"grad_output.0": (shape, values)})
    return True


def case_pytorch_s_weights_are_imported():
    for cls, hidden, dtype in (("ffn", 24, "F32"), ("transformer", 32, "F32"),
                               ("swiglu", 16, "BF16"), ("ffn", 8, "F16")):
        with Swarm() as swarm:
            folder = swarm.path("kept")
            w, x, want, y = (swarm.path(n + ".safetensors") for n in ("w", "x", "want", "y"))
            if with_torch("make", cls, str(hidden), dtype, w, x, want) is None:
                return "skipped: python3-torch is not installed"
            run("import", w, "--uid", "e.1", "--expert-cls", cls, "--checkpoint-dir", folder)
            node = host(swarm, "node", folder)
            call("e.1", "--input", x, "--output", y, node=node)
            _, got = floats(y, "output.0")
            _, expected = floats(want, "output.0")
            worst = max(abs(a - b) for a, b in zip(got, expected))
            assert len(got) == len(expected) and worst < 2e-5, (cls, dtype, worst)


def case_what_was_exported_is_imported_bit_by_bit():
    with Swarm() as swarm:
        first, second = swarm.path("first"), swarm.path("second")
        node = swarm.start("node", "node", "--no-dht", "--listen", "127.0.0.1:*",
                           "--checkpoint-dir", first, "--expert-uids", "e.1", "--hidden-dim", "16")
        assert node.stop() == 0
        a, b = swarm.path("a.safetensors"), swarm.path("b.safetensors")
        run("export", "e.1", "--checkpoint-dir", first, "--output", a)
        run("import", a, "--uid", "e.2", "--checkpoint-dir", second)
        run("export", "e.2", "--checkpoint-dir", second, "--output", b)
        assert read_safetensors(a) == read_safetensors(b)
        # A second import must be meant.
        refused(1, ["--replace"], "import", a, "--uid", "e.2", "--checkpoint-dir", second)
        run("import", a, "--uid", "e.2", "--checkpoint-dir", second, "--replace")
        assert len(os.listdir(second + "/e.2")) == 3


def documented_classes():
    """docs/classes.md: class -> (input or output -> text of its shape, parameter -> the same)."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/classes.md")
    classes, table = {}, None
    with open(path, encoding="utf-8") as page:
        for line in page:
            if line.startswith("## "):
                classes[line[3:].strip()] = ({}, {})
            elif line.startswith("| input or output"):
                table = 0
            elif line.startswith("| parameter"):
                table = 1
            elif line.startswith("| `"):
                name, shape = line.split("`")[1], line.split("`")[3]
                list(classes.values())[-1][table][name] = shape
    return classes


def sizes_of(text, **values):
    """[4h, h] with h = 8 is [32, 8]; what has no value is -1, of any size."""
    sizes = []
    for part in text.strip("[]").split(","):
        factor = "".join(c for c in part if c.isdigit())
        letter = "".join(c for c in part if c.isalpha())
        sizes.append(int(factor or 1) * values.get(letter, -1) if letter else int(factor))
    return sizes


def case_the_documented_shapes_are_those_of_the_classes():
    documented = documented_classes()
    assert sorted(documented) == ["det_dropout", "ffn", "nop", "swiglu", "transformer"], documented
    for cls, (tensors, parameters) in documented.items():
        with Swarm() as swarm:
            folder, w = swarm.path("kept"), swarm.path("w.safetensors")
            more = ["--padding-mask"] if cls == "transformer" else []
            more += ["--intermediate-dim", "20"] if cls == "swiglu" else []
            node = fresh(swarm, "node", cls, folder, *more)
            schema = call("e.1", node=node)
            shown = {t["name"]: t["shape"] for t in schema["inputs"] + schema["outputs"]}
            assert shown == {name: sizes_of(shape, h=8) for name, shape in tensors.items()}, shown
            assert node.stop() == 0
            run("export", "e.1", "--checkpoint-dir", folder, "--output", w)
            kept = {name: shape for name, (_, shape, _) in read_safetensors(w).items()}
            assert kept == {name: sizes_of(shape, h=8, w=20)
                            for name, shape in parameters.items()}, (cls, kept)


def case_an_export_says_how_new_it_is():
    """Of a running node it is what was saved last, not what the node knows."""
    with Swarm() as swarm:
        folder, w = swarm.path("kept"), swarm.path("w.safetensors")
        command = ("export", "e.1", "--checkpoint-dir", folder, "--output", w)
        node = fresh(swarm, "node", "ffn", folder)
        x = swarm.path("x.safetensors")
        test_input(x, (1, 8))
        make_grad(x)
        until(lambda: os.path.isdir(folder + "/e.1") and "checkpoint_last" in
              os.listdir(folder + "/e.1"), 30, "the first save")
        call("e.1", "--input", x, "--grad", x.replace("x.s", "g.s"), "--output",
             swarm.path("dx.safetensors"), node=node)
        said, warned = run(*command)
        assert "after 0 updates, saved" in said and said.rstrip().endswith("s ago"), said
        assert "running node" in warned and "newer state" in warned, warned
        said = json.loads(run(*command, "--json")[0])
        assert said["node_running"] is True and said["updates"] == 0, said
        # One that only reads the folder knows nothing newer.
        assert node.stop() == 0
        reader = host(swarm, "reader", folder, "--optimizer", "none")
        newest = os.path.realpath(folder + "/e.1/checkpoint_last")
        os.utime(newest, (os.stat(newest).st_atime, os.stat(newest).st_mtime - 3 * 86400))
        said, warned = run(*command)
        assert "after 1 update, saved 3 days ago" in said and warned == "", (said, warned)
        said = json.loads(run(*command, "--json")[0])
        assert said["node_running"] is False and 3 * 86400 <= said["age_s"] < 4 * 86400, said
        assert reader.stop() == 0


def case_bad_files_and_arguments_are_refused():
    with Swarm() as swarm:
        folder, w = swarm.path("kept"), swarm.path("w.safetensors")
        write_safetensors(w, {"layers.0.weight": ((8, 2), [0.0] * 16)})
        base = ["--checkpoint-dir", folder]
        refused(2, ["either a file or --moe"], "import", *base)
        refused(2, ["--uid"], "import", w, *base)
        refused(2, ["--name"], "import", "--moe", folder, *base)
        refused(2, ["uid", "nodots"], "import", w, "--uid", "nodots", *base)
        refused(1, [w, "layers.0.bias"], "import", w, "--uid", "e.1", *base)
        for more in ((), ("--hidden-dim", "2")):
            refused(2, ["--expert-cls", "what", "transformer, det_dropout, swiglu"], "import", w,
                    "--uid", "e.1", "--expert-cls", "what", *base, *more)
        for name, content, kind in (
                ("w.pt", b"PK\x03\x04" + bytes(100), "a zip archive, as torch.save()"),
                ("old.pt", b"\x80\x02\x8a\x0a" + bytes(100), "a Python pickle"),
                ("w.npy", b"\x93NUMPY\x01\0v\0{'descr'", "a NumPy .npy file"),
                ("w.txt", b"version https://git-lfs.github.com/spec/v1\noid", "a Git LFS pointer"),
                ("w.json", b'{"layers.0.weight": [1, 2]}', "a text file")):
            with open(swarm.path(name), "wb") as file:
                file.write(content)
            refused(1, ["%s: is %s" % (swarm.path(name), kind), "expected a safetensors file"],
                    "import", swarm.path(name), "--uid", "e.1", *base)
        # Of another class, or without a parameter: which, and what is there.
        m = ("F32", [2, 3], [1.0] * 6)
        write_shard(swarm.path("s.safetensors"), {
            "gate_proj.weight": m, "up_proj.weight": m, "down_proj.weight": ("F32", [3, 2], m[2])})
        refused(1, ["s.safetensors: its tensors are those of class swiglu", "of class ffn",
                    "--expert-cls swiglu"], "import", swarm.path("s.safetensors"), "--uid", "e.1",
                *base)
        refused(1, ["gate_proj.weight", "[2, 3]", "[2, 4]"], "import", swarm.path("s.safetensors"),
                "--uid", "e.1", "--expert-cls", "swiglu", "--hidden-dim", "4", *base)
        write_shard(swarm.path("t.safetensors"), {"up_proj.weight": m, "down_proj.weight": m})
        refused(1, ["has no parameter gate_proj.weight", "2 of its 3 are there"], "import",
                swarm.path("t.safetensors"), "--uid", "e.1", "--expert-cls", "swiglu", *base)
        refused(1, ["missing"], "import", swarm.path("missing"), "--uid", "e.1", *base)
        refused(1, ["e.1"], "export", "e.1", *base, "--output", w)
        # The output is looked at first, whatever else is wrong.
        refused(1, [swarm.folder, "folder"], "export", "e.1", *base, "--output", swarm.folder)
        refused(1, [swarm.path("no/w.safetensors"), "cannot write there"], "export", "e.1", *base,
                "--output", swarm.path("no/w.safetensors"))
        refused(1, ["../x"], "export", "../x", *base, "--output", w)
        assert os.listdir(folder) == []


# --- mixtures of experts -----------------------------------------------------------------------

NAMES = {"qwen": ("mlp.experts.%d.gate_proj", "mlp.experts.%d.up_proj", "mlp.experts.%d.down_proj"),
         "mixtral": ("block_sparse_moe.experts.%d.w1", "block_sparse_moe.experts.%d.w3",
                     "block_sparse_moe.experts.%d.w2")}


def write_model(folder, layout, dtype, layers=2, experts=3, hidden=8, wide=12, shards=3):
    """A model's folder, with tensors that are no experts' in it, and an expert's matrices in
    different files. Returns (layer, expert) -> its three matrices as lists of values."""
    values = random.Random(7)
    os.makedirs(folder)
    tensors, model = {}, {}
    for layer in range(layers):
        tensors["model.layers.%d.input_layernorm.weight" % layer] = (dtype, [hidden], [1.0] * hidden)
        tensors["model.layers.%d.mlp.gate.weight" % layer] = (dtype, [experts, hidden],
                                                              [0.5] * (experts * hidden))
        for expert in range(experts):
            model[layer, expert] = []
            for role, name in enumerate(NAMES[layout]):
                # Eighths, so that all three types hold them exactly.
                matrix = [values.randrange(-16, 17) / 8 for _ in range(hidden * wide)]
                model[layer, expert].append(matrix)
                shape = [hidden, wide] if role == 2 else [wide, hidden]
                tensors["model.layers.%d." % layer + name % expert + ".weight"] = (
                    dtype, shape, matrix)
    tensors["lm_head.weight"] = (dtype, [2, hidden], [0.0] * (2 * hidden))
    files = ["model-%05d-of-%05d.safetensors" % (i + 1, shards) for i in range(shards)]
    where = {name: files[i % shards] for i, name in enumerate(tensors)}
    for file in files:
        write_shard(os.path.join(folder, file),
                    {n: t for n, t in tensors.items() if where[n] == file})
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as index:
        json.dump({"metadata": {"total_size": 1}, "weight_map": where}, index)
    return model


def silu(value):
    return value / (1 + math.exp(-value))


def swiglu(matrices, x, hidden, wide):
    gate, up, down = matrices
    inner = []
    for w in range(wide):
        g = sum(gate[w * hidden + h] * x[h] for h in range(hidden))
        u = sum(up[w * hidden + h] * x[h] for h in range(hidden))
        inner.append(silu(g) * u)
    return [sum(down[h * wide + w] * inner[w] for w in range(wide)) for h in range(hidden)]


def case_a_mixture_of_experts_is_imported():
    for layout, dtype in (("qwen", "BF16"), ("mixtral", "F16"), ("qwen", "F32")):
        with Swarm() as swarm:
            hidden, wide = 8, 12
            source, folder = swarm.path("model"), swarm.path("kept")
            model = write_model(source, layout, dtype)
            said = json.loads(run("import", "--moe", source, "--name", "mix", "--checkpoint-dir",
                                  folder, "--json")[0])
            assert said["imported"] == len(model) and said["skipped"] == 0, said
            again = json.loads(run("import", "--moe", source, "--name", "mix", "--checkpoint-dir",
                                   folder, "--json")[0])
            assert again["imported"] == 0 and again["skipped"] == len(model), again
            node = host(swarm, "node", folder, "--expert-pattern", "mix.[0:2].[1:3]")
            uids = [e["uid"] for e in node.facts["experts"]]
            assert uids == ["mix.0.1", "mix.0.2", "mix.1.1", "mix.1.2"], uids
            x, y = swarm.path("x.safetensors"), swarm.path("y.safetensors")
            test_input(x, (1, hidden))
            _, values = floats(x, "input.0")
            for uid in uids:
                call(uid, "--input", x, "--output", y, node=node)
                _, got = floats(y, "output.0")
                layer, expert = map(int, uid.split(".")[1:])
                want = swiglu(model[layer, expert], values, hidden, wide)
                worst = max(abs(a - b) for a, b in zip(got, want))
                assert worst < 1e-4, (uid, got, want)


def case_a_part_of_a_model_is_imported():
    with Swarm() as swarm:
        source, folder = swarm.path("model"), swarm.path("kept")
        write_model(source, "mixtral", "F32", layers=3, experts=4, shards=5)
        # A file that holds nothing of the part is not needed.
        path = source + "/model.safetensors.index.json"
        with open(path) as file:
            index = json.load(file)
        for name in index["weight_map"]:
            if name.startswith("model.layers.0."):
                index["weight_map"][name] = "not-fetched.safetensors"
        with open(path, "w") as file:
            json.dump(index, file)
        base = ["import", "--moe", source, "--name", "mix", "--checkpoint-dir", folder, "--json"]
        said = json.loads(run(*base, "--expert-pattern", "mix.[1:3].[1:3]")[0])
        assert said["imported"] == 4 and said["skipped"] == 0, said
        assert sorted(n for n in os.listdir(folder) if n.startswith("mix")) == [
            "mix.1.1", "mix.1.2", "mix.2.1", "mix.2.2"]
        said = json.loads(run(*base, "--expert-pattern", "mix.2.[0:4]")[0])
        assert said["imported"] == 2 and said["skipped"] == 2, said
        refused(1, ["none of its experts", "mix.<layer>.<expert>", "other.[0:4].[0:4]"], *base,
                "--expert-pattern", "other.[0:4].[0:4]")
        refused(1, ["not-fetched.safetensors"], *base, "--expert-pattern", "mix.0.0")
        refused(2, ["expert-pattern", "[4:1]"], *base, "--expert-pattern", "mix.[4:1].0")
        refused(2, ["--hidden-dim", "does nothing with --moe"], *base, "--hidden-dim", "8")
        refused(2, ["--expert-pattern", "does nothing with a file"], "import", path, "--uid", "a.1",
                "--checkpoint-dir", folder, "--expert-pattern", "mix.0.0")


def case_weights_that_are_no_numbers_are_refused():
    """By tensor and count, whatever type they come in; unless they are wanted."""
    with Swarm() as swarm:
        folder = swarm.path("kept")
        base = ["--checkpoint-dir", folder]
        w = swarm.path("w.safetensors")
        values = [1.0, math.nan, 3.0, -math.inf, math.nan, 6.0]
        weights = {"gate_proj.weight": ("F32", [2, 3], [1.0] * 6),
                   "up_proj.weight": ("F16", [2, 3], values),
                   "down_proj.weight": ("F32", [3, 2], [1.0] * 6)}
        write_shard(w, weights)
        one = ["import", w, "--uid", "e.1", "--expert-cls", "swiglu", *base]
        refused(1, [w, "parameter up_proj.weight: 2 NaN and 1 infinite of 6 values",
                    "--allow-non-finite"], *one)
        assert os.listdir(folder) == []
        run(*one, "--allow-non-finite")
        assert os.listdir(folder) == ["e.1"]
        source = swarm.path("model")
        write_model(source, "qwen", "BF16", layers=1, experts=2, shards=1)
        shard = source + "/model-00001-of-00001.safetensors"
        tensors = {name: (dtype, shape, list(struct.unpack("<%dH" % (len(raw) // 2), raw)))
                   for name, (dtype, shape, raw) in read_safetensors(shard).items()}
        tensors = {name: (dtype, shape, [struct.unpack("<f", struct.pack("<HH", 0, v))[0]
                                         for v in values])
                   for name, (dtype, shape, values) in tensors.items()}
        tensors["model.layers.0.mlp.experts.1.down_proj.weight"][2][5] = math.inf
        write_shard(shard, tensors)
        model = ["import", "--moe", source, "--name", "mix", *base]
        refused(1, ["mix.0.1: parameter down_proj.weight: 0 NaN and 1 infinite of 96 values"], *model)
        assert os.listdir(folder) == ["e.1"]  # not the expert in front of it either
        said = json.loads(run(*model, "--allow-non-finite", "--json")[0])
        assert (said["imported"], said["skipped"]) == (2, 0), said


def case_one_file_without_an_index_will_do():
    with Swarm() as swarm:
        source, folder = swarm.path("model"), swarm.path("kept")
        write_model(source, "qwen", "F32", shards=1)
        os.remove(source + "/model.safetensors.index.json")
        os.rename(source + "/model-00001-of-00001.safetensors", source + "/model.safetensors")
        run("import", "--moe", source, "--name", "mix", "--checkpoint-dir", folder)
        assert len(os.listdir(folder)) == 6


def case_a_config_beside_a_model_names_its_activation():
    """Weights are the same for every activation, and another one would make nonsense of them."""
    with Swarm() as swarm:
        source, folder = swarm.path("model"), swarm.path("kept")
        write_model(source, "mixtral", "F32", layers=1, experts=1)
        command = ("import", "--moe", source, "--name", "mix", "--replace", "--checkpoint-dir", folder)
        config = os.path.join(source, "config.json")
        for text, why in (
                ('{"hidden_act": "gelu"}', ['hidden_act is "gelu"', '"silu" or "swish"']),
                ('{"hidden_act": "silu", "hidden_activation": "gelu_pytorch_tanh"}',
                 ['hidden_activation is "gelu_pytorch_tanh"']),
                ('{"hidden_act": "SiLU\\u001b["}', ["hidden_act is", "\\x1b"]),
                ('{"hidden_act": ["silu"]}', ["hidden_act is not a string"]),
                ('{"hidden_act": "silu"', ["not JSON"]), ("", ["not JSON"]),
                ("[]", ["not a JSON object"]), ("[" * 100 + "]" * 100, ["deeper"]),
                ('{"hidden_act": "silu"}' + " " * (4 << 20), ["bytes, expected at most"])):
            with open(config, "w") as file:
                file.write(text)
            refused(1, [config + ": "] + why, *command)
            assert os.listdir(folder) == [], text
        for text in ('{"hidden_act": "silu", "big": 1000000000000000019884624838656}',
                     '{"hidden_act": "swish"}', '{"hidden_act": null, "hidden_activation": "silu"}',
                     '{"model_type": "mixtral"}', None):
            os.remove(config)
            if text is not None:
                with open(config, "w") as file:
                    file.write(text)
            _, said = run(*command)
            assert "config" not in said and "WARN" not in said, said


def case_bad_models_are_refused():
    with Swarm() as swarm:
        folder = swarm.path("kept")

        def refuse(code, text, source):
            refused(code, text, "import", "--moe", source, "--name", "mix", "--checkpoint-dir",
                    folder)

        def rewrite(source, change):
            path = source + "/model.safetensors.index.json"
            with open(path) as file:
                index = json.load(file)
            change(index["weight_map"])
            with open(path, "w") as file:
                json.dump(index, file)

        refuse(1, ["model.safetensors"], swarm.path("nothing"))
        names = []
        for i in range(6):
            names.append(swarm.path("model%d" % i))
            write_model(names[i], "qwen", "F32")
        lost = "model.layers.1.mlp.experts.2.up_proj.weight"
        rewrite(names[0], lambda m: m.pop(lost))
        refuse(1, ["expert 2 of layer 1", "lacks"], names[0])
        rewrite(names[1], lambda m: m.update({lost: "../model.safetensors"}))
        refuse(1, ["../model.safetensors"], names[1])
        rewrite(names[2], lambda m: m.update({lost: "gone.safetensors"}))
        refuse(1, ["gone.safetensors"], names[2])
        rewrite(names[3], lambda m: m.update({lost: m["lm_head.weight"]}))
        refuse(1, [lost, "the index names"], names[3])
        with open(names[4] + "/model.safetensors.index.json", "w") as file:
            file.write("{")
        refuse(1, ["index.json", "not JSON"], names[4])
        rewrite(names[5], lambda m: [m.pop(n) for n in list(m) if "experts" in n])
        refuse(1, ["no experts"], names[5])
        # What was written before the mistake was met is whole.
        for uid in os.listdir(folder):
            run("export", uid, "--checkpoint-dir", folder, "--output", swarm.path("w"))


def case_memory_stays_bounded():
    """A model of far more than what an expert needs: 32 experts of 6 MiB (as float32) in four
    files, an expert's matrices in different ones."""
    with Swarm() as swarm:
        source, folder = swarm.path("model"), swarm.path("kept")
        os.makedirs(source)
        hidden, wide, experts, shards = 512, 1024, 32, 4
        name = "model.layers.0.mlp.experts.%d.%s.weight"
        files = ["model-%05d-of-%05d.safetensors" % (i + 1, shards) for i in range(shards)]
        headers, sizes, where = [{} for _ in files], [0] * shards, {}
        matrix = 4 * hidden * wide
        for i, (e, role) in enumerate((e, role) for e in range(experts)
                                      for role in ("gate_proj", "up_proj", "down_proj")):
            shape = [hidden, wide] if role == "down_proj" else [wide, hidden]
            at = i % shards
            headers[at][name % (e, role)] = {"dtype": "F32", "shape": shape,
                                             "data_offsets": [sizes[at], sizes[at] + matrix]}
            where[name % (e, role)] = files[at]
            sizes[at] += matrix
        for file, header, size in zip(files, headers, sizes):
            text = json.dumps(header).encode()
            text += b" " * (-len(text) % 8)
            with open(os.path.join(source, file), "wb") as out:
                out.write(struct.pack("<Q", len(text)) + text)
                for _ in range(size >> 20):
                    out.write(b"\0" * (1 << 20))
        with open(source + "/model.safetensors.index.json", "w") as index:
            json.dump({"weight_map": where}, index)
        peak = peak_of("import", "--moe", source, "--name", "mix", "--checkpoint-dir", folder)
        assert len(os.listdir(folder)) == experts
        expert, model = 3 * matrix, sum(sizes)
        figures = "%d MiB at most, of a model of %d MiB" % (peak >> 20, model >> 20)
        if PATIENCE > 1:
            return "ok, %s, without the limit: a sanitizer needs memory of its own" % figures
        # The expert, a copy for saving, its mapped pages; the program itself has some 20 MiB.
        assert peak < 4 * expert + (48 << 20) < model, figures
        return "ok, " + figures


def peak_of(*arguments):
    """The most memory, in bytes, that `skep` had resident at once."""
    process = subprocess.Popen([SKEP, *arguments], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT)
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, output.decode()
    return usage.ru_maxrss * 1024


main(globals())
