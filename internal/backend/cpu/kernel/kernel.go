// Package kernel decides which CPU instruction set the kernels below it use.
//
// The level is found once from the CPU's features. STROBE_CPU=generic|avx2|avx512, on ARM
// generic|neon|dotprod|i8mm, lowers it (never raises it), and tests switch it with Set. Every kernel package
// (qmat, vec) reads Current when an operation starts; results are bit-identical
// for any batch within one level, and may differ between levels.
package kernel

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
)

// Level is an instruction set.
type Level int32

// The levels of amd64 and those of arm64, each including the ones before it on the same architecture.
const (
	Generic Level = iota // plain Go
	AVX2                 // AVX2, FMA and F16C
	AVX512               // AVX-512 F, BW, DQ, VL and VNNI
	NEON                 // what every arm64 CPU has
	DotProd              // NEON and SDOT: Apple M1, Cortex-A76, Neoverse N1
	I8MM                 // and SMMLA: Apple M2, Cortex-A710, Neoverse V1

	numLevels
)

// String returns the name STROBE_CPU uses.
func (l Level) String() string {
	return [numLevels]string{"generic", "avx2", "avx512", "neon", "dotprod", "i8mm"}[l]
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
	var names []string
	for _, l := range All() {
		if l.String() == s {
			return l, nil
		}
		names = append(names, l.String())
	}
	return 0, fmt.Errorf("unknown CPU level %q: want %s", s, strings.Join(names, ", "))
}

// All lists the levels that this build has kernels for, lowest first.
func All() []Level { return append([]Level{Generic}, faster...) }

// Current returns the level in use.
func Current() Level { return Level(current.Load()) }

// Best returns the highest level this CPU supports.
func Best() Level { return best() }

// Available lists the levels this CPU supports, lowest first.
func Available() []Level {
	ls := All()
	return ls[:slices.Index(ls, best())+1]
}

// Set changes the level, at most to Best, and returns a function that undoes it.
// It is for tests; no operation may be running.
func Set(l Level) (restore func()) {
	old := current.Swap(int32(min(l, best())))
	return func() { current.Store(old) }
}

//go:generate go -C _asm run .
