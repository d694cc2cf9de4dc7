package model

import (
	"fmt"
	"os"
	"testing"

	"strobe/internal/backend/cpu"
	"strobe/internal/gguf"
)

// BenchmarkForward times passes of the model that STROBE_BENCH_MODEL names (for example one that
// strobe synth wrote) by rows. GB/s counts the weights once per pass.
func BenchmarkForward(b *testing.B) {
	path := os.Getenv("STROBE_BENCH_MODEL")
	if path == "" {
		b.Skip("STROBE_BENCH_MODEL names no GGUF file")
	}
	f, err := gguf.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	be := cpu.New(cpu.Options{})
	defer be.Close()
	m, err := Open(f, be, Options{})
	if err != nil {
		b.Fatal(err)
	}
	for _, rows := range []int{1, 2, 4, 8, 16, 32, 128, 512} {
		b.Run(fmt.Sprintf("rows=%d", rows), func(b *testing.B) {
			seq := m.NewSeq()
			defer seq.Close()
			toks := tokens(1, rows)
			b.SetBytes(int64(m.WeightBytes()))
			for b.Loop() {
				// Few rows are verified, and need logits; many are a prompt.
				g := Segment{Seq: seq, Tokens: toks, Logits: LogitsAll}
				if rows > 64 {
					g.Prompt, g.Logits = true, LogitsLast
				}
				if _, err := m.Forward([]Segment{g}); err != nil {
					b.Fatal(err)
				}
				if err := seq.CommitAll(); err != nil {
					b.Fatal(err)
				}
				if err := seq.Truncate(0); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(rows)*float64(b.N)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}
