"""Mixture-of-experts models in the layouts of published ones: each is imported to the bit, and what
class swiglu does not compute is refused by its name."""

import json
import os
import random
import struct

from safetensors_files import write_shard
from swarm import Swarm, main, read_safetensors, refused, run

HIDDEN, WIDE, EXPERTS = 8, 12, 3


def matrix(rows, columns, seed):
    values = random.Random(seed)
    return [[values.randrange(-16, 17) / 8 for _ in range(columns)] for _ in range(rows)]


def model_of(layers, experts=EXPERTS):
    """(layer, expert) -> gate, up [wide, hidden] and down [hidden, wide], as lists of rows."""
    return {(layer, e): (matrix(WIDE, HIDDEN, (layer, e, 0).__repr__()),
                         matrix(WIDE, HIDDEN, (layer, e, 1).__repr__()),
                         matrix(HIDDEN, WIDE, (layer, e, 2).__repr__()))
            for layer in layers for e in range(experts)}


def turned(rows):
    return [list(column) for column in zip(*rows)]


def flat(rows):
    return [v for row in rows for v in row]


def tensor(rows, dtype="F32"):
    return dtype, [len(rows), len(rows[0])], flat(rows)


def stacked(matrices, dtype="F32"):
    return dtype, [len(matrices), len(matrices[0]), len(matrices[0][0])], sum(map(flat, matrices), [])


# --- layouts: each gives the tensors of one layer's experts, [(gate, up, down)], by their names ---

def single(block, gate, up, down):
    def layout(experts):
        return {"%s.experts.%d.%s.weight" % (block, e, name): tensor(rows)
                for e, matrices in enumerate(experts)
                for name, rows in zip((gate, up, down), matrices)}
    return layout


def pair(gate_up, down, turn):
    """Gate above up in one tensor of all experts."""
    def layout(experts):
        both = [gate + up for gate, up, _ in experts]
        downs = [d for _, _, d in experts]
        return {gate_up: stacked(list(map(turned, both)) if turn else both),
                down: stacked(list(map(turned, downs)) if turn else downs)}
    return layout


def triple(gate, up, down, turn):
    def layout(experts):
        return {name: stacked([turned(e[i]) if turn else e[i] for e in experts])
                for i, name in enumerate((gate, up, down))}
    return layout


def dbrx(experts):
    return {"ffn.experts.mlp.w1": tensor(sum((gate for gate, _, _ in experts), [])),
            "ffn.experts.mlp.v1": tensor(sum((up for _, up, _ in experts), [])),
            "ffn.experts.mlp.w2": tensor(sum((turned(down) for _, _, down in experts), []))}


PROJ = ("gate_proj", "up_proj", "down_proj")
W = ("w1", "w3", "w2")
WIDTH = {"hidden_size": HIDDEN}


def beside(layer):
    """What else is in a layer, none of it an expert's."""
    row = ("F32", [HIDDEN], [1.0] * HIDDEN)
    return {"%d.input_layernorm.weight" % layer: row,
            "%d.self_attn.q_proj.weight" % layer: row,
            "%d.self_attn.q_proj.bias" % layer: row,
            "%d.self_attention.experts.input_linear.weight" % layer: row,  # JetMoE's
            "%d.mlp.shared_experts.gate_proj.weight" % layer: row,
            "%d.mlp.shared_expert_gate.weight" % layer: row,
            "%d.shared_mlp.input_linear.weight" % layer: row,
            "%d.mlp.gate.weight" % layer: row,
            "%d.mlp.gate.e_score_correction_bias" % layer: row}


