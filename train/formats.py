"""Model files without extra packages: safetensors, Hugging Face folders, GGUF (read and dequantise).

A target is loaded from a Hugging Face folder or from the GGUF file that will be shipped, in which case the dequantised
weights are used and the converter's changes (norm + 1, V-head order, -exp(A_log)) are undone.
"""
import json
import mmap
import os
import shutil
import struct
from dataclasses import asdict

import numpy as np
import torch

from model import MTP, DraftConfig, Drafter, Target, TargetConfig

# ---------------------------------------------------------------- safetensors

_ST = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.int16, "I64": np.int64, "I32": np.int32,
       "I16": np.int16, "I8": np.int8, "U8": np.uint8, "BOOL": np.bool_}
_ST_NAME = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
            torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL"}


def read_safetensors(path):
    """{name: tensor}; a folder is read through its index when it is sharded"""
    if os.path.isdir(path):
        idx = os.path.join(path, "model.safetensors.index.json")
        names = sorted(set(json.load(open(idx))["weight_map"].values())) if os.path.exists(idx) else ["model.safetensors"]
        out = {}
        for n in names:
            out.update(read_safetensors(os.path.join(path, n)))
        return out
    out = {}
    with open(path, "rb") as f:
        mm = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
    n = struct.unpack("<Q", mm[:8])[0]
    head = json.loads(mm[8:8 + n])
    head.pop("__metadata__", None)
    for name, t in head.items():
        a, b = t["data_offsets"]
        x = torch.from_numpy(np.frombuffer(mm[8 + n + a:8 + n + b], dtype=_ST[t["dtype"]]).copy())
        if t["dtype"] == "BF16":
            x = x.view(torch.bfloat16)
        out[name] = x.reshape(t["shape"])
    return out


def write_safetensors(path, tensors):
    head, off, blobs = {"__metadata__": {"format": "pt"}}, 0, []
    for name in sorted(tensors):
        t = tensors[name].detach().cpu().contiguous()
        raw = (t.view(torch.int16) if t.dtype == torch.bfloat16 else t).numpy().tobytes()
        head[name] = {"dtype": _ST_NAME[t.dtype], "shape": list(t.shape), "data_offsets": [off, off + len(raw)]}
        off += len(raw)
        blobs.append(raw)
    h = json.dumps(head).encode()
    h += b" " * ((-len(h)) % 8)
    with open(path + ".tmp", "wb") as f:
        f.write(struct.pack("<Q", len(h)) + h)
        for b in blobs:
            f.write(b)
    os.replace(path + ".tmp", path)


# ---------------------------------------------------------------- GGUF

_KV = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
# ggml type id -> (name, block length, block bytes)
GGML = {0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 6: ("Q5_0", 32, 22), 8: ("Q8_0", 32, 34), 12: ("Q4_K", 256, 144),
        13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 30: ("BF16", 1, 2)}


def _f16(b):
    """first two bytes of every row as half floats (n,1)"""
    return np.ascontiguousarray(b).view("<f2").astype(np.float32)


def _k_scales(s):
    """12 bytes -> eight 6-bit scales and eight 6-bit minima (n,8)"""
    s = s.astype(np.uint8)
    lo, hi, top = s[:, 0:4], s[:, 4:8], s[:, 8:12]
    sc = np.concatenate((lo & 63, (top & 15) | ((lo >> 6) << 4)), 1)
    mn = np.concatenate((hi & 63, (top >> 4) | ((hi >> 6) << 4)), 1)
    return sc.astype(np.float32), mn.astype(np.float32)


