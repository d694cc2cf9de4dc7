"""Targets (qwen3_5 hybrid and qwen3 dense), the DFlash drafter and the MTP block.

Parameter names and semantics follow Hugging Face transformers (`Qwen3_5ForCausalLM` text part, `Qwen3ForCausalLM`) and
z-lab's `DFlashDraftModel`, so state dicts are exchanged without renaming.  There is no autocast: activations carry the
compute dtype and weights are cast where they are used, so a float32 master copy and a frozen bfloat16 copy run the same code.
"""
import math
from dataclasses import dataclass, field
from typing import List, Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class TargetConfig:
    arch: str = "qwen3_5"                   # or "qwen3"
    vocab_size: int = 8192
    hidden_size: int = 512
    intermediate_size: int = 2048
    num_hidden_layers: int = 12
    num_attention_heads: int = 8
    num_key_value_heads: int = 2
    head_dim: int = 128
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e7
    partial_rotary_factor: float = 0.25
    max_position_embeddings: int = 4096
    tie_word_embeddings: bool = True
    # qwen3_5 only
    linear_num_key_heads: int = 4
    linear_num_value_heads: int = 8
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_conv_kernel_dim: int = 4
    full_attention_interval: int = 4
    layer_types: Optional[List[str]] = None

    def __post_init__(self):
        if self.layer_types is None:
            n = 1 if self.arch == "qwen3" else self.full_attention_interval
            self.layer_types = ["full_attention" if (i + 1) % n == 0 else "linear_attention" for i in range(self.num_hidden_layers)]

    @property
    def gated(self):
        return self.arch == "qwen3_5"


@dataclass
class DraftConfig:
    vocab_size: int = 8192
    hidden_size: int = 512
    intermediate_size: int = 1536
    num_hidden_layers: int = 5
    num_attention_heads: int = 8
    num_key_value_heads: int = 2
    head_dim: int = 64
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e7
    max_position_embeddings: int = 4096
    block_size: int = 16
    target_layer_ids: List[int] = field(default_factory=lambda: [1, 3, 5, 7, 9])
    num_target_layers: int = 12
    mask_token_id: int = 8179
    selector_rank: int = 0                  # 0: no selector
    selector_top_k: int = 8


def default_target_layers(n_layers, n_captured):
    """z-lab's default: spread over the target, leaving out the last layers"""
    if n_captured == 1:
        return [n_layers // 2]
    return [round(1 + i * (n_layers - 4) / (n_captured - 1)) for i in range(n_captured)]


ACT8 = False        # round the input of every product to int8 in groups of 32, as Strobe does for quantised weights (evaluation only)


def act(x):
    if not ACT8:
        return x
    y = x.reshape(*x.shape[:-1], -1, 32)
    s = y.abs().amax(-1, keepdim=True) / 127
    return ((y / s.clamp(min=1e-30)).round() * s).reshape(x.shape)


class Linear(nn.Linear):
    def __init__(self, i, o):
        super().__init__(i, o, bias=False)

    def forward(self, x):
        return F.linear(act(x), self.weight.to(x.dtype))


def lin_cat(x, *mods):
    """one matmul for several projections of the same input"""
    y = F.linear(act(x), torch.cat([m.weight for m in mods]).to(x.dtype))
    return torch.split(y, [m.weight.shape[0] for m in mods], dim=-1)


class RMSNorm(nn.Module):
    """offset 1: zero-centred weight (qwen3_5); offset 0: plain (qwen3, drafter)"""

    def __init__(self, d, eps, offset=0.0):
        super().__init__()
        self.weight = nn.Parameter(torch.full((d,), 1.0 - offset))
        self.eps, self.offset = eps, offset

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        w = self.weight.float()
        return (y * (w + self.offset if self.offset else w)).to(x.dtype)


class RMSNormGated(nn.Module):
    def __init__(self, d, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))
        self.eps = eps

    def forward(self, x, gate):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        y = y * self.weight.float() * F.silu(gate.float())
        return y.to(gate.dtype)


def rope_tables(pos, dim, theta):
    """pos (...,) -> cos, sin (..., dim), half-rotation layout"""
    inv = 1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.float32, device=pos.device) / dim))
    f = pos.float()[..., None] * inv
    f = torch.cat((f, f), dim=-1)
    return f.cos(), f.sin()


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def apply_rope(x, cos, sin):
    """x (B,T,H,D); cos/sin (B or 1,T,R) with R <= D"""
    r = cos.shape[-1]
    c, s = cos.unsqueeze(-2), sin.unsqueeze(-2)
    if r == x.shape[-1]:
        xf = x.float()
        return (xf * c + rotate_half(xf) * s).to(x.dtype)
    xr, xp = x[..., :r].float(), x[..., r:]
    xr = (xr * c + rotate_half(xr) * s).to(x.dtype)
    return torch.cat((xr, xp), dim=-1)


