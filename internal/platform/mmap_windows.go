package platform

import (
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

const dontWait = 0

func mapFile(f *os.File, size int) ([]byte, func() error, error) {
	h, err := windows.CreateFileMapping(windows.Handle(f.Fd()), nil, windows.PAGE_READONLY, uint32(uint64(size)>>32),
		uint32(size), nil)
	if err != nil {
		return nil, nil, err
	}
	// The view keeps the mapping object alive; the handle is not needed again.
	defer windows.CloseHandle(h)
	addr, err := windows.MapViewOfFile(h, windows.FILE_MAP_READ, 0, 0, uintptr(size))
	if err != nil {
		return nil, nil, err
	}
	// Through a pointer to addr, because vet cannot know that this address is
	// outside the Go heap.
	base := *(*unsafe.Pointer)(unsafe.Pointer(&addr))
	return unsafe.Slice((*byte)(base), size), func() error { return windows.UnmapViewOfFile(addr) }, nil
}
