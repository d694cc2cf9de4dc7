package quant

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestParseMix(t *testing.T) {
	for _, c := range []struct {
		in, name string
		fileType uint32
		base     Type
	}{
		{"f32", "F32", 0, F32}, {"F16", "F16", 1, F16}, {"bf16", "BF16", 32, BF16}, {"q8_0", "Q8_0", 7, Q8_0},
		{"q4_0", "Q4_0", 2, Q4_0}, {"q4_1", "Q4_1", 3, Q4_1}, {"q5_0", "Q5_0", 8, Q5_0}, {"q5_1", "Q5_1", 9, Q5_1},
		{"Q4_K_S", "Q4_K_S", 14, Q4_K}, {"q4_k_m", "Q4_K_M", 15, Q4_K}, {"Q4_K", "Q4_K_M", 15, Q4_K},
		{"Q5_K_S", "Q5_K_S", 16, Q5_K}, {"Q5_K_M", "Q5_K_M", 17, Q5_K}, {"q5_k", "Q5_K_M", 17, Q5_K},
		{"Q6_K", "Q6_K", 18, Q6_K}, {"iq4_nl", "IQ4_NL", 25, IQ4_NL}, {"IQ4_XS", "IQ4_XS", 30, IQ4_XS},
		{"q2_k", "Q2_K", 10, Q2_K}, {"q3_k_s", "Q3_K_S", 11, Q3_K}, {"q3_k", "Q3_K_M", 12, Q3_K},
		{"Q3_K_L", "Q3_K_L", 13, Q3_K}, {"mxfp4_moe", "MXFP4_MOE", 38, MXFP4},
	} {
		m, err := ParseMix(c.in)
		if err != nil {
			t.Errorf("%s: %v", c.in, err)
			continue
		}
		if m.Name() != c.name || m.FileType() != c.fileType || m.Base() != c.base {
			t.Errorf("%s: got %s, %d, %v", c.in, m.Name(), m.FileType(), m.Base())
		}
		if FileTypeName(c.fileType) != c.name {
			t.Errorf("file type %d is called %q", c.fileType, FileTypeName(c.fileType))
		}
	}
	for _, name := range Mixes() {
		if m, err := ParseMix(name); err != nil || m.Name() != name || m.Note() == "" {
			t.Errorf("listed mix %s: %v", name, err)
		}
	}
	_, err := ParseMix("q3_x")
	if err == nil || !strings.Contains(err.Error(), `"q3_x"`) || !strings.Contains(err.Error(), "Q4_K_M, Q4_K_S") {
		t.Errorf("unknown name: %v", err)
	}
	if (Mix{}).Name() != "F32" {
		t.Errorf("the zero mix is %s", Mix{}.Name())
	}
	if FileTypeName(27) != "IQ3_M" || FileTypeName(999) != "" {
		t.Errorf("foreign file types: %q, %q", FileTypeName(27), FileTypeName(999))
	}
}

// plan returns the chosen types by tensor name.
func plan(t *testing.T, mix, arch string, ts []TensorInfo) map[string]Type {
	t.Helper()
	m, err := ParseMix(mix)
	if err != nil {
		t.Fatal(err)
	}
	got, err := m.Plan(arch, ts)
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]Type{}
	for i, ti := range ts {
		byName[ti.Name] = got[i]
	}
	return byName
}

func tensor(name string, shape ...int) TensorInfo { return TensorInfo{name, shape, BF16} }

// llama8B has the tensors of Llama 3.1 8B, whose published files show which
// layers upstream gives more bits.
func llama8B(tied bool) []TensorInfo {
	ts := []TensorInfo{tensor("token_embd.weight", 4096, 128256), {"output_norm.weight", []int{4096}, F32}}
	if !tied {
		ts = append(ts, tensor("output.weight", 4096, 128256))
	}
	for i := range 32 {
		b := fmt.Sprintf("blk.%d.", i)
		ts = append(ts,
			TensorInfo{b + "attn_norm.weight", []int{4096}, F32},
			tensor(b+"attn_q.weight", 4096, 4096), tensor(b+"attn_k.weight", 4096, 1024),
			tensor(b+"attn_v.weight", 4096, 1024), tensor(b+"attn_output.weight", 4096, 4096),
			tensor(b+"ffn_gate.weight", 4096, 14336), tensor(b+"ffn_up.weight", 4096, 14336),
			tensor(b+"ffn_down.weight", 14336, 4096))
	}
	return ts
}

