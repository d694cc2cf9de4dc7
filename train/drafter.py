"""Train a DFlash drafter for a target.

    python drafter.py --target target.gguf --prompts prompts.u16.xz --dev dev.u16.xz --minutes 18 --out run

The target (Hugging Face folder or GGUF; qwen3_5 or qwen3) writes the training text itself: it continues fresh prompts
greedily all through training (generate.py), on a second CUDA stream while the drafter trains on the pool before.
The schedule is wall-clock time; --slice ends a run early with a checkpoint in --out that the next run resumes.
"""
import argparse
import copy
import json
import os
import time

import torch
import torch.nn.functional as F

from common import Corpus, Opt, fp32_exact, held_out_prompts, load_tokens, log, pad_prompts, setup_torch, wsd
from formats import load_drafter, load_target, save_hf
from generate import Pool
from model import DraftConfig, Drafter, block_mask, default_target_layers, dflash_greedy


def arguments(argv=None):
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--target", required=True, help="Hugging Face folder or GGUF file")
    ap.add_argument("--tokenizer", help="folder whose tokenizer files go with the result (default: the target folder)")
    ap.add_argument("--prompts", nargs="+", required=True, help="token files (.u16/.u32, also .xz) to take prompts from")
    ap.add_argument("--dev", help="token file of held-out documents; accepted length on it is printed while training")
    ap.add_argument("--out", default="run")
    ap.add_argument("--init", help="drafter folder to start from")
    ap.add_argument("--minutes", type=float, default=15, help="length of the schedule, start-up included, over all slices")
    ap.add_argument("--steps", type=int, default=0, help="length of the schedule in steps instead")
    ap.add_argument("--slice", type=float, default=1e9, help="minutes for this process")
    ap.add_argument("--stop-after", type=int, default=-1, help="steps after which this process stops, to be resumed")
    ap.add_argument("--eos", type=int, default=8176)
    ap.add_argument("--mask", type=int, default=8179, help="mask token id")
    ap.add_argument("--layers", type=int, default=5)
    ap.add_argument("--heads", type=int, default=8)
    ap.add_argument("--kv-heads", type=int, default=2)
    ap.add_argument("--head-dim", type=int, default=64)
    ap.add_argument("--ffn", type=int, default=1536)
    ap.add_argument("--block", type=int, default=16)
    ap.add_argument("--capture", type=int, nargs="+", help="captured target layers (default: z-lab's rule, five)")
    ap.add_argument("--rows", type=int, default=4096, help="rows of a short pool")
    ap.add_argument("--length", type=int, default=256, help="tokens of a short row")
    ap.add_argument("--prompt", type=int, nargs=2, default=(16, 64), help="prompt lengths of a short row")
    ap.add_argument("--long-rows", type=int, default=1024, help="rows of a long pool, 0: none")
    ap.add_argument("--long-length", type=int, default=1024)
    ap.add_argument("--long-every", type=int, default=5, help="every n-th pool is a long one")
    ap.add_argument("--batch", type=int, default=512, help="short rows per step")
    ap.add_argument("--anchors", type=int, default=8, help="blocks per short row and step")
    ap.add_argument("--visits", type=int, default=14, help="steps every row takes part in")
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--warm", type=int, default=100, help="warm-up steps")
    ap.add_argument("--decay-from", type=float, default=0.4, help="share of the schedule after which the learning rate falls to zero")
    ap.add_argument("--hard", type=float, default=0.5, help="weight of the hard label; the rest is the target's distribution")
    ap.add_argument("--gamma", type=float, default=7.0, help="position weights exp(-(k-1)/gamma)")
    ap.add_argument("--reach", type=float, default=0.5, help="share of the position weight that is the chance to be reached")
    ap.add_argument("--short-blocks", type=float, default=0.25, help="share of blocks trained shorter than --block")
    ap.add_argument("--no-walk", action="store_true", help="anchors uniform instead of where decoding would put them")
    ap.add_argument("--sampled", type=float, default=0.3, help="share of rows whose continuation starts with sampled text")
    ap.add_argument("--qat", type=float, default=0.0, help="train with fake 4-bit weights in the last share of the schedule")
    ap.add_argument("--ema", type=float, default=0.0, help="average of the weights, 0: off")
    ap.add_argument("--state16", action="store_true", help="recurrent state in half precision while generating")
    ap.add_argument("--no-overlap", action="store_true", help="generate between, not during training steps")
    ap.add_argument("--no-compile", action="store_true")
    ap.add_argument("--eval-every", type=float, default=120, help="seconds")
    ap.add_argument("--eval-prompts", type=int, default=128)
    ap.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    ap.add_argument("--seed", type=int, default=7)
    return ap.parse_args(argv)


