package cache

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/quant"
)

// sight is a memory whose plans are read as a device would read them.
type sight struct {
	t    *testing.T
	what string
	m    *Memory
	devs []*bookDevice
	want map[*Seq][]int // what each sequence remembers
	last int            // token
}

// row is one row of a pass, in words.
type row struct {
	seq     *Seq
	pos     int
	token   int
	inPass  []int // tokens of the pass that it may see, itself included, by position
	at      []int // and their positions
	limited bool  // it sees the window of Limit
	looks   bool  // it is no token, it only looks
}

// sees is what a row may see in a group, in order.
func (s *sight) sees(r *row, g *group) (out []int) {
	from := 0
	if g.window > 0 {
		from = r.pos + 1 - g.window
	}
	gap := [2]int{} // positions that Limit hides, in whole pages
	if r.limited && g.window == 0 && r.seq.window > 0 {
		gap[0] = (r.seq.kept + 63) / 64 * 64
		gap[1] = max(0, r.pos+1-r.seq.window) / 64 * 64
	}
	for i, token := range s.want[r.seq] {
		if i >= from && (i < gap[0] || i >= gap[1]) {
			out = append(out, token)
		}
	}
	for i, token := range r.inPass {
		if r.at[i] >= from {
			out = append(out, token)
		}
	}
	return out
}

// check reads the rows of one plan: where each is written, and what it sees.
func (s *sight) check(g *group, p *backend.KVPlan, rows []*row) {
	t := s.t
	t.Helper()
	pages := g.pool.(*bookPages)
	if len(p.Seg) != len(rows) || len(p.Slot) != len(rows) || p.Pool != g.pool ||
		p.Extra != nil && len(p.Extra) != len(rows) {
		t.Fatalf("%s: a plan of %d rows, want %d", s.what, len(p.Seg), len(rows))
	}
	for i, r := range rows {
		if slot := int(p.Slot[i]); !r.looks {
			pages.pages[p.Tables[p.Seg[i]][slot/PageTokens]][slot%PageTokens] = r.token
		}
	}
	for i, r := range rows {
		table := p.Tables[p.Seg[i]]
		var slots []int32
		for slot := p.Lo[i]; slot < p.Hi[i]; slot++ {
			slots = append(slots, slot)
		}
		if p.Extra != nil {
			slots = append(slots, p.Extra[i]...)
		}
		var got []int
		for _, slot := range slots {
			page := table[slot/PageTokens]
			if page < 0 {
				t.Fatalf("%s: row %d sees a page that was dropped", s.what, i)
			}
			got = append(got, pages.pages[page][slot%PageTokens])
		}
		if want := s.sees(r, g); !slices.Equal(got, want) {
			t.Fatalf("%s: row %d at %d of %d tokens, window %d, limit %d %d: it sees\n%v\nwant\n%v", s.what, i, r.pos,
				len(s.want[r.seq]), g.window, r.seq.kept, r.seq.window, got, want)
		}
	}
}

// tokens are new ones.
func (s *sight) tokens(n int) (out []int) {
	for range n {
		s.last++
		out = append(out, s.last)
	}
	return out
}

