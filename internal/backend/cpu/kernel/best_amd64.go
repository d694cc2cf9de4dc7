//go:build !noasm

package kernel

import "golang.org/x/sys/cpu"

var faster = []Level{AVX2, AVX512}

func best() Level {
	x := &cpu.X86
	if !x.HasAVX2 || !x.HasFMA || !x.HasF16C {
		return Generic
	}
	if x.HasAVX512F && x.HasAVX512BW && x.HasAVX512DQ && x.HasAVX512VL && x.HasAVX512VNNI && x.HasBMI2 {
		return AVX512
	}
	return AVX2
}
