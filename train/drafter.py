"""Train a DFlash drafter for a target.

    python drafter.py --target target.gguf --prompts prompts.u16.xz --dev dev.u16.xz --minutes 18 --out run

The target (Hugging Face folder or GGUF; qwen3_5 or qwen3) writes the training text itself: it continues fresh prompts
greedily all through training (generate.py): a pool is made, used for a few seconds and thrown away.
The schedule is wall-clock time; --slice ends a run early with a checkpoint in --out that the next run resumes.
"""
import argparse
import copy
import inspect
import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace as Namespace

import torch
import torch.nn.functional as F

from common import Corpus, Opt, fp32_exact, held_out_prompts, load_tokens, log, pad_prompts, setup_torch, wsd
from formats import load_drafter, load_target, save_hf
from generate import Pool
from model import DraftConfig, Drafter, Selector, block_mask, default_target_layers, speculative_greedy


def schedule_arguments(ap):
    """what MTP blocks are trained with, too"""
    ap.add_argument("--target", required=True, help="Hugging Face folder or GGUF file")
    ap.add_argument("--tokenizer", help="folder whose tokenizer files go with the result (default: the target folder)")
    ap.add_argument("--prompts", nargs="+", required=True, help="token files (.u16/.u32, also .xz) to take prompts from")
    ap.add_argument("--starts", nargs="+", help="token files whose documents' first tokens are the prompts at document starts")
    ap.add_argument("--dev", help="token file of held-out documents; accepted length on it is printed while training")
    ap.add_argument("--out", default="run")
    ap.add_argument("--minutes", type=float, default=15, help="length of the schedule, start-up included, over all slices")
    ap.add_argument("--steps", type=int, default=0, help="length of the schedule in steps instead")
    ap.add_argument("--slice", type=float, default=1e9, help="minutes for this process")
    ap.add_argument("--stop-after", type=int, default=-1, help="steps after which this process stops, to be resumed")
    ap.add_argument("--eos", type=int, default=8176)
    ap.add_argument("--rows", type=int, default=4096, help="rows of a short pool")
    ap.add_argument("--length", type=int, default=256, help="tokens of a short row")
    ap.add_argument("--prompt", type=int, nargs=2, default=(16, 64), help="prompt lengths of a short row")
    ap.add_argument("--long-rows", type=int, default=2048, help="rows of a long pool, 0: none")
    ap.add_argument("--long-length", type=int, default=1024)
    ap.add_argument("--long-every", type=int, default=8, help="every n-th pool is a long one")
    ap.add_argument("--batch", type=int, default=256, help="short rows per step")
    ap.add_argument("--anchors", type=int, default=16, help="blocks per short row and step")
    ap.add_argument("--visits", type=int, default=10, help="steps every row takes part in")
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--warm", type=int, default=60, help="warm-up steps")
    ap.add_argument("--decay-from", type=float, default=0.4, help="share of the schedule after which the learning rate falls to zero")
    ap.add_argument("--hard", type=float, default=0.5, help="weight of the hard label; the rest is the target's distribution")
    ap.add_argument("--gamma", type=float, default=7.0, help="position weights exp(-(k-1)/gamma)")
    ap.add_argument("--reach", type=float, default=0.7, help="share of the position weight that is the chance to be reached")
    ap.add_argument("--no-walk", action="store_true", help="anchors uniform instead of where decoding would put them")
    ap.add_argument("--sampled", type=float, default=0.3, help="share of rows whose continuation starts with sampled text")
    ap.add_argument("--qat", type=float, default=0.0, help="train with fake 4-bit weights in the last share of the schedule")
    ap.add_argument("--ema", type=float, default=0.0, help="average of the weights, 0: off")
    ap.add_argument("--state16", action="store_true", help="recurrent state in half precision while generating")
    ap.add_argument("--precompile", action="store_true", help=argparse.SUPPRESS)
    ap.add_argument("--no-compile", action="store_true")
    ap.add_argument("--eval-every", type=float, default=120, help="seconds")
    ap.add_argument("--eval-prompts", type=int, default=128)
    ap.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    ap.add_argument("--seed", type=int, default=7)


