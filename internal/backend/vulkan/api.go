//go:build !nogpu && ((linux && (amd64 || arm64)) || (windows && amd64) || darwin)

package vulkan

// The small part of Vulkan 1.3 that is used here, called without cgo. Structures are written by hand, with Go's
// alignment equal to C's on 64-bit systems (layout_test.go states the sizes of the C headers). Pointers inside
// structures are unsafe.Pointer, never uintptr: the collector sees them, and what they point to lies on the heap,
// which does not move.

import (
	"fmt"
	"runtime"
	"unsafe"

	"github.com/ebitengine/purego"
)

// result is a VkResult; negative ones are errors.
type result int32

const (
	timeout     result = 2
	outOfDevice result = -2
	deviceLost  result = -4
	noDriver    result = -9
)

// errorWords are those of the errors -1, -2 and so on.
var errorWords = [...]string{1: "out of host memory", "out of device memory", "initialisation failed",
	"the device is lost", "memory cannot be mapped", "a layer is not present", "an extension is not present",
	"a feature is not present", "the driver is incompatible", "too many objects", "a format is not supported",
	"a pool is fragmented", "unknown error of the driver"}

func (r result) Error() string {
	if n := -int(r); n > 0 && n < len(errorWords) {
		return errorWords[n]
	}
	return fmt.Sprintf("Vulkan error %d", int32(r))
}

func libraries() []string {
	switch runtime.GOOS {
	case "windows":
		return []string{"vulkan-1.dll"}
	case "darwin":
		return []string{"libvulkan.1.dylib", "libMoltenVK.dylib"}
	}
	return []string{"libvulkan.so.1"}
}

// fn is the address of a function of the loader or a driver.
type fn uintptr

// do calls a function that returns a VkResult; positive results (incomplete, timeout) are no errors.
//
// Callers convert pointers inside the call, uintptr(unsafe.Pointer(x)): only then does the directive below keep x on
// the heap and alive. A helper that returns the uintptr would break that.
//
//go:uintptrescapes
func (f fn) do(args ...uintptr) error {
	r, _, _ := purego.SyscallN(uintptr(f), args...)
	if v := result(int32(r)); v < 0 {
		return v
	}
	return nil
}

//go:uintptrescapes
func (f fn) call(args ...uintptr) uintptr {
	r, _, _ := purego.SyscallN(uintptr(f), args...)
	return r
}

// cText returns a NUL-terminated copy.
func cText(s string) unsafe.Pointer {
	b := append([]byte(s), 0)
	return unsafe.Pointer(&b[0])
}

func goText(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}

// Structure types.
const (
	stApplication         = 0
	stInstanceCreate      = 1
	stDeviceQueueCreate   = 2
	stDeviceCreate        = 3
	stMemoryAllocate      = 5
	stQueryPoolCreate     = 11
	stBufferCreate        = 12
	stShaderModuleCreate  = 16
	stPipelineCacheCreate = 17
	stShaderStage         = 18
	stComputePipeline     = 29
	stPipelineLayout      = 30
	stSemaphoreCreate     = 9
	stCommandPoolCreate   = 39
	stCommandBufferAlloc  = 40
	stCommandBufferBegin  = 42
	stFeatures2           = 1000059000
	stProperties2         = 1000059001
	stMemAllocFlags       = 1000060000
	stVulkan11Features    = 49
	stVulkan11Properties  = 50
	stVulkan12Features    = 51
	stVulkan13Features    = 53
	stVulkan13Properties  = 54
	stSemaphoreType       = 1000207002
	stSemaphoreWait       = 1000207004
	stBufferAddress       = 1000244001
	stRequiredSubgroup    = 1000225001
	stMemoryBarrier2      = 1000314000
	stDependency          = 1000314003
	stSubmit2             = 1000314004
	stSemaphoreSubmit     = 1000314005
	stCommandSubmit       = 1000314006
	stMessenger           = 1000128004
	stValidationFeatures  = 1000247000
	stMemoryProperties2   = 1000059006
	stMemoryBudget        = 1000237000
	stDriver              = 1000196000
	stUnitsNV             = 1000154001
	stUnitsAMD            = 1000185000
	stMatrixFeatures      = 1000506000
	stMatrixProperties    = 1000506001
)

