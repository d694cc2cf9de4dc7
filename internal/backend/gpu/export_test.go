package gpu

// What tests with a device need of the package's insides.
var (
	BlockTypes   = blockTypes
	RandomBlocks = randomBlocks
)

// ReadSpeed is the measure of a plain device's memory with fewer bytes.
func (b *Backend) ReadSpeed(bytes, rounds int) (float64, error) { return b.readSpeed(bytes, rounds) }