def arguments(argv=None):
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    schedule_arguments(ap)
    ap.add_argument("--init", help="drafter to start from, folder or GGUF file")
    ap.add_argument("--mask", type=int, default=8179, help="mask token id")
    ap.add_argument("--layers", type=int, default=5)
    ap.add_argument("--heads", type=int, default=8)
    ap.add_argument("--kv-heads", type=int, default=4)
    ap.add_argument("--head-dim", type=int, default=64)
    ap.add_argument("--ffn", type=int, default=1280)
    ap.add_argument("--block", type=int, default=16)
    ap.add_argument("--selector", type=int, default=0, help="rank of a head that chooses among a slot's best tokens by the token before, 0: none")
    ap.add_argument("--capture", type=int, nargs="+", help="captured target layers (default: z-lab's rule, five)")
    ap.add_argument("--short-blocks", type=float, default=0.25, help="share of blocks trained shorter than --block")
    return ap.parse_args(argv)


def block_loss(h, th, E, prev, lab, decay, valid, hard, reach, soft=True, selector=None):
    """h (N,n-1,H) drafter's hidden states for the tokens after the anchor, th the target's for the same tokens, lab (N,n-1)
    these tokens and prev the ones before them.
    Returns the loss and per block the tokens a target step would yield (accepted + 1)."""
    s = F.linear(h, E.to(h.dtype)).float()
    lse = torch.logsumexp(s, -1)
    sl = s.gather(-1, lab[..., None])[..., 0]
    l = lse - hard * sl
    t = torch.softmax(F.linear(th, E.to(th.dtype)).float(), -1) if soft else None
    if soft:
        l = l - (1 - hard) * (t * s).sum(-1)
    if selector is None:
        hit, p = s.argmax(-1) == lab, torch.exp(sl - lse)
    else:                                           # the same loss among the candidates, wherever the right one is there
        ids = s.detach().topk(selector.top).indices
        z = selector(ids, s.gather(-1, ids), h, prev)
        lz = torch.logsumexp(z, -1)
        at = ids == lab[..., None]
        zl = (z * at).sum(-1)
        lc = lz - hard * zl
        if soft:
            tc = t.gather(-1, ids)
            lc = lc - (1 - hard) * (tc / tc.sum(-1, keepdim=True) * z).sum(-1)
        found = at.any(-1)
        l = l + lc * found
        hit, p = at.gather(-1, z.argmax(-1, keepdim=True))[..., 0], torch.exp(zl - lz) * found
    with torch.no_grad():
        ok = (hit & valid).long()
        got = torch.cat((torch.ones_like(p[:, :1]), p[:, :-1].cumprod(-1)), -1)
        w = ((1 - reach) * decay + reach * got) * valid
        w = w / w.sum()
        al = ok.cumprod(-1).sum(-1) + 1
    return (l * w).sum(), al, ok


def fake_q4k(w):
    """w as a plain 4-bit K-quant would store it: blocks of 32 with 6-bit scale and minimum under 256-wide float scales"""
    x = w.reshape(-1, 8, 32)
    mn = (-x.amin(-1)).clamp(min=0)
    sc = (x.amax(-1) + mn) / 15
    d, dm = sc.amax(-1, keepdim=True) / 63, mn.amax(-1, keepdim=True) / 63
    sc = (sc / d.clamp(min=1e-12)).round() * d
    mn = (mn / dm.clamp(min=1e-12)).round() * dm
    q = ((x + mn[..., None]) / sc.clamp(min=1e-12)[..., None]).round().clamp(0, 15)
    return (q * sc[..., None] - mn[..., None]).reshape(w.shape)


def four_bit(d):
    """the weights that will be stored in 4 bits"""
    return [p for n, p in d.named_parameters() if p.dim() == 2 and p.numel() % 256 == 0 and "selector" not in n]


