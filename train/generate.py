"""On-policy text: the target continues many prompts at once, and everything the drafter's training needs is kept.

One pool holds, for R rows of T tokens: the ids, the captured features and the final hidden states.  Training then never
runs the target: the hidden states give the soft labels through the output head.  On CUDA one decoding step is captured as
a graph and the gated-delta-rule update is one kernel that reads and writes the state once; that traffic is the floor.
"""
import torch
import torch.nn.functional as F

from model import Target, apply_rope, gdn_chunk, l2norm, rope_tables, sdpa

try:
    import triton
    import triton.language as tl

    @triton.jit
    def _gdn_kernel(S, q, k, v, g, b, o, HV: tl.constexpr, REP: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BV: tl.constexpr):
        pid = tl.program_id(0).to(tl.int64)
        j = tl.program_id(1) * BV + tl.arange(0, BV)
        i = tl.arange(0, DK)
        row, h = pid // HV, pid % HV
        kh = row * (HV // REP) + h // REP
        sp = S + pid * DK * DV + i[:, None] * DV + j[None, :]
        s = tl.load(sp).to(tl.float32) * tl.exp(tl.load(g + pid))
        kk = tl.load(k + kh * DK + i)
        d = (tl.load(v + pid * DV + j).to(tl.float32) - tl.sum(s * kk[:, None], 0)) * tl.load(b + pid)
        s = s + kk[:, None] * d[None, :]
        tl.store(o + pid * DV + j, tl.sum(s * tl.load(q + kh * DK + i)[:, None], 0))
        tl.store(sp, s.to(S.dtype.element_ty))
except ImportError:
    triton = None


TILE = (128, 4)       # columns of the state and warps per program: the fastest of six on an H200


def gdn_step_(S, q, k, v, g, beta):
    """in place: S (R,Hv,Dk,Dv); q, k (R,Hk,Dk) normalised; v (R,Hv,Dv); g, beta (R,Hv).  Returns o (R,Hv,Dv) float32."""
    R, Hv, Dk, Dv = S.shape
    rep = Hv // q.shape[1]
    if S.is_cuda and triton is not None:
        o = torch.empty(R, Hv, Dv, dtype=torch.float32, device=S.device)
        bv, warps = min(TILE[0], Dv), TILE[1]
        _gdn_kernel[(R * Hv, Dv // bv)](S, q, k, v, g, beta, o, Hv, rep, Dk, Dv, bv, num_warps=warps)
        return o
    q, k = q.repeat_interleave(rep, 1), k.repeat_interleave(rep, 1)
    s = S.float() * g.exp()[..., None, None]
    d = (v.float() - (s * k[..., None]).sum(-2)) * beta[..., None]
    s = s + k[..., None] * d[..., None, :]
    S.copy_(s)
    return (s * q[..., None]).sum(-2)


# The pieces of one decoding step are functions of plain tensors, so that a compiler sees the same code for all layers.

def _norm(x, w, eps):
    y = x.float()
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps) * w).to(x.dtype)


def _lin_pre(x, cs, nw, w, cw, negA, dt, eps, key_dim, val_dim, dk):
    """x (R,H), cs (R,ks-1,conv_dim) -> q, k, v, g, beta, z, new conv state"""
    R, cd = x.shape[0], 2 * key_dim + val_dim
    nv = dt.shape[0]
    m, z, b, a = torch.split(F.linear(_norm(x, nw, eps), w), [cd, val_dim, nv, nv], dim=-1)
    xp = torch.cat((cs, m[:, None]), 1)
    y = F.silu((xp.float() * cw).sum(1)).to(x.dtype)
    q, k, v = torch.split(y, [key_dim, key_dim, val_dim], dim=-1)
    q = (l2norm(q.reshape(R, -1, dk)) * dk ** -0.5).contiguous()
    k = l2norm(k.reshape(R, -1, dk)).contiguous()
    g = negA * F.softplus(a.float() + dt)
    return q, k, v.contiguous(), g.contiguous(), torch.sigmoid(b.float()).contiguous(), z, xp[:, 1:]


def _lin_post(x, o, z, gw, wo, nw, wgu, wd, eps):
    R, nv, dv = o.shape
    y = o * torch.rsqrt(o.pow(2).mean(-1, keepdim=True) + eps) * gw * F.silu(z.float().view(R, nv, dv))
    return _mlp(x + F.linear(y.reshape(R, -1).to(x.dtype), wo), nw, wgu, wd, eps)


def _mlp(x, nw, wgu, wd, eps):
    g, u = F.linear(_norm(x, nw, eps), wgu).chunk(2, -1)
    return x + F.linear(F.silu(g) * u, wd)


def _att_pre(x, nw, wqkv, qw, kw, cos, sin, eps, h, hkv, d, gated):
    R = x.shape[0]
    nq = h * d * (2 if gated else 1)
    q, k, v = torch.split(F.linear(_norm(x, nw, eps), wqkv), [nq, hkv * d, hkv * d], dim=-1)
    gate = torch.zeros((), dtype=x.dtype, device=x.device)
    if gated:
        q, gate = q.reshape(R, h, 2 * d).chunk(2, dim=-1)
    q = apply_rope(_norm(q.reshape(R, 1, h, d), qw, eps), cos, sin)
    k = apply_rope(_norm(k.reshape(R, 1, hkv, d), kw, eps), cos, sin)
    return q.reshape(R, hkv, h // hkv, d), k.reshape(R, hkv, 1, d), v.reshape(R, hkv, 1, d), gate


def _attend(q, k, v, mask):
    """q (R,hkv,rep,d) against the cache (R,hkv,T,d)"""
    s = torch.matmul(q * q.shape[-1] ** -0.5, k.transpose(-1, -2)).float().masked_fill(~mask, float("-inf"))
    return torch.matmul(torch.softmax(s, -1).to(q.dtype), v)


def _att_post(x, o, gate, wo, nw, wgu, wd, eps, gated):
    R = x.shape[0]
    o = o.reshape(R, -1)
    if gated:
        o = o * torch.sigmoid(gate.reshape(R, -1))
    return _mlp(x + F.linear(o, wo), nw, wgu, wd, eps)


def _finish(x, nw, head, eps):
    h = _norm(x, nw, eps)
    return h, F.linear(h, head)


class Pool:
    """R rows of T tokens.  The first F tokens of every row are prefilled in one pass (F % 64 == 0, 0 allowed)."""

    def __init__(self, target: Target, R, T, feat_ids, F0=0, dtype=torch.float16, keep=torch.bfloat16, state=torch.float32, sampled=0.3,
                 temperature=0.8, compile=False):
        self.m, self.R, self.T, self.F0, self.dt, self.feat_ids, self.temp = target, R, T, F0, dtype, list(feat_ids), temperature
        self.dev = dev = target.device
        c = self.c = target.c
        Z = lambda *s, dtype=dtype: torch.zeros(*s, dtype=dtype, device=dev)
        self.x = Z(R, T, dtype=torch.long)
        self.feats = Z(R, T, len(self.feat_ids) * c.hidden_size, dtype=keep)
        self.hid = Z(R, T, c.hidden_size, dtype=keep)
        self.pl = Z(R, dtype=torch.long)          # prompt length
        self.sl = Z(R, dtype=torch.long)          # where greedy decoding begins (first anchor); pl <= sl
        self.ns = int(R * sampled)                # the first ns rows sample between pl and sl
        self.pos = Z(1, dtype=torch.long)
        self.arT = torch.arange(T, device=dev)
        self.state, self.w = [], []
        eps = c.rms_norm_eps
        off = 1.0 if c.gated else 0.0
        nw = lambda n: n.weight.float() + off
        W = lambda *ms: torch.cat([m.weight for m in ms]).to(dtype)
        for l in target.model.layers:
            mlp = (nw(l.post_attention_layernorm), W(l.mlp.gate_proj, l.mlp.up_proj), W(l.mlp.down_proj), eps)
            if l.full:
                a = l.self_attn
                self.state.append([Z(R, a.hkv, T, a.d), Z(R, a.hkv, T, a.d)])
                self.w.append(((nw(l.input_layernorm), W(a.q_proj, a.k_proj, a.v_proj), nw(a.q_norm), nw(a.k_norm)),
                               (eps, a.h, a.hkv, a.d, a.gated), (W(a.o_proj),) + mlp + (a.gated,)))
            else:
                a = l.linear_attn
                self.state.append([Z(R, a.ks - 1, a.conv_dim), Z(R, a.hv, a.dk, a.dv, dtype=state)])
                pre = (nw(l.input_layernorm), W(a.in_proj_qkv, a.in_proj_z, a.in_proj_b, a.in_proj_a),
                       a.conv1d.weight.float()[:, 0].t().contiguous(), -a.A_log.float().exp(), a.dt_bias.float(), eps, a.key_dim, a.value_dim, a.dk)
                self.w.append((pre, None, (a.norm.weight.float(), W(a.out_proj)) + mlp))
        self.head = (nw(target.model.norm), target.head_weight.to(dtype), eps)
        C = (lambda f: torch.compile(f, dynamic=False)) if compile else (lambda f: f)
        self.lin_pre, self.lin_post, self.att_pre, self.att_post, self.attend, self.finish = map(
            C, (_lin_pre, _lin_post, _att_pre, _att_post, _attend, _finish))
        self.graph = None

    def _step(self):
        """one token for every row, at position pos; writes x[pos+1], feats[pos], hid[pos]"""
        pos, m = self.pos, self.m
        tok = self.x.index_select(1, pos)[:, 0]
        x = F.embedding(tok, m.model.embed_tokens.weight).to(self.dt)
        cos, sin = rope_tables(pos[None], m.rot, self.c.rope_theta)
        mask = (self.arT <= pos)[None, None, None]
        feats = {}
        for i, l in enumerate(m.model.layers):
            pre, dims, post = self.w[i]
            st = self.state[i]
            if l.full:
                q, k, v, gate = self.att_pre(x, *pre, cos, sin, *dims)
                st[0].index_copy_(2, pos, k)
                st[1].index_copy_(2, pos, v)
                o = self.attend(q, st[0], st[1], mask)
                x = self.att_post(x, o, gate, *post)
            else:
                q, k, v, g, b, z, cs = self.lin_pre(x, st[0], *pre)
                st[0].copy_(cs)
                o = gdn_step_(st[1], q, k, v.view(self.R, -1, l.linear_attn.dv), g, b)
                x = self.lin_post(x, o, z, *post)
            if i in self.feat_ids:
                feats[i] = x
        h, lg = self.finish(x, *self.head)
        if feats:
            self.feats.index_copy_(1, pos, torch.cat([feats[i] for i in self.feat_ids], -1)[:, None].to(self.feats.dtype))
        self.hid.index_copy_(1, pos, h[:, None].to(self.hid.dtype))
        nxt = lg.argmax(-1)
        n1 = pos + 1
        if self.ns:
            s = lg[:self.ns].float()
            gum = -torch.log(-torch.log(torch.rand_like(s).clamp(1e-9, 1 - 1e-7)))
            nxt[:self.ns] = torch.where(n1 < self.sl[:self.ns], (s / self.temp + gum).argmax(-1), nxt[:self.ns])
        at = torch.clamp(n1, max=self.T - 1)
        old = self.x.index_select(1, at)[:, 0]
        nxt = torch.where((n1 < self.pl) | (n1 >= self.T), old, nxt)
        self.x.index_copy_(1, at, nxt[:, None])
        self.pos += 1

    def _prefill(self, rows=128):
        m, c, n = self.m, self.c, self.F0
        cos, sin = rope_tables(torch.arange(n, device=self.dev)[None], m.rot, c.rope_theta)
        for a in range(0, self.R, rows):
            sl = slice(a, min(a + rows, self.R))
            x = m.embed(self.x[sl, :n], self.dt)
            fs = {}
            for i, l in enumerate(m.model.layers):
                y, st = l.input_layernorm(x), self.state[i]
                if l.full:
                    q, k, v, gate = l.self_attn.qkv(y, cos, sin)
                    k, v = k.transpose(1, 2), v.transpose(1, 2)
                    st[0][sl, :, :n], st[1][sl, :, :n] = k, v
                    y = l.self_attn.finish(sdpa(q.transpose(1, 2), k, v, causal=True), gate)
                else:
                    la = l.linear_attn
                    q, k, v, g, b, z, xp = la.project(y)
                    o, st[1][sl] = gdn_chunk(q, k, v, g, b, want_state=True)
                    st[0][sl] = xp[:, -(la.ks - 1):]
                    y = la.finish(o, z)
                x = x + y
                x = x + l.mlp(l.post_attention_layernorm(x))
                if i in self.feat_ids:
                    fs[i] = x
            h = m.model.norm(x)
            if fs:
                self.feats[sl, :n] = torch.cat([fs[i] for i in self.feat_ids], -1).to(self.feats.dtype)
            self.hid[sl, :n] = h.to(self.hid.dtype)
            # the last prefilled position predicts the first decoded token; rows all have longer prompts, so it is known

    @torch.no_grad()
    def fill(self, corpus, lo, hi, doc_frac=0.5, spread=None):
        """new prompts of lo..hi tokens from corpus (F0 < lo), continued to T tokens"""
        assert self.F0 < lo <= hi < self.T
        R, dev = self.R, self.dev
        self.x.copy_(corpus.batch(R, self.T, doc_frac)[torch.randperm(R, device=dev)])
        self.pl.copy_(torch.randint(lo, hi + 1, (R,), device=dev))
        self.sl.copy_(self.pl)
        if self.ns:
            a, b = spread or (8, max(8, (self.T - hi) // 3))
            self.sl[:self.ns] += torch.randint(a, b + 1, (self.ns,), device=dev)
        for st, l in zip(self.state, self.m.model.layers):
            if not l.full:
                st[0].zero_()
                st[1].zero_()
        if self.F0:
            self._prefill()
        self.pos.fill_(self.F0)
        steps = self.T - self.F0
        if self.dev.type == "cuda" and self.graph is None:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    self._step()
                    steps -= 1
            torch.cuda.current_stream().wait_stream(side)
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self._step()
        for _ in range(steps):
            self.graph.replay() if self.graph is not None else self._step()
        return self