def sdpa(q, k, v, mask=None, causal=False):
    """q (B,H,T,D), k/v (B,Hkv,S,D); mask bool, True = attend"""
    rep = q.shape[1] // k.shape[1]
    if rep > 1:
        B, H, S, D = k.shape
        k = k[:, :, None].expand(B, H, rep, S, D).reshape(B, H * rep, S, D)
        v = v[:, :, None].expand(B, H, rep, S, D).reshape(B, H * rep, S, D)
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
    a = (q @ k.transpose(-1, -2)) * (q.shape[-1] ** -0.5)        # PyTorch 1.x, for the smoke test
    if causal:
        T = q.shape[2]
        mask = torch.ones(T, T, dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        a = a.masked_fill(~mask, float("-inf"))
    return torch.softmax(a.float(), -1).to(q.dtype) @ v


# ---------------------------------------------------------------- gated delta rule

def _bm(a, b):
    """batched matmul over flattened leading dims"""
    s = a.shape[:-2]
    return torch.bmm(a.reshape(-1, *a.shape[-2:]), b.reshape(-1, *b.shape[-2:])).view(*s, a.shape[-2], b.shape[-1])


def _level_masks(C, device):
    i = torch.arange(C, device=device)
    out = []
    s = 1
    while s < C:
        bi = i // s
        out.append((bi[:, None] % 2 == 1) & (bi[None, :] == bi[:, None] - 1))
        s *= 2
    return out


class TriInv(torch.autograd.Function):
    """(I + L)^-1 for strictly lower triangular L (..., C, C), by recursive block doubling (as stable as forward
    substitution)"""

    @staticmethod
    def forward(ctx, L):
        C = L.shape[-1]
        shp = L.shape
        L = L.reshape(-1, C, C)
        masks = _level_masks(C, L.device)
        X = torch.eye(C, dtype=L.dtype, device=L.device) - L * masks[0].to(L.dtype)
        for m in masks[1:]:
            X = X - torch.bmm(X, torch.bmm(L * m.to(L.dtype), X))
        X = X.view(shp)
        ctx.save_for_backward(X)
        return X

    @staticmethod
    def backward(ctx, g):
        (X,) = ctx.saved_tensors
        C = X.shape[-1]
        Xt = X.reshape(-1, C, C).transpose(1, 2)
        d = torch.bmm(torch.bmm(Xt, g.reshape(-1, C, C)), Xt)
        return -(d.tril(-1)).view(X.shape)


def scan_plain(w, u, kd, d, S):
    Ss, vs = [], []
    for i in range(w.shape[0]):
        Sb = S.to(w.dtype)
        vn = torch.baddbmm(u[i], w[i], Sb, alpha=-1)
        S = S * d[i][:, None, None] + torch.bmm(kd[i].transpose(1, 2), vn).float()
        Ss.append(Sb)
        vs.append(vn)
    return torch.stack(Ss), torch.stack(vs), S


class ChunkScan(torch.autograd.Function):
    """S_{i+1} = d_i S_i + kd_i^T vn_i with vn_i = u_i - w_i S_i.
    w, u, kd (N,G,C,D) in the compute dtype; d (N,G) and S0 (G,D,D) float32.
    Returns the states before every chunk (N,G,D,D) and vn (N,G,C,D)."""

    @staticmethod
    def forward(ctx, w, u, kd, d, S0):
        Sst, vst, _ = scan_plain(w, u, kd, d, S0)
        ctx.save_for_backward(w, kd, d, Sst, vst)
        return Sst, vst

    @staticmethod
    def backward(ctx, gS, gv):
        w, kd, d, Sst, vst = ctx.saved_tensors
        N = w.shape[0]
        dS = torch.zeros(Sst.shape[1:], dtype=torch.float32, device=w.device)
        dSn, dvt = [None] * N, [None] * N
        for i in range(N - 1, -1, -1):
            dSb = dS.to(w.dtype)
            dSn[i] = dSb
            dv = torch.baddbmm(gv[i], kd[i], dSb)
            dvt[i] = dv
            dS = dS * d[i][:, None, None] + gS[i].float() - torch.bmm(w[i].transpose(1, 2), dv).float()
        dSn, dvt = torch.stack(dSn), torch.stack(dvt)
        dw = -torch.matmul(dvt, Sst.transpose(-1, -2))
        dkd = torch.matmul(vst, dSn.transpose(-1, -2))
        dd = (dSn.float() * Sst.float()).sum((-1, -2))
        return dw, dvt, dkd, dd, None


def l2norm(x):
    x = x.float()
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def gdn_chunk(q, k, v, g, beta, C=64, S0=None, want_state=False):
    """q, k (B,T,Hk,D) raw; v (B,T,Hv,Dv); g, beta (B,T,Hv) float32; T % C == 0.  V head h uses K head h // (Hv/Hk)."""
    B, T, Hk, D = k.shape
    Hv, Dv = v.shape[2], v.shape[3]
    R = Hv // Hk
    N = T // C
    cd = v.dtype

    def lay(x):                                                                       # (B,T,Hk,D) -> (N,B,Hk,C,D)
        return x.view(B, N, C, Hk, D).permute(1, 0, 3, 2, 4)
    qc = lay(l2norm(q) * (D ** -0.5)).to(cd).contiguous()
    kc = lay(l2norm(k)).to(cd).contiguous()
    vc = v.view(B, N, C, Hk, R, Dv).permute(1, 0, 3, 4, 2, 5).contiguous()          # N,B,Hk,R,C,Dv
    gc = g.view(B, N, C, Hk, R).permute(1, 0, 3, 4, 2).cumsum(-1)                    # N,B,Hk,R,C
    bt = beta.view(B, N, C, Hk, R).permute(1, 0, 3, 4, 2)

    KK = _bm(kc, kc.transpose(-1, -2)).unsqueeze(3)                                  # N,B,Hk,1,C,C
    QK = _bm(qc, kc.transpose(-1, -2)).unsqueeze(3)
    idx = torch.arange(C, device=q.device)
    low = idx[:, None] >= idx[None, :]
    strict = idx[:, None] > idx[None, :]
    dec = torch.exp((gc[..., :, None] - gc[..., None, :]).masked_fill(~low, float("-inf")))
    L = torch.where(strict, KK.float() * dec * bt[..., :, None], torch.zeros((), device=q.device))
    Tm = TriInv.apply(L)
    attn = (QK.float() * dec).to(cd)
    eg = gc.exp()
    Tu = (Tm * bt[..., None, :]).to(cd)
    Tw = (Tm * (bt * eg)[..., None, :]).to(cd)
    u = _bm(Tu, vc)                                                                   # N,B,Hk,R,C,Dv
    w = _bm(Tw.view(N, B, Hk, R * C, C), kc).view(N, B, Hk, R, C, D)
    glast = gc[..., -1:]
    kd = (kc.unsqueeze(3).float() * (glast - gc).exp().unsqueeze(-1)).to(cd)
    qd = (qc.unsqueeze(3).float() * eg.unsqueeze(-1)).to(cd)
    d = glast.squeeze(-1).exp()                                                       # N,B,Hk,R
    G = B * Hv
    if S0 is None:
        S0 = torch.zeros(G, D, Dv, dtype=torch.float32, device=q.device)
    else:
        S0 = S0.reshape(G, D, Dv).float()
    args = (w.reshape(N, G, C, D), u.reshape(N, G, C, Dv), kd.reshape(N, G, C, D), d.reshape(N, G), S0)
    if want_state:
        Sst, vn, SN = scan_plain(*args)
    else:
        Sst, vn = ChunkScan.apply(*args)
    o = torch.baddbmm(torch.bmm(attn.reshape(N * G, C, C), vn.reshape(N * G, C, Dv)),
                      qd.reshape(N * G, C, D), Sst.reshape(N * G, D, Dv))
    o = o.view(N, B, Hk, R, C, Dv).permute(1, 0, 4, 2, 3, 5).reshape(B, T, Hv, Dv)
    if want_state:
        return o, SN.view(B, Hv, D, Dv)
    return o


def gdn_step(S, q, k, v, g, beta):
    """one token: S (B,Hv,Dk,Dv) float32, q, k (B,Hv,Dk) normalised, v (B,Hv,Dv), g, beta (B,Hv)"""
    S = S * g.exp()[..., None, None]
    kv = (S * k[..., None]).sum(-2)
    delta = (v - kv) * beta[..., None]
    S = S + k[..., None] * delta[..., None, :]
    return (S * q[..., None]).sum(-2), S


def gdn_recurrent(q, k, v, g, beta, S=None):
    """reference: token by token in float32"""
    B, T, Hk, D = k.shape
    Hv = v.shape[2]
    R = Hv // Hk
    q = (l2norm(q) * (D ** -0.5)).repeat_interleave(R, dim=2)
    k = l2norm(k).repeat_interleave(R, dim=2)
    if S is None:
        S = torch.zeros(B, Hv, D, v.shape[3], dtype=torch.float32, device=q.device)
    outs = []
    for t in range(T):
        o, S = gdn_step(S, q[:, t], k[:, t], v[:, t].float(), g[:, t], beta[:, t])
        outs.append(o)
    return torch.stack(outs, 1).to(v.dtype), S


# ---------------------------------------------------------------- target

class GatedDeltaNet(nn.Module):
    def __init__(self, c: TargetConfig):
        super().__init__()
        self.hk, self.hv = c.linear_num_key_heads, c.linear_num_value_heads
        self.dk, self.dv = c.linear_key_head_dim, c.linear_value_head_dim
        self.key_dim, self.value_dim = self.hk * self.dk, self.hv * self.dv
        self.conv_dim = 2 * self.key_dim + self.value_dim
        self.ks = c.linear_conv_kernel_dim
        self.conv1d = nn.Conv1d(self.conv_dim, self.conv_dim, self.ks, groups=self.conv_dim, bias=False, padding=self.ks - 1)
        self.dt_bias = nn.Parameter(torch.ones(self.hv))
        self.A_log = nn.Parameter(torch.zeros(self.hv))
        self.norm = RMSNormGated(self.dv, c.rms_norm_eps)
        self.out_proj = Linear(self.value_dim, c.hidden_size)
        self.in_proj_qkv = Linear(c.hidden_size, self.conv_dim)
        self.in_proj_z = Linear(c.hidden_size, self.value_dim)
        self.in_proj_b = Linear(c.hidden_size, self.hv)
        self.in_proj_a = Linear(c.hidden_size, self.hv)

    def conv(self, xp, T):
        """xp (B, ks-1+T, conv_dim), already left padded"""
        w = self.conv1d.weight.float()[:, 0]
        y = xp[:, 0:T].float() * w[:, 0]
        for j in range(1, self.ks):
            y = y + xp[:, j:j + T].float() * w[:, j]
        return F.silu(y).to(xp.dtype)

    def project(self, x, conv_state=None):
        B, T, _ = x.shape
        m, z, b, a = lin_cat(x, self.in_proj_qkv, self.in_proj_z, self.in_proj_b, self.in_proj_a)
        if conv_state is None:
            xp = F.pad(m, (0, 0, self.ks - 1, 0))
        else:
            xp = torch.cat((conv_state.to(m.dtype), m), dim=1)
        y = self.conv(xp, T)
        q, k, v = torch.split(y, [self.key_dim, self.key_dim, self.value_dim], dim=-1)
        q = q.reshape(B, T, self.hk, self.dk)
        k = k.reshape(B, T, self.hk, self.dk)
        v = v.reshape(B, T, self.hv, self.dv)
        beta = torch.sigmoid(b.float())
        g = -self.A_log.float().exp() * F.softplus(a.float() + self.dt_bias.float())
        return q, k, v, g, beta, z.reshape(B, T, self.hv, self.dv), xp

    def finish(self, o, z):
        B, T = o.shape[:2]
        return self.out_proj(self.norm(o, z).reshape(B, T, self.value_dim))

    def forward(self, x, cos, sin):
        q, k, v, g, beta, z, _ = self.project(x)
        return self.finish(gdn_chunk(q, k, v, g, beta), z)


class Attention(nn.Module):
    """qwen3 attention; with an output gate in qwen3_5"""

    def __init__(self, c: TargetConfig):
        super().__init__()
        self.h, self.hkv, self.d, self.gated = c.num_attention_heads, c.num_key_value_heads, c.head_dim, c.gated
        self.q_proj = Linear(c.hidden_size, self.h * self.d * (2 if c.gated else 1))
        self.k_proj = Linear(c.hidden_size, self.hkv * self.d)
        self.v_proj = Linear(c.hidden_size, self.hkv * self.d)
        self.o_proj = Linear(self.h * self.d, c.hidden_size)
        off = 1.0 if c.gated else 0.0
        self.q_norm = RMSNorm(self.d, c.rms_norm_eps, off)
        self.k_norm = RMSNorm(self.d, c.rms_norm_eps, off)

    def qkv(self, x, cos, sin):
        B, T, _ = x.shape
        q, k, v = lin_cat(x, self.q_proj, self.k_proj, self.v_proj)
        gate = None
        if self.gated:
            q, gate = q.reshape(B, T, self.h, 2 * self.d).chunk(2, dim=-1)
        q = apply_rope(self.q_norm(q.reshape(B, T, self.h, self.d)), cos, sin)
        k = apply_rope(self.k_norm(k.reshape(B, T, self.hkv, self.d)), cos, sin)
        return q, k, v.reshape(B, T, self.hkv, self.d), gate

    def finish(self, o, gate):
        """o (B,H,T,D)"""
        B, _, T, _ = o.shape
        o = o.transpose(1, 2).reshape(B, T, self.h * self.d)
        if gate is not None:
            o = o * torch.sigmoid(gate.reshape(B, T, -1))
        return self.o_proj(o)

    def forward(self, x, cos, sin):
        q, k, v, gate = self.qkv(x, cos, sin)
        return self.finish(sdpa(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), causal=True), gate)


