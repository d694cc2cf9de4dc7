package server

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"strobe/internal/engine"
)

// TestPageFiles: the page is served with a policy that forbids everything foreign, and asks for nothing
// that is.
func TestPageFiles(t *testing.T) {
	f := start(t, options{})
	for path, kind := range map[string]string{"/": "text/html", "/ui/app.js": "text/javascript",
		"/ui/style.css": "text/css", "/ui/icon.svg": "image/svg+xml"} {
		resp, err := http.Get(f.url + path)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if h := resp.Header; err != nil || resp.StatusCode != 200 || len(b) == 0 ||
			!strings.HasPrefix(h.Get("Content-Type"), kind) ||
			!strings.HasPrefix(h.Get("Content-Security-Policy"), "default-src 'none'; script-src 'self'") {
			t.Errorf("%s: %d %v", path, resp.StatusCode, h)
		}
		for _, foreign := range []string{"http://", "https://", "//cdn"} {
			if s := strings.ReplaceAll(string(b), "http://www.w3.org/2000/svg", ""); strings.Contains(s, foreign) {
				t.Errorf("%s names a foreign address (%s)", path, foreign)
			}
		}
	}
}

// TestPage uses the page as a person would, in a real browser.
func TestPage(t *testing.T) {
	b := startBrowser(t)
	l := startLive(t, options{template: hermesTemplate, engine: engine.Config{Parallel: 2, Context: 32768}})
	verse := strings.TrimSpace(strings.Repeat("one two three four five six ", 12))
	l.script("I wonder.</think>\n\n" + verse)
	script := l.s.tweak
	l.s.tweak = func(req *engine.Request, v *view) {
		script(req, v)
		req.Spec.Fixed = true
	}
	b.call("Emulation.setDeviceMetricsOverride",
		dict{"width": 1200, "height": 760, "deviceScaleFactor": 1, "mobile": false}, nil)
	b.open(l.url + "/")
	b.until("document.querySelector('#model').value === 'qwen35'")
	if b.eval("document.activeElement.id") != "input" {
		t.Error("the focus is not in the message box")
	}
	b.eval("document.querySelector('#settings').open = true; document.querySelector('#thinking').value = 'on'; " +
		"document.querySelector('#draft').value = 'ngram'; 1")

	b.write("Hello <b>there</b>")
	b.key("Enter", 13)
	b.until("[...document.querySelectorAll('.assistant button')].some(b => b.textContent === 'Regenerate')")
	if got := b.eval("document.querySelector('.assistant > .text').textContent"); got != verse {
		t.Errorf("the answer is %q", got)
	}
	if got := b.eval("document.querySelector('.thoughts .text').textContent"); got != "I wonder." {
		t.Errorf("the thoughts are %q", got)
	}
	if got := b.eval("document.querySelector('.user .text').textContent"); got != "Hello <b>there</b>" {
		t.Errorf("the message is %q", got)
	}
	if n := b.eval("document.querySelectorAll('.assistant > .text .drafted').length"); n == 0.0 {
		t.Error("no text is shown as drafted")
	}
	tinted := "getComputedStyle(document.querySelector('.assistant > .text .drafted')).backgroundColor"
	on := b.eval(tinted)
	b.eval("document.querySelector('#tint').click()")
	if off := b.eval(tinted); on == off {
		t.Errorf("drafted text has the background %v, switched on or off", on)
	}
	b.eval("document.querySelector('#tint').click()")
	for _, id := range []string{"rate", "mean", "accepted"} {
		if b.eval("document.getElementById('"+id+"').textContent") == "–" {
			t.Errorf("the panel does not show %s", id)
		}
	}
	if s := fmt.Sprint(b.eval("document.querySelector('#chart').getAttribute('aria-label')")); !strings.Contains(s,
		"passes") || strings.Contains(s, "No") {
		t.Errorf("the chart says %q", s)
	}
	if n := b.eval("document.querySelectorAll('#chart rect').length"); n == 0.0 {
		t.Error("the chart is empty")
	}
	if s := b.eval("document.querySelector('#status').textContent"); s != "The answer is complete." {
		t.Errorf("the status says %q", s)
	}
	shot(t, b, "chat")

	// Again, with another answer.
	l.script("</think>Another one.")
	b.eval("[...document.querySelectorAll('.assistant button')].find(b => b.textContent === 'Regenerate').click()")
	b.until("document.querySelector('.assistant > .text').textContent === 'Another one.'")
	b.until("!document.querySelector('#send').disabled")
	if n := b.eval("document.querySelectorAll('#log li').length"); n != 2.0 {
		t.Errorf("%v entries after regenerating", n)
	}

	// Stop, with the keyboard, in the middle of an endless answer.
	l.s.tweak = func(req *engine.Request, _ *view) { req.IgnoreEOG, req.MaxTokens, req.Constraint = true, 30000, slow{} }
	b.write("Go on")
	b.key("Enter", 13)
	b.until("document.querySelectorAll('.assistant').length === 2 && " +
		"document.querySelectorAll('.assistant')[1].textContent.length > 40")
	b.key("Escape", 27)
	b.until("document.querySelector('#status').textContent === 'You stopped the answer.'")
	eventually(t, "the slot is free", func() bool { s := l.e.Snapshot(); return s.Active() == 0 })
	l.s.tweak = nil

	// What the server refuses is shown.
	b.eval("document.querySelector('#temperature').value = '99999'; 1")
	b.write("x")
	b.key("Enter", 13)
	b.until("document.querySelector('#alert').textContent.includes('temperature')")
	b.eval("document.querySelector('#temperature').value = ''; document.querySelector('#new').click()")
	b.until("document.querySelectorAll('#log li').length === 0")
	checkProblems(t, b, 1) // the refused request is on the console

	checkNames(t, b)
	checkColours(t, b)
	b.call("Emulation.setDeviceMetricsOverride", dict{"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": true},
		nil)
	l.script("</think>" + verse)
	b.eval("document.querySelector('#input').focus()")
	b.write(strings.Repeat("unbroken", 30))
	b.key("Enter", 13)
	b.until("[...document.querySelectorAll('.assistant button')].some(b => b.textContent === 'Regenerate')")
	if w := b.eval("document.documentElement.scrollWidth").(float64); w > 360 {
		t.Errorf("on a phone of 360 pixels the page is %v wide", w)
	}
	if h := b.eval("Math.min(...[...document.querySelectorAll('button')].map(b => " +
		"b.getBoundingClientRect().height))").(float64); h < 24 {
		t.Errorf("a button is %v pixels high", h)
	}
	shot(t, b, "phone")

	// A model without a chat template continues texts.
	base := startLive(t, options{engine: engine.Config{Context: 512}})
	b.open(base.url + "/")
	b.until("document.querySelector('#input').placeholder === 'Begin a text'")
	b.eval("document.querySelector('#input').focus()")
	b.write("func main")
	b.key("Enter", 13)
	b.until("[...document.querySelectorAll('.assistant button')].some(b => b.textContent === 'Regenerate')")
	if s := b.eval("document.querySelector('.assistant > .text').textContent"); s == "" {
		t.Error("the text was not continued")
	}
	checkProblems(t, b, 0)

	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Contains(b.requests, base.url+"/v1/completions") {
		t.Errorf("requests %v", b.requests)
	}
	for _, u := range b.requests {
		if !strings.HasPrefix(u, l.url+"/") && !strings.HasPrefix(u, base.url+"/") && u != "about:blank" {
			t.Errorf("the page asked for %s", u)
		}
	}
	if len(b.requests) < 8 {
		t.Errorf("requests %v", b.requests)
	}
}

