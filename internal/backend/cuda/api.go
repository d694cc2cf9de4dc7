//go:build !nogpu && ((linux && (amd64 || arm64)) || (windows && amd64))

package cuda

import (
	"fmt"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// fn is the address of a function of the driver's library.
type fn uintptr

// api is what we use of the driver's library.
var api struct {
	init, count, device, name, attribute, total, errorName, errorText             fn
	contextCreate, contextDestroy, setCurrent, memInfo                            fn
	alloc, free, hostAlloc, hostFree, toDevice, toHost, onDevice, fill            fn
	streamCreate, streamDestroy, streamQuery, eventCreate, eventDestroy           fn
	eventRecord, eventQuery, eventTime                                            fn
	moduleLoad, moduleUnload, function, functionSet, launch                       fn
	captureBegin, captureEnd, instantiate, graphDestroy, execDestroy, graphLaunch fn
}

// Names with a version are what cuda.h makes of the plain ones.
var symbols = []struct {
	f    *fn
	name string
}{
	{&api.init, "cuInit"},
	{&api.count, "cuDeviceGetCount"},
	{&api.device, "cuDeviceGet"},
	{&api.name, "cuDeviceGetName"},
	{&api.attribute, "cuDeviceGetAttribute"},
	{&api.total, "cuDeviceTotalMem_v2"},
	{&api.errorName, "cuGetErrorName"},
	{&api.errorText, "cuGetErrorString"},
	{&api.contextCreate, "cuCtxCreate_v2"},
	{&api.contextDestroy, "cuCtxDestroy_v2"},
	{&api.setCurrent, "cuCtxSetCurrent"},
	{&api.memInfo, "cuMemGetInfo_v2"},
	{&api.alloc, "cuMemAlloc_v2"},
	{&api.free, "cuMemFree_v2"},
	{&api.hostAlloc, "cuMemHostAlloc"},
	{&api.hostFree, "cuMemFreeHost"},
	{&api.toDevice, "cuMemcpyHtoDAsync_v2"},
	{&api.toHost, "cuMemcpyDtoHAsync_v2"},
	{&api.onDevice, "cuMemcpyDtoDAsync_v2"},
	{&api.fill, "cuMemsetD8Async"},
	{&api.streamCreate, "cuStreamCreate"},
	{&api.streamDestroy, "cuStreamDestroy_v2"},
	{&api.streamQuery, "cuStreamQuery"},
	{&api.eventCreate, "cuEventCreate"},
	{&api.eventDestroy, "cuEventDestroy_v2"},
	{&api.eventRecord, "cuEventRecord"},
	{&api.eventQuery, "cuEventQuery"},
	{&api.eventTime, "cuEventElapsedTime"},
	{&api.moduleLoad, "cuModuleLoadDataEx"},
	{&api.moduleUnload, "cuModuleUnload"},
	{&api.function, "cuModuleGetFunction"},
	{&api.functionSet, "cuFuncSetAttribute"},
	{&api.launch, "cuLaunchKernelEx"},
	{&api.captureBegin, "cuStreamBeginCapture_v2"},
	{&api.captureEnd, "cuStreamEndCapture"},
	{&api.instantiate, "cuGraphInstantiateWithFlags"},
	{&api.graphDestroy, "cuGraphDestroy"},
	{&api.execDestroy, "cuGraphExecDestroy"},
	{&api.graphLaunch, "cuGraphLaunch"},
}

// load finds the library and its functions, once.
var load = sync.OnceValue(func() error {
	lib, err := openLibrary()
	if err != nil {
		return ErrNoDriver
	}
	for _, s := range symbols {
		at, err := symbol(lib, s.name)
		if err != nil {
			return fmt.Errorf("the NVIDIA driver is too old: it has no %s", s.name)
		}
		*s.f = fn(at)
	}
	if r := api.init.call(0); r != 0 {
		if r == 100 { // a driver, but no device
			return nil
		}
		return fmt.Errorf("starting the NVIDIA driver: %w", r)
	}
	return nil
})

// result is what a function of the driver returns; 0 is success.
type result int32

func (r result) Error() string {
	var name, text unsafe.Pointer
	api.errorName.call(uintptr(r), uintptr(unsafe.Pointer(&name)))
	api.errorText.call(uintptr(r), uintptr(unsafe.Pointer(&text)))
	if name == nil || text == nil {
		return fmt.Sprintf("error %d", int32(r))
	}
	return fmt.Sprintf("%s (%s)", cString(text), cString(name))
}

const outOfMemory = result(2)

// call calls the function. Addresses of Go values must be converted in the argument list, where the compiler keeps them
// alive and in place.
//
//go:uintptrescapes
func (f fn) call(args ...uintptr) result {
	r, _, _ := purego.SyscallN(uintptr(f), args...)
	return result(r)
}

func cString(p unsafe.Pointer) string {
	n := 0
	for *(*byte)(unsafe.Add(p, n)) != 0 {
		n++
	}
	return string(unsafe.Slice((*byte)(p), n))
}

// Attributes of devices and kernels, as cuda.h numbers them.
const (
	attrUnits       = 16
	attrMajor       = 75
	attrMinor       = 76
	attrSharedBlock = 97
	funcShared      = 8
	funcCarveOut    = 9
)

func devices() ([]Device, error) {
	if err := load(); err != nil {
		return nil, err
	}
	var n int32
	if r := api.count.call(uintptr(unsafe.Pointer(&n))); r != 0 {
		return nil, nil // as after an init that found none
	}
	ds := make([]Device, n)
	for i := range ds {
		var dev int32
		var total uintptr
		name := make([]byte, 128)
		if r := api.device.call(uintptr(unsafe.Pointer(&dev)), uintptr(i)); r != 0 {
			return nil, fmt.Errorf("looking at GPU %d: %w", i, r)
		}
		if r := api.name.call(uintptr(unsafe.Pointer(&name[0])), uintptr(len(name)-1), uintptr(dev)); r != 0 {
			return nil, fmt.Errorf("asking for the name of GPU %d: %w", i, r)
		}
		if r := api.total.call(uintptr(unsafe.Pointer(&total)), uintptr(dev)); r != 0 {
			return nil, fmt.Errorf("asking for the memory of GPU %d: %w", i, r)
		}
		ds[i] = Device{Index: i, Name: cString(unsafe.Pointer(&name[0])), Memory: int(total),
			Major: attribute(dev, attrMajor), Minor: attribute(dev, attrMinor)}
	}
	return ds, nil
}

func attribute(dev int32, a int) int {
	var v int32
	api.attribute.call(uintptr(unsafe.Pointer(&v)), uintptr(a), uintptr(dev))
	return int(v)
}
