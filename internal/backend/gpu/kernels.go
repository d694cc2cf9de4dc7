package gpu

import (
	"fmt"
	"strings"

	"strobe/internal/quant"
)

// This file is the catalogue of kernels: what each is called in the CUDA sources, which shader Vulkan runs for it, and
// which structure it takes as its only parameter. Tests compare it with the sources of both.

// Kernel is a kernel, or one of a family with the values that tell its members apart. Kernels are equal if == says so.
type Kernel interface {
	Name() string   // in the CUDA sources, in messages and profiles
	Shader() Shader // what Vulkan runs
	Args() any      // a value of the structure that it takes
}

// Shader is a module of SPIR-V with values for its constants from number 1 on. (Number 0 says how lanes exchange
// values.) Without a module there is none.
type Shader struct {
	Module    string
	Constants []uint32
	Pushed    bool // the arguments are a push constant; otherwise that is their address
}

// single is a kernel without a family.
type single struct {
	name   string
	args   any
	shader Shader
}

func (k *single) Name() string   { return k.name }
func (k *single) Shader() Shader { return k.shader }
func (k *single) Args() any      { return k.args }

// singles are all of them.
var singles []Kernel

func declare(name string, args any, module string, constants ...uint32) *single {
	k := &single{name: name, args: args, shader: Shader{Module: module, Constants: constants}}
	singles = append(singles, k)
	return k
}

// pushed is a kernel whose arguments are a push constant. Reading them from memory takes 0.3 us on an H200, and there
// are 256 such kernels in a pass of a 27B model.
func pushed(name string, args any) *single {
	k := declare(name, args, name)
	k.shader.Pushed = true
	return k
}

// kernelsGated and kernelsOnly are the activations, in the order of backend.Activation. ClampedSwiGLU needs two rows.
var (
	kernelsGated = [...]*single{kernelSiLU, kernelGELU, declare("small_erf", elemArgs{}, "elements", 10),
		declare("small_quick", elemArgs{}, "elements", 11), declare("small_clamped", elemArgs{}, "elements", 17)}
	kernelsOnly = [...]*single{declare("small_only_silu", elemArgs{}, "elements", 12),
		declare("small_only_gelu", elemArgs{}, "elements", 13), declare("small_only_erf", elemArgs{}, "elements", 14),
		declare("small_only_quick", elemArgs{}, "elements", 15)}
)

// Kernels of rows (small.go).
var (
	kernelCopy       = declare("small_copy", elemArgs{}, "elements", 0)
	kernelAdd        = declare("small_add", elemArgs{}, "elements", 1)
	kernelBias       = declare("small_bias", elemArgs{}, "elements", 2)
	kernelScale      = declare("small_scale", elemArgs{}, "elements", 3)
	kernelSiLU       = declare("small_silu", elemArgs{}, "elements", 4)
	kernelGELU       = declare("small_gelu", elemArgs{}, "elements", 5)
	kernelSigmoid    = declare("small_sigmoid", elemArgs{}, "elements", 6)
	kernelSoftcap    = declare("small_softcap", elemArgs{}, "elements", 7)
	kernelGather     = declare("small_gather", elemArgs{}, "elements", 8)
	kernelAddGated   = declare("small_add_gated", elemArgs{}, "elements", 9)
	kernelClamp      = declare("small_clamp", elemArgs{}, "elements", 16)
	kernelExpertBias = declare("small_expert_bias", elemArgs{}, "elements", 18)
	kernelLayerNorm  = declare("small_layer_norm", layerNormArgs{}, "layer_norm")
	kernelHeadGate   = declare("small_heads_sigmoid", headsArgs{}, "")
	kernelNormShort  = declare("small_norm_short", headsArgs{}, "norm", 32, 128)
	kernelNormLong   = declare("small_norm_long", headsArgs{}, "norm", 256, 256)
	kernelAngles     = declare("small_angles", anglesArgs{}, "angles")
	kernelRoPE       = declare("small_rope", ropeArgs{}, "rope")
	kernelBlockConv  = declare("small_block_conv", blockConvArgs{}, "block_conv")
	kernelExpertSum  = declare("small_expert_sum", sumArgs{}, "expert_sum")
	kernelScatter    = declare("small_scatter", scatterArgs{}, "scatter")

	kernelRoute      = declare("select_route", routeArgs{}, "route")
	kernelTopParts   = declare("select_top_parts", selectArgs{}, "select_parts", 1)
	kernelMaxParts   = declare("select_max_parts", maxArgs{}, "")
	kernelMaxOnly    = declare("select_max_parts", selectArgs{}, "select_parts", 0) // without copying rows
	kernelMerged     = declare("select_merge", selectArgs{}, "select_merge")
	kernelGroups     = declare("select_groups", maxArgs{}, "select_groups")
	kernelWeights    = declare("select_weights", candidateArgs{}, "select_weights")
	kernelCandidates = declare("select_candidates", candidateArgs{}, "select_candidates")
)

