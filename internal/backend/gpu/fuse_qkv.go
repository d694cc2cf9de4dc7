package gpu

// qkvMatch is what stands between the products of an attention layer and attention: norms of heads, rotations, writing
// keys and values.
type qkvMatch struct {
	q, k, v headWork
	end     int // where keys and values are written
}

func (l *lowering) matchQKV(i int) (m qkvMatch, ok bool) {
	q, k, v := &m.q, &m.k, &m.v
	end := i
	for ; ; end++ {
		o := l.at(end)
		if o.kind != opRMSNorm && o.kind != opRoPE {
			break
		}
	}
	write := l.at(end)
	if write.kind != opKVWrite {
		return m, false
	}
	tokens := int(write.a.rows)
	k.dst, v.dst = write.a, write.b
	for j := i; j < end; j++ {
		o := l.ops[j]
		w := q
		switch {
		case sameRows(o.dst, k.dst):
			w = k
		case sameRows(o.dst, v.dst):
			w = v
		case q.dst.addr != 0 && !sameRows(o.dst, q.dst):
			return m, false
		default:
			q.dst = o.dst
		}
		if !w.add(o, tokens) {
			return m, false
		}
	}
	// The fused kernel norms queries and keys with weights and values without.
	if v.norm != nil && v.norm.v != 0 || k.norm != nil && k.norm.v == 0 || q.norm != nil && q.norm.v == 0 {
		return m, false
	}
	if k.rope == nil || v.rope != nil || q.dst.addr != 0 && q.rope == nil ||
		q.rope != nil && (q.rope.b != k.rope.b || q.rope.c != k.rope.c) || l.wanted(end, k.dst) || l.wanted(end, v.dst) {
		return m, false
	}
	m.end = end
	return m, true
}

// qkv launches it as one kernel, if the heads are those of the cache.
func (l *lowering) qkv(i int, m qkvMatch) int {
	q, k, v, write := m.q, m.k, m.v, l.ops[m.end]
	d := l.pool(write).Layout.Shapes[write.attn.layer]
	tokens := int(write.a.rows)
	c := QKV{Eps: 1, Cos: k.rope.b.addr, Sin: k.rope.c.addr, Half: int(k.rope.b.cols), Turn: int(k.rope.b.stride),
		Rows: tokens, KVHeads: d.Heads,
		Place: l.pool(write).Layout.Places[write.attn.layer]}
	c.Tables, _ = l.tables(write)
	set := func(w *headWork, to *HeadRows, n int, dim int) bool {
		src := w.dst
		if w.norm != nil {
			src = w.norm.a
			to.Norm, c.Eps = w.norm.v, w.norm.f
		}
		h := l.split(headsOf(src, tokens, n), tokens)
		to.In, to.Step = h.in, int32(h.step)
		return h.n == n && h.dim == dim
	}
	if q.dst.addr != 0 {
		c.Heads = int(q.rope.heads)
		c.Out, c.OutStride = q.dst.addr, c.Heads*d.KeyDim
		if !set(&q, &c.Q, c.Heads, d.KeyDim) || q.dst.stride != q.dst.cols || c.Out%16 != 0 {
			return 0
		}
	}
	if !set(&k, &c.K, d.Heads, d.KeyDim) || !set(&v, &c.V, d.Heads, d.ValueDim) {
		return 0
	}
	c.NormValues = v.norm != nil
	l.out = c.Write(l.out)
	if q.dst.addr != 0 {
		l.overwrite(q.dst)
	}
	return m.end + 1 - i
}

// headWork is what is done to the heads of one tensor.
type headWork struct {
	dst        view
	norm, rope *op
}

// add takes one more operation, which must be a norm or, after it, a rotation of the heads of dst.
func (w *headWork) add(o op, tokens int) bool {
	switch {
	case o.kind == opRMSNorm && w.norm == nil && w.rope == nil && int(o.dst.rows)%tokens == 0:
		w.norm = &o
	case o.kind == opRoPE && w.rope == nil && (w.norm == nil || w.norm.dst == o.dst):
		w.rope = &o
	default:
		return false
	}
	return true
}

// headsOf views rows of tokens as rows of heads.
func headsOf(v view, tokens, n int) view {
	if int(v.rows) == tokens && n > 1 {
		v.rows *= int32(n)
		v.cols /= int32(n)
		v.stride = v.cols
	}
	return v
}
