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

	"strobe/internal/testkit/edit"
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

// sickServer answers like a server with one thing wrong: a check that fails, "drafter" if it has none, "pays" if it
// has one and hardly drafts. Of two drafters one is bad when it is asked alone: never right ("hidden"), "NaN", "failed"
// with an error, or asked too seldom to say ("seldom").
func sickServer(t *testing.T, wrong string) string {
	busy, drafters := 0, "[]"
	if alone := map[string]bool{"pays": true, "hidden": true, "NaN": true, "failed": true, "seldom": true}; alone[wrong] {
		drafters = `["mtp","dflash"]`
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			Model    string
			Strobe   struct{ Draft string }
			Stream   bool
			Messages []any
		}
		_ = json.NewDecoder(r.Body).Decode(&q)
		switch {
		case r.URL.Path == "/health" && wrong == "ready":
			w.WriteHeader(http.StatusServiceUnavailable)
		case r.URL.Path == "/health":
		case r.URL.Path == "/props":
			fmt.Fprintf(w, `{"speculative":{"draft":"auto","drafters":%s}}`, drafters)
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
			if drafters != "[]" && wrong != "pays" {
				drafts += `,"draft_sources":{"mtp":{"drafts":3,"right":2},"dflash":{"x":0`
				if q.Strobe.Draft == "dflash" {
					drafts += map[string]string{"hidden": `,"drafts":5`, "NaN": `,"drafts":3,"bad":3`,
						"failed": `,"failed":1`, "seldom": `,"drafts":4`}[wrong]
				}
				drafts += `}}`
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
		"drafter": "drafts", "pays": "", "hidden": "drafts", "NaN": "drafts", "failed": "drafts", "seldom": "",
		"cache": "cache", "cancel": "cancel", "any": "any", "": ""} {
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

// TestCheckSeesAUselessDrafter: repetitions of earlier text are guessed well without a drafter, so a text full of them
// says nothing of it. This one always guesses token 0, and is sure of nothing, so that none of it is ever verified.
func TestCheckSeesAUselessDrafter(t *testing.T) {
	d := edit.Read(t, "../../models/strobe-go-66m-dflash.gguf")
	norm := d.Values(t, "output_norm.weight")
	d.Put("output_norm.weight", make([]float32, len(norm)), len(norm))
	url, _ := serve(t, "-d", d.Write(t))
	if code, out, _ := runCheck(t, url); code != exitError ||
		!strings.Contains(out, "FAIL drafts  dflash alone: not one first guess") {
		t.Errorf("code %d, %s", code, out)
	}
	if out := runPs(t, url); !strings.Contains(out, "dflash 0 of ") {
		t.Errorf("ps: %s", out)
	}
}

func runPs(t *testing.T, url string) string {
	t.Helper()
	var out, errs bytes.Buffer
	if code := run(context.Background(), []string{"ps", url}, strings.NewReader(""), &out, &errs); code != exitOK {
		t.Errorf("ps: code %d, %s", code, errs.String())
	}
	return out.String()
}

// TestSourcesText: the last column of ps.
func TestSourcesText(t *testing.T) {
	for want, x := range map[string]checkSource{
		"mtp not asked": {}, "mtp 0 of 0": {Drafts: 2}, "mtp 3 of 9": {Drafts: 4, Right: 2, Guessed: 9, Accepted: 3},
		"mtp 0 of 0 (3 of 3 drafts unusable) (failed in 1 answer)": {Drafts: 3, Bad: 3, Failed: 1},
	} {
		if got := sourcesText(map[string]checkSource{"ngram": {Drafts: 1, Guessed: 2, Accepted: 1}, "mtp": x}); got !=
			want+", ngram 1 of 2" {
			t.Errorf("%+v: %q, want %q", x, got, want)
		}
	}
}
