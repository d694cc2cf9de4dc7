package server

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
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
	get := func(path, kind string) string {
		resp, err := http.Get(f.url + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if h := resp.Header; err != nil || resp.StatusCode != 200 || len(b) == 0 ||
			!strings.HasPrefix(h.Get("Content-Type"), kind) ||
			!strings.HasPrefix(h.Get("Content-Security-Policy"), "default-src 'none'; script-src 'self'") {
			t.Errorf("%s: %d %v", path, resp.StatusCode, h)
		}
		return string(b)
	}
	kinds := map[string]string{".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
	files, err := fs.ReadDir(uiFiles, "ui")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range files {
		if e.IsDir() {
			continue
		}
		text := strings.ReplaceAll(get("/ui/"+e.Name(), kinds[filepath.Ext(e.Name())]), "http://www.w3.org/2000/svg", "")
		for _, foreign := range []string{"http://", "https://", "//cdn", "@import", "@font-face"} {
			if strings.Contains(text, foreign) {
				t.Errorf("%s names something foreign (%s)", e.Name(), foreign)
			}
		}
	}
	get("/", "text/html")
	get("/ui/vendor/marked.js", "text/javascript")
	get("/ui/vendor/marked.LICENSE.txt", "text/plain")
	get("/ui/vendor/katex/fonts/KaTeX_Main-Regular.woff2", "font/woff2")
}

// TestPageSize: all a browser may fetch for the page is small on its way, and comes out as it was.
func TestPageSize(t *testing.T) {
	const limit = 600_000
	h := New(Config{}).Handler()
	total := 0
	err := fs.WalkDir(uiFiles, "ui", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(path, ".txt") || strings.HasSuffix(path, ".md") {
			return err
		}
		r := httptest.NewRequest("GET", "/"+path, nil)
		r.Header.Set("Accept-Encoding", "br, gzip")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		total += w.Body.Len()
		var body io.Reader = w.Body
		if w.Header().Get("Content-Encoding") == "gzip" {
			if body, err = gzip.NewReader(w.Body); err != nil {
				return err
			}
		}
		got, err := io.ReadAll(body)
		want, _ := fs.ReadFile(uiFiles, path)
		if err != nil || !bytes.Equal(got, want) || w.Header().Get("Vary") != "Accept-Encoding" {
			t.Errorf("%s: %d bytes of %d, %v, %v", path, len(got), len(want), w.Header(), err)
		}
		return nil
	})
	if err != nil || total > limit {
		t.Errorf("%d bytes, at most %d; %v", total, limit, err)
	}
	for _, accepts := range []string{"", "br", "gzip;q=0"} {
		r := httptest.NewRequest("GET", "/ui/app.js", nil)
		r.Header.Set("Accept-Encoding", accepts)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if e := w.Header().Get("Content-Encoding"); e != "" {
			t.Errorf("a client that accepts %q gets %s", accepts, e)
		}
	}
}

