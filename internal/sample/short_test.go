package sample

import (
	"bufio"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"strobe/internal/weight"
)

// shortOf is what a device says of a row: its n largest logits, and those that equal the last of them.
func shortOf(row []float32, n int) *Shortlist {
	order := make([]int32, len(row))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(a, b int32) int {
		return byLogit(Candidate{ID: a, Logit: row[a]}, Candidate{ID: b, Logit: row[b]})
	})
	l := &Shortlist{Bound: negInf, Total: weight.Sum(row, row[order[0]])}
	if n < len(row) {
		l.Bound = row[order[n-1]]
		for n < len(row) && row[order[n]] == l.Bound {
			n++
		}
	}
	for _, id := range order[:min(n, len(row))] {
		l.IDs = append(l.IDs, id)
		l.Bits = append(l.Bits, int32(math.Float32bits(row[id])))
	}
	return l
}

// every is a constraint that allows the tokens of one remainder, and can judge single ones.
type every struct{ n, rest int32 }

func (e every) Allows(id int32) bool { return id%e.n == e.rest }
func (e every) Accept(int32)         {}
func (e every) Mask(x []float32) {
	for i := range x {
		if !e.Allows(int32(i)) {
			x[i] = negInf
		}
	}
}

// TestShort: a shortlist of any length gives the token that the whole row gives, or says that it cannot and leaves the
// sampler as it was. Wherever the sampler wants a shortlist it nearly always suffices.
func TestShort(t *testing.T) {
	rng := rand.New(rand.NewPCG(31, 7))
	const vocab = 600
	asked, decided := map[Want]int{}, map[Want]int{}
	for trial := range 6000 {
		p := randomParams(rng, vocab)
		if trial%2 == 0 { // as people sample
			p.TypicalP, p.FrequencyPenalty, p.PresencePenalty = 0, max(0, p.FrequencyPenalty), max(0, p.PresencePenalty)
			p.RepeatPenalty = max(1, p.RepeatPenalty)
		}
		plain := trial%4 == 1 // nothing but top-p, which needs the weight of the row
		if plain {
			p = Params{Temp: 0.3 + 2*rng.Float32(), TopP: 0.05 + 0.9*rng.Float32(), MinP: 0.05 * float32(rng.IntN(2)),
				Seed: p.Seed}
		}
		s := New(p, vocab)
		if rng.IntN(3) == 0 && !plain {
			s.SetConstraint(every{int32(2 + rng.IntN(4)), int32(rng.IntN(2))})
		}
		for range rng.IntN(80) {
			s.Accept(int32(rng.IntN(vocab)))
		}
		row := randomRow(rng, vocab, []float64{0.1, 2, 6}[rng.IntN(3)])
		if rng.IntN(4) == 0 { // many equal logits
			for i := range row {
				row[i] = float32(math.Round(float64(row[i])))
			}
		}
		n := []int{1, 20, ShortLen, vocab}[rng.IntN(4)]
		list := shortOf(row, n)
		want := s.Wants(vocab)
		if want <= WantBest {
			continue
		}
		if want == WantShort {
			list.Total = 0
		}
		full := s.Clone()
		before := s.rng
		id, ok := s.SampleShort(list)
		if n >= ShortLen {
			asked[want]++
			if ok {
				decided[want]++
			}
		}
		if !ok {
			if s.rng != before || len(s.dry.touched) > 0 {
				t.Fatalf("trial %d: %+v: a list that does not decide has changed the sampler", trial, p)
			}
			if id = s.Sample(slices.Clone(row)); n == vocab && id >= 0 && want != WantRow {
				t.Fatalf("trial %d: %+v: the whole row in a list does not decide", trial, p)
			}
		}
		if w := full.Sample(slices.Clone(row)); id != w {
			t.Fatalf("trial %d: %+v: %d of %d logits give token %d, all of them %d (decided: %v)", trial, p, n, vocab, id, w, ok)
		}
		if full.rng != s.rng {
			t.Fatalf("trial %d: the generators differ afterwards", trial)
		}
	}
	for _, w := range []Want{WantShort, WantWeighed} {
		t.Logf("want %d: %d of %d decided", w, decided[w], asked[w])
		if asked[w] < 100 || decided[w]*3 < asked[w]*2 {
			t.Errorf("want %d: only %d of %d lists decided", w, decided[w], asked[w])
		}
	}
}

