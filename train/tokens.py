"""Text to token files with a Hugging Face byte-level BPE tokenizer.json, without other packages.

    python tokens.py --tokenizer target_folder --out prompts.u16 file.go folder/ ...

Every file is one document, followed by --eos.  Folders are walked for --ext.  The `tokenizers` package is used when it is
installed; the encoder here is for the qwen family's split pattern and slow, but the same (--check compares them).
"""
import argparse
import json
import os
import unicodedata

import numpy as np


def byte_chars():
    """the characters that stand for bytes in byte-level vocabularies (GPT-2's table)"""
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    out, n = {}, 0
    for b in range(256):
        if b in keep:
            out[b] = chr(b)
        else:
            out[b] = chr(256 + n)
            n += 1
    return out


class BPE:
    def __init__(self, path):
        tj = json.load(open(os.path.join(path, "tokenizer.json") if os.path.isdir(path) else path))
        m = tj["model"]
        self.vocab = m["vocab"]
        self.rank = {tuple(p.split(" ") if isinstance(p, str) else p): i for i, p in enumerate(m["merges"])}
        self.added = {t["content"]: t["id"] for t in tj["added_tokens"]}
        self.b = byte_chars()
        self.cache = {}
        # Qwen3.5 counts marks (\\p{M}) as letters, Qwen2/3 do not
        self.marks = "\\p{M}" in json.dumps(tj.get("pre_tokenizer"))

    def kind(self, c):
        """L letter, N number, S space, P other"""
        if c.isascii():
            return "L" if c.isalpha() else "N" if c.isdigit() else "S" if c in " \t\n\r\x0b\x0c" else "P"
        k = unicodedata.category(c)[0]
        if k == "L" or (k == "M" and self.marks):
            return "L"
        return "N" if k == "N" else "S" if c.isspace() else "P"

    def split(self, t):
        """the pieces of the qwen split pattern:
        '(s|t|re|ve|m|ll|d) | [^\\r\\n L N]? L+ | N | ' '? [^ S L N]+ [\\r\\n]* | S* [\\r\\n]+ | S+ (?!not S) | S+"""
        i, n, K = 0, len(t), [self.kind(c) for c in t]
        while i < n:
            j = i
            if t[i] == "'":
                for s in ("re", "ve", "ll", "s", "t", "m", "d"):
                    if t[i + 1:i + 1 + len(s)].lower() == s:
                        j = i + 1 + len(s)
                        break
            if j == i:
                k = i if K[i] == "L" else i + 1 if K[i] != "N" and t[i] not in "\r\n" else n
                if k < n and K[k] == "L":
                    j = k
                    while j < n and K[j] == "L":
                        j += 1
            if j == i and K[i] == "N":
                j = i + 1
            if j == i:
                k = i + 1 if t[i] == " " else i
                if k < n and K[k] == "P":
                    j = k
                    while j < n and K[j] == "P":
                        j += 1
                    while j < n and t[j] in "\r\n":
                        j += 1
            if j == i:
                e, nl = i, -1
                while e < n and K[e] == "S":
                    if t[e] in "\r\n":
                        nl = e + 1
                    e += 1
                j = nl if nl > 0 else e if e == n or e - 1 == i else e - 1
            yield t[i:j]
            i = j

    def word(self, w):
        r = self.cache.get(w)
        if r is None:
            s = [self.b[x] for x in w.encode()]
            while len(s) > 1:
                k = min(range(len(s) - 1), key=lambda q: self.rank.get((s[q], s[q + 1]), 1 << 60))
                if (s[k], s[k + 1]) not in self.rank:
                    break
                s[k:k + 2] = [s[k] + s[k + 1]]
            r = self.cache[w] = [self.vocab[x] for x in s]
        return r

    def encode(self, text):
        return [i for w in self.split(unicodedata.normalize("NFC", text)) for i in self.word(w)]


def main(argv=None):
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--tokenizer", required=True, help="folder with tokenizer.json")
    ap.add_argument("--out", required=True, help=".u16 or .u32 file")
    ap.add_argument("--eos", default="<|endoftext|>", help="token after every document")
    ap.add_argument("--ext", nargs="*", default=[".go", ".txt", ".md"])
    ap.add_argument("--max-tokens", type=int, default=1 << 62)
    ap.add_argument("--check", action="store_true", help="compare with the tokenizers package")
    ap.add_argument("paths", nargs="+")
    a = ap.parse_args(argv)
    bpe = BPE(a.tokenizer)
    try:
        from tokenizers import Tokenizer
        fast = Tokenizer.from_file(os.path.join(a.tokenizer, "tokenizer.json"))
    except ImportError:
        fast = None
    eos = bpe.added[a.eos]
    files = []
    for p in a.paths:
        files += [p] if os.path.isfile(p) else sorted(os.path.join(d, f) for d, _, fs in os.walk(p) for f in fs if f.endswith(tuple(a.ext)))
    out = []
    for f in files:
        t = open(f, encoding="utf-8", errors="replace").read()
        ids = fast.encode(t, add_special_tokens=False).ids if fast else bpe.encode(t)
        if a.check and fast and bpe.encode(t) != ids:
            raise SystemExit(f"{f}: encoders differ")
        out += ids + [eos]
        if len(out) > a.max_tokens:
            break
    np.array(out, dtype="<u4" if a.out.endswith(".u32") else "<u2").tofile(a.out)
    print(f"{a.out}: {len(files)} documents, {len(out)} tokens")


if __name__ == "__main__":
    main()
