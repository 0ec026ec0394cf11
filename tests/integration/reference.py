"""A plain second opinion on the Qwen3 layouts: slices a Hugging Face checkpoint with list and bytes operations
only, by the rules of the frameworks themselves. Shares nothing with the C++ code."""

import json
import os
import struct


class Safetensors:
    def __init__(self, path):
        with open(path, "rb") as f:
            data = f.read()
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8:8 + length])
        header.pop("__metadata__", None)
        body = data[8 + length:]
        self.tensors = {}
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            self.tensors[name] = (entry["dtype"], entry["shape"], body[begin:end])


def load_checkpoint(directory):
    tensors = {}
    for name in sorted(os.listdir(directory)):
        if name.endswith(".safetensors"):
            tensors.update(Safetensors(os.path.join(directory, name)).tensors)
    return tensors


def rows(tensor, begin, end):
    """Rows [begin, end) of a matrix or elements of a vector, as bytes."""
    _, shape, data = tensor
    row = len(data) // shape[0]
    return data[begin * row:end * row]


def columns(tensor, begin, end):
    _, shape, data = tensor
    size = len(data) // (shape[0] * shape[1])
    row = shape[1] * size
    return b"".join(data[r * row + begin * size:r * row + end * size] for r in range(shape[0]))


def sglang_qwen3(hf, config, tp, rank):
    """{sglang name: bytes} of rank `rank` of an engine of `tp` ranks."""
    heads, kv, dim = (config[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    inter, vocab = config["intermediate_size"], config["vocab_size"]
    local_kv, repeat = max(1, kv // tp), max(1, tp // kv)
    first = rank // repeat * local_kv
    out = {"model.embed_tokens.weight": rows(hf["model.embed_tokens.weight"], rank * vocab // tp,
                                             (rank + 1) * vocab // tp),
           "model.norm.weight": hf["model.norm.weight"][2]}
    for i in range(config["num_hidden_layers"]):
        p = "model.layers.%d." % i
        a, m = p + "self_attn.", p + "mlp."
        for name in ("input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm"):
            out[p + name + ".weight"] = hf[p + name + ".weight"][2]
        out[a + "qkv_proj.weight"] = (
            rows(hf[a + "q_proj.weight"], rank * heads // tp * dim, (rank + 1) * heads // tp * dim) +
            rows(hf[a + "k_proj.weight"], first * dim, (first + local_kv) * dim) +
            rows(hf[a + "v_proj.weight"], first * dim, (first + local_kv) * dim))
        out[a + "o_proj.weight"] = columns(hf[a + "o_proj.weight"], rank * heads // tp * dim,
                                           (rank + 1) * heads // tp * dim)
        part = (rank * inter // tp, (rank + 1) * inter // tp)
        out[m + "gate_up_proj.weight"] = (rows(hf[m + "gate_proj.weight"], *part) +
                                          rows(hf[m + "up_proj.weight"], *part))
        out[m + "down_proj.weight"] = columns(hf[m + "down_proj.weight"], *part)
    return out


def megatron_qwen3(hf, config, tp, rank):
    """{Megatron name: bytes} of tensor-parallel rank `rank` of `tp`, one pipeline stage; the vocabulary's
    padding rows are left off the embedding."""
    heads, kv, dim = (config[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    inter, vocab = config["intermediate_size"], config["vocab_size"]
    padded = -(-vocab // (128 * tp)) * 128 * tp
    queries = heads // kv
    out = {"embedding.word_embeddings.weight": rows(hf["model.embed_tokens.weight"], rank * padded // tp,
                                                    min(vocab, (rank + 1) * padded // tp)),
           "decoder.final_layernorm.weight": hf["model.norm.weight"][2]}
    for i in range(config["num_hidden_layers"]):
        p, d = "model.layers.%d." % i, "decoder.layers.%d." % i
        a, m = p + "self_attn.", p + "mlp."
        groups = []
        for g in range(rank * kv // tp, (rank + 1) * kv // tp):
            groups.append(rows(hf[a + "q_proj.weight"], g * queries * dim, (g + 1) * queries * dim))
            groups.append(rows(hf[a + "k_proj.weight"], g * dim, (g + 1) * dim))
            groups.append(rows(hf[a + "v_proj.weight"], g * dim, (g + 1) * dim))
        part = (rank * inter // tp, (rank + 1) * inter // tp)
        out[d + "self_attention.linear_qkv.weight"] = b"".join(groups)
        out[d + "self_attention.linear_qkv.layer_norm_weight"] = hf[p + "input_layernorm.weight"][2]
        out[d + "self_attention.q_layernorm.weight"] = hf[a + "q_norm.weight"][2]
        out[d + "self_attention.k_layernorm.weight"] = hf[a + "k_norm.weight"][2]
        out[d + "self_attention.linear_proj.weight"] = columns(
            hf[a + "o_proj.weight"], rank * heads // tp * dim, (rank + 1) * heads // tp * dim)
        out[d + "mlp.linear_fc1.layer_norm_weight"] = hf[p + "post_attention_layernorm.weight"][2]
        out[d + "mlp.linear_fc1.weight"] = (rows(hf[m + "gate_proj.weight"], *part) +
                                            rows(hf[m + "up_proj.weight"], *part))
        out[d + "mlp.linear_fc2.weight"] = columns(hf[m + "down_proj.weight"], *part)
    return out
