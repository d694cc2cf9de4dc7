package server

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"strobe/internal/engine"
	"strobe/internal/upstream"
	"strobe/models"
)

// BenchmarkProxy compares a server with the same server behind a front server, taking turns: how much later the first
// byte of a stream comes, and how fast eight streams are. One upstream is the shipped pair, which shares this
// machine's processor with the front server; one sends a token every five milliseconds, as a machine of its own would.
func BenchmarkProxy(b *testing.B) {
	for _, c := range []struct {
		name  string
		start func(b *testing.B) string
	}{{"paced", paced}, {"pair", servePair}} {
		b.Run(c.name, func(b *testing.B) {
			defer http.DefaultClient.CloseIdleConnections()
			back := c.start(b)
			fleet, err := upstream.New([]upstream.Model{{Name: "far", URLs: []string{back}}}, upstream.Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer fleet.Close()
			for !fleet.States()[0].Ready() {
				time.Sleep(time.Millisecond)
			}
			p, err := engine.NewPool(engine.PoolConfig{})
			if err != nil {
				b.Fatal(err)
			}
			defer p.Close(context.Background())
			srv := httptest.NewServer(New(Config{Models: Pool(p, ""), Upstreams: fleet}).Handler())
			defer srv.Close()
			urls := []string{back, srv.URL}
			var first, whole [2][]time.Duration
			for i := 0; b.Loop(); i++ {
				for k := range urls {
					k := (k + i) % 2 // who comes first changes
					for range 10 {
						d, _ := streamOnce(b, urls[k], 4)
						first[k] = append(first[k], d)
					}
					start := time.Now()
					var wg sync.WaitGroup
					for range 8 {
						wg.Go(func() { streamOnce(b, urls[k], 128) })
					}
					wg.Wait()
					whole[k] = append(whole[k], time.Since(start))
				}
			}
			var ratios []float64
			for i := range whole[0] {
				ratios = append(ratios, float64(whole[0][i])/float64(whole[1][i]))
			}
			slices.Sort(ratios)
			median := func(d []time.Duration) time.Duration { slices.Sort(d); return d[len(d)/2] }
			direct, through := median(first[0]), median(first[1])
			b.ReportMetric(float64(direct.Microseconds())/1e3, "ms-first-direct")
			b.ReportMetric(float64(through.Microseconds())/1e3, "ms-first-through")
			b.ReportMetric(float64((through-direct).Microseconds())/1e3, "ms-later")
			b.ReportMetric(ratios[len(ratios)/2], "speed-ratio")
			b.ReportMetric(ratios[0], "speed-ratio-least")
			b.ReportMetric(ratios[len(ratios)-1], "speed-ratio-most")
		})
	}
}

// streamOnce reads a stream and returns when its first byte came.
func streamOnce(b *testing.B, url string, tokens int) (first time.Duration, lines int) {
	start := time.Now()
	resp, err := http.Post(url+"/v1/completions", "application/json", strings.NewReader(fmt.Sprintf(
		`{"model":"far","prompt":%q,"max_tokens":%d,"temperature":0,"ignore_eos":true,"stream":true}`, goPrompt, tokens)))
	if err != nil {
		b.Error(err)
		return
	}
	defer resp.Body.Close()
	sc := bufio.NewScanner(resp.Body)
	for sc.Scan() {
		if lines++; lines == 1 {
			first = time.Since(start)
		}
	}
	if resp.StatusCode != http.StatusOK || sc.Err() != nil || sc.Text() != "" {
		b.Errorf("status %d, %v after %d lines", resp.StatusCode, sc.Err(), lines)
	}
	return first, lines
}

// servePair serves the shipped pair.
func servePair(b *testing.B) string {
	target, drafter, err := models.Open()
	if err != nil {
		b.Fatal(err)
	}
	m, err := engine.LoadFiles(engine.Source{Target: target, Drafter: drafter}, engine.Options{})
	if err != nil {
		b.Fatal(err)
	}
	e := engine.New(m, engine.Config{Parallel: 8, Context: 2048})
	srv := httptest.NewServer(New(Config{Models: Single(models.Name, e)}).Handler())
	b.Cleanup(func() {
		srv.Close()
		_ = e.Close(context.Background())
	})
	for range 5 {
		streamOnce(b, srv.URL, 128) // until the controller knows the machine
	}
	return srv.URL
}

// paced is a server that sends a token every five milliseconds.
func paced(b *testing.B) string {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			fmt.Fprint(w, `{"data":[{"id":"far"}]}`)
		}
		if r.Method != http.MethodPost {
			return
		}
		var n int
		body := new(strings.Builder)
		_, _ = bufio.NewReader(r.Body).WriteTo(body)
		_, rest, _ := strings.Cut(body.String(), `"max_tokens":`)
		_, _ = fmt.Sscan(strings.SplitN(rest, ",", 2)[0], &n)
		w.Header().Set("Content-Type", "text/event-stream")
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for range n {
			fmt.Fprint(w, `data: {"choices":[{"index":0,"text":"word "}]}`+"\n\n")
			_ = http.NewResponseController(w).Flush()
			<-tick.C
		}
		fmt.Fprint(w, "data: [DONE]\n\n")
	}))
	b.Cleanup(srv.Close)
	return srv.URL
}
