package gpu

import "strobe/internal/backend"

// What tests with a device need of the package's insides.
var (
	BlockTypes   = blockTypes
	RandomBlocks = randomBlocks
)

// Halves is attention over unpacked pages, or nil.
func (a *Attention) Halves() *Attention { return a.halves }

// Shares is how many launches share the work of tables.
func (t Tiling) Shares(k *KVTables) int { return t.shares(k) }

// Sparsely is attention with blocks of one head, and the longest segment to give its tiling.
func (a *Attention) Sparsely() (*Attention, int) {
	s := a.sparse()
	return s, s.sparseLongest()
}

// MaxRecorded bounds Recorded, which is how many lists of launches a device keeps.
const MaxRecorded = maxRecorded

func (b *Backend) Recorded() (n int) {
	for _, l := range b.lists {
		n += len(l.recorded)
	}
	return n
}

// Reserve is Weight without the values.
func (b *Backend) Reserve(m backend.Matrix) (backend.Weight, error) {
	l, err := LayoutOf(m.Type, m.Rows, m.Cols, m.Experts, len(m.Data))
	if err != nil {
		return nil, err
	}
	w := &weight{WeightLayout: l, name: m.Name, scale: 1}
	if len(m.Scale) == 1 {
		w.scale = m.Scale[0]
	} else if len(m.Scale) > 1 {
		w.scales, _ = b.d.Alloc(4 * len(m.Scale))
	}
	w.addr, err = b.d.Alloc(l.Bytes())
	return w, err
}

// ScratchSize is the size of the memory for what passes between kernels.
func (b *Backend) ScratchSize() int { return b.spare.size }
