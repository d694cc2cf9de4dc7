package sample

import (
	"cmp"
	"math"
	"slices"

	"strobe/internal/weight"
)

var negInf = float32(math.Inf(-1))

// Argmax returns the id of the largest logit, the lowest among equals, or -1 if
// all are NaN or -Inf.
func Argmax(logits []float32) int32 {
	best, id := negInf, int32(-1)
	at := 0
	for ; at+8 <= len(logits); at += 8 {
		// Nearly always nothing in a row of eight is larger; asking for all of them at once takes a third of the time.
		// Every comparison is false for NaN.
		x := logits[at : at+8 : at+8]
		if !(x[0] > best || x[1] > best || x[2] > best || x[3] > best || x[4] > best || x[5] > best || x[6] > best ||
			x[7] > best) {
			continue
		}
		for i, x := range x {
			if x > best {
				best, id = x, int32(at+i)
			}
		}
	}
	for ; at < len(logits); at++ {
		if x := logits[at]; x > best {
			best, id = x, int32(at)
		}
	}
	return id
}

// byLogit orders candidates: most likely first, lower id among equals.
func byLogit(a, b Candidate) int {
	if a.Logit != b.Logit {
		return cmp.Compare(b.Logit, a.Logit)
	}
	return cmp.Compare(a.ID, b.ID)
}

func on(p float32) bool { return p > 0 && p < 1 }

// truncates reports whether any step leaves tokens of a row of n out.
func (s *Sampler) truncates(n int) bool {
	return s.p.TopK > 0 && s.p.TopK < n || on(s.p.TopP) || s.p.MinP > 0 || on(s.p.TypicalP)
}

// truncate returns the candidates left by steps 5 to 8, in no particular but always
// the same order.
func (s *Sampler) truncate(logits []float32) []Candidate {
	c := s.cand[:0]
	if s.p.TopK > 0 && s.p.TopK < len(logits) {
		c = topK(c, logits, s.p.TopK)
		s.cand = c // keeps the memory; the steps below only shorten c
		return s.narrow(c, weighTop(c), true)
	}
	c, total := s.gather(c, logits)
	s.cand = c
	return s.narrow(c, total, false)
}

// weighTop sets the weights of candidates, of which the first is the best, and returns their sum.
func weighTop(c []Candidate) (total uint64) {
	for i := range c {
		c[i].P = weight.Exp(c[i].Logit - c[0].Logit)
		total += weight.Units(c[i].P)
	}
	return total
}

// narrow is steps 6 to 8 on candidates that were chosen from a total weight. Those that are sorted begin with the most
// likely one.
func (s *Sampler) narrow(c []Candidate, total uint64, sorted bool) []Candidate {
	if len(c) == 0 {
		return c
	}
	top := best(c)
	if on(s.p.TypicalP) {
		// The surprise of a token is top - logit plus a constant, so nearness to the
		// expected surprise needs no logarithm.
		mean, sum := 0.0, 0.0
		for _, x := range c {
			mean += float64(float64(x.P) * float64(top-x.Logit))
			sum += float64(x.P)
		}
		c, _ = s.keepMass(c, share(s.p.TypicalP, total), order{top, float32(mean / sum), true})
		total = 0
		for _, x := range c {
			total += weight.Units(x.P)
		}
	}
	switch {
	case !on(s.p.TopP):
	case sorted:
		c, _ = keepFirst(c, share(s.p.TopP, total))
	default:
		c, _ = s.keepMass(c, share(s.p.TopP, total), order{top: top})
	}
	return s.minP(c)
}

// keepFirst is keepMass for candidates in the order of their logits.
func keepFirst(c []Candidate, want uint64) ([]Candidate, bool) {
	sum := uint64(0)
	for i := range c {
		if sum += weight.Units(c[i].P); sum >= want {
			return c[:i+1], true
		}
	}
	return c, false
}

// share is the part p of a total.
func share(p float32, total uint64) uint64 { return uint64(float64(p) * float64(total)) }

