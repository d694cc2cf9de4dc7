package gpu

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
		n += len(l.made)
	}
	return n
}
