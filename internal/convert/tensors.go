package convert

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"strobe/internal/quant"
	"strobe/internal/safetensors"
)

// weights are the open files of a checkpoint.
type weights struct {
	files []*safetensors.File
	list  []stored
}

// stored is one tensor of the checkpoint.
type stored struct {
	file string
	name string // clean name; the original is in t
	t    *safetensors.Tensor
}

// openWeights opens all parts of a checkpoint. Tensors are listed part by part
// and by name within a part, the order the reference converter works in.
func openWeights(dir string) (*weights, error) {
	parts, index, err := partNames(dir)
	if err != nil {
		return nil, err
	}
	w := &weights{}
	seen := map[string]string{}
	for _, part := range parts {
		path := filepath.Join(dir, part)
		f, err := safetensors.Open(path)
		if err != nil {
			w.Close()
			if os.IsNotExist(err) {
				return nil, fmt.Errorf("%s: is missing, but model.safetensors.index.json names it", path)
			}
			return nil, err
		}
		w.files = append(w.files, f)
		for _, name := range f.Names() {
			if other, ok := seen[name]; ok {
				w.Close()
				return nil, fieldErr(path, "tensor "+name, "is also in %s", other)
			}
			seen[name] = part
			w.list = append(w.list, stored{path, name, f.Tensor(name)})
		}
	}
	for name, part := range index {
		if seen[name] == "" {
			w.Close()
			return nil, fieldErr(filepath.Join(dir, part), "tensor "+name,
				"is missing, but model.safetensors.index.json names it")
		}
	}
	if len(w.list) == 0 {
		w.Close()
		return nil, fmt.Errorf("%s: no tensors in this checkpoint", dir)
	}
	return w, nil
}

// partNames lists the safetensors files of a checkpoint in order, and which
// tensor the index expects where.
func partNames(dir string) (parts []string, index map[string]string, err error) {
	path := filepath.Join(dir, "model.safetensors.index.json")
	c, ok, err := readJSON(path)
	if err != nil {
		return nil, nil, err
	}
	if ok {
		index = map[string]string{}
		for name, v := range c.object("weight_map").m {
			part, ok := v.(string)
			if !ok || part != filepath.Base(part) || !strings.HasSuffix(part, ".safetensors") {
				return nil, nil, fieldErr(path, "weight_map", "%q is not the name of a safetensors file in this folder",
					fmt.Sprint(v))
			}
			index[name] = part
			if !slices.Contains(parts, part) {
				parts = append(parts, part)
			}
		}
		if err := c.failed(); err != nil {
			return nil, nil, err
		}
		if len(parts) == 0 {
			return nil, nil, fieldErr(path, "weight_map", "is missing or empty")
		}
		slices.Sort(parts)
		return parts, index, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, err
	}
	var other []string
	for _, e := range entries {
		switch name := e.Name(); {
		case !strings.HasSuffix(name, ".safetensors"):
		case strings.HasPrefix(name, "model"):
			parts = append(parts, name)
		default:
			other = append(other, name)
		}
	}
	if len(parts) == 0 && len(other) == 1 {
		parts = other
	}
	if len(parts) == 0 {
		return nil, nil, fmt.Errorf("%s: no model*.safetensors in this folder", dir)
	}
	return parts, nil, nil
}

func (w *weights) Close() {
	for _, f := range w.files {
		f.Close()
	}
	w.files = nil
}

// outTensor is a tensor of the file to be written.
type outTensor struct {
	name string
	src  *source
	ids  []int64 // for tables of token ids, which are stored as they are
}

// shape is the tensor's shape in GGUF order.
func (t *outTensor) shape() []int {
	if t.ids != nil {
		return []int{len(t.ids)}
	}
	s := slices.Clone(t.src.shape)
	slices.Reverse(s)
	if len(s) == 0 {
		s = []int{1}
	}
	return s
}