class MLP(nn.Module):
    def __init__(self, h, i):
        super().__init__()
        self.gate_proj = Linear(h, i)
        self.up_proj = Linear(h, i)
        self.down_proj = Linear(i, h)

    def forward(self, x):
        g, u = lin_cat(x, self.gate_proj, self.up_proj)
        return self.down_proj(F.silu(g) * u)


class TargetLayer(nn.Module):
    def __init__(self, c, kind):
        super().__init__()
        self.full = kind == "full_attention"
        if self.full:
            self.self_attn = Attention(c)
        else:
            self.linear_attn = GatedDeltaNet(c)
        off = 1.0 if c.gated else 0.0
        self.mlp = MLP(c.hidden_size, c.intermediate_size)
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps, off)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps, off)

    def forward(self, x, cos, sin):
        mix = self.self_attn if self.full else self.linear_attn
        x = x + mix(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class TargetBody(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList([TargetLayer(c, t) for t in c.layer_types])
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps, 1.0 if c.gated else 0.0)


class Target(nn.Module):
    def __init__(self, c: TargetConfig):
        super().__init__()
        self.c = c
        self.model = TargetBody(c)
        if not c.tie_word_embeddings:
            self.lm_head = Linear(c.hidden_size, c.vocab_size)
        self.rot = int(c.head_dim * (c.partial_rotary_factor if c.gated else 1))
        self.run = None                     # optional list of compiled layers

    @torch.no_grad()
    def init_weights(self):
        c = self.c
        for n, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)
                if n.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
                    p.mul_(1.0 / math.sqrt(2 * c.num_hidden_layers))
        for l in self.model.layers:
            if not l.full:
                m = l.linear_attn
                nn.init.uniform_(m.conv1d.weight, -0.5, 0.5)
                m.A_log.copy_(torch.empty(m.hv).uniform_(1, 16).log())
                dt = torch.exp(torch.rand(m.hv) * (math.log(0.1) - math.log(0.001)) + math.log(0.001)).clamp(min=1e-4)
                m.dt_bias.copy_(dt + torch.log(-torch.expm1(-dt)))
        return self

    @torch.no_grad()
    def freeze(self, dtype):
        """matrices in dtype, vectors (norms, decay) in float32"""
        self.requires_grad_(False)
        for p in self.parameters():
            p.data = p.data.to(dtype if p.dim() == 2 else torch.float32)
        return self

    @property
    def device(self):
        return self.model.embed_tokens.weight.device

    @property
    def head_weight(self):
        return self.model.embed_tokens.weight if self.c.tie_word_embeddings else self.lm_head.weight

    def embed(self, ids, dtype):
        return F.embedding(ids, self.model.embed_tokens.weight).to(dtype)

    def hidden(self, ids, dtype, feat_ids=None):
        """final normed hidden states (B,T,H) [and the captured layer outputs, concatenated]; T % 64 == 0 for hybrids"""
        x = self.embed(ids, dtype)
        cos, sin = rope_tables(torch.arange(ids.shape[1], device=ids.device)[None], self.rot, self.c.rope_theta)
        feats = {}
        for i, l in enumerate(self.run if self.run is not None else self.model.layers):
            x = l(x, cos, sin)
            if feat_ids is not None and i in feat_ids:
                feats[i] = x
        x = self.model.norm(x)
        if feat_ids is None:
            return x
        return x, torch.cat([feats[i] for i in feat_ids], dim=-1)

    def logits(self, h):
        return F.linear(act(h), self.head_weight.to(h.dtype))

    def forward(self, ids, dtype=torch.float32):
        T = ids.shape[1]
        pad = (-T) % 64
        if pad:
            ids = F.pad(ids, (0, pad))
        return self.logits(self.hidden(ids, dtype))[:, :T]


