package server

import (
	"math"

	"strobe/internal/engine"
	"strobe/internal/sample"
	"strobe/internal/tokenizer"
)

// wantLogProbs makes an answer have log probabilities: of each token, and of n alternatives to it.
func (c *conversation) wantLogProbs(name string, n int) error {
	if n < 0 || n > maxLogProbs {
		return invalid(name, "%d is not between 0 and %d", n, maxLogProbs)
	}
	c.logProbs = &n
	return nil
}

// minLogProb stands for impossible, which JSON cannot say.
const minLogProb = -9999

type logProbsJSON struct {
	Content []logProbJSON `json:"content"`
}

type logProbJSON struct {
	topJSON
	Top []topJSON `json:"top_logprobs"`
}

type topJSON struct {
	Token   string  `json:"token"`
	LogProb float64 `json:"logprob"`
	Bytes   []int   `json:"bytes"`
}

func newTop(tok *tokenizer.Tokenizer, id int32, lp float64) topJSON {
	piece := tok.Piece(id, true)
	t := topJSON{Token: string(piece), LogProb: max(lp, minLogProb), Bytes: make([]int, len(piece))}
	if math.IsNaN(lp) {
		t.LogProb = minLogProb
	}
	for i, b := range piece {
		t.Bytes[i] = int(b)
	}
	return t
}

func newLogProbs(tok *tokenizer.Tokenizer, tokens []engine.Token) *logProbsJSON {
	l := &logProbsJSON{Content: []logProbJSON{}}
	for _, t := range tokens {
		e := logProbJSON{topJSON: newTop(tok, t.ID, t.LogProb), Top: tops(tok, t.Top)}
		l.Content = append(l.Content, e)
	}
	return l
}

func tops(tok *tokenizer.Tokenizer, top []sample.LogProb) []topJSON {
	out := []topJSON{}
	for _, x := range top {
		out = append(out, newTop(tok, x.ID, x.LP))
	}
	return out
}