type head struct {
	sType uint32
	next  unsafe.Pointer
}

type appInfo struct {
	head
	name   unsafe.Pointer
	_      uint32
	engine unsafe.Pointer
	_      uint32
	api    uint32
}

type instanceCreate struct {
	head
	flags      uint32
	app        *appInfo
	nLayers    uint32
	layers     unsafe.Pointer
	nExt       uint32
	extensions unsafe.Pointer
}

type messengerCreate struct {
	head
	flags    uint32
	severity uint32
	types    uint32
	callback uintptr
	user     unsafe.Pointer
}

type validationFeatures struct {
	head
	nEnabled  uint32
	enabled   *int32
	nDisabled uint32
	disabled  unsafe.Pointer
}

// limits is VkPhysicalDeviceLimits, as far as compute needs it.
type limits struct {
	_                               [28]byte
	MaxStorageBufferRange           uint32
	MaxPushConstantsSize            uint32
	MaxMemoryAllocationCount        uint32
	_                               [176]byte
	MaxComputeSharedMemorySize      uint32
	MaxComputeWorkGroupCount        [3]uint32
	MaxComputeWorkGroupInvocations  uint32
	MaxComputeWorkGroupSize         [3]uint32
	_                               [80]byte
	MinStorageBufferOffsetAlignment uint64
	_                               [88]byte
	TimestampPeriod                 float32
	_                               [68]byte
	NonCoherentAtomSize             uint64
}

type properties struct {
	API, Driver, Vendor, Device, Type uint32
	Name                              [256]byte
	CacheUUID                         [16]byte
	Limits                            limits
	sparse                            [5]uint32
}

type properties2 struct {
	head
	properties
}

type vulkan11Properties struct {
	head
	deviceUUID, _               [16]byte
	_                           [8]byte
	_                           uint32
	_                           uint32
	SubgroupSize                uint32
	SubgroupStages, SubgroupOps uint32
	_                           uint32
	_                           uint32
	_, _                        uint32
	_                           uint32
	_                           uint32
	MaxMemoryAllocationSize     uint64
}

type vulkan13Properties struct {
	head
	MinSubgroup, MaxSubgroup uint32
	MaxWorkgroupSubgroups    uint32
	RequiredSubgroupStages   uint32
	_                        [5]uint32 // inline uniform blocks
	_                        uint32
	IntDot                   [30]uint32 // 4x8 packed signed is number 4
	_                        [2]uint64  // storage texel buffers
	_                        [2]uint64
	MaxBufferSize            uint64
}

type features struct{ F [55]uint32 }

type features2 struct {
	head
	features
}

type vulkan11Features struct {
	head
	Storage16, Uniform16, Push16, IO16 uint32
	multiview                          [3]uint32
	varPointersSB, varPointers         uint32
	protected, ycbcr, drawParams       uint32
}

type vulkan12Features struct {
	head
	F [47]uint32
}

// Numbers of features in vulkan12Features.
const (
	f12Storage8         = 2
	f12Float16          = 7
	f12Int8             = 8
	f12HostQueryReset   = 36
	f12Timeline         = 37
	f12BufferAddress    = 38
	f12MemoryModel      = 41
	f12MemoryModelScope = 42
)

type vulkan13Features struct {
	head
	F [15]uint32
}

// Numbers of features in vulkan13Features.
const (
	f13SubgroupSizeControl = 7
	f13FullSubgroups       = 8
	f13Sync2               = 9
	f13IntDot              = 13
	f13Maintenance4        = 14
)

type queueFamily struct {
	Flags, Count, TimestampBits uint32
	granularity                 [3]uint32
}

type memoryType struct{ Flags, Heap uint32 }
type memoryHeap struct {
	Size  uint64
	Flags uint32
}
type memoryProperties struct {
	NTypes uint32
	Types  [32]memoryType
	NHeaps uint32
	Heaps  [16]memoryHeap
}

type queueCreate struct {
	head
	_, family, count uint32
	priorities       *float32
}

type deviceCreate struct {
	head
	flags      uint32
	nQueues    uint32
	queues     *queueCreate
	nLayers    uint32
	layers     unsafe.Pointer
	nExt       uint32
	extensions unsafe.Pointer
	features   unsafe.Pointer
}

