package server

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"strobe/internal/engine"
)

// evil is what a model, a file or a name may hold to make a page run something.
var evil = []string{
	"<script>ran = 1</script>", "<img src=x onerror='ran = 1'>", "<svg onload='ran = 1'>",
	"<svg><script>ran = 1</script></svg>",
	"<svg><a xlink:href='javascript:ran=1'><text>x</text></a></svg>", "<iframe srcdoc='<script>parent.ran = 1</script>'>",
	"<math><mtext><script>ran = 1</script></mtext></math>", "<details open ontoggle='ran = 1'>", "<body onload='ran = 1'>",
	"[x](javascript:ran=1)", "[x](JaVaScRiPt:ran=1)", "[x](data:text/html,<script>ran=1</script>)",
	"![x](javascript:ran=1)",
	"<javascript:ran=1>", "[x]: javascript:ran=1\n\n[x]", "[a](https://a\" onclick=\"ran=1)", "![a\" onerror=\"ran=1](x)",
	"```\"><script>ran=1</script>\nx\n```", "```go onclick=ran=1\nx\n```", "`<script>ran=1</script>`",
	"# <img src=x onerror=ran=1>",
	"| <img src=x onerror=ran=1> |\n|---|\n| <script>ran=1</script> |", "- [x] <svg onload=ran=1>",
	"$\\href{javascript:ran=1}{x}$", "$\\url{javascript:ran=1}$", "$$\\htmlData{onclick=ran=1}{x}$$",
	"$\\includegraphics{https://example.com/x.png}$", "$\\htmlStyle{background:url(https://example.com)}{x}$",
	"$<img src=x onerror=ran=1>$", "\\(\\text{</span><script>ran=1</script>}\\)", "$$\\def\\a{\\a\\a}\\a$$",
	"$\\rule{1e9em}{1e9em}$",
}

