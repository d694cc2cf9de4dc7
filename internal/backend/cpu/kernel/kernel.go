// Package kernel decides which CPU instruction set the kernels below it use.
//
// The level is found once from the CPU's features. STROBE_CPU=generic|avx2|avx512
// lowers it (never raises it), and tests switch it with Set. Every kernel package
// (qmat, vec) reads Current when an operation starts; results are bit-identical
// for any batch within one level, and may differ between levels.
package kernel

import (
	"fmt"
	"os"
	"sync/atomic"
)

// Level is an instruction set.
type Level int32

// The levels, each including the ones before it.
const (
	Generic Level = iota // plain Go
	AVX2                 // AVX2, FMA and F16C
	AVX512               // AVX-512 F, BW, DQ, VL and VNNI
)

// String returns the name STROBE_CPU uses.
func (l Level) String() string {
	switch l {
	case AVX512:
		return "avx512"
	case AVX2:
		return "avx2"
	}
	return "generic"
}

var current atomic.Int32

func init() {
	l := best()
	if want, err := parse(os.Getenv("STROBE_CPU")); err == nil && want < l {
		l = want
	}
	current.Store(int32(l))
}

func parse(s string) (Level, error) {
	for _, l := range []Level{Generic, AVX2, AVX512} {
		if l.String() == s {
			return l, nil
		}
	}
	return 0, fmt.Errorf("unknown CPU level %q: want generic, avx2 or avx512", s)
}

// Current returns the level in use.
func Current() Level { return Level(current.Load()) }

// Best returns the highest level this CPU supports.
func Best() Level { return best() }

// Available lists the levels this CPU supports, lowest first.
func Available() []Level {
	var ls []Level
	for l := Generic; l <= best(); l++ {
		ls = append(ls, l)
	}
	return ls
}

// Set changes the level, at most to Best, and returns a function that undoes it.
// It is for tests; no operation may be running.
func Set(l Level) (restore func()) {
	old := current.Swap(int32(min(l, best())))
	return func() { current.Store(old) }
}
