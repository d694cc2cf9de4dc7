package platform

import "unsafe"

// Forget says that part, a slice of the mapping's bytes, will hardly be read again. Where the system allows it, its
// pages no longer count as the process's memory; reading them again works, but may wait for the disk.
func (m *Mapping) Forget(part []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(part) == 0 || len(m.data) == 0 {
		return
	}
	// A page that is partly something else stays.
	from := int(uintptr(unsafe.Pointer(&part[0])) - uintptr(unsafe.Pointer(&m.data[0])))
	to := from + len(part)
	from = (from + pageSize - 1) / pageSize * pageSize
	to = to / pageSize * pageSize
	if from >= 0 && from < to && to <= len(m.data) {
		forget(m.data[from:to])
	}
}

// Populate maps the pages of a part of a mapping at once, where the system can, instead of one by one when they are
// touched. What cannot be read is found out by reading it.
func Populate(part []byte) {
	if len(part) > 0 {
		populate(part)
	}
}

// pageSize is a multiple of the page sizes in use.
const pageSize = 64 << 10

// AvailableMemory is what programs may still take without swapping, in bytes; 0 if unknown.
func AvailableMemory() int { return availableMemory() }

// Anonymous returns n zeroed bytes that the garbage collector does not know: in its heap, gigabytes of weights would
// let as many bytes of garbage pile up. It returns nil when there are none. Free gives them back.
func Anonymous(n int) []byte { return anonymous(n) }

// Free gives back what Anonymous returned.
func Free(b []byte) { free(b) }
