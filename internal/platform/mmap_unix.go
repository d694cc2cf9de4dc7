//go:build unix

package platform

import (
	"os"

	"golang.org/x/sys/unix"
)

// dontWait makes opening a pipe return at once, also when nobody writes to it. Regular files do not know it.
const dontWait = unix.O_NONBLOCK

func mapFile(f *os.File, size int) ([]byte, func() error, error) {
	data, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, err
	}
	return data, func() error { return unix.Munmap(data) }, nil
}
