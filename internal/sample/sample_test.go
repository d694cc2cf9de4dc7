package sample

import (
	"cmp"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

var (
	inf = float32(math.Inf(1))
	nan = float32(math.NaN())
)

func randomRow(rng *rand.Rand, n int, scale float64) []float32 {
	row := make([]float32, n)
	for i := range row {
		row[i] = float32(rng.NormFloat64() * scale)
	}
	return row
}

// naive is the whole chain in float64 with full sorts and no cleverness.
func naive(p Params, vocab int, hist []int32, row []float32, mask func([]float32)) map[int32]float64 {
	x := slices.Clone(row)
	if mask != nil {
		mask(x)
	}
	for id, b := range p.LogitBias {
		if id >= 0 && int(id) < vocab {
			x[id] += b
		}
	}
	window := func(n int) []int32 {
		if n == 0 {
			n = 64
		}
		if n < 0 || n > len(hist) {
			return hist
		}
		return hist[len(hist)-n:]
	}
	counts := map[int32]int{}
	for _, id := range window(p.RepeatLastN) {
		if id >= 0 && int(id) < vocab {
			counts[id]++
		}
	}
	for id, n := range counts {
		if rp := p.RepeatPenalty; rp != 0 {
			if x[id] > 0 {
				x[id] /= rp
			} else {
				x[id] *= rp
			}
		}
		x[id] -= float32(n)*p.FrequencyPenalty + p.PresencePenalty
	}
	for id, d := range naiveDRY(p.DRY, window(p.DRY.LastN)) {
		if id >= 0 && int(id) < vocab {
			x[id] -= float32(d)
		}
	}

	type cand struct {
		id int32
		x  float64
		p  float64
	}
	var c []cand
	for i, v := range x {
		if v > negInf {
			c = append(c, cand{id: int32(i), x: float64(v)})
		}
	}
	if len(c) == 0 {
		return nil
	}
	byX := func(a, b cand) int { return cmp.Or(cmp.Compare(b.x, a.x), cmp.Compare(a.id, b.id)) }
	softmax := func(temp float64) {
		sum := 0.0
		for i := range c {
			c[i].p = math.Exp((c[i].x - c[0].x) / temp)
			sum += c[i].p
		}
		for i := range c {
			c[i].p /= sum
		}
	}
	mass := func(p float64) {
		sum := 0.0
		for i := range c {
			if sum += c[i].p; sum >= p {
				c = c[:i+1]
				return
			}
		}
	}
	slices.SortFunc(c, byX)
	if p.Temp <= 0 {
		return map[int32]float64{c[0].id: 1}
	}
	if p.TopK > 0 && p.TopK < len(c) {
		c = c[:p.TopK]
	}
	if p.TypicalP > 0 && p.TypicalP < 1 {
		softmax(1)
		h := 0.0
		for _, v := range c {
			if v.p > 0 {
				h -= v.p * math.Log(v.p)
			}
		}
		dev := func(v cand) float64 { return math.Abs(-math.Log(v.p) - h) }
		slices.SortFunc(c, func(a, b cand) int { return cmp.Or(cmp.Compare(dev(a), dev(b)), cmp.Compare(a.id, b.id)) })
		mass(float64(p.TypicalP))
		slices.SortFunc(c, byX)
	}
	if p.TopP > 0 && p.TopP < 1 {
		softmax(1)
		mass(float64(p.TopP))
	}
	if p.MinP > 0 {
		softmax(1)
		n := 1
		for n < len(c) && c[n].p >= float64(p.MinP)*c[0].p {
			n++
		}
		c = c[:n]
	}
	softmax(float64(p.Temp))
	out := map[int32]float64{}
	for _, v := range c {
		out[v.id] = v.p
	}
	return out
}

// naiveDRY compares every earlier position with the end, token by token.
func naiveDRY(p DRYParams, hist []int32) map[int32]float64 {
	out := map[int32]float64{}
	if p.Multiplier == 0 {
		return out
	}
	base, allowed := float64(cmp.Or(p.Base, 1.75)), cmp.Or(p.AllowedLength, 2)
	n := len(hist)
	longest := map[int32]int{}
	for i := 1; i < n; i++ { // hist[i] followed the tokens before it
		k := 0
		for k < i && hist[i-1-k] == hist[n-1-k] && !slices.Contains(p.Breakers, hist[n-1-k]) {
			k++
		}
		if k >= allowed {
			longest[hist[i]] = max(longest[hist[i]], k)
		}
	}
	for id, k := range longest {
		out[id] = min(float64(p.Multiplier)*math.Pow(base, float64(k-allowed)), maxDRY)
	}
	return out
}

func randomParams(rng *rand.Rand, vocab int) Params {
	chance := func(v float32) float32 {
		if rng.IntN(2) == 0 {
			return 0
		}
		return v
	}
	p := Params{
		Temp:             0.2 + 1.5*rng.Float32(),
		TopP:             chance(rng.Float32()),
		MinP:             chance(0.3 * rng.Float32()),
		TypicalP:         chance(rng.Float32()),
		RepeatPenalty:    chance(0.8 + rng.Float32()),
		FrequencyPenalty: chance(rng.Float32()),
		PresencePenalty:  chance(rng.Float32() - 0.5),
		RepeatLastN:      rng.IntN(12) - 1,
		DRY: DRYParams{Multiplier: chance(2 * rng.Float32()), Base: chance(1 + rng.Float32()),
			AllowedLength: rng.IntN(4), LastN: rng.IntN(40) - 1},
	}
	if rng.IntN(2) == 0 {
		p.TopK = rng.IntN(vocab + 5)
	}
	if rng.IntN(2) == 0 {
		p.LogitBias = map[int32]float32{int32(rng.IntN(vocab)): 3, int32(rng.IntN(vocab)): negInf, int32(vocab): 5, -1: 5}
	}
	if rng.IntN(2) == 0 {
		p.DRY.Breakers = []int32{int32(rng.IntN(5))}
	}
	if rng.IntN(8) == 0 {
		p.Temp = 0
	}
	return p
}

type maskFunc func([]float32)

func (f maskFunc) Mask(x []float32) { f(x) }
func (f maskFunc) Accept(int32)     {}

func TestAgainstNaive(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range 3000 {
		vocab := 2 + rng.IntN(60)
		p := randomParams(rng, vocab)
		s := New(p, vocab)
		var mask func([]float32)
		if rng.IntN(3) == 0 {
			odd := rng.IntN(2)
			mask = func(x []float32) {
				for i := odd; i < len(x); i += 2 {
					x[i] = negInf
				}
			}
			s.SetConstraint(maskFunc(mask))
		}
		// A prompt longer than the windows, then tokens one by one, from few ids so
		// that repetitions occur. Some ids are outside the vocabulary.
		var hist []int32
		for range rng.IntN(200) {
			hist = append(hist, int32(rng.IntN(6)))
		}
		k := rng.IntN(len(hist) + 1)
		s.Prime(hist[:k])
		for _, id := range hist[k:] {
			s.Accept(id)
		}
		row := randomRow(rng, vocab, 3)
		want := naive(p, vocab, hist, row, mask)
		before := slices.Clone(row)
		got := s.Probs(row)
		if !slices.Equal(row, before) {
			t.Fatal("Probs changed the row")
		}
		if len(got) != len(want) {
			t.Fatalf("round %d: %d candidates, want %d\n%+v\nhistory %v", round, len(got), len(want), p, hist)
		}
		for i, c := range got {
			if w, ok := want[c.ID]; !ok || math.Abs(float64(c.P)-w) > 2e-6 {
				t.Fatalf("round %d: token %d has probability %v, want %v\n%+v", round, c.ID, c.P, w, p)
			}
			if i > 0 && c.P > got[i-1].P {
				t.Fatalf("round %d: not sorted", round)
			}
		}
		if id := s.Sample(row); want[id] == 0 && !(id == -1 && len(want) == 0) {
			t.Fatalf("round %d: drew %d, which has probability 0", round, id)
		}
	}
}

// TestOrder has one case per neighbouring pair of steps whose order shows.
func TestOrder(t *testing.T) {
	ids := func(c []Candidate) (out []int32) {
		for _, x := range c {
			out = append(out, x.ID)
		}
		slices.Sort(out)
		return out
	}
	ban0 := maskFunc(func(x []float32) { x[0] = negInf })
	for _, tc := range []struct {
		name string
		p    Params
		c    Constraint
		row  []float32
		want []int32
	}{
		{"mask before bias", Params{LogitBias: map[int32]float32{0: 100}}, ban0, []float32{1, 0}, []int32{1}},
		// 9/20, not -20+10
		{"bias before penalty", Params{LogitBias: map[int32]float32{0: 10}, RepeatPenalty: 20}, nil, []float32{-1, 0.5},
			[]int32{1}},
		{"penalty before top-k", Params{Temp: 1, TopK: 1, PresencePenalty: 5}, nil, []float32{2, 1}, []int32{1}},
		// 0.52 of the two, 0.24 of all
		{"top-k before top-p", Params{Temp: 1, TopK: 2, TopP: 0.55}, nil, []float32{1, 0.9, 0.8, 0.7, 0.6}, []int32{0, 1}},
		{"top-p before min-p", Params{Temp: 1, TopP: 0.45, MinP: 0.5}, nil, []float32{0, -0.6, -0.9, -0.9, -0.9, -0.9},
			[]int32{0, 1}},
		{"truncation before temperature", Params{Temp: 100, MinP: 0.5}, nil, []float32{0, -1, -2}, []int32{0}},
	} {
		s := New(tc.p, len(tc.row))
		s.Prime([]int32{0})
		s.SetConstraint(tc.c)
		if got := ids(s.Probs(tc.row)); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestDistribution(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	row := randomRow(rng, 40, 1.5)
	for _, p := range []Params{
		{Temp: 1}, {Temp: 0.6}, {Temp: 2, TopK: 10}, {Temp: 1, TopP: 0.9}, {Temp: 1.3, MinP: 0.05}, {Temp: 1, TypicalP: 0.8},
		{Temp: 0.9, TopK: 20, TopP: 0.95, MinP: 0.01, TypicalP: 0.95},
	} {
		p.Seed = 7
		s := New(p, len(row))
		want := slices.Clone(s.Probs(row))
		got := map[int32]int{}
		const n = 100000
		x := make([]float32, len(row))
		for range n {
			copy(x, row)
			got[s.Sample(x)]++
		}
		chi, df, sum := 0.0, -1, 0.0
		rest, restN := 0.0, n // rare tokens count together
		for _, c := range want {
			sum += float64(c.P)
			if e := float64(c.P) * n; e >= 10 {
				chi += (float64(got[c.ID]) - e) * (float64(got[c.ID]) - e) / e
				df++
				restN -= got[c.ID]
			} else {
				rest += e
			}
		}
		if rest >= 1 {
			chi += (float64(restN) - rest) * (float64(restN) - rest) / rest
			df++
		} else if restN > 20 {
			t.Errorf("%+v: %d draws outside the candidates", p, restN)
		}
		if math.Abs(sum-1) > 1e-5 {
			t.Errorf("%+v: probabilities add up to %v", p, sum)
		}
		if limit := float64(df) + 5*math.Sqrt(2*float64(df)) + 5; chi > limit {
			t.Errorf("%+v: chi-square %.1f with %d degrees of freedom", p, chi, df)
		}
	}
}

func TestTies(t *testing.T) {
	row := []float32{1, 3, 2, 3, 3, 0}
	if id := New(Params{}, 6).Sample(slices.Clone(row)); id != 1 {
		t.Errorf("greedy picks %d of equals", id)
	}
	c := New(Params{Temp: 1, TopK: 2}, 6).Probs(row)
	if len(c) != 2 || c[0].ID != 1 || c[1].ID != 3 {
		t.Errorf("top-2 of equals: %v", c)
	}
	c = New(Params{Temp: 1, TopP: 0.5}, 6).Probs(row)
	if len(c) != 2 || c[0].ID != 1 || c[1].ID != 3 {
		t.Errorf("top-p of equals: %v", c)
	}
}

func TestStrangeLogits(t *testing.T) {
	ps := []Params{{}, {Temp: 1}, {Temp: 1, TopK: 2}, {Temp: 1, TopP: 0.9}, {Temp: 1, MinP: 0.1}, {Temp: 1, TypicalP: 0.9},
		{Temp: 1e-30, TopP: 0.5, MinP: 2}}
	for _, p := range ps {
		for _, tc := range []struct {
			name string
			row  []float32
			want int32
		}{
			{"none", nil, -1},
			{"all banned", []float32{negInf, negInf, negInf}, -1},
			{"all NaN", []float32{nan, nan, nan}, -1},
			{"one left", []float32{nan, negInf, -1e30, nan}, 2},
			{"one infinite", []float32{3, inf, 5, nan}, 1},
			{"far apart", []float32{-3e38, 3e38, -3e38}, 1},
			{"padding", []float32{1, 0, negInf, negInf, 100}, -2},
		} {
			s := New(p, 4)
			id := s.Sample(slices.Clone(tc.row))
			if tc.want == -2 {
				if id != 0 && id != 1 {
					t.Errorf("%+v, %s: %d", p, tc.name, id)
				}
			} else if id != tc.want {
				t.Errorf("%+v, %s: %d, want %d", p, tc.name, id, tc.want)
			}
			c := s.Probs(tc.row)
			if (len(c) == 0) != (tc.want == -1) {
				t.Errorf("%+v, %s: candidates %v", p, tc.name, c)
			}
		}
	}
}

func TestOneDrawPerSample(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, p := range []Params{{Temp: 1}, {Temp: 1, TopK: 1}, {Temp: 0.5, TopP: 0.3}, {Temp: 1, TypicalP: 0.5, MinP: 0.5},
		{Temp: 0}} {
		p.Seed = 42
		s := New(p, 50)
		want := rand.NewPCG(42, 0x9e3779b97f4a7c15)
		rows := [][]float32{randomRow(rng, 50, 1), randomRow(rng, 50, 30), {nan, negInf}, {1}}
		for _, row := range rows {
			s.Probs(row) // draws nothing
			s.LogProbs(row, 3)
			s.Sample(row)
			if p.Temp > 0 {
				want.Uint64()
			}
		}
		if s.rng != *want {
			t.Errorf("%+v: the generator is not where one draw per call leaves it", p)
		}
	}
}

// TestSeeds pins sequences: a seed must mean the same on every platform and in
// every release.
func TestSeeds(t *testing.T) {
	row := make([]float32, 1000)
	for i := range row {
		row[i] = float32(i*7919%1000) / 150
	}
	for _, tc := range []struct {
		p    Params
		want []int32
	}{
		{Params{Temp: 1, Seed: 1}, []int32{927, 730, 903, 889, 704, 348, 951, 668}},
		{Params{Temp: 0.7, TopK: 40, TopP: 0.95, Seed: 2}, []int32{593, 321, 99, 173, 420, 815, 704, 383}},
		{Params{Temp: 1, MinP: 0.2, TypicalP: 0.9}, []int32{459, 718, 988, 545, 655, 299, 754, 705}},
	} {
		s := New(tc.p, len(row))
		var got []int32
		for range 8 {
			got = append(got, s.Sample(slices.Clone(row)))
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%+v: %v, want %v", tc.p, got, tc.want)
		}
	}
}

func TestClone(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for range 200 {
		p := randomParams(rng, 30)
		p.Seed = rng.Uint64()
		a := New(p, 30)
		for range rng.IntN(150) {
			a.Accept(int32(rng.IntN(6)))
		}
		b := a.Clone()
		c := New(randomParams(rng, 20+rng.IntN(20)), 40) // overwritten, whatever it was
		c.Prime([]int32{1, 2, 3, 1, 2, 3})
		c.Sample(randomRow(rng, 40, 1))
		c.CopyFrom(a)
		for range 100 {
			row := randomRow(rng, 30, 2)
			x, y, z := a.Sample(slices.Clone(row)), b.Sample(slices.Clone(row)), c.Sample(slices.Clone(row))
			if x != y || x != z {
				t.Fatalf("copies diverge: %d %d %d", x, y, z)
			}
			a.Accept(x % 6)
			b.Accept(x % 6)
			c.Accept(x % 6)
		}
		// Using a copy must not move the original.
		before := a.rng
		b.Sample(randomRow(rng, 30, 2))
		b.Accept(3)
		if a.rng != before {
			t.Fatal("a copy shares the generator")
		}
	}
}

type countingConstraint struct{ accepted []int32 }

func (c *countingConstraint) Mask(x []float32)  { x[0] = negInf }
func (c *countingConstraint) Accept(id int32)   { c.accepted = append(c.accepted, id) }
func (c *countingConstraint) Clone() Constraint { return &countingConstraint{slices.Clone(c.accepted)} }

func TestConstraint(t *testing.T) {
	s := New(Params{}, 3)
	if s.Wants(3) != WantBest {
		t.Error("zero parameters are greedy")
	}
	c := &countingConstraint{}
	s.SetConstraint(c)
	if s.Wants(3) != WantRow {
		t.Error("a constraint that cannot judge single tokens needs the row")
	}
	if id := s.Sample([]float32{9, 1, 2}); id != 2 {
		t.Errorf("picked %d", id)
	}
	s.Prime([]int32{1})
	s.Accept(2)
	if !slices.Equal(c.accepted, []int32{2}) {
		t.Errorf("constraint saw %v", c.accepted)
	}
	s.Clone().Accept(1)
	if len(c.accepted) != 1 {
		t.Error("the copy moved the original's constraint")
	}
}

func TestDRYAgainstNaive(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	for range 2000 {
		p := DRYParams{Multiplier: 1 + rng.Float32(), Base: 1 + rng.Float32(), AllowedLength: 1 + rng.IntN(4), LastN: -1}
		if rng.IntN(2) == 0 {
			p.Breakers = []int32{0, 4}
		}
		var hist []int32
		for range rng.IntN(80) {
			hist = append(hist, int32(rng.IntN(2+rng.IntN(4))))
		}
		s := New(Params{DRY: p}, 6)
		s.Prime(hist)
		row := make([]float32, 6)
		s.adjust(row)
		want := naiveDRY(p, hist)
		for id, x := range row {
			if w := -want[int32(id)]; math.Abs(float64(x)-w) > 1e-4*(1+math.Abs(w)) {
				t.Fatalf("token %d loses %v, want %v\n%+v %v", id, x, w, p, hist)
			}
		}
	}
	// A very long repetition must stay a number.
	s := New(Params{DRY: DRYParams{Multiplier: 1, Base: 4, LastN: -1}}, 2)
	for range 1000 {
		s.Accept(1)
	}
	if id := s.Sample([]float32{0, 1}); id != 0 {
		t.Errorf("picked %d", id)
	}
	if id := s.Sample([]float32{negInf, 1}); id != 1 {
		t.Errorf("picked %d although it is the only one", id)
	}
}

func TestBreakerTokens(t *testing.T) {
	pieces := []string{"a", "\n", "x:", "", "\"quoted", "b"}
	got := BreakerTokens(len(pieces), func(id int32) []byte { return []byte(pieces[id]) }, []string{"\n", ":", "\"", ""})
	if !slices.Equal(got, []int32{1, 2, 4}) {
		t.Errorf("%v", got)
	}
}

func TestLogProbs(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	row := randomRow(rng, 100, 3)
	row[7], row[8] = nan, negInf
	s := New(Params{Temp: 2, TopK: 3, LogitBias: map[int32]float32{5: 50}}, 100)
	sum := 0.0
	for _, x := range row {
		if x > negInf {
			sum += math.Exp(float64(x))
		}
	}
	if got, want := LogSumExp(row), math.Log(sum); math.Abs(got-want) > 1e-6 {
		t.Errorf("LogSumExp %v, want %v", got, want)
	}
	for _, k := range []int{1, 5, 0, 1000} {
		got := s.LogProbs(row, k)
		if want := min(cmp.Or(k, 98), 98); len(got) != want {
			t.Fatalf("k=%d: %d entries, want %d", k, len(got), want)
		}
		for i, lp := range got {
			if want := float64(row[lp.ID]) - math.Log(sum); math.Abs(lp.LP-want) > 1e-6 {
				t.Errorf("token %d: %v, want %v", lp.ID, lp.LP, want)
			}
			if i > 0 && lp.LP > got[i-1].LP {
				t.Error("not sorted")
			}
		}
	}
	if got := LogSumExp([]float32{negInf, nan}); !math.IsInf(got, -1) {
		t.Errorf("empty row: %v", got)
	}
}

func TestValidate(t *testing.T) {
	if err := (Params{Temp: 0.8, TopK: 40, TopP: 0.95, MinP: 0.05, RepeatPenalty: 1.1,
		LogitBias: map[int32]float32{1: negInf}}).Validate(); err != nil {
		t.Error(err)
	}
	for name, p := range map[string]Params{
		"Temp": {Temp: nan}, "TopP": {TopP: 1.5}, "MinP": {MinP: -1}, "TypicalP": {TypicalP: inf},
		"RepeatPenalty": {RepeatPenalty: -1},
		"DRY.Base":      {DRY: DRYParams{Base: nan}}, "LogitBias": {LogitBias: map[int32]float32{3: nan}},
	} {
		if err := p.Validate(); err == nil || len(err.Error()) < len(name) || err.Error()[:len(name)] != name {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNoAllocations(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 14))
	row := randomRow(rng, 5000, 2)
	x := slices.Clone(row)
	for _, p := range []Params{
		{}, {Temp: 1}, {Temp: 1, TopK: 40, TopP: 0.9, MinP: 0.05}, {Temp: 1, TopP: 0.9}, {Temp: 1, MinP: 0.1},
		{Temp: 1, TypicalP: 0.9},
		{Temp: 1, TopK: 20, RepeatPenalty: 1.1, FrequencyPenalty: 0.5, DRY: DRYParams{Multiplier: 1},
			LogitBias: map[int32]float32{1: 1}},
	} {
		s, saved := New(p, len(row)), New(p, len(row))
		step := func() {
			copy(x, row)
			saved.CopyFrom(s)
			id := s.Sample(x)
			s.Accept(id)
			s.LogProbs(row, 5)
		}
		for range 300 { // fill the windows
			step()
		}
		if n := testing.AllocsPerRun(100, step); n != 0 {
			t.Errorf("%+v: %v allocations per token", p, n)
		}
	}
}

func FuzzSample(f *testing.F) {
	f.Add([]byte{0, 0, 128, 63, 0, 0, 192, 127, 0, 0, 128, 255, 0, 0, 128, 127}, float32(1), float32(0.9), float32(0.1),
		float32(0.5), 2, float32(1.1), float32(1), []byte{1, 2, 1, 2})
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8}, float32(0), float32(0), float32(0), float32(0), 0, float32(0), float32(0),
		[]byte{})
	f.Fuzz(func(t *testing.T, raw []byte, temp, topP, minP, typ float32, topK int, pen, dry float32, hist []byte) {
		var row []float32
		for len(raw) >= 4 {
			row = append(row, math.Float32frombits(binary.LittleEndian.Uint32(raw)))
			raw = raw[4:]
		}
		p := Params{Temp: temp, TopP: topP, MinP: minP, TypicalP: typ, TopK: topK, RepeatPenalty: pen, FrequencyPenalty: pen,
			DRY: DRYParams{Multiplier: dry, Base: pen, AllowedLength: topK}}
		s := New(p, len(row))
		for _, b := range hist {
			s.Accept(int32(int8(b)))
		}
		adjusted := slices.Clone(s.adjust(slices.Clone(row)))
		possible := Argmax(adjusted) >= 0
		c := slices.Clone(s.Probs(row))
		if (len(c) > 0) != possible {
			t.Fatalf("%d candidates from %v (%+v)", len(c), adjusted, p)
		}
		sum := 0.0
		for _, x := range c {
			sum += float64(x.P)
		}
		if possible && !(math.Abs(sum-1) < 1e-4) {
			t.Fatalf("probabilities add up to %v: %v (%+v)", sum, c, p)
		}
		id := s.Sample(row)
		if (id >= 0) != possible || int(id) >= len(row) || id < -1 {
			t.Fatalf("drew %d from %v (%+v)", id, adjusted, p)
		}
		if possible && !slices.ContainsFunc(c, func(x Candidate) bool { return x.ID == id }) {
			t.Fatalf("drew %d, not among %v (%+v)", id, c, p)
		}
	})
}

func BenchmarkSample(b *testing.B) {
	const vocab = 248320
	rng := rand.New(rand.NewPCG(15, 16))
	row := randomRow(rng, vocab, 2.5)
	for i := range 20 {
		row[rng.IntN(vocab)] += 12 - float32(i)/2
	}
	hist := make([]int32, 4096)
	for i := range hist {
		hist[i] = int32(rng.IntN(2000))
	}
	for _, tc := range []struct {
		name string
		p    Params
	}{
		{"greedy", Params{}},
		{"temp", Params{Temp: 1}},
		{"topk40", Params{Temp: 1, TopK: 40}},
		{"default", Params{Temp: 0.8, TopK: 40, TopP: 0.95, MinP: 0.05}},
		{"topp", Params{Temp: 1, TopP: 0.95}},
		{"minp", Params{Temp: 1, MinP: 0.05}},
		{"typical", Params{Temp: 1, TypicalP: 0.9}},
		{"penalties", Params{RepeatPenalty: 1.1, PresencePenalty: 1, RepeatLastN: -1}},
		{"dry4096", Params{DRY: DRYParams{Multiplier: 0.8, LastN: 4096}}},
	} {
		b.Run(tc.name, func(b *testing.B) {
			s := New(tc.p, vocab)
			s.Prime(hist)
			x := slices.Clone(row)
			b.ReportAllocs()
			for b.Loop() {
				s.Sample(x)
			}
		})
	}
}

// TestArgmax: the largest, the lowest among equals, whatever the length and whatever is not a number.
func TestArgmax(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	for n := range 40 {
		for range 50 {
			x := make([]float32, n)
			for i := range x {
				x[i] = []float32{nan, -inf, inf, -1, 0, 1, 2, 3}[r.IntN(2+r.IntN(7))]
			}
			want := int32(-1)
			for i, v := range x {
				if v > -inf && (want < 0 || v > x[want]) {
					want = int32(i)
				}
			}
			if got := Argmax(x); got != want {
				t.Fatalf("%v: %d, want %d", x, got, want)
			}
		}
	}
}