class Model:
    """A model's folder. layouts: layer -> layout; a layer with none is dense."""

    def __init__(self, swarm, name, layouts, stack="model.layers", config=None, experts=EXPERTS):
        self.folder = swarm.path(name)
        os.makedirs(self.folder)
        self.experts = model_of([n for n, layout in layouts.items() if layout], experts)
        self.tensors = {"lm_head.weight": ("F32", [2, HIDDEN], [0.0] * (2 * HIDDEN)),
                        # Types that Skep does not have, in the same file.
                        "model.visual.packed": ("F4", [8], bytes(4)),
                        "model.visual.scale": ("F8_E8M0", [4], bytes(4)),
                        "model.visual.position": ("C64", [1], bytes(8)),
                        "model.visual.tokens": ("U16", [2], bytes(4))}
        self.config = config
        for layer, layout in layouts.items():
            rest = beside(layer)
            if layout:
                own = [self.experts[layer, e] for e in range(experts)]
                rest.update({"%d.%s" % (layer, n): t for n, t in layout(own).items()})
            else:
                rest.pop("%d.mlp.gate.weight" % layer)
            self.tensors.update({"%s.%s" % (stack, n): t for n, t in rest.items()})
        self.write()

    def write(self, shards=2, index="model.safetensors.index.json", but=()):
        """`but`: tensors that the index does not name."""
        files = ["model-%05d-of-%05d.safetensors" % (i + 1, shards) for i in range(shards)]
        where = {n: files[i % shards] for i, n in enumerate(self.tensors)}
        for file in files:
            write_shard(os.path.join(self.folder, file),
                        {n: t for n, t in self.tensors.items() if where[n] == file})
        with open(os.path.join(self.folder, index), "w") as out:
            json.dump({"metadata": {}, "weight_map": {n: f for n, f in where.items()
                                                      if n not in but}}, out)
        self.write_config()

    def write_config(self, text=None):
        if self.config is not None or text is not None:
            with open(os.path.join(self.folder, "config.json"), "w") as out:
                out.write(text if text is not None else json.dumps(self.config))

    def command(self, kept, *more):
        return ("import", "--moe", self.folder, "--name", "mix", "--checkpoint-dir", kept, *more)

    def refuse(self, kept, texts, *more):
        """It is, and nothing was written."""
        said = refused(1, texts, *self.command(kept, *more))
        assert not os.path.exists(kept) or os.listdir(kept) == [], (said, os.listdir(kept))

    def check_imported(self, swarm, kept, layers=None):
        for (layer, e), matrices in self.experts.items():
            if layers is not None and layer not in layers:
                continue
            out = swarm.path("out.safetensors")
            run("export", "mix.%d.%d" % (layer, e), "--checkpoint-dir", kept, "--output", out)
            got = read_safetensors(out)
            for name, rows in zip(PROJ, matrices):
                dtype, shape, raw = got[name + ".weight"]
                assert (dtype, shape) == ("F32", [len(rows), len(rows[0])]), (name, dtype, shape)
                assert raw == struct.pack("<%df" % (HIDDEN * WIDE), *flat(rows)), (layer, e, name)


FUSED = pair("mlp.experts.gate_up_proj", "mlp.experts.down_proj", False)

