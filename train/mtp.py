"""Train a block for multi-token prediction (NextN) for a qwen3_5 target.

    python mtp.py --target target.gguf --prompts prompts.u16.xz --dev dev.u16.xz --minutes 6 --out run

Text, anchors, loss and schedule are those of drafter.py.  Only the network differs: a chain of steps, each of which reads the
state that the one before made, as in decoding.  What is learned goes back through all of them.
The result is a checkpoint of the block alone; `strobe convert --mtp-only` makes a drafter of it.
"""
import argparse

import torch
import torch.nn.functional as F

import drafter
from model import MTP, block_mask


def arguments(argv=None):
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    drafter.schedule_arguments(ap)
    ap.add_argument("--ahead", type=int, default=6, help="steps of a chain")
    ap.set_defaults(gamma=4.0, anchors=32)
    return ap.parse_args(argv)


class Trainer(drafter.Trainer):
    name = "mtp"

    def network(self, c):
        return MTP(c, self.a.ahead + 1), []             # the final states, which every pool has, are enough

    def loss(self, pool, rows, anc):
        """loss of the chains at anc (B,A) of the pool's rows, and per chain the tokens per target step"""
        B, A = anc.shape
        n = self.n - 1
        with torch.no_grad():
            x, hid = pool.x[rows], pool.hid[rows]
            pos = anc[..., None] + self.kk                                              # B,A,n+1
            tok = x.gather(1, pos.view(B, -1)).view(B, A, n + 1)
            at = lambda p: hid.gather(1, p.reshape(B, -1, 1).expand(-1, -1, hid.shape[-1]))
            lab = tok[..., 1:].reshape(B * A, n)
            th = at(pos[..., :-1]).view(B * A, n, -1)
            seen, valid = block_mask(anc, pool.T, n)[0], torch.ones(B * A, n, dtype=torch.bool, device=self.dev)
            decay = torch.exp(-self.kk[:-1].float() / self.a.gamma)
        embed = lambda ids: F.embedding(ids, self.emb)
        h = at(anc - 1).requires_grad_()                # one compiled step serves the first one, too
        h = self.draft.chain(embed, tok[..., 0], h, anc, n, (embed(x), hid), seen, lambda k, _: tok[..., k + 1])
        loss, al, ok = self.loss_fn(h.view(B * A, n, -1), th, self.E, None, lab, decay, valid, self.hard, self.reach, self.a.hard < 1)
        return loss, al.view(B, A), ok


def main(argv=None):
    return drafter.main(argv, arguments, Trainer)


if __name__ == "__main__":
    main()
