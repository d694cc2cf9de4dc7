package gpu_test

import (
	"strings"
	"testing"

	"strobe/backend"
	"strobe/backend/gpu"
)

func tablesOf(p *backend.KVPlan) (*gpu.KVTables, error) {
	return gpu.NewKVTables(p, gpu.Tiling{Rows: 10, Splits: 33, Blocks: 132, Heads: 4, Partials: 1000}, func(int32) gpu.Addr { return 16 })
}

// TestBadPlans: what a plan says is checked before a kernel believes it.
func TestBadPlans(t *testing.T) {
	table := [][]int32{{-1, 5, 6}}
	for want, p := range map[string]*backend.KVPlan{
		"row 0 has no pages":                                           {Tables: [][]int32{{}}, Seg: []int32{0}, Slot: []int32{0}, Lo: []int32{0}, Hi: []int32{1}},
		"row 0: slot 192, visible 70 to 80":                            {Tables: table, Seg: []int32{0}, Slot: []int32{192}, Lo: []int32{70}, Hi: []int32{80}},
		"row 0: slot 80, visible 70 to 193":                            {Tables: table, Seg: []int32{0}, Slot: []int32{80}, Lo: []int32{70}, Hi: []int32{193}},
		"row 0: slot 80, visible 63 to 81, in pages that were dropped": {Tables: table, Seg: []int32{0}, Slot: []int32{80}, Lo: []int32{63}, Hi: []int32{81}},
		"row 0 sees slot 200 of 192":                                   {Tables: table, Seg: []int32{0}, Slot: []int32{80}, Lo: []int32{70}, Hi: []int32{80}, Extra: [][]int32{{200}}},
		"row 1 sees slot 64 of a tree of at most 64 rows": {Tables: table, Seg: []int32{0, 0}, Slot: []int32{80, 81}, Lo: []int32{70, 70}, Hi: []int32{80, 144},
			Extra: [][]int32{{80}, {81}}},
	} {
		if _, err := tablesOf(p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestRoom: tables keep their place while a sequence grows.
func TestRoom(t *testing.T) {
	var table []int32
	for range 20 {
		table = append(table, 3)
	}
	var before gpu.KVRoom
	for hi := int32(1026); hi < 1200; hi++ {
		k, err := tablesOf(&backend.KVPlan{Tables: [][]int32{table}, Seg: []int32{0}, Slot: []int32{hi - 1}, Lo: []int32{0}, Hi: []int32{hi}})
		if err != nil {
			t.Fatal(err)
		}
		if r := k.Room(); before.Rows > 0 && r != before {
			t.Fatalf("the room at %d slots is %v, before it was %v", hi, r, before)
		}
		before = k.Room()
		if r := before.Bytes(); r%16 != 0 {
			t.Fatalf("tables of %d bytes", r)
		}
	}
}
