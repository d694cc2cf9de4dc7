package bench

import (
	"path/filepath"
	"strings"

	"strobe/internal/engine"
)

// Published is an accepted length that somebody else measured.
type Published struct {
	Drafter       string  `json:"drafter"`         // kind of drafter
	TokensPerPass float64 `json:"tokens_per_pass"` // the accepted length
	Where         string  `json:"where"`
}

// published is what is known of models and suites. The kinds of one source differ in what the drafter's name says:
// DSpark and DFlash2 are drafters of the source dflash.
var published = []struct {
	model, suite, source string
	Published
}{
	{"qwen3.5-4b", "gsm8k", "mtp", Published{"MTP", 4.78, speculators}},
	{"qwen3.5-4b", "gsm8k", "dflash", Published{"DFlash", 4.99, speculators}},
	{"qwen3.5-4b", "gsm8k", "dflash", Published{"DSpark", 5.69, speculators}},
	{"qwen3.5-4b", "gsm8k", "dflash", Published{"DFlash2", 6.20, speculators}},
	{"qwen3.5-4b", "math", "mtp", Published{"MTP", 5.04, speculators}},
	{"qwen3.5-4b", "math", "dflash", Published{"DFlash", 5.42, speculators}},
	{"qwen3.5-4b", "math", "dflash", Published{"DSpark", 6.20, speculators}},
	{"qwen3.5-4b", "math", "dflash", Published{"DFlash2", 6.76, speculators}},
}

const speculators = "github.com/vllm-project/speculators/issues/1014"

// publishedFor lists what is known of a model, by its name or its file's, with a source on a suite.
func publishedFor(m *engine.Model, source, category string) (out []Published) {
	name := strings.ToLower(m.Target.Name + " " + filepath.Base(m.Path))
	name = strings.NewReplacer(" ", "-", "_", "-").Replace(name)
	suite, _, _ := strings.Cut(category, "/")
	for _, x := range published {
		if x.source == source && x.suite == suite && strings.Contains(name, x.model) {
			out = append(out, x.Published)
		}
	}
	return out
}
