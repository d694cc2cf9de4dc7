package server

import (
	"errors"
	"math"
	"net/http/httptest"
	"testing"
)

// TestStreamKeepsErrors: an event that cannot be sent leaves no trace in the stream, is reported by the next flush, and
// what was gathered before it still goes out, with the error behind it.
func TestStreamKeepsErrors(t *testing.T) {
	for name, c := range map[string]struct {
		lines bool
		want  string
	}{
		"events": {false, "data: 1\n\ndata: {\"error\":\"no\"}\n\n"},
		"lines":  {true, "1\n{\"error\":\"no\"}\n"},
	} {
		w := httptest.NewRecorder()
		st := newStream(w)
		if c.lines {
			st.useLines()
		}
		if err := st.flush(); err != nil || st.started {
			t.Errorf("%s: a stream without events has begun: %v", name, err)
		}
		st.started = true // so that the error is an event
		st.failed = func(*apiError) (string, any) { return "", map[string]string{"error": "no"} }
		st.send("", 1)
		st.send("bad", math.NaN())
		st.send("bad", math.Inf(1))
		err := st.flush()
		if err == nil || w.Body.Len() > 0 || err != st.flush() {
			t.Errorf("%s: flush says %v and sends %q", name, err, w.Body)
		}
		st.fail(httptest.NewRequest("POST", "/", nil), err)
		if w.Body.String() != c.want {
			t.Errorf("%s: sent %q", name, w.Body)
		}
	}
	w := httptest.NewRecorder()
	newStream(w).fail(httptest.NewRequest("POST", "/v1/completions", nil), errors.New("x"))
	if w.Code != 500 {
		t.Errorf("before the first event an error has the status %d", w.Code)
	}
}

// TestModelsAreGivenBack: a request that fails after it got its model does not keep the model loaded.
func TestModelsAreGivenBack(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	for _, c := range []struct{ path, body string }{
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"top_p":7}`},
		{"/v1/chat/completions", `{"messages":[{"role":"nobody","content":"x"}]}`},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_object","schema":{"type":3}}}`},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"id_slot":99}`},
		{"/v1/completions", `{"prompt":[]}`},
		{"/v1/completions", `{"prompt":"x","n":65}`},
		{"/completion", `{"prompt":[-1]}`},
		{"/v1/messages", `{"messages":[{"role":"user","content":"x"}],"temperature":-1}`},
		{"/v1/responses", `{"input":"x","temperature":-1}`},
		{"/v1/responses/input_tokens", `{"input":[{"role":"user","content":""}],"tools":[{"type":"function","name":"f"}],"tool_choice":{"type":"function","name":"g"}}`},
		{"/api/chat", `{"model":"m","messages":[{"role":"nobody"}]}`},
		{"/api/chat", `{"model":"m","messages":[]}`},
		{"/v1/embeddings", `{"input":[]}`},
		{"/tokenize", `{"content":"x"}`},
	} {
		status, body := f.do("POST", c.path, c.body)
		if n := f.s.models().List()[0].Users; n != 0 {
			t.Errorf("%s %s (%d %s): %d requests use the model", c.path, c.body, status, body, n)
		}
	}
}
