//go:build !noasm

package kernel

import (
	"sync"

	"golang.org/x/sys/windows"
)

// asksI8MM asks Windows for SMMLA. Versions that do not know the number say no.
var asksI8MM = sync.OnceValue(func() bool {
	const i8mm = 66 // PF_ARM_V82_I8MM_INSTRUCTIONS_AVAILABLE
	return windows.IsProcessorFeaturePresent(i8mm)
})
