package cpu

import (
	"bufio"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// availableMemory is what programs may still take without swapping, in bytes; 0 if unknown.
func availableMemory() int {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var kb int
		if n, _ := fmt.Sscanf(s.Text(), "MemAvailable: %d kB", &kb); n == 1 {
			return kb << 10
		}
	}
	return 0
}

// mapMemory returns n zeroed bytes that the garbage collector does not count: as part of its heap, gigabytes of weights
// would let as many bytes of garbage pile up. It returns nil when the system has none.
func mapMemory(n int) []byte {
	m, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil
	}
	_ = unix.Madvise(m, unix.MADV_HUGEPAGE) // large pages are faster, but not needed
	return m
}

func unmapMemory(m []byte) { _ = unix.Munmap(m) }
