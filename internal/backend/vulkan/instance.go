//go:build !nogpu && ((linux && (amd64 || arm64)) || (windows && amd64) || darwin)

package vulkan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// instance is a connection to Vulkan. There is one for the life of the process, and another one that validates.
type instance struct {
	handle   uintptr
	proc     fn // vkGetInstanceProcAddr
	mu       sync.Mutex
	messages []string // of the validation layer
}

var instances = [2]func() (*instance, error){
	sync.OnceValues(func() (*instance, error) { return newInstance(false) }),
	sync.OnceValues(func() (*instance, error) { return newInstance(true) }),
}

func instanceOf(validate bool) (*instance, error) {
	if validate {
		return instances[1]()
	}
	return instances[0]()
}

func (i *instance) get(name string) fn { return fn(i.proc.call(i.handle, uintptr(cText(name)))) }

func newInstance(validate bool) (*instance, error) {
	i := &instance{}
	for _, name := range libraries() {
		if f, err := openLibrary(name); err == nil {
			i.proc = f
			break
		}
	}
	if i.proc == 0 {
		return nil, ErrNoDriver
	}
	app := &appInfo{head: head{sType: stApplication}, name: cText("strobe"), engine: cText("strobe"), api: 1<<22 | 3<<12}
	ic := &instanceCreate{head: head{sType: stInstanceCreate}, app: app}
	var layers, extensions []unsafe.Pointer
	const portability = "VK_KHR_portability_enumeration" // MoltenVK is only listed with it
	if slices.Contains(names(i.get("vkEnumerateInstanceExtensionProperties"), 0), portability) {
		extensions, ic.flags = append(extensions, cText(portability)), 1
	}
	if validate {
		layers = append(layers, cText("VK_LAYER_KHRONOS_validation"))
		extensions = append(extensions, cText("VK_EXT_debug_utils"))
		const synchronisation = 4 // of copies; the layer does not see memory reached by address
		checks := []int32{synchronisation}
		ic.next = unsafe.Pointer(&validationFeatures{head: head{sType: stValidationFeatures}, nEnabled: 1,
			enabled: &checks[0]})
	}
	if ic.nLayers = uint32(len(layers)); ic.nLayers > 0 {
		ic.layers = unsafe.Pointer(&layers[0])
	}
	if ic.nExt = uint32(len(extensions)); ic.nExt > 0 {
		ic.extensions = unsafe.Pointer(&extensions[0])
	}
	if err := i.get("vkCreateInstance").do(uintptr(unsafe.Pointer(ic)), 0,
		uintptr(unsafe.Pointer(&i.handle))); err != nil {
		if err == noDriver {
			return nil, ErrNoDriver
		}
		return nil, fmt.Errorf("starting Vulkan: %w", err)
	}
	if validate {
		return i, i.listen()
	}
	return i, nil
}

// listen collects what the validation layer says.
func (i *instance) listen() error {
	callback := purego.NewCallback(func(_, _ uintptr, data, _ unsafe.Pointer) uintptr {
		// VkDebugUtilsMessengerCallbackDataEXT: sType, pNext, flags, pMessageIdName, messageIdNumber, pMessage
		text := cString(*(*unsafe.Pointer)(unsafe.Add(data, 40)))
		i.mu.Lock()
		defer i.mu.Unlock()
		i.messages = append(i.messages, text)
		return 0
	})
	const warnings, errors, all = 0x100, 0x1000, 7
	m := &messengerCreate{head: head{sType: stMessenger}, severity: warnings | errors, types: all, callback: callback}
	var handle uint64
	return i.get("vkCreateDebugUtilsMessengerEXT").do(i.handle, uintptr(unsafe.Pointer(m)), 0,
		uintptr(unsafe.Pointer(&handle)))
}

func cString(p unsafe.Pointer) string {
	n := 0
	for *(*byte)(unsafe.Add(p, n)) != 0 {
		n++
	}
	return string(unsafe.Slice((*byte)(p), n))
}

// names lists extensions; of a device, if there is one.
func names(enumerate fn, device uintptr) []string {
	var n uint32
	var list []extension
	ask := func() {
		first := uintptr(0)
		if len(list) > 0 {
			first = uintptr(unsafe.Pointer(&list[0])) // list is on the heap
		}
		if device == 0 {
			enumerate.call(0, uintptr(unsafe.Pointer(&n)), first)
		} else {
			enumerate.call(device, 0, uintptr(unsafe.Pointer(&n)), first)
		}
	}
	if ask(); n == 0 {
		return nil
	}
	list = make([]extension, n)
	ask()
	out := make([]string, n)
	for i := range out {
		out[i] = goText(list[i].Name[:])
	}
	return out
}