// TestPageLibraries: the libraries of the page are the published ones, few, and all with a licence.
func TestPageLibraries(t *testing.T) {
	const root, limit = "ui/vendor", 900 << 10
	list, err := fs.ReadFile(uiFiles, root+"/SHA256SUMS")
	if err != nil {
		t.Fatal(err)
	}
	sums := map[string]string{}
	for line := range strings.Lines(string(list)) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		sums[name] = sum
	}
	total := 0
	err = fs.WalkDir(uiFiles, root, func(path string, d fs.DirEntry, err error) error {
		name := strings.TrimPrefix(path, root+"/")
		if err != nil || d.IsDir() || name == "SHA256SUMS" || name == "README.md" {
			return err
		}
		data, err := fs.ReadFile(uiFiles, path)
		if err != nil {
			return err
		}
		total += len(data)
		if got := fmt.Sprintf("%x", sha256.Sum256(data)); sums[name] != got {
			t.Errorf("%s has the checksum %s, the list says %q", name, got, sums[name])
		}
		delete(sums, name)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(sums) > 0 {
		t.Errorf("files of the list that are not there: %v", sums)
	}
	if total > limit {
		t.Errorf("%d bytes of libraries, at most %d", total, limit)
	}
}

const (
	phoneWidth = 390
	click      = "[...$$('button')].find(b => b.checkVisibility() && b.textContent === %q).click()"
	complete   = "$('#log li:last-child.assistant button') && !$('[aria-busy]')"
)

// markdown is an answer with all a page has to show.
const markdown = "## Sorted merge\n\n" +
	"Two **sorted** slices become one, see [the proof](https://example.com/a?b=c).\n\n" +
	"| step | cost |\n|---|---:|\n| compare | `n+m` |\n| copy | `n+m` |\n\n" +
	"```go\n// merge joins a and b.\nfunc merge(a, b []int) []int {\n\tout := make([]int, 0, len(a)+len(b))\n" +
	"\tfor len(a) > 0 && len(b) > 0 {\n\t\tif a[0] <= b[0] {\n\t\t\tout, a = append(out, a[0]), a[1:]\n\t\t} else {\n" +
	"\t\t\tout, b = append(out, b[0]), b[1:]\n\t\t}\n\t}\n\treturn append(append(out, a...), b...)\n}\n```\n\n" +
	"1. compare\n2. take the smaller one\n3. compare\n4. take the smaller one\n\n" +
	"- [x] done\n\n<img src=x onerror=alert(1)><script>alert(1)</script> ![a picture](https://example.com/x.png)"

// webPage is the page in a browser, with the server behind it.
type webPage struct {
	*browser
	*live
}

// press clicks the button with this text.
func (p *webPage) press(name string) {
	p.browser.t.Helper()
	p.eval(fmt.Sprintf(click, name))
}

func (p *webPage) text(selector string) string {
	p.browser.t.Helper()
	return fmt.Sprint(p.eval(fmt.Sprintf("$(%q)?.textContent", selector)))
}

func (p *webPage) count(selector string) int {
	p.browser.t.Helper()
	return int(p.eval(fmt.Sprintf("$$(%q).length", selector)).(float64))
}

// ask types a message and waits for the answer.
func (p *webPage) ask(text string) {
	p.browser.t.Helper()
	p.eval("$('#input').focus()")
	p.write(text)
	p.eval("$('#send').click()")
	p.until(complete)
}

// reload loads the page again.
func (p *webPage) reload() {
	p.browser.t.Helper()
	p.eval("window.old = true")
	p.call("Page.reload", dict{}, nil)
	p.until("!window.old && document.readyState === 'complete'")
}

func (p *webPage) size(width, height int, scale float64, mobile bool) {
	p.browser.t.Helper()
	p.call("Emulation.setDeviceMetricsOverride",
		dict{"width": width, "height": height, "deviceScaleFactor": scale, "mobile": mobile}, nil)
}

// TestPage uses the page as a person would, in a real browser.
func TestPage(t *testing.T) {
	b := startBrowser(t)
	l := startLive(t, options{template: hermesTemplate, engine: engine.Config{Parallel: 2, Context: 32768}})
	p := &webPage{b, l}
	p.size(1280, 800, 1, false)
	b.open(l.url + "/")
	b.until("$('#model').value === 'qwen35' && $$('#examples li').length")
	if b.eval("document.activeElement.id") != "input" {
		t.Error("the focus is not in the message box")
	}
	for _, fact := range []string{"loaded", "cpu", "weights"} {
		if s := p.text("#facts"); !strings.Contains(s, fact) {
			t.Errorf("of the model it says %q, not %s", s, fact)
		}
	}
	checkAccess(t, b, "welcome")
	shot(t, b, "welcome")
	checkProblems(t, b, 0)

	pageVerdict(t, p)
	pageAnswer(t, p)
	pageStop(t, p)
	pageBroken(t, p)
	pageFailure(t, p)
	pageEdit(t, p)
	pageChats(t, p)
	pageTools(t, p)
	pageFiles(t, p)
	pageMarkdown(t, p)
	pageBranches(t, p)
	pageContinue(t, p)
	pageBackground(t, p)
	pageTabs(t, p)
	pageSettings(t, p)
	pageFind(t, p)
	pageAttach(t, p)
	pagePDF(t, p)
	pageCompare(t, p)
	pageForms(t, p)
	pagePhone(t, p)
	checkProblems(t, b, 0)

	others := append(pageImages(t, b), pageLoading(t, p), pageKey(t, p), pagePlain(t, p))
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, u := range b.requests {
		if !slices.ContainsFunc(append(others, l.url), func(own string) bool { return strings.HasPrefix(u, own+"/") }) &&
			u != "about:blank" && !strings.HasPrefix(u, "data:text/html,") &&
			!strings.HasPrefix(u, "blob:"+l.url) && !strings.HasPrefix(u, "data:image/") {
			t.Errorf("the page asked for %s", u)
		}
	}
	if len(b.requests) < 8 {
		t.Errorf("requests %v", b.requests)
	}
}

// pageVerdict: the headline never claims what was not measured.
func pageVerdict(t *testing.T, p *webPage) {
	long := "tokens: 200, accepted: 140, passes: 60, ms: 4000, rate: 50, plain: 20, idle: 0"
	for what, want := range map[string]string{
		"{" + long + "}":                          "gain 2.5× faster, same text",
		"{" + long + ", tokens: 20}":              "short ",
		"{" + long + ", ms: 80}":                  "short ",
		"{" + long + ", plain: 0}":                "unknown ",
		"{" + long + ", plain: 4}":                "noisy ", // 12.5 times, with 3.3 tokens per pass
		"{" + long + ", plain: 60}":               "slower 0.83× the speed without drafts",
		"{" + long + ", plain: 49}":               "even As fast as without drafts",
		"{" + long + ", idle: 100}":               "paused Drafting is paused: it would not pay here",
		"{" + long + ", accepted: 0, off: 'Off'}": "off Off",
		"{tokens: 0}":                             "none ",
	} {
		got := p.eval("import('./ui/spec.js').then(m => m.verdict(" + what + ")).then(v => v.kind + ' ' + v.text)")
		if got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
}

func pageAnswer(t *testing.T, p *webPage) {
	p.script("I wonder.</think>\n\n" + markdown)
	script := p.s.tweak
	p.s.tweak = func(req *engine.Request, v *model) {
		script(req, v)
		req.Spec.Fixed = true
	}
	p.eval("$('#thinking').value = 'on'; $('#draft').value = 'ngram'; 1")
	p.write("Hello <b>there</b>")
	p.key("Enter", 13)
	p.until(complete)
	for selector, want := range map[string]string{
		".assistant h3.depth2":  "Sorted merge",
		".assistant strong":     "sorted",
		".assistant td code":    "n+m",
		".assistant .lang":      "go",
		".hljs-comment":         "// merge joins a and b.",
		".assistant .bar":       "goWrapCopy",
		".thoughts .text":       "I wonder.",
		".user .text":           "Hello <b>there</b>",
		"#status":               "The answer is complete.",
		".chat[aria-current]":   "Hello <b>there</b>",
		".assistant ol li":      "compare",
		".assistant ul li":      "☑ done",
		".assistant a[href*=x]": "the proof",
	} {
		if got := strings.TrimSpace(p.text(selector)); got != want {
			t.Errorf("%s is %q, want %q", selector, got, want)
		}
	}
	if n := p.count("#log img, #log script, #log [onerror]"); n > 0 {
		t.Errorf("%d dangerous elements", n)
	}
	if !strings.Contains(p.text(".assistant > .text"), "<img src=x onerror=alert(1)>") {
		t.Error("tags are not shown")
	}
	if p.eval("$('.thoughts').open") != false {
		t.Error("the thoughts are not folded")
	}
	if n := p.eval("CSS.highlights.get('drafted').size"); n == 0.0 {
		t.Error("no text is shown as drafted")
	}
	source := p.eval("[...CSS.highlights.get('drafted')].map(String).join('')").(string)
	if !strings.Contains(source, "smaller") {
		t.Errorf("what was said twice is not shown as drafted: %q", source)
	}
	for _, s := range []string{p.text("#details"), p.text(".assistant .speed")} {
		if !strings.Contains(s, "tokens accepted from drafts") || !strings.Contains(s, "per pass") {
			t.Errorf("the numbers are %q", s)
		}
	}
	for _, id := range []string{"rate", "mean", "accepted"} {
		if p.text("#"+id) == "–" {
			t.Errorf("the panel does not show %s", id)
		}
	}
	if s := p.eval("$('#chart').getAttribute('aria-label')").(string); !strings.Contains(s, "passes,") {
		t.Errorf("the chart says %q", s)
	}
	if p.count("#chart rect") == 0 {
		t.Error("the chart is empty")
	}
	p.eval("$('#scroll').scrollTop = 0; $('.thoughts').open = true; 1")
	for _, scheme := range []string{"dark", "light"} {
		p.call("Emulation.setEmulatedMedia", dict{"features": []dict{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
		checkAccess(t, p.browser, scheme)
		shot(t, p.browser, "chat-"+scheme)
	}

	// The code can be copied as it is.
	p.call("Browser.grantPermissions", dict{"permissions": []string{"clipboardReadWrite", "clipboardSanitizedWrite"}}, nil)
	p.eval("$('.code button:last-child').click()")
	p.until("$('.code button:last-child').textContent === 'Copied'")
	if s := p.eval("navigator.clipboard.readText()").(string); !strings.Contains(s, "\n\tout := make([]int, 0, ") {
		t.Errorf("copied %q", s)
	}

	p.script("</think>Another one.")
	p.press("Regenerate")
	p.until("$('.assistant > .text').textContent === 'Another one.' && " + complete)
	if n := p.count("#log li.user, #log li.assistant"); n != 2 {
		t.Errorf("%d entries after regenerating", n)
	}
	checkProblems(t, p.browser, 0)
}

// pageStop stops an endless answer with the keyboard.
func pageStop(t *testing.T, p *webPage) {
	p.s.tweak = func(req *engine.Request, _ *model) {
		req.IgnoreEOG, req.MaxTokens, req.Constraint = true, 30000, slow{}
	}
	p.eval("$('#input').focus()")
	p.write("Go on")
	p.key("Enter", 13)
	p.until("$$('.assistant').length === 2 && " +
		"$$('.assistant')[1].textContent.length > 40")
	p.key("Escape", 27)
	p.until("$('#status').textContent === 'You stopped the answer.'")
	eventually(t, "the slot is free", func() bool { s := p.e.Snapshot(); return s.Active() == 0 })
	p.until(complete)
}

// pageBroken: an answer that breaks off is kept, and says so.
func pageBroken(t *testing.T, p *webPage) {
	p.eval(`(() => {
		const real = fetch;
		window.fetch = async (...args) => {
			const r = await real(...args);
			if (args[1].method !== 'POST') return r;
			window.fetch = real;
			const reader = r.body.getReader();
			let n = 0;
			return new Response(new ReadableStream({ async pull(c) {
				const { value } = await reader.read();
				if (++n < 30) { c.enqueue(value); return; }
				reader.cancel();
				c.error(new TypeError('network error'));
			} }));
		};
	})()`)
	p.ask("And on")
	p.until("$$('.assistant').length === 3 && " + complete)
	if s := p.text("#log li:last-child .bad"); s != "The answer broke off: The connection broke." {
		t.Errorf("of an answer that broke off it says %q", s)
	}
	p.script("</think>In one piece.")
	p.press("Retry")
	p.until("$('#log li:last-child > .text').textContent === 'In one piece.' && " + complete)
	eventually(t, "the slot is free", func() bool { s := p.e.Snapshot(); return s.Active() == 0 })
	p.forgive()
}

// offline cuts the page off from the server, or lets it back.
func (p *webPage) offline(on bool) {
	p.call("Network.emulateNetworkConditions",
		dict{"offline": on, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}, nil)
}

// forgive forgets what the console says of failures that were meant.
func (p *webPage) forgive() {
	p.mu.Lock()
	p.problems = nil
	p.mu.Unlock()
}

// pageFailure: a message that was not sent is not lost, and no part of the conversation.
func pageFailure(t *testing.T, p *webPage) {
	p.script("</think>Here I am.")
	entries := p.count("#log > li")
	kept := func(why string) {
		t.Helper()
		p.until("$('#alert').textContent.includes('" + why + "')")
		if s := p.eval("$('#input').value"); s != "Are you there?" {
			t.Errorf("the message box has %q", s)
		}
		if n := p.count("#log > li"); n != entries {
			t.Errorf("%d entries, before there were %d", n, entries)
		}
	}
	p.eval("$('#temperature').value = '99999'; $('#input').focus()")
	p.write("Are you there?")
	p.key("Enter", 13)
	kept("temperature")
	p.eval("$('#temperature').value = ''; 1")
	p.offline(true)
	p.press("Retry")
	kept("cannot be reached")
	shot(t, p.browser, "failed")
	p.offline(false)
	p.press("Retry")
	p.until("$$('.assistant').length === 4 && " + complete)
	if n := p.count("#log > li"); n != entries+2 {
		t.Errorf("%d entries after sending again, before there were %d", n, entries)
	}
	if n := p.count("#log li:nth-last-child(2) .versions"); n > 0 {
		t.Error("what was not sent is a version of the message")
	}
	if p.eval("$('#input').value") != "" || p.eval("$('#notice').hidden") != true {
		t.Error("the failure is still shown")
	}
	p.forgive()
}

func pageEdit(t *testing.T, p *webPage) {
	p.script("</think>Changed.")
	p.eval("$$('.user')[1].querySelector('button').click()")
	p.until("document.activeElement.matches('form.edit textarea')")
	p.eval("document.activeElement.value = ''")
	p.write("Go back")
	p.press("Send")
	p.until("$$('.assistant').length === 2 && " + complete)
	if s := p.eval("[...$$('#log > li > .text')].map(e => e.textContent.trim()).join('|')"); s !=
		"Hello <b>there</b>|Another one.|Go back|Changed." {
		t.Errorf("after editing: %q", s)
	}
	checkProblems(t, p.browser, 0)
}

// pageChats: conversations outlive the page; they can be renamed, exported, deleted, and had back.
func pageChats(t *testing.T, p *webPage) {
	dir := t.TempDir()
	p.call("Page.setDownloadBehavior", dict{"behavior": "allow", "downloadPath": dir}, nil)
	p.press("Rename")
	p.eval("document.activeElement.value = ''")
	p.write("Back and forth")
	p.key("Enter", 13)
	p.until("$('.chat[aria-current]')?.textContent === 'Back and forth'")
	p.press("Export")
	var data []byte
	eventually(t, "the conversation is exported", func() bool {
		data, _ = os.ReadFile(filepath.Join(dir, "Back and forth.md"))
		return len(data) > 0
	})
	want := "# Back and forth\n\n## You\n\nHello <b>there</b>\n\n## Answer\n\nAnother one.\n\n## You\n\nGo back"
	if !strings.HasPrefix(string(data), want) {
		t.Errorf("exported %q", data)
	}
	p.press("New chat")
	p.until("!$('#welcome').hidden && $$('.chat').length === 1")
	p.ask("Second")
	p.reload()
	p.until("$$('.chat').length === 2 && $('#model').value === 'qwen35'")
	p.press("Back and forth")
	p.until("$$('#log > li').length === 4")
	p.press("Delete")
	p.until("$$('.chat').length === 1 && $$('#log > li').length === 0")
	p.press("Undo")
	p.until("$$('.chat').length === 2 && $$('#log > li').length === 4")
	checkProblems(t, p.browser, 0)
}

// pageTools: what the model wants called is shown, and the person can answer it.
func pageTools(t *testing.T, p *webPage) {
	tools := `[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object"}}}]`
	p.eval("$('#tools').value = '" + tools + "'; $('#new').click()")
	p.until("!$('#welcome').hidden")
	p.script("I look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Köln\"}}\n</tool_call>")
	p.ask("Weather?")
	if s := p.text(".call"); s != "Calls get_weather{\n  \"city\": \"Köln\"\n}" {
		t.Errorf("the call is %q", s)
	}
	p.script("It rains.")
	p.eval("$('.results textarea').value = 'rain'; 1")
	p.press("Send results")
	p.until("$$('.assistant').length === 2 && " + complete)
	if s := p.text(".tool > .text"); s != "rain" {
		t.Errorf("the result is %q", s)
	}
	checkAccess(t, p.browser, "tools")
	shot(t, p.browser, "tools")
	p.eval("$('#tools').value = ''; 1")
	checkProblems(t, p.browser, 0)
}

// pageFiles: text files can be dropped into the message.
func pageFiles(t *testing.T, p *webPage) {
	drop := func(name, content string) {
		p.eval(fmt.Sprintf("(() => { const d = new DataTransfer(); d.items.add(new File([%s], %q)); "+
			"document.dispatchEvent(new DragEvent('drop', { dataTransfer: d, bubbles: true, cancelable: true })); })()",
			content, name))
	}
	drop("notes.md", "'a\\n```\\nb\\n```\\n'")
	p.until("$('#files').textContent.includes('notes.md')")
	drop("cat.png", "new Uint8Array([137, 80, 0, 255])")
	p.until("$('#alert').textContent === 'cat.png is not a text file.'")
	drop("big.txt", "'x'.repeat(1100000)")
	p.until("$('#alert').textContent.startsWith('big.txt is too long')")
	p.press("Dismiss")
	// It goes with its own conversation only, and with the message.
	p.press("New chat")
	p.until("!$('#welcome').hidden && $('#files').hidden")
	p.reload()
	p.until("$('#model').value === 'qwen35' && $$('#examples li').length")
	checkProblems(t, p.browser, 0)
}

// pagePhone: nothing is cut, buttons are large enough, and the end of the answer stays in sight.
func pagePhone(t *testing.T, p *webPage) {
	p.size(phoneWidth, 844, 2, true)
	p.eval("$('#new').click(); $('#thinking').value = ''")
	p.until("!$('#welcome').hidden")
	shot(t, p.browser, "phone-welcome")
	p.s.tweak = func(req *engine.Request, _ *model) {
		req.IgnoreEOG, req.MaxTokens, req.Constraint = true, 30000, slow{}
	}
	p.eval("$('#input').focus()")
	p.write(strings.Repeat("unbroken", 30))
	p.eval("$('#send').click()")
	gap := "(s => s.scrollHeight - s.scrollTop - s.clientHeight)($('#scroll'))"
	p.until("$('#scroll').scrollTop > 100")
	for range 5 {
		p.eval("new Promise(requestAnimationFrame)")
		if d := p.eval(gap).(float64); d > 2 {
			t.Errorf("the end of the answer is %v pixels below", d)
		}
	}
	// Whoever scrolls just before the page writes more is heard, too.
	p.eval("(() => { const real = setTimeout, s = $('#scroll'); window.setTimeout = (f, ms) => real(() => { " +
		"window.setTimeout = real; s.scrollTop = 0; f(); }, ms); })()")
	p.until("!$('#latest').hidden")
	long := p.eval("$('#scroll').scrollHeight").(float64)
	p.until(fmt.Sprintf("$('#scroll').scrollHeight > %v", long+100))
	if top := p.eval("$('#scroll').scrollTop").(float64); top > 2 {
		t.Errorf("it scrolled away from where one reads, to %v", top)
	}
	p.eval("$('#latest').click()")
	p.until(gap + " < 40")
	p.eval("$('#stop').click()")
	p.until(complete)

	p.script(markdown)
	p.eval("$('#open-chats').click()")
	p.press("New chat")
	p.until("!$('#welcome').hidden")
	p.ask("Merge two slices")
	if w := p.eval("Math.max(document.documentElement.scrollWidth, $('#scroll').scrollWidth)").(float64); w > phoneWidth {
		t.Errorf("on a phone of %d pixels the page is %v wide", phoneWidth, w)
	}
	if h := p.eval("Math.min(...[...$$('button')].filter(b => b.checkVisibility()).map(b => " +
		"b.getBoundingClientRect().height))").(float64); h < 24 {
		t.Errorf("a button is %v pixels high", h)
	}
	if p.eval("$('#headline').checkVisibility() && $('#details').checkVisibility() && "+
		"$('#details').textContent.includes('accepted')") != true {
		t.Error("what drafting gains is not in sight")
	}
	shot(t, p.browser, "phone")
	p.eval("$('#open-panel').click()")
	if p.eval("$('#panel').checkVisibility() && !$('#chats').checkVisibility()") != true {
		t.Error("the settings do not open")
	}
	checkAccess(t, p.browser, "phone")
	shot(t, p.browser, "phone-settings")
	p.key("Escape", 27)
	p.until("!$('#panel').checkVisibility()")
	p.size(1280, 800, 1, false)
}

// pageLoading: the page waits for a server that loads, and for a model.
func pageLoading(t *testing.T, p *webPage) string {
	l := startLive(t, options{template: hermesTemplate})
	ready := l.s.models()
	l.s.offer.Store(nil)
	p.browser.open(l.url + "/")
	p.until("$('#waiting-text').textContent.startsWith('The server is loading its model')")
	slow := &loadingModels{Models: ready, done: make(chan struct{})}
	l.s.SetModels(slow)
	p.until("$('#model').textContent === 'qwen35 (loading)' && $('#waiting').hidden")
	l.script("Ready.")
	p.eval("$('#input').focus()")
	p.write("Are you?")
	p.key("Enter", 13)
	p.until("$('#waiting-text').textContent.startsWith('Loading qwen35, ')")
	shot(t, p.browser, "loading")
	close(slow.done)
	p.until(complete)
	p.until("$('#model').textContent === 'qwen35'")
	if s := p.text(".assistant > .text"); s != "Ready." {
		t.Errorf("after loading the answer is %q", s)
	}
	p.forgive()
	return l.url
}

// loadingModels are loading until done is closed.
type loadingModels struct {
	Models
	done chan struct{}
}

func (m *loadingModels) Acquire(ctx context.Context, name string) (
	string, *engine.Engine, func(*time.Duration), error) {
	select {
	case <-m.done:
	case <-ctx.Done():
	}
	return m.Models.Acquire(ctx, name)
}

func (m *loadingModels) List() []engine.ModelInfo {
	list := m.Models.List()
	select {
	case <-m.done:
	default:
		list[0].State, list[0].Size = engine.StateLoading, 4_700_000_000
	}
	return list
}

// pageKey: a server with keys is asked with one, which the page asks the person for.
func pageKey(t *testing.T, p *webPage) string {
	l := startLive(t, options{template: hermesTemplate, config: Config{Keys: []string{"secret"}}})
	p.browser.open(l.url + "/")
	p.until("$('#key-dialog').open")
	shot(t, p.browser, "key")
	p.write("wrong")
	p.key("Enter", 13)
	p.until("$('#key-dialog').open && $('#key-note').textContent.startsWith('The server refused this key.')")
	p.write("secret")
	p.key("Enter", 13)
	p.until("!$('#key-dialog').open && $('#model').value === 'qwen35'")
	l.script("Welcome.")
	p.ask("Let me in")
	if s := p.text(".assistant > .text"); s != "Welcome." {
		t.Errorf("with a key the answer is %q", s)
	}
	p.forgive()
	return l.url
}

// pagePlain: a model without a chat template continues texts.
func pagePlain(t *testing.T, p *webPage) string {
	l := startLive(t, options{engine: engine.Config{Context: 512}})
	// It is not loaded, so what it can is not known before it is asked.
	slow := &loadingModels{Models: l.s.models(), done: make(chan struct{})}
	l.s.SetModels(slow)
	p.browser.open(l.url + "/")
	p.until("$('#model').textContent === 'qwen35 (loading)' && $$('#examples li').length")
	p.eval("$('#input').focus()")
	p.write("func main")
	p.key("Enter", 13)
	p.until("$('[aria-busy]')")
	close(slow.done)
	p.until(complete)
	p.until("$('#input').placeholder === 'Begin a text' && $('#model').textContent === 'qwen35'")
	if s := p.text(".assistant > .text"); s == "" {
		t.Error("the text was not continued")
	}
	p.mu.Lock()
	if !slices.Contains(p.requests, l.url+"/v1/completions") {
		t.Errorf("requests %v", p.requests)
	}
	p.mu.Unlock()
	shot(t, p.browser, "plain")
	// The text is one, from its beginning.
	if p.eval("new Set([...$$('#log li > .text')].map(e => getComputedStyle(e).fontFamily)).size") != 1.0 {
		t.Error("the text has two fonts")
	}
	p.call("Browser.grantPermissions", dict{"permissions": []string{"clipboardReadWrite", "clipboardSanitizedWrite"}}, nil)
	p.eval("[...$$('.assistant button')].find(b => b.textContent === 'Copy').click()")
	p.until("[...$$('.assistant button')].some(b => b.textContent === 'Copied')")
	if s := p.eval("navigator.clipboard.readText()").(string); !strings.HasPrefix(s, "func main") || len(s) < 20 {
		t.Errorf("copied %q", s)
	}
	checkProblems(t, p.browser, 0)
	pageMigrate(t, p, l.url)
	return l.url
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

// checkAccess: everything one can use has a name and all text can be read. With the path of axe.min.js (of the npm
// package axe-core) in STROBE_AXE its rules are checked as well.
func checkAccess(t *testing.T, b *browser, what string) {
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
		case "button", "textbox", "combobox", "spinbutton", "searchbox", "meter", "image", "log", "complementary",
			"navigation", "region", "dialog", "progressbar":
			if n.Name.Value == nil || n.Name.Value == "" {
				t.Errorf("%s: a %v has no name", what, role)
			}
		}
	}
	for _, role := range []string{"button", "textbox", "combobox", "spinbutton", "log", "main", "heading"} {
		if roles[role] == 0 && roles["dialog"] == 0 { // which hides the rest
			t.Errorf("%s: there is no %s: %v", what, role, roles)
		}
	}
	low := b.eval(`(() => {
		const lum = c => { const v = c.match(/[\d.]+/g).slice(0, 3).map(x => { x /= 255; return x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4; }); return .2126 * v[0] + .7152 * v[1] + .0722 * v[2]; };
		const back = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (c !== 'rgba(0, 0, 0, 0)') return c; } return 'rgb(255, 255, 255)'; };
		const bad = [];
		const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
		for (let node; (node = walk.nextNode());) {
			const e = node.parentElement;
			if (!node.data.trim() || !e.checkVisibility()) continue;
			const a = lum(getComputedStyle(e).color), b = lum(back(e));
			const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
			if (ratio < 4.5) bad.push(e.tagName + '.' + e.className + ' ' + ratio.toFixed(2));
		}
		return bad.join(', ');
	})()`)
	if low != "" {
		t.Errorf("%s: too little contrast: %v", what, low)
	}
	if path := os.Getenv("STROBE_AXE"); path != "" {
		axe, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b.eval(string(axe) + "; 1")
		found := b.eval(`axe.run().then(r => r.violations.map(
			v => v.id + ': ' + v.nodes.map(n => n.html).join(' ')).join('; '))`)
		if found != "" {
			t.Errorf("%s: %v", what, found)
		}
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
