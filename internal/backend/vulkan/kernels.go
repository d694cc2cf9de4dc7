//go:build !nogpu && ((linux && (amd64 || arm64)) || (windows && amd64) || darwin)

package vulkan

import (
	"bytes"
	"compress/gzip"
	"embed"
	"fmt"
	"io"
	"runtime"
	"strings"
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
	pipeline uint64
}

// pushBytes is what every device has room for in push constants: an address, or the parameter of a kernel of pushed.
const pushBytes = 128

// pushed are the kernels whose parameter is a push constant. Reading it from memory takes them 0.3 us on an H200, and
// there are 256 of them in a pass of a 27B model.
var pushed = map[string]bool{"pack": true, "add_pack": true, "gated_pack": true, "sigmoid_pack": true,
	"head_pack": true, "merge_pack": true}

// Kernel finds a kernel.
func (d *Driver) Kernel(name string) (gpu.Kernel, error) {
	k := d.kernels[name]
	if k == nil {
		k = &kernel{name: name}
		d.kernels[name] = k
	}
	return k, nil
}

// Modules of kernels that are named as backend/gpu names them, and the values of their constants from number 1 on.
// Number 0 says how lanes exchange values.
var plainKernels = map[string]variant{
	"small_copy": {"elements", []uint32{0}}, "small_add": {"elements", []uint32{1}}, "small_bias": {"elements",
		[]uint32{2}},
	"small_scale": {"elements", []uint32{3}}, "small_silu": {"elements", []uint32{4}}, "small_gelu": {"elements",
		[]uint32{5}},
	"small_sigmoid": {"elements", []uint32{6}}, "small_softcap": {"elements", []uint32{7}}, "small_gather": {"elements",
		[]uint32{8}},
	"small_add_gated": {"elements", []uint32{9}}, "small_norm_short": {"norm", []uint32{32, 128}},
	"small_norm_long": {"norm", []uint32{256, 256}},
	"small_angles":    {"angles", nil}, "small_rope": {"rope", nil}, "small_block_conv": {"block_conv", nil},
	"small_expert_sum": {"expert_sum", nil}, "small_scatter": {"scatter", nil}, "select_route": {"route", nil},
	"select_max_parts": {"select_parts", []uint32{0}}, "select_top_parts": {"select_parts", []uint32{1}},
	"select_merge": {"select_merge", nil}, "select_groups": {"select_groups", nil},
	"select_weights": {"select_weights", nil}, "select_candidates": {"select_candidates", nil},
	"pack": {"pack", nil}, "add_pack": {"add_pack", nil}, "add_norm": {"add_norm", nil},
	"gated_pack":   {"gated_pack", nil},
	"sigmoid_pack": {"sigmoid_pack", nil}, "merge_pack": {"merge_pack", nil}, "head_pack": {"head_pack", nil},
	"reduce_pieces": {"reduce", nil},
	"embed":         {"embed", nil},
	"moe_group":     {"group", nil}, "kv_write": {"kv_write", nil}, "qkv_write": {"qkv_write", []uint32{0}},
	"qkv_write_floats": {"qkv_write", []uint32{1}}, "kv_move": {"kv_move", nil}, "merge": {"merge", nil},
	"rotate": {"rotate", []uint32{0}}, "unrotate": {"rotate", []uint32{1}},
	"sparse_means": {"sparse_means", nil}, "sparse_weights": {"sparse_weights", nil}, "sparse_keep": {"sparse_keep", nil},
	"weigh_logits": {"weigh", []uint32{0}}, "weigh_sums": {"weigh", []uint32{1}}, "weigh_most": {"weigh", []uint32{2}},
	"read":       {"read", nil},
	"delta_conv": {"delta_conv", nil}, "delta_conv4": {"delta_conv4", nil},
	"delta_prepare": {"delta_prepare", nil}, "delta_prepare4": {"delta_prepare4", nil},
	"delta_shift": {"delta_shift", nil}, "delta_rule_128": {"delta_rule", []uint32{8, 1}},
	"delta_whole": {"delta_whole", nil},
}

type variant struct {
	module string
	consts []uint32
}

var floatTypes = map[string]uint32{"f32": 0, "f16": 1, "bf16": 2}

// matrixModule is matrix.comp compiled for cooperative matrices, which are used with shuffles alone.
const matrixModule = "matrix_nv"

// narrow are the modules whose workgroups have 32 threads.
var narrow = map[string]bool{"route": true, "select_merge": true}

// variantOf returns the module of a kernel and its constants.
func variantOf(name string) (variant, error) {
	if v, ok := plainKernels[name]; ok {
		return v, nil
	}
	var n, t uint32
	parts := strings.Split(name, "_")
	count := func(format string) bool { c, err := fmt.Sscanf(name, format, &n); return err == nil && c == 1 }
	switch {
	case count("delta_rule_any_%d"):
		return variant{"delta_rule", []uint32{n / 16}}, nil
	case len(parts) == 5 && parts[0] == "attend": // rows, dimensions, types of keys and values
		v := variant{"attend", make([]uint32, 6)}
		c := v.consts
		if _, err := fmt.Sscanf(name, "attend_%d_%d_%d_%d", &c[0], &c[1], &c[3], &c[4]); err == nil {
			c[2] = max(1, c[1]/256) // pairs of dimensions of a thread
			c[5] = 8                // values that are asked for at once
			return v, nil
		}
	case len(parts) == 3 && (parts[0] == "rows" || parts[0] == "experts"): // format, tokens
		f, ok := gpu.PlainFormat(parts[1])
		if _, err := fmt.Sscan(parts[2], &t); err == nil && ok {
			return variant{map[string]string{"rows": "product", "experts": "experts"}[parts[0]],
				[]uint32{uint32(f), t}}, nil
		}
	case len(parts) == 4 && parts[0] == "tiles": // tiles_q4k_64_256: format, tokens, threads
		f, ok := gpu.PlainFormat(parts[1])
		if _, err := fmt.Sscan(parts[2]+" "+parts[3], &t, &n); err == nil && ok {
			return variant{"matrix", []uint32{uint32(f), t, n}}, nil
		}
	case len(parts) == 4 && parts[0] == "float":
		v := variant{"float", []uint32{floatTypes[parts[2]], 1, 0, 0}}
		if _, err := fmt.Sscan(parts[3], &t); err == nil {
			v.consts[1], v.consts[2] = t, 1
		}
		if parts[1] == "narrow" {
			v.consts[3] = 1
		}
		return v, nil
	}
	return variant{}, fmt.Errorf("there is no such kernel")
}

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
	v, err := variantOf(k.name)
	if err != nil {
		return nil, err
	}
	lanes := d.phys.p11.SubgroupSize
	if v.module == "matrix" && !d.opt.Loops {
		v.module, lanes = matrixModule, 32
	}
	if v.module == "attend" && d.dev.Software {
		v.consts[5] = 4 // compiling takes longer than running
	}
	m, err := d.module(v.module)
	if err != nil {
		return nil, err
	}
	values := append([]uint32{0}, v.consts...)
	// Subgroups must be whole, so in a workgroup smaller than one of them values pass through shared memory; and in one
	// that would have too many of them.
	shuffles := d.shuffles && (lanes <= 32 || !narrow[v.module]) &&
		(v.module != "delta_whole" || lanes*d.phys.p13.MaxWorkgroupSubgroups >= 1024)
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
