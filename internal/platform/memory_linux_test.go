package platform

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestPopulate: what was populated is touched without page faults, from any address on.
func TestPopulate(t *testing.T) {
	const size = 64 << 20
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, make([]byte, size), 0o666); err != nil {
		t.Fatal(err)
	}
	m, err := Map(path)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := unix.Madvise(m.Bytes()[:1], unix.MADV_POPULATE_READ); errors.Is(err, unix.EINVAL) {
		t.Skip("needs Linux 5.14 or later: this kernel has no MADV_POPULATE_READ")
	}
	faults := func() int64 {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
			t.Fatal(err)
		}
		return u.Minflt + u.Majflt
	}
	Populate(nil)
	Populate(m.Bytes()[100:])
	before, sum := faults(), byte(0)
	for i := 0; i < size; i += 4096 {
		sum += m.Bytes()[i]
	}
	// Without it there is a fault for every 16 pages at best, 1,024 of them.
	if n := faults() - before; n > 200 || sum != 0 {
		t.Errorf("%d page faults in %d pages", n, size/4096)
	}
}

func TestAnonymous(t *testing.T) {
	if n := AvailableMemory(); n < 1<<20 {
		t.Errorf("%d bytes of memory are available", n)
	}
	b := Anonymous(3<<20 + 5)
	if len(b) != 3<<20+5 {
		t.Fatalf("%d bytes", len(b))
	}
	for i, v := range b {
		if v != 0 {
			t.Fatalf("byte %d is %d", i, v)
		}
	}
	b[0], b[len(b)-1] = 1, 2
	Free(b)
}
