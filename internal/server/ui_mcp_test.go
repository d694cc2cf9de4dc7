package server

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"strobe/internal/engine"
)

// TestPageMCP: tools of MCP servers are offered to the model when the person chose the server, run only when the person
// allows it, and what they say is text.
func TestPageMCP(t *testing.T) {
	b := startBrowser(t)
	fake := &mcpFake{t: t, tools: []dict{
		{"name": "look.up", "description": "Finds <b>pages</b>.", "inputSchema": dict{"type": "object"}},
		{"name": "delete", "description": "Deletes a page.", "inputSchema": dict{"type": "object"}},
	}}
	bad := &mcpFake{t: t, call: func(string, dict) dict {
		return dict{"content": []dict{{"type": "text", "text": strings.Join(evil, "\n\n")}, {"type": "image", "data": "x"},
			{"type": "resource", "resource": dict{"uri": evil[1]}}, {"type": evil[0]}}, "isError": true}
	}}
	for i, text := range evil {
		bad.tools = append(bad.tools, dict{"name": text, "description": evil[len(evil)-1-i],
			"inputSchema": dict{"type": "object"}})
	}
	fake.call = func(name string, _ dict) dict {
		return dict{"content": []dict{{"type": "text", "text": "result of " + name}}}
	}
	back, evilBack := httptest.NewServer(fake), httptest.NewServer(bad)
	defer back.Close()
	defer evilBack.Close()
	context := engine.Config{Context: 32768}
	l := startLive(t, options{template: hermesTemplate, engine: context, config: Config{MCP: []MCPServer{
		{Name: "docs", URL: back.URL}, {Name: "evil", URL: evilBack.URL}, {Name: "away", URL: "http://127.0.0.1:1"},
	}}})
	p := &webPage{b, l}
	p.size(1280, 800, 1, false)
	p.browser.open(l.url + "/")
	p.until("$('#model').value === 'qwen35' && !$('#mcp-servers').hidden && $$('#mcp-list > li').length === 3")
	if fake.said() != "" || fake.begun != 0 {
		t.Error("the server was asked before it was chosen")
	}
	p.eval("$('#mcp-list input').click()")
	p.until(fmt.Sprintf("$('#mcp-list summary').textContent === '%d tools'", len(fake.tools)))
	p.eval("window.ran = undefined; $('#mcp-list details').open = true")
	p.shots("mcp-settings")
	p.eval("$('#mcp-list details').open = false")
	call := func(name, args string) string {
		return fmt.Sprintf("<tool_call>\n{\"name\": %q, \"arguments\": %s}\n</tool_call>", name, args)
	}

	// Once: the button of the question is reached with the keyboard.
	p.script(call("look_up", `{"q": "<img src=x onerror=ran=1>"}`))
	p.ask("Look it up")
	p.until("$('.question')?.textContent.startsWith('May look.up of docs run?') && !$('.tool') && " +
		"$('#status').textContent === 'May look.up of docs run?'")
	if fake.said() != "" {
		t.Errorf("called without being allowed: %s", fake.said())
	}
	checkAccess(t, p.browser, "question of a tool")
	p.shots("mcp-question")
	p.script("Found.")
	p.eval("$('.question button').focus()")
	p.key("Enter", 13)
	p.until("$$('.assistant').length === 2 && " + complete)
	if s := fake.said(); s != `look.up{"q":"\u003cimg src=x onerror=ran=1\u003e"}` {
		t.Errorf("called %s", s)
	}
	if s := p.text(".tool .call summary") + p.text(".tool .call pre"); s != "look.up of docsresult of look.up" {
		t.Errorf("the result is %q", s)
	}
	if p.eval("$('.tool .call').open || $('.tool > .text').checkVisibility()") != false {
		t.Error("the result is not folded")
	}
	p.shots("mcp-result")
	checkAccess(t, p.browser, "result of a tool")

	// Allowed once, so the page asks again. Denied: nothing runs, and the model gets the refusal as the result.
	p.script(call("delete", `{}`))
	p.ask("Delete it")
	p.until("$('.question')?.textContent.startsWith('May delete of docs run?')")
	p.script("As you wish.")
	p.press("Deny")
	p.until("$('#log li:last-child > .text').textContent === 'As you wish.' && " + complete)
	if strings.Contains(fake.said(), "delete") {
		t.Error("a denied call ran")
	}
	if s := p.text(".tool:nth-last-child(2) pre"); s != "The person does not allow this call." {
		t.Errorf("a denied call says %q", s)
	}

	// Always: later calls of this tool run by themselves, of others they do not. The session is begun again when the
	// server forgot it, and answers may be events.
	fake.forget(true)
	p.script(call("look_up", `{"n": 1}`))
	p.ask("Again")
	p.until("$('.question')")
	p.script("Done.")
	p.press("Always in this conversation")
	p.until("$('#log li:last-child > .text').textContent === 'Done.' && " + complete)
	p.script(call("delete", `{}`))
	p.ask("Now delete it")
	p.until("$('.question')?.textContent.startsWith('May delete of docs run?')")
	p.script("No.")
	p.press("Deny")
	p.until("$('#log li:last-child > .text').textContent === 'No.' && " + complete)
	p.script(call("look_up", `{"n": 2}`))
	p.eval("$('#input').focus()")
	p.write("And again")
	p.key("Enter", 13)
	p.until("$('#log').textContent.includes('And again')")
	// The answer to the result is the same call: it runs until the person is asked, after a while.
	p.until("$('.question')?.textContent.startsWith('May look.up of docs run?')")
	if n := strings.Count(fake.said(), `{"n":2}`); n != 20 {
		t.Errorf("%d calls without a question", n)
	}
	if fake.begun != 2 {
		t.Errorf("%d sessions", fake.begun)
	}
	p.reload()
	p.until("$('.question') && $('#mcp-list input')?.checked")
	p.script("Enough.")
	p.press("Deny")
	p.until("$('#log li:last-child > .text').textContent === 'Enough.' && " + complete)

	// Another conversation has not allowed anything. Whatever a server says is text.
	p.press("New chat")
	p.until("!$('#welcome').hidden && $('#mcp-list input').checked")
	p.eval("$$('#mcp-list input')[1].click()")
	p.until(fmt.Sprintf("$('#mcp-list').textContent.includes('%d tools')", len(evil)))
	p.script(call("look_up", "{}") + call("_script_ran___1__script_", "{}"))
	p.ask("Evil")
	p.until("$$('.question').length === 2")
	p.script("Hm.")
	p.press("Allow once")
	p.until("$$('.question button').length === 3")
	p.press("Allow once")
	p.until("$('#log li:last-child > .text').textContent === 'Hm.' && " + complete)
	if s := p.text(".tool:nth-last-child(2) pre"); !strings.HasPrefix(s, "Error: <script>ran = 1</script>") ||
		!strings.Contains(s, "[image, which is not shown]") {
		t.Errorf("the result is %.200q", s)
	}
	if !strings.Contains(bad.said(), "<script>ran = 1</script>{}") {
		t.Error("the tool is not called by its own name")
	}
	p.eval("for (const d of $$('details')) d.open = true")
	found := p.eval(`[...$$('#log *, #mcp-servers *')].filter(e => ['SCRIPT', 'IMG', 'IFRAME', 'SVG', 'A', 'B'].includes(
		e.tagName.toUpperCase()) || [...e.attributes].some(a => a.name.startsWith('on'))).map(e => e.outerHTML).join()`)
	if found != "" || p.eval("window.ran") != nil {
		t.Errorf("it became %v", found)
	}
	checkProblems(t, p.browser, 1) // the session that was forgotten

	// A server that is away is named, and the message is kept.
	p.press("New chat")
	p.until("!$('#welcome').hidden")
	p.eval("$$('#mcp-list input')[2].click(); $('#input').focus()")
	p.write("Anyone?")
	p.key("Enter", 13)
	p.until("$('#alert').textContent.includes('the MCP server away cannot be reached') && $('#input').value === 'Anyone?'")
	p.eval("for (const b of $$('#mcp-list input:checked')) b.click(); $('#dismiss').click()")
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, u := range b.requests {
		if !strings.HasPrefix(u, l.url+"/") && u != "about:blank" {
			t.Errorf("the page asked for %s", u)
		}
	}
}
