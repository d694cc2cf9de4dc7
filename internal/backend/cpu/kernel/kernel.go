// Package kernel decides which CPU instruction set the kernels below it use.
//
// The level is found once from the CPU's features. STROBE_CPU=generic|avx2|avxvnni|avx512|amx, on ARM
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

// The levels of amd64 and those of arm64, slowest first. Kernels that a level does not have are those of the level
// before it.
const (
	Generic Level = iota // plain Go
	AVX2                 // AVX2, FMA and F16C
	AVXVNNI              // and VPDPBUSD of 256 bits: Alder Lake, Sierra Forest, Zen 5
	AVX512               // AVX-512 F, BW, DQ, VL and VNNI; not all of these CPUs have AVX-VNNI
	AMX                  // AVX-512 and tiles of bytes: Sapphire Rapids
	NEON                 // what every arm64 CPU has
	DotProd              // NEON and SDOT: Apple M1, Cortex-A76, Neoverse N1
	I8MM                 // and SMMLA: Apple M2, Cortex-A710, Neoverse V1

	numLevels
)

// String returns the name STROBE_CPU uses.
func (l Level) String() string {
	return [numLevels]string{"generic", "avx2", "avxvnni", "avx512", "amx", "neon", "dotprod", "i8mm"}[l]
}

// Floats returns the level whose kernels for float32 l uses: what it has beyond that multiplies integers.
func (l Level) Floats() Level {
	switch l {
	case AVXVNNI:
		return AVX2
	case AMX:
		return AVX512
	case DotProd, I8MM:
		return NEON
	}
	return l
}

var (
	available = slices.DeleteFunc(All(), func(l Level) bool { return l != Generic && !supported(l) })
	current   atomic.Int32
)

func init() {
	l := Best()
	if want, err := parse(os.Getenv("STROBE_CPU")); err == nil {
		l = highest(want)
	}
	current.Store(int32(l))
}

// highest returns the highest level this CPU supports that is at most l.
func highest(l Level) Level {
	i := len(available) - 1
	for available[i] > l {
		i--
	}
	return available[i]
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
func Best() Level { return available[len(available)-1] }

// Available lists the levels this CPU supports, lowest first.
func Available() []Level { return slices.Clone(available) }

// Set changes the level, to the highest that this CPU supports and that is at most l. The function it returns undoes
// that. It is for tests; no operation may be running.
func Set(l Level) (restore func()) {
	old := current.Swap(int32(highest(l)))
	return func() { current.Store(old) }
}

//go:generate go -C _asm run .
