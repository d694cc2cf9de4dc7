package vec

import (
	"sync"
	"syscall"
	"unsafe"
)

const (
	arenaBytes = 1 << 24
	pageBytes  = 4096
)

// arena is memory in which every used page is followed by an unreadable one.
var arena = sync.OnceValue(func() []byte {
	m, err := syscall.Mmap(-1, 0, arenaBytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return nil
	}
	return m
})

var arenaNext int

// edge returns n zeros that end where an unreadable page begins. The arena is
// used round and round: a value lives as long as the test that asked for it,
// which is less than one round.
func edge(n int) []float32 {
	m := arena()
	size := (4*n+pageBytes-1)/pageBytes*pageBytes + pageBytes
	if m == nil || size > arenaBytes/4 {
		return make([]float32, n)
	}
	if arenaNext+size > len(m) {
		arenaNext = 0
	}
	p := m[arenaNext : arenaNext+size]
	arenaNext += size
	if syscall.Mprotect(p[:size-pageBytes], syscall.PROT_READ|syscall.PROT_WRITE) != nil ||
		syscall.Mprotect(p[size-pageBytes:], syscall.PROT_NONE) != nil {
		return make([]float32, n)
	}
	if n == 0 {
		return []float32{}
	}
	x := unsafe.Slice((*float32)(unsafe.Pointer(&p[size-pageBytes-4*n])), n)
	clear(x)
	return x
}