// blocksWith lists the blocks whose tensor has a type.
func blocksWith(types map[string]Type, tensor string, typ Type) (blocks []int) {
	for i := range 200 {
		if got, ok := types[fmt.Sprintf("blk.%d.%s", i, tensor)]; ok && got == typ {
			blocks = append(blocks, i)
		}
	}
	return blocks
}

func TestPlanDense(t *testing.T) {
	// As seen in the Q4_K_M files of 32-layer models: the first and last four
	// layers and every third in between.
	more := []int{0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31}
	for _, c := range []struct {
		mix        string
		most       Type
		embd, out  Type
		vMore      Type
		vBlocks    []int
		downMore   Type
		downBlocks []int
	}{
		{"Q4_K_M", Q4_K, Q4_K, Q6_K, Q6_K, more, Q6_K, more},
		{"Q4_K_S", Q4_K, Q4_K, Q6_K, Q5_K, []int{0, 1, 2, 3}, Q5_K, []int{0, 1, 2, 3}},
		{"Q5_K_M", Q5_K, Q5_K, Q6_K, Q6_K, more, Q6_K, more},
		{"Q5_K_S", Q5_K, Q5_K, Q6_K, Q6_K, nil, Q6_K, nil},
		{"Q6_K", Q6_K, Q6_K, Q6_K, Q8_0, nil, Q8_0, nil},
		{"Q8_0", Q8_0, Q8_0, Q8_0, Q6_K, nil, Q6_K, nil},
		{"Q4_0", Q4_0, Q4_0, Q6_K, Q6_K, nil, Q6_K, nil},
		{"Q5_1", Q5_1, Q5_1, Q6_K, Q6_K, nil, Q6_K, nil},
		{"IQ4_XS", IQ4_XS, IQ4_XS, Q6_K, Q5_K, seq(32), Q5_K, []int{0, 1, 2, 3}},
		{"F16", F16, F16, F16, Q6_K, nil, Q6_K, nil},
	} {
		t.Run(c.mix, func(t *testing.T) {
			got := plan(t, c.mix, "llama", llama8B(false))
			if got["token_embd.weight"] != c.embd || got["output.weight"] != c.out {
				t.Errorf("embedding %v, output %v", got["token_embd.weight"], got["output.weight"])
			}
			if got["output_norm.weight"] != F32 || got["blk.7.attn_norm.weight"] != F32 {
				t.Errorf("norms are %v, %v", got["output_norm.weight"], got["blk.7.attn_norm.weight"])
			}
			if v := blocksWith(got, "attn_v.weight", c.vMore); !slices.Equal(v, c.vBlocks) {
				t.Errorf("attn_v is %v in %v, want %v", c.vMore, v, c.vBlocks)
			}
			if d := blocksWith(got, "ffn_down.weight", c.downMore); !slices.Equal(d, c.downBlocks) {
				t.Errorf("ffn_down is %v in %v, want %v", c.downMore, d, c.downBlocks)
			}
			for _, name := range []string{"attn_q.weight", "attn_k.weight", "attn_output.weight", "ffn_gate.weight",
				"ffn_up.weight"} {
				if b := blocksWith(got, name, c.most); len(b) != 32 {
					t.Errorf("%s is %v in %d blocks only", name, c.most, len(b))
				}
			}
			tied := plan(t, c.mix, "llama", llama8B(true))
			if tied["token_embd.weight"] != c.out {
				t.Errorf("tied embedding is %v, want %v", tied["token_embd.weight"], c.out)
			}
		})
	}
}

