//go:build !nogpu && ((linux && (amd64 || arm64)) || (windows && amd64) || darwin)

package vulkan

import (
	"testing"
	"unsafe"
)

// TestLayout: the sizes and offsets of the C headers (64 bit), version 1.3.239.
func TestLayout(t *testing.T) {
	for _, c := range []struct {
		name      string
		got, want uintptr
	}{
		{"Limits", unsafe.Sizeof(limits{}), 504},
		{"Properties", unsafe.Sizeof(properties{}), 824},
		{"Properties2", unsafe.Sizeof(properties2{}), 840},
		{"Vulkan11Properties", unsafe.Sizeof(vulkan11Properties{}), 112},
		{"Vulkan13Properties", unsafe.Sizeof(vulkan13Properties{}), 216},
		{"Vulkan11Features", unsafe.Sizeof(vulkan11Features{}), 64},
		{"Vulkan12Features", unsafe.Sizeof(vulkan12Features{}), 208},
		{"Vulkan13Features", unsafe.Sizeof(vulkan13Features{}), 80},
		{"Features2", unsafe.Sizeof(features2{}), 240},
		{"MemoryProperties", unsafe.Sizeof(memoryProperties{}), 520},
		{"QueueFamily", unsafe.Sizeof(queueFamily{}), 24},
		{"Application", unsafe.Sizeof(appInfo{}), 48},
		{"InstanceCreate", unsafe.Sizeof(instanceCreate{}), 64},
		{"Messenger", unsafe.Sizeof(messengerCreate{}), 48},
		{"ValidationFeatures", unsafe.Sizeof(validationFeatures{}), 48},
		{"QueueCreate", unsafe.Sizeof(queueCreate{}), 40},
		{"DeviceCreate", unsafe.Sizeof(deviceCreate{}), 72},
		{"BufferCreate", unsafe.Sizeof(bufferCreate{}), 56},
		{"MemoryRequirements", unsafe.Sizeof(memoryRequirements{}), 24},
		{"MemoryAllocate", unsafe.Sizeof(memoryAllocate{}), 32},
		{"MemoryAllocFlags", unsafe.Sizeof(memoryAllocFlags{}), 24},
		{"BufferAddress", unsafe.Sizeof(bufferAddress{}), 24},
		{"ShaderModule", unsafe.Sizeof(shaderModuleCreate{}), 40},
		{"PipelineLayout", unsafe.Sizeof(layoutCreate{}), 48},
		{"SpecEntry", unsafe.Sizeof(specEntry{}), 16},
		{"SpecInfo", unsafe.Sizeof(specInfo{}), 32},
		{"RequiredSubgroup", unsafe.Sizeof(requiredSubgroup{}), 24},
		{"ShaderStage", unsafe.Sizeof(shaderStage{}), 48},
		{"ComputePipeline", unsafe.Sizeof(computePipeline{}), 96},
		{"PipelineCache", unsafe.Sizeof(pipelineCacheCreate{}), 40},
		{"CommandPool", unsafe.Sizeof(commandPoolCreate{}), 24},
		{"CommandBufferAlloc", unsafe.Sizeof(commandBufferAlloc{}), 32},
		{"CommandBufferBegin", unsafe.Sizeof(commandBufferBegin{}), 32},
		{"MemoryBarrier2", unsafe.Sizeof(memoryBarrier2{}), 48},
		{"Dependency", unsafe.Sizeof(dependency{}), 64},
		{"SemaphoreType", unsafe.Sizeof(semaphoreType{}), 32},
		{"SemaphoreCreate", unsafe.Sizeof(semaphoreCreate{}), 24},
		{"SemaphoreSubmit", unsafe.Sizeof(semaphoreSubmit{}), 48},
		{"CommandSubmit", unsafe.Sizeof(commandSubmit{}), 32},
		{"Submit2", unsafe.Sizeof(submit2{}), 64},
		{"SemaphoreWait", unsafe.Sizeof(semaphoreWait{}), 40},
		{"QueryPool", unsafe.Sizeof(queryPoolCreate{}), 32},
		{"MemoryProperties2", unsafe.Sizeof(memoryProperties2{}), 536},
		{"MemoryBudget", unsafe.Sizeof(memoryBudget{}), 272},
		{"Driver", unsafe.Sizeof(driverProperties{}), 536},
		{"UnitsNV", unsafe.Sizeof(unitsNV{}), 24},
		{"UnitsAMD", unsafe.Sizeof(unitsAMD{}), 72},
		{"Extension", unsafe.Sizeof(extension{}), 260},
		{"BufferCopy", unsafe.Sizeof(bufferCopy{}), 24},
		{"maxComputeSharedMemorySize", unsafe.Offsetof(limits{}.MaxComputeSharedMemorySize), 216},
		{"maxComputeWorkGroupCount", unsafe.Offsetof(limits{}.MaxComputeWorkGroupCount), 220},
		{"minStorageBufferOffsetAlignment", unsafe.Offsetof(limits{}.MinStorageBufferOffsetAlignment), 328},
		{"timestampPeriod", unsafe.Offsetof(limits{}.TimestampPeriod), 424},
		{"nonCoherentAtomSize", unsafe.Offsetof(limits{}.NonCoherentAtomSize), 496},
		{"maxMemoryAllocationSize", unsafe.Offsetof(vulkan11Properties{}.MaxMemoryAllocationSize), 104},
		{"subgroupSize", unsafe.Offsetof(vulkan11Properties{}.SubgroupSize), 64},
		{"integerDotProduct", unsafe.Offsetof(vulkan13Properties{}.IntDot), 56},
		{"maxBufferSize", unsafe.Offsetof(vulkan13Properties{}.MaxBufferSize), 208},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d, C has %d", c.name, c.got, c.want)
		}
	}
}