// minP is step 8.
func (s *Sampler) minP(c []Candidate) []Candidate {
	if !(s.p.MinP > 0) {
		return c
	}
	heaviest := float32(0)
	for _, x := range c {
		heaviest = max(heaviest, x.P)
	}
	least := min(s.p.MinP, 1) * heaviest
	n := 0
	for _, x := range c {
		if x.P >= least {
			c[n] = x
			n++
		}
	}
	return c[:n]
}

// gather appends the tokens of the row that can survive, with their weights, and
// returns the weight of all.
func (s *Sampler) gather(c []Candidate, logits []float32) ([]Candidate, uint64) {
	top := rowMax(logits)
	if top == negInf {
		return c, 0
	}
	if !on(s.p.TopP) && !on(s.p.TypicalP) { // min-p alone
		least := min(s.p.MinP, 1)
		cut := lnBelow(least)
		for i, x := range logits {
			if d := x - top; d > cut {
				if w := weight.Exp(d); w >= least {
					c = append(c, Candidate{int32(i), x, w})
				}
			}
		}
		return c, 0
	}
	w := s.weights(len(logits))
	total := uint64(0)
	for i, x := range logits {
		v := weight.Exp(x - top)
		w[i] = v
		total += weight.Units(v)
	}
	least := float32(0)
	if !on(s.p.TypicalP) {
		// All tokens lighter than (1-p)/n weigh less than 1-p together, so the top-p
		// set is complete before the first of them.
		all := float64(total) / (1 << weight.UnitBits)
		least = float32(float64(1-s.p.TopP) * all / float64(len(logits)) * (1 - 1e-6))
		least = max(least, min(s.p.MinP, 1))
	}
	for i, v := range w {
		if v >= least && v > 0 {
			c = append(c, Candidate{int32(i), logits[i], v})
		}
	}
	return c, total
}

// lnBelow is a little less than the logarithm of p, -87 at the least: what it cuts
// off weighs less than p for sure.
func lnBelow(p float32) float32 {
	return max(-87, float32(math.Log(float64(p)))-0.01)
}

// best returns the largest logit of c.
func best(c []Candidate) float32 {
	top := negInf
	for i := range c {
		top = max(top, c[i].Logit)
	}
	return top
}

// order ranks candidates: by logit, or by the distance of top - logit from mean.
type order struct {
	top, mean float32
	typical   bool
}

// key is smaller for what comes earlier. Non-negative floats order like their bits.
func (o order) key(x Candidate) uint32 {
	d := o.top - x.Logit
	if o.typical {
		d -= o.mean
	}
	return math.Float32bits(d) &^ (1 << 31)
}

func (o order) compare(a, b Candidate) int {
	if c := cmp.Compare(o.key(a), o.key(b)); c != 0 {
		return c
	}
	if !o.typical && a.Logit != b.Logit {
		return cmp.Compare(b.Logit, a.Logit)
	}
	return cmp.Compare(a.ID, b.ID)
}

// keyShift makes buckets of about 1.5 % in the key.
const keyShift = 17

// keepMass keeps the candidates that come first in the order until their weight
// reaches want, including the one that reaches it, and reports whether they do. Sorting everything would take
// tens of milliseconds on a flat row, so the weight is summed in buckets of the
// key and only the bucket in which the limit falls is sorted.
func (s *Sampler) keepMass(c []Candidate, want uint64, o order) ([]Candidate, bool) {
	edge, sum := c, uint64(0)
	if len(c) > 256 {
		if s.bucket == nil {
			s.bucket = make([]uint64, 1<<(31-keyShift))
		}
		clear(s.bucket)
		for _, x := range c {
			s.bucket[o.key(x)>>keyShift] += weight.Units(x.P)
		}
		b := uint32(0)
		for int(b) < len(s.bucket)-1 && sum+s.bucket[b] < want {
			sum += s.bucket[b]
			b++
		}
		s.edge = s.edge[:0]
		for _, x := range c {
			if o.key(x)>>keyShift == b {
				s.edge = append(s.edge, x)
			}
		}
		edge = s.edge
	} else {
		s.edge = append(s.edge[:0], c...)
		edge = s.edge
	}
	slices.SortFunc(edge, o.compare)
	for _, last := range edge {
		if sum += weight.Units(last.P); sum >= want {
			n := 0
			for _, x := range c {
				if o.compare(x, last) <= 0 {
					c[n] = x
					n++
				}
			}
			return c[:n], true
		}
	}
	return c, false // units that were cut off stand between the sum and want, or candidates are missing
}