// TestWants: what needs the whole row asks for it, and what does not does not.
func TestWants(t *testing.T) {
	const n = 1000
	for _, c := range []struct {
		name string
		p    Params
		want Want
	}{
		{"greedy", Params{}, WantBest},
		{"greedy, a token is forbidden", Params{LogitBias: map[int32]float32{3: negInf}}, WantBest},
		{"greedy, a token is raised", Params{LogitBias: map[int32]float32{3: 1}}, WantRow},
		{"greedy with penalties", Params{PresencePenalty: 1}, WantShort},
		{"greedy with rewards", Params{PresencePenalty: -1}, WantRow},
		{"greedy with DRY", Params{DRY: DRYParams{Multiplier: 1}}, WantShort},
		{"defaults of a server", Params{Temp: 0.8, TopK: 40, TopP: 0.95, MinP: 0.05}, WantShort},
		{"all of it", Params{Temp: 0.8, TopK: 40, TopP: 0.95, MinP: 0.05, RepeatPenalty: 1.1, FrequencyPenalty: 1,
			PresencePenalty: 1, DRY: DRYParams{Multiplier: 1}, LogitBias: map[int32]float32{3: -1}}, WantShort},
		{"repetition is rewarded", Params{Temp: 0.8, TopK: 40, RepeatPenalty: 0.9}, WantRow},
		{"frequency is rewarded", Params{Temp: 0.8, TopK: 40, FrequencyPenalty: -1}, WantRow},
		{"top-k as long as a list", Params{Temp: 1, TopK: ShortLen}, WantShort},
		{"top-k longer than a list", Params{Temp: 1, TopK: ShortLen + 1}, WantRow},
		{"top-k of everything", Params{Temp: 1, TopK: n, TopP: 0.9}, WantRow},
		{"top-p", Params{Temp: 1, TopP: 0.95}, WantWeighed},
		{"top-p, a token is forbidden", Params{Temp: 1, TopP: 0.95, LogitBias: map[int32]float32{3: negInf}}, WantRow},
		{"min-p", Params{Temp: 1, MinP: 0.1}, WantShort},
		{"typical", Params{Temp: 1, TopK: 40, TypicalP: 0.5}, WantRow},
		{"temperature alone", Params{Temp: 1}, WantRow},
	} {
		if got := New(c.p, n).Wants(n); got != c.want {
			t.Errorf("%s: wants %d, expected %d", c.name, got, c.want)
		}
	}
	if got := New(Params{}, n-1).Wants(n); got != WantRow {
		t.Errorf("a row with padding: wants %d", got)
	}
}

// TestLogProbsShort: the numbers are those of the whole row.
func TestLogProbsShort(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	s := New(Params{}, 2000)
	row := randomRow(rng, 2000, 3)
	l := shortOf(row, 128)
	lp, top, ok := s.LogProbsShort(l, l.IDs[100], 20)
	top = slices.Clone(top)
	if !ok || lp != float64(row[l.IDs[100]])-LogSumExp(row) {
		t.Errorf("log-probability %v (%v), want %v", lp, ok, float64(row[l.IDs[100]])-LogSumExp(row))
	}
	if want := s.LogProbs(row, 20); !slices.Equal(top, want) {
		t.Errorf("the best 20 are %v, want %v", top, want)
	}
	missing := slices.IndexFunc(row, func(x float32) bool { return x < l.Bound })
	if _, _, ok := s.LogProbsShort(l, int32(missing), 1); ok {
		t.Error("knows the probability of a token that is not in the list")
	}
	if _, _, ok := s.LogProbsShort(l, l.IDs[0], 129); ok {
		t.Error("knows more tokens than the list has")
	}
}

var update = flag.Bool("update", false, "rewrite testdata/tokens.txt")

