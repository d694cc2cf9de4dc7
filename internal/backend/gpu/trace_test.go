package gpu

import (
	"fmt"
	"testing"
)

// rowsAt is a view of whole rows.
func rowsAt(addr Addr, rows, cols int32) view {
	return view{addr: addr, rows: rows, cols: cols, stride: cols}
}

// TestTrace: a value is used by what reads any of it, until something is written over any of it; what is left after the
// step may be read by the host.
func TestTrace(t *testing.T) {
	x, y, z := rowsAt(0x1000, 2, 8), rowsAt(0x2000, 2, 8), rowsAt(0x3000, 2, 8)
	part := view{addr: x.addr + 16, rows: 2, cols: 2, stride: 8} // columns of x
	next := rowsAt(x.addr+64, 1, 8)                              // behind x: no value is shared
	ops := []op{
		{kind: opCopy, dst: x, a: y},     // 0
		{kind: opAdd, dst: z, a: x},      // 1
		{kind: opScale, dst: y, a: part}, // 2: writes over what 0 has read
		{kind: opCopy, dst: next, a: y},  // 3
		{kind: opRMSNorm, dst: x, a: x},  // 4: in place
		{kind: opCopy, dst: z, a: x},     // 5
	}
	l := &lowering{ops: ops, operands: trace(ops)}
	for _, c := range []struct {
		what string
		at   int
		v    view
		want string
	}{
		{"what the first writes", 0, x, "used by [1 2 4], until 4"},
		{"what the first reads", 0, y, "used by [0], until 2"},
		{"what is read in part", 2, part, "used by [2 4], until 4"},
		{"what is written over another", 2, y, "used by [3], until 6"},
		{"what lies behind another", 3, next, "used by [], until 6"},
		{"what is written in place", 4, x, "used by [5], until 6"},
		{"what is overwritten unread", 1, z, "used by [], until 5"},
		{"no operand", 3, z, "used by [], until 6"},
	} {
		v := l.value(c.at, c.v)
		if got := fmt.Sprintf("used by %v, until %d", v.uses, v.end); got != c.want {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
	}
	for i, want := range []bool{true, false, true, true, true, true} { // what each writes is read afterwards
		if got := l.read(i, ops[i].dst); got != want {
			t.Errorf("what operation %d writes is read: %t, want %t", i, got, want)
		}
	}
	if l.read(0, y) {
		t.Error("what is read for the last time is read afterwards")
	}
	if l.read(4, part) != true || l.read(2, part) != true {
		t.Error("a part is not read by what reads the whole")
	}
}
