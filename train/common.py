"""What the steps share: logging, token files, prompts, the optimiser, the learning-rate schedule."""
import lzma
import math
import os
import re
import time

import numpy as np
import torch


def log(*a):
    print(time.strftime("%H:%M:%S"), *a, flush=True)


def setup_torch(seed=1234):
    torch.manual_seed(seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    for k in ("cache_size_limit", "recompile_limit"):
        try:
            setattr(torch._dynamo.config, k, 64)
        except Exception:
            pass


class fp32_exact:
    """float32 products without tf32, for evaluation"""

    def __enter__(self):
        self.old = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False

    def __exit__(self, *a):
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self.old


# ---------------------------------------------------------------- tokens

def load_tokens(*paths):
    """one array of ids from .u16 or .u32 files (also .xz)"""
    parts = []
    for p in paths:
        raw = (lzma.open(p) if p.endswith(".xz") else open(p, "rb")).read()
        wide = p.endswith((".u32", ".u32.xz"))
        parts.append(np.frombuffer(raw, "<u4" if wide else "<u2").astype(np.int32))
    return np.concatenate(parts)


def documents(t, eos):
    """starts and ends (the eos excluded) of the documents in t"""
    e = np.flatnonzero(t == eos)
    s = np.concatenate([[0], e[:-1] + 1])
    return s, e


class Corpus:
    """random windows of a token array on the device; document starts may come from an array of their own"""

    def __init__(self, toks, eos, device, seed, starts=None):
        self.t = torch.from_numpy(toks).to(device)
        self.s = self.t if starts is None else torch.from_numpy(starts).to(device)
        self.doc = torch.from_numpy(documents(toks if starts is None else starts, eos)[0]).to(device)
        self.dev = device
        self.g = torch.Generator(device=device)
        self.g.manual_seed(seed)

    def batch(self, B, L, doc_frac):
        """(B,L) ids; the share doc_frac of the rows begins at the start of a document"""
        at = torch.arange(L, device=self.dev)[None]
        x = self.t[torch.randint(0, len(self.t) - L, (B,), device=self.dev, generator=self.g)[:, None] + at]
        k = int(B * doc_frac)
        if k:
            i = torch.randint(0, len(self.doc), (k,), device=self.dev, generator=self.g)
            x[:k] = self.s[self.doc[i].clamp(max=len(self.s) - L)[:, None] + at]
        return x.long()


def held_out_prompts(toks, eos, count, seed=3, lo=16, hi=64, need=200):
    """prompts at document starts, lo..hi tokens long; only documents with more than `need` tokens"""
    s, e = documents(toks, eos)
    rng = np.random.default_rng(seed)
    pick = [(a, b) for a, b in zip(s, e) if b - a > need]
    order = {int(a): i for i, a in enumerate(rng.permutation(s))}
    pick = sorted(pick, key=lambda x: order[int(x[0])])[:count]
    pl = rng.integers(lo, hi + 1, len(pick))
    return [toks[a:a + n].tolist() for (a, _), n in zip(pick, pl)]


def pad_prompts(prompts, fill, device):
    P = torch.full((len(prompts), max(map(len, prompts))), fill, dtype=torch.long)
    for i, p in enumerate(prompts):
        P[i, :len(p)] = torch.tensor(p)
    return P.to(device), torch.tensor([len(p) for p in prompts], device=device)


# ---------------------------------------------------------------- optimiser

def newton_schulz(X, steps=5):
    a, b, c = 3.4445, -4.7750, 2.0315
    X = X.bfloat16()
    tr = X.shape[-2] > X.shape[-1]
    if tr:
        X = X.transpose(-1, -2)
    X = X / (X.float().norm(dim=(-2, -1), keepdim=True) + 1e-7).bfloat16()
    for _ in range(steps):
        A = X @ X.transpose(-1, -2)
        X = a * X + (b * A + c * (A @ A)) @ X
    return X.transpose(-1, -2) if tr else X


class Muon:
    """Muon with Moonlight's scaling (update RMS 0.2), so that it takes AdamW's learning rate; same-shaped matrices are
    stacked"""

    def __init__(self, params, wd=0.1, momentum=0.95):
        self.groups = {}
        for p in params:
            self.groups.setdefault(tuple(p.shape), []).append(p)
        self.buf = {s: torch.zeros(len(ps), *s, device=ps[0].device) for s, ps in self.groups.items()}
        self.wd, self.m = wd, momentum

    @torch.no_grad()
    def step(self, lr):
        for s, ps in self.groups.items():
            g = torch.stack([p.grad for p in ps]).float()
            b = self.buf[s]
            b.lerp_(g, 1 - self.m)
            u = newton_schulz(g.lerp(b, self.m)).float()
            torch._foreach_mul_(ps, 1 - lr * self.wd)
            torch._foreach_add_(ps, list(u.unbind(0)), alpha=-lr * 0.2 * math.sqrt(max(s)))

    def state_dict(self):
        return {str(k): v for k, v in self.buf.items()}

    def load_state_dict(self, d):
        for k in self.buf:
            self.buf[k].copy_(d[str(k)])


class Opt:
    """Muon for the matrices, AdamW for tables of tokens and the vectors"""

    def __init__(self, named, lr, wd=0.1):
        mu, ad = [], []
        for n, p in named:
            if p.requires_grad:
                (mu if p.dim() == 2 and min(p.shape) >= 32 and not re.search("embed|codebook", n) else ad).append(p)
        self.mu = Muon(mu, wd)
        self.ad_params, self.ps = ad, mu + ad
        self.ad = torch.optim.AdamW(ad, lr=lr, betas=(0.9, 0.95), weight_decay=0.0, **({"fused": True} if ad[0].is_cuda else {}))

    def zero(self):
        for p in self.ps:
            p.grad = None

    def step(self, lr):
        torch.nn.utils.clip_grad_norm_(self.ad_params, 1.0)
        for g in self.ad.param_groups:
            g["lr"] = lr
        self.mu.step(lr)
        self.ad.step()

    def state_dict(self):
        return {"mu": self.mu.state_dict(), "ad": self.ad.state_dict()}

    def load_state_dict(self, d):
        self.mu.load_state_dict(d["mu"])
        self.ad.load_state_dict(d["ad"])


def wsd(progress, step, peak, warm=100, decay_from=0.5, floor=0.0):
    """warm up, hold, fall linearly to floor; progress 0..1 of the wall-clock schedule"""
    lr = peak * min(1.0, (step + 1) / warm)
    if progress <= decay_from:
        return lr
    return lr * (1 - min(1.0, (progress - decay_from) / (1 - decay_from)) * (1 - floor))