// Kernels between products (pack.go, post.go, moe.go).
var (
	kernelPack        = pushed("pack", packArgs{})
	kernelAddPack     = pushed("add_pack", addPackArgs{})
	kernelGatedPack   = pushed("gated_pack", gatedPackArgs{})
	kernelSigmoidPack = pushed("sigmoid_pack", sigmoidPackArgs{})
	kernelMergePack   = pushed("merge_pack", mergePackArgs{})
	kernelHeadPack    = pushed("head_pack", headPackArgs{})
	kernelAddNorm     = declare("add_norm", addNormArgs{}, "add_norm")
	kernelReduce      = declare("reduce_pieces", reduceArgs{}, "reduce")
	kernelPost        = declare("post_pack", postArgs{}, "")
	kernelMixPack     = declare("moe_add_pack", mixArgs{}, "")
	kernelMixNorm     = declare("moe_add_norm", mixArgs{}, "")
	kernelGroup       = declare("moe_group", groupArgs{}, "group")
	kernelEmbed       = declare("embed", embedArgs{}, "embed")
	kernelHalves      = declare("half_product", halfArgs{}, "")
	kernelHalfWide    = declare("half_wide", halfArgs{}, "") // 9.0
	kernelHalfRows    = declare("half_rows", halfRowsArgs{}, "")
)

// Kernels of attention and of what it remembers (attention.go, pages.go, weigh.go).
var (
	kernelAttend        = declare("attend_plain", attnArgs{}, "")
	kernelMerge         = declare("merge", attnArgs{}, "merge")
	kernelRotate        = declare("rotate", attnArgs{}, "rotate", 0)
	kernelUnrotate      = declare("unrotate", attnArgs{}, "rotate", 1)
	kernelUnpack        = declare("kv_unpack", unpackArgs{}, "")
	kernelKVWrite       = declare("kv_write", kvWriteArgs{}, "kv_write")
	kernelQKV           = declare("qkv_write", qkvArgs{}, "qkv_write", 0)
	kernelQKVFloats     = declare("qkv_write_floats", qkvArgs{}, "qkv_write", 1)
	kernelMove          = declare("kv_move", moveArgs{}, "kv_move")
	kernelSparseMeans   = declare("sparse_means", sparseArgs{}, "sparse_means")
	kernelSparseWeights = declare("sparse_weights", sparseArgs{}, "sparse_weights")
	kernelSparseKeep    = declare("sparse_keep", sparseArgs{}, "sparse_keep")
	kernelWeighLogits   = declare("weigh_logits", weighArgs{}, "weigh", 0)
	kernelWeighSums     = declare("weigh_sums", weighArgs{}, "weigh", 1)
	kernelWeighMost     = declare("weigh_most", weighArgs{}, "weigh", 2)
	kernelRead          = declare("read", readArgs{}, "read")
)

// Kernels of the delta rule (delta.go).
var (
	kernelConv      = declare("delta_conv", convArgs{}, "delta_conv")
	kernelConv4     = declare("delta_conv4", convArgs{}, "delta_conv4")
	kernelConvRuns  = declare("delta_conv_runs", convArgs{}, "")
	kernelPrepare   = declare("delta_prepare", convArgs{}, "delta_prepare")
	kernelPrepare4  = declare("delta_prepare4", convArgs{}, "delta_prepare4")
	kernelShift     = declare("delta_shift", convArgs{}, "delta_shift")
	kernelRule128   = declare("delta_rule_128", ruleArgs{}, "delta_rule", 8, 1)
	kernelRule128x4 = declare("delta_rule_128_by_4", ruleArgs{}, "")
	kernelRuleMany  = declare("delta_rule_128_many", ruleArgs{}, "")
	kernelOne128    = declare("delta_one_128", oneArgs{}, "")
	kernelWhole     = declare("delta_whole", wholeArgs{}, "delta_whole")
)

