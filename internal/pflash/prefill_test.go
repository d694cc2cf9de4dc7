package pflash

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"strobe/internal/gguf"
	"strobe/internal/testkit"
)

// TestText: a text keeps its end and some of the rest, in order; a short one is left alone, and so is one that
// cannot be scored.
func TestText(t *testing.T) {
	f, err := gguf.Open(testkit.Golden(t, "qwen3/model.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var said []string
	open := func(opt Options) *Prefill {
		opt.Threads, opt.Log = 2, func(s string) { said = append(said, s) }
		p, err := Open(f, opt)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	var b strings.Builder
	for i := range 200 {
		fmt.Fprintf(&b, "Größe %d ist %d.\n", i, i*i%97)
	}
	text := b.String()
	ctx := context.Background()

	p := open(Options{Mode: Always, Keep: 0.25})
	short, r, err := p.Text(ctx, text, 0)
	if err != nil || !r.Changed() || len(short) >= len(text)/2 || r.Kept > r.Seen/4 || r.Score == 0 {
		t.Errorf("%d of %d bytes, %+v, %v", len(short), len(text), r, err)
	}
	if !strings.HasSuffix(text, short[len(short)-400:]) {
		t.Errorf("the end is gone: %q", short)
	}
	limited, r, err := p.Text(ctx, text, 300)
	if err != nil || r.Kept > 300 || limited == "" {
		t.Errorf("%d tokens kept, the limit is 300: %v", r.Kept, err)
	}
	done, cancel := context.WithCancel(ctx)
	cancel()
	if _, _, err := p.Text(done, text, 0); err == nil {
		t.Error("nobody waits for the text, and it was made")
	}
	p.Close()
	said = nil
	if whole, r, err := p.Text(ctx, text, 0); whole != text || r.Changed() || err != nil || len(said) != 1 ||
		!strings.Contains(said[0], "the whole prompt is used") {
		t.Errorf("a scorer that is gone: %+v, %v, %q", r, err, said)
	}

	p = open(Options{Mode: Auto, Keep: 0.25})
	defer p.Close()
	if whole, r, err := p.Text(ctx, text, 0); whole != text || r.Changed() || err != nil {
		t.Errorf("a text that is short enough: %+v, %v", r, err)
	}
	if _, r, err := p.Text(ctx, text, 300); r.Kept > 300 || err != nil {
		t.Errorf("a text that exceeds the context: %+v, %v", r, err)
	}
}
