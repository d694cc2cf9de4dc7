package platform

import "golang.org/x/sys/unix"

func forget([]byte) {}

func populate([]byte) {}

// availableMemory is the share of the memory that macOS calls free: what it could take without swapping, caches of
// files among it.
func availableMemory() int {
	size, err := unix.SysctlUint64("hw.memsize")
	if err != nil {
		return 0
	}
	percent, err := unix.SysctlUint32("kern.memorystatus_level")
	if err != nil || percent > 100 {
		return 0
	}
	return int(size / 100 * uint64(percent))
}

func anonymous(n int) []byte {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil
	}
	return b
}

func free(b []byte) { _ = unix.Munmap(b) }