def ce_loss(h, emb, tgt):
    lg = F.linear(h, emb.to(h.dtype)).float()
    return F.cross_entropy(lg.view(-1, lg.shape[-1]), tgt.reshape(-1))


class CachedTarget:
    """Batched decoding with a length per row.  forward_block() runs Tb tokens from every row's committed position without
    changing the state; commit(n) accepts the first n[b] of them."""

    def __init__(self, m: Target, B, max_len, dtype=torch.float32, feat_ids=None):
        self.m, self.dtype, self.feat_ids = m, dtype, feat_ids
        self.dev = dev = m.device
        self.pos = torch.zeros(B, dtype=torch.long, device=dev)
        self.B, self.max_len = B, max_len
        self.state = []
        for l in m.model.layers:
            if l.full:
                a = l.self_attn
                self.state.append([torch.zeros(B, a.hkv, max_len, a.d, dtype=dtype, device=dev),
                                   torch.zeros(B, a.hkv, max_len, a.d, dtype=dtype, device=dev)])
            else:
                a = l.linear_attn
                self.state.append([torch.zeros(B, a.ks - 1, a.conv_dim, dtype=dtype, device=dev),
                                   torch.zeros(B, a.hv, a.dk, a.dv, dtype=torch.float32, device=dev)])
        self.pending = None

    @torch.no_grad()
    def forward_block(self, ids):
        m, B = self.m, self.B
        Tb = ids.shape[1]
        C = 16
        while C < Tb and C < 64:
            C *= 2
        pad = (-Tb) % C
        P = self.pos[:, None] + torch.arange(Tb, device=self.dev)[None]
        cos, sin = rope_tables(P, m.rot, m.c.rope_theta)
        keypos = torch.arange(self.max_len, device=self.dev)
        mask = (keypos[None, None] <= P[..., None]).unsqueeze(1)       # B,1,Tb,L
        rows = torch.arange(B, device=self.dev)[:, None]
        x = m.embed(ids, self.dtype)
        feats, pend = {}, []
        for i, l in enumerate(m.model.layers):
            y = l.input_layernorm(x)
            st = self.state[i]
            if l.full:
                a = l.self_attn
                q, k, v, gate = a.qkv(y, cos, sin)
                st[0][rows, :, P] = k
                st[1][rows, :, P] = v
                y = a.finish(sdpa(q.transpose(1, 2), st[0], st[1], mask=mask), gate)
                pend.append(None)
            else:
                a = l.linear_attn
                q, k, v, g, beta, z, xp = a.project(y, st[0])
                pd = lambda t: F.pad(t, (0, 0) * (t.dim() - 2) + (0, pad)) if pad else t
                o = gdn_chunk(pd(q), pd(k), pd(v), pd(g), pd(beta), C=C, S0=st[1])[:, :Tb]
                pend.append((xp, k, v, g, beta))
                y = a.finish(o, z)
            x = x + y
            x = x + l.mlp(l.post_attention_layernorm(x))
            if self.feat_ids is not None and i in self.feat_ids:
                feats[i] = x
        self.pending = (Tb, C, pad, pend)
        lg = m.logits(m.model.norm(x))
        f = torch.cat([feats[i] for i in self.feat_ids], -1) if self.feat_ids is not None else None
        return lg, f

    @torch.no_grad()
    def commit(self, n):
        """n (B,): tokens of the pending block to keep"""
        Tb, C, pad, pend = self.pending
        for i, l in enumerate(self.m.model.layers):
            if pend[i] is None:
                continue
            a, st = l.linear_attn, self.state[i]
            xp, k, v, g, beta = pend[i]
            keep = (torch.arange(Tb, device=self.dev)[None] < n[:, None]).float()[..., None]
            pd = lambda t: F.pad(t, (0, 0) * (t.dim() - 2) + (0, pad)) if pad else t
            _, st[1] = gdn_chunk(pd(k), pd(k), pd(v), pd(g * keep), pd(beta * keep), C=C, S0=st[1], want_state=True)
            idx = n[:, None] + torch.arange(a.ks - 1, device=self.dev)[None]
            st[0] = torch.gather(xp, 1, idx[..., None].expand(-1, -1, xp.shape[-1]))
        self.pos = self.pos + n
        self.pending = None