def dequantise(raw, kind):
    """raw uint8 (n, block bytes) -> float32 (n, block length)"""
    n = len(raw)
    if kind == "F32":
        return raw.view("<f4")
    if kind == "F16":
        return raw.view("<f2").astype(np.float32)
    if kind == "BF16":
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    if kind == "Q8_0":
        return _f16(raw[:, :2]) * raw[:, 2:].view(np.int8)
    if kind == "Q4_0":
        q = raw[:, 2:]
        return _f16(raw[:, :2]) * (np.concatenate((q & 15, q >> 4), 1).astype(np.float32) - 8)
    if kind == "Q5_0":
        h = (np.ascontiguousarray(raw[:, 2:6]).view("<u4") >> np.arange(32, dtype=np.uint32)) & 1
        q = raw[:, 6:]
        return _f16(raw[:, :2]) * ((np.concatenate((q & 15, q >> 4), 1) | h << 4).astype(np.float32) - 16)
    if kind in ("Q4_K", "Q5_K"):
        d, dmin = _f16(raw[:, 0:2]), _f16(raw[:, 2:4])
        sc, mn = _k_scales(raw[:, 4:16])
        q = raw[:, -128:].reshape(n, 4, 1, 32)
        q = np.concatenate((q & 15, q >> 4), 2).reshape(n, 8, 32)
        if kind == "Q5_K":
            h = (raw[:, 16:48][:, None] >> np.arange(8, dtype=np.uint8)[None, :, None]) & 1
            q = q | (h << 4)
        return ((d * sc)[..., None] * q - (dmin * mn)[..., None]).reshape(n, 256).astype(np.float32)
    if kind == "Q6_K":
        ql = raw[:, :128].reshape(n, 2, 64)
        qh = raw[:, 128:192].reshape(n, 2, 32)
        sc = raw[:, 192:208].view(np.int8).astype(np.float32)
        d = _f16(raw[:, 208:210])
        q = np.stack((ql[:, :, :32] & 15 | (qh & 3) << 4, ql[:, :, 32:] & 15 | (qh >> 2 & 3) << 4,
                      ql[:, :, :32] >> 4 | (qh >> 4 & 3) << 4, ql[:, :, 32:] >> 4 | (qh >> 6) << 4), 2)     # n,2,4,32
        q = q.reshape(n, 16, 16).astype(np.float32) - 32
        return (q * (d * sc)[..., None]).reshape(n, 256)
    raise ValueError("no dequantiser for " + kind)


class GGUF:
    """meta: {key: value}; tensor(name): float32 tensor in torch's order; types: {name: type name}"""

    def __init__(self, path):
        self.path = path
        with open(path, "rb") as f:
            self.mm = mm = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        if mm[:4] != b"GGUF":
            raise ValueError(path + ": not a GGUF file")
        self.p = 4

        def get(fmt):
            v = struct.unpack_from("<" + fmt, mm, self.p)[0]
            self.p += struct.calcsize("<" + fmt)
            return v

        def text():
            n = get("Q")
            self.p += n
            return mm[self.p - n:self.p].decode("utf-8", "replace")

        def value(t):
            if t == 8:
                return text()
            if t == 9:
                et, n = get("I"), get("Q")
                return [value(et) for _ in range(n)]
            return get(_KV[t])
        get("I")
        nt, nkv = get("Q"), get("Q")
        self.meta = {}
        for _ in range(nkv):
            k = text()
            self.meta[k] = value(get("I"))
        self.info = {}
        for _ in range(nt):
            name = text()
            shape = [get("Q") for _ in range(get("I"))]
            kind, off = get("I"), get("Q")
            self.info[name] = (shape, kind, off)
        al = self.meta.get("general.alignment", 32)
        self.base = (self.p + al - 1) // al * al
        self.types = {n: GGML.get(k, (str(k),))[0] for n, (_, k, _) in self.info.items()}

    def tensor(self, name):
        shape, kind, off = self.info[name]
        if kind not in GGML:
            raise ValueError(f"{self.path}: {name}: no dequantiser for type {kind}")
        tn, bl, bb = GGML[kind]
        n = int(np.prod(shape)) // bl
        raw = np.frombuffer(self.mm, np.uint8, n * bb, self.base + off).reshape(n, bb)
        x = np.array(dequantise(raw, tn), dtype=np.float32).reshape(shape[::-1])
        return torch.from_numpy(x)


# ---------------------------------------------------------------- targets