// physical is what there is to know of a device before it is opened.
type physical struct {
	handle     uintptr
	properties properties2
	p11        vulkan11Properties
	p13        vulkan13Properties
	driver     driverProperties
	nv         unitsNV
	amd        unitsAMD
	f2         features2
	f11        vulkan11Features
	f12        vulkan12Features
	f13        vulkan13Features
	matrices   matrixFeatures
	shapes     []matrixShape // of cooperative matrices
	memory     memoryProperties
	extensions []string
}

const featureInt64 = 40 // its number in features2

func (i *instance) physical(handle uintptr) *physical {
	p := &physical{handle: handle, extensions: names(i.get("vkEnumerateDeviceExtensionProperties"), handle)}
	// Structures of extensions that the device does not have must not be asked for.
	chain := unsafe.Pointer(nil)
	add := func(h *head, sType uint32, extension string) {
		if extension == "" || slices.Contains(p.extensions, extension) {
			h.sType, h.next = sType, chain
			chain = unsafe.Pointer(h)
		}
	}
	add(&p.p13.head, stVulkan13Properties, "")
	add(&p.p11.head, stVulkan11Properties, "")
	add(&p.driver.head, stDriver, "")
	add(&p.nv.head, stUnitsNV, "VK_NV_shader_sm_builtins")
	add(&p.amd.head, stUnitsAMD, "VK_AMD_shader_core_properties")
	p.properties.head = head{stProperties2, chain}
	i.get("vkGetPhysicalDeviceProperties2").call(handle, uintptr(unsafe.Pointer(&p.properties)))
	chain = nil
	add(&p.f13.head, stVulkan13Features, "")
	add(&p.f12.head, stVulkan12Features, "")
	add(&p.f11.head, stVulkan11Features, "")
	add(&p.matrices.head, stMatrixFeatures, matrixExtension)
	p.f2.head = head{stFeatures2, chain}
	i.get("vkGetPhysicalDeviceFeatures2").call(handle, uintptr(unsafe.Pointer(&p.f2)))
	i.get("vkGetPhysicalDeviceMemoryProperties").call(handle, uintptr(unsafe.Pointer(&p.memory)))
	return p
}

const matrixExtension = "VK_KHR_cooperative_matrix"

// Drivers, as vulkan_core.h numbers them.
const driverAMD, driverAMDOpen, driverMesaAMD = 1, 2, 3

// mayHaveMatrices says whether to ask for them: lanes that share a matrix are a subgroup of 32. AMD's own driver
// crashes on some of its chips when asked, and has none of the right size.
func (p *physical) mayHaveMatrices() bool {
	return p.matrices.Matrices != 0 && p.f12.F[f12MemoryModel] != 0 && p.f12.F[f12Int8] != 0 &&
		p.p13.MinSubgroup <= 32 && p.p13.MaxSubgroup >= 32 && p.f13.F[f13SubgroupSizeControl] != 0 &&
		p.driver.ID != driverAMD
}

// hasMatrices asks whether a device has cooperative matrices of signed bytes: products of 16 x 32 with 32 x 8. It is
// asked when a device is opened, not to list it: some drivers crash here.
func (i *instance) hasMatrices(p *physical) bool {
	ask := i.get("vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR")
	var n uint32
	if ask == 0 || ask.do(p.handle, uintptr(unsafe.Pointer(&n)), 0) != nil || n == 0 {
		return false
	}
	p.shapes = make([]matrixShape, n)
	for i := range p.shapes {
		p.shapes[i].sType = stMatrixProperties
	}
	if ask.do(p.handle, uintptr(unsafe.Pointer(&n)), uintptr(unsafe.Pointer(&p.shapes[0]))) != nil {
		return false
	}
	return slices.ContainsFunc(p.shapes[:n], func(s matrixShape) bool {
		return s.M == 16 && s.N == 8 && s.K == 32 && s.A == componentInt8 && s.B == componentInt8 &&
			s.C == componentInt32 && s.Result == componentInt32 && s.Scope == scopeSubgroup && s.saturates == 0
	})
}