LAYOUTS = {
    "qwen": ({0: single("mlp", *PROJ), 1: single("mlp", *PROJ)}, "model.layers",
             {"num_experts": 3, "num_hidden_layers": 2, "hidden_act": "silu", **WIDTH}),
    "mixtral": ({0: single("block_sparse_moe", *W)}, "model.layers",
                {"num_local_experts": 3, "num_hidden_layers": 1}),
    "phimoe": ({0: single("mlp", *W)}, "model.layers", {"num_local_experts": 3,
                                                        "lm_head_bias": True}),
    "lfm2": ({0: None, 1: single("feed_forward", *W)}, "model.layers",
             {"num_experts": 3, "num_hidden_layers": 2, "use_expert_bias": True}),
    "jamba": ({0: None, 1: single("feed_forward", *PROJ)}, "model.layers", {"num_experts": 3}),
    # The last layer predicts further tokens: beyond those of the config.
    "deepseek": ({0: None, 1: single("mlp", *PROJ), 2: single("mlp", *PROJ)}, "model.layers",
                 {"n_routed_experts": 3, "num_hidden_layers": 2, "first_k_dense_replace": 1,
                  "num_nextn_predict_layers": 1, "moe_layer_freq": 1, "n_shared_experts": 1,
                  "routed_scaling_factor": 2.5}),
    "ernie": ({0: single("mlp", *PROJ)}, "model.layers",
              {"moe_num_experts": [1, 2], "vision_config": {"hidden_act": "quick_gelu"}}),
    "longcat": ({0: single("mlp", *PROJ)}, "model.layers",
                {"n_routed_experts": 3, "zero_expert_num": 256}),
    "mistral": ({0: single("", *W)}, "layers", None),
    "step": ({0: None, 1: triple("moe.gate_proj.weight", "moe.up_proj.weight",
                                 "moe.down_proj.weight", False)}, "model.layers",
             {"moe_num_experts": 3, "swiglu_limits": [0.0, None], "swiglu_limits_shared": [0, 16]}),
    "granite": ({0: pair("block_sparse_moe.input_linear.weight",
                         "block_sparse_moe.output_linear.weight", False)}, "model.layers",
                {"num_local_experts": 3, "hidden_act": "silu"}),
    "jetmoe": ({0: pair("mlp.input_linear.weight", "mlp.output_linear.weight", False)},
               "model.layers", {"num_local_experts": 3, "activation_function": "silu"}),
    "dbrx": ({0: dbrx, 1: dbrx}, "transformer.blocks",
             {"n_layers": 2, "d_model": HIDDEN,
              "ffn_config": {"moe_num_experts": 3, "ffn_act_fn": {"name": "silu"}}}),
    "fused": ({0: FUSED, 1: FUSED}, "model.language_model.layers",
              {"text_config": {"num_experts": 3, "num_hidden_layers": 2, "hidden_act": "silu"},
               "vision_config": {"hidden_act": "gelu_pytorch_tanh", "num_hidden_layers": 27}}),
    "fused-no-config": ({0: FUSED}, "model.layers", None),
    "llama4": ({0: pair("feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj", True),
                1: None}, "language_model.model.layers",
               {"text_config": {"num_local_experts": 3, "hidden_act": "silu",
                                "num_hidden_layers": 2}}),
    "aria": ({0: pair("mlp.experts.fc1.weight", "mlp.experts.fc2.weight", True)},
             "language_model.model.layers", {"text_config": {"moe_num_experts": 3}}),
    "three": ({0: triple("moe.experts.w1", "moe.experts.w3", "moe.experts.w2", False)}, "layers",
              {"dim": HIDDEN, "moe": {"num_experts": 3}}),
    "three-turned": ({0: triple("mlp.experts.gate_proj", "mlp.experts.up_proj",
                                "mlp.experts.down_proj", True)}, "model.layers", WIDTH),
    "mixed": ({0: single("mlp", *PROJ), 1: FUSED}, "model.layers",
              {"num_experts": 3, "num_hidden_layers": 2}),
}


def case_every_layout_is_imported_to_the_bit():
    for name, (layouts, stack, config) in LAYOUTS.items():
        with Swarm() as swarm:
            model = Model(swarm, name, layouts, stack, config)
            if name == "mistral":  # names without a block between layer and experts
                model.tensors = {n.replace("..", "."): t for n, t in model.tensors.items()}
                model.write()
            kept = swarm.path("kept")
            said = json.loads(run(*model.command(kept, "--json"))[0])
            assert said["imported"] == len(model.experts), (name, said)
            model.check_imported(swarm, kept)


def case_halves_are_exact_in_every_layout():
    with Swarm() as swarm:
        for dtype in ("BF16", "F16"):
            model = Model(swarm, dtype, {0: LAYOUTS["llama4"][0][0], 1: FUSED}, config=WIDTH)
            model.tensors = {n: (dtype if d == "F32" else d, s, v)
                             for n, (d, s, v) in model.tensors.items()}
            model.write()
            run(*model.command(swarm.path("kept" + dtype)))
            model.check_imported(swarm, swarm.path("kept" + dtype))


def one(swarm, name="model", layout=None, config=None):
    return Model(swarm, name, {0: layout or single("mlp", *PROJ)}, config=config)


ROW = ("F32", [WIDE], [0.5] * WIDE)


def case_tensors_of_other_arithmetic_are_refused_by_name():
    expert, fused = "model.layers.0.mlp.experts.1.", "model.layers.0.mlp.experts."
    for layout, name, why in (
            (None, expert + "gate_proj.bias", "no biases"),
            (None, expert + "down_proj.bias", "no biases"),
            (None, expert + "gate_proj.weight_scale_inv", "quantized"),
            (None, expert + "up_proj.qweight", "quantized"),
            (None, expert + "up_proj.weight_packed", "quantized"),
            (None, expert + "up_proj.weight.absmax", "quantized"),
            (None, expert + "up_proj.lora_A.weight", "adapter"),
            (None, expert + "norm.weight", "expected gate_proj"),
            (None, "model.layers.0.mlp.experts.expert_2.wi.weight", "expected gate_proj"),
            (None, "model.experts.0.gate_proj.weight", "expected gate_proj"),
            (FUSED, fused + "gate_up_proj_bias", "no biases"),
            (FUSED, fused + "down_proj_scales", "quantized"),
            (FUSED, fused + "down_proj_blocks", "quantized")):
        with Swarm() as swarm:
            model = one(swarm, layout=layout)
            model.tensors[name] = ROW
            model.write()
            model.refuse(swarm.path("kept"), [name, why])
    with Swarm() as swarm:  # in the file, and not in the index
        model = one(swarm)
        model.tensors[expert + "gate_proj.bias"] = ROW
        model.write(but=(expert + "gate_proj.bias",))
        model.refuse(swarm.path("kept"), [expert + "gate_proj.bias", "the index does not name"])
    for dtype in ("F8_E4M3", "F4", "I8"):
        with Swarm() as swarm:
            model = one(swarm)
            size = WIDE * HIDDEN // (2 if dtype == "F4" else 1)
            model.tensors[expert + "up_proj.weight"] = (dtype, [WIDE, HIDDEN], bytes(size))
            model.write()
            model.refuse(swarm.path("kept"), [expert + "up_proj.weight", dtype])


