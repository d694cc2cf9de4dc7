//go:build !unix && !windows

package platform

import (
	"io"
	"os"
)

const dontWait = 0

// mapFile reads the file where the system cannot map it.
func mapFile(f *os.File, size int) ([]byte, func() error, error) {
	data := make([]byte, size)
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, nil, err
	}
	return data, func() error { return nil }, nil
}
