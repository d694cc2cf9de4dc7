//go:build unix

package gpu_test

import (
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/gpu"
	"strobe/internal/draft/mtp"
	"strobe/internal/model"
	"strobe/internal/platform"
	"strobe/internal/quant"
	"strobe/internal/testkit/edit"
)

// Files that another program cuts short while weights are in them. Windows does not let anybody change a mapped file.

// recovered is what read panics with, in the goroutine of the test.
func recovered(read func()) (v any) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { v = recover() }()
	read()
	return nil
}

func cut(t *testing.T, path string, size int64) {
	t.Helper()
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
}

// TestCutFile: weights whose file was cut short are a panic of whoever binds them, with the stack of the goroutine that
// read. On any other goroutine it would end the process.
func TestCutFile(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, cores := range []int{1, 3} {
		runtime.GOMAXPROCS(cores)
		const n = 1024
		path := filepath.Join(t.TempDir(), "weights")
		if err := os.WriteFile(path, make([]byte, 4*n*n), 0o644); err != nil {
			t.Fatal(err)
		}
		m, err := platform.Map(path)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		dev, err := gpu.New(newLending(t))
		if err != nil {
			t.Fatal(err)
		}
		cut(t, path, 2*n*n)
		v := recovered(func() {
			_, err = dev.Weight(backend.Matrix{Type: quant.F32, Rows: n, Cols: n, Experts: 1, Data: m.Bytes()})
		})
		if p, ok := v.(*backend.Panic); !ok || !platform.IsFault(v) || !strings.Contains(string(p.Stack()), "repack.func") {
			t.Errorf("%d cores: panic %v, error %v", cores, v, err)
		}
	}
}

// TestCutWhileParked: weights that cannot come back because their file was cut short stay parked, all of them.
func TestCutWhileParked(t *testing.T) {
	d := newLending(t)
	path := edit.MTP(t, "qwen35").Write(t)
	m := modelOn(t, d, path, model.Options{})
	drafter, err := mtp.Open(m.File(), m, mtp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w := drafter.Weights()
	file, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	for size := file.Size(); ; size -= 4096 { // until one of them is gone, which is not the first
		w.Park()
		parked, gone := d.bytes(), len(d.gone)
		cut(t, path, size)
		v := recovered(func() { err = w.Return() })
		if v == nil && err == nil {
			continue
		}
		if n := d.bytes(); !platform.IsFault(v) || n != parked || len(w.Devices()) != 0 {
			t.Errorf("panic %v, %d bytes of the device are in use, %d were before", v, n, parked)
		}
		if _, ok := d.gone[0]; ok || len(d.gone) < gone+2 {
			t.Errorf("%d weights had come back, or others were given back, too", len(d.gone)-gone)
		}
		return
	}
}