class Walkers:
    """Anchors of a pool.  They start anywhere in the greedy text and hop by what was accepted, as decoding does; so they
    gather where drafts fail, which is where the next draft really starts."""

    def __init__(self, pool, A, n, walk=True):
        self.pool, self.n, self.walk = pool, n, walk
        self.hi = pool.T - n
        R = pool.R
        assert pool.sl.max() <= self.hi, "rows are too short for a prompt, sampled text and a block"
        self.at = self.anywhere(torch.arange(R, device=pool.dev), A)
        self.ease = torch.ones(R, device=pool.dev)  # tokens per step of every row, when last seen
        self.fresh = True
        if walk:
            self.at[:, 0] = pool.sl

    def order(self):
        """Rows to visit next: all of them first, then as often as decoding would stop in them.  Text a drafter knows by heart
        takes few target steps, but would be most of what it is trained on."""
        if self.fresh or not self.walk:
            self.fresh = False
            return torch.randperm(self.pool.R, device=self.pool.dev)
        return torch.multinomial(1 / self.ease, self.pool.R, replacement=True)

    def anywhere(self, rows, A):
        lo = self.pool.sl[rows][:, None]
        return lo + (torch.rand(len(rows), A, device=lo.device) * (self.hi - lo + 1)).long()

    def take(self, rows):
        return self.at[rows]

    def hop(self, rows, al):
        self.ease[rows] = al.float().mean(1)
        new = self.anywhere(rows, al.shape[1])
        if self.walk:
            nxt = self.at[rows] + al
            new = torch.where(nxt <= self.hi, nxt, new)
        self.at[rows] = new