_ATTN = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
_MLP = {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def _untile(x, nk, r, dim=0, hd=1):
    """V heads from GGUF order (j*nk + g) back to Hugging Face order (g*r + j) along dim"""
    s = x.shape
    x = x.reshape(*s[:dim], r, nk, hd, *s[dim + 1:])
    return x.transpose(dim, dim + 1).reshape(s)


def config_from_gguf(g):
    path = g.path
    arch = g.meta["general.architecture"]
    m = lambda k, d=None: g.meta.get(f"{arch}.{k}", d)
    if arch not in ("qwen35", "qwen3"):
        raise ValueError(f"{path}: architecture {arch} is not supported here")
    n, hd = m("block_count") - m("nextn_predict_layers", 0), m("attention.key_length")
    c = TargetConfig(
        arch="qwen3_5" if arch == "qwen35" else "qwen3", vocab_size=g.info["token_embd.weight"][0][1] if "token_embd.weight" in g.info else 0, hidden_size=m("embedding_length"),
        intermediate_size=m("feed_forward_length"), num_hidden_layers=n, num_attention_heads=m("attention.head_count"),
        num_key_value_heads=m("attention.head_count_kv"), head_dim=hd, rms_norm_eps=m("attention.layer_norm_rms_epsilon"),
        rope_theta=m("rope.freq_base"), partial_rotary_factor=m("rope.dimension_count", hd) / hd,
        max_position_embeddings=m("context_length"), tie_word_embeddings="output.weight" not in g.info)
    if arch == "qwen35":
        c.linear_num_key_heads, c.linear_num_value_heads = m("ssm.group_count"), m("ssm.time_step_rank")
        c.linear_key_head_dim = c.linear_value_head_dim = m("ssm.state_size")
        c.linear_conv_kernel_dim = m("ssm.conv_kernel")
        c.layer_types = ["linear_attention" if f"blk.{i}.ssm_out.weight" in g.info else "full_attention" for i in range(n)]
    return c


def target_from_gguf(path):
    g = GGUF(path)
    c = config_from_gguf(g)
    n, arch = c.num_hidden_layers, g.meta["general.architecture"]
    off = 1.0 if c.gated else 0.0
    sd = {"model.embed_tokens.weight": g.tensor("token_embd.weight"), "model.norm.weight": g.tensor("output_norm.weight") - off}
    if not c.tie_word_embeddings:
        sd["lm_head.weight"] = g.tensor("output.weight")
    for i in range(n):
        h, b = f"model.layers.{i}.", f"blk.{i}."
        t = lambda s: g.tensor(b + s)
        names = dict(_MLP)
        sd[h + "input_layernorm.weight"] = t("attn_norm.weight") - off
        sd[h + "post_attention_layernorm.weight"] = t("post_attention_norm.weight" if arch == "qwen35" else "ffn_norm.weight") - off
        if c.layer_types[i] == "full_attention":
            names.update(_ATTN)
        else:
            nk, nv, dv = c.linear_num_key_heads, c.linear_num_value_heads, c.linear_value_head_dim
            r, kd = nv // nk, nk * c.linear_key_head_dim
            l = h + "linear_attn."
            x = t("attn_qkv.weight")
            sd[l + "in_proj_qkv.weight"] = torch.cat((x[:2 * kd], _untile(x[2 * kd:], nk, r, 0, dv)))
            sd[l + "in_proj_z.weight"] = _untile(t("attn_gate.weight"), nk, r, 0, dv)
            x = t("ssm_conv1d.weight").reshape(-1, c.linear_conv_kernel_dim)
            sd[l + "conv1d.weight"] = torch.cat((x[:2 * kd], _untile(x[2 * kd:], nk, r, 0, dv)))[:, None]
            sd[l + "in_proj_a.weight"] = _untile(t("ssm_alpha.weight"), nk, r)
            sd[l + "in_proj_b.weight"] = _untile(t("ssm_beta.weight"), nk, r)
            sd[l + "out_proj.weight"] = _untile(t("ssm_out.weight"), nk, r, 1, dv)
            sd[l + "A_log"] = _untile(torch.log(-t("ssm_a")), nk, r)
            sd[l + "dt_bias"] = _untile(t("ssm_dt.bias"), nk, r)
            sd[l + "norm.weight"] = t("ssm_norm.weight")
        for a, q in names.items():
            x = t(q + ".weight")
            sd[h + a + ".weight"] = x - off if a.endswith("norm") else x
    model = Target(c)
    model.load_state_dict(sd)
    return model


def config_from_hf(path):
    full = json.load(open(os.path.join(path, "config.json")))
    cfg = full.get("text_config", full)
    kind = cfg.get("model_type", full.get("model_type", ""))
    if not kind.startswith(("qwen3_5", "qwen3")) or "moe" in kind or "next" in kind:
        raise ValueError(f"{path}: model_type {kind} is not supported (qwen3, qwen3_5)")
    rope = cfg.get("rope_parameters") or {}
    get = lambda k, d: cfg[k] if cfg.get(k) is not None else rope[k] if rope.get(k) is not None else d
    d = TargetConfig(arch="qwen3_5" if kind.startswith("qwen3_5") else "qwen3")
    kw = {k: get(k, v) for k, v in asdict(d).items() if k not in ("arch", "layer_types", "tie_word_embeddings")}
    if d.arch == "qwen3":
        kw["partial_rotary_factor"] = 1.0
    tie = cfg.get("tie_word_embeddings", full.get("tie_word_embeddings", False))
    return TargetConfig(arch=d.arch, layer_types=cfg.get("layer_types") if d.arch == "qwen3_5" else None, tie_word_embeddings=bool(tie), **kw)


def target_from_hf(path):
    c, sd = config_from_hf(path), {}
    for k, v in read_safetensors(path).items():
        k = k.replace("model.language_model.", "model.")
        if k.startswith(("mtp.", "model.visual.", "visual.")) or (k == "lm_head.weight" and c.tie_word_embeddings):
            continue
        sd[k] = v.float()
    model = Target(c)
    model.load_state_dict(sd)
    return model


def load_target(path):
    """float32 module on the CPU from a Hugging Face folder or a GGUF file"""
    return target_from_hf(path) if os.path.isdir(path) else target_from_gguf(path)


def target_config_json(c: TargetConfig, eos):
    common = dict(
        vocab_size=c.vocab_size, hidden_size=c.hidden_size, intermediate_size=c.intermediate_size,
        num_hidden_layers=c.num_hidden_layers, num_attention_heads=c.num_attention_heads, num_key_value_heads=c.num_key_value_heads,
        head_dim=c.head_dim, hidden_act="silu", max_position_embeddings=c.max_position_embeddings, initializer_range=0.02,
        rms_norm_eps=c.rms_norm_eps, attention_bias=False, attention_dropout=0.0, tie_word_embeddings=c.tie_word_embeddings,
        use_cache=True, rope_theta=c.rope_theta, bos_token_id=None, eos_token_id=eos, pad_token_id=eos, dtype="bfloat16", torch_dtype="bfloat16")
    if not c.gated:
        return dict(architectures=["Qwen3ForCausalLM"], model_type="qwen3", rope_scaling=None, use_sliding_window=False,
                    sliding_window=None, max_window_layers=c.num_hidden_layers, **common)
    rot = int(c.head_dim * c.partial_rotary_factor) // 2
    sec = [rot - 2 * (rot // 3), rot // 3, rot // 3]
    return dict(
        architectures=["Qwen3_5ForCausalLM"], model_type="qwen3_5_text",
        linear_num_key_heads=c.linear_num_key_heads, linear_num_value_heads=c.linear_num_value_heads,
        linear_key_head_dim=c.linear_key_head_dim, linear_value_head_dim=c.linear_value_head_dim,
        linear_conv_kernel_dim=c.linear_conv_kernel_dim, layer_types=c.layer_types, full_attention_interval=c.full_attention_interval,
        attn_output_gate=True, mamba_ssm_dtype="float32", partial_rotary_factor=c.partial_rotary_factor,
        rope_parameters=dict(rope_type="default", rope_theta=c.rope_theta, partial_rotary_factor=c.partial_rotary_factor,
                             mrope_section=sec, mrope_interleaved=True), **common)


def draft_config_json(d: DraftConfig, eos):
    return dict(
        architectures=["DFlashDraftModel"], model_type="qwen3", auto_map={"AutoModel": "dflash.DFlashDraftModel"},
        vocab_size=d.vocab_size, hidden_size=d.hidden_size, intermediate_size=d.intermediate_size,
        num_hidden_layers=d.num_hidden_layers, num_attention_heads=d.num_attention_heads,
        num_key_value_heads=d.num_key_value_heads, head_dim=d.head_dim, hidden_act="silu", rms_norm_eps=d.rms_norm_eps,
        rope_theta=d.rope_theta, rope_scaling=None, rope_parameters=dict(rope_type="default", rope_theta=d.rope_theta),
        max_position_embeddings=d.max_position_embeddings, attention_bias=False, attention_dropout=0.0, tie_word_embeddings=False,
        use_sliding_window=False, sliding_window=None, max_window_layers=d.num_hidden_layers,
        layer_types=["full_attention"] * d.num_hidden_layers, block_size=d.block_size, num_target_layers=d.num_target_layers,
        initializer_range=0.02, use_cache=True, dflash_config=dict(mask_token_id=d.mask_token_id, target_layer_ids=d.target_layer_ids, **(
            dict(selector_rank=d.selector_rank, selector_top_k=d.selector_top_k) if d.selector_rank else {})),
        bos_token_id=None, eos_token_id=eos, pad_token_id=eos, dtype="bfloat16", torch_dtype="bfloat16")


def save_hf(model, folder, tokenizer=None, eos=None, dtype=torch.bfloat16):
    """Hugging Face folder of a target, a drafter or an MTP block without its target; tokenizer: folder with tokenizer.json (and
    its companions) to copy"""
    os.makedirs(folder, exist_ok=True)
    mtp = isinstance(model, MTP)
    write_safetensors(os.path.join(folder, "model.safetensors"), {"mtp." * mtp + k: v.to(dtype) for k, v in model.state_dict().items()})
    cfg = (draft_config_json if isinstance(model, Drafter) else target_config_json)(model.c, eos)
    if mtp:
        cfg["mtp_num_hidden_layers"] = 1
    cfg["dtype"] = cfg["torch_dtype"] = str(dtype)[6:]
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(cfg, f, indent=1)
    with open(os.path.join(folder, "generation_config.json"), "w") as f:
        json.dump(dict(eos_token_id=eos, pad_token_id=eos, do_sample=False), f)
    for n in ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt"):
        p = os.path.join(tokenizer, n) if tokenizer else ""
        if tokenizer and os.path.exists(p) and os.path.abspath(p) != os.path.abspath(os.path.join(folder, n)):
            shutil.copy(p, folder)


# ---------------------------------------------------------------- drafters

_NEXTN = {"fc": "nextn.eh_proj", "pre_fc_norm_embedding": "nextn.enorm", "pre_fc_norm_hidden": "nextn.hnorm", "norm": "nextn.shared_head_norm"}


def mtp_from_gguf(g):
    c = config_from_gguf(g)
    d, b = MTP(c), f"blk.{c.num_hidden_layers}."
    layer = {**_ATTN, **_MLP, "input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm"}
    names = {**_NEXTN, **{"layers.0." + a: q for a, q in layer.items()}}
    sd = {a + ".weight": g.tensor(b + q + ".weight") - (1.0 if "norm" in a else 0.0) for a, q in names.items()}
    d.load_state_dict(sd)
    return d


def load_drafter(path):
    """Hugging Face folder or GGUF file -> float32 module on the CPU"""
    if os.path.isdir(path):
        cfg = json.load(open(os.path.join(path, "config.json")))
        if cfg.get("mtp_num_hidden_layers"):
            d = MTP(config_from_hf(path))
            d.load_state_dict({k[4:]: v.float() for k, v in read_safetensors(path).items() if k.startswith("mtp.")})
            return d
        kw = {k: cfg[k] for k in asdict(DraftConfig()) if k in cfg}
        kw.update(cfg["dflash_config"])
        kw = {k: v for k, v in kw.items() if k in asdict(DraftConfig())}
        d = Drafter(DraftConfig(**kw))
        d.load_state_dict({k.replace("model.", "", 1) if k.startswith("model.") else k: v.float() for k, v in read_safetensors(path).items()})
        return d
    g = GGUF(path)
    if g.meta["general.architecture"] == "qwen35":
        return mtp_from_gguf(g)
    m = lambda k, v=None: g.meta.get("dflash." + k, v)
    c = DraftConfig(vocab_size=m("vocab_size", len(g.meta.get("tokenizer.ggml.tokens", [])) or DraftConfig.vocab_size),
                    hidden_size=m("embedding_length"), intermediate_size=m("feed_forward_length"), num_hidden_layers=m("block_count"),
                    num_attention_heads=m("attention.head_count"), num_key_value_heads=m("attention.head_count_kv"),
                    head_dim=m("attention.key_length"), rms_norm_eps=m("attention.layer_norm_rms_epsilon"), rope_theta=m("rope.freq_base"),
                    max_position_embeddings=m("context_length"), block_size=m("block_size"),
                    target_layer_ids=[int(i) - 1 for i in m("target_layers")], mask_token_id=g.meta["tokenizer.ggml.mask_token_id"],
                    selector_rank=m("selector_rank", 0), selector_top_k=m("selector_top_k", DraftConfig.selector_top_k))
    d = Drafter(c)
    sd = {"fc.weight": g.tensor("fc.weight"), "norm.weight": g.tensor("output_norm.weight"), "hidden_norm.weight": g.tensor("enc.output_norm.weight")}
    for i in range(c.num_hidden_layers):
        for a, q in {**_ATTN, **_MLP, "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}.items():
            sd[f"layers.{i}.{a}.weight"] = g.tensor(f"blk.{i}.{q}.weight")
    if c.selector_rank:
        for a, q in {"predecessor_codebook": "predecessor", "successor_codebook": "successor", "hidden_projection.weight": "hidden"}.items():
            sd["candidate_selector." + a] = g.tensor(f"selector_{q}.weight")
    d.load_state_dict(sd)
    return d
