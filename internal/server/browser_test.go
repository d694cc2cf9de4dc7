package server

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"
)

// browser is a Chromium without a window, driven through its debugging protocol over two pipes.
type browser struct {
	t       *testing.T
	out     *os.File
	session string

	mu       sync.Mutex
	next     int
	waiting  map[int]chan outcome
	requests []string // addresses the page asked for
	problems []string // errors on its console
}

type outcome struct {
	Result json.RawMessage
	Error  *struct{ Message string }
}

// findChromium returns the browser's path. In CI it is installed where it is missing.
func findChromium(t *testing.T) string {
	t.Helper()
	look := func() string {
		for _, name := range []string{os.Getenv("STROBE_CHROMIUM"), "chromium", "chromium-browser", "google-chrome"} {
			if p, err := exec.LookPath(name); name != "" && err == nil {
				return p
			}
		}
		return ""
	}
	if p := look(); p != "" {
		return p
	}
	if os.Getenv("CI") != "" {
		if out, err := exec.Command("testdata/install-chromium").CombinedOutput(); err != nil {
			t.Skipf("no Chromium, and it cannot be installed: %v: %.300s", err, out)
		}
	}
	p := look()
	if p == "" {
		t.Skip("no Chromium here; internal/server/testdata/install-chromium installs it")
	}
	return p
}

func startBrowser(t *testing.T) *browser {
	t.Helper()
	path := findChromium(t)
	// The browser reads its descriptor 3 and writes 4.
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
		"--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe",
		"--user-data-dir="+t.TempDir(), "about:blank")
	cmd.ExtraFiles = []*os.File{inR, outW}
	var says bytes.Buffer
	cmd.Stderr = &says
	if err := cmd.Start(); err != nil {
		t.Skipf("Chromium does not start: %v", err)
	}
	inR.Close()
	outW.Close()
	b := &browser{t: t, out: inW, waiting: map[int]chan outcome{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.read(outR)
	}()
	t.Cleanup(func() {
		b.mu.Lock()
		b.session = ""
		b.mu.Unlock()
		fmt.Fprint(inW, `{"id":1000000,"method":"Browser.close"}`+"\x00")
		timer := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
		<-done
		_ = cmd.Wait()
		timer.Stop()
		inW.Close()
		outR.Close()
	})
	// One that lacks libraries or permissions ends before it answers.
	if _, ok := <-b.send("Browser.getVersion", dict{}); !ok {
		_ = cmd.Wait()
		t.Skipf("Chromium lacks something it needs to run (a library, a permission); it says: %.300s", says.String())
	}
	b.newTab("about:blank")
	return b
}

// newTab opens an address in a tab of its own, which commands go to from here on.
func (b *browser) newTab(url string) {
	b.t.Helper()
	b.session = ""
	var target struct{ TargetID string }
	b.call("Target.createTarget", dict{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	b.call("Target.attachToTarget", dict{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	for _, domain := range []string{"Page", "Runtime", "Network", "Log"} {
		b.call(domain+".enable", dict{}, nil)
	}
	if url != "about:blank" {
		b.open(url)
	}
}

// read takes messages until the browser closes the pipe.
func (b *browser) read(f *os.File) {
	r := bufio.NewReader(f)
	for {
		msg, err := r.ReadBytes(0)
		if err != nil {
			b.mu.Lock()
			for _, c := range b.waiting {
				close(c)
			}
			b.waiting = nil
			b.mu.Unlock()
			return
		}
		var m struct {
			ID     int
			Method string
			Params struct {
				Request          struct{ URL string }
				Entry            struct{ Level, Text, URL string }
				ExceptionDetails struct {
					Text      string
					Exception struct{ Description string }
				}
			}
			outcome
		}
		if json.Unmarshal(msg[:len(msg)-1], &m) != nil {
			continue
		}
		b.mu.Lock()
		switch {
		case m.ID != 0 && b.waiting[m.ID] != nil:
			b.waiting[m.ID] <- m.outcome
			delete(b.waiting, m.ID)
		case m.Method == "Network.requestWillBeSent":
			b.requests = append(b.requests, m.Params.Request.URL)
		case m.Method == "Log.entryAdded" && m.Params.Entry.Level == "error":
			b.problems = append(b.problems, m.Params.Entry.Text+" "+m.Params.Entry.URL)
		case m.Method == "Runtime.exceptionThrown":
			b.problems = append(b.problems, m.Params.ExceptionDetails.Text+" "+m.Params.ExceptionDetails.Exception.Description)
		}
		b.mu.Unlock()
	}
}

// send sends a command of the protocol and returns where its outcome will come.
func (b *browser) send(method string, params dict) chan outcome {
	b.t.Helper()
	b.mu.Lock()
	b.next++
	id := b.next
	c := make(chan outcome, 1)
	if b.waiting == nil { // the browser is gone
		b.mu.Unlock()
		close(c)
		return c
	}
	b.waiting[id] = c
	b.mu.Unlock()
	m := dict{"id": id, "method": method, "params": params}
	if b.session != "" {
		m["sessionId"] = b.session
	}
	msg, err := json.Marshal(m)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.out.Write(append(msg, 0)); err != nil {
		b.t.Logf("%s: %v", method, err)
	}
	return c
}

// call runs a command and waits for its result.
func (b *browser) call(method string, params dict, result any) {
	b.t.Helper()
	c := b.send(method, params)
	select {
	case r, ok := <-c:
		if !ok {
			b.t.Fatalf("%s: the browser is gone", method)
		}
		if r.Error != nil {
			b.t.Fatalf("%s: %s", method, r.Error.Message)
		}
		if result != nil {
			if err := json.Unmarshal(r.Result, result); err != nil {
				b.t.Fatalf("%s: %v", method, err)
			}
		}
	case <-time.After(time.Minute):
		b.t.Fatalf("%s: no answer from the browser", method)
	}
}

// eval returns the value of a JavaScript expression on the page. In it $ finds an element, and $$ all of them.
func (b *browser) eval(expr string) any {
	b.t.Helper()
	var r struct {
		Result           struct{ Value any }
		ExceptionDetails *struct{ Exception struct{ Description string } }
	}
	b.call("Runtime.evaluate", dict{"expression": expr, "returnByValue": true, "awaitPromise": true,
		"includeCommandLineAPI": true}, &r)
	if r.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s", expr, r.ExceptionDetails.Exception.Description)
	}
	return r.Result.Value
}

// until waits for an expression to become true.
func (b *browser) until(expr string) {
	b.t.Helper()
	for range 1200 {
		if b.eval("Boolean("+expr+")") == true {
			return
		}
		time.Sleep(25 * time.Millisecond)
	}
	b.t.Fatalf("never came true: %s\npage: %v", expr, b.eval("document.body.innerText"))
}

func (b *browser) open(url string) {
	b.t.Helper()
	b.call("Page.navigate", dict{"url": url}, nil)
	b.until("document.readyState === 'complete' && location.href !== 'about:blank'")
}

// write types text where the focus is.
func (b *browser) write(text string) {
	b.t.Helper()
	b.call("Input.insertText", dict{"text": text}, nil)
}

// key presses a key where the focus is.
func (b *browser) key(name string, code int) {
	b.t.Helper()
	down := dict{"type": "keyDown", "key": name, "code": name, "windowsVirtualKeyCode": code}
	if name == "Enter" {
		down["text"] = "\r"
	}
	b.call("Input.dispatchKeyEvent", down, nil)
	b.call("Input.dispatchKeyEvent", dict{"type": "keyUp", "key": name, "code": name, "windowsVirtualKeyCode": code}, nil)
}
