package engine

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"strobe/internal/draft/dflash"
	"strobe/internal/sample"
	"strobe/internal/speculate"
	"strobe/internal/testkit"
	"strobe/internal/testkit/edit"
)

// loadSeeing loads a golden model with an image encoder beside it.
func loadSeeing(t testing.TB, e *edit.File, opt Options) *Model {
	t.Helper()
	opt.Threads, opt.Causal = 1, dflash.CausalOff
	m, err := Load(e.WithImages(t), opt)
	if err != nil {
		t.Fatal(err)
	}
	if m.Vision == nil {
		t.Fatal("the image encoder beside the model was not found")
	}
	return m
}

// withImages is a prompt of text and images.
func withImages(t testing.TB, m *Model, seed uint64, rows int, files ...[]byte) Request {
	t.Helper()
	var list []ImageFile
	for _, f := range files {
		list = append(list, ImageFile{Data: f, Rows: rows})
	}
	images, err := m.Vision.Open(t.Context(), list, 0)
	if err != nil {
		t.Fatal(err)
	}
	tokens := randomPrompt(seed, 20)
	for i := range images {
		images[i].At = len(tokens)
		tokens = append(images[i].IDs(tokens), randomPrompt(seed+uint64(i)+1, 9)...)
	}
	return Request{Tokens: tokens, Images: images, MaxTokens: 24, IgnoreEOG: true}
}

// encodings counts images that are encoded.
func encodings(v *Vision) *int {
	n := new(int)
	v.began = func() { *n++ }
	return n
}

// TestImagesInEveryMode: what follows images is the same text whatever drafts, in chunks of any size, beside others and
// after a cached beginning; the drafters follow through the images.
func TestImagesInEveryMode(t *testing.T) {
	for _, c := range []struct {
		arch, drafter string
		file          *edit.File
	}{
		{"qwen35", "dflash-qwen35", edit.Golden(t, "qwen35")},
		{"qwen35 with a block", "none", edit.MTP(t, "qwen35")},
		{"gemma4", "dflash-gemma4", edit.Golden(t, "gemma4")},
		{"gemma4e", "none", edit.Golden(t, "gemma4e")},
	} {
		t.Run(c.arch, func(t *testing.T) {
			opt := Options{Drafter: c.drafter, MTP: strings.Contains(c.arch, "block")}
			if c.drafter != "none" {
				// Without a vocabulary, which would not be that of a model with tokens for images.
				opt.Drafter = edit.Golden(t, c.drafter).Set("tokenizer.ggml.tokens", nil).Write(t)
			}
			one, two := testkit.PNG(t, 50, 31, 1), testkit.PNG(t, 30, 70, 2)
			var want []int32
			for _, chunk := range []int{0, 7} {
				m := loadSeeing(t, c.file.Clone(), opt)
				e := startModel(t, m, Config{Chunk: chunk})
				req := withImages(t, m, 1, 30, one, two)
				req.NoCache, req.Spec = true, speculate.Options{Draft: speculate.Off}
				got := ids(generate(t, e, req).Tokens)
				if want == nil {
					want = got
				}
				if !slices.Equal(got, want) {
					t.Fatalf("chunks of %d: %v, want %v", chunk, got, want)
				}
				req.NoCache = false
				// A request may name any length; the memory of a part of an image is of no use.
				req.Checkpoints = []int{req.Images[0].At + 2, req.Images[1].At + 1}
				sources := []string{speculate.Auto, "ngram"}
				for _, d := range m.Drafters() {
					sources = append(sources, d.Name())
				}
				for _, source := range sources {
					for _, tree := range []int{speculate.TreeOff, 7} {
						req.Spec = speculate.Options{Draft: source, Tree: tree, Fixed: source != speculate.Auto, Max: 4}
						ev := generate(t, e, req)
						if got := ids(ev.Tokens); !slices.Equal(got, want) {
							t.Errorf("chunks of %d, %q, tree %d: %v, want %v", chunk, source, tree, got, want)
						}
						if err := ev.Result.Stats.DraftErr; err != nil {
							t.Errorf("%q: %v", source, err)
						}
					}
				}
				other := withImages(t, m, 5, 30, two)
				together(t, e, []Request{req, other, req, {Tokens: randomPrompt(9, 40), MaxTokens: 9}}, speculate.Options{},
					func(i int, ev Event) {
						if i%2 == 0 && !slices.Equal(ids(ev.Tokens), want) {
							t.Errorf("beside others: %v, want %v", ids(ev.Tokens), want)
						}
					})
			}
		})
	}
}