// deltaRule is the delta rule for any size of heads, whose keys are padded to so many.
type deltaRule struct{ keys int }

func (k deltaRule) Name() string { return fmt.Sprintf("delta_rule_any_%d", k.keys) }
func (k deltaRule) Shader() Shader {
	return Shader{Module: "delta_rule", Constants: []uint32{uint32(k.keys) / 16}}
}
func (k deltaRule) Args() any { return ruleArgs{} }

// formatSet is a set of formats that kernels for several of them are compiled for.
type formatSet string

const (
	setQ4K formatSet = "q4k"
	setK   formatSet = "k" // Q4_K, Q5_K and Q6_K
	setAll formatSet = "all"
)

// tileNames are the formats in names of kernels.
var tileNames = [tileFormats]string{TileQ4K: "q4k", TileQ5K: "q5k", TileQ6K: "q6k", TileQ2K: "q2k", TileQ3K: "q3k",
	TileQ8: "q8", TileQ8M: "q8m", TileN4: "n4", TileNV4: "nv4"}

// onlyCUDA is the part of a kernel that Vulkan does not have.
type onlyCUDA struct{}

func (onlyCUDA) Shader() Shader { return Shader{} }

// soloProduct is a product of few rows where copies complete on barriers (9.0 and later).
type soloProduct struct {
	onlyCUDA
	set        formatSet
	tiles      int  // of eight rows
	selfPacked bool // it packs one tile of rows itself,
	merged     bool // from the splits of attention,
	then       bool // and adds its results to the residual stream, which it packs
}

func (k soloProduct) Name() string {
	name := fmt.Sprintf("solo_%s_%d", k.set, k.tiles)
	if k.merged {
		name = fmt.Sprintf("solo_%s_merged", k.set)
	} else if k.selfPacked {
		name = fmt.Sprintf("solo_%s_made", k.set)
	}
	if k.then {
		name += "_then"
	}
	return name
}

func (k soloProduct) Args() any {
	switch {
	case k.merged && k.then:
		return mergedThenArgs{}
	case k.merged:
		return mergedArgs{}
	case k.then:
		return selfPackedThenArgs{}
	case k.selfPacked:
		return selfPackedArgs{}
	}
	return productArgs{}
}

// soloTiles are the numbers of tiles that kernels of a set exist for.
func soloTiles(set formatSet) []int {
	if set == setAll {
		return []int{1, 2, 4, 8}
	}
	return []int{1, 2, 3, 4, 6, 8}
}

// pipeProduct is the same for all formats and capabilities.
type pipeProduct struct {
	onlyCUDA
	tiles int
	own   bool // every warp copies its own tiles
}

// pipeTiles are the numbers of tiles that pipeProduct exists for; ownTiles those of the kernels whose warps copy their
// own. With 8 their activations are too large to wait in shared memory beside a ring for each warp.
var pipeTiles, ownTiles = soloTiles(setAll), []int{1, 2, 4}

func (k pipeProduct) Name() string {
	if k.own {
		return fmt.Sprintf("own_%d", k.tiles)
	}
	return fmt.Sprintf("pipe_%d", k.tiles)
}
func (k pipeProduct) Args() any { return productArgs{} }

// promptProduct is a product of warpgroups (9.0 alone), with 64 rows at a time or 128.
type promptProduct struct {
	onlyCUDA
	format Format
	wide   bool
}

func (k promptProduct) Name() string {
	if k.wide {
		return "wide_" + tileNames[k.format]
	}
	return "prompt_" + tileNames[k.format]
}
func (k promptProduct) Args() any { return productArgs{} }

// expertProduct is the product with the experts of few rows, or of more (9.0 and later).
type expertProduct struct {
	onlyCUDA
	set    formatSet
	tiles  int  // of eight pairs of a row and an expert
	gated  bool // it makes its input from gate and up, for one tile
	choose bool // and its blocks choose the experts of the only row
}

