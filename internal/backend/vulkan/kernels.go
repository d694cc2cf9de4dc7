//go:build !nogpu && ((linux && (amd64 || arm64)) || (windows && amd64) || darwin)

package vulkan

import (
	"bytes"
	"compress/gzip"
	"embed"
	"fmt"
	"io"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"strobe/internal/backend/gpu"
)

// The compiled kernels: NAME.spv.gz, made by kernel/build.
//
//go:embed kernel/spv
var spvFiles embed.FS

// kernel is a compiled kernel: a module with values for its constants. It is compiled when it is first launched.
type kernel struct {
	name     string
	shader   gpu.Shader
	pipeline uint64
}

// pushBytes is what every device has room for in push constants: an address, or the arguments of some kernels.
const pushBytes = 128

// shaderOf is what a kernel runs, unless a test wants another.
var shaderOf = gpu.Kernel.Shader

// Kernel finds a kernel.
func (d *Driver) Kernel(kind gpu.Kernel) (gpu.Handle, error) {
	k := d.kernels[kind]
	if k == nil {
		k = &kernel{name: kind.Name(), shader: shaderOf(kind)}
		if k.shader.Module == "" {
			return nil, fmt.Errorf("%s: kernel %s is for CUDA only", d.dev.Name, k.name)
		}
		d.kernels[kind] = k
	}
	return k, nil
}

// matrixModule is matrix.comp compiled for cooperative matrices, which are used with shuffles alone.
const matrixModule = "matrix_nv"

// narrow are the modules whose workgroups have 32 threads.
var narrow = map[string]bool{"route": true, "select_merge": true}

// module loads SPIR-V.
func (d *Driver) module(name string) (uint64, error) {
	if m, ok := d.modules[name]; ok {
		return m, nil
	}
	b, err := spirv(name)
	if err == nil && name == matrixModule {
		b, err = khronos(b)
	}
	if err != nil {
		return 0, err
	}
	words := make([]uint32, len(b)/4)
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(b)), b)
	mc := &shaderModuleCreate{head: head{sType: stShaderModuleCreate}, size: uint64(len(b)),
		code: unsafe.Pointer(&words[0])}
	var m uint64
	if err := d.f.createModule.do(d.handle, uintptr(unsafe.Pointer(mc)), 0, uintptr(unsafe.Pointer(&m))); err != nil {
		return 0, err
	}
	d.modules[name] = m
	return m, nil
}

// spirv unpacks an embedded module.
func spirv(name string) ([]byte, error) {
	b, err := spvFiles.ReadFile("kernel/spv/" + name + ".spv.gz")
	if err != nil {
		return nil, err
	}
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return io.ReadAll(z)
}

// Prepare compiles the kernels of launches that are not compiled yet, all at once: a driver may take seconds for each.
func (d *Driver) Prepare(ls []gpu.Launch) error {
	start := time.Now()
	defer func() { d.spent += time.Since(start) }()
	var wait sync.WaitGroup
	cores := make(chan struct{}, runtime.NumCPU())
	asked := map[*kernel]*error{}
	for i := range ls {
		k, ok := ls[i].Kernel.(*kernel)
		if !ok || k.pipeline != 0 || asked[k] != nil || d.err != nil {
			continue
		}
		failed := new(error)
		asked[k] = failed
		var create func() error
		if create, *failed = d.pipeline(k); *failed == nil {
			wait.Go(func() {
				cores <- struct{}{}
				defer func() { <-cores }()
				*failed = create()
			})
		}
	}
	wait.Wait()
	for k, failed := range asked {
		if *failed != nil {
			return fmt.Errorf("%s: compiling kernel %s: %w", d.dev.Name, k.name, *failed)
		}
	}
	return nil
}

// Compiling is how long pipelines were made.
func (d *Driver) Compiling() time.Duration { return d.spent }

// compile makes the pipeline of a kernel, if there is none yet.
func (d *Driver) compile(k *kernel) error {
	if k.pipeline != 0 {
		return nil
	}
	start := time.Now()
	defer func() { d.spent += time.Since(start) }()
	create, err := d.pipeline(k)
	if err != nil {
		return err
	}
	return create()
}

// pipeline returns what makes the pipeline of a kernel, in any thread.
func (d *Driver) pipeline(k *kernel) (func() error, error) {
	module, lanes := k.shader.Module, d.phys.p11.SubgroupSize
	if module == "matrix" && !d.opt.Loops {
		module, lanes = matrixModule, 32
	}
	m, err := d.module(module)
	if err != nil {
		return nil, err
	}
	values := append([]uint32{0}, k.shader.Constants...)
	if module == "attend" && d.dev.Software {
		values[6] = 4 // values that are asked for at once: compiling takes longer than running
	}
	// Subgroups must be whole, so in a workgroup smaller than one of them values pass through shared memory; and in one
	// that would have too many of them.
	shuffles := d.shuffles && (lanes <= 32 || !narrow[module]) &&
		(module != "delta_whole" || lanes*d.phys.p13.MaxWorkgroupSubgroups >= 1024)
	if shuffles {
		values[0] = 1
	}
	entries := make([]specEntry, len(values))
	for i := range entries {
		entries[i] = specEntry{id: uint32(i), offset: uint32(4 * i), size: 4}
	}
	spec := &specInfo{n: uint32(len(values)), entries: unsafe.Pointer(&entries[0]), size: uint64(4 * len(values)),
		data: unsafe.Pointer(&values[0])}
	pc := &computePipeline{head: head{sType: stComputePipeline}, layout: d.layout, index: -1}
	pc.stage = shaderStage{head: head{sType: stShaderStage}, stage: stageCompute, module: m, name: cText("main"),
		spec: spec}
	if shuffles {
		// Lanes are numbered by subgroups, which must then be whole, and of one size.
		const fullSubgroups = 2
		pc.stage.flags = fullSubgroups
		pc.stage.next = unsafe.Pointer(&requiredSubgroup{head: head{sType: stRequiredSubgroup},
			size: lanes})
	}
	d.compiled++
	return func() error {
		defer runtime.KeepAlive(pc)
		return d.f.createPipelines.do(d.handle, uintptr(d.cache), 1, uintptr(unsafe.Pointer(pc)), 0,
			uintptr(unsafe.Pointer(&k.pipeline)))
	}, nil
}

const subgroupShuffle = 0x10 // an operation of subgroups

// canShuffle reports whether the device claims what the kernels' shuffles need.
func (d *Driver) canShuffle() bool {
	p := d.phys
	size := p.p11.SubgroupSize
	return p.p11.SubgroupOps&subgroupShuffle != 0 && p.p11.SubgroupStages&stageCompute != 0 &&
		p.f13.F[f13SubgroupSizeControl] != 0 &&
		p.f13.F[f13FullSubgroups] != 0 && p.p13.RequiredSubgroupStages&stageCompute != 0 && size >= p.p13.MinSubgroup &&
		size <= p.p13.MaxSubgroup &&
		size >= 4 && size <= 64 && size*p.p13.MaxWorkgroupSubgroups >= 256 && 32%min(size, 32) == 0
}
