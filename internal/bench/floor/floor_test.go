package floor

import (
	"testing"
	"time"

	"strobe/internal/backend/cpu/kernel"
)

// levels runs a test with every instruction set of this machine.
func levels(t *testing.T, fn func(t *testing.T)) {
	for _, l := range kernel.Available() {
		t.Run(l.String(), func(t *testing.T) {
			defer kernel.Set(l)()
			fn(t)
		})
	}
}

// TestRead: every call reads whole turns inside the buffer and goes round at its end.
func TestRead(t *testing.T) {
	levels(t, func(t *testing.T) {
		for _, size := range []int{1, 512, 513, 8192, 100_000} {
			r := NewReader(size)
			if r.Size() < size || r.Size()%turn != 0 {
				t.Fatalf("buffer for %d bytes has %d", size, r.Size())
			}
			for _, n := range []int{1, 512, 1500, 8192, 1 << 20} {
				for threads := 1; threads <= 3; threads++ {
					got, took := r.Read(threads, n)
					if got < turn || got%turn != 0 || got > max(n, threads*turn) && n <= size || took <= 0 {
						t.Errorf("buffer %d: %d threads asked for %d bytes read %d in %v", size, threads, n, got, took)
					}
				}
			}
		}
	})
}

func TestDot(t *testing.T) {
	levels(t, func(t *testing.T) {
		for threads := 1; threads <= 2; threads++ {
			n, took := Dot(threads, time.Millisecond)
			if n <= 0 || n%(threads*perTurn(kernel.Current())) != 0 || took <= 0 {
				t.Errorf("%d threads: %d products in %v", threads, n, took)
			}
		}
	})
}

func BenchmarkRead(b *testing.B) {
	r := NewReader(512 << 20)
	for _, threads := range []int{1, 2} {
		b.Run(map[int]string{1: "1 thread", 2: "2 threads"}[threads], func(b *testing.B) {
			total, took := 0, time.Duration(0)
			for b.Loop() {
				n, d := r.Read(threads, 128<<20)
				total, took = total+n, took+d
			}
			b.ReportMetric(float64(total)/took.Seconds()/1e9, "GB/s")
		})
	}
}

func BenchmarkDot(b *testing.B) {
	for _, threads := range []int{1, 2} {
		b.Run(map[int]string{1: "1 thread", 2: "2 threads"}[threads], func(b *testing.B) {
			total, took := 0, time.Duration(0)
			for b.Loop() {
				n, d := Dot(threads, 20*time.Millisecond)
				total, took = total+n, took+d
			}
			b.ReportMetric(float64(total)/took.Seconds()/1e9, "GMAC/s")
		})
	}
}