// builder maps the checkpoint's tensors to the file's, in order.
type builder struct {
	m       *model
	vocab   int // rows of the embedding to keep (Gemma), 0 for all
	out     []*outTensor
	names   map[string]string // name in the file -> name in the checkpoint
	experts map[int]map[string]*source
	fc      []int
	fcFile  string
}

// buildTensors lists the tensors to write.
func (m *model) buildTensors(list []stored, vocab int) (*builder, error) {
	b := &builder{m: m, vocab: vocab, names: map[string]string{}, experts: map[int]map[string]*source{}}
	if m.gemma() || m.class == gemmaDSpark || m.family == llama || m.family == eagle3 {
		if err := b.ropeFactors(); err != nil {
			return nil, err
		}
	}
	if m.family == gptOSS {
		rest, stacks, err := m.mxfp4Blocks(list)
		if err != nil {
			return nil, err
		}
		for _, s := range stacks {
			if err := b.add(s.name, s.source); err != nil {
				return nil, err
			}
		}
		list = rest
	}
	list, scales, block, err := m.float8Scales(list)
	if err != nil {
		return nil, err
	}
	for _, st := range list {
		if strings.HasSuffix(st.name, ".d2t") && m.drafts() {
			if err := b.addTable(st); err != nil {
				return nil, err
			}
			continue
		}
		s, err := newSource(st.file, st.t)
		if err != nil {
			return nil, err
		}
		if scale := scales[st.name]; scale != nil {
			if s, err = s.scaled(scale, block); err != nil {
				return nil, err
			}
		}
		if err := b.add(st.name, s); err != nil {
			return nil, err
		}
	}
	for bid, parts := range b.experts {
		if len(parts) > 0 {
			n, _ := m.c.int("num_local_experts", "num_experts")
			return nil, fieldErr(list[0].file, fmt.Sprintf("layer %d", bid), "has %d expert tensors, expected %d", len(parts),
				3*n)
		}
	}
	return b, nil
}

// emit appends a finished tensor.
func (b *builder) emit(name string, s *source) error {
	if other, ok := b.names[name]; ok {
		return s.fail("becomes %s, and so does %s", name, other)
	}
	b.names[name] = s.name
	b.out = append(b.out, &outTensor{name: name, src: s})
	return nil
}

// emitMapped appends a tensor under the GGUF name of its clean name.
func (b *builder) emitMapped(clean string, s *source) error {
	name, ok := b.m.ggufName(clean)
	if !ok {
		return s.fail("%s models have no such tensor", b.m.name)
	}
	return b.emit(name, s)
}

// add converts one tensor of the checkpoint.
func (b *builder) add(name string, s *source) error {
	m := b.m
	switch m.family {
	case gemma4, gemma4Assistant:
		return b.addGemma(name, s)
	case qwen35, qwen3next:
		return b.addHybrid(name, s)
	case dflash:
		return b.addDrafter(name, s)
	case eagle3:
		return b.addEagle3(name, s)
	case llama:
		return b.addLlama(name, s)
	case gptOSS:
		return b.addGPTOSS(name, s)
	}
	if bid, rest, ok := splitLayer(name); ok && strings.HasPrefix(rest, "mlp.experts.") {
		return b.addExperts(bid, strings.TrimPrefix(rest, "mlp.experts."), s)
	}
	return b.emitMapped(name, s)
}

// addLlama puts the values of queries and keys that are turned together side by side, where checkpoints keep them half
// a head apart.
func (b *builder) addLlama(name string, s *source) error {
	if _, rest, ok := splitLayer(name); ok && (strings.HasPrefix(rest, "self_attn.q_proj.") ||
		strings.HasPrefix(rest, "self_attn.k_proj.")) {
		dim := b.m.headDim()
		if err := b.m.c.failed(); err != nil {
			return err
		}
		if s.shape[0]%dim != 0 || dim%2 != 0 {
			return s.fail("shape is %v, heads have %d values", s.shape, dim)
		}
		s = s.reordered(func(i int) int {
			k := i % dim
			return i - k + k%2*(dim/2) + k/2
		})
	}
	return b.emitMapped(name, s)
}