// TestImagesAreCached: an image is encoded once, a prompt that was read before needs no encoder at all, also after a
// restart; another image, another budget or another encoder is another text.
func TestImagesAreCached(t *testing.T) {
	for _, arch := range []string{"qwen35", "gemma4"} {
		t.Run(arch, func(t *testing.T) {
			dir := t.TempDir()
			file := edit.Golden(t, arch)
			path := file.WithImages(t)
			open := func() (*Engine, *int) {
				m, err := Load(path, Options{Threads: 1, Drafter: "none"})
				if err != nil {
					t.Fatal(err)
				}
				e := New(m, Config{CacheDir: dir, CacheMinTokens: 1})
				return e, encodings(m.Vision)
			}
			e, encoded := open()
			one, two := testkit.PNG(t, 50, 31, 1), testkit.PNG(t, 50, 31, 2)
			m := e.Model()
			req := withImages(t, m, 1, 0, one)
			first := generate(t, e, req)
			if *encoded != 1 || first.Result.Cached != 0 || first.Result.Prompt != len(req.Tokens) {
				t.Fatalf("%d encodings, %d of %d tokens cached", *encoded, first.Result.Cached, first.Result.Prompt)
			}
			// The next turn has the image again, after the same text.
			next := withImages(t, m, 1, 0, one)
			next.Tokens = slices.Concat(next.Tokens, ids(first.Tokens), randomPrompt(8, 6))
			second := generate(t, e, next)
			if n := second.Result.Cached; *encoded != 1 || n < len(req.Tokens)-tailGap {
				t.Errorf("%d encodings, %d of %d tokens cached in the second turn", *encoded, n, len(next.Tokens))
			}
			// The image after another text: its rows are known, the text is not.
			generate(t, e, withImages(t, m, 3, 0, one))
			if *encoded != 1 {
				t.Errorf("%d encodings of one image", *encoded)
			}
			others := map[string]Request{"image": withImages(t, m, 1, 0, two), "budget": withImages(t, m, 1, 9, one)}
			for what, r := range others {
				at := r.Images[0].At
				if common(r.Tokens, req.Tokens) > at {
					t.Errorf("another %s has the same tokens", what)
				}
				if ev := generate(t, e, r); ev.Result.Cached > at {
					t.Errorf("another %s: %d tokens cached, the image begins at %d", what, ev.Result.Cached, at)
				}
			}
			stop(t, e)
			e, encoded = open()
			defer stop(t, e)
			ev := generate(t, e, withImages(t, e.Model(), 1, 0, one))
			if n := ev.Result.Cached; *encoded != 0 || n < len(req.Tokens)-tailGap-1 ||
				!slices.Equal(ids(ev.Tokens), ids(first.Tokens)) {
				t.Errorf("after a restart: %d encodings, %d of %d tokens cached, %v, want %v", *encoded, n, len(req.Tokens),
					ids(ev.Tokens), ids(first.Tokens))
			}
		})
	}
}

