//go:build !noasm

package kernel

import "golang.org/x/sys/unix"

// mayUseTiles asks Linux for the right to use tiles, which holds for all threads of the process. Linux refuses where
// the kernel or a hypervisor does not save them; without the right the first tile instruction ends the process.
//
// Tiles are part of the frame of a signal from then on, about 11 KB: Go's signal stacks have 32 KB.
func mayUseTiles() bool {
	const requestPermission, tileData = 0x1023, 18 // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA
	_, _, errno := unix.RawSyscall(unix.SYS_ARCH_PRCTL, requestPermission, tileData, 0)
	return errno == 0
}
