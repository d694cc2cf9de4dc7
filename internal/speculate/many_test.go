package speculate

import (
	"testing"
	"time"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/cache"
	"strobe/internal/draft"
	"strobe/internal/model"
)

// dear is a drafter that is always wrong and takes its time.
type dear struct {
	*scripted
	b                *metered
	drafts, extended int
}

func (d *dear) Draft(reqs []draft.Request, top int) ([]draft.Proposal, error) {
	rows := 0
	for _, r := range reqs {
		rows += r.N + 1
	}
	d.drafts++
	d.b.takes("draft", float64(rows))
	return d.scripted.Draft(reqs, top)
}

func (d *dear) Extend(features backend.Tensor, items []draft.Rows) error {
	rows := 0
	for _, it := range items {
		rows += len(it.Rows)
	}
	d.extended += rows
	d.b.takes("extend", float64(rows))
	return d.scripted.Extend(features, items)
}

// TestManyStreamsArePlain: 32 streams of a drafter that cannot pay are as fast as without it. Once that is known, it
// follows next to none of what they say, and drafts next to never.
func TestManyStreamsArePlain(t *testing.T) {
	const n, length, rounds = 32, 96, 700
	b := &metered{Backend: cpu.New(cpu.Options{}), opening: "target", owner: map[backend.KVPool]string{}}
	defer b.Close()
	m, err := model.Open(open(t, "qwen3/model.gguf"), b, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	wrong := func(_ int, _ int32, n int) [][]draft.Candidate { return sure(make([]int32, n)...) }
	took := map[string]time.Duration{}
	d := &dear{scripted: script(t, m, wrong), b: b}
	for _, mode := range []string{Off, Auto} {
		r, err := NewRunner(m, d)
		if err != nil {
			t.Fatal(err)
		}
		r.clock = func() time.Time { return time.Unix(0, 0).Add(b.now) }
		var streams []*Stream
		var contexts [][]draft.Context
		begin := func(i int, max int) {
			contexts[i] = r.NewContexts()
			streams[i], err = r.NewStream(Config{Options: Options{Draft: mode}, Seq: m.NewSeq(), Contexts: contexts[i],
				Prompt: prompt(3 + i%8), Sampler: greedy{}, Max: max, Emit: func(Token) bool { return true }})
			if err != nil {
				t.Fatal(err)
			}
		}
		end := func(i int) {
			streams[i].Close()
			streams[i].seq.Close()
			CloseContexts(contexts[i])
		}
		streams, contexts = make([]*Stream, n), make([][]draft.Context, n)
		for i := range streams {
			begin(i, 1+length*(i+1)/n) // they end one by one
		}
		for round := range 2 * rounds {
			if round == rounds {
				took[mode], d.drafts, d.extended = b.now, 0, 0
			}
			if err := r.Step(streams, model.MaxRows); err != nil {
				t.Fatal(err)
			}
			for i, s := range streams {
				if s.Done() {
					end(i)
					begin(i, length)
				}
			}
		}
		took[mode] = b.now - took[mode]
		for i := range streams {
			end(i)
		}
	}
	ratio := took[Auto].Seconds() / took[Off].Seconds()
	t.Logf("%d drafts, %d tokens extended, %.4f of the time of plain decoding", d.drafts, d.extended, ratio)
	if d.extended > n*rounds/20 || d.drafts > rounds/50 || ratio > 1.005 {
		t.Errorf("%d tokens extended of %d and %d drafts in %d rounds: %.4f of the time of plain decoding", d.extended,
			n*rounds, d.drafts, rounds, ratio)
	}
}

// TestBeginsInTheMiddle: a drafter that does not know the beginning of a text gets all that follows, is asked
// once it knows some of it, and changes no token.
func TestBeginsInTheMiddle(t *testing.T) {
	const known = 20
	m := target(t, "qwen35")
	in := prompt(40)
	want := plain(t, m, greedy{}, in, 40)
	guess, first := along(in, want.out, nil), -1
	d := record(t, m, func(pos int, last int32, n int) [][]draft.Candidate {
		if first < 0 {
			first = pos
		}
		return guess(known+pos, last, n)
	})
	r := runner(t, m, d)
	begun := start(t, r, Options{Draft: Off}, greedy{}, in[:known], 1)
	finish(t, r, 16, begun)
	f := &flow{in: in, draftSeq: d.NewContext().(*cache.Seq)}
	var err error
	f.Stream, err = r.NewStream(Config{Options: chain, Seq: begun.seq, Contexts: []draft.Context{f.draftSeq, nil},
		Known: in[:known], Prompt: in[known:], Sampler: greedy{}, Max: 40,
		Emit: func(tok Token) bool { f.out = append(f.out, tok.ID); return true }})
	if err != nil {
		t.Fatal(err)
	}
	finish(t, r, 16, f)
	same(t, f.out, want.out)
	if first < warmUp || first > warmUp+1 || f.Stats().Accepted == 0 {
		t.Errorf("asked after %d tokens, %d guesses accepted", first, f.Stats().Accepted)
	}
	width := len(d.layers) * m.Hidden
	if got := d.rows[f.draftSeq]; !sameBits(got, plainRows(t, m, d.layers, f.text())[known*width:]) {
		t.Errorf("%d tokens extended are not the %d after the beginning", len(got)/width, f.seq.Len()-known)
	}
}
