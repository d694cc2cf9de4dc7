package convert

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"strobe/internal/gguf"
	"strobe/internal/quant"
)

// An mmproj file holds what lets a text model see: the vision tower of a multimodal checkpoint, whose last matrix
// projects to the width of the text model. llama.cpp's architecture for all of them is "clip"; the kind of tower is the
// projector type.

// towers are the projector types by the class of the checkpoint.
var towers = map[string]string{
	"Qwen3_5ForConditionalGeneration":       qwenTower,
	"Qwen3_5MoeForConditionalGeneration":    qwenTower,
	"Qwen3VLForConditionalGeneration":       qwenTower,
	"Qwen3VLMoeForConditionalGeneration":    qwenTower,
	"Gemma4ForConditionalGeneration":        gemmaTower,
	"Gemma4UnifiedForConditionalGeneration": gemmaUnifiedTower,
}

const (
	qwenTower         = "qwen3vl_merger"
	gemmaTower        = "gemma4v"
	gemmaUnifiedTower = "gemma4uv" // patches go to the text model after one matrix; there are no blocks
)

// tower is the vision part of a checkpoint.
type tower struct {
	*model    // its config is that of the text model; its architecture is clip
	projector string
	vision    config
}

var clip = arch{name: "clip"}

// convertTower writes the mmproj file of a checkpoint.
func convertTower(ctx context.Context, dir, out string, opt Options) error {
	t, w, b, err := openTower(dir)
	if err != nil {
		return err
	}
	defer w.Close()
	for _, st := range w.list {
		if strings.Contains(st.name, "audio_tower.") || strings.Contains(st.name, "embed_audio.") {
			opt.warn("the checkpoint hears, too; its audio tower is left out")
			break
		}
	}
	name := opt.Type
	if name == "" || strings.EqualFold(name, "auto") {
		var seen []stored
		for _, st := range w.list {
			if b.from[st.t.Name] {
				seen = append(seen, st)
			}
		}
		name = guessType(seen)
	}
	mix, err := quant.ParseMix(name)
	if err != nil {
		return err
	}
	specs := make([]gguf.TensorSpec, len(b.out))
	for i, x := range b.out {
		specs[i] = gguf.TensorSpec{Name: x.name, Shape: x.shape()}
	}
	if err := SetTowerTypes(specs, mix); err != nil {
		return err
	}
	l := &keyList{}
	l.set("general.architecture", clip.name)
	l.set("general.type", "mmproj")
	a, err := readAuthorship(dir, countParams(specs))
	if err != nil {
		return err
	}
	if opt.Name != "" {
		a.text["name"] = opt.Name
	}
	a.setKeys(l)
	mean, std, err := t.normalisation(opt)
	if err != nil {
		return err
	}
	if err := t.towerKeys(l, mix.FileType(), mean, std); err != nil {
		return err
	}
	l.set("general.quantization_version", uint32(quantVersion))
	return writeFile(ctx, dir, out, Plan{Arch: clip.name, Type: mix.Name()}, l.kvs, specs, b.out, opt)
}

// SetTowerTypes gives the tensors of an mmproj file their types. Convolutions of llama.cpp take no other types than
// float16 and float32, and a table of positions is read row by row.
func SetTowerTypes(specs []gguf.TensorSpec, mix quant.Mix) error {
	base, ok := plain[mix.Name()]
	if !ok {
		return fmt.Errorf("an mmproj file is written as f32, f16, bf16 or q8_0, not as %s", strings.ToLower(mix.Name()))
	}
	for i, s := range specs {
		switch kernel := strings.HasPrefix(s.Name, "v.patch_embd.weight"); {
		case kernel && base == quant.F16:
			specs[i].Type = quant.F16
		case kernel, s.Name == "v.position_embd.weight":
			specs[i].Type = quant.F32
		default:
			specs[i].Type = typeOf(s.Name, len(s.Shape), s.Shape[0], base)
		}
	}
	return nil
}