// missing lists what a device lacks.
func (p *physical) missing() string {
	if p.properties.API < 1<<22|3<<12 {
		return fmt.Sprintf("Vulkan 1.3 (it has 1.%d)", p.properties.API>>12&0x3ff)
	}
	var list []string
	for _, f := range []struct {
		has  uint32
		name string
	}{
		{p.f2.F[featureInt64], "64-bit integers"}, {p.f11.Storage16, "16-bit storage"}, {p.f12.F[f12BufferAddress],
			"buffer addresses"},
		{p.f12.F[f12Timeline], "timeline semaphores"}, {p.f13.F[f13Sync2], "synchronization2"}, {p.f13.F[f13IntDot],
			"integer dot products"},
		// The kernels name them even where values pass through shared memory.
		{p.p11.SubgroupOps & subgroupShuffle, "shuffles of subgroups"},
	} {
		if f.has == 0 {
			list = append(list, f.name)
		}
	}
	l := &p.properties.Limits
	if min(l.MaxComputeWorkGroupInvocations, l.MaxComputeWorkGroupSize[0]) < 256 ||
		l.MaxComputeSharedMemorySize < needShared {
		list = append(list, fmt.Sprintf("workgroups of 256 with %d bytes of shared memory", needShared))
	}
	return strings.Join(list, ", ")
}

// needShared is the most shared memory that a kernel has: attention's.
const needShared = 22 << 10

// Kinds of devices and the memory flags that are looked at, as vulkan_core.h numbers them.
const (
	kindIntegrated, kindDiscrete, kindVirtual, kindSoftware = 1, 2, 3, 4

	memoryLocal, memoryVisible, memoryCoherent, memoryCached = 1, 2, 4, 8

	memoryAMD = 0x40 | 0x80 // for debuggers: not cached by the device, and not allowed without a feature of its own
)

func (i *instance) handles() ([]uintptr, error) {
	var n uint32
	list := i.get("vkEnumeratePhysicalDevices")
	if err := list.do(i.handle, uintptr(unsafe.Pointer(&n)), 0); err != nil {
		return nil, fmt.Errorf("listing Vulkan devices: %w", err)
	}
	if n == 0 {
		return nil, nil
	}
	all := make([]uintptr, n)
	if err := list.do(i.handle, uintptr(unsafe.Pointer(&n)), uintptr(unsafe.Pointer(&all[0]))); err != nil {
		return nil, fmt.Errorf("listing Vulkan devices: %w", err)
	}
	return all[:n], nil
}

func devices(validate bool) ([]Device, error) {
	i, err := instanceOf(validate)
	if err != nil {
		return nil, err
	}
	all, err := i.handles()
	if err != nil {
		return nil, err
	}
	var list []Device
	for n, h := range all {
		list = append(list, i.physical(h).device(n))
	}
	return once(list), nil
}

// device describes a device.
func (p *physical) device(number int) Device {
	d := Device{Name: goText(p.properties.Name[:]), number: number, kind: p.properties.Type, uuid: p.p11.deviceUUID,
		Driver:   strings.TrimSpace(goText(p.driver.Name[:]) + " " + goText(p.driver.Info[:])),
		Software: p.properties.Type == kindSoftware, Card: p.properties.Type == kindDiscrete, Missing: p.missing()}
	// Of AMD's drivers Mesa's comes first: it is the one that others test with.
	d.rank = map[uint32]int{driverMesaAMD: 0, driverAMDOpen: 1, driverAMD: 2}[p.driver.ID]
	for _, h := range p.heaps() {
		d.Memory += int(p.memory.Heaps[h].Size)
	}
	return d
}

// heaps are those a device is meant to use: its own, or all where it shares the processor's memory.
func (p *physical) heaps() (list []int) {
	for h := range int(p.memory.NHeaps) {
		if p.memory.Heaps[h].Flags&memoryLocal != 0 || p.properties.Type == kindIntegrated {
			list = append(list, h)
		}
	}
	return list
}

// once sorts devices, software last, and drops those that another driver has already: two drivers of a card report
// the same UUID. One that can be used comes before one that lacks something.
func once(list []Device) []Device {
	slices.SortStableFunc(list, func(a, b Device) int {
		order := map[uint32]int{kindDiscrete: 0, kindIntegrated: 1, kindVirtual: 2, kindSoftware: 4}
		of := func(d Device) int {
			if o, ok := order[d.kind]; ok {
				return o
			}
			return 3
		}
		lacks := func(d Device) int { return min(1, len(d.Missing)) }
		return cmp.Or(cmp.Compare(of(a), of(b)), cmp.Compare(lacks(a), lacks(b)), cmp.Compare(a.rank, b.rank))
	})
	var out []Device
	for _, d := range list {
		if slices.ContainsFunc(out, func(o Device) bool { return o.uuid == d.uuid && o.uuid != [16]byte{} }) {
			continue
		}
		d.Index = len(out)
		out = append(out, d)
	}
	return out
}
