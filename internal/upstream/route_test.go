package upstream

import (
	"fmt"
	"strings"
	"testing"
)

func nodes(loads ...int) []Node {
	var out []Node
	for i, l := range loads {
		out = append(out, Node{fmt.Sprintf("http://n%d", i), l})
	}
	return out
}

func TestStickyKeepsBeginningsTogether(t *testing.T) {
	const keys = 3000
	all, fewer := nodes(0, 0, 0, 0), nodes(0, 0, 0)
	count := make([]int, len(all))
	for key := uint64(1); key <= keys; key++ {
		home := Sticky.Order(all, key, key)[0]
		if again := Sticky.Order(all, key, key+1)[0]; again != home {
			t.Fatalf("key %d goes to %d and then to %d", key, home, again)
		}
		if without := Sticky.Order(fewer, key, key)[0]; home < 3 && without != home {
			t.Fatalf("key %d moves from %d to %d because another node left", key, home, without)
		}
		count[home]++
	}
	for i, n := range count {
		if n < keys/len(all)*4/5 || n > keys/len(all)*6/5 {
			t.Errorf("node %d has %d of %d keys", i, n, keys)
		}
	}
}

func TestStickyBoundsTheLoad(t *testing.T) {
	loads := make([]int, 4)
	for turn := range 1000 {
		loads[Sticky.Order(nodes(loads...), 7, uint64(turn))[0]]++
	}
	for i, l := range loads {
		if l > 314 { // a quarter more than 250, and the one that crosses
			t.Errorf("node %d has %d of 1000 requests that begin alike", i, l)
		}
	}
}

// TestStickyLeavesLate: a request stays with its replica until that one would have more than a quarter above the
// average.
func TestStickyLeavesLate(t *testing.T) {
	const key = 7
	home := Sticky.Order(nodes(4, 4, 4, 4), key, 0)[0]
	// With 5 and 6 requests at home, a quarter above the average is 5.6 and 5.9.
	for load, stays := range map[int]bool{4: true, 5: true, 6: false} {
		loads := []int{4, 4, 4, 4}
		loads[home] = load
		if got := Sticky.Order(nodes(loads...), key, 0)[0] == home; got != stays {
			t.Errorf("with %d requests at home it stays: %v", load, got)
		}
	}
}

func TestLeastLoaded(t *testing.T) {
	for _, p := range []Policy{LeastLoaded, Sticky} { // the latter without a key
		if got := p.Order(nodes(3, 1, 2), 0, 5); got[0] != 1 || got[1] != 2 || got[2] != 0 {
			t.Errorf("%v: order %v", p, got)
		}
		first := map[int]int{}
		for turn := range uint64(30) {
			first[p.Order(nodes(1, 1, 1), 0, turn)[0]]++
		}
		if len(first) != 3 || first[0] != 10 {
			t.Errorf("%v: equals get %v", p, first)
		}
	}
}

func TestKey(t *testing.T) {
	same := []string{
		`{"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":"q"}]}`,
		`{"temperature":1,"messages":[{"role":"system","content":"s"},{"role":"user","content":"q"},{"role":"assistant","content":"a"},{"role":"user","content":"q2"}]}`,
	}
	if Key([]byte(same[0])) == 0 || Key([]byte(same[0])) != Key([]byte(same[1])) {
		t.Error("a later turn of a conversation has another key")
	}
	seen := map[uint64]string{Key([]byte(same[0])): same[0]}
	for _, q := range []string{
		`{"messages":[{"role":"system","content":"s"},{"role":"user","content":"other"}]}`,
		`{"messages":[{"role":"system","content":"sq"},{"role":"user","content":""}]}`,
		`{"system":"s","messages":[{"role":"user","content":"q"}]}`,
		`{"instructions":"i","input":"text"}`,
		`{"instructions":"i","input":[{"role":"user","content":"text"}]}`,
		`{"prompt":"text"}`,
		`{"prompt":[1,2,3]}`,
	} {
		k := Key([]byte(q))
		if k == 0 || seen[k] != "" {
			t.Errorf("%s has the key of %q", q, seen[k])
		}
		seen[k] = q
	}
	text := strings.Repeat("x", maxKeyed)
	if a, b := Key([]byte(`{"prompt":"`+text+`a"}`)), Key([]byte(`{"prompt":"`+text+`b, more"}`)); a != b {
		t.Error("a text that goes on has another key")
	}
	if a, b := Key([]byte(`{"prompt":"`+text[3:]+`a"}`)), Key([]byte(`{"prompt":"`+text[3:]+`b"}`)); a == b {
		t.Error("texts that differ early have the same key")
	}
	for _, q := range []string{``, `{}`, `[]`, `{"model":"m"}`, `{"messages":3}`} {
		if Key([]byte(q)) != 0 {
			t.Errorf("%s has a key", q)
		}
	}
}