func (k expertProduct) Name() string {
	switch {
	case k.choose:
		return fmt.Sprintf("gated_%s_one", k.set)
	case k.gated:
		return fmt.Sprintf("gated_%s", k.set)
	}
	return fmt.Sprintf("experts_%s_%d", k.set, k.tiles)
}
func (k expertProduct) Args() any { return expertArgs{} }

// pipeExperts is the same for all formats and capabilities.
type pipeExperts struct {
	onlyCUDA
	tiles int
}

func (k pipeExperts) Name() string { return fmt.Sprintf("moe_pipe_%d", k.tiles) }
func (k pipeExperts) Args() any    { return expertArgs{} }

// router is the router's product and its choice, for so many rows at a time.
type router struct {
	onlyCUDA
	rows int
}

func (k router) Name() string { return fmt.Sprintf("router_%d", k.rows) }
func (k router) Args() any    { return routerArgs{} }

// rowsProduct is a product with activations as bytes, for so many rows at a time. Only Vulkan has it.
type rowsProduct struct {
	format Format
	rows   int
}

func (k rowsProduct) Name() string { return fmt.Sprintf("rows_%s_%d", tileNames[k.format], k.rows) }
func (k rowsProduct) Shader() Shader {
	return Shader{Module: "product", Constants: []uint32{uint32(k.format), uint32(k.rows)}}
}
func (k rowsProduct) Args() any { return productArgs{} }

// matrixProduct is the same by cooperative matrices. Only Vulkan has it.
type matrixProduct struct {
	format        Format
	rows, threads int
}

func (k matrixProduct) Name() string {
	return fmt.Sprintf("tiles_%s_%d_%d", tileNames[k.format], k.rows, k.threads)
}
func (k matrixProduct) Shader() Shader {
	return Shader{Module: "matrix", Constants: []uint32{uint32(k.format), uint32(k.rows), uint32(k.threads)}}
}
func (k matrixProduct) Args() any { return productArgs{} }

// rowsExperts is a product with experts and activations as bytes, for so many pairs at a time. Only Vulkan has it.
type rowsExperts struct {
	format Format
	pairs  int
}

func (k rowsExperts) Name() string { return fmt.Sprintf("experts_%s_%d", tileNames[k.format], k.pairs) }
func (k rowsExperts) Shader() Shader {
	return Shader{Module: "experts", Constants: []uint32{uint32(k.format), uint32(k.pairs)}}
}
func (k rowsExperts) Args() any { return rowsExpertArgs{} }

// floatProduct is a product with weights that are floats. Its blocks have many rows of the matrix, or share the columns
// of few.
type floatProduct struct {
	typ    quant.Type // F32, F16 or BF16
	narrow bool
	rows   int // of the input at a time; 0: one, of any length and alignment
}

func (k floatProduct) Name() string {
	form, rows := "wide", "odd"
	if k.narrow {
		form = "narrow"
	}
	if k.rows > 0 {
		rows = fmt.Sprint(k.rows)
	}
	return strings.ToLower(fmt.Sprintf("float_%s_%s_%s", form, k.typ, rows))
}

func (k floatProduct) Shader() Shader {
	types := map[quant.Type]uint32{quant.F32: 0, quant.F16: 1, quant.BF16: 2}
	return Shader{Module: "float", Constants: []uint32{types[k.typ], uint32(max(1, k.rows)),
		uint32(asInt(k.rows > 0)), uint32(asInt(k.narrow))}}
}
func (k floatProduct) Args() any { return floatArgs{} }

// floatRows are the numbers of rows that kernels exist for.
func floatRows(narrow bool) []int {
	if narrow {
		return []int{1, 8}
	}
	return []int{1, 4, 8, 16}
}

// tensorAttend is attention by tensor cores, with so many tiles of 16 rows in a block.
type tensorAttend struct {
	onlyCUDA
	dim, tiles int
}

func (k tensorAttend) Name() string { return fmt.Sprintf("attend%dx%d", k.dim, k.tiles) }
func (k tensorAttend) Args() any    { return attnArgs{} }

// flashAttend is attention by products of warpgroups (9.0); a block has so many of them.
type flashAttend struct {
	onlyCUDA
	dim, groups int
	packed      bool // keys or values are unpacked by the blocks that read them
	used        int  // values of a head that are not zero; 0: all
}

