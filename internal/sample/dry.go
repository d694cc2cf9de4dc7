package sample

import (
	"bytes"
	"math"
)

// dryState is the DRY penalty with its working memory.
type dryState struct {
	on         bool
	multiplier float64
	base       float64
	allowed    int
	breaker    map[int32]struct{} // never changed after init, shared by copies

	match   []int32 // see find
	longest []int32 // by token id: longest repetition the token would extend
	touched []int32 // ids with longest > 0
}

func (d *dryState) init(p DRYParams, vocab int) {
	if !(p.Multiplier > 0) || !(p.Base >= 0) {
		return
	}
	*d = dryState{on: true, multiplier: float64(p.Multiplier), base: float64(p.Base), allowed: p.AllowedLength}
	if p.Base == 0 {
		d.base = DefaultDRYBase
	}
	if p.AllowedLength <= 0 {
		d.allowed = DefaultDRYAllowedLength
	}
	d.breaker = make(map[int32]struct{}, len(p.Breakers))
	for _, id := range p.Breakers {
		d.breaker[id] = struct{}{}
	}
	d.longest = make([]int32, vocab)
}

func (d *dryState) copyFrom(src *dryState) {
	match, longest, touched := d.match, d.longest, d.touched
	*d = *src
	d.match, d.longest, d.touched = match, longest, touched[:0]
	if len(d.longest) != len(src.longest) { // longest is all zero between calls
		d.longest = make([]int32, len(src.longest))
	}
}

// maxDRY bounds the penalty: enough to rule a token out as long as there is any
// other, not enough to make a row that has no valid token.
const maxDRY = 1e30

// apply subtracts the penalty. tokens is the window, newest last.
func (d *dryState) apply(logits []float32, tokens []int32) {
	d.find(tokens)
	for _, id := range d.touched {
		if int(id) < len(logits) {
			logits[id] -= d.of(id)
		}
	}
	d.reset()
}

// of is the penalty of a token, after find.
func (d *dryState) of(id int32) float32 {
	if n := d.longest[id]; n > 0 {
		return float32(d.penalty(int(n)))
	}
	return 0
}

// reset forgets what find has found.
func (d *dryState) reset() {
	for _, id := range d.touched {
		d.longest[id] = 0
	}
	d.touched = d.touched[:0]
}

// find sets longest for the tokens that would extend a repetition.
func (d *dryState) find(tokens []int32) {
	n := len(tokens)
	limit := 0 // the newest tokens up to a breaker: the longest repetition possible
	for limit < n {
		if _, ok := d.breaker[tokens[n-1-limit]]; ok {
			break
		}
		limit++
	}
	if limit < d.allowed {
		return
	}
	// match[i] is how many tokens before position n-i agree with the newest ones: the
	// Z function of the window read backwards, linear in its length.
	if cap(d.match) < n {
		d.match = make([]int32, n+n/2)
	}
	z := d.match[:n]
	at := func(i int) int32 { return tokens[n-1-i] }
	left, right := 0, 0
	for i := 1; i < n; i++ {
		k := 0
		if i < right {
			k = min(right-i, int(z[i-left]))
		}
		for i+k < n && at(k) == at(i+k) {
			k++
		}
		if i+k > right {
			left, right = i, i+k
		}
		z[i] = int32(k)
		if k = min(k, limit); k < d.allowed {
			continue
		}
		id := at(i - 1)
		if id < 0 || int(id) >= len(d.longest) {
			continue
		}
		if d.longest[id] == 0 {
			d.touched = append(d.touched, id)
		}
		d.longest[id] = max(d.longest[id], int32(k))
	}
}

// penalty is multiplier * base^(n-allowed), bounded. Powers by multiplication
// round the same everywhere.
func (d *dryState) penalty(n int) float64 {
	p, b := d.multiplier, d.base
	for e := n - d.allowed; e > 0; e >>= 1 {
		if e&1 != 0 {
			p *= b
		}
		b *= b
	}
	if !(p < maxDRY) { // also Inf and, from 0*Inf, NaN
		if d.base < 1 {
			return 0
		}
		return maxDRY
	}
	return math.Max(p, 0)
}

// BreakerTokens returns the tokens whose text contains one of the breakers, for
// DRYParams.Breakers. piece gives the text of a token.
func BreakerTokens(vocab int, piece func(id int32) []byte, breakers []string) []int32 {
	var ids []int32
	for id := range int32(vocab) {
		text := piece(id)
		for _, b := range breakers {
			if b != "" && bytes.Contains(text, []byte(b)) {
				ids = append(ids, id)
				break
			}
		}
	}
	return ids
}