// TestEncodingIsCancelled: a request that ends while its image is encoded ends the encoding, and so does Close; another
// request for the same image goes on.
func TestEncodingIsCancelled(t *testing.T) {
	m := loadSeeing(t, edit.Golden(t, "qwen35"), Options{Drafter: "none"})
	started, hold := make(chan struct{}, 1), make(chan struct{})
	m.Vision.began = func() { started <- struct{}{}; <-hold }
	e := startModel(t, m, Config{})
	req := withImages(t, m, 1, 0, testkit.PNG(t, 50, 31, 1))
	ctx, cancel := context.WithCancel(t.Context())
	a, err := e.Submit(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	b, err := e.Submit(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	<-started
	cancel()
	hold <- struct{}{}
	if ev, _ := a.Wait(t.Context()); ev.Result == nil || ev.Result.Reason != ReasonCancelled {
		t.Errorf("cancelled request: %+v", ev.Result)
	}
	if ev, err := b.Wait(t.Context()); err != nil || ev.Result.Err != nil || len(ev.Tokens) != 24 {
		t.Errorf("the other request: %v %+v", err, ev.Result)
	}
	c, err := e.Submit(t.Context(), withImages(t, m, 2, 0, testkit.PNG(t, 40, 44, 7)))
	if err != nil {
		t.Fatal(err)
	}
	<-started
	ended, end := context.WithCancel(t.Context())
	end()
	closed := make(chan error, 1)
	go func() { closed <- e.Close(ended) }()
	for abort := false; !abort; { // the loop waits for the encoder, which has done nothing yet
		time.Sleep(time.Millisecond)
		e.mu.Lock()
		abort = e.abort
		e.mu.Unlock()
	}
	hold <- struct{}{}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	select {
	case <-c.Done():
	case <-time.After(time.Minute):
		t.Error("a request outlives the engine")
	}
}

// TestImagesWithoutRoom: several images are encoded once each for a request, also where none is remembered.
func TestImagesWithoutRoom(t *testing.T) {
	m := loadSeeing(t, edit.Golden(t, "qwen35"), Options{Drafter: "none"})
	m.Vision.limit = 0
	encoded := encodings(m.Vision)
	e := startModel(t, m, Config{})
	req := withImages(t, m, 1, 0, testkit.PNG(t, 50, 31, 1), testkit.PNG(t, 40, 44, 7), testkit.PNG(t, 50, 31, 1))
	if generate(t, e, req); *encoded != 2 {
		t.Errorf("%d encodings of two images", *encoded)
	}
}

// TestPenaltiesSkipImages: rows of an image are no tokens that penalties look back at.
func TestPenaltiesSkipImages(t *testing.T) {
	m := loadSeeing(t, edit.Golden(t, "qwen35"), Options{Drafter: "none"})
	defer m.Close()
	req := withImages(t, m, 1, 0, testkit.PNG(t, 160, 130, 1))
	if n := req.Images[0].Len(); n < 64 {
		t.Fatalf("an image of %d rows", n)
	}
	req.Params = sample.Params{RepeatPenalty: 3, RepeatLastN: 32}
	logits := make([]float32, m.Target.Vocab)
	logits[req.Tokens[19]], logits[500] = 1, 0.5
	if id := m.newSampler(&req).Sample(logits); id != 500 {
		t.Errorf("%d is chosen: the token before an image is not penalised", id)
	}
}

// TestEncodingElsewhere: an encoder on a device of its own gives the same text.
func TestEncodingElsewhere(t *testing.T) {
	var want []int32
	for _, device := range []string{"auto", "cpu"} {
		m := loadSeeing(t, edit.Golden(t, "gemma4"), Options{Drafter: "none", VisionDevice: device})
		m.Vision.own = device == "cpu" // as if the model were on a GPU; one of the two rests while the other works
		e := startModel(t, m, Config{})
		got := ids(generate(t, e, withImages(t, m, 1, 30, testkit.PNG(t, 50, 31, 1), testkit.PNG(t, 60, 31, 2))).Tokens)
		if want == nil {
			want = got
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", device, got, want)
		}
	}
}

// TestImageRequests: what is wrong with a request is said before anything runs.
func TestImageRequests(t *testing.T) {
	blind := start(t, "qwen35", Config{})
	m := loadSeeing(t, edit.Golden(t, "qwen35"), Options{Drafter: "none"})
	e := startModel(t, m, Config{})
	req := withImages(t, m, 1, 0, testkit.PNG(t, 50, 31, 1))
	if _, err := blind.Submit(t.Context(), req); !errors.Is(err, ErrNoVision) {
		t.Errorf("a model without an encoder: %v", err)
	}
	windowed := loadSeeing(t, edit.Golden(t, "qwen35"), Options{Drafter: "none", DecodeWindow: 64})
	w := startModel(t, windowed, Config{})
	hidden := withImages(t, windowed, 1, 0, testkit.PNG(t, 50, 31, 1))
	if _, err := w.Submit(t.Context(), hidden); !errors.Is(err, ErrUnsupported) {
		t.Errorf("with a decode window: %v", err)
	}
	for what, change := range map[string]func(r *Request){
		"image 1 is not at token 19":  func(r *Request) { r.Images[0].At-- },
		"outside the vocabulary":      func(r *Request) { r.Images = nil },
		"image 1 is not at token 20":  func(r *Request) { r.Tokens = slices.Clone(r.Tokens); r.Tokens[22] = -5 },
		"image 1 is not at token 9":   func(r *Request) { r.Images[0].At = 9 },
		"image 2 is not at token 20":  func(r *Request) { r.Images = append(r.Images, r.Images[0]) },
		"image 1 is not at token 999": func(r *Request) { r.Images[0].At = 999 },
	} {
		r := req
		r.Images = slices.Clone(req.Images)
		change(&r)
		if _, err := e.Submit(t.Context(), r); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%v, want %s", err, what)
		}
	}
	for what, file := range map[string]ImageFile{
		"image 1: image: neither PNG": {Data: []byte("hello")},
		"cannot be decoded":           {Data: testkit.PNG(t, 50, 50, 1)[:900]},
		"a side is more than 200":     {Data: testkit.PNG(t, 2001, 10, 1)},
	} {
		if _, err := m.Vision.Open(t.Context(), []ImageFile{file}, 0); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%v, want %s", err, what)
		}
	}
	file := ImageFile{Data: testkit.PNG(t, 50, 31, 1)}
	if _, err := m.Vision.Open(t.Context(), slices.Repeat([]ImageFile{file}, MaxImages+1), 0); err == nil {
		t.Error("too many images are taken")
	}
	var long *ContextError
	if _, err := m.Vision.Open(t.Context(), slices.Repeat([]ImageFile{file}, 9), 50); !errors.As(err, &long) {
		t.Errorf("more rows than the context holds: %v", err)
	}
}