# ---------------------------------------------------------------- drafter

class DraftAttention(nn.Module):
    def __init__(self, c: DraftConfig):
        super().__init__()
        self.h, self.hkv, self.d = c.num_attention_heads, c.num_key_value_heads, c.head_dim
        self.q_proj = Linear(c.hidden_size, self.h * self.d)
        self.k_proj = Linear(c.hidden_size, self.hkv * self.d)
        self.v_proj = Linear(c.hidden_size, self.hkv * self.d)
        self.o_proj = Linear(self.h * self.d, c.hidden_size)
        self.q_norm = RMSNorm(self.d, c.rms_norm_eps)
        self.k_norm = RMSNorm(self.d, c.rms_norm_eps)

    def kv(self, x, cos, sin):
        """keys and values of the context"""
        B, S, _ = x.shape
        k, v = lin_cat(x, self.k_proj, self.v_proj)
        return apply_rope(self.k_norm(k.reshape(B, S, self.hkv, self.d)), cos, sin), v.reshape(B, S, self.hkv, self.d)

    def forward(self, x, ctx, rope_q, rope_c, mask, A):
        """x (B, A*n, H): A blocks of n tokens; ctx (B,T,H); mask: bool (B,A,T) and (B,A,n), True = attend.
        Every block attends to the shared context and to itself: one product for the context of all blocks, one per block
        for itself, one softmax over both."""
        B, Q, _ = x.shape
        n, T, rep, kv, d = Q // A, ctx.shape[1], self.h // self.hkv, self.hkv, self.d
        q, k, v = lin_cat(x, self.q_proj, self.k_proj, self.v_proj)
        q = apply_rope(self.q_norm(q.reshape(B, Q, self.h, d)), *rope_q)
        k = apply_rope(self.k_norm(k.reshape(B, Q, kv, d)), *rope_q)
        kc, vc = self.kv(ctx, *rope_c)
        # the query heads of one kv head become rows: (B, kv, A*rep*n, d)
        q = (q * d ** -0.5).reshape(B, A, n, kv, rep, d).permute(0, 3, 1, 4, 2, 5).reshape(B * kv, A * rep * n, d)
        own = lambda t: t.reshape(B, A, n, kv, d).permute(0, 3, 1, 2, 4).reshape(B * kv * A, n, d)
        k, v = own(k), own(v.reshape(B, Q, kv, d))
        kc, vc = kc.transpose(1, 2).reshape(B * kv, T, d), vc.transpose(1, 2).reshape(B * kv, T, d)
        sc = torch.bmm(q, kc.transpose(1, 2)).view(B, kv, A, rep * n, T).float()
        so = torch.bmm(q.view(B * kv * A, rep * n, d), k.transpose(1, 2)).view(B, kv, A, rep * n, n).float()
        sc = sc.masked_fill(~mask[0][:, None, :, None], float("-inf"))
        so = so.masked_fill(~mask[1][:, None, :, None], float("-inf"))
        top = torch.maximum(sc.amax(-1, keepdim=True), so.amax(-1, keepdim=True)).detach()
        sc, so = torch.exp(sc - top), torch.exp(so - top)
        den = 1 / (sc.sum(-1, keepdim=True) + so.sum(-1, keepdim=True))
        pc, po = (sc * den).to(x.dtype), (so * den).to(x.dtype)
        o = torch.bmm(pc.view(B * kv, A * rep * n, T), vc).view(B * kv * A, rep * n, d)
        o = torch.baddbmm(o, po.view(B * kv * A, rep * n, n), v)
        o = o.view(B, kv, A, rep, n, d).permute(0, 2, 4, 1, 3, 5).reshape(B, Q, self.h * d)
        return self.o_proj(o)


class DraftLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.self_attn = DraftAttention(c)
        self.mlp = MLP(c.hidden_size, c.intermediate_size)
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)

    def forward(self, x, ctx, rope_q, rope_c, mask, A):
        # the context does NOT go through input_layernorm (as in z-lab's model)
        x = x + self.self_attn(self.input_layernorm(x), ctx, rope_q, rope_c, mask, A)
        return x + self.mlp(self.post_attention_layernorm(x))


class Selector(nn.Module):
    """DFlash2's head: the slots of a block are filled at once and do not know each other's tokens, so among the best few
    tokens of a slot prefer those that fit the token before"""

    def __init__(self, c):
        super().__init__()
        self.top = c.selector_top_k
        self.predecessor_codebook = nn.Parameter(torch.randn(c.vocab_size, c.selector_rank))
        self.successor_codebook = nn.Parameter(torch.zeros(c.vocab_size, c.selector_rank))
        self.hidden_projection = Linear(c.hidden_size, c.selector_rank)

    def forward(self, ids, logits, h, prev):
        """scores (...,k) of the candidates ids (...,k) with these logits, for the state h (...,H) after the token prev (...)"""
        q = F.embedding(prev, self.predecessor_codebook) * self.hidden_projection(h).float()
        return logits + (F.embedding(ids, self.successor_codebook) * q[..., None, :]).sum(-1)

    def walk(self, logits, h, last):
        """tokens (B,n) for logits (B,n,V) and states (B,n,H), each given the one chosen before; last (B,) comes first"""
        top, ids = logits.float().topk(self.top)
        out = []
        for k in range(h.shape[1]):
            best = self(ids[:, k], top[:, k], h[:, k], last).argmax(-1, keepdim=True)
            last = ids[:, k].gather(-1, best)[:, 0]
            out.append(last)
        return torch.stack(out, 1)


