package gpu_test

import (
	"strings"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/gpu"
)

func tablesOf(p *backend.KVPlan) (*gpu.KVTables, error) {
	t := gpu.Tiling{Rows: 10, Splits: 33, Blocks: 132, Heads: 4, Partials: 1000}
	return gpu.NewKVTables(p, t, func(int32) gpu.Addr { return 16 }, make([]int32, len(p.Tables)), nil)
}

// TestBadPlans: what a plan says is checked before a kernel believes it.
func TestBadPlans(t *testing.T) {
	for want, r := range map[string]struct {
		slot, lo, hi int32
		extra        []int32
	}{
		"row 0: slot 192, visible 70 to 80":               {192, 70, 80, nil},
		"row 0: slot 80, visible 70 to 193":               {80, 70, 193, nil},
		"visible 63 to 81, in pages that were dropped":    {80, 63, 81, nil},
		"row 0 sees slot 200 of 192":                      {80, 70, 80, []int32{200}},
		"row 0 sees 193 slots of 192":                     {80, 70, 192, []int32{80}},
		"row 1 sees slot 64 of a tree of at most 64 rows": {81, 70, 144, []int32{81}},
	} {
		p := &backend.KVPlan{Tables: [][]int32{{-1, 5, 6}}}
		if strings.HasPrefix(want, "row 1") { // a tree needs a root
			addRow(p, 0, 80)
			p.Lo[0], p.Hi[0], p.Extra = 70, 80, [][]int32{{80}}
		}
		p.Seg, p.Slot, p.Lo, p.Hi = append(p.Seg, 0), append(p.Slot, r.slot), append(p.Lo, r.lo), append(p.Hi, r.hi)
		p.Extra = append(p.Extra, r.extra)
		if _, err := tablesOf(p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	p := &backend.KVPlan{Tables: [][]int32{{}}}
	addRow(p, 0, 0)
	if _, err := tablesOf(p); err == nil || err.Error() != "row 0 has no pages" {
		t.Errorf("a sequence without pages: %v", err)
	}
}

// TestRoom: tables keep their place while a sequence grows.
func TestRoom(t *testing.T) {
	table := make([]int32, 20)
	var before gpu.KVRoom
	for slot := 1025; slot < 1200; slot++ {
		p := &backend.KVPlan{Tables: [][]int32{table}}
		addRow(p, 0, slot)
		k, err := tablesOf(p)
		if err != nil {
			t.Fatal(err)
		}
		if r := k.Room(); before.Rows > 0 && r != before {
			t.Fatalf("the room at slot %d is %v, before it was %v", slot, r, before)
		}
		before = k.Room()
		if n := before.Bytes(); n%16 != 0 {
			t.Fatalf("tables of %d bytes", n)
		}
	}
}
