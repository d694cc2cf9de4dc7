"""Held-out loss of a target, accepted length of a pair, and the proof that speculation changed nothing.

    python evaluate.py --target target.gguf --drafter drafter.gguf --val val.u16 --report eval.json
    python evaluate.py --target target.gguf --drafter drafter.gguf --texts reference/pair.json

Target and drafter are Hugging Face folders or GGUF files (dequantised; the arithmetic is float32).  The report holds the
prompts, the greedy continuations and the target steps of every prompt, so that another engine can be compared with it.
An engine that rounds differently writes other text after a near-tie; --texts counts the passes for given texts instead.
"""
import argparse
import json
import math
import os
import time

import torch
import torch.nn.functional as F

from common import fp32_exact, held_out_prompts, load_tokens, log, pad_prompts, setup_torch
import model
from formats import load_drafter, load_target
from model import block_mask, speculative_greedy, plain_greedy, rope_tables


@torch.no_grad()
def held_out_loss(target, toks, windows, T=1024, batch=16):
    t = torch.from_numpy(toks).long()
    n = min((len(t) - 1) // T, windows)
    tot = hit = cnt = 0
    for k in range(0, n, batch):
        x = torch.stack([t[i * T:i * T + T + 1] for i in range(k, min(n, k + batch))]).to(target.device)
        lg = target.logits(target.hidden(x[:, :-1], torch.float32))
        tot += F.cross_entropy(lg.reshape(-1, lg.shape[-1]), x[:, 1:].reshape(-1), reduction="sum").item()
        hit += (lg.argmax(-1) == x[:, 1:]).sum().item()
        cnt += x[:, 1:].numel()
    return tot / cnt, hit / cnt, cnt


def accepted_length(target, draft, prompts, new, eos, block=None):
    """decode every prompt plainly and speculatively; a step's tokens are the accepted ones and the target's own"""
    P, pl = pad_prompts(prompts, eos, target.device)
    g0 = plain_greedy(target, P, pl, new, torch.float32)
    g1, accs = speculative_greedy(target, draft, P, pl, new, torch.float32, block)
    A = torch.stack(accs).cpu()
    n = block or draft.block
    steps = (A > 0).sum(0)
    hist = torch.bincount(A[A > 0], minlength=n + 1)[1:]
    left = hist.flip(0).cumsum(0).flip(0).float()                     # steps that yielded at least k tokens
    same = (g0 == g1).all(1).cpu()
    # an engine takes the first token from the prompt's pass and stops at the last one asked for
    passes = ((A.cumsum(0) - A + 1 < new) & (A > 0)).sum(0)
    return dict(
        tokens_per_step=A.sum().item() / steps.sum().item(), tokens_per_pass=len(prompts) * (new - 1) / passes.sum().item(),
        identical=int(same.sum()), prompts=len(prompts), steps=int(steps.sum()), block=n, new=new,
        histogram=hist.tolist(), accept_at=[round((left[k] / left[k - 1]).item(), 4) if left[k - 1] > 0 else None for k in range(1, n)],
        per_prompt=[dict(tokens=int(A[:, i].sum()), steps=int(steps[i]), passes=int(passes[i])) for i in range(len(prompts))]), g0


@torch.no_grad()
def passes_on(target, draft, prompts, texts, block=None, rows=46):
    """Tokens of every target pass, per prompt, when the texts are given: guesses are compared with the text, not with the
    target's own choice, and a pass ends with the text.  The first token is the prompt's; it takes no pass.  For the
    target's greedy text these are the passes of decoding; for another engine's, what this drafter is worth on it."""
    n, c, dev, out = block or draft.block, draft.c, target.device, []
    for k in range(0, len(prompts), rows):
        P = prompts[k:k + rows]
        ids, end = pad_prompts([p + t for p, t in zip(P, texts[k:k + rows])], 0, dev)
        ids = F.pad(ids, (0, (-ids.shape[1]) % 64))
        T = ids.shape[1]
        ctx = draft.context(target.hidden(ids, torch.float32, c.target_layer_ids)[1])
        rope = rope_tables(torch.arange(T, device=dev)[None], c.head_dim, c.rope_theta)
        at = torch.tensor([len(p) for p in P], device=dev)                  # the last token known
        got = [[] for _ in P]
        while bool((at + 1 < end).any()):
            r = torch.nonzero(at + 1 < end)[:, 0]
            pos = at[r, None] + torch.arange(n, device=dev)
            blk = torch.full_like(pos, c.mask_token_id)
            blk[:, 0] = ids[r, at[r]]
            x, rope_q, mask = target.embed(blk, torch.float32), rope_tables(pos, c.head_dim, c.rope_theta), block_mask(at[r, None], T, n)
            for l in draft.layers:
                x = l(x, ctx[r], rope_q, rope, mask, 1)
            h, pos = draft.norm(x)[:, 1:], pos[:, 1:]
            guess = draft.guess(target.logits(h), h, blk[:, 0])
            ok = (guess == ids[r].gather(1, pos.clamp(max=T - 1))) & (pos < end[r, None])
            a = torch.minimum(ok.long().cumprod(1).sum(1) + 1, end[r] - 1 - at[r])
            at[r] += a
            for i, m in zip(r.tolist(), a.tolist()):
                got[i].append(m)
        out += got
    return out


def check_texts(target, draft, report, block):
    """passes for the texts of a report, its own ("greedy") and another engine's ("other", where it differs)"""
    P = report["prompts"]
    prompts = [p["prompt"] for p in P]
    own = passes_on(target, draft, prompts, [p["greedy"] for p in P], block)
    yield "greedy text", own, [p.get("passes") for p in P]
    if any("other" in p for p in P):
        k = [i for i, p in enumerate(P) if "other" in p]
        res = list(own)
        for i, g in zip(k, passes_on(target, draft, [prompts[i] for i in k], [P[i]["other"] for i in k], block)):
            res[i] = g
        yield "the other engine's text", res, [p.get("other_passes") for p in P]


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--target", required=True)
    ap.add_argument("--drafter", nargs="*", default=[])
    ap.add_argument("--val", help="token file of held-out documents")
    ap.add_argument("--texts", help="report with prompts and texts: count the passes for these instead of decoding")
    ap.add_argument("--windows", type=int, default=384, help="windows of 1024 tokens for the loss, 0: skip it")
    ap.add_argument("--prompts", type=int, default=40)
    ap.add_argument("--prompt-length", type=int, nargs=2, default=(16, 64))
    ap.add_argument("--new", type=int, default=128)
    ap.add_argument("--block", type=int, nargs="*", default=[0], help="draft lengths including the anchor, 0: as trained")
    ap.add_argument("--eos", type=int, default=8176)
    ap.add_argument("--act8", action="store_true", help="round activations to int8 as Strobe does for quantised weights")
    ap.add_argument("--report", help="JSON file to write")
    ap.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a = ap.parse_args()
    setup_torch()
    model.ACT8 = a.act8
    target = load_target(a.target).freeze(torch.float32).to(a.device)
    res = {"target": os.path.basename(a.target.rstrip("/")), "runs": []}
    if a.texts:
        with open(a.texts) as f:
            report = json.load(f)
        for p in a.drafter:
            d = load_drafter(p).to(a.device).requires_grad_(False)
            with fp32_exact():
                for what, got, want in check_texts(target, d, report, a.block[0] or None):
                    n, m = sum(map(len, got)), sum(map(sum, got))
                    log(f"{os.path.basename(p)}: {m / n:.3f} tokens per pass on {what}, {n} passes" + (
                        f"; {sum(want)} in the report ({100 * (sum(want) / n - 1):+.2f} %)" if None not in want else ""))
                    res["runs"].append(dict(drafter=os.path.basename(p), text=what, tokens_per_pass=m / n, passes=n, per_prompt=got))
        if a.report:
            with open(a.report, "w") as f:
                json.dump(res, f)
        return
    va = load_tokens(a.val)
    with fp32_exact():
        if a.windows:
            l, top, n = held_out_loss(target, va, a.windows)
            res.update(loss=l, perplexity=math.exp(l), top1=top, tokens=n)
            log(f"held-out loss {l:.4f} perplexity {math.exp(l):.3f} top-1 {top:.3f} over {n} tokens")
        prompts = held_out_prompts(va, a.eos, a.prompts, lo=a.prompt_length[0], hi=a.prompt_length[1])
        for p in a.drafter:
            d = load_drafter(p).to(a.device).requires_grad_(False)
            for b in a.block:
                t = time.time()
                r, g = accepted_length(target, d, prompts, a.new, a.eos, b or None)
                r["drafter"] = os.path.basename(p.rstrip("/"))
                res["runs"].append(r)
                log(f"{r['drafter']} block {r['block']}: {r['tokens_per_pass']:.3f} tokens per pass as an engine counts that stops after {a.new}, "
                    f"{r['tokens_per_step']:.3f} per step with the last block whole ({r['steps']} steps), identical {r['identical']} of {r['prompts']}, {time.time()-t:.0f} s")
                log("  accepted at position 1, 2, ...:", r["accept_at"])
                log("  tokens per step 1, 2, ...:", r["histogram"])
            res["prompts"] = [dict(prompt=q, greedy=x) for q, x in zip(prompts, g.tolist())]
    if a.report:
        with open(a.report, "w") as f:
            json.dump(res, f)


if __name__ == "__main__":
    main()
