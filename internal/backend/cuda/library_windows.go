//go:build !nogpu && amd64

package cuda

import "golang.org/x/sys/windows"

func openLibrary() (uintptr, error) {
	h, err := windows.LoadLibraryEx("nvcuda.dll", 0, windows.LOAD_LIBRARY_SEARCH_SYSTEM32)
	return uintptr(h), err
}

func symbol(lib uintptr, name string) (uintptr, error) {
	return windows.GetProcAddress(windows.Handle(lib), name)
}
