package modeltest

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/backend/cpu/kernel"
	"strobe/internal/backend/cuda/emulate"
	"strobe/internal/backend/gpu"
	"strobe/internal/backend/vulkan"
	"strobe/internal/cache"
	"strobe/internal/draft"
	"strobe/internal/draft/dflash"
	"strobe/internal/draft/eagle3"
	"strobe/internal/draft/mtp"
	"strobe/internal/draft/ngram"
	"strobe/internal/gguf"
	"strobe/internal/model"
	"strobe/internal/quant"
	"strobe/internal/sample"
	"strobe/internal/speculate"
	"strobe/internal/testkit"
)

var (
	seeds = flag.Uint64("random.seeds", 30, "how many models TestRandom makes up")
	first = flag.Uint64("random.first", 0, "the seed of the first of them")
	on    = flag.String("random.on", "", "cuda (emulated) or vulkan instead of the processor")
)

// TestRandom: models of random dimensions, types and weights keep the laws that need no golden numbers. More of them
// are tried by hand:
//
//	go test ./internal/testkit/modeltest -run TestRandom -random.first 1000 -random.seeds 500 -timeout 0
func TestRandom(t *testing.T) {
	b := device(t)
	for seed := *first; seed < *first+*seeds; seed++ {
		t.Run(fmt.Sprintf("%d-%s", seed, drawn[seed%uint64(len(drawn))]), func(t *testing.T) { laws(t, b, seed) })
	}
}

