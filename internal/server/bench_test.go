package server

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"strobe/internal/engine"
	"strobe/internal/gguf"
	"strobe/internal/sample"
	"strobe/internal/speculate"
	"strobe/internal/tokenizer"
	"strobe/models"
)

const goPrompt = "package main\n\nimport (\n\t\"fmt\"\n\t\"os\"\n)\n\n// sum adds the numbers.\nfunc sum(xs " +
	"[]int) int {\n"

// prompt is goPrompt for one of several streams, which are to differ.
func prompt(n int) string { return strings.ReplaceAll(goPrompt, "sum", fmt.Sprint("sum", n)) }

// pair opens the pair of $STROBE_PAIR, a target and its drafter with a space between, or the built-in one.
func pair(b testing.TB) (src engine.Source) {
	var err error
	if target, drafter, ok := strings.Cut(os.Getenv("STROBE_PAIR"), " "); !ok {
		src.Target, src.Drafter, err = models.Open()
	} else if src.Target, err = gguf.Open(target); err == nil {
		src.Drafter, err = gguf.Open(drafter)
	}
	if err != nil {
		b.Fatal(err)
	}
	return src
}

// serve has clients send so many requests each, one after the other, and measures while all of them are at work: from
// when as many requests are done as there are clients until there is none left to send.
func serve(clients, requests, first int, run func(i int)) (tokens int, took time.Duration) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	var begin, end time.Time
	sent, done := 0, 0
	next := func(finished int) (i int) {
		mu.Lock()
		defer mu.Unlock()
		if finished >= 0 {
			if end.IsZero() {
				tokens += length(finished)
			}
			if done++; done == clients {
				begin, tokens = time.Now(), 0
			}
		}
		if sent == clients*requests {
			if end.IsZero() {
				end = time.Now()
			}
			return -1
		}
		sent++
		return first + sent - 1
	}
	for range clients {
		wg.Go(func() {
			for i := next(-1); i >= 0; i = next(i) {
				run(i)
			}
		})
	}
	wg.Wait()
	return tokens, end.Sub(begin)
}

// length is how many tokens a request is for. With equal ones plain streams would keep step, and their prompts share
// passes as those of no other requests do.
func length(i int) int { return 64 + i*37%129 }

// BenchmarkServing measures a pair on the device $STROBE_DEVICE (the processor if it is not set): tokens per second of
// 1, 8 and 32 clients on the engine itself and through HTTP, plainly and with drafts, taking turns, after a turn of
// each that does not count: a GPU records passes of a size when they come for the first time.
func BenchmarkServing(b *testing.B) {
	const requests = 8 // of each client
	m, err := engine.LoadFiles(pair(b), engine.Options{Device: cmp.Or(os.Getenv("STROBE_DEVICE"), "cpu")})
	if err != nil {
		b.Fatal(err)
	}
	e := engine.New(m, engine.Config{Parallel: 32, Context: 2048, CacheBytes: -1})
	defer e.Close(context.Background())
	s := New(Config{Models: Single(models.Name, e)})
	srv := httptest.NewServer(s.Handler())
	defer srv.Close()
	http.DefaultTransport.(*http.Transport).MaxIdleConnsPerHost = 32
	defer http.DefaultClient.CloseIdleConnections()

	var said sync.Map // what came of a request, however it was drafted
	direct := func(b *testing.B, draft string, i int) {
		req := engine.Request{Tokens: m.Tokenizer.Encode(prompt(i), tokenizer.EncodeOptions{}), Params: sample.Params{},
			MaxTokens: length(i), IgnoreEOG: true, Spec: speculate.Options{Draft: draft}}
		var all engine.Event
		g, err := e.Submit(b.Context(), req)
		if err == nil {
			all, err = g.Wait(b.Context())
		}
		if err != nil {
			b.Error(err)
		} else if before, _ := said.LoadOrStore(i, string(all.Text)); before != string(all.Text) {
			b.Errorf("request %d: %q, and %q before", i, all.Text, before)
		}
	}
	overHTTP := func(b *testing.B, draft string, i int) {
		body := fmt.Sprintf(`{"prompt":%q,"max_tokens":%d,"temperature":0,`+
			`"ignore_eos":true,"stream":true,"strobe":{"draft":%q}}`, prompt(i), length(i), cmp.Or(draft, "auto"))
		resp, err := http.Post(srv.URL+"/v1/completions", "application/json", strings.NewReader(body))
		if err != nil {
			b.Error(err)
			return
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
			b.Error(resp.Status, err)
		}
	}
	for range 5 {
		direct(b, speculate.Auto, 0) // until the controller knows the machine
	}
	for _, clients := range []int{1, 8, 32} {
		for _, way := range []struct {
			name string
			run  func(b *testing.B, draft string, i int)
		}{{"engine", direct}, {"http", overHTTP}} {
			b.Run(fmt.Sprintf("%s/%d", way.name, clients), func(b *testing.B) {
				tokens, took, round := map[string]int{}, map[string]time.Duration{}, 0
				var ratios []float64 // of turns
				turn := func() {
					drafts := []string{speculate.Off, speculate.Auto}
					if round%2 == 1 {
						slices.Reverse(drafts)
					}
					speeds := map[string]float64{}
					for _, draft := range drafts {
						n, t := serve(clients, requests, round*clients*requests, func(i int) { way.run(b, draft, i) })
						tokens[draft] += n
						took[draft] += t
						speeds[draft] = float64(n) / t.Seconds()
					}
					ratios = append(ratios, speeds[speculate.Auto]/speeds[speculate.Off])
					round++
				}
				turn()
				clear(tokens)
				clear(took)
				ratios = nil
				for b.Loop() {
					turn()
				}
				speed := func(draft string) float64 { return float64(tokens[draft]) / took[draft].Seconds() }
				b.ReportMetric(speed(speculate.Off), "plain_tokens/s")
				b.ReportMetric(speed(speculate.Auto), "tokens/s")
				b.ReportMetric(speed(speculate.Auto)/speed(speculate.Off), "times_plain")
				b.ReportMetric(slices.Min(ratios), "least")
				b.ReportMetric(slices.Max(ratios), "most")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
	b.Log(m.Runner.Describe())
}