// TowerKeys gives the keys that the mmproj file of a checkpoint with this config.json gets, without names.
func TowerKeys(configJSON []byte, fileType uint32) ([]gguf.KV, error) {
	c, err := parseConfig("config.json", configJSON)
	if err != nil {
		return nil, err
	}
	t, err := findTower("", c)
	if err != nil {
		return nil, err
	}
	l := &keyList{}
	mean, std := t.usualNormalisation()
	err = t.towerKeys(l, fileType, mean, std)
	return l.kvs, err
}

// openTower reads the vision part of a checkpoint: its configuration and the tensors of the file.
func openTower(dir string) (*tower, *weights, *towerBuilder, error) {
	c, err := readConfig(dir)
	if err != nil {
		return nil, nil, nil, err
	}
	t, err := findTower(dir, c)
	if err != nil {
		return nil, nil, nil, err
	}
	w, err := openWeights(dir)
	if err != nil {
		return nil, nil, nil, err
	}
	b, err := t.buildTower(w.list)
	if err == nil {
		err = t.checkTower(b, w.list[0].file)
	}
	if err != nil {
		w.Close()
		return nil, nil, nil, err
	}
	return t, w, b, nil
}

func findTower(dir string, c config) (*tower, error) {
	names, _ := c.strings("architectures")
	t := &tower{model: &model{arch: &clip, dir: dir, c: c}, vision: c.object("vision_config")}
	if err := c.failed(); err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, fieldErr(c.path, "architectures", "is missing")
	}
	t.class = names[0]
	if t.projector = towers[t.class]; t.projector == "" {
		var known []string
		for class := range towers {
			known = append(known, class)
		}
		slices.Sort(known)
		return nil, fieldErr(c.path, "architectures", "%s has no vision tower that can be converted; supported are %s",
			t.class, strings.Join(known, ", "))
	}
	if t.vision.m == nil {
		return nil, fieldErr(c.path, "vision_config", "is missing: this checkpoint has no vision tower")
	}
	if t.projector == gemmaUnifiedTower {
		return t, nil
	}
	t.layers = t.vision.need("num_hidden_layers", "depth")
	return t, c.failed()
}

// towerKeys writes the keys of the tower in the order of llama.cpp's converter.
func (t *tower) towerKeys(l *keyList, fileType uint32, mean, std []float32) error {
	k, v := modelKeys{l, "clip.vision."}, t.vision
	patch := v.need("patch_size")
	image := 224 // Gemma's have none; llama.cpp wants the key
	if t.projector == qwenTower {
		table, ok := v.int("num_position_embeddings")
		if !ok {
			table = 2304
		}
		side := 0
		for (side+1)*(side+1) <= table {
			side++
		}
		image = side * patch
		if n, ok := v.int("image_size"); ok {
			image = n
		}
	}
	width, ff, heads := 0, 0, 0
	if t.projector == gemmaUnifiedTower {
		width = v.need("mm_embed_dim")
	} else {
		width, ff = v.need("hidden_size"), v.need("intermediate_size")
		heads = v.need("num_attention_heads", "num_heads")
	}
	l.set("general.file_type", fileType)
	l.set("clip.has_vision_encoder", true)
	k.u32("projection_dim", t.c.need("hidden_size"))
	k.u32("image_size", image)
	k.u32("patch_size", patch)
	k.u32("embedding_length", width)
	k.u32("feed_forward_length", ff)
	k.u32("block_count", t.layers)
	k.u32("attention.head_count", heads)
	l.set("clip.vision.image_mean", mean)
	l.set("clip.vision.image_std", std)
	if t.projector == qwenTower {
		l.set("clip.projector_type", t.projector)
		l.set("clip.use_gelu", true)
		merge, ok := v.int("spatial_merge_size")
		k.maybeU32("spatial_merge_size", merge, ok)
		eps, ok := t.c.float("rms_norm_eps")
		if !ok {
			eps = 1e-6
		}
		k.f32("attention.layer_norm_epsilon", eps)
		deep := make([]bool, t.layers)
		for _, i := range t.deepstack() {
			deep[i] = true
		}
		l.set("clip.vision.is_deepstack_layers", deep)
	} else {
		l.set("clip.vision.projector_type", t.projector)
		eps, ok := v.float("layer_norm_eps")
		if !ok {
			eps = 1e-6
		}
		k.f32("attention.layer_norm_epsilon", eps)
	}
	return t.c.failed()
}

