//go:build !nogpu

package cuda_test

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"strobe/internal/model"
	"strobe/internal/testkit/modeltest"
)

// short is a suite with the lengths of texts that the emulation has time for, or those of a device.
func short() modeltest.Suite {
	if os.Getenv("STROBE_CUDA") == "cuda" {
		return modeltest.Suite{}
	}
	return modeltest.Suite{Few: 8, Written: 5}
}

// suite is the device with the architectures that a test tries: all of them on a device, these on the emulation.
func suite(t testing.TB, these ...string) (modeltest.Suite, []string) {
	s := short()
	if s.Backend = open(t); s.Few > 0 {
		return s, these
	}
	return s, slices.Concat(modeltest.Targets, modeltest.Plain)
}

func TestGolden(t *testing.T) {
	s, targets := suite(t, append(modeltest.Targets, "tiny-gpt-oss")...)
	s.Golden(t, targets...)
}

func TestIdentity(t *testing.T) {
	s, targets := suite(t, "qwen35moe", "gemma4e")
	s.Identity(t, targets...)
}

func TestPrompts(t *testing.T) {
	s, targets := suite(t, "qwen35moe")
	s.Prompts(t, targets...)
}

func TestImages(t *testing.T) {
	s, _ := suite(t)
	s.Images(t, modeltest.WithImages...)
}

func TestPadding(t *testing.T) {
	s, targets := suite(t, "qwen35", "gemma4e")
	s.Padding(t, targets...)
}

func TestText(t *testing.T) {
	s, targets := suite(t, "qwen35")
	s.Text(t, targets...)
}

func TestSamplers(t *testing.T) {
	s, _ := suite(t)
	s.Samplers(t, modeltest.Target(t, s.Backend, "qwen3", model.Options{}), []int32{1, 5, 9, 13}, 8)
}

func TestRollback(t *testing.T) {
	s, targets := suite(t, "qwen35")
	s.Rollback(t, targets...)
}

func TestMTP(t *testing.T) {
	s, targets := suite(t, "qwen35")
	if s.Few == 0 {
		targets = []string{"qwen35", "gemma4", "eagle3-gemma4"}
	}
	s.MTP(t, append(targets, "eagle3-qwen3")...)
}

// TestChains: of Gemma's assistant there are two kinds of attention in each of eight steps.
func TestChains(t *testing.T) {
	s, _ := suite(t)
	s.Chains(t, "qwen35", "gemma4", "eagle3-qwen3")
}

func TestScorer(t *testing.T) {
	s, _ := suite(t)
	s.Scorer(t)
}

func TestSparseAttention(t *testing.T) {
	s, _ := suite(t)
	s.SparseAttention(t)
}

// TestPair takes the pair in $STROBE_PAIR.
func TestPair(t *testing.T) {
	var tp, dp string
	if _, err := fmt.Sscanf(os.Getenv("STROBE_PAIR"), "%s %s", &tp, &dp); err != nil {
		t.Skip("no pair: set STROBE_PAIR to a target and its drafter, with a space between")
	}
	s, _ := suite(t)
	s.Pair(t, modeltest.File(t, tp), modeltest.File(t, dp), 200)
}
