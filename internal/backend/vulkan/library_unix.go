//go:build !nogpu && ((linux && (amd64 || arm64)) || darwin)

package vulkan

import "github.com/ebitengine/purego"

func openLibrary(name string) (fn, error) {
	h, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return 0, err
	}
	a, err := purego.Dlsym(h, "vkGetInstanceProcAddr")
	return fn(a), err
}
