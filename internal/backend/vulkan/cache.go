//go:build !nogpu && ((linux && (amd64 || arm64)) || (windows && amd64) || darwin)

package vulkan

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"strobe/internal/platform"
)

// Compiled kernels are stored in a file for each device and version of its driver. It begins with a checksum: drivers
// look at the header of what they are given, and some crash on a damaged rest. What is missing, damaged or too large is
// made anew.

// mostCached is more than the kernels of any model take.
const mostCached = 64 << 20

func (d *Driver) cacheFile() string {
	if d.opt.Cache == "" {
		return ""
	}
	p := &d.phys.properties
	return filepath.Join(d.opt.Cache, fmt.Sprintf("vulkan-%x-%x.bin", p.CacheUUID, p.Driver))
}

// readCache returns what the driver compiled before.
func (d *Driver) readCache() []byte {
	name := d.cacheFile()
	b, err := platform.ReadFile(name, mostCached)
	if err != nil || len(b) <= sha256.Size {
		return nil
	}
	if sum := sha256.Sum256(b[sha256.Size:]); !bytes.Equal(sum[:], b[:sha256.Size]) {
		return nil
	}
	return b[sha256.Size:]
}

// writeCache stores what was compiled, if something was. It only saves time later, so failures are ignored.
func (d *Driver) writeCache() {
	name := d.cacheFile()
	if name == "" || d.compiled == 0 || d.err != nil {
		return
	}
	n := new(uint64)
	if d.f.cacheData.do(d.handle, uintptr(d.cache), uintptr(unsafe.Pointer(n)), 0) != nil || *n == 0 {
		return
	}
	if *n > mostCached { // with the kernels of older versions; it begins anew
		os.Remove(name)
		return
	}
	data := make([]byte, *n)
	if d.f.cacheData.do(d.handle, uintptr(d.cache), uintptr(unsafe.Pointer(n)), uintptr(unsafe.Pointer(&data[0]))) != nil {
		return
	}
	data = data[:*n]
	sum := sha256.Sum256(data)
	if os.MkdirAll(d.opt.Cache, 0o755) != nil {
		return
	}
	f, err := os.CreateTemp(d.opt.Cache, "vulkan-*.tmp")
	if err != nil {
		return
	}
	defer os.Remove(f.Name()) // there is none if it was renamed
	_, err = f.Write(append(sum[:], data...))
	if f.Close() == nil && err == nil {
		_ = os.Rename(f.Name(), name)
	}
}
