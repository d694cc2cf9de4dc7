package server

import (
	"fmt"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"strobe/internal/engine"
	"strobe/internal/sample"
	"strobe/internal/tokenizer"
	"strobe/models"
)

// TestPagePicture makes docs/page.png: the built-in pair continues a text. STROBE_SHOTS names the folder it goes to.
func TestPagePicture(t *testing.T) {
	if os.Getenv("STROBE_SHOTS") == "" {
		t.Skip("needs STROBE_SHOTS, the folder that page.png, the picture of the README, is written to")
	}
	b := startBrowser(t)
	m, err := engine.LoadFiles(pair(t), engine.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	e := engine.New(m, engine.Config{})
	defer e.Close(t.Context())
	s := New(Config{Models: Single(models.Name, e), Params: sample.Params{Temp: 0.8, TopP: 0.95}})
	srv := httptest.NewServer(s.Handler())
	defer srv.Close()
	p := &webPage{browser: b}
	p.size(1180, 760, 1, false)
	b.call("Emulation.setEmulatedMedia", dict{"features": []dict{{"name": "prefers-color-scheme", "value": "dark"}}}, nil)
	b.open(srv.URL + "/")
	b.until("$('#model').value && $('#input').placeholder === 'Begin a text'")
	b.eval("$('#max_tokens').value = 200; $('#max_tokens').dispatchEvent(new Event('change', { bubbles: true }))")
	p.ask("package cache\n\nimport \"sync\"\n\n// Cache holds values by key.\ntype Cache[K comparable, V any] struct {\n" +
		"\tmu    sync.RWMutex\n\titems map[K]V\n}\n\n// Get returns the value of a key.\n")
	shot(t, b, "page")
}

// TestPageMeasure prints how long the page takes: until it shows something, with 500 conversations, and while an answer
// of 20,000 tokens arrives. It asserts no time. STROBE_MEASURE=1 go test -v -run TestPageMeasure ./internal/server
func TestPageMeasure(t *testing.T) {
	if os.Getenv("STROBE_MEASURE") == "" {
		t.Skip("needs STROBE_MEASURE=1: it prints times, asserts none, and takes a minute")
	}
	const tokens, chats = 20_000, 500
	b := startBrowser(t)
	l := startLive(t, options{plain: true, template: hermesTemplate, engine: engine.Config{Context: 32768}})
	p := &webPage{b, l}
	p.size(1280, 800, 1, false)
	ready := "$('#model').value === 'qwen35' && $$('#examples li').length"
	b.open(l.url + "/")
	b.until(ready)
	t.Logf("first paint %.0f ms, %.0f bytes in %.0f requests",
		b.eval("performance.getEntriesByName('first-contentful-paint')[0].startTime"),
		b.eval("performance.getEntries().reduce((n, e) => n + (e.transferSize ?? 0), 0)"),
		b.eval("performance.getEntriesByType('resource').length + 1"))

	b.eval(fmt.Sprintf(`(async () => {
		const s = await import('./ui/store.js');
		for (let i = 0; i < %d; i++) await s.change('many' + i, () => ({ id: 'many' + i, title: 'Conversation ' + i,
			updated: Date.now() - i * 1e7, pinned: false, turns: [
				{ id: 'q', parent: null, role: 'user', content: 'Question ' + i },
				{ id: 'a', parent: 'q', role: 'assistant', content: 'An answer. '.repeat(200) }] }));
	})()`, chats))
	b.call("Page.addScriptToEvaluateOnNewDocument", dict{"source": fmt.Sprintf(`(function look() {
		if (document.querySelectorAll('.chat').length < %d) requestAnimationFrame(look);
		else window.listed = performance.now();
	})()`, chats)}, nil)
	p.reload()
	b.until("window.listed && " + ready)
	t.Logf("a list of %d conversations is there after %.0f ms", chats, b.eval("window.listed"))

	// The tokens arrive with a pause of a millisecond, faster than a person's machine makes them.
	l.s.tweak = func(req *engine.Request, v *model) {
		var text strings.Builder
		for i := range 400 {
			fmt.Fprintf(&text, "%s\n\nThe end of part %d, with $x^2 + %d$.\n\n", markdown, i, i)
		}
		ids := v.tok.Encode(text.String(), tokenizer.EncodeOptions{})
		req.Constraint = &unhurried{scripted{ids[:tokens], v.tok.EOG()[0]}}
	}
	b.eval(`window.frames20k = []; window.tasks20k = []; (function () {
		let last = performance.now();
		const next = (now) => { frames20k.push(now - last); last = now; requestAnimationFrame(next); };
		requestAnimationFrame(next);
		new PerformanceObserver((l) => tasks20k.push(...l.getEntries().map((e) => e.duration))).observe({ type: 'longtask' });
	})()`)
	began := time.Now()
	b.eval("$('#input').focus()")
	b.write("Write a lot")
	b.eval("$('#send').click()")
	b.until("$('[aria-busy]')")
	for b.eval("Boolean("+complete+")") != true { // rarely: looking takes the page's time
		time.Sleep(time.Second)
	}
	t.Logf("%d tokens in %.0f s: %s", tokens, time.Since(began).Seconds(), b.eval(`(() => {
		const at = (list, share) => [...list].sort((a, b) => a - b)[Math.floor(share * (list.length - 1))] ?? 0;
		const say = (list) => [0.5, 0.99, 1].map((s) => at(list, s).toFixed(0)).join(', ') + ' ms (median, 99 %, longest)';
		return frames20k.length + ' frames of ' + say(frames20k) + '; ' + frames20k.filter((f) => f > 50).length +
			' above 50 ms; ' + tasks20k.length + ' tasks above 50 ms, ' + say(tasks20k) + '; ' +
			document.querySelectorAll('#log *').length + ' elements';
	})()`))
}

// unhurried lets a scripted answer take a while.
type unhurried struct{ scripted }

func (u *unhurried) Mask(logits []float32) {
	time.Sleep(time.Millisecond)
	u.scripted.Mask(logits)
}