type bufferCreate struct {
	head
	flags    uint32
	size     uint64
	usage    uint32
	sharing  uint32
	nFamily  uint32
	families unsafe.Pointer
}

type memoryRequirements struct {
	Size, Align uint64
	Types       uint32
}

type memoryAllocate struct {
	head
	size uint64
	typ  uint32
}

type memoryAllocFlags struct {
	head
	flags, mask uint32
}

type bufferAddress struct {
	head
	buffer uint64
}

type shaderModuleCreate struct {
	head
	flags uint32
	size  uint64
	code  unsafe.Pointer
}

type pushRange struct{ stages, _, size uint32 }

type layoutCreate struct {
	head
	flags   uint32
	nSets   uint32
	sets    unsafe.Pointer
	nRanges uint32
	ranges  *pushRange
}

type specEntry struct {
	id, offset uint32
	size       uint64
}

type specInfo struct {
	n       uint32
	entries unsafe.Pointer
	size    uint64
	data    unsafe.Pointer
}

type requiredSubgroup struct {
	head
	size uint32
}

type shaderStage struct {
	head
	flags  uint32
	stage  uint32
	module uint64
	name   unsafe.Pointer
	spec   *specInfo
}

type computePipeline struct {
	head
	flags  uint32
	stage  shaderStage
	layout uint64
	base   uint64
	index  int32
}

type pipelineCacheCreate struct {
	head
	flags uint32
	size  uint64
	data  unsafe.Pointer
}

type commandPoolCreate struct {
	head
	flags, family uint32
}

type commandBufferAlloc struct {
	head
	pool  uint64
	level uint32
	count uint32
}

type commandBufferBegin struct {
	head
	flags   uint32
	inherit unsafe.Pointer
}

type memoryBarrier2 struct {
	head
	srcStage, srcAccess, dstStage, dstAccess uint64
}

type dependency struct {
	head
	flags uint32
	nMem  uint32
	mem   *memoryBarrier2
	nBuf  uint32
	buf   unsafe.Pointer
	nImg  uint32
	img   unsafe.Pointer
}

type semaphoreType struct {
	head
	typ     uint32
	initial uint64
}

type semaphoreCreate struct {
	head
	flags uint32
}

type semaphoreSubmit struct {
	head
	semaphore uint64
	value     uint64
	stages    uint64
	_         uint32
}

type commandSubmit struct {
	head
	buffer uintptr
	_      uint32
}

type submit2 struct {
	head
	flags   uint32
	nWait   uint32
	wait    *semaphoreSubmit
	nCmd    uint32
	cmd     *commandSubmit
	nSignal uint32
	signal  *semaphoreSubmit
}

type semaphoreWait struct {
	head
	flags      uint32
	count      uint32
	semaphores *uint64
	values     *uint64
}

type queryPoolCreate struct {
	head
	flags uint32
	typ   uint32
	count uint32
	stats uint32
}

type bufferCopy struct{ src, dst, size uint64 }

type memoryProperties2 struct {
	head
	memoryProperties
}

type memoryBudget struct {
	head
	Budget, Usage [16]uint64
}

type driverProperties struct {
	head
	ID         uint32
	Name, Info [256]byte
	_          [4]byte
}

// unitsNV is VkPhysicalDeviceShaderSMBuiltinsPropertiesNV.
type unitsNV struct {
	head
	Units, _ uint32
}

// unitsAMD is VkPhysicalDeviceShaderCorePropertiesAMD.
type unitsAMD struct {
	head
	Engines, Arrays, Units uint32
	_                      [11]uint32
}

// matrixFeatures is VkPhysicalDeviceCooperativeMatrixFeaturesKHR.
type matrixFeatures struct {
	head
	Matrices, robust uint32
}

// matrixShape is VkCooperativeMatrixPropertiesKHR: sizes, types of what is multiplied and added, scope.
type matrixShape struct {
	head
	M, N, K          uint32
	A, B, C, Result  uint32
	saturates, Scope uint32
}

// Components of matrices, and the scope of a subgroup.
const (
	componentInt8  = 3
	componentInt32 = 5
	scopeSubgroup  = 3
)

type extension struct {
	Name    [256]byte
	version uint32
}
