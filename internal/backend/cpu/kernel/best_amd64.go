//go:build !noasm

package kernel

import "golang.org/x/sys/cpu"

var faster = []Level{AVX2, AVXVNNI, AVX512, AMX}

// supported asks for each level by itself: processors with AVX-512 need not have AVX-VNNI (Cascade Lake, Zen 4).
func supported(l Level) bool {
	x := &cpu.X86
	switch l {
	case AVX2:
		return x.HasAVX2 && x.HasFMA && x.HasF16C
	case AVXVNNI:
		return supported(AVX2) && x.HasAVXVNNI
	case AVX512:
		return supported(AVX2) && x.HasAVX512F && x.HasAVX512BW && x.HasAVX512DQ && x.HasAVX512VL && x.HasAVX512VNNI &&
			x.HasBMI2
	case AMX:
		return supported(AVX512) && x.HasAMXTile && x.HasAMXInt8 && mayUseTiles()
	}
	return false
}