// normalisation is what is subtracted from pixels and what they are divided by, from the files that say how images are
// prepared. The later file wins.
func (t *tower) normalisation(opt Options) (mean, std []float32, err error) {
	for _, name := range []string{"preprocessor_config.json", "processor_config.json"} {
		c, ok, err := readJSON(filepath.Join(t.dir, name))
		if err != nil {
			return nil, nil, err
		}
		if !ok {
			continue
		}
		for _, at := range []config{c, c.object("image_processor")} {
			if v, ok := at.floats("image_mean"); ok {
				mean = v
			}
			if v, ok := at.floats("image_std"); ok {
				std = v
			}
		}
		if err := c.failed(); err != nil {
			return nil, nil, err
		}
	}
	if mean == nil || std == nil {
		mean, std = t.usualNormalisation()
		opt.warn("%s: no preprocessor_config.json with image_mean and image_std; taken are the model's usual ones", t.dir)
	}
	if len(mean) != 3 || len(std) != 3 {
		return nil, nil, fieldErr(t.dir, "image_mean, image_std", "have %d and %d values, expected 3", len(mean), len(std))
	}
	return mean, std, nil
}

// usualNormalisation is what the released models of this kind have: pixels from -1 to 1, or from 0 to 1.
func (t *tower) usualNormalisation() (mean, std []float32) {
	if t.projector == qwenTower {
		return []float32{0.5, 0.5, 0.5}, []float32{0.5, 0.5, 0.5}
	}
	return []float32{0, 0, 0}, []float32{1, 1, 1}
}

// floats is a list of numbers.
func (c config) floats(key string) ([]float32, bool) {
	list, ok := c.list(key)
	if !ok {
		return nil, false
	}
	out := make([]float32, len(list))
	for i, v := range list {
		one := config{path: c.path, at: c.at, m: map[string]any{key: v}, err: c.err}
		f, _ := one.float(key)
		out[i] = float32(f)
	}
	return out, true
}

// deepstack lists the blocks whose output goes to the text model as well (Qwen3-VL).
func (t *tower) deepstack() []int {
	list, _ := t.vision.ints("deepstack_visual_indexes")
	for _, i := range list {
		if i < 0 || i >= t.layers {
			t.vision.fail("deepstack_visual_indexes", "names block %d of %d", i, t.layers)
			return nil
		}
	}
	return list
}

// towerBuilder is a builder that knows what it took from the checkpoint.
type towerBuilder struct {
	builder
	t    *tower
	from map[string]bool // by name in the checkpoint
}

