package server

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
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
func pair(b *testing.B) (src engine.Source) {
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

// BenchmarkServing measures a pair on the device $STROBE_DEVICE (the processor if it is not set): tokens per second of
// 1, 8 and 32 clients on the engine itself and through HTTP, plainly and with drafts, taking turns. Clients send one
// request after the other, of 64 to 192 tokens: with equal ones plain streams would keep step, and their prompts share
// passes as those of no other requests do.
func BenchmarkServing(b *testing.B) {
	const requests = 4 // of each client
	length := func(i int) int { return 64 + i*37%129 }
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

	direct := func(b *testing.B, draft string, i int) {
		req := engine.Request{Tokens: m.Tokenizer.Encode(prompt(i), tokenizer.EncodeOptions{}), Params: sample.Params{},
			MaxTokens: length(i), IgnoreEOG: true, Spec: speculate.Options{Draft: draft}}
		g, err := e.Submit(b.Context(), req)
		if err == nil {
			_, err = g.Wait(b.Context())
		}
		if err != nil {
			b.Error(err)
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
	for _, streams := range []int{1, 8, 32} {
		for _, way := range []struct {
			name string
			run  func(b *testing.B, draft string, i int)
		}{{"engine", direct}, {"http", overHTTP}} {
			b.Run(fmt.Sprintf("%s/%d", way.name, streams), func(b *testing.B) {
				took, tokens, round := map[string]time.Duration{}, 0.0, 0
				for b.Loop() {
					first := round * streams * requests
					round++
					for i := range streams * requests {
						tokens += float64(length(first + i))
					}
					for _, draft := range []string{speculate.Off, speculate.Auto} {
						begin := time.Now()
						var sent atomic.Int64
						var wg sync.WaitGroup
						for range streams {
							wg.Go(func() {
								for i := sent.Add(1); i <= int64(streams*requests); i = sent.Add(1) {
									way.run(b, draft, first+int(i)-1)
								}
							})
						}
						wg.Wait()
						took[draft] += time.Since(begin)
					}
				}
				b.ReportMetric(tokens/took[speculate.Off].Seconds(), "plain_tokens/s")
				b.ReportMetric(tokens/took[speculate.Auto].Seconds(), "tokens/s")
				b.ReportMetric(took[speculate.Off].Seconds()/took[speculate.Auto].Seconds(), "times_plain")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
	b.Log(m.Runner.Describe())
}
