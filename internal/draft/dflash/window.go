package dflash

import (
	"path/filepath"
	"strings"

	"strobe/internal/cache"
	"strobe/internal/gguf"
)

// Windows bound the memory of a drafter's context, which would be several gigabytes for a long text otherwise.
// Sliding layers have the window of the file, else that of a known drafter, else a trial finds one. Layers that do
// not slide see fullWindow tokens.
const (
	WindowOff   = -1   // layers without a window see everything
	fullWindow  = 4096 // the largest window that published drafters have
	trialWindow = 2048 // the other usual one
)

// knownWindows are the windows of published drafters whose files lack them: all layers but the last slide.
var knownWindows = []struct {
	name   string
	window int
}{
	{"qwen3.6-27b", 2048}, {"qwen3.6-35b-a3b", 4096}, {"qwen3.5-122b-a10b", 4096}, {"qwen3-coder-next", 4096},
	{"gemma-4-31b", 2048}, {"gemma-4-26b-a4b", 2048},
}

// knownWindow looks for the drafter's name in its file and in the name of the file.
func knownWindow(f *gguf.File) int {
	title, _, _ := f.String("general.name")
	for _, name := range []string{title, filepath.Base(f.Path())} {
		name = strings.ReplaceAll(strings.ToLower(name), " ", "-")
		for _, k := range knownWindows {
			if strings.Contains(name, k.name) {
				return k.window
			}
		}
	}
	return 0
}

// limitWindows decides how far every layer looks. It opens a trial where nothing is known.
func (d *Drafter) limitWindows(f *gguf.File, wanted int) {
	d.full = fullWindow
	switch {
	case wanted == WindowOff:
		d.full = 0
	case wanted > 0:
		d.full = wanted
		for i, w := range d.window {
			d.window[i] = min(w, wanted)
		}
	case d.slides():
	default:
		if w := knownWindow(f); w > 0 {
			for i := range d.window[:len(d.window)-1] {
				d.window[i] = w
			}
		} else {
			d.trial = trial{open: true, from: trialWindow}
		}
	}
	for _, w := range d.window {
		if w == d.full && w > 0 {
			d.full++ // layers with one window share a cache, and those that do not slide have another rule inside a block
			break
		}
	}
}

// narrow lets the rows of sequences that are longer than a window see no more than that.
func (d *Drafter) narrow(batch *cache.Batch, segs []cache.Segment, window int) {
	for i := range batch.Plans {
		for g := range batch.Plans[i].KV {
			p := &batch.Plans[i].KV[g]
			for r := range p.Lo {
				p.Lo[r] = max(p.Lo[r], int32(segs[p.Seg[r]].Seq.Len()-window))
			}
		}
	}
}

// view is how far back a draft looks: 0 for as far as the cache goes.
func (d *Drafter) view(rule int) int {
	if rule == 1 && d.trial.from > 0 {
		return d.trial.from
	}
	return d.seen
}
