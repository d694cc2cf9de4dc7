package platform

// FastCores is the number of cores that are much faster than the others of this machine: Apple's performance cores, the
// large ones of big.LITTLE. It is 0 where all are alike or nothing is known. Work that is split evenly waits for the
// slowest core, so that a slow one more makes it slower.
func FastCores() int { return fastCores() }