func (b *builder) addGemma(name string, s *source) error {
	if bid, rest, ok := splitLayer(name); ok {
		switch rest {
		case "router.scale":
			return b.emit(fmt.Sprintf("blk.%d.ffn_gate_inp.scale", bid), s)
		case "router.per_expert_scale":
			return b.emit(fmt.Sprintf("blk.%d.ffn_down_exps.scale", bid), s)
		}
		if part, ok := strings.CutPrefix(rest, "experts."); ok && part[0] >= '0' && part[0] <= '9' {
			return b.addExpert(bid, fmt.Sprintf("model.layers.%d.experts.", bid), part, s)
		}
	}
	if strings.Contains(name, "embed_tokens.weight") && len(s.shape) == 2 && b.vocab > 0 && b.vocab < s.shape[0] {
		s = s.picked([]int{b.vocab, s.shape[1]}, func(r int) int { return r })
	}
	return b.emitMapped(name, s)
}

// ropeFactors makes the tensor that divides rotary frequencies, for models that have one.
func (b *builder) ropeFactors() error {
	m, full := b.m, b.m.rope.full
	kind, _ := full.str("rope_type")
	var factors []float32
	if m.gemma() || m.class == gemmaDSpark {
		// Most pairs of the full-attention layers do not turn: an angle divided by 1e30 is zero.
		part, ok := full.float("partial_rotary_factor")
		if kind != "proportional" || !ok {
			return fieldErr(m.c.path, "rope_parameters.full_attention",
				"expected rope_type proportional with a partial_rotary_factor")
		}
		dim := m.gemmaHeadDim()
		for i := range dim / 2 {
			factor := float32(1)
			if i >= int(float64(dim)*part/2) {
				factor = 1e30
			}
			factors = append(factors, factor)
		}
	} else if kind == "llama3" {
		factors = llama3Factors(full, m.headDim())
	}
	if err := m.c.failed(); err != nil {
		return err
	}
	if factors == nil {
		return nil
	}
	return b.emit("rope_freqs.weight", constant("rope_freqs", factors))
}

// llama3Factors stretch the waves that are longer than the original context by a factor, leave short ones as they are
// and change smoothly between.
func llama3Factors(c config, dim int) []float32 {
	or := func(key string, def float64) float64 {
		if v, ok := c.float(key); ok && v > 0 {
			return v
		}
		return def
	}
	factor, low, high := or("factor", 8), or("low_freq_factor", 1), or("high_freq_factor", 4)
	context, base := or("original_max_position_embeddings", 8192), or("rope_theta", 10000)
	factors := make([]float32, dim/2)
	for i := range factors {
		wave := 2 * math.Pi * math.Pow(base, 2*float64(i)/float64(dim))
		switch {
		case wave < context/high:
			factors[i] = 1
		case wave > context/low:
			factors[i] = float32(factor)
		default:
			smooth := (context/wave - low) / (high - low)
			factors[i] = float32(1 / ((1-smooth)/factor + smooth))
		}
	}
	return factors
}

func (b *builder) addHybrid(name string, s *source) error {
	bid, rest, inLayer := splitLayer(name)
	if inLayer && strings.HasPrefix(rest, "linear_attn.") {
		return b.addLinear(name, strings.TrimPrefix(rest, "linear_attn."), bid, s)
	}
	if inLayer && strings.HasPrefix(rest, "mlp.experts") {
		return b.addExperts(bid, strings.TrimPrefix(rest, "mlp.experts."), s)
	}
	if strings.HasSuffix(name, "norm.weight") {
		s = s.mapped(func(v float32) float32 { return v + 1 })
	}
	return b.emitMapped(name, s)
}