def case_settings_of_other_arithmetic_are_refused_by_name():
    with Swarm() as swarm:
        model, kept = one(swarm), swarm.path("kept")
        for config, texts in (
                ({"mlp_bias": True}, ["mlp_bias is set"]),
                ({"swiglu_limit": 7.0}, ["swiglu_limit is 7", "without clamps"]),
                ({"hidden_act": "silu", "text_config": {"swiglu_limit": 10}}, ["swiglu_limit is 10"]),
                ({"swiglu_alpha": 1.702}, ["swiglu_alpha is 1.702"]),
                ({"swiglu_limit": "7"}, ["swiglu_limit is a text"]),
                ({"swiglu_limit": {"1": 7}}, ["swiglu_limit is an object"]),
                ({"swiglu_limit": float("nan")}, ["swiglu_limit is nan"]),
                ({"swiglu_limit": float("-inf")}, ["swiglu_limit is -inf"]),
                ({"activation_clamp": 5}, ["activation_clamp is 5"]),
                ({"mlp_clip": 5}, ["mlp_clip is 5"]),
                ({"swiglu_limits": [7.0]}, ["swiglu_limits is 7 for layer 0"]),
                ({"swiglu_limits": ["x"]}, ["swiglu_limits: element 0"]),
                ({"use_swiglu": False}, ["use_swiglu is false"]),
                ({"mlp_hidden_act": "relu2"}, ['mlp_hidden_act is "relu2"']),
                ({"llm_config": {"hidden_act": "gelu"}}, ['hidden_act is "gelu"']),
                ({"ffn_config": {"ffn_act_fn": {"name": "gelu"}}}, ['ffn_act_fn is "gelu"']),
                ({"model_type": "gpt_oss"}, ["gpt_oss"]),
                ({"num_experts": 4}, ["num_experts is 4, but layer 0 has 3 experts"]),
                ({"num_local_experts": 2}, ["num_local_experts is 2, but layer 0 has 3"]),
                ({"moe_num_experts": [4]}, ["moe_num_experts is 4"]),
                ({"num_experts": 2.5}, ["num_experts is no number"]),
                ({"num_experts": float("inf")}, ["num_experts is no number"]),
                ({"num_experts": float("nan")}, ["num_experts is no number"]),
                ({"num_hidden_layers": 2}, ["no tensor of layer 1", "2 layers"])):
            model.config = config
            model.write_config()
            model.refuse(kept, [model.folder + "/config.json" if "num_hidden_layers" not in config
                                else "config.json"] + texts)


def case_settings_that_change_nothing_are_taken():
    """Python writes NaN and infinities, which are no JSON."""
    for text in ('{"router_z": Infinity, "a": [NaN, -Infinity, {"b": NaN}], "c": "NaN, \\"Infinity"}',
                 '{"swiglu_limit": Infinity}', '{"swiglu_limit": null}', '{"swiglu_limit": 0.0}',
                 '{"swiglu_alpha": 1.0, "swiglu_limits": [null], "use_swiglu": true}',
                 '{"swiglu_limits": [0, 7.0]}', '{"swiglu_limits_shared": [7.0]}',
                 '{"mlp_bias": false, "attention_bias": true, "use_expert_bias": true}',
                 '{"vision_config": {"hidden_act": "gelu", "mlp_bias": true, "swiglu_limit": 7}}',
                 '{"num_experts": 3, "n_routed_experts": 0}', '{"hidden_act": "swish"}',
                 '{"num_experts": 4, "num_local_experts": 3}', '{"clip_qkv": 8, "lora_alpha": 16}'):
        with Swarm() as swarm:
            model = one(swarm)
            model.write_config(text)
            run(*model.command(swarm.path("kept")))
            model.check_imported(swarm, swarm.path("kept"))
    for text in ('{"a": nan}', '{"a": Inf}', '{"a": +Infinity}', '{"a": NaNa}', "NaN", '{NaN: 1}',
                 '{"a": infinity}', '{"a": - Infinity}'):
        with Swarm() as swarm:
            model = one(swarm)
            model.write_config(text)
            model.refuse(swarm.path("kept"), ["config.json", "JSON"])