// TestPlanSmall: what the smallest mixes give more bits than most tensors get.
func TestPlanSmall(t *testing.T) {
	for _, c := range []struct {
		mix                        string
		most, out                  Type
		attnOut, value, firstValue Type
		down, firstDown            Type
	}{
		{"Q2_K", Q2_K, Q6_K, Q3_K, Q4_K, Q4_K, Q3_K, Q3_K},
		{"Q3_K_S", Q3_K, Q6_K, Q3_K, Q3_K, Q3_K, Q3_K, Q3_K},
		{"Q3_K_M", Q3_K, Q6_K, Q4_K, Q4_K, Q5_K, Q4_K, Q5_K},
		{"Q3_K_L", Q3_K, Q6_K, Q5_K, Q5_K, Q5_K, Q5_K, Q5_K},
	} {
		got := plan(t, c.mix, "llama", llama8B(false))
		for name, want := range map[string]Type{
			"output.weight": c.out, "token_embd.weight": c.most, "blk.9.attn_q.weight": c.most, "blk.9.ffn_up.weight": c.most,
			"blk.9.attn_output.weight": c.attnOut, "blk.1.attn_v.weight": c.firstValue, "blk.2.attn_v.weight": c.value,
			"blk.1.ffn_down.weight": c.firstDown, "blk.2.ffn_down.weight": c.down,
		} {
			if got[name] != want {
				t.Errorf("%s: %s is %v, want %v", c.mix, name, got[name], want)
			}
		}
	}
	const name = "blk.0.ffn_up.weight"
	if got := plan(t, "Q2_K", "qwen3", []TensorInfo{tensor(name, 96, 8)}); got[name] != IQ4_NL {
		t.Errorf("rows of 96 become %v", got)
	}
}

func seq(n int) (s []int) {
	for i := range n {
		s = append(s, i)
	}
	return s
}

// TestPlanOrder: the rules count layers in name order, so the order of the
// tensors in the file does not matter.
func TestPlanOrder(t *testing.T) {
	ts := llama8B(false)
	want := plan(t, "Q4_K_M", "llama", ts)
	slices.Reverse(ts)
	got := plan(t, "Q4_K_M", "llama", ts)
	for name, typ := range want {
		if got[name] != typ {
			t.Errorf("%s is %v in reverse order, %v in file order", name, got[name], typ)
		}
	}
}

func TestSortTensors(t *testing.T) {
	names := []string{"blk.10.a", "blk.2.b", "token_embd", "blk.2.a", "blk.x.a", "blk.0.z", "output"}
	SortTensors(names, func(s string) string { return s })
	want := []string{"blk.x.a", "output", "token_embd", "blk.0.z", "blk.2.a", "blk.2.b", "blk.10.a"}
	if !slices.Equal(names, want) {
		t.Errorf("got %v, want %v", names, want)
	}
}