// TestImageBudgets: detail and the number of rows that a request asks for.
func TestImageBudgets(t *testing.T) {
	for arch, want := range map[string][4]int{"qwen35": {256, 512, 4096, 100}, "gemma4": {70, 280, 1120, 100}} {
		v := loadSeeing(t, edit.Golden(t, arch), Options{Drafter: "none"})
		defer v.Close()
		got := [4]int{}
		for i, f := range []ImageFile{{Detail: "low"}, {}, {Detail: "high"}, {Detail: "low", Rows: 100}} {
			got[i] = v.Vision.rowsFor(&f)
		}
		if got != want {
			t.Errorf("%s: %v, want %v", arch, got, want)
		}
		if n := v.Vision.rowsFor(&ImageFile{Rows: 1 << 30}); n != want[2] {
			t.Errorf("%s: %d rows", arch, n)
		}
	}
}

// TestCutsBetweenImages: texts are never cut inside an image.
func TestCutsBetweenImages(t *testing.T) {
	a := []int32{1, 2, -7, -8, -9, 3, -7, 4}
	for n, want := range []int{0, 1, 2, 2, 2, 5, 6, 7, 8} {
		if got := beforeImage(a, n); got != want {
			t.Errorf("before an image: %d of %d tokens, want %d", got, n, want)
		}
	}
	for _, c := range []struct {
		b    []int32
		want int
	}{
		{a, 8}, {a[:4], 2}, {a[:5], 5}, {[]int32{1, 2, -7, -8, -10}, 2}, {[]int32{1, 2, -7, 5}, 2}, {[]int32{1, 2}, 2},
		{[]int32{1, 2, -7, -8, -9, 3, -6}, 6}, {a[:3], 2},
	} {
		if got := common(a, c.b); got != c.want || common(c.b, a) != got {
			t.Errorf("%v: %d in common, want %d", c.b, got, c.want)
		}
	}
}

// TestEncoderBeside: the file beside a model is found by its name and its width, and none is used if that is wanted.
func TestEncoderBeside(t *testing.T) {
	path := edit.Golden(t, "qwen35").WithImages(t)
	if m, err := Load(path, Options{Threads: 1, Vision: "none"}); err != nil || m.Vision != nil {
		t.Errorf("without an encoder: %v", err)
	} else {
		m.Close()
	}
	other := edit.Golden(t, "gemma4").WithImages(t)
	encoder := filepath.Join(filepath.Dir(other), "mmproj-gemma4v-small-f32.gguf")
	_, err := Load(path, Options{Threads: 1, Vision: encoder})
	if err == nil || !strings.Contains(err.Error(), "<|image|>") {
		t.Errorf("the encoder of another family: %v", err)
	}
	if _, err := Load(path, Options{Threads: 1, Vision: path}); err == nil || !strings.Contains(err.Error(), "clip") {
		t.Errorf("a file that is no encoder: %v", err)
	}
}

// TestRecent: what was used last stays.
func TestRecent(t *testing.T) {
	var l lru[int]
	key := func(i int) (k [32]byte) { k[0] = byte(i); return k }
	for i := range 5 {
		l.put(key(i), i, 10, 30)
		l.get(key(0))
	}
	var have []int
	for i := range 5 {
		if v, ok := l.get(key(i)); ok {
			have = append(have, v)
		}
	}
	if fmt.Sprint(have) != "[0 3 4]" || l.size != 30 || len(l.byKey) != 3 {
		t.Errorf("%v, %d", have, l.size)
	}
	l.put(key(9), 9, 40, 30)
	if _, ok := l.get(key(9)); ok || l.size != 0 {
		t.Error("more than fits is remembered")
	}
}
