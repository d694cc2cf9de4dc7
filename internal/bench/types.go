package bench

import (
	"context"
	"fmt"
	"io"
	"math"

	"strobe/internal/engine"
	"strobe/internal/model"
	"strobe/internal/speculate"
)

// TypeRow is what a type of keys and values costs in quality.
type TypeRow struct {
	KV         string  `json:"cache_types"` // of keys and values
	TokenBytes int     `json:"cache_bytes_per_token"`
	Loss       float64 `json:"loss"`      // mean over the tokens of the prompts, in nats
	Agree      float64 `json:"agreement"` // share of the first type's greedy texts that this one would choose, too
	PerPass    float64 `json:"tokens_per_pass"`
}

// TypeReport compares types of keys and values.
type TypeReport struct {
	Prompts int       `json:"prompts"`
	Tokens  int       `json:"tokens"` // generated after each, at most
	Rows    []TypeRow `json:"types"`
}

// CompareTypes measures a model with several types of keys and values, the first of which the others are compared with.
// open loads the model with one of them.
func CompareTypes(ctx context.Context, types []string, c Config,
	open func(kv string) (*engine.Model, error)) (*TypeReport, error) {
	r := &TypeReport{Prompts: len(c.Cases), Tokens: c.Tokens}
	var texts [][]int32 // of the first type
	for i, kv := range types {
		m, err := open(kv)
		if err != nil {
			return nil, err
		}
		row, err := measureType(ctx, m, c, &texts, i == 0)
		m.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", kv, err)
		}
		row.KV = kv
		r.Rows = append(r.Rows, *row)
		if c.Progress != nil {
			c.Progress(i+1, len(types))
		}
	}
	return r, nil
}

func measureType(ctx context.Context, m *engine.Model, c Config, texts *[][]int32, first bool) (*TypeRow, error) {
	row := &TypeRow{TokenBytes: m.Target.Memory().TokenBytes()}
	var loss, read, agreed, said float64
	var all speculate.Stats
	for i, x := range c.Cases {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		opt := speculate.Options{Draft: speculate.Off}
		if ds := m.Drafters(); len(ds) > 0 {
			opt = speculate.Options{Draft: ds[0].Name(), Fixed: true, Tree: speculate.TreeOff}
		}
		s, err := m.Solo(m.Runner, engine.Request{Tokens: x.Tokens, MaxTokens: c.Tokens, Spec: opt}, c.Context)
		if err != nil {
			return nil, err
		}
		for !s.Done() {
			if _, err := s.Step(c.Chunk); err != nil {
				s.Close()
				return nil, err
			}
		}
		all.Add(s.Stats())
		if first {
			*texts = append(*texts, append([]int32(nil), s.Tokens()...))
		}
		s.Close()
		text := append(append([]int32(nil), x.Tokens...), (*texts)[i]...)
		err = predict(m.Target, text, func(at int, logits []float32) {
			top, best, sum := math.Inf(-1), 0, 0.0
			for id, v := range logits {
				if float64(v) > top {
					top, best = float64(v), id
				}
			}
			for _, v := range logits {
				sum += math.Exp(float64(v) - top)
			}
			if at < len(x.Tokens) {
				loss += top + math.Log(sum) - float64(logits[text[at]])
				read++
				return
			}
			if said++; best == int(text[at]) {
				agreed++
			}
		})
		if err != nil {
			return nil, err
		}
	}
	row.Loss, row.Agree, row.PerPass = loss/max(read, 1), agreed/max(said, 1), all.Mean()
	return row, nil
}

// predict shows the logits from which every token of a text but the first is predicted.
func predict(m *model.Model, text []int32, show func(at int, logits []float32)) error {
	seq := m.NewSeq()
	defer seq.Close()
	const rows = 16 // logits of more would only take memory
	for from := 0; from < len(text)-1; from += rows {
		n := min(rows, len(text)-1-from)
		out, err := m.Forward([]model.Segment{{Seq: seq, Tokens: text[from : from+n], Logits: model.LogitsAll}})
		if err == nil {
			err = m.Sync()
		}
		if err != nil {
			return err
		}
		for i := range n {
			show(from+i+1, out.Row(0, i))
		}
		if err := seq.CommitAll(); err != nil {
			return err
		}
	}
	return nil
}

// WriteText prints the report as a table.
func (r *TypeReport) WriteText(w io.Writer) error {
	p := &printer{w: w}
	rows := [][]string{{"keys/values", "bytes per token", "loss", "perplexity", "greedy agreement", "tokens per pass"}}
	for _, x := range r.Rows {
		rows = append(rows, []string{x.KV, fmt.Sprint(x.TokenBytes), fmt.Sprintf("%.4f", x.Loss),
			fmt.Sprintf("%.3f", math.Exp(x.Loss)), fmt.Sprintf("%.2f %%", 100*x.Agree), fmt.Sprintf("%.2f", x.PerPass)})
	}
	p.table(rows)
	return p.err
}

// WriteJSON writes the report as one JSON object.
func (r *TypeReport) WriteJSON(w io.Writer) error { return writeJSON(w, r) }
