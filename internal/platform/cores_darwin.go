package platform

import "golang.org/x/sys/unix"

// fastCores asks for the cores of the highest performance level. Macs with Intel processors have no levels.
func fastCores() int {
	n, err := unix.SysctlUint32("hw.perflevel0.physicalcpu")
	if err != nil {
		return 0
	}
	return int(n)
}