def block_loss(h, th, E, lab, decay, valid, hard, reach):
    """h (N,n-1,H) drafter's hidden states for the tokens after the anchor, th the target's for the same tokens, lab (N,n-1).
    Returns the loss and per block the tokens a target step would yield (accepted + 1)."""
    s = F.linear(h, E.to(h.dtype)).float()
    lse = torch.logsumexp(s, -1)
    sl = s.gather(-1, lab[..., None])[..., 0]
    l = lse - hard * sl
    if hard < 1:
        t = torch.softmax(F.linear(th, E.to(th.dtype)).float(), -1)
        l = l - (1 - hard) * (t * s).sum(-1)
    with torch.no_grad():
        ok = ((s.argmax(-1) == lab) & valid).long()
        p = torch.exp(sl - lse)
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


class Walkers:
    """Anchors of a pool.  They start anywhere in the greedy text and hop by what was accepted, as decoding does; so they
    gather where drafts fail, which is where the next draft really starts."""

    def __init__(self, pool, A, n, walk=True):
        self.pool, self.n, self.walk = pool, n, walk
        self.hi = pool.T - n
        R = pool.R
        self.at = self.anywhere(torch.arange(R, device=pool.dev), A)
        if walk:
            self.at[:, 0] = pool.sl

    def anywhere(self, rows, A):
        lo = self.pool.sl[rows][:, None]
        return lo + (torch.rand(len(rows), A, device=lo.device) * (self.hi - lo + 1)).long()

    def take(self, rows):
        return self.at[rows]

    def hop(self, rows, al):
        new = self.anywhere(rows, al.shape[1])
        if self.walk:
            nxt = self.at[rows] + al
            new = torch.where(nxt <= self.hi, nxt, new)
        self.at[rows] = new