// addLinear converts a tensor of a gated delta-net layer. In qwen35 files the
// value heads are ordered so that head h belongs to key head h mod nk, while
// checkpoints keep the heads of one key head together.
func (b *builder) addLinear(name, part string, bid int, s *source) error {
	m := b.m
	nk, nv := m.c.need("linear_num_key_heads"), m.c.need("linear_num_value_heads")
	dk, dv := m.c.need("linear_key_head_dim"), m.c.need("linear_value_head_dim")
	if err := m.c.failed(); err != nil {
		return err
	}
	if nv%nk != 0 {
		return fieldErr(m.c.path, "linear_num_value_heads", "%d is not a multiple of linear_num_key_heads, %d", nv, nk)
	}
	keys, r := 2*dk*nk, nv/nk
	reorder := m.family == qwen35 && nk != nv
	want := func(rows int) error {
		if s.rows() != rows {
			return s.fail("has %d rows, the config gives %d", s.rows(), rows)
		}
		return nil
	}
	// grouped is the row of a tiled row: view as [r, nk, dim], swap the first two.
	grouped := func(i, dim int) int {
		h, k := i/dim, i%dim
		return (h%nk*r+h/nk)*dim + k
	}
	values := func(first, dim int) *source {
		return s.picked(s.shape, func(i int) int {
			if i < first {
				return i
			}
			return first + grouped(i-first, dim)
		})
	}

	switch part {
	case "A_log", "dt_bias":
		if len(s.shape) != 1 || s.shape[0] != nv {
			return s.fail("shape is %v, the config gives [%d]", s.shape, nv)
		}
		if part == "A_log" {
			s = s.mapped(negExp)
		} else {
			name = strings.TrimSuffix(name, ".dt_bias") + ".dt_proj.bias"
		}
		if reorder {
			from := make([]int, nv)
			for i := range from {
				from[i] = grouped(i, 1)
			}
			s = s.columns(from)
		}
	case "conv1d.weight":
		taps := s.width()
		if err := want(keys + dv*nv); err != nil {
			return err
		}
		s = s.reshaped(keys+dv*nv, taps)
		if reorder {
			s = values(keys, dv)
		}
	case "in_proj_qkv.weight":
		if err := want(keys + dv*nv); err != nil {
			return err
		}
		if reorder {
			s = values(keys, dv)
		}
	case "in_proj_z.weight":
		if err := want(dv * nv); err != nil {
			return err
		}
		if reorder {
			s = values(0, dv)
		}
	case "in_proj_a.weight", "in_proj_b.weight":
		if err := want(nv); err != nil {
			return err
		}
		if reorder {
			s = values(0, 1)
		}
	case "out_proj.weight":
		if s.width() != dv*nv {
			return s.fail("has %d columns, the config gives %d", s.width(), dv*nv)
		}
		if reorder {
			from := make([]int, dv*nv)
			for i := range from {
				from[i] = grouped(i, dv)
			}
			s = s.columns(from)
		}
	case "in_proj_qkvz.weight":
		return b.splitQKVZ(bid, s, nk, r, dk, dv)
	}
	return b.emitMapped(name, s)
}

// splitQKVZ takes apart the fused projection of Qwen3-Next, which holds q, k, v
// and z of one key head after the other.
func (b *builder) splitQKVZ(bid int, s *source, nk, r, dk, dv int) error {
	per := 2*dk + 2*r*dv
	if len(s.shape) != 2 || s.shape[0] != nk*per {
		return s.fail("shape is %v, the config gives %d rows", s.shape, nk*per)
	}
	key, val := nk*dk, nk*r*dv
	qkv := s.picked([]int{2*key + val, s.shape[1]}, func(i int) int {
		switch {
		case i < key:
			return i/dk*per + i%dk
		case i < 2*key:
			i -= key
			return i/dk*per + dk + i%dk
		}
		i -= 2 * key
		return i/(r*dv)*per + 2*dk + i%(r*dv)
	})
	z := s.picked([]int{val, s.shape[1]}, func(i int) int {
		return i/(r*dv)*per + 2*dk + r*dv + i%(r*dv)
	})
	if err := b.emit(fmt.Sprintf("blk.%d.attn_qkv.weight", bid), qkv); err != nil {
		return err
	}
	return b.emit(fmt.Sprintf("blk.%d.attn_gate.weight", bid), z)
}