class Drafter(nn.Module):
    def __init__(self, c: DraftConfig):
        super().__init__()
        self.c = c
        self.layers = nn.ModuleList([DraftLayer(c) for _ in range(c.num_hidden_layers)])
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.fc = Linear(len(c.target_layer_ids) * c.hidden_size, c.hidden_size)
        self.hidden_norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.candidate_selector = Selector(c) if c.selector_rank else None
        self.run = None                     # compiled parts, see compile()
        with torch.no_grad():
            for n, p in self.named_parameters():
                if p.dim() == 2 and "codebook" not in n:
                    nn.init.normal_(p, std=0.02)
                    if n.endswith(("o_proj.weight", "down_proj.weight")):
                        p.mul_(1.0 / math.sqrt(2 * c.num_hidden_layers))
            self.norm.weight.fill_(0.3)     # the borrowed head is large: start with flat predictions

    def forward(self, feats, noise, pos_ctx, pos_q, mask, A=1):
        """feats (B,T,n*H) captured features; noise (B,A*n,H) embeddings of A blocks [anchor, mask, mask ...];
        pos_ctx (B|1,T); pos_q (B,A*n); mask from block_mask().  Returns the final normed hidden states (B,A*n,H)."""
        ctx = self.context(feats) if self.run is None else self.run[-2](feats)
        rope_q = rope_tables(pos_q, self.c.head_dim, self.c.rope_theta)
        rope_c = rope_tables(pos_ctx, self.c.head_dim, self.c.rope_theta)
        x = noise
        for l in self.layers if self.run is None else self.run[:-2]:
            x = l(x, ctx, rope_q, rope_c, mask, A)
        return self.norm(x) if self.run is None else self.run[-1](x)

    @property
    def block(self):
        return self.c.block_size

    def captures(self, target):
        return self.c.target_layer_ids

    def propose(self, m, feats, out, start, n):
        """n - 1 guesses (B,n-1) for what follows the tokens out (B,L) at start (B,), with the features of the tokens before"""
        ids = torch.full((len(out), n), self.c.mask_token_id, dtype=torch.long, device=out.device)
        ids[:, :1] = out.gather(1, start[:, None])
        L = out.shape[1]
        pos = start[:, None] + torch.arange(n, device=out.device)[None]
        h = self(feats, m.embed(ids, feats.dtype), torch.arange(L, device=out.device)[None], pos, block_mask(start[:, None], L, n))[:, 1:]
        return self.guess(m.logits(h), h, ids[:, 0])

    def guess(self, logits, h, last):
        """tokens (B,n) for logits (B,n,V) of the states h (B,n,H) after the token last (B,)"""
        if self.candidate_selector is None:
            return logits.argmax(-1)
        return self.candidate_selector.walk(logits, h, last)

    def context(self, feats):
        return self.hidden_norm(self.fc(feats))

    def compile(self):
        c = lambda f: torch.compile(f, dynamic=False)
        self.run = [c(l) for l in self.layers] + [c(self.context), c(self.norm)]


def block_mask(anchors, T, n, length=None):
    """anchors (B,A) -> what a block may attend to: context positions before the anchor (B,A,T), and of its own n tokens
    (not causal) the first length (B,A), all if None"""
    dev = anchors.device
    ctx = torch.arange(T, device=dev) < anchors[..., None]
    if length is None:
        length = torch.full_like(anchors, n)
    return ctx, torch.arange(n, device=dev) < length[..., None]


# ---------------------------------------------------------------- MTP

class MTP(nn.Module):
    """The NextN block of a qwen3_5 target, named as in its checkpoints: one layer of the target's full attention.  Its input
    is a token and the target's final state before it; its output guesses the next token and is the state for the next
    step.  Embedding and head are the target's."""

    def __init__(self, c: TargetConfig, block=9):
        super().__init__()
        assert c.gated, "qwen3 has no such block"
        self.c, self.block = c, block                   # a block: the token known and the guesses
        norm = lambda: RMSNorm(c.hidden_size, c.rms_norm_eps, 1.0)
        self.fc = Linear(2 * c.hidden_size, c.hidden_size)
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden = norm(), norm()
        self.layers = nn.ModuleList([TargetLayer(c, "full_attention")])
        self.norm = norm()
        self.run = None                                 # compiled context() and step()
        with torch.no_grad():
            for p in self.parameters():
                if p.dim() == 2:
                    nn.init.normal_(p, std=0.02)
            self.norm.weight.fill_(-0.7)                # the borrowed head is large: start with flat predictions

    def compile(self):
        self.run = [torch.compile(f, dynamic=False) for f in (self.context, self.step)]

    def captures(self, target):
        return [target.c.num_hidden_layers - 1]

    def rope(self, pos):
        return rope_tables(pos, int(self.c.head_dim * self.c.partial_rotary_factor), self.c.rope_theta)

    def input(self, e, h):
        return self.fc(torch.cat((self.pre_fc_norm_embedding(e), self.pre_fc_norm_hidden(h)), -1))

    def context(self, e, h):
        """keys and values (B,T,hkv,d) of known tokens: e (B,T,H) their embeddings, h (B,T,H) the target's states at them"""
        B, T, _ = e.shape
        l, a = self.layers[0], self.layers[0].self_attn
        x = self.input(e, F.pad(h, (0, 0, 1, 0))[:, :-1])           # a token goes with the state before it
        k, v = lin_cat(l.input_layernorm(x), a.k_proj, a.v_proj)
        k = apply_rope(a.k_norm(k.reshape(B, T, a.hkv, a.d)), *self.rope(torch.arange(T, device=e.device)[None]))
        return k, v.reshape(B, T, a.hkv, a.d)

    def step(self, e, h, cos, sin, kc, vc, seen, ko, vo, used):
        """One step of A chains per row: e, h (B,A,H).  A chain sees the keys of the context where seen (B,A,T), and of those of
        its earlier steps ko (B,A,n,hkv,d) and of this one what is used (n+1).  Returns the new states, keys and values."""
        B, A, _ = e.shape
        l, a = self.layers[0], self.layers[0].self_attn
        g, r, d, T = a.hkv, a.h // a.hkv, a.d, kc.shape[1]
        x = self.input(e, h)
        q, k, v, gate = a.qkv(l.input_layernorm(x), cos, sin)
        ko, vo = torch.cat((ko, k[:, :, None]), 2), torch.cat((vo, v[:, :, None]), 2)
        n = ko.shape[2]
        # the query heads of one kv head become rows; one product for the context of all chains, one per chain for itself
        q = (q * d ** -0.5).reshape(B, A, g, r, d).permute(0, 2, 1, 3, 4)                       # B,g,A,r,d
        own = lambda t: t.permute(0, 3, 1, 2, 4)                                                # B,g,A,n,d
        sc = (q.reshape(B, g, A * r, d) @ kc.permute(0, 2, 3, 1)).view(B, g, A, r, T)
        so = q @ own(ko).transpose(-1, -2)
        sc = sc.float().masked_fill(~seen[:, None, :, None], float("-inf"))
        so = so.float().masked_fill(~used, float("-inf"))
        pc, po = torch.softmax(torch.cat((sc, so), -1), -1).to(x.dtype).split([T, n], -1)
        o = (pc.reshape(B, g, A * r, T) @ vc.transpose(1, 2)).view(B, g, A, r, d) + po @ own(vo)
        x = x + a.finish(o.transpose(2, 3).reshape(B, g * r, A, d), gate)
        return self.norm(x + l.mlp(l.post_attention_layernorm(x))), k, v

    def chain(self, embed, tokens, h, pos, n, ctx, seen, follow):
        """n steps from the tokens (B,A) at pos (B,A) and the target's states h (B,A,H) before them; follow(k, state) gives the
        tokens after step k.  Returns the states (B,A,n,H)."""
        context, step = self.run or (self.context, self.step)
        kc, vc = context(*ctx)
        B, A = tokens.shape
        room = lambda t: torch.stack(t + [zero] * (n - len(t)), 2)       # one shape for all steps: compiled once
        zero = torch.zeros(B, A, *kc.shape[2:], dtype=kc.dtype, device=kc.device, requires_grad=h.requires_grad)
        ks, vs, out, at = [], [], [], torch.arange(n + 1, device=kc.device)
        for i in range(n):
            used = (at < i) | (at == n)
            h, k, v = step(embed(tokens), h, *self.rope(pos + i), kc, vc, seen, room(ks), room(vs), used)
            ks, vs, out = ks + [k], vs + [v], out + [h]
            tokens = follow(i, h)
        return torch.stack(out, 2)

    def propose(self, m, feats, out, start, n):
        """as Drafter.propose; the features are the outputs of the target's last layer"""
        embed, guesses = lambda ids: m.embed(ids, feats.dtype), []

        def follow(_, h):
            guesses.append(m.logits(h).argmax(-1))
            return guesses[-1]
        hid, at = m.model.norm(feats), start[:, None]
        before = hid.gather(1, (at - 1)[..., None].expand(-1, -1, hid.shape[-1]))
        self.chain(embed, out.gather(1, at), before, at, n - 1, (embed(out), hid), block_mask(at, out.shape[1], n)[0], follow)
        return torch.cat(guesses, 1)


