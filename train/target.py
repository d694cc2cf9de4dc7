"""Train the small target from scratch on token files.

    python target.py --train train.u16 --val val.u16 --tokenizer data --minutes 16 --out run

The schedule is wall-clock time (warm up, hold, fall); --slice ends a process early and the next one resumes from --out.
The result is a Hugging Face folder, --out/target, in bfloat16.  --arch qwen3 trains a plain transformer instead.
"""
import argparse
import math
import os
import time

import torch

from common import Corpus, Opt, load_tokens, log, setup_torch, wsd
from formats import save_hf
from model import Target, TargetConfig, ce_loss


def main(argv=None):
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--train", nargs="+", required=True)
    ap.add_argument("--val", required=True)
    ap.add_argument("--tokenizer", help="folder with tokenizer.json, copied into the result")
    ap.add_argument("--out", default="run")
    ap.add_argument("--minutes", type=float, default=16, help="length of the schedule over all slices")
    ap.add_argument("--slice", type=float, default=1e9, help="minutes for this process")
    ap.add_argument("--steps", type=int, default=0, help="length of the schedule in steps instead")
    ap.add_argument("--arch", default="qwen3_5", choices=("qwen3_5", "qwen3"))
    ap.add_argument("--vocab", type=int, default=8192)
    ap.add_argument("--hidden", type=int, default=512)
    ap.add_argument("--ffn", type=int, default=2048)
    ap.add_argument("--layers", type=int, default=12)
    ap.add_argument("--heads", type=int, default=8)
    ap.add_argument("--kv-heads", type=int, default=2)
    ap.add_argument("--head-dim", type=int, default=128)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--length", type=int, default=1024)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--eos", type=int, default=8176)
    ap.add_argument("--no-compile", action="store_true")
    ap.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a = ap.parse_args(argv)
    T0 = time.time()
    setup_torch()
    os.makedirs(a.out, exist_ok=True)
    dev = torch.device(a.device)
    cuda = dev.type == "cuda"
    dt = torch.bfloat16 if cuda else torch.float32
    data = Corpus(load_tokens(*a.train), a.eos, dev, 17)
    vdata = Corpus(load_tokens(a.val), a.eos, dev, 99)
    model = Target(TargetConfig(
        arch=a.arch, vocab_size=a.vocab, hidden_size=a.hidden, intermediate_size=a.ffn, num_hidden_layers=a.layers, num_attention_heads=a.heads,
        num_key_value_heads=a.kv_heads, head_dim=a.head_dim, linear_num_key_heads=max(1, a.heads // 2), linear_num_value_heads=a.heads,
        linear_key_head_dim=a.head_dim, linear_value_head_dim=a.head_dim)).init_weights().to(dev)
    log(f"{sum(p.numel() for p in model.parameters())/1e6:.2f}M parameters, {len(data.t)/1e6:.1f}M training tokens")
    opt = Opt(list(model.named_parameters()), a.lr)
    ck = os.path.join(a.out, "target.pt")
    before, step = 0.0, 0
    if os.path.exists(ck):
        s = torch.load(ck, map_location=dev)
        model.load_state_dict(s["model"])
        opt.load_state_dict(s["opt"])
        before, step = s["elapsed"], s["step"]
        data.g.manual_seed(1000 + step)
        log(f"resumed at step {step}, {before/60:.2f} min")
    loss_fn = ce_loss
    if cuda and not a.no_compile:
        model.run = [torch.compile(l, dynamic=False) for l in model.model.layers]
        loss_fn = torch.compile(ce_loss, dynamic=False)

    def loss(x):
        return loss_fn(model.hidden(x[:, :-1], dt), model.head_weight, x[:, 1:])

    def batch(c):
        return c.batch(a.batch, a.length + 1, 0.3)[torch.randperm(a.batch, device=dev)]

    held = [batch(vdata) for _ in range(max(1, 128 // a.batch))]
    total, stop = a.minutes * 60, a.slice * 60
    clock = lambda: step / a.steps if a.steps else (before + time.time() - T0) / total
    acc, n, tp, tv = 0.0, 0, time.time(), time.time()
    while clock() < 1 and time.time() - T0 < stop:
        lr = wsd(clock(), step, a.lr, warm=min(200, max(1, a.steps // 10)) if a.steps else 200, decay_from=0.55, floor=0.02)
        opt.zero()
        l = loss(batch(data))
        l.backward()
        opt.step(lr)
        acc, n, step = acc + l.detach(), n + 1, step + 1
        if step % 8 == 0 and cuda:
            torch.cuda.synchronize()
        if time.time() - tp > 10:
            line = f"step {step} {clock()*100:.1f}% loss {acc.item()/n:.4f} lr {lr:.2e} tokens/s {n*a.batch*a.length/(time.time()-tp):.0f}"
            if not math.isfinite(acc.item()):
                raise SystemExit(line + ": diverged")
            if time.time() - tv > 55:
                line += f" held-out {sum(loss(b).item() for b in held)/len(held):.4f}"       # with gradients: reuses the compiled graphs
                tv = time.time()
            log(line)
            acc, n, tp = 0.0, 0, time.time()
    v = sum(loss(b).item() for b in held) / len(held)
    torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "elapsed": before + time.time() - T0, "step": step}, ck + ".tmp")
    os.replace(ck + ".tmp", ck)
    save_hf(model, os.path.join(a.out, "target"), a.tokenizer, a.eos)
    log(f"end step {step} {clock()*100:.1f}% held-out loss {v:.4f}")


if __name__ == "__main__":
    main()