// slow makes an answer take long enough for a person, or a busy machine, to stop it.
type slow struct{}

func (slow) Mask([]float32) { time.Sleep(2 * time.Millisecond) }
func (slow) Accept(int32)   {}

// checkProblems wants no more than n errors on the console.
func checkProblems(t *testing.T, b *browser, n int) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.problems) > n {
		t.Errorf("errors on the console: %q", b.problems)
	}
	b.problems = nil
}

// checkNames: everything one can use has a name for those who hear the page.
func checkNames(t *testing.T, b *browser) {
	t.Helper()
	var tree struct {
		Nodes []struct {
			Ignored    bool
			Role, Name struct{ Value any }
		}
	}
	b.call("Accessibility.getFullAXTree", dict{}, &tree)
	roles := map[any]int{}
	for _, n := range tree.Nodes {
		if n.Ignored {
			continue
		}
		role := n.Role.Value
		roles[role]++
		switch role {
		case "button", "textbox", "combobox", "spinbutton", "checkbox", "image", "log", "complementary":
			if n.Name.Value == nil || n.Name.Value == "" {
				t.Errorf("a %v has no name", role)
			}
		}
	}
	for _, role := range []string{"button", "textbox", "combobox", "spinbutton", "checkbox", "log", "main", "heading"} {
		if roles[role] == 0 {
			t.Errorf("there is no %s: %v", role, roles)
		}
	}
}

// checkColours: text can be read in the light and in the dark.
func checkColours(t *testing.T, b *browser) {
	t.Helper()
	var backs []any
	for _, scheme := range []string{"light", "dark"} {
		b.call("Emulation.setEmulatedMedia", dict{"features": []dict{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
		backs = append(backs, b.eval("getComputedStyle(document.body).backgroundColor"))
		low := b.eval(`(() => {
			const lum = c => { const v = c.match(/[\d.]+/g).slice(0, 3).map(x => { x /= 255; return x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4; }); return .2126 * v[0] + .7152 * v[1] + .0722 * v[2]; };
			const back = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (c !== 'rgba(0, 0, 0, 0)') return c; } return 'rgb(255, 255, 255)'; };
			const bad = [];
			for (const e of document.querySelectorAll('h1, h2, button:not(:disabled), label, .note, dt, dd, mark, summary, select')) {
				const a = lum(getComputedStyle(e).color), b = lum(back(e));
				const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
				if (ratio < 4.5) bad.push(e.tagName + '.' + e.className + ' ' + ratio.toFixed(2));
			}
			return bad.join(', ');
		})()`)
		if low != "" {
			t.Errorf("%s: too little contrast: %v", scheme, low)
		}
	}
	if backs[0] == backs[1] {
		t.Errorf("light and dark have the same background %v", backs[0])
	}
}

// shot keeps a picture of the page in the folder STROBE_SHOTS names, for people.
func shot(t *testing.T, b *browser, name string) {
	t.Helper()
	dir := os.Getenv("STROBE_SHOTS")
	if dir == "" {
		return
	}
	var r struct{ Data string }
	b.call("Page.captureScreenshot", dict{"format": "png"}, &r)
	data, err := base64.StdEncoding.DecodeString(r.Data)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), data, 0o644); err != nil {
		t.Fatal(err)
	}
}