# ---------------------------------------------------------------- greedy decoding, plain and speculative

@torch.no_grad()
def plain_greedy(m, prompts, plens, n_new, dtype):
    B, Lp = prompts.shape
    ct = CachedTarget(m, B, Lp + n_new + 1, dtype)
    lg, _ = ct.forward_block(prompts)
    tok = lg.gather(1, (plens - 1)[:, None, None].expand(-1, 1, lg.shape[-1]))[:, 0].argmax(-1)
    ct.commit(plens)
    out = [tok]
    one = torch.ones_like(plens)
    for _ in range(n_new - 1):
        lg, _ = ct.forward_block(tok[:, None])
        ct.commit(one)
        tok = lg[:, 0].argmax(-1)
        out.append(tok)
    return torch.stack(out, 1)


@torch.no_grad()
def speculative_greedy(m, d, prompts, plens, n_new, dtype, block=None):
    """Batched greedy decoding with a drafter; the rule is that of z-lab's dflash_generate().  block: drafted block length
    including the anchor (default: the trained one).
    Returns the tokens (B, n_new) and a list of (B,) numbers of tokens per target step (0 = row already done)."""
    n = block or d.block
    B, Lp = prompts.shape
    dev = prompts.device
    Lmax = Lp + n_new + 2 * n + 2
    ct = CachedTarget(m, B, Lmax, dtype, feat_ids=d.captures(m))
    lg, f = ct.forward_block(prompts)
    tok = lg.gather(1, (plens - 1)[:, None, None].expand(-1, 1, lg.shape[-1]))[:, 0].argmax(-1)
    ct.commit(plens)
    feats = torch.zeros(B, Lmax, f.shape[-1], dtype=dtype, device=dev)
    feats[:, :Lp] = f
    out = torch.zeros(B, Lmax, dtype=torch.long, device=dev)
    out[:, :Lp] = prompts
    rows = torch.arange(B, device=dev)
    start = plens.clone()
    out[rows, start] = tok
    end = plens + n_new
    accs = []
    while bool((start < end).any()):
        active = start < end
        ids = torch.cat((out[rows, start][:, None], d.propose(m, feats, out, start, n)), 1)
        lg, f = ct.forward_block(ids)
        post = lg.argmax(-1)
        acc = (ids[:, 1:] == post[:, :-1]).long().cumprod(1).sum(1)
        got = torch.where(active, acc + 1, torch.zeros_like(acc))
        keep = torch.arange(n, device=dev)[None] < got[:, None]
        wpos = (start[:, None] + torch.arange(n, device=dev)).clamp(max=Lmax - 1)
        out.scatter_(1, wpos, torch.where(keep, ids, out.gather(1, wpos)))
        wf = wpos[..., None].expand(-1, -1, feats.shape[-1])
        feats.scatter_(1, wf, torch.where(keep[..., None], f, feats.gather(1, wf)))
        ct.commit(got)
        start = start + got
        nxt = post.gather(1, acc[:, None])[:, 0]
        out[rows, start] = torch.where(active, nxt, out[rows, start])
        accs.append(got)
    idx = plens[:, None] + torch.arange(n_new, device=dev)[None]
    return out.gather(1, idx), accs
