//go:build !noasm

package kernel

import "golang.org/x/sys/cpu"

var faster = []Level{NEON, DotProd, I8MM}

// supported trusts the system: Linux reports what all cores have (HWCAP), macOS has a sysctl for each feature, Windows
// a function (of I8MM, which x/sys does not ask it for, see asksI8MM).
func supported(l Level) bool {
	switch l {
	case NEON:
		return true
	case DotProd:
		return cpu.ARM64.HasASIMDDP
	case I8MM:
		return cpu.ARM64.HasASIMDDP && (cpu.ARM64.HasI8MM || asksI8MM())
	}
	return false
}
