package grammar

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestManyRequiredFirst: a tool with as many required properties as there may be is compiled into a small automaton, in
// every notation, and its first masks, over a large vocabulary too, need no more than others wait for and end with
// their request.
func TestManyRequiredFirst(t *testing.T) {
	var props, names []string
	for i := range maxMembers {
		names = append(names, fmt.Sprintf(`"property_%d"`, i))
		props = append(props, names[i]+`:{"type":"string","description":"text"}`)
	}
	schema := `{"type":"object","properties":{` + strings.Join(props, ",") + `},"required":[` +
		strings.Join(names, ",") + `]}`
	// 150,000 tokens of one to four letters, and those that JSON needs.
	var pieces [][]byte
	for i := range 150_000 {
		letters := []byte{byte('a' + i%26), byte('a' + i/26%26), byte('a' + i/676%26), byte('a' + i/17576%26)}
		pieces = append(pieces, letters[:1+i%4])
	}
	small := testVocab()
	large := NewVocab(append(slices.Clone(small.pieces), pieces...), small.eog)
	for name, c := range map[string]struct {
		notation Notation
		text     string
	}{
		"JSON":  {CallJSON, `{"name": "f", "arguments": {"property_63": "abc", "property_0": "de`},
		"tags":  {CallTags, "<function=f>\n<parameter=property_63>\nabc\n</parameter>\n<parameter=property_0>\nde"},
		"Gemma": {CallGemma, `call:f{property_63:<|"|>abc<|"|>,property_0:<|"|>de`},
	} {
		g, err := CompileCalls(c.notation, []Tool{{"f", []byte(schema)}})
		if err != nil {
			t.Fatal(err)
		}
		if n := len(g.p.states); n > maxStates/20 {
			t.Errorf("%s: %d states", name, n)
		}
		m := g.NewMatcher(large)
		most := 0
		for i := range len(c.text) {
			if m.Prepare(context.Background(), false); m.Err() != nil {
				t.Fatalf("%s: after %q: %v", name, c.text[:i], m.Err())
			}
			if most = max(most, m.m.work.total()); most > quickWork {
				t.Fatalf("%s: after %q a mask takes %d units, others wait for %d", name, c.text[:i], most, quickWork)
			}
			m.AcceptText([]byte{c.text[i]})
			if m.Dead() {
				t.Fatalf("%s: %q does not fit", name, c.text[:i+1])
			}
		}
		t.Logf("%s: %d states, %d bytes, %d units at most", name, len(g.p.states), g.Size(), most)
		gone, cancel := context.WithCancel(context.Background())
		cancel()
		m = g.NewMatcher(large)
		if m.Prepare(gone, false); m.m.work.now > lookEvery+slack || m.Err() != nil && !errors.Is(m.Err(), context.Canceled) {
			t.Errorf("%s: %d units after the end of the request, %v", name, m.m.work.now, m.Err())
		}
	}
}
