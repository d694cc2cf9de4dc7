//go:build !nogpu && amd64

package vulkan

import "golang.org/x/sys/windows"

func openLibrary(name string) (fn, error) {
	h, err := windows.LoadLibraryEx(name, 0, windows.LOAD_LIBRARY_SEARCH_SYSTEM32)
	if err != nil {
		return 0, err
	}
	a, err := windows.GetProcAddress(h, "vkGetInstanceProcAddr")
	return fn(a), err
}
