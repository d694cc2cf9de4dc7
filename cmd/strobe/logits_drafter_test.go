package main

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"strobe/internal/safetensors"
	"strobe/internal/testkit"
	"strobe/internal/testkit/edit"
)

// eagleCheckpoint writes an EAGLE-3 drafter for the golden Qwen3 in SpecForge's layout; output i is token step*i.
func eagleCheckpoint(t *testing.T, step int) string {
	t.Helper()
	const hidden, vocab, heads, kvHeads, headDim, ff, outputs = 64, 512, 4, 2, 16, 48, 40
	config, _ := json.Marshal(map[string]any{
		"architectures": []string{"LlamaForCausalLMEagle3"}, "model_type": "llama", "hidden_size": hidden,
		"num_hidden_layers": 1, "num_attention_heads": heads, "num_key_value_heads": kvHeads, "head_dim": headDim,
		"intermediate_size": ff, "vocab_size": vocab, "draft_vocab_size": outputs, "rms_norm_eps": 1e-6,
		"max_position_embeddings": 2048, "rope_theta": 1e6, "hidden_act": "silu",
		"eagle_config": map[string]any{"use_aux_hidden_state": true, "eagle_aux_hidden_state_layer_ids": []int{0, 1, 2}},
	})
	rng := rand.New(rand.NewPCG(1, 1))
	var tensors []safetensors.Tensor
	add := func(name string, shape ...int) {
		v := make([]float32, shape[0]*shape[len(shape)-1])
		if len(shape) == 1 {
			v = v[:shape[0]]
		}
		for i := range v {
			v[i] = float32(rng.NormFloat64() / math.Sqrt(float64(shape[len(shape)-1])))
		}
		tensors = append(tensors, floatTensor(name+".weight", v, shape...))
	}
	add("fc", hidden, 3*hidden)
	add("norm", hidden)
	add("lm_head", outputs, hidden)
	for _, name := range []string{"input_layernorm", "hidden_norm", "post_attention_layernorm"} {
		add("midlayer."+name, hidden)
	}
	add("midlayer.self_attn.q_proj", heads*headDim, 2*hidden)
	add("midlayer.self_attn.k_proj", kvHeads*headDim, 2*hidden)
	add("midlayer.self_attn.v_proj", kvHeads*headDim, 2*hidden)
	add("midlayer.self_attn.o_proj", hidden, heads*headDim)
	add("midlayer.mlp.gate_proj", ff, hidden)
	add("midlayer.mlp.up_proj", ff, hidden)
	add("midlayer.mlp.down_proj", hidden, ff)
	var d2t []byte
	for i := range outputs {
		d2t = binary.LittleEndian.AppendUint64(d2t, uint64((step-1)*i)) // relative to the output
	}
	tensors = append(tensors, safetensors.Tensor{Name: "d2t", DType: "I64", Shape: []int{outputs}, Data: d2t},
		safetensors.Tensor{Name: "t2d", DType: "BOOL", Shape: []int{vocab}, Data: make([]byte, vocab)})
	dir := t.TempDir()
	if err := safetensors.Write(filepath.Join(dir, "model.safetensors"), tensors, nil); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestCompareDrafters: a drafter's file and its checkpoint are found to be the same, in each dialect, and others are
// found to be different.
func TestCompareDrafters(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	dir := t.TempDir()
	golden := func(name string) string { return testkit.Golden(t, name) }
	const same, types = "the same computation", "the same model with other types"
	compare := func(code int, want, model, drafter, other string, more ...string) {
		t.Helper()
		args := append([]string{"logits", "-m", model, "--compare", other, "--device", "cpu", "--threads", "2"}, more...)
		if drafter != "" {
			args = append(args, "-d", drafter)
		}
		got, out, stderr := command(t, args...)
		if got != code || !strings.Contains(out+stderr, want) {
			t.Errorf("%s against %s: code %d, want %d and %q\n%s%s", drafter, other, got, code, want, out, stderr)
		}
	}
	// DFlash.
	qwen35, dflash := golden("qwen35/model.gguf"), golden("dflash-qwen35/model.gguf")
	compare(exitOK, same, qwen35, dflash, golden("dflash-qwen35/hf"))
	compare(exitOK, types, qwen35, golden("dflash-qwen35/hf"), dflash) // what generation would run: 8 bits
	compare(exitError, "8 rows of 512 outputs, the other drafter 16", qwen35, dflash,
		golden("dflash-qwen35moe/model.gguf"))
	compare(exitError, "verdict    different", golden("qwen35moe/model.gguf"), golden("dflash-qwen35moe/model.gguf"),
		golden("dflash-qwen3next/model.gguf"))
	// Multi-token prediction: an assistant, and the layer in a model against one in a file of its own.
	gemma4, assistant := golden("gemma4/model.gguf"), golden("gemma4-assistant/model.gguf")
	compare(exitOK, same, gemma4, assistant, golden("gemma4-assistant/hf"))
	compare(exitOK, types, gemma4, golden("gemma4-assistant/hf"), assistant)
	block := golden("mtp-qwen35/block.gguf")
	compare(exitOK, same, edit.MTP(t, "qwen35").Write(t), "", block)
	compare(exitError, "of kind mtp", qwen35, dflash, block)
	// EAGLE-3, with a reduced vocabulary.
	qwen3, eagle := golden("qwen3/model.gguf"), filepath.Join(dir, "eagle.gguf")
	checkpoint := eagleCheckpoint(t, 2)
	if code, _, stderr := command(t, "convert", "-q", checkpoint, "-o", eagle, "--type", "f32", "--target",
		golden("qwen3/hf")); code != exitOK {
		t.Fatal(stderr)
	}
	compare(exitOK, same, qwen3, eagle, checkpoint)
	// The logits are right, the tokens are not.
	compare(exitError, "differ by 0.00e+00 of", qwen3, eagle, eagleCheckpoint(t, 3))
	ids := filepath.Join(dir, "ids.json")
	for text, want := range map[string]string{"[5, 6]": "same token at 8 of 8", "[5]": "1 token ids; want 2 to",
		"[5, 512]": "512", "[1, 2, 3, 4, 5, 6, 7]": "same token at 32 of 32"} {
		if err := os.WriteFile(ids, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		code := exitOK
		if !strings.HasPrefix(want, "same") {
			code = exitError
		}
		compare(code, want, qwen3, eagle, checkpoint, "--tokens", ids)
	}
	// What cannot be compared.
	compare(exitUsage, "without --out", qwen35, dflash, dflash, "--out", filepath.Join(dir, "x"))
	compare(exitUsage, "0 drafters", qwen35, "none", dflash)
	if left, _ := filepath.Glob(filepath.Join(cache, "strobe", "drafters", "compare-*")); len(left) > 0 {
		t.Errorf("files are left: %v", left)
	}
}
