//go:build !windows && (!unix || aix || solaris)

package platform

import (
	"errors"
	"os"
)

// tryLock cannot lock here.
func tryLock(*os.File) (taken bool, err error) { return false, errors.ErrUnsupported }
