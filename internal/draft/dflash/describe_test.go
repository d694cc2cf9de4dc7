package dflash

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// TestDescribe: the same drafter is described alike in every dialect.
func TestDescribe(t *testing.T) {
	ids := golden(t, "qwen35").open(t, openTarget(t, "qwen35"), Options{}).Capture()
	want := &Description{Block: 16, Mask: 507, Layers: ids, Features: 192}
	for _, c := range []struct {
		file                *drafterFile
		dialect, projection string
	}{
		{golden(t, "qwen35"), "dflash", "fc.weight"},
		{asBeellama(golden(t, "qwen35")), "dflash-draft", "dflash_fc.weight"},
		{asLucebox(golden(t, "qwen35"), "qwen35-dflash-draft"), "lucebox", "dflash.fc.weight"},
		{asLucebox(golden(t, "qwen35"), "dflash-draft"), "lucebox", "dflash.fc.weight"},
	} {
		got, err := Describe(c.file.write(t))
		if err != nil {
			t.Fatal(err)
		}
		want.Dialect, want.Projection = c.dialect, c.projection
		if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Description{})); diff != "" {
			t.Errorf("%s: %s", c.dialect, diff)
		}
		layers, err := got.TargetLayers(4)
		if err != nil || !cmp.Equal(layers, ids) {
			t.Errorf("%s: reads layers %v of a target with 4, %v", c.dialect, layers, err)
		}
		if _, err := got.TargetLayers(1); err == nil || !strings.Contains(err.Error(), "the target has 1 layers") {
			t.Errorf("%s: a target with one layer: %v", c.dialect, err)
		}
	}
}

// TestDescribeSpaced: Lucebox's files for Qwen list no layers; the target decides.
func TestDescribeSpaced(t *testing.T) {
	const arch = "qwen35-dflash-draft"
	d, err := Describe(asLucebox(golden(t, "qwen35"), arch).del(arch + ".dflash.target_layer_ids").write(t))
	if err != nil || d.Layers != nil {
		t.Fatal(err, d)
	}
	if got, err := d.TargetLayers(34); err != nil || !cmp.Equal(got, []int{1, 17, 33}) {
		t.Errorf("layers %v, %v", got, err)
	}
}

// TestDescribeRefuses: a file that is no drafter, and values of the wrong kind.
func TestDescribeRefuses(t *testing.T) {
	for want, e := range map[string]*drafterFile{
		"dflash.block_size":            golden(t, "qwen3").set("dflash.block_size", "many"),
		"dflash.target_layers":         golden(t, "qwen3").set("dflash.target_layers", true),
		"tokenizer.ggml.mask_token_id": golden(t, "qwen3").set("tokenizer.ggml.mask_token_id", "none"),
		"is not a DFlash drafter":      golden(t, "qwen3").set("general.architecture", "qwen3"),
	} {
		if d, err := Describe(e.write(t)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", want, d, err)
		}
	}
}