// addExperts converts expert weights, which checkpoints hold fused and stacked
// or one by one.
func (b *builder) addExperts(bid int, part string, s *source) error {
	base := fmt.Sprintf("model.layers.%d.mlp.experts.", bid)
	switch strings.TrimSuffix(part, ".weight") {
	case "down_proj", "gate_proj", "up_proj":
		return b.emitMapped(base+strings.TrimSuffix(part, ".weight")+".weight", s)
	case "gate_up_proj":
		if len(s.shape) != 3 || s.shape[1]%2 != 0 {
			return s.fail("shape is %v, expected [experts, 2 * width, hidden]", s.shape)
		}
		n, ff := s.shape[0], s.shape[1]/2
		half := func(first int) *source {
			return s.picked([]int{n, ff, s.shape[2]}, func(r int) int { return r/ff*2*ff + first + r%ff })
		}
		if err := b.emitMapped(base+"gate_proj.weight", half(0)); err != nil {
			return err
		}
		return b.emitMapped(base+"up_proj.weight", half(ff))
	}
	return b.addExpert(bid, base, part, s)
}

// addExpert collects single experts and stacks them when a layer is complete.
func (b *builder) addExpert(bid int, base, part string, s *source) error {
	n := b.m.c.need("num_local_experts", "num_experts")
	if err := b.m.c.failed(); err != nil {
		return err
	}
	if b.experts[bid] == nil {
		b.experts[bid] = map[string]*source{}
	}
	got := b.experts[bid]
	got[part] = s
	if len(got) < 3*n {
		return nil
	}
	for _, proj := range []string{"down_proj", "gate_proj", "up_proj"} {
		parts := make([]*source, n)
		for i := range parts {
			key := strconv.Itoa(i) + "." + proj + ".weight"
			if parts[i] = got[key]; parts[i] == nil {
				return s.fail("layer %d has no expert tensor %s", bid, key)
			}
		}
		all, err := stacked(parts)
		if err != nil {
			return err
		}
		if err := b.emitMapped(base+proj+".weight", all); err != nil {
			return err
		}
	}
	clear(got)
	return nil
}

func (b *builder) addDrafter(name string, s *source) error {
	c := b.m.c
	switch name {
	case "model.fc.weight":
		b.fc, b.fcFile = s.shape, s.file
	case "lm_head.weight", "model.lm_head.weight":
		if dspark(b.m.class) && s.shape[0] == c.need("vocab_size") {
			return nil // the target's
		}
	case "model.markov_head.gate.weight", "model.markov_head.joint_proj.weight":
		return s.fail("belongs to a kind of Markov head that is not supported")
	case "model.embed_tokens.weight":
		if has, ok := c.bool("has_embed_tokens"); ok && !has {
			return nil
		}
	}
	if b.m.class == gemmaDSpark && strings.HasSuffix(name, "self_attn.v_proj.weight") {
		return s.fail("should not be there: attention_k_eq_v says that values are the keys")
	}
	if neox, ok := c.bool("rope_is_neox_style"); ok && !neox {
		if _, rest, ok := splitLayer(name); ok && slices.Contains([]string{
			"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.q_norm.weight", "self_attn.k_norm.weight"}, rest) {
			s = pairsToHalves(s, b.m.headDim())
		}
	}
	return b.emitMapped(name, s)
}

// pairsToHalves reorders each head from adjacent rotary pairs to NeoX halves:
// even positions first, then odd ones.
func pairsToHalves(s *source, dim int) *source {
	from := func(i int) int {
		h, k := i/dim, i%dim
		if k < dim/2 {
			return h*dim + 2*k
		}
		return h*dim + 2*(k-dim/2) + 1
	}
	return s.reordered(from)
}

