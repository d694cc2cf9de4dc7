package backendtest

import (
	"fmt"
	"math"
	"slices"
)

// op is an operation on items that do not depend on each other: rows, blocks of rows or segments of sequences.
type op struct {
	items int
	// run computes the given items in one batch and returns what belongs to each of them. variant counts the runs: a
	// case uses it to take in-place forms in turn.
	run func(k *kit, items []int, variant int) [][]float32
	// want is an item by definition.
	want func(k *kit, item int) []float64
	// bound is the largest error, relative to the size of the value: what sizes says, or the size of the whole item.
	bound float64
	sizes func(k *kit, item int) []float64
	// strict: what becomes of NaN and infinities is part of the definition.
	strict bool
	// clean: no item is poisoned.
	clean bool
}

// most is the number of rows of the largest batch, with room for poisoned ones.
func (s *suite) most() int { return max(5, slices.Max(s.Rows)) }

// batches returns the sets of items to try: every size of batch, with changing members in changing order.
func (s *suite) batches(items int) [][]int {
	step := 1 // from one member to the next; has no common factor with items, so members differ
	for _, p := range []int{5, 7, 11} {
		if items%p != 0 {
			step = p
			break
		}
	}
	var list [][]int
	for i, n := range s.Rows {
		if n = min(n, items); n == items && i > 0 && len(list[len(list)-1]) == items {
			break
		}
		b := make([]int, n)
		for j := range b {
			b[j] = (3*n + j*step) % items
		}
		list = append(list, b)
	}
	return list
}

// upTo lists the items below n.
func upTo(n int) []int {
	v := make([]int, n)
	for i := range v {
		v[i] = i
	}
	return v
}

// obey checks an operation: its values, and the laws of batches, surroundings and poison.
func (k *kit) obey(o op) {
	k.Helper()
	all := upTo(o.items)
	k.layout, k.poison = layouts[0], nil
	whole := o.run(k, all, 0)
	if len(whole) != o.items {
		k.Fatalf("%d results for %d items", len(whole), o.items)
	}
	for i := range all {
		k.near(fmt.Sprint("item ", i), whole[i], o.want(k, i), o.bound, o.sizesOf(k, i))
	}
	for v, b := range append(k.batches(o.items), all, []int{o.items - 1}) {
		k.layout = layouts[(v+1)%len(layouts)]
		part := o.run(k, b, v+1)
		for i, item := range b {
			if !sameResult(part[i], whole[item]) {
				k.Errorf("item %d at place %d of the batch %v has other bits than in the whole one (layout %+v, run %d)",
					item, i, b, k.layout, v+1)
				return
			}
		}
	}
	if o.items > 3 && !o.clean {
		k.poisoned(o, all, whole)
	}
	k.layout, k.poison = layouts[0], nil
}

// poisoned runs the whole batch with NaN and infinities in three items.
func (k *kit) poisoned(o op, all []int, clean [][]float32) {
	k.Helper()
	inf := float32(math.Inf(1))
	k.poison = map[int]float32{1: float32(math.NaN()), 2: inf, o.items - 2: -inf}
	got := o.run(k, all, 0)
	for i := range all {
		if _, ok := k.poison[i]; !ok {
			if !sameResult(got[i], clean[i]) {
				k.Errorf("item %d changes when others hold NaN or infinities", i)
				return
			}
		} else if o.strict {
			what := fmt.Sprintf("item %d with %v in it", i, k.poison[i])
			k.near(what, got[i], o.want(k, i), o.bound, o.sizesOf(k, i))
		}
	}
}

func (o *op) sizesOf(k *kit, item int) []float64 {
	if o.sizes == nil {
		return nil
	}
	return o.sizes(k, item)
}

// near fails when a value is further from the wanted one than bound, relative to itself or to its size (nil: that of
// all of them), or when they differ in being a number.
func (k *kit) near(what string, got []float32, want []float64, bound float64, sizes []float64) {
	k.Helper()
	if len(got) != len(want) {
		k.Errorf("%s: %d values, want %d", what, len(got), len(want))
		return
	}
	sum, n := 0.0, 0
	for _, w := range want {
		if !math.IsNaN(w) && !math.IsInf(w, 0) {
			sum += w * w
			n++
		}
	}
	size := math.Sqrt(sum / float64(max(n, 1)))
	for i, w := range want {
		if sizes != nil {
			size = sizes[i]
		}
		g, scale := float64(got[i]), max(math.Abs(w), size)
		ok := math.Abs(g-w) <= bound*scale
		if math.IsNaN(w) {
			ok = math.IsNaN(g)
		} else if math.IsInf(w, 0) {
			ok = g == w
		}
		if !ok {
			k.Errorf("%s: value %d of %d is %v, want %v (bound %.1g of %.3g)", what, i, len(want), g, w, bound, scale)
			return
		}
	}
}

// equal fails when results that must have the same bits have not.
func (k *kit) equal(what string, got, want [][]float32) {
	k.Helper()
	if !slices.EqualFunc(got, want, sameResult) {
		k.Errorf("%s: other bits", what)
	}
}
