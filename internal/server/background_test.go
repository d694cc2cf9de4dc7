package server

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"strobe/internal/engine"
	"strobe/internal/tokenizer"
)

// slow makes the model say a letter, again and again, until the channel is closed; then it ends.
func (f *fixture) slow() (end func()) {
	stop := make(chan struct{})
	f.s.tweak = func(req *engine.Request, v *model) {
		req.Constraint = &endless{v.tok.Encode("a", tokenizer.EncodeOptions{})[0], v.tok.EOG()[0], stop}
	}
	return func() { close(stop) }
}

type endless struct {
	id, eog int32
	stop    chan struct{}
}

func (s *endless) Mask(logits []float32) {
	select {
	case <-s.stop:
		only(logits, s.eog)
	case <-time.After(time.Millisecond):
		only(logits, s.id)
	}
}

func (s *endless) Accept(int32) {}

// get asks for something and wants a status.
func (f *fixture) get(path string, want int) dict {
	f.t.Helper()
	status, b := f.do("GET", path, "")
	if status != want {
		f.t.Fatalf("GET %s: %d %s", path, status, b)
	}
	return decodeObject(f.t, b)
}

// TestBackground: a response is made without its client, is there when it is asked for, and is what a client that waits
// gets.
func TestBackground(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	f.script("I wonder.</think>\n\nHello.")
	q := dict{"input": "Good morning", "chat_template_kwargs": dict{"enable_thinking": true}}
	direct := f.ask(q)
	m := f.ask(with(q, dict{"background": true}))
	if text(m, "status") != "queued" || at(m, "background") != true || len(at(m, "output").([]any)) != 0 {
		t.Fatalf("at first: %v", m)
	}
	id := text(m, "id")
	var got dict
	eventually(t, "the response is complete", func() bool {
		got = f.get("/v1/responses/"+id, 200)
		return text(got, "status") == "completed"
	})
	for _, path := range [][]any{{"output", 0, "content", 0, "text"}, {"output", 1, "content", 0, "text"}} {
		if text(got, path...) != text(direct, path...) || text(got, path...) == "" {
			t.Errorf("%v: %q, want %q", path, text(got, path...), text(direct, path...))
		}
	}
	// The next turn reads it.
	want := f.inputTokens(dict{"previous_response_id": text(direct, "id"), "input": "And now?"})
	if n := f.inputTokens(dict{"previous_response_id": id, "input": "And now?"}); n != want {
		t.Errorf("the next turn has %d tokens, want %d", n, want)
	}
	if status, b := f.do("GET", "/v1/responses/"+id+"?stream=true", ""); status != 400 {
		t.Errorf("streamed though it was not asked for as a stream: %d %s", status, b)
	}
	// Cancelling what is over changes nothing; what was never in the background cannot be cancelled.
	status, b := f.do("POST", "/v1/responses/"+id+"/cancel", "")
	if status != 200 || text(decodeObject(t, b), "status") != "completed" {
		t.Errorf("cancelled after its end: %d %s", status, b)
	}
	if status, b := f.do("POST", "/v1/responses/"+text(direct, "id")+"/cancel", ""); status != 400 {
		t.Errorf("cancelled without background: %d %s", status, b)
	}
	// A request that is wrong is an ordinary error.
	long := `{"input":"` + strings.Repeat("word ", 3000) + `","background":true}`
	if status, b := f.do("POST", "/v1/responses", long); status != 400 {
		t.Errorf("a prompt that does not fit: %d %.200s", status, b)
	}
	f.s.jobs.Wait()
	if snap := f.e.Snapshot(); snap.Active() != 0 {
		t.Errorf("%d slots are in use", snap.Active())
	}
}

