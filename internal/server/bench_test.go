package server

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"strobe/internal/engine"
	"strobe/internal/sample"
	"strobe/internal/speculate"
	"strobe/internal/tokenizer"
	"strobe/models"
)

const goPrompt = "package main\n\nimport (\n\t\"fmt\"\n\t\"os\"\n)\n\n// sum adds the numbers.\nfunc sum(xs " +
	"[]int) int {\n"

// BenchmarkServing measures the shipped pair through HTTP and beside it: tokens per second of one stream
// on the engine itself, of one through the server, and of eight at once.
func BenchmarkServing(b *testing.B) {
	const n = 128
	target, drafter, err := models.Open()
	if err != nil {
		b.Fatal(err)
	}
	m, err := engine.LoadFiles(engine.Source{Target: target, Drafter: drafter}, engine.Options{})
	if err != nil {
		b.Fatal(err)
	}
	e := engine.New(m, engine.Config{Parallel: 8, Context: 2048, CacheBytes: -1})
	defer e.Close(context.Background())
	s := New(Config{Models: Single(models.Name, e)})
	srv := httptest.NewServer(s.Handler())
	defer srv.Close()
	defer http.DefaultClient.CloseIdleConnections()

	direct := func(b *testing.B, draft string) {
		req := engine.Request{Tokens: m.Tokenizer.Encode(goPrompt, tokenizer.EncodeOptions{}), Params: sample.Params{},
			MaxTokens: n, IgnoreEOG: true, Spec: speculate.Options{Draft: draft}}
		g, err := e.Submit(b.Context(), req)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := g.Wait(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	overHTTP := func(b *testing.B, draft string) {
		body := fmt.Sprintf(`{"prompt":%q,"max_tokens":%d,"temperature":0,`+
			`"ignore_eos":true,"stream":true,"strobe":{"draft":%q}}`, goPrompt, n, draft)
		resp, err := http.Post(srv.URL+"/v1/completions", "application/json", strings.NewReader(body))
		if err != nil {
			b.Fatal(err)
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
			b.Fatal(resp.Status, err)
		}
	}
	for range 5 {
		direct(b, speculate.Auto) // until the controller knows the machine
	}
	for _, c := range []struct {
		name    string
		streams int
		run     func(b *testing.B)
	}{
		{"plain/engine/1", 1, func(b *testing.B) { direct(b, speculate.Off) }},
		{"plain/http/1", 1, func(b *testing.B) { overHTTP(b, "off") }},
		{"auto/engine/1", 1, func(b *testing.B) { direct(b, speculate.Auto) }},
		{"auto/http/1", 1, func(b *testing.B) { overHTTP(b, "auto") }},
		{"plain/http/8", 8, func(b *testing.B) { overHTTP(b, "off") }},
		{"auto/http/8", 8, func(b *testing.B) { overHTTP(b, "auto") }},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				var wg sync.WaitGroup
				for range c.streams {
					wg.Go(func() { c.run(b) })
				}
				wg.Wait()
			}
			b.ReportMetric(float64(n*c.streams*b.N)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}
