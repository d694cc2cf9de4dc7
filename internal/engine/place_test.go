package engine

import (
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/gguf"
	"strobe/internal/testkit"
)

// weighing is a device that says what weights would take.
type weighing struct{ backend.Backend }

func (weighing) WeightBytes(m backend.Matrix) int { return len(m.Data) }

// TestNeeds: layers are counted from the end, what belongs to none is always there, and a block for multi-token
// prediction lies with the output.
func TestNeeds(t *testing.T) {
	b := cpu.New(cpu.Options{Threads: 1})
	defer b.Close()
	f, err := gguf.Open(testkit.Golden(t, "qwen35/model.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n := needs(weighing{b}, Source{Target: f})
	all := 0
	for _, x := range f.Tensors() {
		all += len(x.Data)
	}
	layers := len(n.layers)
	if layers == 0 || n.of(layers) != all || n.of(0) != n.rest || n.rest == 0 {
		t.Fatalf("%d layers take %d, none %d, of %d bytes", layers, n.of(layers), n.of(0), all)
	}
	for i := range layers + 1 {
		if got := n.fit(n.of(i)); got != i {
			t.Errorf("%d layers fit where %d do", got, i)
		}
		if got := n.fit(n.of(i) - 1); got != max(0, i-1) {
			t.Errorf("%d layers fit in a byte less than %d need", got, i)
		}
	}
}
