package tokenizer

// pairQueue yields keys in increasing order. Merging a long run of one character,
// the input that takes longest, produces keys that are nearly sorted: a few
// sequences, each increasing. Those go to first-in-first-out runs, which cost next
// to nothing; keys that fit no run go to a heap.
type pairQueue struct {
	runs [4]keyRun
	heap []uint64
}

// keyRun holds increasing keys; those before head are used up.
type keyRun struct {
	keys []uint64
	head int
}

func (q *pairQueue) reset() {
	for i := range q.runs {
		q.runs[i].keys, q.runs[i].head = q.runs[i].keys[:0], 0
	}
	q.heap = q.heap[:0]
}

// push adds a node with its pair (see symbol); one that does not merge is ignored.
func (q *pairQueue) push(pair uint64, node int32) {
	if pair >= noMerge {
		return
	}
	key := pair&^0xffffffff | uint64(node)
	for i := range q.runs {
		r := &q.runs[i]
		switch n := len(r.keys); {
		case r.head == n:
			r.keys, r.head = append(r.keys[:0], key), 0
			return
		case key >= r.keys[n-1]:
			r.keys = append(r.keys, key)
			return
		}
	}
	q.heap = heapPush(q.heap, key)
}

func (q *pairQueue) pop() (uint64, bool) {
	least, from := ^uint64(0), -1
	for i := range q.runs {
		if r := &q.runs[i]; r.head < len(r.keys) && r.keys[r.head] < least {
			least, from = r.keys[r.head], i
		}
	}
	if len(q.heap) > 0 && q.heap[0] < least {
		least = q.heap[0]
		q.heap = heapPop(q.heap)
		return least, true
	}
	if from < 0 {
		return 0, false
	}
	q.runs[from].head++
	return least, true
}

// A four-way heap: half the levels of a binary one, and a node's children share a
// cache line.

func heapDown(h []uint64, i int) {
	x := h[i]
	for {
		c := 4*i + 1
		if c >= len(h) {
			break
		}
		m := c
		for k := c + 1; k < min(c+4, len(h)); k++ {
			if h[k] < h[m] {
				m = k
			}
		}
		if h[m] >= x {
			break
		}
		h[i] = h[m]
		i = m
	}
	h[i] = x
}

func heapPop(h []uint64) []uint64 {
	n := len(h) - 1
	h[0] = h[n]
	h = h[:n]
	if n > 1 {
		heapDown(h, 0)
	}
	return h
}

func heapPush(h []uint64, x uint64) []uint64 {
	h = append(h, x)
	i := len(h) - 1
	for i > 0 {
		p := (i - 1) / 4
		if h[p] <= x {
			break
		}
		h[i] = h[p]
		i = p
	}
	h[i] = x
	return h
}
