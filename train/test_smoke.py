"""CPU smoke test at toy size: python test_smoke.py (a minute or two on one core, no GPU, PyTorch 1.13 or later)."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import drafter as drafter_step
import mtp as mtp_step
import target as target_step
from common import Corpus, load_tokens, log
from evaluate import accepted_length, passes_on
from formats import load_drafter, load_target, read_safetensors, write_safetensors
from generate import Pool
from model import *
from tokens import BPE, byte_chars

VOCAB, EOS, MASK = 96, 90, 91


def phrases(n, seed=1):
    """text of 24 fixed phrases in random order: starts are unpredictable, insides are not"""
    g = torch.Generator().manual_seed(seed)
    ph = [torch.randint(0, 80, (int(torch.randint(3, 10, (1,), generator=g)),), generator=g) for _ in range(24)]
    rng = np.random.default_rng(seed)
    out, since = [], 0
    while sum(map(len, out)) < n:
        p = ph[rng.integers(24)].numpy()
        out.append(p)
        since += len(p)
        if since > 300:
            out.append(np.array([EOS]))
            since = 0
    return np.concatenate(out).astype(np.uint16)


def close(a, b, tol, what):
    e = (a - b).abs().max().item() / (b.abs().max().item() + 1e-9)
    log(f"  {what}: relative error {e:.1e}")
    assert e < tol, (what, e)


def test_delta_rule():
    B, T, Hk, Hv, D = 2, 128, 2, 4, 16
    for hard in (False, True):                      # hard: repeated keys, beta near 1, slow decay
        q, k = torch.randn(B, T, Hk, D), torch.randn(B, T, Hk, D)
        if hard:
            k = torch.randn(B, 1, Hk, D).expand(B, T, Hk, D) + 0.01 * k
        v = torch.randn(B, T, Hv, D)
        g = -torch.rand(B, T, Hv) * (0.01 if hard else 0.5)
        b = torch.rand(B, T, Hv) * (0.05 if hard else 1) + (0.95 if hard else 0)
        leafs = [x.clone().requires_grad_() for x in (q, k, v, g, b)]
        o1, S1 = gdn_recurrent(*leafs)
        W = torch.randn_like(o1)
        g1 = torch.autograd.grad((o1 * W).sum(), leafs)
        g2 = torch.autograd.grad((gdn_chunk(*leafs) * W).sum(), leafs)
        with torch.no_grad():
            o3, S3 = gdn_chunk(*leafs, want_state=True)
        close(o3, o1, 1e-3, "chunked = recurrent, outputs")
        close(S3, S1, 1e-3, "state")
        for x, y in zip(g2, g1):
            close(x, y, 5e-3, "gradient")


def test_cached(m):
    ids = torch.randint(0, 80, (3, 128))
    with torch.no_grad():
        full, ffull = m.hidden(ids, torch.float32, [0, 1, 2])
        full = m.logits(full)
    ct = CachedTarget(m, 3, 160, feat_ids=[0, 1, 2])
    lg, f = ct.forward_block(ids[:, :40])
    close(lg, full[:, :40], 1e-3, "prefill = full forward")
    ct.commit(torch.tensor([40, 17, 33]))
    for tb in (1, 16, 1, 5, 16, 1):
        lg, f = ct.forward_block(torch.stack([ids[b, ct.pos[b]:ct.pos[b] + tb] for b in range(3)]))
        for b in range(3):
            p = ct.pos[b].item()
            assert (lg[b] - full[b, p:p + tb]).abs().max() < 1e-2 * full.abs().max()
            assert (f[b] - ffull[b, p:p + tb]).abs().max() < 1e-2 * ffull.abs().max()
        ct.commit(torch.randint(1, tb + 1, (3,)))


def test_pool(m, corpus):
    for F0, T in ((0, 64), (64, 128)):
        p = Pool(m, 6, T, [0, 1, 2], F0=F0, dtype=torch.float32, keep=torch.float32, sampled=0.34)
        p.fill(corpus, F0 + 4, F0 + 16, spread=(2, 6))
        with torch.no_grad():
            h, f = m.hidden(p.x, torch.float32, [0, 1, 2])
            close(p.feats, f, 1e-3, f"pool's features (prefill {F0}) = full forward")
            close(p.hid, h, 1e-3, "pool's hidden states")
            nxt = m.logits(h).argmax(-1)
        for r in range(6):
            assert (p.x[r, p.sl[r]:] == nxt[r, p.sl[r] - 1:-1]).all(), "greedy text is not the target's argmax"
            assert p.sl[r] == p.pl[r] or r < p.ns


def test_draft_mask(m, d):
    n = d.c.block_size
    T = 64
    x = torch.randint(0, 80, (2, T))
    anc = torch.tensor([[1, 9, 30], [5, 40, 56]])
    with torch.no_grad():
        _, feats = m.hidden(x, torch.float32, d.c.target_layer_ids)
        blk = torch.full((2, 3, n), MASK)
        blk[:, :, 0] = x.gather(1, anc)
        pos = anc[..., None] + torch.arange(n)
        length = torch.tensor([[n, 5, n], [n, n, 4]])
        h = d(feats, m.embed(blk.view(2, -1), torch.float32), torch.arange(T)[None], pos.view(2, -1), block_mask(anc, T, n, length), 3).view(2, 3, n, -1)
        for b in range(2):
            for a in range(3):
                s, k = anc[b, a].item(), length[b, a].item()
                one = d(feats[b:b + 1, :s], m.embed(blk[b:b + 1, a, :k], torch.float32), torch.arange(s)[None], torch.arange(s, s + k)[None],
                        block_mask(torch.tensor([[s]]), s, k))
                assert (one[0] - h[b, a, :k]).abs().max() < 1e-4, "a block of the training batch differs from the block alone"


def test_chain(m, d):
    """the chains of a training batch against the layer as the target has it, over the pairs of one chain"""
    n, T = 4, 64
    x = torch.randint(0, 80, (2, T))
    anc = torch.tensor([[1, 9, 30], [5, 40, 56]])
    tok = x.gather(1, (anc[..., None] + torch.arange(n)).view(2, -1)).view(2, 3, n)
    embed = lambda ids: m.embed(ids, torch.float32)
    with torch.no_grad():
        hid = m.hidden(x, torch.float32)
        h0 = hid.gather(1, (anc - 1)[..., None].expand(-1, -1, hid.shape[-1]))
        got = d.chain(embed, tok[..., 0], h0, anc, n, (embed(x), hid), block_mask(anc, T, n)[0], lambda k, _: tok[..., min(k + 1, n - 1)])
        for b in range(2):
            for a in range(3):
                s = anc[b, a].item()
                h = torch.cat((torch.zeros(1, hid.shape[-1]), hid[b, :s]))
                for k in range(n):
                    y = d.input(embed(x[b, :s + k + 1]), h)[None]
                    y = d.norm(d.layers[0](y, *rope_tables(torch.arange(s + k + 1)[None], m.rot, m.c.rope_theta)))[0, -1]
                    assert (got[b, a, k] - y).abs().max() < 1e-4, "a chain of the training batch differs from the layer over its pairs"
                    h = torch.cat((h, y[None]))


def toy_tokenizer(folder):
    chars = list(byte_chars().values())
    with open(os.path.join(folder, "tokenizer.json"), "w") as f:
        json.dump(dict(model=dict(type="BPE", vocab={c: i for i, c in enumerate(chars[:EOS])}, merges=[]), added_tokens=[
            dict(id=i, content=f"<|{i}|>", special=True) for i in range(EOS, VOCAB)]), f)


def test_strobe(folder, block, tmp):
    """draft logits and states of `strobe logits` against those of PyTorch, in rounds with given accepted lengths"""
    strobe = os.environ.get("STROBE") or shutil.which("strobe")
    if not strobe:
        return log("  no strobe in STROBE or PATH: its MTP rounds are not compared")
    call = lambda *a: subprocess.run([strobe, "-q", *map(str, a)], check=True)
    gguf = [os.path.join(tmp, n) for n in ("toy.gguf", "mtp-toy.gguf")]
    toy_tokenizer(folder)
    for f, out, more in ((folder, gguf[0], ()), (block, gguf[1], ("--mtp-only", "--target", folder, "--no-vocab"))):
        call("convert", f, "-o", out, "--type", "f32", "--pre", "qwen35", *more)
    m, d = load_target(gguf[0]).freeze(torch.float32), load_drafter(gguf[1])
    ids, accept, n, out = list(map(int, phrases(40, 1)[:25])), (2, 0, 4, 1), 4, os.path.join(tmp, "rounds.safetensors")
    with open(os.path.join(tmp, "ids.json"), "w") as f:
        json.dump(ids, f)
    call("logits", "-m", gguf[0], "-d", gguf[1], "--kv", "f32", "--tokens", f.name, "--steps", n, "--accept", ",".join(map(str, accept)), "--out", out)
    theirs = read_safetensors(out)
    for r, keep in enumerate(accept):
        x = torch.tensor([ids + [0] * ((-len(ids)) % 64)])
        with torch.no_grad():
            hid = m.hidden(x, torch.float32)
            at, states, guesses = torch.tensor([[len(ids) - 1]]), [], []

            def follow(_, h):
                states.append(h[0, 0])
                guesses.append(m.logits(h).argmax(-1))
                return guesses[-1]
            embed = lambda t: m.embed(t, torch.float32)
            d.chain(embed, x.gather(1, at), hid[:, at[0] - 1], at, n, (embed(x), hid), block_mask(at, x.shape[1], n)[0], follow)
            close(theirs[f"round{r}.h_out"], torch.stack(states), 1e-4, f"strobe's states, round {r}")
            close(theirs[f"round{r}.logits"], m.logits(torch.stack(states)), 1e-4, "its logits")
            guesses = torch.cat(guesses, 1)[0].tolist()
            assert theirs[f"round{r}.draft"].tolist() == guesses
            ids = ids + guesses[:keep]
            ids.append(m(torch.tensor([ids]))[0, -1].argmax().item())


def test_mtp(m, folder, toks, dev, out, tmp):
    mtp_step.main(["--target", folder, "--prompts", toks, "--dev", dev, "--out", out, "--eos", str(EOS), "--ahead", "5", "--rows", "16", "--length", "64",
                   "--prompt", "8", "16", "--long-rows", "0", "--batch", "8", "--anchors", "6", "--visits", "6", "--lr", "5e-3", "--eval-prompts", "8",
                   "--device", "cpu", "--steps", "160", "--warm", "10", "--qat", "0.1", "--eval-every", "5"])
    block = os.path.join(out, "mtp")
    d = load_drafter(block)
    test_chain(m, d)
    r, _ = accepted_length(m, d, prompts(), 40, EOS, 6)
    log(f"  MTP: {r['tokens_per_step']:.2f} tokens per target step, {r['tokens_per_pass']:.2f} per pass")
    assert r["identical"] == 4, "speculative and plain greedy text differ"
    assert r["tokens_per_step"] > 1.2
    test_strobe(folder, block, tmp)


def prompts():
    return [list(map(int, phrases(40, k)[:n])) for k, n in ((1, 24), (1, 12), (2, 8), (3, 20))]


def test_arch(arch, tmp):
    log(arch)
    torch.manual_seed(0)
    toks, dev = os.path.join(tmp, "train.u16"), os.path.join(tmp, "dev.u16")
    phrases(60000).tofile(toks)
    phrases(8000).tofile(dev)
    out = os.path.join(tmp, "run_" + arch)
    target_step.main(["--arch", arch, "--train", toks, "--val", dev, "--out", out, "--vocab", str(VOCAB), "--hidden", "64", "--ffn", "128", "--layers", "4", "--heads",
                      "2", "--kv-heads", "1", "--head-dim", "32", "--batch", "8", "--length", "64", "--steps", "100", "--lr", "5e-3", "--eos", str(EOS), "--device", "cpu"])
    folder = os.path.join(out, "target")
    m = load_target(folder).freeze(torch.float32)
    test_cached(m)
    test_pool(m, Corpus(load_tokens(toks), EOS, torch.device("cpu"), 2))
    if arch == "qwen3_5":
        test_mtp(m, folder, toks, dev, out, tmp)

    argv = ["--target", folder, "--prompts", toks, "--dev", dev, "--out", out, "--eos", str(EOS), "--mask", str(MASK), "--layers", "2", "--heads", "2",
            "--kv-heads", "1", "--head-dim", "32", "--ffn", "128", "--block", "8", "--capture", "0", "1", "2", "--rows", "16", "--length", "64", "--prompt",
            "8", "16", "--long-rows", "0", "--batch", "8", "--anchors", "6", "--visits", "6", "--lr", "5e-3", "--eval-prompts", "8", "--device", "cpu",
            "--steps", "160", "--warm", "10", "--qat", "0.1", "--ema", "0.9", "--eval-every", "5"] + ["--selector", "8"] * (arch == "qwen3")
    drafter_step.main(argv + ["--stop-after", "60"])
    t = drafter_step.main(argv)                     # resumes
    assert t.step_no > 0 and os.path.exists(os.path.join(out, "drafter", "model.safetensors"))
    d = load_drafter(os.path.join(out, "drafter"))
    test_draft_mask(m, d)
    for block in (8, 4):
        r, text = accepted_length(m, d, prompts(), 40, EOS, block)
        log(f"  block {block}: {r['tokens_per_step']:.2f} tokens per target step, {r['tokens_per_pass']:.2f} per pass")
        assert r["identical"] == 4, "speculative and plain greedy text differ"
        assert r["tokens_per_step"] > 1.2
        assert [len(g) for g in passes_on(m, d, prompts(), text.tolist(), block)] == [p["passes"] for p in r["per_prompt"]], "passes for a given text"


def test_tokens(tmp):
    """a vocabulary of bytes and two merges"""
    chars = byte_chars()
    vocab = {c: b for b, c in chars.items()}
    vocab.update({"fu": 256, "func": 257, "nc": 258})
    added = [dict(id=300, content="<|endoftext|>")]
    with open(os.path.join(tmp, "tokenizer.json"), "w") as f:
        json.dump(dict(model=dict(vocab=vocab, merges=["f u", "n c", "fu nc"]), added_tokens=added), f)
    b = BPE(tmp)
    assert list(b.split("func a1(x) {\n\n\treturn  'tis}\n")) == ["func", " a", "1", "(x", ")", " {\n\n", "\treturn", " ", " '", "tis", "}\n"]
    assert b.encode("func") == [257] and b.encode("fun") == [256, ord("n")]


def test_files(tmp):
    p = os.path.join(tmp, "x.safetensors")
    t = {"a": torch.randn(3, 4), "b": torch.randn(5).bfloat16(), "c": torch.arange(7)}
    write_safetensors(p, t)
    r = read_safetensors(p)
    assert all(torch.equal(r[k], t[k]) for k in t)
    golden = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "testdata", "golden")
    if os.path.isdir(golden):
        for n in sorted(os.listdir(golden)):
            if n in ("qwen35", "qwen3") and os.path.exists(os.path.join(golden, n, "model.gguf")):
                load_target(os.path.join(golden, n, "model.gguf"))
                log("  loads", n)


def main():
    t = time.time()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as tmp:
        test_files(tmp)
        test_tokens(tmp)
        test_delta_rule()
        for arch in ("qwen3_5", "qwen3"):
            test_arch(arch, tmp)
    log(f"ok, {time.time()-t:.0f} s")


if __name__ == "__main__":
    main()
