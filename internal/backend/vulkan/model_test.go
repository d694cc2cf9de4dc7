//go:build !nogpu

package vulkan_test

import (
	"slices"
	"testing"

	"strobe/internal/model"
	"strobe/internal/testkit/modeltest"
	"strobe/models"
)

func suite(t testing.TB) modeltest.Suite {
	s := modeltest.Suite{Backend: openLasting(t)}
	if software() {
		s.Few, s.Written = 18, 8
	}
	return s
}

// TestModels: the golden logits, the same bits whatever the batch and whatever was not accepted, and the same text
// whatever drafts, for every architecture.
func TestModels(t *testing.T) {
	beside(t)
	s := suite(t)
	all := slices.Concat(modeltest.Targets, modeltest.Plain)
	t.Run("golden", func(t *testing.T) { s.Golden(t, all...) })
	some := all
	if software() { // the kernels of gpt-oss take long to compile; rollback and text say the same of it
		some = slices.DeleteFunc(slices.Clone(all), func(name string) bool { return name == "tiny-gpt-oss" })
	}
	t.Run("identity", func(t *testing.T) { s.Identity(t, some...) })
	t.Run("prompts", func(t *testing.T) { s.Prompts(t, some...) })
	t.Run("images", func(t *testing.T) { s.Images(t, modeltest.WithImages...) })
	t.Run("padding", func(t *testing.T) { s.Padding(t, "qwen35", "gemma4e") })
	t.Run("rollback", func(t *testing.T) { s.Rollback(t, all...) })
	t.Run("chains", func(t *testing.T) { s.Chains(t, "qwen35", "gemma4", "eagle3-qwen3") })
	t.Run("text", func(t *testing.T) { s.Text(t, all...) })
	t.Run("mtp", func(t *testing.T) { s.MTP(t, "qwen35", "gemma4", "eagle3-qwen3") })
	t.Run("samplers", func(t *testing.T) {
		s.Samplers(t, modeltest.Target(t, s.Backend, "qwen3", model.Options{}), []int32{1, 5, 9, 13}, 8)
	})
	t.Run("scorer", s.Scorer)
	t.Run("sparse attention", s.SparseAttention)
}

// TestPair: the built-in pair says the same in every mode.
func TestPair(t *testing.T) {
	beside(t)
	tf, df, err := models.Open()
	if err != nil {
		t.Skipf("needs the built-in pair: %v", err)
	}
	suite(t).Pair(t, tf, df, 200)
}
