package sample

import (
	"cmp"
	"math"
	"slices"
)

var negInf = float32(math.Inf(-1))

// Argmax returns the id of the largest logit, the lowest among equals, or -1 if
// all are NaN or -Inf.
func Argmax(logits []float32) int32 {
	best, id := negInf, int32(-1)
	for i, x := range logits {
		if x > best { // false for NaN
			best, id = x, int32(i)
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

// truncate returns the candidates left by steps 5 to 8, most likely first.
func (s *Sampler) truncate(logits []float32) []Candidate {
	c := s.cand[:0]
	switch {
	case s.p.TopK > 0 && s.p.TopK < len(logits):
		c = topK(c, logits, s.p.TopK)
	case on(s.p.TypicalP):
		c = appendFinite(c, logits)
	default:
		// Without a step that fixes the candidates first, top-p and min-p can
		// choose directly from the row and sort only what they keep.
		c = s.nucleus(c, logits)
		s.cand = c
		return c
	}
	s.cand = c // keep the memory even though steps below shorten c
	if on(s.p.TypicalP) {
		c = typical(c, float64(s.p.TypicalP))
	}
	if on(s.p.TopP) || s.p.MinP > 0 {
		total := 0.0
		for i := range c {
			c[i].P = expNeg(c[i].Logit - c[0].Logit)
			total += float64(c[i].P)
		}
		c = s.cut(c, total)
	}
	return c
}

// cut applies top-p and min-p to sorted candidates whose P is the weight relative
// to the best; total is the weight of everything the candidates were chosen from.
func (s *Sampler) cut(c []Candidate, total float64) []Candidate {
	if on(s.p.TopP) {
		want, sum := float64(s.p.TopP)*total, 0.0
		for i := range c {
			if sum += float64(c[i].P); sum >= want {
				c = c[:i+1]
				break
			}
		}
	}
	if s.p.MinP > 0 {
		n := 1
		for n < len(c) && c[n].P >= s.p.MinP {
			n++
		}
		c = c[:min(n, len(c))]
	}
	return c
}

// nucleus is top-p and min-p on a whole row.
func (s *Sampler) nucleus(c []Candidate, logits []float32) []Candidate {
	top := rowMax(logits)
	if top == negInf {
		return c
	}
	least := s.p.MinP // weights below cannot survive
	total := 0.0
	if on(s.p.TopP) {
		w := s.weights(len(logits))
		for i, x := range logits {
			w[i] = expNeg(x - top)
			total += float64(w[i])
		}
		// All tokens lighter than this weigh less than 1-p together, so the nucleus
		// is complete before the first of them.
		least = max(least, float32(float64(1-s.p.TopP)*total/float64(len(logits))*(1-1e-6)))
		for i, x := range w {
			if x >= least && x > 0 {
				c = append(c, Candidate{int32(i), logits[i], x})
			}
		}
	} else {
		for i, x := range logits {
			if x -= top; x > -87 {
				if w := expNeg(x); w >= least {
					c = append(c, Candidate{int32(i), logits[i], w})
				}
			}
		}
	}
	if len(c) == 0 { // MinP > 1
		id := Argmax(logits)
		c = append(c, Candidate{id, logits[id], 1})
	}
	slices.SortFunc(c, byLogit)
	return s.cut(c, total)
}

// typical keeps the candidates whose surprise is nearest to the expected one until
// they reach mass p, and returns them most likely first. The surprise of a token is
// top - logit plus a constant, so no logarithm is needed.
func typical(c []Candidate, p float64) []Candidate {
	if len(c) < 2 {
		return c
	}
	top := c[0].Logit
	for _, x := range c {
		top = max(top, x.Logit)
	}
	total, mean := 0.0, 0.0
	for i := range c {
		c[i].P = expNeg(c[i].Logit - top)
		total += float64(c[i].P)
		mean += float64(float64(c[i].P) * float64(top-c[i].Logit))
	}
	mean /= total
	far := func(x Candidate) float64 { return math.Abs(float64(top-x.Logit) - mean) }
	less := func(a, b Candidate) bool {
		if fa, fb := far(a), far(b); fa != fb {
			return fa < fb
		}
		return a.ID < b.ID
	}
	// A heap gives the nearest ones in order without sorting the vocabulary; they
	// collect at the end of c.
	for i := len(c)/2 - 1; i >= 0; i-- {
		siftDown(c, i, less)
	}
	h, sum := c, 0.0
	for len(h) > 0 {
		x := h[0]
		n := len(h) - 1
		h[0] = h[n]
		h[n] = x
		h = h[:n]
		siftDown(h, 0, less)
		if sum += float64(x.P); sum >= p*total {
			break
		}
	}
	kept := c[len(h):]
	slices.SortFunc(kept, byLogit)
	return c[:copy(c, kept)]
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

// weigh sets P to the weight at the sampler's temperature and returns the sum. The
// candidates are sorted.
func (s *Sampler) weigh(c []Candidate) float64 {
	total := 0.0
	for i := range c {
		c[i].P = s.weight(c[i].Logit - c[0].Logit)
		total += float64(c[i].P)
	}
	return total
}

func (s *Sampler) weight(x float32) float32 {
	if x == 0 || !(s.p.Temp > 0) {
		return 1
	}
	return expNeg(x / s.p.Temp)
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

// drawAll draws from the whole row, in id order, without sorting.
func (s *Sampler) drawAll(logits []float32, u float64) int32 {
	top := rowMax(logits)
	if top == negInf {
		return -1
	}
	w := s.weights(len(logits))
	total := 0.0
	for i, x := range logits {
		w[i] = s.weight(x - top)
		total += float64(w[i])
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

// expNeg is e^x for x <= 0, within 2e-7, and 0 below -87. It is written out so that
// it rounds the same on every platform: math.Exp does not, and the conversions keep
// multiplications and additions from being fused.
func expNeg(x float32) float32 {
	if !(x > -87) {
		return 0
	}
	const (
		log2e = 1.4426950408889634
		ln2Hi = 0.693359375
		ln2Lo = -2.12194440e-4
	)
	n := int32(float32(x*log2e) - 0.5) // x <= 0: nearest integer
	k := float32(n)
	r := x - float32(k*ln2Hi)
	r -= float32(k * ln2Lo)
	p := float32(1.9875691500e-4)
	p = float32(p*r) + 1.3981999507e-3
	p = float32(p*r) + 8.3334519073e-3
	p = float32(p*r) + 4.1665795894e-2
	p = float32(p*r) + 1.6666665459e-1
	p = float32(p*r) + 5.0000001201e-1
	p = float32(float32(p*r)*r) + r + 1
	return p * math.Float32frombits(uint32(n+127)<<23)
}
