package gpu

import "slices"

// value is what an operation writes, or a part of it that another reads. It lives until something is written over any
// of it.
type value struct {
	view view
	uses []int // operations that read any of it, in order
	end  int   // the operation that writes over any of it; the number of operations: it is left after the step
}

// readAfter reports whether anything reads the value after operation i. The host may read what is left after the step.
func (v *value) readAfter(i int, ops []op) bool {
	return v.end == len(ops) || len(v.uses) > 0 && v.uses[len(v.uses)-1] > i
}

// trace finds the values of a list of operations: for each of them those that it writes, then those that it reads.
func trace(ops []op) [][]*value {
	operands := make([][]*value, len(ops))
	var live []*value
	for i := range ops {
		var read []*value
		for r := range ops[i].reads {
			at := slices.IndexFunc(live, func(v *value) bool { return v.view == r })
			if at < 0 {
				at = len(live)
				live = append(live, &value{view: r, end: len(ops)})
			}
			read = append(read, live[at])
			for _, v := range live {
				if v.view.overlaps(r) && (len(v.uses) == 0 || v.uses[len(v.uses)-1] != i) {
					v.uses = append(v.uses, i)
				}
			}
		}
		for w := range ops[i].writes {
			live = slices.DeleteFunc(live, func(v *value) bool {
				over := v.view.overlaps(w)
				if over {
					v.end = i
				}
				return over
			})
		}
		for w := range ops[i].writes {
			v := &value{view: w, end: len(ops)}
			live = append(live, v)
			operands[i] = append(operands[i], v)
		}
		operands[i] = append(operands[i], read...)
	}
	return operands
}

// value is what lies at v after operation i, which writes or reads it.
func (l *lowering) value(i int, v view) *value {
	for _, x := range l.operands[i] {
		if x.view == v {
			return x
		}
	}
	return &value{view: v, end: len(l.ops)} // not an operand: it may be read
}

// reads lists the tensors that an operation reads, and writes those that it writes.
func (o *op) reads(yield func(view) bool) {
	switch o.kind {
	case opProduct, opEmbed, opAngles, opSetInts:
	case opAddGated:
		_ = yield(o.dst) && yield(o.a) && yield(o.b)
	default:
		_ = yield(o.a) && (o.b.addr == 0 || yield(o.b)) && (o.c.addr == 0 || yield(o.c))
	}
}

func (o *op) writes(yield func(view) bool) {
	if o.kind == opAngles {
		_ = yield(o.dst) && yield(o.b)
	} else if o.dst.addr != 0 {
		yield(o.dst)
	}
}

// wanted reports whether anything but a product of packed rows, and but the products except, reads v, which operation i
// writes or reads, after it.
func (l *lowering) wanted(i int, v view, except ...int) bool {
	x := l.value(i, v)
	if x.end == len(l.ops) {
		return true
	}
	return slices.ContainsFunc(x.uses, func(j int) bool {
		o := &l.ops[j]
		packed := (o.kind == opMatMul || o.kind == opExpertMatMul) && sameRows(o.a, v) && !l.mixed(j)
		return j > i && !packed && !slices.Contains(except, j)
	})
}

// feeds finds the product whose packed input is v, which operation i writes; -1 for none.
func (l *lowering) feeds(i int, v view) int {
	for _, j := range l.value(i, v).uses {
		o := &l.ops[j]
		if j > i && (o.kind == opMatMul || o.kind == opExpertMatMul) && sameRows(o.a, v) && l.tiled(j) {
			return j
		}
	}
	return -1
}

// read reports whether v, which operation i writes or reads, is read after it.
func (l *lowering) read(i int, v view) bool { return l.value(i, v).readAfter(i, l.ops) }

// touched reports whether one of the operations from i to j, without j, writes anything of v.
func (l *lowering) touched(i, j int, v view) bool {
	for ; i < j; i++ {
		for w := range l.ops[i].writes {
			if w.overlaps(v) {
				return true
			}
		}
	}
	return false
}