// addTable converts the table from draft ids to target ids, which checkpoints
// store as differences.
func (b *builder) addTable(st stored) error {
	if st.t.DType != "I64" || len(st.t.Shape) != 1 {
		return fieldErr(st.file, "tensor "+st.t.Name, "is %s %v, expected a vector of I64", st.t.DType, st.t.Shape)
	}
	vocab := b.m.c.need("vocab_size")
	ids := make([]int64, st.t.Shape[0])
	for i := range ids {
		var v uint64
		for j := range 8 {
			v |= uint64(st.t.Data[8*i+j]) << (8 * j)
		}
		if ids[i] = int64(v) + int64(i); ids[i] < 0 || ids[i] >= int64(vocab) {
			return fieldErr(st.file, "tensor "+st.t.Name, "entry %d is token %d, outside the vocabulary of %d", i, ids[i], vocab)
		}
	}
	b.names["d2t"] = st.t.Name
	b.out = append(b.out, &outTensor{name: "d2t", ids: ids})
	return nil
}

// float8Scales separates the scales of an FP8 checkpoint from its weights. Other
// quantised checkpoints are refused.
func (m *model) float8Scales(list []stored) (rest []stored, scales map[string]*safetensors.Tensor, block []int,
	err error) {
	q := m.c.object("quantization_config")
	method, quantised := q.str("quant_method")
	if q.m == nil {
		return list, nil, nil, nil
	}
	refuse := func(field, what string) error {
		return fieldErr(m.c.path, "quantization_config."+field, "%s checkpoints are not supported; convert the original one",
			what)
	}
	suffix := ""
	switch {
	case method == "fp8":
		suffix = "_scale_inv"
		block, _ = q.ints("weight_block_size")
	case method == "compressed-tensors":
		format, _ := q.str("format")
		if format != "float-quantized" && format != "naive-quantized" {
			return nil, nil, nil, refuse("format", format)
		}
		suffix = "_scale"
	case method == "modelopt":
		if algo, _ := q.str("quant_algo"); !strings.EqualFold(algo, "FP8") {
			return nil, nil, nil, refuse("quant_algo", "ModelOpt "+algo)
		}
		suffix = "_scale"
	case method == "mxfp4" && m.family == gptOSS: // joined before
	case quantised:
		return nil, nil, nil, refuse("quant_method", method)
	}
	if err := m.c.failed(); err != nil {
		return nil, nil, nil, err
	}
	if suffix == "" {
		return list, nil, nil, nil
	}
	scales = map[string]*safetensors.Tensor{}
	for _, st := range list {
		switch {
		case strings.HasSuffix(st.name, suffix) && !strings.HasSuffix(st.name, "input_scale"):
			scales[strings.TrimSuffix(st.name, suffix)] = st.t
		case strings.HasSuffix(st.name, "activation_scale"), strings.HasSuffix(st.name, ".input_scale"),
			strings.HasSuffix(st.name, ".k_scale"), strings.HasSuffix(st.name, ".v_scale"):
		default:
			rest = append(rest, st)
		}
	}
	return rest, scales, block, nil
}

// negExp turns the stored logarithm of a decay rate into the rate.
func negExp(v float32) float32 { return -float32(math.Exp(float64(v))) }

// AlwaysF32 reports whether a tensor is float32 in every file type: vectors,
// norms, routers, convolutions and everything not named like a weight.
func AlwaysF32(name string, dims int) bool {
	if dims <= 1 || !strings.HasSuffix(name, ".weight") || strings.HasSuffix(name, "_norm.weight") {
		return true
	}
	if rest, ok := strings.CutPrefix(name, "blk."); ok {
		_, part, _ := strings.Cut(rest, ".")
		switch part {
		case "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "ssm_conv1d.weight":
			return true
		}
	}
	return false
}

// typeFor is the type of a tensor in a file of mostly base.
func (t *outTensor) typeFor(base quant.Type) quant.Type {
	if t.ids != nil {
		return quant.I64
	}
	if t.src.typ == quant.MXFP4 {
		return quant.MXFP4 // as the model was trained
	}
	return typeOf(t.name, len(t.src.shape), t.src.width(), base)
}

func typeOf(name string, dims, width int, base quant.Type) quant.Type {
	switch {
	case AlwaysF32(name, dims):
		return quant.F32
	case width%base.BlockLen() != 0:
		return quant.F16
	}
	return base
}