def case_layers_that_clamp_are_left_out_by_a_pattern():
    with Swarm() as swarm:
        kept = swarm.path("kept")
        model = Model(swarm, "model", {0: FUSED, 1: FUSED}, config={"swiglu_limits": [None, 7.0]})
        model.refuse(kept, ["swiglu_limits is 7 for layer 1"])
        run(*model.command(kept, "--expert-pattern", "mix.0.[0:3]"))
        model.check_imported(swarm, kept, layers=[0])


def case_nothing_is_written_of_a_model_that_is_not_whole():
    both = {0: single("mlp", *PROJ), 1: single("mlp", *PROJ)}
    last = "model.layers.1.mlp.experts.2."

    def without(names):
        def change(model):
            model.tensors = {n: t for n, t in model.tensors.items() if not names(n)}
        return change

    def broken(name, shape):
        def change(model):
            model.tensors[name] = ("F32", shape, [0.0] * (shape[0] * shape[1]))
        return change

    for change, texts in (
            (without(lambda n: n == last + "up_proj.weight"), ["expert 2 of layer 1 lacks"]),
            (without(lambda n: ".1.mlp.experts.1." in n), ["expert 2 but no expert 1"]),
            (without(lambda n: ".1.mlp.experts.2." in n), ["num_experts is 3, but layer 1 has 2"]),
            (without(lambda n: ".1.mlp.experts." in n), ["layer 1 has a router", "no experts"]),
            (without(lambda n: "layers.1." in n), ["no tensor of layer 1"]),
            (broken(last + "down_proj.weight", [WIDE, HIDDEN]), ["layer 1", "do not fit"]),
            (broken(last + "up_proj.weight", [WIDE + 1, HIDDEN]), ["layer 1", "do not fit"])):
        with Swarm() as swarm:
            model = Model(swarm, "model", both, config={"num_experts": 3, "num_hidden_layers": 2})
            change(model)
            model.write()
            model.refuse(swarm.path("kept"), texts)
    with Swarm() as swarm:  # the last expert, whose numbers show it only
        model = Model(swarm, "model", both)
        kind, shape, values = model.tensors[last + "down_proj.weight"]
        model.tensors[last + "down_proj.weight"] = (kind, shape, [float("nan")] + list(values[1:]))
        model.write()
        model.refuse(swarm.path("kept"), ["1 NaN", "--allow-non-finite"])
    for damage in ("missing", "short", "lacks"):  # the second of two files
        with Swarm() as swarm:
            model = Model(swarm, "model", both)
            file = model.folder + "/model-00002-of-00002.safetensors"
            if damage == "missing":
                os.remove(file)
            elif damage == "short":
                os.truncate(file, os.path.getsize(file) - 4)
            else:
                write_shard(file, {"other": ROW})
            model.refuse(swarm.path("kept"), [file])
    with Swarm() as swarm:
        model = Model(swarm, "model", both)
        model.tensors.update({"model.layers.0." + n: t for n, t in FUSED(
            [model.experts[0, e] for e in range(EXPERTS)]).items()})
        model.write()
        model.refuse(swarm.path("kept"), ["layer 0 keeps its experts in two ways"])
    for shapes, texts in (
            (([3, 24, 8], [3, 12, 8]), ["do not fit"]), (([3, 24, 8], [2, 8, 12]), ["the first 2"]),
            (([3, 192], [3, 8, 12]), ["three dimensions"]), (([3, 23, 8], [3, 8, 12]), ["do not fit"])):
        with Swarm() as swarm:
            model = one(swarm, layout=FUSED)
            for name, shape in zip(("gate_up_proj", "down_proj"), shapes):
                count = 1
                for n in shape:
                    count *= n
                model.tensors["model.layers.0.mlp.experts." + name] = ("F32", shape, [0.0] * count)
            model.write()
            model.refuse(swarm.path("kept"), ["layer 0", *texts] if "do" in texts[0] else texts)
    with Swarm() as swarm:  # fused: the config is what says how many there are to be
        model = one(swarm, layout=FUSED, config={"num_experts": 4})
        model.refuse(swarm.path("kept"), ["num_experts is 4, but layer 0 has 3"])
    with Swarm() as swarm:
        model = one(swarm, layout=dbrx)
        model.refuse(swarm.path("kept"), ["ffn.experts.mlp.w1 holds all experts", "config.json"])
    with Swarm() as swarm:
        model = one(swarm, layout=LAYOUTS["three"][0][0])
        model.refuse(swarm.path("kept"), ["12 and 8", "hidden_size is 0"])