// pass runs segments and keeps a path of each.
func (s *sight) pass(segs []Segment, paths [][]int32) {
	t := s.t
	t.Helper()
	b, err := s.m.Begin(segs)
	if err != nil {
		t.Fatalf("%s: %v", s.what, err)
	}
	var rows []*row
	tokens := make([][]int, len(segs))
	for i := range segs {
		g := &segs[i]
		tokens[i] = s.tokens(g.Rows)
		for r := range g.Rows {
			x := &row{seq: g.Seq, token: tokens[i][r], limited: !g.Prompt && g.Block == nil}
			for a := r; a >= 0; {
				x.inPass = append([]int{tokens[i][a]}, x.inPass...)
				if a--; g.Parents != nil {
					a = int(g.Parents[a+1])
				}
			}
			x.pos = g.Seq.Len() + len(x.inPass) - 1
			for k := range x.inPass {
				x.at = append(x.at, g.Seq.Len()+k)
			}
			rows = append(rows, x)
			if b.Pos[len(rows)-1] != int32(x.pos) {
				t.Fatalf("%s: row %d is at %d, want %d", s.what, len(rows)-1, b.Pos[len(rows)-1], x.pos)
			}
		}
	}
	for gi, g := range s.m.groups {
		at, rows := 0, slices.Clone(rows)
		for i := range segs { // the rows of an image see each other in a window, the rows of a block everywhere
			for _, image := range segs[i].Images {
				for r := image[0]; r < image[1] && g.window > 0; r++ {
					x, last := rows[at+r], rows[at+image[1]-1]
					rows[at+r] = &row{seq: x.seq, pos: x.pos, token: x.token, inPass: tokens[i][:image[1]], at: last.at}
				}
			}
			if n := segs[i].Rows; segs[i].Block != nil && segs[i].Block[gi] {
				last := rows[at+n-1]
				for k, x := range rows[at:][:n] {
					rows[at+k] = &row{seq: x.seq, pos: x.pos, token: x.token, inPass: tokens[i], at: last.at}
				}
			}
			at += segs[i].Rows
		}
		s.check(g, &b.Plans[g.device].KV[s.m.Place(slices.IndexFunc(s.m.spec.Layers, func(l Layer) bool {
			return l.Device == g.device && l.Window == g.window
		})).Group], rows)
	}
	for i, y := range s.m.states {
		at := 0
		for k, d := range b.Plans[y.device].Delta {
			if g := segs[k]; d.Row != at || d.N != g.Rows || d.Slot != g.Seq.slots[i] || d.Pending != g.Seq.pending ||
				d.Prompt != g.Prompt || !slices.Equal(d.Parents, g.Parents) {
				t.Fatalf("%s: segment %d of the states is %+v", s.what, k, d)
			}
			at += segs[k].Rows
		}
	}
	b.Done()
	for i, g := range segs {
		for k, y := range s.m.states {
			s.devs[y.device].states.tape[g.Seq.slots[k]] = slices.Clone(tokens[i])
		}
		if err := g.Seq.Commit(paths[i]); err != nil {
			t.Fatalf("%s: %v", s.what, err)
		}
		for _, r := range paths[i] {
			s.want[g.Seq] = append(s.want[g.Seq], tokens[i][r])
		}
	}
}

// steps runs rows of sequences one after the other, the longest first, or only looks at what they remember. Of trees it
// keeps the path to the last row.
func (s *sight) steps(segs []Segment, looks bool) {
	t := s.t
	t.Helper()
	slices.SortStableFunc(segs, func(a, b Segment) int { return int(slices.Max(depths(&b)) - slices.Max(depths(&a))) })
	var b *Batch
	var err error
	if looks {
		b, err = s.m.Look(segs, len(s.devs)-1)
	} else {
		b, err = s.m.BeginSteps(segs)
	}
	if err != nil {
		t.Fatalf("%s: %v", s.what, err)
	}
	tokens, at, of := make([][]int, len(segs)), 0, map[int]int{}
	for i := range segs {
		tokens[i] = s.tokens(segs[i].Rows)
	}
	paths := make([][]int32, len(segs))
	deepest := slices.Max(depths(&segs[0]))
	for step := range int(deepest) + 1 {
		var rows []*row
		for i, g := range segs {
			for r, depth := range depths(&g) {
				if int(depth) != step {
					continue
				}
				n := g.Seq.Len()
				x := &row{seq: g.Seq, pos: n, looks: looks}
				paths[i] = chain(r + 1)
				if g.Parents != nil {
					paths[i] = nil
					for a := int32(r); a >= 0; a = g.Parents[a] {
						paths[i] = append([]int32{a}, paths[i]...)
					}
				}
				if !looks {
					x.pos, x.token = n+step, tokens[i][r]
					for k, a := range paths[i] {
						x.at, x.inPass = append(x.at, n+k), append(x.inPass, tokens[i][a])
					}
				}
				if b.Pos[at] != int32(x.pos) {
					t.Fatalf("%s: step %d is at %d, want %d", s.what, step, b.Pos[at], x.pos)
				}
				rows = append(rows, x)
				at++
			}
		}
		if b.Steps[step] != len(rows) {
			t.Fatalf("%s: step %d has %d rows, want %d", s.what, step, b.Steps[step], len(rows))
		}
		for _, g := range s.m.groups {
			plans := b.Plans
			if device := g.device; looks && device != len(s.devs)-1 {
				continue
			} else if !looks {
				plans = b.Plans[device:]
			}
			s.check(g, &plans[0].KV[of[g.device]], rows)
			of[g.device]++
		}
	}
	if len(b.Pos) != at || len(b.Steps) != int(deepest)+1 {
		t.Fatalf("%s: %d rows in %d steps", s.what, len(b.Pos), len(b.Steps))
	}
	if looks {
		if len(b.Plans) != 1 {
			t.Fatalf("%s: plans of %d devices", s.what, len(b.Plans))
		}
		return
	}
	b.Done()
	for i, g := range segs {
		if err := g.Seq.Commit(paths[i]); err != nil {
			t.Fatal(err)
		}
		for _, r := range paths[i] {
			s.want[g.Seq] = append(s.want[g.Seq], tokens[i][r])
		}
	}
}

