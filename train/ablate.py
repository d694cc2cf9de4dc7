"""Short runs that differ in one setting each, from the same start, for the same time:

    python ablate.py --seconds 25 --target target.gguf --prompts prompts.u16.xz --dev dev.u16.xz \\
        base -- walk=--no-walk -- hard_only="--hard 1"

Everything before the first variant is what drafter.py takes.  A variant is NAME or NAME=FLAGS.  The learning rate falls to
zero within each run, compilation is not counted, and the table at the end gives the accepted length on the dev prompts.
"""
import argparse
import json
import os
import sys
import time

import torch

from common import fp32_exact, log, setup_torch
from drafter import Trainer, arguments


def checks(tr):
    """speed and exactness of generation, before anything is trained"""
    for k in range(2):
        t = time.time()
        pool = tr.next_pool()
        if tr.cuda:
            torch.cuda.synchronize()
        dt = time.time() - t
        log(f"pool of {pool.R} x {pool.T} in {dt:.2f} s: {pool.R*pool.T/dt/1e3:.0f}k tokens/s")
    with torch.no_grad(), fp32_exact():
        n = min(64, pool.R)
        h, f = tr.t32.hidden(pool.x[:n], torch.float32, pool.feat_ids)
        same = tr.t32.logits(h).argmax(-1)[:, :-1] == pool.x[:n, 1:]
        at = torch.arange(1, pool.T, device=tr.dev)
        greedy = at[None] >= pool.sl[:n, None]
        log(f"greedy text = float32 argmax at {100*same[greedy].float().mean().item():.3f} % of positions; features differ by "
            f"{((pool.feats[:n].float()-f).norm()/f.norm()).item():.1e}, hidden by {((pool.hid[:n].float()-h).norm()/h.norm()).item():.1e} (relative)")
    if tr.cuda:
        log(f"memory {torch.cuda.max_memory_allocated()/2**30:.1f} GiB")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=25)
    ap.add_argument("--report", default="ablation.json")
    me, rest = ap.parse_known_args()
    i = next(k for k, v in enumerate(rest) if v == "base" or v.startswith("base="))
    common, variants = rest[:i], [v for v in rest[i:] if v != "--"]
    res, keep = {}, {}
    setup_torch()
    for v in variants:
        name, _, flags = v.partition("=")
        try:
            T0 = time.time()
            a = arguments(common + flags.split())
            tr = Trainer(a)
            key = (tuple(tr.draft.c.target_layer_ids), a.rows, a.length, a.state16, a.sampled)
            if key in keep:
                tr.pools = keep[key]
            else:
                keep.clear()
                checks(tr)
                keep[key] = tr.pools
            t = time.time()
            lr = [0.0]
            start = [None]

            def clock():
                return 0.0 if start[0] is None else (time.time() - start[0]) / me.seconds

            def lr_of():
                if tr.step_no == 8:                 # compiled by now
                    torch.cuda.synchronize() if tr.cuda else None
                    start[0] = time.time()
                    log(f"{name}: first steps took {time.time()-t:.1f} s")
                p = clock()
                lr[0] = a.lr * min(1, (tr.step_no + 1) / a.warm) * min(1, (1 - p) / 0.7)
                return max(lr[0], 0.0)
            for (l, al, b, n), dt, _ in tr.run(lr_of, lambda: clock() >= 1):
                log(f"{name}: step {tr.step_no} loss {l/n:.4f} tokens/step on pool {al/n:.3f} blocks/s {b/dt:.0f} pools {tr.turn}")
            r = {"steps": tr.step_no, "pools": tr.turn, "params": sum(p.numel() for p in tr.draft.parameters())}
            with fp32_exact():
                r["dev"] = tr.accepted()
                if not flags or a.qat:
                    r["dev_q4"] = tr.accepted(quant=True)
            r["wall"] = time.time() - T0
            res[name] = r
            log(name, json.dumps(r))
        except Exception as e:
            import traceback
            traceback.print_exc()
            log(name, "FAILED", repr(e)[:300])
            keep.clear()
        with open(me.report, "w") as f:
            json.dump(res, f, indent=1)
    log("variant            params  steps  tokens/step  with 4-bit weights")
    for k, r in res.items():
        log(f"{k:18s} {r['params']/1e6:5.2f}M {r['steps']:6d} {r['dev']:10.3f} {r.get('dev_q4', float('nan')):10.3f}")


if __name__ == "__main__":
    main()