def case_what_is_there_is_named():
    with Swarm() as swarm:
        model = one(swarm)
        kept = swarm.path("kept")
        model.tensors = {n.replace(".experts.", ".calculators."): t for n, t in model.tensors.items()}
        model.write()
        model.refuse(kept, ["has no experts", "calculators"])
    for files, texts in ((["pytorch_model-00001-of-00002.bin"], ["pytorch_model-00001-of-00002.bin"]),
                         (["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
                          ["model.safetensors.index.json", "model-00002-of-00002.safetensors"])):
        with Swarm() as swarm:
            folder = swarm.path("model")
            os.makedirs(folder)
            for file in files:
                write_shard(os.path.join(folder, file), {"a": ROW})
            refused(1, texts, "import", "--moe", folder, "--name", "mix", "--checkpoint-dir",
                    swarm.path("kept"))


def case_one_index_or_file_of_another_name_will_do():
    for index in (True, False):
        with Swarm() as swarm:
            model = one(swarm)
            for file in os.listdir(model.folder):
                os.remove(os.path.join(model.folder, file))
            model.write(shards=1, index="consolidated.safetensors.index.json")
            if not index:
                os.remove(model.folder + "/consolidated.safetensors.index.json")
                os.rename(model.folder + "/model-00001-of-00001.safetensors",
                          model.folder + "/consolidated.safetensors")
            with open(model.folder + "/params.json", "w") as params:
                json.dump({"dim": HIDDEN, "moe": {"num_experts": 3}}, params)
            run(*model.command(swarm.path("kept")))
            model.check_imported(swarm, swarm.path("kept"))
            with open(model.folder + "/params.json", "w") as params:
                json.dump({"dim": HIDDEN, "moe": {"num_experts": 4}}, params)
            model.refuse(swarm.path("none"), ["params.json", "num_experts is 4"])


def case_stacks_of_layers_are_told_apart():
    with Swarm() as swarm:
        model, kept = one(swarm), swarm.path("kept")
        model.tensors.update({n.replace("model.layers.", "mtp.layers."): t
                              for n, t in model.tensors.items()})
        model.write()
        _, said = run(*model.command(kept))
        assert "mtp.layers are left out" in said, said
        model.check_imported(swarm, kept)
        run(*model.command(swarm.path("mtp"), "--stack", "mtp.layers"))
        model.check_imported(swarm, swarm.path("mtp"))
        model.refuse(swarm.path("none"), ["no experts under x.layers", "model.layers, mtp.layers"],
                     "--stack", "x.layers")
    with Swarm() as swarm:
        model, kept = one(swarm), swarm.path("kept")
        model.tensors = {n.replace("model.layers.", tower + ".model.layers."): t
                         for n, t in model.tensors.items() for tower in ("thinker", "talker")}
        model.config = {"thinker_config": {"text_config": {"num_experts": 3}},
                        "talker_config": {"text_config": {"num_experts": 5, "hidden_act": "gelu"}}}
        model.write()
        model.refuse(kept, ["talker.model.layers", "thinker.model.layers", "--stack"])
        model.refuse(kept, ['hidden_act is "gelu"'], "--stack", "talker.model.layers")
        run(*model.command(kept, "--stack", "thinker.model.layers"))
        model.check_imported(swarm, kept)
        refused(2, ["--stack", "does nothing with a file"], "import", "x", "--uid", "e.1",
                "--checkpoint-dir", kept, "--stack", "model.layers")


main(globals())