// topK appends the k largest logits, most likely first.
func topK(c []Candidate, logits []float32, k int) []Candidate {
	worse := func(a, b Candidate) bool { return byLogit(a, b) > 0 }
	i := 0
	for ; i < len(logits) && len(c) < k; i++ {
		if logits[i] > negInf {
			c = append(c, Candidate{ID: int32(i), Logit: logits[i]})
		}
	}
	for j := len(c)/2 - 1; j >= 0; j-- {
		siftDown(c, j, worse)
	}
	if len(c) > 0 {
		least := c[0].Logit
		for ; i < len(logits); i++ {
			if logits[i] > least { // an equal one has a higher id and stays out
				c[0] = Candidate{ID: int32(i), Logit: logits[i]}
				siftDown(c, 0, worse)
				least = c[0].Logit
			}
		}
	}
	slices.SortFunc(c, byLogit)
	return clampInf(c)
}

func siftDown(c []Candidate, i int, less func(a, b Candidate) bool) {
	for {
		k := 2*i + 1
		if k >= len(c) {
			return
		}
		if k+1 < len(c) && less(c[k+1], c[k]) {
			k++
		}
		if !less(c[k], c[i]) {
			return
		}
		c[i], c[k] = c[k], c[i]
		i = k
	}
}

// appendFinite appends every possible token in id order.
func appendFinite(c []Candidate, logits []float32) []Candidate {
	for i, x := range logits {
		if x > negInf {
			c = append(c, Candidate{ID: int32(i), Logit: x})
		}
	}
	return clampInf(c)
}

// clampInf makes +Inf finite, so that differences are numbers.
func clampInf(c []Candidate) []Candidate {
	for i := range c {
		c[i].Logit = min(c[i].Logit, math.MaxFloat32)
	}
	return c
}

// rowMax returns the largest logit. It makes +Inf finite and NaN -Inf in the row.
func rowMax(logits []float32) float32 {
	top := negInf
	for i, x := range logits {
		if x > top {
			top = x
		} else if x != x {
			logits[i] = negInf
		}
	}
	if top > math.MaxFloat32 {
		for i, x := range logits {
			logits[i] = min(x, math.MaxFloat32)
		}
		top = math.MaxFloat32
	}
	return top
}

func (s *Sampler) weights(n int) []float32 {
	if cap(s.w) < n {
		s.w = make([]float32, n)
	}
	return s.w[:n]
}

// weigh sets P to the weight at the sampler's temperature and returns the sum.
func (s *Sampler) weigh(c []Candidate) float64 {
	top, total := best(c), 0.0
	for i := range c {
		c[i].P = 1
		if s.p.Temp > 0 {
			c[i].P = weight.Exp((c[i].Logit - top) / s.p.Temp)
		}
		total += float64(c[i].P)
	}
	return total
}

// draw returns the candidate at the fraction u of the total weight.
func draw(c []Candidate, total, u float64) int32 {
	id, sum, target := int32(-1), 0.0, u*total
	for i := range c {
		if c[i].P > 0 {
			id = c[i].ID
			if sum += float64(c[i].P); sum > target {
				break
			}
		}
	}
	return id
}

// drawAll draws from the whole row without collecting candidates.
func (s *Sampler) drawAll(logits []float32, u float64) int32 {
	top := rowMax(logits)
	if top == negInf {
		return -1
	}
	w := s.weights(len(logits))
	temp, total := s.p.Temp, 0.0
	for i, x := range logits {
		v := weight.Exp((x - top) / temp)
		w[i] = v
		total += float64(v)
	}
	id, sum, target := int32(-1), 0.0, u*total
	for i, x := range w {
		if x > 0 {
			id = int32(i)
			if sum += float64(x); sum > target {
				break
			}
		}
	}
	return id
}