func (t *tower) buildTower(list []stored) (*towerBuilder, error) {
	b := &towerBuilder{builder: builder{m: t.model, names: map[string]string{}}, t: t, from: map[string]bool{}}
	list, scales, block, err := t.float8Scales(list)
	if err != nil {
		return nil, err
	}
	for _, st := range list {
		name, ok := t.towerPart(st.name)
		if !ok {
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
		b.from[st.t.Name] = true
		if t.projector == qwenTower {
			err = b.addQwen(name, s)
		} else {
			err = b.addGemmaTower(name, s)
		}
		if err != nil {
			return nil, err
		}
	}
	if len(b.out) == 0 {
		return nil, fmt.Errorf("%s: no tensors of a vision tower in this checkpoint", t.dir)
	}
	return b, t.c.failed()
}

// towerPart is the name of a tensor within the tower; ok is false for tensors of the rest.
func (t *tower) towerPart(name string) (part string, ok bool) {
	name = strings.TrimPrefix(name, "model.")
	for _, end := range ignored {
		if strings.HasSuffix(name, end) {
			return "", false
		}
	}
	switch t.projector {
	case qwenTower:
		return strings.CutPrefix(name, "visual.")
	case gemmaTower:
		if part, ok := strings.CutPrefix(name, "vision_tower."); ok {
			return part, true
		}
	case gemmaUnifiedTower:
		if part, ok := strings.CutPrefix(name, "vision_embedder."); ok {
			return part, true
		}
	}
	return name, strings.HasPrefix(name, "embed_vision.")
}

// Names of tensors within a block, by the name in the checkpoint.
var qwenTowerBlock = map[string]string{
	"norm1": "ln1", "norm2": "ln2", "attn.qkv": "attn_qkv", "attn.proj": "attn_out",
	"mlp.linear_fc1": "ffn_up", "mlp.linear_fc2": "ffn_down",
}

var gemmaTowerBlock = map[string]string{
	"input_layernorm": "ln1", "post_attention_layernorm": "attn_post_norm",
	"pre_feedforward_layernorm": "ln2", "post_feedforward_layernorm": "ffn_post_norm",
	"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
	"self_attn.o_proj": "attn_out",
	"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
	"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "layer_scalar": "out_scale",
}

// Tensors outside the blocks, of all towers.
var towerNames = map[string]string{
	"patch_embed.proj.bias": "v.patch_embd.bias",
	"pos_embed.weight":      "v.position_embd.weight",
	"merger.norm.weight":    "v.post_ln.weight", "merger.norm.bias": "v.post_ln.bias",
	"merger.linear_fc1.weight": "mm.0.weight", "merger.linear_fc1.bias": "mm.0.bias",
	"merger.linear_fc2.weight": "mm.2.weight", "merger.linear_fc2.bias": "mm.2.bias",

	"patch_embedder.position_embedding_table": "v.position_embd.weight",
	"std_bias":  "v.std_bias",
	"std_scale": "v.std_scale",
	"embed_vision.embedding_projection.weight": "mm.input_projection.weight",

	"patch_dense.bias": "v.patch_embd.bias",
	"patch_ln2.weight": "v.patch_norm.2.weight", "patch_ln2.bias": "v.patch_norm.2.bias",
	"pos_norm.weight": "v.patch_norm.3.weight", "pos_norm.bias": "v.patch_norm.3.bias",
}

func (b *towerBuilder) addQwen(name string, s *source) error {
	if name == "patch_embed.proj.weight" {
		// The kernel looks at two frames of a video; a file has one kernel for each.
		if len(s.shape) != 5 || s.shape[2] != 2 {
			return s.fail("shape is %v, expected [width, 3, 2, patch, patch]", s.shape)
		}
		side := s.shape[3]
		for frame, suffix := range []string{"", ".1"} {
			one := s.picked([]int{s.shape[0], s.shape[1], side, s.shape[4]}, func(r int) int {
				return (r/side*2+frame)*side + r%side
			})
			if err := b.emit("v.patch_embd.weight"+suffix, one); err != nil {
				return err
			}
		}
		return nil
	}
	if rest, ok := strings.CutPrefix(name, "deepstack_merger_list."); ok {
		number, rest, _ := strings.Cut(rest, ".")
		list := b.t.deepstack()
		i, err := strconv.Atoi(number)
		if err != nil || i < 0 || i >= len(list) {
			return s.fail("vision_config.deepstack_visual_indexes has no entry for it")
		}
		part, suffix, _ := strings.Cut(rest, ".")
		to := map[string]string{"norm": "norm", "linear_fc1": "fc1", "linear_fc2": "fc2"}[part]
		if to == "" {
			return s.fail("%s towers have no such tensor", b.t.projector)
		}
		return b.emit(fmt.Sprintf("v.deepstack.%d.%s.%s", list[i], to, suffix), s)
	}
	return b.emitTower(name, "blocks.", qwenTowerBlock, s)
}

func (b *towerBuilder) addGemmaTower(name string, s *source) error {
	switch name {
	case "patch_embedder.input_proj.weight":
		// A matrix over pixels of red, green and blue becomes a convolution over three planes.
		side := b.t.vision.need("patch_size")
		if len(s.shape) != 2 || s.shape[1] != 3*side*side {
			return s.fail("shape is %v, expected [width, 3 * %d * %d]", s.shape, side, side)
		}
		planes := s.columns(planesFirst(side))
		out := *planes
		out.shape = []int{s.shape[0], 3, side, side}
		out.row = func(dst []float32, r int) error {
			whole := make([]float32, 3*side*side)
			if err := planes.row(whole, r/(3*side)); err != nil {
				return err
			}
			copy(dst, whole[r%(3*side)*side:])
			return nil
		}
		return b.emit("v.patch_embd.weight", &out)
	case "patch_dense.weight", "patch_ln1.weight", "patch_ln1.bias":
		side, ok := b.t.vision.int("model_patch_size")
		if !ok {
			side = b.t.vision.need("patch_size") * b.t.vision.need("pooling_kernel_size")
		}
		if s.width() != 3*side*side {
			return s.fail("shape is %v, expected %d columns", s.shape, 3*side*side)
		}
		to := "v.patch_embd.weight"
		if rest, ok := strings.CutPrefix(name, "patch_ln1."); ok {
			to = "v.patch_norm.1." + rest
		}
		return b.emit(to, s.columns(planesFirst(side)))
	case "pos_embedding": // a place has a row for its column and one for its row; a file has a table of each
		if len(s.shape) != 3 || s.shape[1] != 2 {
			return s.fail("shape is %v, expected [places, 2, width]", s.shape)
		}
		places := s.shape[0]
		return b.emit("v.position_embd.weight", s.picked([]int{2, places, s.shape[2]}, func(r int) int {
			return r%places*2 + r/places
		}))
	}
	if strings.HasSuffix(name, "layer_scalar") {
		name += ".weight"
	}
	return b.emitTower(strings.Replace(name, ".linear.weight", ".weight", 1), "encoder.layers.", gemmaTowerBlock, s)
}

// planesFirst is the column of a patch in memory order (row, column, colour) for each in the order of a file (colour,
// row, column).
func planesFirst(side int) []int {
	from := make([]int, 3*side*side)
	for i := range from {
		from[i] = i%(side*side)*3 + i/(side*side)
	}
	return from
}

// emitTower appends a tensor that stays as it is, under its name in a file.
func (b *towerBuilder) emitTower(name, blocks string, block map[string]string, s *source) error {
	if to := towerNames[name]; to != "" {
		return b.emit(to, s)
	}
	if rest, ok := strings.CutPrefix(name, blocks); ok {
		number, rest, _ := strings.Cut(rest, ".")
		i, err := strconv.Atoi(number)
		if err == nil && (i < 0 || i >= b.t.layers) {
			return s.fail("belongs to block %d, but the tower has %d", i, b.t.layers)
		}
		if at := strings.LastIndexByte(rest, '.'); err == nil && at > 0 && block[rest[:at]] != "" {
			return b.emit(fmt.Sprintf("v.blk.%d.%s%s", i, block[rest[:at]], rest[at:]), s)
		}
	}
	return s.fail("%s towers have no such tensor", b.t.projector)
}

// checkTower makes sure that nothing is missing that a tower cannot do without.
func (t *tower) checkTower(b *towerBuilder, file string) error {
	need := []string{"v.patch_embd.weight", "v.position_embd.weight"}
	last := "mm.input_projection.weight"
	block := []string{"ln1", "attn_q", "attn_k", "attn_v", "attn_out", "ln2", "ffn_gate", "ffn_up", "ffn_down"}
	if t.projector == qwenTower {
		last = "mm.2.weight"
		block = []string{"ln1", "attn_qkv", "attn_out", "ln2", "ffn_up", "ffn_down"}
		need = append(need, "v.post_ln.weight", "mm.0.weight")
	}
	need = append(need, last)
	for i := range t.layers {
		for _, part := range block {
			need = append(need, fmt.Sprintf("v.blk.%d.%s.weight", i, part))
		}
	}
	for _, name := range need {
		if b.names[name] == "" {
			return fieldErr(file, "tensor "+name, "is missing from the checkpoint")
		}
	}
	text := t.c.need("hidden_size")
	if err := t.c.failed(); err != nil {
		return err
	}
	for _, x := range b.out {
		if x.name == last && (len(x.src.shape) != 2 || x.src.shape[0] != text) {
			return x.src.fail("shape is %v, but the text model has a width of %d", x.src.shape, text)
		}
	}
	return nil
}
