package gpu

// What tests with a device need of the package's insides.
var (
	BlockTypes   = blockTypes
	RandomBlocks = randomBlocks
)