// TestPlanHybrid: a Gated DeltaNet hybrid with tied embeddings and experts.
func TestPlanHybrid(t *testing.T) {
	var ts []TensorInfo
	add := func(typ Type, name string, shape ...int) { ts = append(ts, TensorInfo{name, shape, typ}) }
	add(BF16, "token_embd.weight", 2048, 1000)
	for i := range 8 {
		b := fmt.Sprintf("blk.%d.", i)
		if i%4 == 3 {
			add(BF16, b+"attn_q.weight", 2048, 2*16*256)
			add(BF16, b+"attn_k.weight", 2048, 2*256)
			add(BF16, b+"attn_v.weight", 2048, 2*256)
			add(BF16, b+"attn_output.weight", 4096, 2048)
			add(F32, b+"attn_q_norm.weight", 256)
		} else {
			add(BF16, b+"attn_qkv.weight", 2048, 8192)
			add(BF16, b+"attn_gate.weight", 2048, 4096)
			add(F32, b+"ssm_conv1d.weight", 4, 8192)
			add(F32, b+"ssm_a", 32)
			add(F32, b+"ssm_dt.bias", 32)
			add(BF16, b+"ssm_alpha.weight", 2048, 32)
			add(BF16, b+"ssm_out.weight", 4096, 2048)
		}
		add(F32, b+"ffn_gate_inp.weight", 2048, 256)
		add(F32, b+"ffn_gate_inp_shexp.weight", 2048, 1)
		add(BF16, b+"ffn_gate_exps.weight", 2048, 512, 256)
		add(BF16, b+"ffn_up_exps.weight", 2048, 512, 256)
		add(BF16, b+"ffn_down_exps.weight", 512, 2048, 256)
		add(BF16, b+"ffn_down_shexp.weight", 512, 2048)
	}
	got := plan(t, "Q4_K_M", "qwen35moe", ts)
	for name, want := range map[string]Type{
		"token_embd.weight":               Q6_K, // doubles as the output
		"blk.0.attn_qkv.weight":           Q6_K, // counts as a value tensor
		"blk.1.attn_qkv.weight":           Q4_K,
		"blk.2.attn_qkv.weight":           Q4_K,
		"blk.3.attn_v.weight":             Q6_K,
		"blk.3.attn_k.weight":             Q4_K,
		"blk.0.attn_gate.weight":          Q4_K,
		"blk.0.ssm_conv1d.weight":         F32,
		"blk.0.ssm_a":                     F32,
		"blk.0.ssm_dt.bias":               F32,
		"blk.0.ssm_alpha.weight":          Q4_K,
		"blk.0.ffn_gate_inp.weight":       F32,
		"blk.0.ffn_gate_inp_shexp.weight": F32, // {n, 1} is a vector
		"blk.0.ffn_down_exps.weight":      Q6_K,
		"blk.0.ffn_down_shexp.weight":     Q6_K,
		"blk.1.ffn_down_exps.weight":      Q4_K,
		"blk.1.ffn_down_shexp.weight":     Q4_K,
		"blk.3.ffn_down_exps.weight":      Q6_K,
		"blk.7.ffn_down_exps.weight":      Q6_K,
		"blk.7.ffn_up_exps.weight":        Q4_K,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
	// 16 query heads on 2 key heads, the gate rows not counted.
	if x := plan(t, "IQ4_XS", "qwen35moe", ts); x["blk.3.attn_v.weight"] != Q5_K {
		t.Errorf("IQ4_XS attn_v is %v", x["blk.3.attn_v.weight"])
	}
}

func TestPlanEightExperts(t *testing.T) {
	ts := []TensorInfo{
		tensor("token_embd.weight", 4096, 32000), tensor("output.weight", 4096, 32000),
		tensor("blk.0.attn_q.weight", 4096, 4096), tensor("blk.0.attn_k.weight", 4096, 1024),
		tensor("blk.0.attn_v.weight", 4096, 1024), tensor("blk.0.attn_output.weight", 4096, 4096),
		tensor("blk.0.ffn_down_exps.weight", 14336, 4096, 8),
	}
	got := plan(t, "Q4_K_S", "llama", ts)
	for name, want := range map[string]Type{
		"blk.0.attn_q.weight": Q4_K, "blk.0.attn_k.weight": Q8_0, "blk.0.attn_v.weight": Q8_0,
		"blk.0.attn_output.weight": Q5_K,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
}

func TestPlanOddRows(t *testing.T) {
	row := func(n int) []TensorInfo {
		return []TensorInfo{tensor("blk.0.ffn_up.weight", n, 64), tensor("output.weight", n, 64)}
	}
	for _, c := range []struct {
		mix     string
		n       int
		up, out Type
	}{
		{"Q4_K_M", 320, Q5_0, Q8_0}, {"Q5_K_M", 320, Q5_1, Q8_0}, {"Q6_K", 320, Q8_0, Q8_0}, {"IQ4_XS", 320, IQ4_NL, Q8_0},
		{"Q4_0", 320, Q4_0, Q8_0}, {"Q8_0", 320, Q8_0, Q8_0}, {"Q4_K_M", 100, F16, F16}, {"Q8_0", 100, F16, F16},
		{"Q4_0", 100, F16, F16}, {"BF16", 100, BF16, BF16},
	} {
		got := plan(t, c.mix, "qwen3", row(c.n))
		if got["blk.0.ffn_up.weight"] != c.up || got["output.weight"] != c.out {
			t.Errorf("%s, rows of %d: %v, %v; want %v, %v", c.mix, c.n, got["blk.0.ffn_up.weight"], got["output.weight"], c.up,
				c.out)
		}
	}
}

// TestPlanKeeps: what no mix touches, from the models we support.
func TestPlanKeeps(t *testing.T) {
	ts := []TensorInfo{
		{"per_layer_model_proj.weight", []int{1536, 8960}, BF16},
		{"blk.0.ffn_gate_inp.scale", []int{2816}, F32},
		{"blk.0.ffn_down_exps.scale", []int{128}, F32},
		{"rope_freqs.weight", []int{256}, F32},
		{"d2t", []int{32000}, I64},
		{"blk.0.layer_output_scale.weight", []int{1}, F32},
		{"enc.output_norm.weight", []int{512}, F32},
		{"v.patch_embd.weight", []int{14, 14, 3, 1024}, F16},
	}
	for _, mix := range Mixes() {
		for name, typ := range plan(t, mix, "gemma4", ts) {
			i := slices.IndexFunc(ts, func(ti TensorInfo) bool { return ti.Name == name })
			if typ != ts[i].Type {
				t.Errorf("%s changes %s to %v", mix, name, typ)
			}
		}
	}
}

// TestPlanExperts: MXFP4_MOE is for experts; other matrices, and what fits no block, get other types.
func TestPlanExperts(t *testing.T) {
	got := plan(t, "mxfp4_moe", "gpt-oss", []TensorInfo{
		tensor("token_embd.weight", 2880, 64), tensor("output.weight", 2880, 64),
		tensor("blk.0.attn_v.weight", 2880, 64), tensor("blk.0.ffn_down_exps.weight", 2880, 64),
		tensor("blk.0.ffn_up_exps.weight", 2880+16, 64), {"blk.0.ffn_up_exps.bias", []int{2880, 32}, F32},
		tensor("blk.0.ffn_up_shexp.weight", 2880, 64),
	})
	for name, want := range map[string]Type{"token_embd.weight": Q8_0, "output.weight": Q8_0, "blk.0.attn_v.weight": Q8_0,
		"blk.0.ffn_down_exps.weight": MXFP4, "blk.0.ffn_up_exps.weight": F16, "blk.0.ffn_up_exps.bias": F32,
		"blk.0.ffn_up_shexp.weight": Q8_0} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
}

func TestPlanOverrides(t *testing.T) {
	base, err := ParseMix("Q4_K_M")
	if err != nil {
		t.Fatal(err)
	}
	m := base.With("blk.0.ffn_up.weight", BF16).With("blk.2.ffn_up.weight", Q5_0).With("token_embd.weight", Q8_0)
	ts := []TensorInfo{tensor("token_embd.weight", 512, 64), tensor("blk.0.ffn_up.weight", 512, 64),
		tensor("blk.2.ffn_up.weight", 512, 64), tensor("blk.2.ffn_gate.weight", 512, 64)}
	got, err := m.Plan("qwen35", ts)
	if err != nil {
		t.Fatal(err)
	}
	if want := []Type{Q8_0, BF16, Q5_0, Q4_K}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if plain, _ := base.Plan("qwen35", ts); plain[0] != Q6_K {
		t.Errorf("With changed the mix it was called on: %v", plain)
	}

	for _, c := range []struct {
		typ  Type // of a.weight
		ts   []TensorInfo
		want string
	}{
		{Q4_K, []TensorInfo{tensor("a.weight", 100, 2)},
			`tensor "a.weight": rows of 100 cannot be Q4_K, which has blocks of 256`},
		{IQ2_S, []TensorInfo{tensor("a.weight", 256, 2)}, `tensor "a.weight": cannot quantise to IQ2_S`},
		{Type(5), []TensorInfo{tensor("a.weight", 256, 2)}, `tensor "a.weight": cannot quantise to type(5)`},
		{Q4_K, []TensorInfo{{"b.weight", []int{256, 2}, Q8_K}}, `tensor "b.weight": cannot convert from Q8_K`},
		{Q4_K, []TensorInfo{{"b.weight", nil, F32}}, `tensor "b.weight": has no shape`},
		{Q4_K, []TensorInfo{tensor("b_exps.weight", 256, 2, 4), tensor("ffn_down.weight", 256, 2)},
			`tensor "ffn_down.weight": which block it belongs to is not in its name`},
	} {
		if _, err := base.With("a.weight", c.typ).Plan("qwen3", c.ts); err == nil || err.Error() != c.want {
			t.Errorf("got  %v\nwant %s", err, c.want)
		}
	}
}
