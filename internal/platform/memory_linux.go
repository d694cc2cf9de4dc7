package platform

import (
	"bufio"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

func forget(b []byte) { _ = unix.Madvise(b, unix.MADV_DONTNEED) } // of no use at worst

func populate(b []byte) {
	at := uintptr(unsafe.Pointer(&b[0]))
	before := at % uintptr(os.Getpagesize()) // only whole pages can be named
	// Kernels before 5.14 refuse, which is of no consequence.
	_, _, _ = unix.Syscall(unix.SYS_MADVISE, at-before, uintptr(len(b))+before, unix.MADV_POPULATE_READ)
}

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

func anonymous(n int) []byte {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil
	}
	_ = unix.Madvise(b, unix.MADV_HUGEPAGE) // large pages are faster, but not needed
	return b
}

func free(b []byte) { _ = unix.Munmap(b) }
