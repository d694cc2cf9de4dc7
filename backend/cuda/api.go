//go:build !nogpu && ((linux && (amd64 || arm64)) || (windows && amd64))

package cuda

import (
	"fmt"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// fn is a function of the driver's library.
type fn struct {
	name string
	at   uintptr
}

// api is what we use of the driver's library. Names with a version are what cuda.h makes of the plain ones.
var api = struct {
	init, count, device, name, attribute, total, errorName, errorText             fn
	retain, release, setCurrent, memInfo                                          fn
	alloc, free, hostAlloc, hostFree, toDevice, toHost, onDevice, fill            fn
	streamCreate, streamDestroy, streamSync, eventCreate, eventDestroy            fn
	eventRecord, eventSync                                                        fn
	moduleLoad, moduleUnload, function, functionSet, launch                       fn
	captureBegin, captureEnd, instantiate, graphDestroy, execDestroy, graphLaunch fn
}{
	init: fn{name: "cuInit"}, count: fn{name: "cuDeviceGetCount"}, device: fn{name: "cuDeviceGet"}, name: fn{name: "cuDeviceGetName"},
	attribute: fn{name: "cuDeviceGetAttribute"}, total: fn{name: "cuDeviceTotalMem_v2"}, errorName: fn{name: "cuGetErrorName"},
	errorText: fn{name: "cuGetErrorString"}, retain: fn{name: "cuDevicePrimaryCtxRetain"}, release: fn{name: "cuDevicePrimaryCtxRelease_v2"},
	setCurrent: fn{name: "cuCtxSetCurrent"}, memInfo: fn{name: "cuMemGetInfo_v2"}, alloc: fn{name: "cuMemAlloc_v2"}, free: fn{name: "cuMemFree_v2"},
	hostAlloc: fn{name: "cuMemHostAlloc"}, hostFree: fn{name: "cuMemFreeHost"}, toDevice: fn{name: "cuMemcpyHtoDAsync_v2"},
	toHost: fn{name: "cuMemcpyDtoHAsync_v2"}, onDevice: fn{name: "cuMemcpyDtoDAsync_v2"}, fill: fn{name: "cuMemsetD8Async"},
	streamCreate: fn{name: "cuStreamCreate"}, streamDestroy: fn{name: "cuStreamDestroy_v2"}, streamSync: fn{name: "cuStreamSynchronize"},
	eventCreate: fn{name: "cuEventCreate"}, eventDestroy: fn{name: "cuEventDestroy_v2"}, eventRecord: fn{name: "cuEventRecord"},
	eventSync: fn{name: "cuEventSynchronize"}, moduleLoad: fn{name: "cuModuleLoadDataEx"}, moduleUnload: fn{name: "cuModuleUnload"},
	function: fn{name: "cuModuleGetFunction"}, functionSet: fn{name: "cuFuncSetAttribute"}, launch: fn{name: "cuLaunchKernelEx"},
	captureBegin: fn{name: "cuStreamBeginCapture_v2"}, captureEnd: fn{name: "cuStreamEndCapture"},
	instantiate: fn{name: "cuGraphInstantiateWithFlags"}, graphDestroy: fn{name: "cuGraphDestroy"}, execDestroy: fn{name: "cuGraphExecDestroy"},
	graphLaunch: fn{name: "cuGraphLaunch"},
}

// load finds the library and its functions, once.
var load = sync.OnceValue(func() error {
	lib, err := openLibrary()
	if err != nil {
		return ErrNoDriver
	}
	a := &api
	for _, f := range []*fn{&a.init, &a.count, &a.device, &a.name, &a.attribute, &a.total, &a.errorName, &a.errorText, &a.retain, &a.release,
		&a.setCurrent, &a.memInfo, &a.alloc, &a.free, &a.hostAlloc, &a.hostFree, &a.toDevice, &a.toHost, &a.onDevice, &a.fill, &a.streamCreate,
		&a.streamDestroy, &a.streamSync, &a.eventCreate, &a.eventDestroy, &a.eventRecord, &a.eventSync, &a.moduleLoad, &a.moduleUnload,
		&a.function, &a.functionSet, &a.launch, &a.captureBegin, &a.captureEnd, &a.instantiate, &a.graphDestroy, &a.execDestroy, &a.graphLaunch} {
		if f.at, err = symbol(lib, f.name); err != nil {
			return fmt.Errorf("the NVIDIA driver is too old: it has no %s", f.name)
		}
	}
	if r := a.init.call(0); r != 0 {
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

// call calls the function. Addresses of Go values must be converted in the argument list, where the compiler keeps them alive
// and in place.
//
//go:uintptrescapes
func (f *fn) call(args ...uintptr) result {
	r, _, _ := purego.SyscallN(f.at, args...)
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