// TestTokensStay: the same seeds give the tokens that they always gave.
func TestTokensStay(t *testing.T) {
	const file = "testdata/tokens.txt"
	sets := []Params{
		{Temp: 0.8, TopK: 40, TopP: 0.95, MinP: 0.05}, {Temp: 0.7, TopK: 20, TopP: 0.8}, {Temp: 1, TopK: 64, TopP: 0.95},
		{Temp: 1.5, TopP: 0.95}, {Temp: 0.8, TopP: 0.5, MinP: 0.01}, {Temp: 1, MinP: 0.1}, {Temp: 1}, {Temp: 0.3},
		{Temp: 1, TypicalP: 0.7}, {Temp: 1, TypicalP: 0.9, TopP: 0.9, TopK: 100}, {Temp: 2, TopK: 200},
		{Temp: 0.8, TopK: 40, TopP: 0.95, PresencePenalty: 1.5}, {Temp: 0.8, TopK: 40, RepeatPenalty: 1.2},
		{Temp: 0.8, TopP: 0.9, FrequencyPenalty: 0.5}, {RepeatPenalty: 1.1}, {PresencePenalty: -1},
		{Temp: 1, TopK: 40, DRY: DRYParams{Multiplier: 0.8}},
		{Temp: 1, TopK: 5, LogitBias: map[int32]float32{7: 3, 9: negInf}},
	}
	var got []string
	for i, p := range sets {
		p.Seed = uint64(i)
		rng := rand.New(rand.NewPCG(uint64(i), 99))
		s := New(p, 5000)
		var line strings.Builder
		for j := range 100 {
			row := randomRow(rng, 5000, []float64{0.5, 2, 5}[j%3])
			for k := range row {
				row[k] = float32(math.Round(float64(row[k])*64) / 64) // far from the last bits of the logarithm of normals
			}
			id := s.Sample(row)
			s.Accept(id % 50)
			fmt.Fprintf(&line, " %d", id)
		}
		got = append(got, line.String())
	}
	if *update {
		if err := os.WriteFile(file, []byte(strings.Join(got, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for i, g := range got {
		if !lines.Scan() || lines.Text() != g {
			t.Errorf("%+v: other tokens than those of %s:\n%s\n%s", sets[i], file, g, lines.Text())
		}
	}
}

// BenchmarkShort is what a sampled row costs the host when the device has chosen its candidates.
func BenchmarkShort(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 1))
	const vocab = 248320
	list := shortOf(randomRow(rng, vocab, 3), 130)
	for _, c := range []struct {
		name string
		p    Params
	}{
		{"defaults", Params{Temp: 0.8, TopK: 40, TopP: 0.95, MinP: 0.05}},
		{"defaults, ends forbidden", Params{Temp: 0.8, TopK: 40, TopP: 0.95, MinP: 0.05,
			LogitBias: map[int32]float32{vocab - 1: negInf, vocab - 2: negInf}}},
		{"penalties", Params{Temp: 0.7, TopK: 20, TopP: 0.8, PresencePenalty: 1.5}},
		{"top-p alone", Params{Temp: 0.8, TopP: 0.5}},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := New(c.p, vocab)
			for range 64 {
				s.Accept(int32(rng.IntN(vocab)))
			}
			for b.Loop() {
				s.SampleShort(list)
			}
		})
	}
}

// TestTopPBorder: the token that reaches the mass exactly is the last one kept, from a list and from the row.
func TestTopPBorder(t *testing.T) {
	row := []float32{1, 1, 0, 0}
	for seed := range uint64(20) {
		for _, p := range []Params{{Temp: 1, TopK: 2, TopP: 0.5, Seed: seed}, {Temp: 1, TopK: 2, TopP: 0.4, Seed: seed}} {
			s := New(p, len(row))
			if id, ok := s.SampleShort(shortOf(row, 3)); id != 0 || !ok {
				t.Errorf("top-p %g of two equal tokens: %d (%t) from a list", p.TopP, id, ok)
			}
			if id := s.Sample(slices.Clone(row)); id != 0 {
				t.Errorf("top-p %g of two equal tokens: %d", p.TopP, id)
			}
		}
		// Without top-k, of a row in which two tokens have all the weight: the first of them has exactly half.
		row := []float32{7, 7, -100, -100}
		s := New(Params{Temp: 1, TopP: 0.5, Seed: seed}, len(row))
		if id, ok := s.SampleShort(shortOf(row, 3)); id != 0 || !ok {
			t.Errorf("top-p 0.5 without top-k: %d (%t) from a list", id, ok)
		}
		if id := s.Sample(slices.Clone(row)); id != 0 {
			t.Errorf("top-p 0.5 without top-k: %d", id)
		}
	}
}
