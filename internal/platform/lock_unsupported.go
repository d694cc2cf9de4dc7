//go:build !windows && (!unix || aix || solaris)

package platform

import "os"

// tryLock cannot lock here; two downloads of one file at once are then the
// user's to avoid.
func tryLock(*os.File) (taken bool, err error) { return false, nil }