// TestRowsSeeWhatTheyMay: in passes of chains, trees, prompts and blocks of several sequences, with windows and limits,
// on one device and on two, every row sees its own sequence's tokens before it, its ancestors and itself, in order, and
// nothing else.
func TestRowsSeeWhatTheyMay(t *testing.T) {
	dims := backend.KVDims{Heads: 1, KeyDim: 8, ValueDim: 8, Key: quant.F16, Value: quant.F16}
	delta := backend.DeltaDims{KHeads: 1, VHeads: 1, KDim: 4, VDim: 4, Kernel: 4}
	for name, spec := range map[string]Spec{
		"one device": {Layers: []Layer{{KVDims: dims}, {KVDims: dims, Window: 100}, {KVDims: dims, Window: 40}}},
		"two devices": {Layers: []Layer{{KVDims: dims}, {KVDims: dims, Window: 70, Device: 1}, {KVDims: dims, Device: 1},
			{KVDims: dims}, {KVDims: dims, Window: 70}}},
		"states": {Layers: []Layer{{KVDims: dims}}, Recurrent: []int{0, 1}, Delta: delta},
	} {
		for seed := range uint64(12) {
			r := rand.New(rand.NewPCG(seed, 81))
			s := &sight{t: t, devs: []*bookDevice{{}, {}}, want: map[*Seq][]int{}}
			if name == "one device" {
				s.devs = s.devs[:1]
			}
			var devices []backend.Backend
			for _, d := range s.devs {
				devices = append(devices, d)
			}
			var err error
			if s.m, err = New(devices, spec); err != nil {
				t.Fatal(err)
			}
			var seqs []*Seq
			for range 3 {
				q := s.m.NewSeq()
				if seqs = append(seqs, q); r.IntN(2) == 0 && name != "states" {
					q.Limit(r.IntN(80), 16+r.IntN(200)) // more than a pass that is not a prompt has rows
				}
			}
			for step := range 40 {
				s.what = fmt.Sprintf("%s, seed %d, step %d", name, seed, step)
				r.Shuffle(len(seqs), func(i, k int) { seqs[i], seqs[k] = seqs[k], seqs[i] })
				var segs []Segment
				var paths [][]int32
				for _, q := range seqs[:1+r.IntN(3)] {
					g, path := Segment{Seq: q, Rows: 1 + r.IntN(9)}, []int32(nil)
					switch r.IntN(4) {
					case 0:
						g.Rows, g.Prompt = 1+r.IntN(90), true
						if path = chain(g.Rows); r.IntN(2) == 0 { // two images, one behind the other
							at := r.IntN(g.Rows + 1)
							g.Images = [][2]int{{r.IntN(at + 1), at}, {at, at + r.IntN(g.Rows-at+1)}}
						}
					case 1:
						path = chain(r.IntN(g.Rows + 1))
					case 2:
						g.Rows, g.Parents = 6, []int32{-1, 0, 0, 2, -1, 3}
						path = [][]int32{{0, 2, 3, 5}, {4}, {0, 1}, {}}[r.IntN(4)]
					case 3:
						if g.Block = make([]bool, len(s.m.groups)); name != "states" {
							for i := range g.Block {
								g.Block[i] = r.IntN(2) == 0
							}
						}
					}
					segs, paths = append(segs, g), append(paths, path)
				}
				switch op := r.IntN(6); {
				case op == 0 && name != "states":
					for i := range segs {
						segs[i] = Segment{Seq: segs[i].Seq, Rows: segs[i].Rows%9 + 1}
						if r.IntN(2) == 0 {
							segs[i].Rows, segs[i].Parents = 7, []int32{-1, 0, 0, 1, 2, 1, 4}
						}
					}
					s.steps(segs, r.IntN(2) == 0)
				default:
					s.pass(segs, paths)
				}
			}
			for _, q := range seqs {
				q.Close()
			}
			if s.m.UsedBytes() != 0 {
				t.Fatalf("%s: %d bytes are in use", s.what, s.m.UsedBytes())
			}
		}
	}
}