// TestBackgroundStream: the events of a response can be read from any point, while it is made and afterwards, and a
// client that leaves does not end it.
func TestBackgroundStream(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	end := f.slow()
	ctx, leave := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "POST", f.url+"/v1/responses",
		strings.NewReader(`{"input":"x","background":true,"stream":true,"max_output_tokens":1500}`))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	var begin bytes.Buffer
	for buf := make([]byte, 512); bytes.Count(begin.Bytes(), []byte("output_text.delta\n")) < 3; {
		n, err := resp.Body.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		begin.Write(buf[:n])
	}
	leave()
	resp.Body.Close()
	// A piece of the stream may end within an event.
	whole := begin.Bytes()[:bytes.LastIndex(begin.Bytes(), []byte("\n\n"))+2]
	first, _ := parseEvents(t, whole)
	id := text(first[0].data, "response", "id")
	if text(first[0].data, "response", "status") != "queued" {
		t.Errorf("the first event: %v", first[0])
	}
	if got := f.get("/v1/responses/"+id, 200); text(got, "status") != "in_progress" {
		t.Errorf("after the client left: %v", got)
	}
	next := encode(t, dict{"input": "y", "previous_response_id": id})
	if status, b := f.do("POST", "/v1/responses", next); status != 400 || !strings.Contains(string(b), "not complete") {
		t.Errorf("continued while it is made: %d %s", status, b)
	}
	go func() {
		time.Sleep(20 * time.Millisecond)
		end()
	}()
	after := number(first[len(first)-1].data, "sequence_number")
	status, b := f.do("GET", "/v1/responses/"+id+"?stream=true&starting_after="+strconv.Itoa(after), "")
	if status != 200 {
		t.Fatalf("resumed: %d %s", status, b)
	}
	rest, _ := parseEvents(t, b)
	said := ""
	for i, ev := range append(first, rest...) {
		if number(ev.data, "sequence_number") != i {
			t.Fatalf("event %d has the number %v", i, at(ev.data, "sequence_number"))
		}
		if ev.name == "response.output_text.delta" {
			said += text(ev.data, "delta")
		}
	}
	last := rest[len(rest)-1]
	if last.name != "response.completed" || text(last.data, "response", "output", 0, "content", 0, "text") != said {
		t.Errorf("the last event: %v; the deltas say %q", last, said)
	}
	// The same once more when all is over, from the beginning and from the end.
	total := len(first) + len(rest)
	for after, want := range map[string]int{"": total, "&starting_after=0": total - 1,
		"&starting_after=" + strconv.Itoa(total-1): 0} {
		status, b := f.do("GET", "/v1/responses/"+id+"?stream=true"+after, "")
		if evs, _ := parseEvents(t, b); status != 200 || len(evs) != want {
			t.Errorf("%q: %d, %d events, want %d", after, status, len(evs), want)
		}
	}
	for _, after := range []string{strconv.Itoa(total), "-1", "x"} {
		if status, b := f.do("GET", "/v1/responses/"+id+"?stream=true&starting_after="+after, ""); status != 400 {
			t.Errorf("after %s: %d %s", after, status, b)
		}
	}
	f.s.jobs.Wait()
	f.s.memory.mu.Lock()
	defer f.s.memory.mu.Unlock()
	bytes := int64(0)
	for e := f.s.memory.recent.Front(); e != nil; e = e.Next() {
		x := e.Value.(*stored)
		bytes += newStored(x.key, x.turn).size
	}
	if bytes != f.s.memory.bytes {
		t.Errorf("the memory counts %d bytes and has %d", f.s.memory.bytes, bytes)
	}
}

// TestBackgroundCancel: a response ends when it is cancelled, deleted or pushed out of the memory, and with the server.
func TestBackgroundCancel(t *testing.T) {
	f := start(t, options{template: hermesTemplate, config: Config{MaxStored: 20000}})
	defer f.slow()()
	begin := func(more dict) string {
		t.Helper()
		m := f.ask(with(dict{"input": "x", "background": true, "max_output_tokens": 2000}, more))
		id := text(m, "id")
		eventually(t, "it runs", func() bool { return text(f.get("/v1/responses/"+id, 200), "status") == "in_progress" })
		return id
	}
	id := begin(nil)
	status, b := f.do("POST", "/v1/responses/"+id+"/cancel", "")
	m := decodeObject(t, b)
	if status != 200 || text(m, "status") != "cancelled" || text(m, "output", 0, "status") != "incomplete" {
		t.Errorf("cancelled: %d %v", status, m)
	}
	if got := f.get("/v1/responses/"+id, 200); text(got, "status") != "cancelled" {
		t.Errorf("later: %v", got)
	}
	id = begin(dict{"stream": false})
	if status, b := f.do("DELETE", "/v1/responses/"+id, ""); status != 200 {
		t.Errorf("deleted: %d %s", status, b)
	}
	f.s.jobs.Wait() // it would never end by itself
	f.get("/v1/responses/"+id, 404)

	id = begin(nil)
	f.post("/v1/conversations", dict{"items": []dict{{"role": "user", "content": strings.Repeat("x", 19000)}}})
	f.s.jobs.Wait()
	f.get("/v1/responses/"+id, 404)

	// Its events alone are too many.
	evs := f.events("/v1/responses", dict{"input": "x", "background": true, "stream": true, "max_output_tokens": 2000})
	if last := evs[len(evs)-1]; last.name != "response.cancelled" {
		t.Errorf("the last event is %s", last.name)
	}
	f.s.jobs.Wait()
	f.get("/v1/responses/"+text(evs[0].data, "response", "id"), 404)

	if snap := f.e.Snapshot(); snap.Active() != 0 {
		t.Errorf("%d slots are in use", snap.Active())
	}
}

// TestBackgroundShutdown: a server that stops does not wait for responses in the background, unless a client reads one.
func TestBackgroundShutdown(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	defer f.slow()()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- f.s.Serve(ctx, ln) }()
	f.url = "http://" + ln.Addr().String()
	m := f.ask(dict{"input": "x", "background": true, "max_output_tokens": 2000})
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
	var got struct{ Status string }
	x := f.s.memory.get(ownedID{"", text(m, "id")})
	if err := json.Unmarshal(x.body, &got); err != nil || got.Status != "failed" {
		t.Errorf("afterwards it is %q, %v", got.Status, err)
	}
	http.DefaultClient.CloseIdleConnections()
}