// pageMarkdown: Markdown and mathematics are shown as they are meant, also while they are being written, and nothing in
// them runs.
func pageMarkdown(t *testing.T, p *webPage) {
	p.eval(`(async () => {
		const { Prose } = await import('./ui/prose.js');
		window.prose = async (text, step, complete = true) => {
			$('#sample')?.remove();
			const box = document.createElement('li');
			box.id = 'sample';
			$('#log').append(box);
			const shown = new Prose(box);
			for (let n = step; n < text.length; n += step) shown.show(text.slice(0, n), [], false);
			shown.show(text, [], complete);
			const waits = () => box.querySelector('.math:not(:has(*))');
			for (let n = 0; n < 200 && waits(); n++) await new Promise((ok) => setTimeout(ok, 10));
			return box;
		};
		window.$ = (s) => document.querySelector(s);
	})()`)
	for _, c := range []struct{ what, text, script, want string }{
		{"lists go on after code", "1. a\n\n```\nx\n```\n\n2. b\n\n```\ny\n```\n\n3. c",
			"[...b.querySelectorAll('ol')].map(l => l.start).join()",
			"1,2,3"},
		{"a list begins where it says", "7. a\n8. b", "b.querySelector('ol').start", "7"},
		{"columns are aligned", "|a|b|c|\n|:-|:-:|-:|\n|1|2|3|",
			"[...b.querySelectorAll('td')].map(c => getComputedStyle(c).textAlign).join()", "start,center,right"},
		{"bullets are filled", "- a\n  - b",
			"[...b.querySelectorAll('ul')].map(l => getComputedStyle(l).listStyleType).join()",
			"disc,circle"},
		{"text runs from right to left", "שלום\n\nhello",
			"[...b.children].filter(c => c.innerText.trim()).map(c => getComputedStyle(c).direction).join()",
			"rtl,ltr"},
		{"a formula in a line", `Then $\int_0^1 x^2\,dx$ is.`,
			"b.querySelector('annotation').textContent", `\int_0^1 x^2\,dx`},
		{"a formula on its own", "\\[\na_1 * b_1 * c\n\\]\nend",
			"b.querySelectorAll('.katex-display').length + b.querySelectorAll('em').length", "1"},
		{"both signs", `\(a\) and $$b$$ and $c$.`, "b.querySelectorAll('.katex').length", "3"},
		{"money", "It costs $5 or $10, not $ 3 $.",
			"b.querySelectorAll('.katex').length + b.textContent", "0It costs $5 or $10, not $ 3 $."},
		{"code", "`$a$` and\n\n```\n$$b$$\n```", "b.querySelectorAll('.katex').length", "0"},
		{"a formula without an end", "so $$\\frac{1}{", "b.querySelectorAll('.katex').length", "0"},
		{"a wrong formula", `$\frac{1$`, "b.querySelector('.wrong').textContent", `\frac{1`},
		{"links", "see https://example.com/a and [b](mailto:c@d.e)", "[...b.querySelectorAll('a')].map(a => a.rel).join()",
			"noopener noreferrer,noopener noreferrer"},
	} {
		got := fmt.Sprint(p.eval(fmt.Sprintf("prose(%q, 1000).then(b => String(%s))", c.text, c.script)))
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
	// The same blocks come out however the text arrives.
	long := strings.ReplaceAll(markdown, "## ",
		"Sum: $$\\sum_i x_i$$\n\n\\[\ny\n\\]\n\n> quote\nlazy\n\n[r]\n\n## ") + "\n\n[r]: https://example.com"
	whole := p.eval(fmt.Sprintf("prose(%q, 1e9).then(b => b.innerHTML)", long))
	for _, step := range []int{7, 40} {
		if got := p.eval(fmt.Sprintf("prose(%q, %d).then(b => b.innerHTML)", long, step)); got != whole {
			t.Errorf("in pieces of %d characters:\n%v\nnot\n%v", step, got, whole)
		}
	}
	loose := markdown + "\n\n1. a\n\n2. b\n\n- x\n\n  more\n\n> q"
	growing := fmt.Sprintf("prose(%q, 7, false).then(b => b.innerHTML)", loose)
	if got, want := p.eval(growing), p.eval(fmt.Sprintf("prose(%q, 1e9).then(b => b.innerHTML)", loose)); got != want {
		t.Errorf("before it is complete:\n%v\nnot\n%v", got, want)
	}
	p.eval("window.ran = undefined")
	for _, text := range evil {
		found := p.eval(fmt.Sprintf(`prose(%q, 9).then(b => [...b.querySelectorAll('*')].filter(e =>
			['SCRIPT', 'IMG', 'IFRAME', 'OBJECT', 'STYLE', 'LINK'].includes(e.tagName) ||
			(e.closest('svg') && !e.closest('.katex')) ||
			[...e.attributes].some(a => a.name.startsWith('on') || /^\s*(javascript|data):/i.test(a.value) ||
				/url\(/.test(a.value))
		).map(e => e.outerHTML).join())`, text))
		if found != "" {
			t.Errorf("%s became %v", text, found)
		}
	}
	if p.eval("window.ran") != nil {
		t.Error("a script ran")
	}
	p.eval("prose('The **area** below $x^2$ is\\n\\n$$\\\\int_0^1 x^2\\\\,dx = \\\\frac{1}{3}$$\\n" +
		"\\nand $e^{i\\\\pi} = -1$.', 5)")
	checkAccess(t, p.browser, "mathematics")
	p.shots("mathematics")
	p.eval("$('#sample').remove()")
	checkProblems(t, p.browser, 0)
}

// shots keeps pictures of a state in three sizes and two schemes of colours, if pictures are wanted.
func (p *webPage) shots(name string) {
	p.browser.t.Helper()
	if os.Getenv("STROBE_SHOTS") == "" {
		return
	}
	for _, scheme := range []string{"dark", "light"} {
		p.call("Emulation.setEmulatedMedia", dict{"features": []dict{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
		for _, s := range []struct {
			name          string
			width, height int
			scale         float64
		}{{"phone", phoneWidth, 844, 1}, {"4k", 3840, 2160, 1}, {"desk", 1280, 800, 1}} {
			p.size(s.width, s.height, s.scale, false)
			p.eval("new Promise(requestAnimationFrame)")
			shot(p.browser.t, p.browser, name+"-"+scheme+"-"+s.name)
		}
	}
}

// pageBranches: asking again and editing destroy nothing.
func pageBranches(t *testing.T, p *webPage) {
	p.eval("$('#thinking').value = $('#draft').value = ''; $('#thinking').dispatchEvent(new Event('change'))")
	p.press("New chat")
	p.until("!$('#welcome').hidden")
	said := func() string {
		return fmt.Sprint(p.eval("[...$$('#log > li > .text')].map(e => e.textContent.trim()).join('|')"))
	}
	want := func(text string) {
		t.Helper()
		p.until(fmt.Sprintf("[...$$('#log > li > .text')].map(e => e.textContent.trim()).join('|') === %q "+
			"&& !$('[aria-busy]')", text))
	}
	p.script("One.")
	p.ask("First")
	p.script("Two.")
	p.press("Regenerate")
	want("First|Two.")
	if s := p.text(".assistant .versions"); s != "‹2 of 2›" {
		t.Errorf("versions %q", s)
	}
	p.press("‹")
	want("First|One.")
	p.script("Three.")
	p.ask("Then")
	p.press("›") // that of the first answer: what followed the other one is not lost
	want("First|Two.")
	p.press("‹")
	want("First|One.|Then|Three.")
	p.shots("branches")
	checkAccess(t, p.browser, "branches")

	// A message that is changed is a version, too; the key for it is the arrow in the empty box.
	p.eval("$('#input').focus()")
	p.key("ArrowUp", 38)
	p.until("document.activeElement.matches('form.edit textarea')")
	p.eval("document.activeElement.value = ''")
	p.write("Instead")
	p.script("Four.")
	p.press("Send")
	want("First|One.|Instead|Four.")
	p.eval("$$('.user .versions button')[0].click()")
	want("First|One.|Then|Three.")

	// Deleting takes what follows along, and can be undone.
	p.eval("[...$$('.user')[1].querySelectorAll('button')].find(b => b.textContent === 'Delete').click()")
	want("First|One.|Instead|Four.")
	if p.eval("$('#notice').className") != "good" {
		t.Error("deletion looks like an error")
	}
	p.press("Undo")
	want("First|One.|Then|Three.")
	p.reload()
	p.until("$$('#log > li').length === 4")
	if s := said(); s != "First|One.|Then|Three." {
		t.Errorf("after loading the page again: %q", s)
	}
	p.press("Plain text")
	if s := p.text(".source"); s != "One." {
		t.Errorf("the plain text is %q", s)
	}
	checkProblems(t, p.browser, 0)
}

// pageContinue: an answer that was cut goes on where it ended.
func pageContinue(t *testing.T, p *webPage) {
	p.press("New chat")
	p.until("!$('#welcome').hidden")
	p.script("Begun and")
	script := p.s.tweak
	p.s.tweak = func(req *engine.Request, v *model) {
		script(req, v)
		req.MaxTokens = 3
	}
	p.ask("Write")
	if s := p.text(".assistant .note"); s != "The answer reached its longest length." {
		t.Errorf("of an answer that was cut it says %q", s)
	}
	first := p.text(".assistant > .text")
	p.script(" finished.")
	p.press("Continue")
	p.until("$('.assistant > .text').textContent.endsWith(' finished.') && " + complete)
	if s := p.text(".assistant > .text"); s != first+" finished." || p.count(".assistant") != 1 {
		t.Errorf("continued: %q", s)
	}
	checkProblems(t, p.browser, 0)
}

// pageBackground: conversations have addresses, their answers go on while others are shown, and nothing that was
// written is lost.
func pageBackground(t *testing.T, p *webPage) {
	p.press("New chat")
	p.until("!$('#welcome').hidden")
	p.s.tweak = func(req *engine.Request, _ *model) {
		req.IgnoreEOG, req.MaxTokens, req.Constraint = true, 30000, slow{}
	}
	p.eval("$('#input').focus()")
	p.write("Endless")
	p.key("Enter", 13)
	p.until("$('.assistant > .text')?.textContent.length > 20")
	endless := p.eval("location.hash").(string)
	if len(endless) < 8 {
		t.Errorf("the address is %q", endless)
	}
	p.press("New chat")
	p.until("!$('#welcome').hidden && location.hash === '' && $('.chat.writing')?.textContent === 'Endless'")
	p.script("Meanwhile.")
	p.ask("Short")
	if s := p.e.Snapshot(); s.Active() != 1 {
		t.Errorf("%d answers are written beside", s.Active())
	}
	p.shots("background")
	p.write("not sent")
	p.eval("history.back()")
	p.until("$('[aria-busy] > .text')?.textContent.length > 20 && $('#input').value === ''")
	if p.eval("$('#stop').hidden") != false {
		t.Error("an answer that goes on cannot be stopped")
	}
	p.eval("history.forward()")
	p.until("$('#input').value === 'not sent' && $('.assistant > .text').textContent === 'Meanwhile.'")
	p.eval("$('.chat.writing').click()")
	p.until("!$('#stop').hidden")
	p.key("Escape", 27)
	p.until("$('#status').textContent === 'You stopped the answer.' && " + complete)
	eventually(t, "the slot is free", func() bool { s := p.e.Snapshot(); return s.Active() == 0 })

	// An answer that ends in the background is marked until it is looked at.
	p.script("Later.")
	p.eval("$('#input').focus()")
	p.write("Again")
	p.eval("$('#send').click(); $('#new').click()")
	p.until("$('.chat.new')?.textContent === 'Endless'")
	p.eval("$('.chat.new').click()")
	p.until("$('#log li:last-child > .text')?.textContent === 'Later.' && !$('.chat.new')")
	p.reload()
	p.until("$('#log li:last-child > .text')?.textContent === 'Later.' && $('#model').value === 'qwen35'")
	p.press("Short")
	p.until("$('#input').value === 'not sent'")
	p.eval("$('#input').value = ''; $('#input').dispatchEvent(new Event('input'))")
	checkProblems(t, p.browser, 0)
}

// pageTabs: two tabs with one conversation lose nothing.
func pageTabs(t *testing.T, p *webPage) {
	p.press("New chat")
	p.until("!$('#welcome').hidden")
	p.script("A.")
	p.ask("In the first")
	url := p.eval("location.href").(string)
	first := p.session
	p.newTab(url)
	p.until("$$('#log > li').length === 2 && $('#model').value === 'qwen35'")
	p.script("B.")
	p.ask("In the second")
	p.until("$$('#log > li').length === 4")
	second := p.session
	p.session = first
	p.until("$$('#log > li').length === 4 && $('#log').textContent.includes('B.')")
	p.script("C.")
	p.ask("In the first again")
	p.until("$$('#log > li').length === 6")
	// What the page has not seen yet stays, too.
	p.eval("(async () => { const s = await import('./ui/store.js'); await s.change(location.hash.slice(1), (c) => " +
		"{ c.turns.push({ id: 'unseen', parent: null, role: 'user', content: 'Unseen' }); return c; }); })()")
	p.ask("Last")
	p.until("$$('#log > li').length === 8")
	n := p.eval("import('./ui/store.js').then(s => s.get(location.hash.slice(1))).then(c => c.turns.length)")
	if n != 9.0 {
		t.Errorf("%v turns are stored", n)
	}
	p.session = second
	p.until("$$('#log > li').length === 8 && $('#log').textContent.includes('C.')")
	p.call("Page.close", dict{}, nil)
	p.session = first
	checkProblems(t, p.browser, 0)
}

// pageFind: conversations are found by their words, pinned, and go to files and back.
func pageFind(t *testing.T, p *webPage) {
	dir := t.TempDir()
	p.call("Page.setDownloadBehavior", dict{"behavior": "allow", "downloadPath": dir}, nil)
	all := p.count(".chat")
	control := func(key, code string, shift int) {
		p.call("Input.dispatchKeyEvent", dict{"type": "rawKeyDown", "key": key, "code": code, "modifiers": 2 + shift}, nil)
	}
	control("k", "KeyK", 0)
	p.until("document.activeElement.id === 'search'")
	p.write("meanwhile short")
	p.until("$$('.chat').length === 1 && $('.chat').textContent === 'Short'")
	p.shots("search")
	p.eval("$('#search').value = 'nothing has this'; $('#search').dispatchEvent(new Event('input'))")
	p.until("$$('.chat').length === 0 && $('#list').textContent === 'No conversation has these words.'")
	p.eval("$('#search').value = ''; $('#search').dispatchEvent(new Event('input'))")
	p.until(fmt.Sprintf("$$('.chat').length === %d", all))
	p.press("Short")
	p.until("$('.chat[aria-current]')?.textContent === 'Short'")
	p.press("Pin")
	p.until("$('.group').textContent === 'Pinned' && $('.chat').textContent === 'Short'")
	p.press("Export all")
	name := filepath.Join(dir, "Strobe conversations.json")
	var data []byte
	eventually(t, "everything is exported", func() bool {
		data, _ = os.ReadFile(name)
		return strings.HasSuffix(string(data), "}")
	})
	p.eval("(async () => { const s = await import('./ui/store.js'); " +
		"for (const c of await s.heads()) await s.change(c.id, () => null); })()")
	p.reload()
	p.until("$('#model').value === 'qwen35' && $$('.chat').length === 0")
	choose := func(name, text string) {
		p.eval(fmt.Sprintf("(() => { const d = new DataTransfer(); d.items.add(new File([%q], %q)); "+
			"$('#import').files = d.files; $('#import').dispatchEvent(new Event('change')); })()", text, name))
	}
	for name, text := range map[string]string{
		"a.json": "{", "b.json": "[]", "c.json": `{"chats": [1, {"id": "x"}, {"id": "y", "turns": [7]}]}`,
	} {
		choose(name, text)
		p.until(fmt.Sprintf("$('#alert').textContent === '%s has no conversations of this page.'", name))
	}
	choose("<img src=x onerror=ran=1>.json", string(data))
	p.until(fmt.Sprintf("$$('.chat').length === %d && $('.group').textContent === 'Pinned'", all))
	p.press("Short")
	p.until("$('.assistant > .text')?.textContent === 'Meanwhile.'")

	// What others wrote into a file runs no more than what a model writes.
	choose("evil.json", `{"chats": [{"id": "evil", "title": "<img src=x onerror=ran=1>",
		"updated": 1e13, "at": "b", "turns": [
		{"id": "a", "parent": null, "role": "user", "content": "<svg onload=ran=1>",
			"images": [{"url": "javascript:ran=1", "name": "x"}],
			"files": [{"name": "<img src=x onerror=ran=1>", "text": "<script>ran=1</script>"}]},
		{"id": "b", "parent": "a", "role": "assistant", "content": "<script>ran=1</script>", "speed": {"tokens": "<b>"}},
		{"id": "c", "parent": "c", "role": "user", "content": "its own parent"},
		{"id": "b", "parent": "b", "role": "user", "content": "twice"}]}]}`)
	p.until("[...$$('.chat')].some(c => c.textContent.startsWith('<img'))")
	p.eval("[...$$('.chat')].find(c => c.textContent.startsWith('<img')).click()")
	p.until("$$('#log > li').length === 2 && $('.file summary').textContent.startsWith('<img')")
	if n := p.count("#log img, #log script, #list img"); n > 0 || p.eval("window.ran") != nil {
		t.Errorf("%d dangerous elements, ran %v", n, p.eval("window.ran"))
	}
	p.eval("[...$$('#list .acts button')].find(b => b.textContent === 'Delete').click()")
	p.until("!$('#welcome').hidden")

	control("/", "Slash", 0)
	p.until("$('#keys-dialog').open")
	checkAccess(t, p.browser, "shortcuts")
	p.shots("shortcuts")
	p.key("Escape", 27)
	p.until("!$('#keys-dialog').open")
	p.press("Short")
	p.until("$$('#log > li').length === 2")
	control("O", "KeyO", 8)
	p.until("!$('#welcome').hidden")
	checkProblems(t, p.browser, 0)
}

// pageSettings: settings belong to their conversation, show what is in force, and are checked before they are sent.
func pageSettings(t *testing.T, p *webPage) {
	set := func(id, value string) {
		p.eval(fmt.Sprintf("$('#%s').value = %q; $('#%s').dispatchEvent(new Event('change'))", id, value, id))
	}
	if s := p.eval("$('#temperature').placeholder + '|' + $('#max_tokens').placeholder"); s != "0|no limit" {
		t.Errorf("values in force: %v", s)
	}
	p.press("Short")
	p.until("$$('#log > li').length === 2")
	set("system", "Be brief.")
	set("temperature", "0.5")
	p.press("New chat")
	p.until("!$('#welcome').hidden")
	set("system", "Be long.")
	set("temperature", "99")
	if p.eval("$('#temperature').getAttribute('aria-invalid')") != "true" {
		t.Error("a temperature of 99 is not marked")
	}
	asked := func() int {
		p.mu.Lock()
		defer p.mu.Unlock()
		return strings.Count(strings.Join(p.requests, "\n"), "/v1/chat/completions")
	}
	before := asked()
	p.eval("$('#input').focus()")
	p.write("Hot")
	p.key("Enter", 13)
	p.until("$('#alert').textContent === 'The temperature must be between 0 and 5.' && $('#input').value === 'Hot'")
	if asked() != before {
		t.Error("a temperature of 99 is sent")
	}
	p.press("Dismiss")
	set("temperature", "0.25")
	p.press("Short")
	p.until("$('#system').value === 'Be brief.' && $('#temperature').value === '0.5'")
	p.eval("$('#preset-save').click()")
	checkAccess(t, p.browser, "preset")
	p.eval("$('#preset-name').value = 'Brief'; $('#preset-form').requestSubmit()")
	p.press("New chat")
	p.until("!$('#welcome').hidden")
	set("system", "")
	set("preset", "Brief")
	if s := p.eval("$('#system').value"); s != "Be brief." {
		t.Errorf("the preset sets %v", s)
	}
	p.press("Remove")
	set("system", "")
	set("temperature", "")
	p.eval("$('#input').value = ''; $('#input').dispatchEvent(new Event('input'))")

	set("theme", "dark")
	dark := p.eval("getComputedStyle(document.body).backgroundColor")
	set("theme", "light")
	if light := p.eval("getComputedStyle(document.body).backgroundColor"); light == dark {
		t.Errorf("light and dark are both %v", dark)
	}
	set("theme", "")
	checkProblems(t, p.browser, 0)
}

// pageAttach: texts of any encoding become chips with their tokens, and so do long pastes.
func pageAttach(t *testing.T, p *webPage) {
	drop := func(name, content string) {
		p.eval(fmt.Sprintf("(() => { const d = new DataTransfer(); d.items.add(new File([%s], %q)); "+
			"document.dispatchEvent(new DragEvent('drop', { dataTransfer: d, bubbles: true, cancelable: true })); })()",
			content, name))
	}
	drop("latin.txt", "new Uint8Array([71, 114, 252, 223, 101])") // Grüße
	drop("wide.txt", "new Uint8Array([255, 254, 65, 0, 66, 0])")
	drop("<b onclick=ran=1>.md", "'a\\n```\\nb\\n```\\n'")
	p.until("$$('.chip').length === 3 && [...$$('.chip .note')].every(n => n.textContent.endsWith('tokens'))")
	p.eval("(() => { const d = new DataTransfer(); d.setData('text/plain', 'word '.repeat(1000)); " +
		"$('#input').dispatchEvent(new ClipboardEvent('paste', { clipboardData: d, bubbles: true, cancelable: true })); })()")
	p.until("$$('.chip').length === 4 && $('#files').textContent.includes('Pasted text')")
	p.until("Number($('#context-text').textContent.split(' ')[0].replace(',', '')) > 900")
	p.shots("files")
	checkAccess(t, p.browser, "files")
	p.eval("$$('.chip')[3].querySelector('button').click()")
	p.until("$$('.chip').length === 3")
	p.script("Read.")
	p.ask("What is it?")
	if s := p.eval("[...$$('.file')].map(f => f.textContent).join('|')"); s !=
		"latin.txtGrüße|wide.txtAB|<b onclick=ran=1>.mda\n```\nb\n```\n" {
		t.Errorf("the files are %q", s)
	}
	if p.eval("$('#files').hidden") != true {
		t.Error("the files stay in the box")
	}
	sent := p.eval("(async () => { const { textOf } = await import('./ui/thread.js'); " +
		"const s = await import('./ui/store.js'); " +
		"return textOf((await s.get(location.hash.slice(1))).turns[0]); })()")
	if sent != "latin.txt:\n```\nGrüße\n```\n\nwide.txt:\n```\nAB\n```\n\n"+
		"<b onclick=ran=1>.md:\n````\na\n```\nb\n```\n````\n\nWhat is it?" {
		t.Errorf("sent %q", sent)
	}
	checkProblems(t, p.browser, 0)
}

// pageCompare: the same prompt with and without drafts gives the same text.
func pageCompare(t *testing.T, p *webPage) {
	p.script("one two one two one two one two one two one two")
	p.press("New chat")
	p.until("!$('#welcome').hidden")
	p.eval("$('#input').focus()")
	p.write("Count")
	p.press("Compare")
	p.until("$$('.column').length === 2 && !$('.column[aria-busy]') && " +
		"$('#compare-result').textContent.endsWith('Both texts are the same.')")
	checkAccess(t, p.browser, "compare")
	p.shots("compare")
	p.eval("$('#compare-close').click()")
	if p.eval("$('#input').value") != "Count" {
		t.Error("the message is gone")
	}
	p.eval("$('#input').value = ''; $('#input').dispatchEvent(new Event('input'))")
	checkProblems(t, p.browser, 0)
}

// pageMigrate: conversations that an older version kept are there, and once only.
func pageMigrate(t *testing.T, p *webPage, url string) {
	p.browser.open(url + "/ui/icon.svg")
	p.eval(`localStorage.setItem('strobe-chat-old', JSON.stringify({ id: 'old', title: 'From before', updated: 5, turns: [
		{ role: 'user', content: 'Q' }, { role: 'assistant', content: 'A', reasoning: '', calls: [], end: 'stop' }] }));
		localStorage.setItem('strobe-chat-bad', '{')`)
	p.browser.open(url + "/#old")
	p.until("$$('#log > li').length === 2 && $('.chat[aria-current]')?.textContent === 'From before'")
	if s := p.eval("Object.keys(localStorage).filter(k => k.startsWith('strobe-chat-')).join()"); s != "" {
		t.Errorf("left behind: %v", s)
	}
}

// pageForms: a printed page has the whole conversation, tablets do not get hints about keys they lack, and without
// scripts the page says what it needs.
func pageForms(t *testing.T, p *webPage) {
	p.press("New chat")
	p.until("!$('#welcome').hidden")
	p.script(strings.Repeat("A line.\n\n", 60))
	p.ask("Long")
	p.call("Emulation.setEmulatedMedia", dict{"media": "print"}, nil)
	if p.eval("$('#scroll').scrollHeight - $('#scroll').clientHeight").(float64) > 1 ||
		p.eval("document.documentElement.scrollHeight > 1500 && !$('#form').checkVisibility()") != true {
		t.Error("paper shows a part of the conversation")
	}
	p.call("Emulation.setEmulatedMedia", dict{"media": ""}, nil)
	p.call("Emulation.setTouchEmulationEnabled", dict{"enabled": true, "maxTouchPoints": 5}, nil)
	p.size(1024, 1366, 1, true)
	p.until("getComputedStyle($('#keys')).visibility === 'hidden'")
	p.call("Emulation.setTouchEmulationEnabled", dict{"enabled": false}, nil)
	p.size(1280, 800, 1, false)
	p.until("getComputedStyle($('#keys')).visibility === 'visible'")
	if s := p.text("noscript"); !strings.Contains(s, "needs JavaScript") {
		t.Errorf("without scripts it says %q", s)
	}
	if p.eval("[...$('#thinking').options].every(o => o.textContent.length < 10)") != true {
		t.Error("a choice is too long for its field")
	}
	checkProblems(t, p.browser, 0)
}
