package dflash

import (
	"fmt"
	"math"

	"strobe/internal/backend"
	"strobe/internal/draft"
	"strobe/internal/gguf"
	"strobe/internal/nn"
)

// Draft guesses for several sequences in one pass, with up to top candidates per position.
func (d *Drafter) Draft(reqs []draft.Request, top int) (out []draft.Proposal, err error) {
	defer nn.Catch(&err)
	if d.bad != nil || len(reqs) == 0 {
		return nil, d.bad
	}
	top = max(1, top)
	rule := d.trial.rule()
	p, err := d.forward(reqs, d.firstSlot(), rule)
	if err != nil {
		return nil, err
	}
	switch {
	case d.markov != nil:
		sure := d.markov.walk(d, p, reqs)
		out = d.best(p, reqs, top)
		d.cut(out, func(r, i int) float32 { return sure[p.row(r, i)] })
	case d.selector != nil:
		var sure func(r, i int) float32
		out, sure = d.selector.walk(d, p, reqs, top)
		d.cut(out, sure)
	default:
		out = d.best(p, reqs, top)
		d.cut(out, func(r, i int) float32 { return exp32(out[r].At[i][0].LogP) })
	}
	if err := d.mem.Sync(); err != nil { // report it here: the verifying pass has not failed
		return nil, err
	}
	if err := d.checkNumbers(out); err != nil {
		return nil, err
	}
	d.trial.guess(reqs, out, rule)
	return out, nil
}

// best turns the logits of a pass into candidates by probability.
func (d *Drafter) best(p *pass, reqs []draft.Request, top int) []draft.Proposal {
	ids, logp := d.top(p, top)
	p.End()
	best, lp := p.Backend.Ints(ids), p.Read(logp)
	out := make([]draft.Proposal, len(reqs))
	for r := range reqs {
		at := make([][]draft.Candidate, reqs[r].N)
		for i := range at {
			row := p.row(r, i) * top
			for j := range top {
				at[i] = append(at[i], draft.Candidate{ID: d.targetID(best[row+j]), LogP: lp[row+j]})
			}
		}
		out[r] = draft.Proposal{At: at}
	}
	return out
}

// top begins a step that finds the best candidates of every row of a pass.
func (d *Drafter) top(p *pass, top int) (ids backend.Ints, logp backend.Tensor) {
	n := p.logits.Rows
	ids, logp = p.NewInts(n*top), p.New(n, top)
	p.BeginStep(nil)
	if d.logitScale != 1 && d.selector != nil {
		p.Scale(p.logits, p.logits, d.logitScale)
	}
	if d.softcap > 0 {
		p.Softcap(p.logits, d.softcap)
	}
	p.TopK(ids, logp, p.logits, top)
	return ids, logp
}

// byOutput binds a matrix that has a row for each of the target's tokens with the rows of the drafter's outputs
// instead: what the device chose is looked up without asking the host which token it is.
func (d *Drafter) byOutput(l *nn.Loader, name string, cols int) backend.Weight {
	t := l.Tensor(name, cols, d.target.Vocab)
	if d.d2t == nil || l.Err != nil {
		return l.Bind(t)
	}
	return l.Bind(nn.PickRows(t, d.d2t))
}

// targetID is the target's id of an output, -1 for none.
func (d *Drafter) targetID(id int32) int32 {
	if d.d2t == nil {
		return id
	}
	if id < 0 || int(id) >= len(d.d2t) { // ids of a failed device are undefined
		return -1
	}
	return d.d2t[id]
}

// cut ends every proposal before its first guess below the wanted probability.
func (d *Drafter) cut(ps []draft.Proposal, sure func(r, i int) float32) {
	if d.pMin <= 0 {
		return
	}
	for r := range ps {
		for i := range ps[r].At {
			if sure(r, i) < d.pMin {
				ps[r].Cut(i)
				break
			}
		}
	}
}

func exp32(x float32) float32 { return float32(math.Exp(float64(x))) }

// checkNumbers looks for the cause when a probability is not a number. Bad weights are an error; bad features of the
// target are not, the guesses are just not used.
func (d *Drafter) checkNumbers(ps []draft.Proposal) error {
	for _, p := range ps {
		for _, c := range p.At {
			if lp := c[0].LogP; lp != lp && !d.scanned {
				d.scanned = true
				d.bad = draft.CheckWeights(d.file)
				return d.bad
			}
		}
	}
	return nil
}

// Check says what Open would refuse in a file, or what would make its guesses useless, as far as that is known without
// the target.
func Check(f *gguf.File, d *Description) error {
	switch {
	case d.Block < minBlock || d.Block > maxBlock:
		return fmt.Errorf("%s: a block of %d tokens; want %d to %d", f.Path(), d.Block, minBlock, maxBlock)
	case d.Mask < 0:
		return fmt.Errorf("%s: no mask token", f.Path())
	}
	for _, key := range []string{"attention.layer_norm_rms_epsilon", "rope.freq_base", "attention.scale"} {
		if v, ok, _ := f.Float(f.Arch() + "." + key); ok && v-v != 0 {
			return fmt.Errorf("%s: key %s.%s is %v", f.Path(), f.Arch(), key, v)
		}
	}
	return draft.CheckWeights(f)
}
