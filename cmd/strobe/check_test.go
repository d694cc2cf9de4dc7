package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func runCheck(t *testing.T, args ...string) (int, string, string) {
	t.Helper()
	var out, errs bytes.Buffer
	code := run(context.Background(), append([]string{"check"}, args...), strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

func TestCheckHealthyServer(t *testing.T) {
	url, _ := serve(t, "--api-key", "k") // the built-in pair
	code, out, errs := runCheck(t, url+"/v1/", "--api-key", "k", "--json")
	var got struct {
		Healthy bool
		Checks  []checkResult
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != exitOK || !got.Healthy || len(got.Checks) != 7 {
		t.Fatalf("code %d, %s %s", code, out, errs)
	}
	if code, out, _ := runCheck(t, url, "--api-key", "wrong"); code != exitError || !strings.Contains(out, "FAIL model") {
		t.Errorf("with a wrong key: %d %s", code, out)
	}
	if code, out, _ := runCheck(t, url, "nosuch", "--api-key", "k"); code != exitError ||
		!strings.Contains(out, `no model "nosuch"`) {
		t.Errorf("with a model it does not have: %d %s", code, out)
	}
}

// sickServer answers like a server with one thing wrong: a check that fails, "drafter" if it has none, or "pays" if it
// has one and hardly drafts.
func sickServer(t *testing.T, wrong string) string {
	busy := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			Model    string
			Stream   bool
			Messages []any
		}
		_ = json.NewDecoder(r.Body).Decode(&q)
		switch {
		case r.URL.Path == "/health" && wrong == "ready":
			w.WriteHeader(http.StatusServiceUnavailable)
		case r.URL.Path == "/health":
		case r.URL.Path == "/props":
			fmt.Fprintf(w, `{"speculative":{"draft":"auto","drafter":%t}}`, wrong == "pays")
		case r.URL.Path == "/metrics":
			fmt.Fprintf(w, "vllm:num_requests_running{model_name=\"m\"} %d\n", busy)
		case r.URL.Path == "/v1/models" && wrong == "model":
			fmt.Fprint(w, `{"data":[]}`)
		case r.URL.Path == "/v1/models":
			fmt.Fprint(w, `{"data":[{"id":"m"}]}`)
		case wrong == "any" && q.Model == "any", wrong == "answer":
			w.WriteHeader(http.StatusInternalServerError)
		case q.Stream:
			if fmt.Fprint(w, "data: {}\n\n"); wrong == "cancel" {
				busy = 1
			}
		default:
			drafts, cached := `"draft_n":9,"draft_n_accepted":5`, 10
			switch wrong {
			case "drafts":
				drafts = `"draft_n":19,"draft_n_accepted":0`
			case "drafter":
				drafts = ""
			case "pays":
				drafts = `"draft_n":1,"draft_n_accepted":0`
			case "cache":
				cached = 0
			}
			fmt.Fprintf(w, `{"choices":[{"message":{"content":"x"}}],"usage":{"prompt_tokens":20,"completion_tokens":3,
				"prompt_tokens_details":{"cached_tokens":%d}},"timings":{%s}}`, cached, drafts)
		}
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

func TestCheckFindsWhatIsWrong(t *testing.T) {
	for wrong, want := range map[string]string{"ready": "ready", "model": "model", "answer": "answer", "drafts": "drafts",
		"drafter": "drafts", "pays": "", "cache": "cache", "cancel": "cancel", "any": "any", "": ""} {
		code, out, errs := runCheck(t, sickServer(t, wrong), "--timeout", "1s")
		failed := ""
		for _, line := range strings.Split(out, "\n") {
			if rest, ok := strings.CutPrefix(line, "FAIL "); ok {
				failed += strings.Fields(rest)[0]
			}
		}
		if failed != want || (code == exitOK) != (want == "") {
			t.Errorf("wrong %q: code %d, failed %q\n%s%s", wrong, code, failed, out, errs)
		}
	}
	if code, _, _ := runCheck(t, "ftp://localhost"); code != exitUsage {
		t.Errorf("an address of another protocol: %d", code)
	}
}