func (k flashAttend) Name() string {
	if k.used > 0 {
		return fmt.Sprintf("flash%dx%d_%d", k.dim, k.groups, k.used)
	}
	if k.packed {
		return fmt.Sprintf("packed%dx%d", k.dim, k.groups)
	}
	return fmt.Sprintf("flash%dx%d", k.dim, k.groups)
}
func (k flashAttend) Args() any { return attnArgs{} }

// floatAttend is attention in float32 for so many rows (tokens x heads) at a time. Only Vulkan has it.
type floatAttend struct {
	rows, dim  int
	key, value int32 // the numbers of the types in kv.h
}

func (k floatAttend) Name() string {
	return fmt.Sprintf("attend_%d_%d_%d_%d", k.rows, k.dim, k.key, k.value)
}

// attendAtOnce is how many values a thread asks for at once.
const attendAtOnce = 8

func (k floatAttend) Shader() Shader {
	pairs := max(1, k.dim/256) // of dimensions that a thread has
	return Shader{Module: "attend", Constants: []uint32{uint32(k.rows), uint32(k.dim), uint32(pairs), uint32(k.key),
		uint32(k.value), attendAtOnce}}
}
func (k floatAttend) Args() any { return attnArgs{} }

// Kernels lists the catalogue.
func Kernels() []Kernel {
	all := append([]Kernel(nil), singles...)
	add := func(ks ...Kernel) { all = append(all, ks...) }
	for _, set := range []formatSet{setQ4K, setK, setAll} {
		for _, tiles := range soloTiles(set) {
			add(soloProduct{set: set, tiles: tiles})
		}
		if set != setAll {
			add(soloProduct{set: set, selfPacked: true}, soloProduct{set: set, selfPacked: true, then: true})
		}
		if set != setQ4K {
			add(expertProduct{set: set, tiles: 1}, expertProduct{set: set, tiles: 4},
				expertProduct{set: set, gated: true}, expertProduct{set: set, gated: true, choose: true})
		}
	}
	add(soloProduct{set: setQ4K, selfPacked: true, merged: true},
		soloProduct{set: setQ4K, selfPacked: true, merged: true, then: true},
		pipeExperts{tiles: 1}, pipeExperts{tiles: 4}, router{rows: 1}, router{rows: 8})
	for _, tiles := range ownTiles {
		add(pipeProduct{tiles: tiles, own: true})
	}
	add(pipeProduct{tiles: 4}, pipeProduct{tiles: 8})
	for f := range tileFormats {
		if groupFormat(f) {
			add(promptProduct{format: f}, promptProduct{format: f, wide: true})
		}
		for _, rows := range rowsAtOnce {
			add(rowsProduct{f, rows})
		}
		for rows := 8; rows <= maxMatrixRows && matrixFormat(f); rows *= 2 {
			add(matrixProduct{f, rows, matrixThreads(rows)})
		}
		add(rowsExperts{f, pairsAtOnce})
	}
	for _, typ := range []quant.Type{quant.F32, quant.F16, quant.BF16} {
		for _, narrow := range []bool{false, true} {
			for _, rows := range append(floatRows(narrow), 0) {
				add(floatProduct{typ, narrow, rows})
			}
		}
	}
	for _, dim := range []int{64, 128, 256, 512} {
		add(tensorAttend{dim: dim, tiles: 1}, tensorAttend{dim: dim, tiles: tensorTiles(dim)},
			flashAttend{dim: dim, groups: 2})
		if dim < 512 {
			add(flashAttend{dim: dim, groups: 1})
		}
		if dim == 512 {
			add(flashAttend{dim: dim, groups: 2, packed: true})
		} else if dim > 64 {
			add(flashAttend{dim: dim, groups: 1, packed: true}, flashAttend{dim: dim, groups: 2, packed: true})
		}
	}
	add(flashAttend{dim: 128, groups: 3, used: paddedUsed})
	for keys := 32; keys <= maxDeltaDim; keys *= 2 {
		add(deltaRule{keys})
	}
	for _, rows := range []int{fewAttentionRows, 2 * fewAttentionRows} {
		for dim := 128; dim <= 512; dim *= 2 {
			for _, key := range kvTypes {
				for _, value := range kvTypes {
					add(floatAttend{rows, dim, key, value})
				}
			}
		}
	}
	return all
}