class Trainer:
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
        if a.init:
            self.draft = load_drafter(a.init).to(self.dev)
        else:
            torch.manual_seed(a.seed)
            self.draft = Drafter(DraftConfig(
                vocab_size=c.vocab_size, hidden_size=c.hidden_size, intermediate_size=a.ffn, num_hidden_layers=a.layers,
                num_attention_heads=a.heads, num_key_value_heads=a.kv_heads, head_dim=a.head_dim, rms_norm_eps=c.rms_norm_eps,
                rope_theta=c.rope_theta, max_position_embeddings=c.max_position_embeddings, block_size=a.block,
                target_layer_ids=a.capture or default_target_layers(c.num_hidden_layers, min(5, c.num_hidden_layers - 2)),
                num_target_layers=c.num_hidden_layers, mask_token_id=a.mask)).to(self.dev)
        d = self.draft.c
        self.n = d.block_size
        log(f"target {sum(p.numel() for p in t32.parameters())/1e6:.2f}M parameters ({a.target}), drafter "
            f"{sum(p.numel() for p in self.draft.parameters())/1e6:.2f}M: {d.num_hidden_layers} layers, captures {d.target_layer_ids}")
        self.E = t32.head_weight.to(self.dt)
        self.emb = t32.model.embed_tokens.weight.to(self.dt)
        self.opt = Opt(list(self.draft.named_parameters()), a.lr)
        self.step_no = 0
        self.kk = torch.arange(self.n, device=self.dev)
        self.quant = [p for p in self.draft.parameters() if p.dim() == 2 and p.shape[1] % 256 == 0]
        self.master = None
        self.ema = {k: v.clone() for k, v in self.draft.state_dict().items()} if a.ema else None
        self.loss_fn = torch.compile(block_loss, dynamic=False) if self.compile else block_loss
        self.fq = torch.compile(fake_q4k, dynamic=True) if self.compile else fake_q4k
        self.draft.run = [torch.compile(l, dynamic=False) for l in self.draft.layers] if self.compile else None
        self.prompts = Corpus(load_tokens(*a.prompts), a.eos, self.dev, a.seed + 100)
        self.dev_prompts = held_out_prompts(load_tokens(a.dev), a.eos, a.eval_prompts) if a.dev else None
        self.side = torch.cuda.Stream() if self.cuda and not a.no_overlap else None
        self.slots, self.turn = None, 0

    # ------------------------------------------------------------ pools

    def make_pools(self):
        a = self.a
        kw = dict(feat_ids=self.draft.c.target_layer_ids, dtype=self.gen_dt, keep=self.dt, sampled=a.sampled, compile=self.compile,
                  state=torch.float16 if a.state16 else torch.float32)
        short = [Pool(self.target, a.rows, a.length, **kw) for _ in range(2)]
        for p in short:
            p.plan = dict(lo=a.prompt[0], hi=a.prompt[1], batch=a.batch, anchors=a.anchors)
        self.slots = short * (a.long_every // 2)
        if a.long_rows:
            f0 = (a.long_length - 320) // 64 * 64
            long = Pool(self.target, a.long_rows, a.long_length, F0=f0, **kw)
            long.plan = dict(lo=f0 + 1, hi=f0 + 128, batch=max(1, a.batch * a.length // a.long_length), anchors=2 * a.anchors)
            self.slots.append(long)

    def fill(self, pool):
        pool.fill(self.prompts, pool.plan["lo"], pool.plan["hi"])

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
            noise = F.embedding(blk.view(B, -1), self.emb)
            length = torch.full((B, A), n, device=self.dev)
            if self.a.short_blocks:
                cut = torch.randint(min(4, n - 1), n, (B, A), device=self.dev)
                length = torch.where(torch.rand(B, A, device=self.dev) < self.a.short_blocks, cut, length)
            mask = block_mask(anc, T, n, length)
            valid = (self.kk[1:] < length[..., None]).view(B * A, n - 1)
            lab = tok[..., 1:].reshape(B * A, n - 1)
            th = pool.hid[rows[:, None], pos[..., :-1].reshape(B, -1)].view(B * A, n - 1, -1)
            decay = torch.exp(-(self.kk[1:] - 1).float() / self.a.gamma)
        out = self.draft(feats, noise, torch.arange(T, device=self.dev)[None], pos.view(B, -1), mask, A)
        out = out.view(B * A, n, -1)[:, 1:].contiguous()
        loss, al, ok = self.loss_fn(out, th, self.E, lab, decay, valid, self.a.hard, self.a.reach)
        return loss, al.view(B, A), ok

    def set_qat(self, on):
        if on and self.master is None:
            self.master = [p.detach().clone() for p in self.quant]
        elif not on and self.master is not None:
            with torch.no_grad():
                for p, m in zip(self.quant, self.master):
                    p.copy_(m)
            self.master = None

    def step(self, pool, walkers, rows, lr):
        if self.master is not None:
            with torch.no_grad():
                for p, m in zip(self.quant, self.master):
                    p.copy_(self.fq(m))
        self.opt.zero()
        loss, al, _ = self.loss(pool, rows, walkers.take(rows))
        loss.backward()
        if self.master is not None:
            with torch.no_grad():
                torch._foreach_copy_(self.quant, self.master) if hasattr(torch, "_foreach_copy_") else [p.copy_(m) for p, m in zip(self.quant, self.master)]
        self.opt.step(lr)
        if self.master is not None:
            with torch.no_grad():
                for p, m in zip(self.quant, self.master):
                    m.copy_(p)
        walkers.hop(rows, al)
        self.step_no += 1
        if self.ema is not None:
            with torch.no_grad():
                for k, v in self.draft.state_dict().items():
                    self.ema[k].lerp_(v, 1 - min(self.a.ema, self.step_no / (self.step_no + 10)))
        return loss.detach(), al.float().mean()

    # ------------------------------------------------------------ the loop

    def run(self, lr_of, done, budget=None):
        """train until done() says so; lr_of() gives the learning rate.  Yields (loss, tokens per step, blocks, pool) sums
        about every ten seconds."""
        a = self.a
        if self.slots is None:
            self.make_pools()
            self.fill(self.slots[0])
        acc, t0 = None, time.time()
        while True:
            pool, nxt = self.slots[self.turn % len(self.slots)], self.slots[(self.turn + 1) % len(self.slots)]
            if self.cuda:
                torch.cuda.synchronize()
            filler = self.filler(nxt)
            plan = pool.plan
            B = min(plan["batch"], pool.R)
            walk = Walkers(pool, plan["anchors"], self.n, not a.no_walk)
            per = pool.R // B
            total = per * a.visits
            for i in range(total):
                if i % per == 0:
                    perm = torch.randperm(pool.R, device=self.dev)
                rows = perm[i % per * B:i % per * B + B]
                filler((i + 1) / total)
                l, al = self.step(pool, walk, rows, lr_of())
                v = torch.stack((l, al, torch.ones_like(al) * B * plan["anchors"], torch.ones_like(al)))
                if pool.T == a.length:
                    acc = v if acc is None else acc + v
                if i % 4 == 3 and self.cuda:
                    torch.cuda.current_stream().synchronize()      # keeps the wall clock honest
                if done():
                    filler(1.0)
                    if self.cuda:
                        torch.cuda.synchronize()
                    self.turn += 1
                    return
                if acc is not None and time.time() - t0 > 10:
                    yield acc.tolist(), time.time() - t0
                    acc, t0 = None, time.time()
            filler(1.0)
            self.turn += 1

    def filler(self, pool):
        """returns f(share): run the generation of the next pool up to that share, on the side stream"""
        if self.side is None:
            def at_end(share, state=[False]):
                if share >= 1 and not state[0]:
                    state[0] = True
                    self.fill(pool)
            return at_end
        it = pool.fill_steps(self.prompts, pool.plan["lo"], pool.plan["hi"])
        state = [0, next_or_none(it, self.side)]

        def advance(share):
            goal = int(share * pool.steps())
            while state[1] is not None and state[0] < goal:
                state[1] = next_or_none(it, self.side)
                state[0] += 1
            if share >= 1:
                while state[1] is not None:
                    state[1] = next_or_none(it, self.side)
        return advance

    # ------------------------------------------------------------ evaluation and files

    def accepted(self, prompts=None, new=128, weights=None, dtype=torch.float32, block=None, quant=False):
        """mean tokens per target step of greedy DFlash decoding on the dev prompts"""
        d = copy.deepcopy(self.draft)
        d.run = None
        if weights is not None:
            d.load_state_dict(weights)
        elif self.master is not None:
            names = {id(p): n for n, p in self.draft.named_parameters()}
            own = dict(d.named_parameters())
            with torch.no_grad():
                for p, m in zip(self.quant, self.master):
                    own[names[id(p)]].copy_(m)
        if quant:
            with torch.no_grad():
                for p in d.parameters():
                    if p.dim() == 2 and p.shape[1] % 256 == 0:
                        p.copy_(fake_q4k(p))
        P, pl = pad_prompts(prompts or self.dev_prompts, self.a.eos, self.dev)
        _, accs = dflash_greedy(self.t32, d, P, pl, new, dtype, block)
        A = torch.stack(accs)
        return A.sum().item() / (A > 0).sum().item()

    def weights(self):
        self_master = {id(p): m for p, m in zip(self.quant, self.master)} if self.master is not None else {}
        return {k: self_master.get(id(p), p.detach()).clone() for k, p in self.draft.named_parameters()}

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
        d = Drafter(self.draft.c)
        d.load_state_dict({k: v.cpu() for k, v in (weights or self.weights()).items()})
        tok = self.a.tokenizer or (self.a.target if os.path.isdir(self.a.target) else None)
        save_hf(d, folder, tok, self.a.eos)


def next_or_none(it, stream):
    with torch.cuda.stream(stream):
        return next(it, None)


def main(argv=None):
    a = arguments(argv)
    T0 = time.time()
    setup_torch(a.seed)
    os.makedirs(a.out, exist_ok=True)
    tr = Trainer(a)
    ck = os.path.join(a.out, "drafter.pt")
    before = 0.0
    if os.path.exists(ck):
        before = tr.load(ck)
        log(f"resumed at step {tr.step_no}, {before/60:.2f} min")
    total, stop = a.minutes * 60, a.slice * 60
    clock = lambda: tr.step_no / a.steps if a.steps else (before + time.time() - T0) / total
    hist = open(os.path.join(a.out, "drafter.log"), "a")
    last_eval = time.time()

    def lr_of():
        p = clock()
        if a.qat and p > 1 - a.qat:
            tr.set_qat(True)
        return wsd(p, tr.step_no, a.lr, decay_from=a.decay_from, warm=a.warm)
    for (l, al, blocks, n), dt in tr.run(lr_of,
                                         lambda: clock() >= 1 or time.time() - T0 >= stop or tr.step_no == a.stop_after):
        line = f"step {tr.step_no} {clock()*100:.1f}% loss {l/n:.4f} tokens/step on pool {al/n:.3f} blocks/s {blocks/dt:.0f}"
        if tr.dev_prompts and time.time() - last_eval > a.eval_every:
            line += f" DEV {tr.accepted():.3f}"
            last_eval = time.time()
            tr.save(ck, before + time.time() - T0)
            tr.export(os.path.join(a.out, "drafter"))
        log(line)
        print(line, file=hist, flush=True)
    tr.save(ck, before + time.time() - T0)
    tr.export(os.path.join(a.out, "drafter"))
    line = f"end step {tr.step_no} {clock()*100:.1f}%"
    if tr.dev_prompts:
        with fp32_exact():
            r = {"dev": tr.accepted(), "dev_q4": tr.accepted(quant=True)}
            if tr.ema is not None:
                r["dev_ema"] = tr.accepted(weights=tr.ema)
                tr.export(os.path.join(a.out, "drafter_ema"), tr.ema)
        line += " " + json.dumps(r)
    log(line)
    print(line, file=hist, flush=True)
    return tr


if __name__ == "__main__":
    main()