// device opens the GPU that is asked for, nil for the processor.
func device(t *testing.T) backend.Backend {
	var d gpu.Driver
	switch *on {
	case "":
		return nil
	case "cuda":
		d = emulate.Open(t)
	case "vulkan":
		v, err := vulkan.Open(0, vulkan.Options{})
		if err != nil {
			t.Fatal(err)
		}
		d = v
	}
	b, err := gpu.New(d)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// laws checks everything that holds for one model, on the processor or another device.
func laws(t *testing.T, b backend.Backend, seed uint64) {
	d := draw(t, seed)
	f := File(t, d.target.Write(t))
	levels := kernel.Available()
	if len(levels) > 1 && d.values > 100_000 {
		levels = levels[1:] // plain Go is slow
	}
	one, other := backend.Backend(exact{b}), b
	d.slow = b != nil
	t.Run("reference", func(t *testing.T) { d.reference(t, f, b) })
	if b == nil {
		defer kernel.Set(pick(d, levels...))()
		x, y := cpu.New(cpu.Options{Threads: 1}), cpu.New(cpu.Options{Threads: d.from(1, 3)})
		t.Cleanup(func() { x.Close(); y.Close() })
		one, other = x, y
	}
	kv, err := cache.ParseTypes("", "", "", strings.Join(d.kv, ","))
	if err != nil {
		t.Fatal(err)
	}
	open := func(opt model.Options, b backend.Backend, more ...backend.Backend) *model.Model {
		opt.KV = kv
		m, err := model.Open(f, b, opt, more...)
		d.opened(t, err)
		return m
	}
	place, experts := make([]int, d.layers), make([]int, d.layers)
	for i := range place {
		place[i], experts[i] = d.IntN(2), d.IntN(2)
	}
	clean := open(model.Options{}, one)
	whole := open(model.Options{}, testkit.NewDevice(t, other))
	at := model.Options{Place: func(i int) int { return place[i] }, Experts: func(i int) int { return experts[i] }}
	apart := open(at, testkit.NewDevice(t, one), testkit.NewDevice(t, other))
	t.Run("batches", func(t *testing.T) { d.script(t, whole).check(t, clean, d.budget(2, 6)) })
	t.Run("devices", func(t *testing.T) { d.script(t, apart).check(t, clean, d.budget(2, 6)) })
	t.Run("drafts", func(t *testing.T) { d.drafts(t, clean, whole, other) })
	t.Run("eagle", func(t *testing.T) { d.eagleReference(t, f, one) })
	t.Run("text", func(t *testing.T) { d.text(t, pick(d, whole, apart)) })
}

func (d *drawing) tokens(n int) []int32 {
	v := make([]int32, n)
	for i := range v {
		v[i] = int32(d.IntN(d.vocab))
	}
	return v
}

// budget is a number of tokens between two, fewer where the model is large or the device slow.
func (d *drawing) budget(least, most int) int {
	if d.slow {
		return min(least, 10)
	}
	return min(most, max(least, 20_000_000/d.values))
}

// length is such a number of tokens. Small models may get several blocks of attention.
func (d *drawing) length(least, most int) int {
	if !d.slow && d.values < 50_000 && d.odds(4) {
		return 5 * most
	}
	return d.budget(least, most)
}

// reference compares the logits of devices with those in float64, on all instruction sets of the processor.
func (d *drawing) reference(t *testing.T, f *gguf.File, b backend.Backend) {
	bound := 1e-4
	if !d.exact {
		if bound = 0.04; d.routed() { // where a rounded row may choose another expert
			return
		}
	}
	in := d.tokens(d.budget(3, 12))
	want := Reference(t, f, in)
	compare := func(b backend.Backend) {
		m, err := model.Open(f, b, model.Options{KV: cache.Uniform(quant.F32)})
		d.opened(t, err)
		out := Forward(t, m, model.Segment{Seq: m.NewSeq(), Tokens: in, Logits: model.LogitsAll})
		if e := testkit.RelL2(b.Read(out.Logits), want); !(e <= bound) {
			t.Errorf("%s: logits differ by %.2e, want at most %.0e", b.Name(), e, bound)
		}
	}
	if b != nil {
		compare(b)
		return
	}
	for _, level := range kernel.Available() {
		restore := kernel.Set(level)
		b := cpu.New(cpu.Options{Threads: 2})
		compare(b)
		b.Close()
		restore()
	}
}

// routed reports whether the target chooses among experts.
func (d *drawing) routed() bool {
	return slices.ContainsFunc(d.target.Tensors, func(x *gguf.Tensor) bool {
		return strings.HasSuffix(x.Name, "ffn_gate_inp.weight") && x.Shape[1] > 1
	})
}

// seen is what a pass said of a token after those before it.
type seen struct {
	logits, features []float32
	best             int32
	greedy           bool
}

// opened: the processor runs everything; other devices may refuse some sizes.
func (d *drawing) opened(t *testing.T, err error) {
	t.Helper()
	if err != nil && d.slow {
		t.Skipf("needs a device that runs models of this size; this one says: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// script is what a model said in passes of all kinds, by the tokens up to each row.
type script struct {
	rows         map[string][]seen
	ends         [][]int32 // texts that hold many of the rows
	capture      []int
	prompt       int // tokens, where generated ones do not see everything
	keep, window int
}

// name is the key of a text.
func name(tokens []int32) string {
	b := make([]byte, 0, 4*len(tokens))
	for _, id := range tokens {
		b = binary.LittleEndian.AppendUint32(b, uint32(id))
	}
	return string(b)
}

// walker is a sequence of a script with the tokens it has committed.
type walker struct {
	seq  *cache.Seq
	text []int32
}

// script runs chains, trees and prompts of several sequences in shared batches, of which it keeps random parts; it
// forks, cuts, saves and restores the sequences, and notes what was said of every row.
func (d *drawing) script(t *testing.T, m *model.Model) *script {
	s := &script{rows: map[string][]seen{}}
	for range d.from(1, 3) {
		s.capture = append(s.capture, d.from(-1, d.layers-1))
	}
	if err := m.Capture(s.capture); err != nil {
		t.Fatal(err)
	}
	most := d.length(24, 150)
	if d.odds(4) {
		most = max(most, d.budget(24, 3*cache.PageTokens)) // pages of which something is hidden
		s.prompt, s.keep, s.window = d.from(1, most/2), pick(d, 0, 0, d.from(1, 70)), d.from(1, 40)
	}
	start := func(seq *cache.Seq, text []int32) walker {
		seq.Limit(s.keep, s.window)
		return walker{seq, slices.Clone(text)}
	}
	ws := []walker{start(m.NewSeq(), nil)}
	for steps := 0; steps < d.budget(6, 25) && len(ws) > 0; steps++ {
		var segs []model.Segment
		var chosen []int
		for i, w := range ws {
			if len(w.text) < most && (len(chosen) == 0 || d.odds(2)) {
				segs, chosen = append(segs, d.segment(s, w)), append(chosen, i)
			}
		}
		if len(segs) == 0 {
			break
		}
		order := d.Perm(len(segs))
		mixed := make([]model.Segment, len(segs))
		for i, at := range order {
			mixed[i] = segs[at]
		}
		s.note(d, Forward(t, m, mixed...), m, mixed, func(i int) []int32 { return ws[chosen[order[i]]].text })
		for i, at := range order {
			w := &ws[chosen[at]]
			w.commit(t, d, &mixed[i])
		}
		ws = d.change(t, m, s, ws, start)
	}
	for _, w := range ws {
		s.ends = append(s.ends, w.text)
		w.seq.Close()
	}
	mem := m.Memory()
	for g := range mem.Groups() {
		if n := mem.Pool(g).Used(); n != 0 {
			t.Errorf("%d pages leaked", n)
		}
	}
	return s
}

// segment draws what comes next in a sequence.
func (d *drawing) segment(s *script, w walker) model.Segment {
	seg := model.Segment{Seq: w.seq, Logits: model.LogitRows(d.IntN(3)), Want: sample.Want(d.IntN(4))}
	n := d.from(1, 12)
	if left := s.prompt - len(w.text); left > 0 {
		seg.Prompt, n = true, d.from(1, left)
	} else if s.prompt == 0 && d.odds(3) {
		seg.Prompt = true
		if d.odds(3) {
			n = d.from(1, d.length(30, 80))
		}
	}
	if seg.Tokens = d.tokens(n); !seg.Prompt && d.odds(2) {
		for i := range n {
			seg.Parents = append(seg.Parents, int32(d.from(-1, i-1)))
		}
	}
	return seg
}

// path is the rows that lead to one.
func path(seg *model.Segment, to int) (rows []int32) {
	for at := int32(to); at >= 0; {
		rows = append(rows, at)
		if seg.Parents == nil {
			at--
		} else {
			at = seg.Parents[at]
		}
	}
	slices.Reverse(rows)
	return rows
}

// note keeps what a pass said.
func (s *script) note(d *drawing, out *model.Output, m *model.Model, segs []model.Segment, text func(i int) []int32) {
	features := slices.Clone(m.Backend().Read(out.Features))
	for i := range segs {
		g := &segs[i]
		for r := range g.Tokens {
			full := slices.Clone(text(i))
			for _, at := range path(g, r) {
				full = append(full, g.Tokens[at])
			}
			x := seen{features: features[out.FeatureRow(i, r)*out.Features.Cols:][:out.Features.Cols]}
			at := r
			if g.Logits == model.LogitsLast {
				at = 0
			}
			if g.Logits == model.LogitsAll || g.Logits == model.LogitsLast && r == len(g.Tokens)-1 {
				x.logits = slices.Clone(out.Row(i, at))
				if c := out.Candidates(i, at); c != nil && c.Len() > 0 {
					x.best, x.greedy = c.IDs()[0], true
				} else if out.Chosen() == sample.WantBest {
					x.best, x.greedy = out.Best(i, at), true
				}
			}
			key := name(full)
			s.rows[key] = append(s.rows[key], x)
			if r == len(g.Tokens)-1 && d.odds(4) {
				s.ends = append(s.ends, full)
			}
		}
	}
}

// commit keeps a part of a segment.
func (w *walker) commit(t *testing.T, d *drawing, g *model.Segment) {
	n := len(g.Tokens)
	rows := path(g, d.from(-1, n-1))
	if g.Prompt {
		rows = path(g, n-1)
	}
	if err := w.seq.Commit(rows); err != nil {
		t.Fatal(err)
	}
	for _, at := range rows {
		w.text = append(w.text, g.Tokens[at])
	}
}

// change does something to the sequences that no later row may notice.
func (d *drawing) change(t *testing.T, m *model.Model, s *script, ws []walker,
	start func(*cache.Seq, []int32) walker) []walker {
	i := d.IntN(len(ws))
	w := &ws[i]
	switch d.IntN(8) {
	case 0:
		f, err := w.seq.Fork()
		if err != nil {
			t.Fatal(err)
		}
		ws = append(ws, start(f, w.text))
	case 1:
		var saved bytes.Buffer
		if _, err := w.seq.WriteTo(&saved); err != nil {
			t.Fatal(err)
		}
		if n := w.seq.SavedBytes(); int64(saved.Len()) != n {
			t.Errorf("saved %d bytes, said %d", saved.Len(), n)
		}
		back, err := m.Memory().ReadSeq(&saved)
		if err != nil {
			t.Fatal(err)
		}
		if text := w.text; d.odds(2) {
			w.seq.Close()
			*w = start(back, text)
		} else {
			ws = append(ws, start(back, text))
		}
	case 2:
		w.seq.Pack()
	case 3:
		if n := d.from(0, len(w.text)); w.seq.CanCut(n) {
			s.ends = append(s.ends, slices.Clone(w.text))
			if err := w.seq.Truncate(n); err != nil {
				t.Fatal(err)
			}
			w.text = w.text[:n]
		}
	case 4:
		ws = append(ws, start(m.NewSeq(), nil))
	case 5:
		if len(ws) > 3 {
			s.ends = append(s.ends, w.text)
			w.seq.Close()
			ws = slices.Delete(ws, i, i+1)
		}
	}
	return ws
}

// check runs the longest texts one token at a time: whatever was said of their tokens has the same bits.
func (s *script) check(t *testing.T, m *model.Model, most int) {
	if err := m.Capture(s.capture); err != nil {
		t.Fatal(err)
	}
	checked, wrong := 0, 0
	slices.SortStableFunc(s.ends, func(a, b []int32) int { return len(b) - len(a) })
	for _, text := range s.ends[:min(len(s.ends), most)] {
		seq := m.NewSeq()
		seq.Limit(s.keep, s.window)
		for i := range text {
			out := Forward(t, m, model.Segment{Seq: seq, Tokens: text[i : i+1], Logits: model.LogitsAll, Prompt: i < s.prompt,
				Want: sample.WantBest})
			best := out.Best(0, 0)
			logits, features := out.Row(0, 0), m.Backend().Read(out.Features)
			for _, x := range s.rows[name(text[:i+1])] {
				checked++
				switch {
				case x.logits != nil && !SameBits(x.logits, logits):
					t.Errorf("token %d: logits differ by %.1e", i, testkit.RelL2(x.logits, logits))
				case !SameBits(x.features, features):
					t.Errorf("token %d: features differ by %.1e", i, testkit.RelL2(x.features, features))
				case x.greedy && x.best != best:
					t.Errorf("token %d: the best is %d, alone %d", i, x.best, best)
				default:
					continue
				}
				if wrong++; wrong > 3 {
					t.FailNow()
				}
			}
			if err := seq.CommitAll(); err != nil {
				t.Fatal(err)
			}
		}
		seq.Close()
	}
	if checked == 0 {
		t.Error("nothing was compared")
	}
}

// sources opens what drafts for a model. A drafter that has to be where the target's keys are may not be.
func (d *drawing) sources(t *testing.T, m *model.Model, opt dflash.Options) (all []draft.Source) {
	t.Helper()
	x, err := dflash.Open(File(t, d.drafter.Write(t)), m, opt)
	d.opened(t, err)
	all = append(all, x)
	if d.eagle != nil {
		e, err := eagle3.Open(File(t, d.eagle.Write(t)), m, eagle3.Options{KV: opt.KV, Device: opt.Device})
		d.opened(t, err)
		all = append(all, e)
	}
	f := m.File()
	if d.assistant != nil {
		f = File(t, d.assistant.Write(t))
	}
	if mtp.InModel(f) || mtp.Supported(f) {
		y, err := mtp.Open(f, m, mtp.Options{KV: opt.KV, Device: opt.Device})
		switch {
		case err == nil:
			all = append(all, y)
		case !strings.Contains(err.Error(), "another device"):
			t.Fatal(err)
		}
	}
	return all
}

// drafts: what a source guesses has the same bits alone and beside others, told of tokens in any pieces, after forks
// and restores, and on other devices.
func (d *drawing) drafts(t *testing.T, clean, m *model.Model, other backend.Backend) {
	opt := dflash.Options{Causal: pick(d, dflash.CausalOn, dflash.CausalOff), Window: pick(d, 0, dflash.WindowOff, 30),
		KV: cache.Uniform(pick(d, quant.F32, quant.F16)), PMin: d.least}
	plain := d.sources(t, clean, opt)
	switch d.IntN(3) {
	case 0:
		opt.Device = other
	case 1:
		opt.Beside, opt.Layers = other, d.from(0, 2)
	}
	mixed := d.sources(t, m, opt)
	texts := make([][]int32, d.from(1, 4))
	for i := range texts {
		texts[i] = d.tokens(d.from(1, d.length(5, 100)))
	}
	for i := range min(len(plain), len(mixed)) {
		guesses, top := make([]int, len(texts)), d.from(1, min(5, d.vocab))
		for k := range guesses {
			guesses[k] = d.from(1, plain[i].Max())
		}
		var want []draft.Proposal
		for k, text := range texts {
			want = append(want, alone(t, clean, plain[i], text, guesses[k], top))
		}
		got := d.together(t, m, mixed[i], texts, guesses, top)
		for k, p := range got {
			if !sameGuess(p, want[k]) {
				t.Errorf("%s: %d guesses after %d tokens: %v, alone %v", plain[i].Name(), guesses[k], len(texts[k]), p.At,
					want[k].At)
			}
		}
	}
}

func sameGuess(a, b draft.Proposal) bool {
	same := func(x, y []draft.Candidate) bool {
		return slices.EqualFunc(x, y, func(x, y draft.Candidate) bool {
			return x.ID == y.ID && SameBits([]float32{x.LogP}, []float32{y.LogP})
		})
	}
	if !slices.EqualFunc(a.At, b.At, same) {
		return false
	}
	for i := 1; i < a.Len(); i++ {
		for _, c := range a.At[i-1] {
			if !same(a.After(i, c.ID), b.After(i, c.ID)) {
				return false
			}
		}
	}
	return true
}

// together drafts after several texts in one pass. They were told in random pieces.
func (d *drawing) together(t *testing.T, m *model.Model, s draft.Source, texts [][]int32, n []int,
	top int) []draft.Proposal {
	t.Helper()
	if err := m.Capture(s.Capture()); err != nil {
		t.Fatal(err)
	}
	reqs := make([]draft.Request, len(texts))
	for i, text := range texts {
		reqs[i] = draft.Request{Seq: s.NewContext(), Target: m.NewSeq(), Last: text[len(text)-1], N: n[i], Tree: n[i]%2 == 0}
	}
	for {
		var segs []model.Segment
		var rows []draft.Rows
		row := 0
		for i, text := range texts {
			r := &reqs[i]
			left := text[r.Target.Len() : len(text)-1]
			if len(left) == 0 {
				continue
			}
			left = left[:d.from(1, len(left))]
			segs = append(segs, model.Segment{Seq: r.Target, Tokens: left})
			rows = append(rows, draft.Rows{Seq: r.Seq, Tokens: left})
			for range left {
				at := &rows[len(rows)-1]
				at.Rows = append(at.Rows, int32(row))
				row++
			}
		}
		if len(segs) == 0 {
			break
		}
		out := Forward(t, m, segs...)
		for _, g := range segs {
			if err := g.Seq.CommitAll(); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Extend(out.Features, rows); err != nil {
			t.Fatal(err)
		}
		for i := range reqs {
			d.renew(t, &reqs[i])
		}
		if d.odds(2) { // which leaves nothing behind
			if _, err := s.Draft(reqs[:1], top); err != nil {
				t.Fatal(err)
			}
		}
	}
	ps, err := s.Draft(reqs, top)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range reqs {
		r.Seq.Close()
		r.Target.Close()
	}
	return ps
}

// renew puts a copy in the place of a context.
func (d *drawing) renew(t *testing.T, r *draft.Request) {
	t.Helper()
	seq := r.Seq.(*cache.Seq)
	var err error
	switch d.IntN(3) {
	case 0:
		r.Seq, err = seq.Fork()
	case 1:
		var saved bytes.Buffer
		if _, err = seq.WriteTo(&saved); err == nil {
			r.Seq, err = seq.Memory().ReadSeq(&saved)
		}
	default:
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	seq.Close()
}

// text: what several streams say beside each other is what each says alone and without drafts, whoever drafts, chains
// or trees, greedy or drawn.
func (d *drawing) text(t *testing.T, m *model.Model) {
	knows := &prophet{seed: d.Uint64(), vocab: m.Vocab}
	sources := append(d.sources(t, m, dflash.Options{}), ngram.Source{}, knows)
	prompts := make([][]int32, d.from(1, d.budget(2, 3)))
	for i := range prompts {
		prompts[i] = d.tokens(d.from(1, d.budget(4, 70)))
	}
	n := d.budget(4, 24)
	r, err := speculate.NewRunner(m, sources...)
	if err != nil {
		t.Fatal(err)
	}
	drawn := sample.Params{Temp: 0.8 + d.Float32(), Seed: 3}
	for _, p := range []sample.Params{{}, drawn, d.sampler()} {
		want := make([][]int32, len(prompts))
		knows.texts = nil
		for i := range prompts {
			want[i] = d.generate(t, m, r, prompts[i:i+1], n, p, speculate.Options{Draft: speculate.Off})[0]
			knows.texts = append(knows.texts, slices.Concat(prompts[i], want[i]))
		}
		modes := []speculate.Options{{Draft: speculate.Off}, {}, {Tree: speculate.TreeOff}}
		for _, s := range sources {
			modes = append(modes,
				speculate.Options{Draft: s.Name(), Fixed: true, Max: d.from(1, s.Max()), Tree: speculate.TreeOff},
				speculate.Options{Draft: s.Name(), Fixed: true, Tree: d.from(2, 20)})
		}
		d.Shuffle(len(modes), func(i, k int) { modes[i], modes[k] = modes[k], modes[i] })
		for _, o := range modes[:d.budget(2, 5)] {
			if got := d.generate(t, m, r, prompts, n, p, o); !slices.EqualFunc(got, want, slices.Equal) {
				t.Errorf("%+v, %+v: %v, want %v", p, o, got, want)
			}
		}
	}
}

// sampler draws how tokens are chosen.
func (d *drawing) sampler() sample.Params {
	var p sample.Params
	if d.odds(2) {
		p.Temp, p.Seed = 0.5+d.Float32(), d.Uint64()
	}
	if d.odds(2) {
		p.RepeatPenalty, p.RepeatLastN = pick(d, float32(1.3), 0.9), pick(d, 0, 3, -1)
	}
	if d.odds(2) {
		p.FrequencyPenalty, p.PresencePenalty = pick(d, float32(0.5), -0.5), pick(d, float32(0), 0.4)
	}
	if d.odds(2) {
		p.TopK, p.TopP, p.MinP = d.from(0, 9), 0.5+d.Float32(), d.Float32()/9
	}
	if d.odds(3) {
		p.DRY = sample.DRYParams{Multiplier: 0.8, AllowedLength: d.from(1, 3)}
	}
	if d.odds(3) {
		p.LogitBias = map[int32]float32{int32(d.IntN(d.vocab)): pick(d, float32(3), -3, float32(math.Inf(-1)))}
	}
	return p
}

// generate runs streams in shared passes.
func (d *drawing) generate(t *testing.T, m *model.Model, r *speculate.Runner, prompts [][]int32, n int, p sample.Params,
	o speculate.Options) [][]int32 {
	t.Helper()
	got := make([][]int32, len(prompts))
	var streams []*speculate.Stream
	for i, prompt := range prompts {
		seq, ctxs := m.NewSeq(), r.NewContexts()
		s, err := r.NewStream(speculate.Config{Options: o, Seq: seq, Contexts: ctxs, Prompt: prompt,
			Sampler: sample.New(p, m.Vocab), Max: n,
			Emit: func(t speculate.Token) bool { got[i] = append(got[i], t.ID); return true }})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := s.Stats().DraftErr; err != nil {
				t.Error(err)
			}
			s.Close()
			seq.Close()
			speculate.CloseContexts(ctxs)
		}()
		streams = append(streams, s)
	}
	for slices.ContainsFunc(streams, func(s *speculate.Stream) bool { return !s.Done() }) {
		if err := r.Step(streams, d.from(1, 64)); err != nil {
			t.Fatal(err)
		}
	}
	return got
}