class Trainer:
    name = "drafter"

    def __init__(self, a):
        self.a = a
        self.dev = torch.device(a.device)
        self.cuda = self.dev.type == "cuda"
        self.dt = torch.bfloat16 if self.cuda else torch.float32
        self.gen_dt = torch.float16 if self.cuda else torch.float32
        self.compile = self.cuda and not a.no_compile
        t32 = load_target(a.target).to(self.dev)
        self.t32 = t32.freeze(torch.float32)
        self.target = copy.deepcopy(t32).freeze(self.gen_dt)
        c = t32.c
        torch.manual_seed(a.seed)
        self.draft, self.kept = self.network(c)
        self.draft.to(self.dev)
        self.n = self.draft.block
        log(f"target {sum(p.numel() for p in t32.parameters())/1e6:.2f}M parameters ({a.target}), {self.name} "
            f"{sum(p.numel() for p in self.draft.parameters())/1e6:.2f}M, captured layers {self.kept}")
        self.E = t32.head_weight.to(self.dt)
        self.emb = t32.model.embed_tokens.weight.to(self.dt)
        self.opt = Opt(list(self.draft.named_parameters()), a.lr)
        self.step_no = 0
        self.hard, self.reach = torch.tensor(a.hard, device=self.dev), torch.tensor(a.reach, device=self.dev)
        self.kk = torch.arange(self.n, device=self.dev)
        self.quant = four_bit(self.draft)
        self.master = None
        self.ema = {k: v.clone() for k, v in self.draft.state_dict().items()} if a.ema else None
        self.loss_fn = torch.compile(block_loss, dynamic=False) if self.compile else block_loss
        if self.compile:
            self.draft.compile()
        self.prompts = Corpus(load_tokens(*a.prompts), a.eos, self.dev, a.seed + 100, load_tokens(*a.starts) if a.starts else None)
        self.dev_prompts = held_out_prompts(load_tokens(a.dev), a.eos, a.eval_prompts) if a.dev else None
        self.pools, self.turn = None, 0

    def network(self, c):
        """what is trained, and the target layers whose outputs it reads while training"""
        a = self.a
        if a.init:
            d = load_drafter(a.init)
            if a.selector and not d.c.selector_rank:
                d.c.selector_rank = a.selector
                d.candidate_selector = Selector(d.c)
        else:
            d = Drafter(DraftConfig(
                vocab_size=c.vocab_size, hidden_size=c.hidden_size, intermediate_size=a.ffn, num_hidden_layers=a.layers,
                num_attention_heads=a.heads, num_key_value_heads=a.kv_heads, head_dim=a.head_dim, rms_norm_eps=c.rms_norm_eps,
                rope_theta=c.rope_theta, max_position_embeddings=c.max_position_embeddings, block_size=a.block,
                target_layer_ids=a.capture or default_target_layers(c.num_hidden_layers, min(5, c.num_hidden_layers - 2)),
                num_target_layers=c.num_hidden_layers, mask_token_id=a.mask,
                selector_rank=a.selector))
        return d, d.c.target_layer_ids

    # ------------------------------------------------------------ pools

    def plans(self):
        """shape of the short and of the long pool, and how they are trained on"""
        a = self.a
        short = dict(R=a.rows, T=a.length, F0=0, lo=a.prompt[0], hi=a.prompt[1], doc_frac=0.6, batch=min(a.batch, a.rows), anchors=a.anchors, visits=a.visits)
        if not a.long_rows:
            return [short]
        f0 = (a.long_length - 320) // 64 * 64
        return [short, dict(R=a.long_rows, T=a.long_length, F0=f0, lo=f0 + 1, hi=f0 + 128, doc_frac=0.0,
                            batch=max(1, a.batch * a.length // a.long_length), anchors=2 * a.anchors, visits=max(1, a.visits // 2))]

    def make_pool(self, plan):
        a = self.a
        p = Pool(self.target, plan["R"], plan["T"], self.kept, F0=plan["F0"], dtype=self.gen_dt, keep=self.dt,
                 state=torch.float16 if a.state16 else torch.float32, sampled=a.sampled, compile=self.compile)
        p.plan = plan
        return p

    def next_pool(self):
        """a freshly filled pool; every long_every-th is the long one, not before the first few are done"""
        if self.pools is None:
            self.pools = [None] * len(self.plans())
        k = 1 if len(self.pools) > 1 and self.turn % self.a.long_every == self.a.long_every - 1 and self.turn >= 2 * self.a.long_every else 0
        if self.pools[k] is None:
            self.pools[k] = self.make_pool(self.plans()[k])
        p = self.pools[k]
        p.fill(self.prompts, p.plan["lo"], p.plan["hi"], p.plan["doc_frac"])
        self.turn += 1
        return p

    def precompile(self):
        """Compile the training step for both pools from made-up data.  Run in a process of its own beside the real one
        (--precompile), which then finds the kernels in the cache on disk."""
        for plan in self.plans():
            B, A, T, H, dev = plan["batch"], plan["anchors"], plan["T"], self.draft.c.hidden_size, self.dev
            pool = Namespace(R=B, T=T, dev=dev, x=torch.zeros(B, T, dtype=torch.long, device=dev),
                             feats=torch.randn(B, T, H * len(self.kept), device=dev).to(self.dt),
                             hid=torch.randn(B, T, H, device=dev).to(self.dt))
            t = time.time()
            self.opt.zero()
            self.loss(pool, torch.arange(B, device=dev), torch.randint(1, T - self.n, (B, A), device=dev))[0].backward()
            log(f"compiled T={T} in {time.time()-t:.1f} s")
        for plan in self.plans()[1:]:
            t = time.time()
            self.make_pool(plan).fill(self.prompts, plan["lo"], plan["hi"])
            log(f"compiled generation of T={plan['T']} in {time.time()-t:.1f} s")

    # ------------------------------------------------------------ one step

    def loss(self, pool, rows, anc):
        """loss of the blocks at anc (B,A) of the pool's rows, and per block the tokens per target step"""
        B, A = anc.shape
        n, T = self.n, pool.T
        with torch.no_grad():
            x, feats = pool.x[rows], pool.feats[rows]
            pos = anc[..., None] + self.kk                                              # B,A,n
            tok = x.gather(1, pos.view(B, -1)).view(B, A, n)
            blk = torch.full_like(tok, self.draft.c.mask_token_id)
            blk[..., 0] = tok[..., 0]
            noise = F.embedding(blk.view(B, -1), self.emb).requires_grad_()      # one compiled layer serves the first one, too
            length = torch.full((B, A), n, device=self.dev)
            if self.a.short_blocks:
                cut = torch.randint(min(4, n - 1), n, (B, A), device=self.dev)
                length = torch.where(torch.rand(B, A, device=self.dev) < self.a.short_blocks, cut, length)
            mask = block_mask(anc, T, n, length)
            valid = (self.kk[1:] < length[..., None]).view(B * A, n - 1)
            prev, lab = tok[..., :-1].reshape(B * A, n - 1), tok[..., 1:].reshape(B * A, n - 1)
            th = pool.hid[rows[:, None], pos[..., :-1].reshape(B, -1)].view(B * A, n - 1, -1)
            decay = torch.exp(-(self.kk[1:] - 1).float() / self.a.gamma)
        out = self.draft(feats, noise, torch.arange(T, device=self.dev)[None], pos.view(B, -1), mask, A)
        out = out.view(B * A, n, -1)[:, 1:].contiguous()
        loss, al, ok = self.loss_fn(out, th, self.E, prev, lab, decay, valid, self.hard, self.reach, self.a.hard < 1, self.draft.candidate_selector)
        return loss, al.view(B, A), ok

    def set_qat(self):
        if self.master is None:
            self.master = torch.cat([p.detach().reshape(-1) for p in self.quant])

    def quant_views(self, flat):
        return [x.view(p.shape) for x, p in zip(flat.split([p.numel() for p in self.quant]), self.quant)]

    def step(self, pool, walkers, rows, lr):
        qat = self.master is not None
        if qat:                                     # straight-through: gradient at the rounded weights, applied to the master copy
            with torch.no_grad():
                copy_all(self.quant, self.quant_views(fake_q4k(self.master)))
        self.opt.zero()
        loss, al, _ = self.loss(pool, rows, walkers.take(rows))
        loss.backward()
        with torch.no_grad():
            if qat:
                copy_all(self.quant, self.quant_views(self.master))
            self.opt.step(lr)
            if qat:
                copy_all(self.quant_views(self.master), self.quant)
            walkers.hop(rows, al)
            self.step_no += 1
            if self.ema is not None:
                for k, v in self.draft.state_dict().items():
                    self.ema[k].lerp_(v, 1 - min(self.a.ema, self.step_no / (self.step_no + 10)))
        return loss.detach(), al.float().mean()

    # ------------------------------------------------------------ the loop

    def run(self, lr_of, done):
        """train until done(); lr_of() gives the learning rate.  Yields sums of loss, tokens per step, blocks and steps on
        short pools about every ten seconds."""
        acc, t0, gen = None, time.time(), 0.0
        while True:
            t = time.time()
            pool = self.next_pool()
            if self.cuda:
                torch.cuda.synchronize()
            gen += time.time() - t
            B, A = pool.plan["batch"], pool.plan["anchors"]
            walk = Walkers(pool, A, self.n, not self.a.no_walk)
            per = pool.R // B
            for i in range(per * pool.plan["visits"]):
                if i % per == 0:
                    perm = walk.order()
                l, al = self.step(pool, walk, perm[i % per * B:i % per * B + B], lr_of())
                v = torch.stack((l, al, torch.ones_like(al) * B * A, torch.ones_like(al)))
                if pool.T == self.a.length:
                    acc = v if acc is None else acc + v
                if i % 4 == 3 and self.cuda:
                    torch.cuda.synchronize()                       # keeps the wall clock honest
                if done():
                    return
                if acc is not None and time.time() - t0 > 10:
                    yield acc.tolist(), time.time() - t0, gen
                    acc, t0, gen = None, time.time(), 0.0

    # ------------------------------------------------------------ evaluation and files

    def accepted(self, prompts=None, new=128, weights=None, dtype=torch.float32, block=None, quant=False):
        """mean tokens per target step of greedy decoding on the dev prompts"""
        d = type(self.draft)(self.draft.c).to(self.dev)
        d.load_state_dict(self.draft.state_dict())
        if weights is not None:
            d.load_state_dict(weights)
        if quant:
            with torch.no_grad():
                for p in four_bit(d):
                    p.copy_(fake_q4k(p))
        P, pl = pad_prompts(prompts or self.dev_prompts, self.a.eos, self.dev)
        _, accs = speculative_greedy(self.t32, d, P, pl, new, dtype, block or self.n)
        A = torch.stack(accs)
        return A.sum().item() / (A > 0).sum().item()

    def weights(self):
        return {k: p.detach().clone() for k, p in self.draft.named_parameters()}

    def save(self, path, elapsed):
        torch.save({"draft": self.weights(), "opt": self.opt.state_dict(), "ema": self.ema, "elapsed": elapsed, "step": self.step_no,
                    "turn": self.turn}, path + ".tmp")
        os.replace(path + ".tmp", path)

    def load(self, path):
        s = torch.load(path, map_location=self.dev)
        self.draft.load_state_dict(s["draft"])
        self.opt.load_state_dict(s["opt"])
        self.ema, self.step_no = s["ema"], s["step"]
        self.prompts.g.manual_seed(self.a.seed + 1000 + self.step_no)
        torch.manual_seed(self.a.seed + 2000 + self.step_no)
        return s["elapsed"]

    def export(self, folder, weights=None):
        """weights trained with 4-bit rounding are written rounded, in float32: a quantiser then finds the very grid they
        were trained for instead of one of its own"""
        d = type(self.draft)(self.draft.c)
        d.load_state_dict({k: v.cpu() for k, v in (weights or self.weights()).items()})
        if self.master is not None:
            with torch.no_grad():
                for p in four_bit(d):
                    p.copy_(fake_q4k(p))
        tok = self.a.tokenizer or (self.a.target if os.path.isdir(self.a.target) else None)
        save_hf(d, folder, tok, self.a.eos, torch.bfloat16 if self.master is None else torch.float32)


def copy_all(dst, src):
    for d, s in zip(dst, src):
        d.copy_(s)


def main(argv=None, parse=arguments, trainer=Trainer):
    a = parse(argv)
    T0 = time.time()
    setup_torch(a.seed)
    os.makedirs(a.out, exist_ok=True)
    if a.precompile:
        return trainer(a).precompile()
    if a.device.startswith("cuda") and not a.no_compile:
        with open(os.path.join(a.out, "precompile.log"), "w") as f:
            subprocess.Popen([sys.executable, os.path.abspath(inspect.getfile(trainer))] + (argv or sys.argv[1:]) + ["--precompile"], stdout=f, stderr=f)
    tr = trainer(a)
    ck, folder = os.path.join(a.out, tr.name + ".pt"), os.path.join(a.out, tr.name)
    before = 0.0
    if os.path.exists(ck):
        before = tr.load(ck)
        log(f"resumed at step {tr.step_no}, {before/60:.2f} min")
    total, stop = a.minutes * 60, a.slice * 60
    clock = lambda: tr.step_no / a.steps if a.steps else (before + time.time() - T0) / total
    hist = open(folder + ".log", "a")
    last_eval = time.time()

    def lr_of():
        p = clock()
        if a.qat and p > 1 - a.qat:
            tr.set_qat()
        return wsd(p, tr.step_no, a.lr, decay_from=a.decay_from, warm=a.warm)
    for (l, al, blocks, n), dt, gen in tr.run(lr_of, lambda: clock() >= 1 or time.time() - T0 >= stop or tr.step_no == a.stop_after):
        line = f"step {tr.step_no} {clock()*100:.1f}% loss {l/n:.4f} tokens/step on pool {al/n:.3f} blocks/s {blocks/dt:.0f} generating {100*gen/dt:.0f} % pools {tr.turn}"
        if l != l and os.path.exists(ck):
            log(line, "- not a number: back to the checkpoint")
            tr.master = None
            tr.load(ck)
            continue
        if tr.dev_prompts and time.time() - last_eval > a.eval_every:
            line += f" DEV {tr.accepted(new=96):.3f}"
            last_eval = time.time()
            tr.save(ck, before + time.time() - T0)
            tr.export(folder)
        log(line)
        print(line, file=hist, flush=True)
    tr.save(ck, before + time.time() - T0)
    tr.export(folder)
    line = f"end step {tr.step_no} {clock()*100:.1f}%"
    if tr.dev_prompts:
        with fp32_exact():
            r = {"dev": tr.accepted()}
            if tr.ema is not None:
                r["dev_ema"] = tr.accepted(weights=tr.ema)
                tr.export(folder + "_ema", tr.ema)
        line += " " + json.dumps(r)
    log(line)
    print(line, file=hist, flush=True)
    return tr


if __name__ == "__main__":
    main()
