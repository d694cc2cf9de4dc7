package gpu

import "slices"

// piecewise is a tensor whose values lie in pieces.
type piecewise struct {
	v     view
	in    In
	owner Addr // scratch that holds the pieces
	users *int // tensors that lie in it
}

// packedRows is a tensor that also lies in the form products read.
type packedRows struct {
	v   view
	x   MatMulInput
	src view // if it is a norm and this is still there: what was normalised,
	w   Addr // with which weights
}

// in returns how to read the rows of v. They may lie in pieces if v is a tensor that a product made, or columns of one.
func (l *lowering) in(v view) In {
	for _, p := range l.pieces {
		if p.v.overlaps(v) {
			at := int(v.addr-p.v.addr) / 4
			if v.addr >= p.v.addr && v.stride == p.v.stride && v.rows == p.v.rows && at+int(v.cols) <= int(p.v.cols) {
				return p.in.Columns(at)
			}
			l.summed(v)
			break
		}
	}
	return Rows(v.addr, int(v.stride))
}

// heads is a view that has parts of every token's row as rows.
type heads struct {
	in   In  // of the tokens
	n    int // heads of a token
	dim  int // columns of a head
	step int // from one head to the next
}

// split returns how to read v, whose rows are heads of tokens.
func (l *lowering) split(v view, tokens int) heads {
	n := int(v.rows) / tokens
	h := heads{n: n, dim: int(v.cols), step: int(v.stride)}
	for _, p := range l.pieces {
		if p.v.overlaps(v) {
			at := int(v.addr-p.v.addr) / 4
			if v.addr >= p.v.addr && int(p.v.rows) == tokens && p.v.stride == p.v.cols && int(p.v.cols) == n*h.step &&
				at+h.dim <= h.step {
				h.in = p.in.Columns(at)
				return h
			}
			l.summed(v)
			break
		}
	}
	h.in = Rows(v.addr, n*h.step)
	return h
}

// summed makes sure that the memory of v holds its values: pieces of them are added.
func (l *lowering) summed(v view) view {
	for i := 0; i < len(l.pieces); i++ {
		if p := l.pieces[i]; p.v.overlaps(v) {
			l.reduce(p)
			l.dropPieces(i)
			i--
		}
	}
	return v
}

func (l *lowering) reduce(p piecewise) {
	l.out = l.b.products.Reduce(l.out, p.v.addr, int(p.v.stride), p.in, int(p.v.rows), int(p.v.cols))
}

// leave leaves a product in pieces. Rows with something else between them are written at once: views of such memory
// tell little about what they share.
func (l *lowering) leave(p piecewise) {
	l.overwrite(p.v)
	l.pieces = append(l.pieces, p)
	if p.v.stride != p.v.cols && p.v.rows > 1 {
		l.reduce(p)
		l.dropPieces(len(l.pieces) - 1)
	}
}

func (l *lowering) dropPieces(i int) {
	p := l.pieces[i]
	if *p.users--; *p.users == 0 {
		l.later = append(l.later, p.owner)
	}
	l.pieces = append(l.pieces[:i], l.pieces[i+1:]...)
}

// overwrite says that v gets new values. Pieces of what it covers are no longer needed; of a tensor that is written in
// part the rest is.
func (l *lowering) overwrite(v view) {
	for i := 0; i < len(l.pieces); i++ {
		p := l.pieces[i]
		if !p.v.overlaps(v) {
			continue
		}
		if !covers(v, p.v) && l.outlives(l.now, p.v, v) {
			l.reduce(p)
		}
		l.dropPieces(i)
		i--
	}
	for i := 0; i < len(l.packed); i++ {
		if l.packed[i].v.overlaps(v) || l.packed[i].v.addr == 0 && l.packed[i].src.overlaps(v) {
			l.later = append(l.later, l.packed[i].x.P)
			if l.packed[i].x.Sums != 0 {
				l.later = append(l.later, l.packed[i].x.Sums)
			}
			l.packed = append(l.packed[:i], l.packed[i+1:]...)
			i--
		} else if l.packed[i].src.overlaps(v) {
			l.packed[i].src = view{}
		}
	}
	l.dropHalves(v)
	if l.routed.v.overlaps(v) {
		l.routed = routerRows{}
	}
}

// dropUnread drops the pieces of tensors that nothing reads from the current operation on until they are overwritten.
// What is not overwritten may be read after the step.
func (l *lowering) dropUnread() {
	for i := 0; i < len(l.pieces); i++ {
		if l.unread(l.pieces[i].v) {
			l.dropPieces(i)
			i--
		}
	}
}

// unread reports whether nothing reads a tensor from the current operation on, before others are written over it.
func (l *lowering) unread(v view) bool {
	for j := l.now; j < len(l.ops); j++ {
		o := &l.ops[j]
		for r := range o.reads {
			if r.overlaps(v) {
				return false
			}
		}
		for w := range o.writes {
			if w.overlaps(v) {
				return covers(w, v) || !l.outlives(j, v, w)
			}
		}
	}
	return false // the host may read it
}

// covers reports whether every value of o is one of v.
func covers(v, o view) bool {
	a0, a1 := v.bytes()
	b0, b1 := o.bytes()
	return a0 <= b0 && b1 <= a1 && (v.stride == v.cols || v.stride == o.stride && v.cols >= o.cols &&
		(o.addr-v.addr)/4%Addr(v.stride)+Addr(o.cols) <= Addr(v.cols))
}

// outlives reports whether anything of the tensor old is read after operation i has written v over a part of it. Memory
// that was given back is taken anew for something else: then what is read there has been written as a whole before.
func (l *lowering) outlives(i int, old, v view) bool {
	fresh := []view{v}
	for j := i + 1; j < len(l.ops); j++ {
		o := &l.ops[j]
		for r := range o.reads {
			if r.overlaps(old) && !slices.ContainsFunc(fresh, func(w view) bool { return covers(w, r) }) {
				return true
			}
		}
		for w := range o.writes {
			if covers(w, old) {
				return false
			}
			if w.overlaps(old) {
				fresh = append(fresh, w)
			}
		}
	}
	return false
}

// sameRows reports whether two views name the same values as rows of tokens.
func sameRows(a, b view) bool {
	return a.addr == b.addr && a.rows*a.cols == b.rows*b.cols && (a == b || a.stride == a.cols && b.stride == b.cols)
}
