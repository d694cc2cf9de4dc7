package server

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"strobe/internal/engine"
	"strobe/internal/gguf"
	"strobe/internal/sample"
	"strobe/internal/testkit"
)

// damaged is a copy of a golden model whose last norm is one value over and over.
func damaged(t *testing.T, value float32) string {
	t.Helper()
	path := goldenWith(t, "qwen3", hermesTemplate)
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	x := f.Tensor("output_norm.weight")
	if x == nil {
		t.Fatal("there is no output_norm.weight")
	}
	data := slices.Clone(x.Data)
	f.Close()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at := strings.Index(string(b), string(data))
	if at < 0 {
		t.Fatal("the weights are not in the file")
	}
	for i := 0; i < len(data); i += 4 {
		binary.LittleEndian.PutUint32(b[at+i:], math.Float32bits(value))
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestNotFinite: a model whose output is no number ends the request with an error, and a metric counts that.
func TestNotFinite(t *testing.T) {
	for _, value := range []float64{3e38, -3e38} {
		m, err := engine.Load(damaged(t, float32(value)), engine.Options{Threads: 1, Drafter: "none"})
		if err != nil {
			t.Fatal(err)
		}
		e := engine.New(m, engine.Config{Context: 256})
		t.Cleanup(func() { e.Close(context.Background()) })
		f := &fixture{t: t, e: e}
		s := New(Config{Models: Single("bad", e)})
		f.serve(s)
		for _, temp := range []string{"0.7", "1"} {
			status, b := f.do(
				"POST",
				"/v1/chat/completions",
				`{"messages":[{"role":"user","content":"hello"}],"max_tokens":5,"temperature":`+temp+`}`,
			)
			if status != 500 || !strings.Contains(string(b), "not a finite number") {
				t.Errorf("%v: %d %s", value, status, b)
			}
		}
		if _, b := f.do("GET", "/metrics", ""); !strings.Contains(
			string(b),
			`strobe:nonfinite_logits_total{model_name="bad"} 2`,
		) {
			t.Errorf("%v: the metric does not count it", value)
		}
	}
}

// TestProps: defaults may be changed where that is allowed, and only there.
func TestProps(t *testing.T) {
	closed := start(t, options{})
	if status, b := closed.do("POST", "/props", `{"temperature":0}`); status != 501 ||
		!strings.Contains(string(b), "--props") {
		t.Errorf("closed: %d %s", status, b)
	}
	f := start(t, options{config: Config{ChangeProps: true, Params: sample.Params{Temp: 0.8, TopK: 40}}})
	f.post("/props", dict{"temperature": 0.25})
	f.post("/props", dict{"default_generation_settings": dict{"params": dict{"top_k": 3}}})
	m := f.post("/completion", dict{"prompt": "x", "n_predict": 1})
	if s := at(m, "generation_settings"); at(s, "temperature") != 0.25 || number(s, "top_k") != 3 {
		t.Errorf("settings %v", s)
	}
	_, b := f.do("GET", "/props", "")
	if s := at(decodeObject(t, b), "default_generation_settings", "params"); at(s, "temperature") != 0.25 ||
		number(s, "top_k") != 3 {
		t.Errorf("props %v", s)
	}
	if status, _ := f.do("POST", "/props", `{"temperature":-1}`); status != 400 {
		t.Errorf("a wrong value: %d", status)
	}
}

// TestModelSampling: what a model's file recommends holds unless a flag, a table of the configuration or the request
// says something else, in this order.
func TestModelSampling(t *testing.T) {
	keys := []gguf.KV{
		{Key: "general.sampling.temp", Value: float32(0.6)}, {Key: "general.sampling.top_k", Value: int32(20)},
		{Key: "general.sampling.top_p", Value: float32(0.5)}, {Key: "general.sampling.min_p", Value: float32(0.25)},
	}
	k, p := 21, float32(0.75)
	f := start(t, options{template: hermesTemplate, keys: keys, config: Config{
		Params:   sample.Params{Temp: 0.8, TopK: 40, TopP: 0.95, MinP: 0.05, TypicalP: 1},
		Sampling: sample.Defaults{TopK: &k, TopP: &p},
		PerModel: map[string]ModelDefaults{
			"qwen35": {Sampling: sample.Defaults{TopP: new(float32)}, MaxTokens: 2},
			"other":  {},
		},
	}})
	m := f.post("/completion", dict{"prompt": "x", "ignore_eos": true, "min_p": 0.125})
	s := at(m, "generation_settings")
	if number(s, "top_k") != 21 || at(s, "top_p") != 0.0 || at(s, "min_p") != 0.125 || at(s, "typical_p") != 1.0 ||
		float32(at(s, "temperature").(float64)) != 0.6 {
		t.Errorf("settings %v", s)
	}
	if number(m, "tokens_predicted") != 2 {
		t.Errorf("%d tokens", number(m, "tokens_predicted"))
	}

	path := goldenWith(t, "qwen3", hermesTemplate, keys...)
	config := filepath.Join(filepath.Dir(path), "generation_config.json")
	for text, want := range map[string]string{
		`{"temperature": 0.9, "top_k": 5}`: "", `{"do_sample": false}`: "",
		`{"top_p": 7}`: "generation_config.json: TopP", `{`: "generation_config.json: ",
	} {
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := engine.Load(path, engine.Options{Threads: 1, Drafter: "none"})
		if want != "" {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", text, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		p := sample.Params{Temp: 1}
		m.Sampling.Apply(&p)
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		if off := strings.Contains(text, "false"); off && p.Temp != 0 ||
			!off && (p.Temp != 0.9 || p.TopK != 5 || p.MinP != 0.25) {
			t.Errorf("%s: %+v", text, p)
		}
	}
}

// TestSlotActions: what a slot remembers can be saved, restored and erased, requests can choose a slot, and all of it
// is a matter of the prefix cache.
func TestSlotActions(t *testing.T) {
	for _, dir := range []string{"", t.TempDir()} {
		slots := t.TempDir()
		f := start(t, options{engine: engine.Config{Parallel: 2, CacheDir: dir, SlotDir: slots}})
		long := strings.Repeat("all work and no play ", 20)
		ask := func(slot int) dict {
			return f.post("/completion", dict{"prompt": long, "n_predict": 4, "id_slot": slot, "temperature": 0})
		}
		if status, b := f.do("POST", "/slots/1?action=save", `{"filename":"a"}`); status != 400 ||
			!strings.Contains(string(b), "nothing of this slot") {
			t.Errorf("an empty slot: %d %s", status, b)
		}
		m := ask(1)
		if number(m, "id_slot") != 1 || number(m, "timings", "cache_n") != 0 {
			t.Fatalf("slot %v, %v cached", m["id_slot"], at(m, "timings", "cache_n"))
		}
		saved := f.post("/slots/1?action=save", dict{"filename": "a.bin"})
		st, err := os.Stat(filepath.Join(slots, "a.bin"))
		if err != nil || number(saved, "n_saved") < number(m, "tokens_evaluated")-1 || at(saved, "filename") != "a.bin" ||
			number(saved, "n_written") != int(st.Size()) || at(saved, "timings", "save_ms") == nil {
			t.Errorf("saved %v, %v", saved, err)
		}
		restored := f.post("/slots/0?action=restore", dict{"filename": "a.bin"})
		if number(restored, "n_restored") != number(saved, "n_saved") || at(restored, "filename") != "a.bin" ||
			number(restored, "n_read") != number(saved, "n_written") || at(restored, "timings", "restore_ms") == nil {
			t.Errorf("restored %v, saved %v", restored, saved)
		}
		if m := ask(0); number(m, "id_slot") != 0 || number(m, "timings", "cache_n") < 50 {
			t.Errorf("after restoring slot %v has %v", m["id_slot"], m["timings"])
		}
		f.post("/slots/1?action=erase", dict{})
		f.post("/slots/0?action=erase", dict{})
		if m := ask(0); number(m, "timings", "cache_n") != 0 {
			t.Errorf("after erasing %v", m["timings"])
		}
		for path, want := range map[string]int{
			"/slots/0?action=restore": 404, "/slots/0?action=fly": 400, "/slots/7?action=erase": 400,
			"/slots/x?action=erase": 400, "/slots/0": 400,
		} {
			if status, b := f.do("POST", path, `{"filename":"none"}`); status != want {
				t.Errorf("%s: %d %s", path, status, b)
			}
		}
		if status, b := f.do("POST", "/completion", `{"prompt":"x","id_slot":2}`); status != 400 ||
			!strings.Contains(string(b), "no slot 2") {
			t.Errorf("a slot that is not there: %d %s", status, b)
		}
		for _, name := range []string{"../a", "a/b", "..", ".a"} {
			status, b := f.do("POST", "/slots/0?action=save", encode(t, dict{"filename": name}))
			if status != 400 || textParam(b) != "filename" {
				t.Errorf("%s: %d %s", name, status, b)
			}
		}
	}
	f := start(t, options{})
	for _, action := range []string{"save", "restore"} {
		if status, b := f.do("POST", "/slots/0?action="+action, `{"filename":"a"}`); status != 501 ||
			!strings.Contains(string(b), "Start it with `--slot-save-path`") {
			t.Errorf("%s without a folder: %d %s", action, status, b)
		}
	}
}

// TestProgress: a stream tells how far the prompt is, when asked: first what was cached, last that all is read.
func TestProgress(t *testing.T) {
	f := start(t, options{template: hermesTemplate, engine: engine.Config{Chunk: 32}})
	long := strings.Repeat("all work and no play ", 20)
	for path, q := range map[string]dict{
		"/v1/chat/completions": {"messages": user(long), "max_tokens": 2},
		"/completion":          {"prompt": long, "n_predict": 2},
		"/v1/completions":      {"prompt": "short", "max_tokens": 2},
		"/v1/responses":        {"input": long, "max_output_tokens": 2},
	} {
		var seen []int
		total, cached := 0, 0
		for _, e := range f.events(path, with(q, dict{"stream": true, "return_progress": true})) {
			if p, ok := e.data["prompt_progress"]; ok {
				seen = append(seen, number(p, "processed"))
				total, cached = number(p, "total"), number(p, "cache")
			}
		}
		// A reader that is slower than the engine hears the latest news only.
		if n := len(seen); n < 2 || !slices.IsSorted(seen) || len(slices.Compact(slices.Clone(seen))) < n ||
			seen[0] != cached || seen[n-1] != total || total < 2 {
			t.Errorf("%s: processed %v of %d", path, seen, total)
		}
		for _, e := range f.events(path, with(q, dict{"stream": true})) {
			if _, ok := e.data["prompt_progress"]; ok {
				t.Errorf("%s: progress nobody asked for", path)
			}
		}
	}
}

// TestRerank: without a head for it, ranking is refused and says why.
func TestRerank(t *testing.T) {
	f := start(t, options{})
	for _, path := range []string{"/v1/rerank", "/rerank", "/v1/reranking"} {
		if status, b := f.do("POST", path, `{"query":"a","documents":["b"]}`); status != 501 ||
			!strings.Contains(string(b), "no head for ranking") {
			t.Errorf("%s: %d %s", path, status, b)
		}
	}
}

// TestKeepAlive: models are loaded and unloaded on demand, and stay as long as their last user wants.
func TestKeepAlive(t *testing.T) {
	p, err := engine.NewPool(engine.PoolConfig{
		Files: []string{goldenWith(t, "qwen3", hermesTemplate), goldenWith(t, "qwen35", hermesTemplate)},
		Load:  engine.Options{Threads: 1, Drafter: "none"}, Engine: engine.Config{Context: 512}, Idle: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close(context.Background()) })
	f := &fixture{t: t}
	s := New(Config{Models: Pool(p, "")})
	f.serve(s)
	loaded := func() (names []string) {
		_, b := f.do("GET", "/api/ps", "")
		list, _ := at(decodeObject(t, b), "models").([]any)
		for _, m := range list {
			names = append(names, text(m, "name"))
		}
		return names
	}
	expires := func() time.Duration {
		_, b := f.do("GET", "/api/ps", "")
		at, err := time.Parse(time.RFC3339Nano, text(decodeObject(t, b), "models", 0, "expires_at"))
		if err != nil {
			t.Fatal(err)
		}
		return time.Until(at)
	}
	ask := func(keep any) {
		f.post("/api/chat", dict{"model": "qwen35", "messages": user("x"), "stream": false, "keep_alive": keep,
			"options": dict{"num_predict": 1}})
	}
	f.post("/models/load", dict{"model": "qwen35"})
	if got := loaded(); !slices.Equal(got, []string{"qwen35"}) {
		t.Fatalf("loaded %v", got)
	}
	if d := expires(); d < 50*time.Minute || d > time.Hour {
		t.Errorf("expires in %v", d)
	}
	for keep, want := range map[any]time.Duration{"24h": 24 * time.Hour, 7200: 2 * time.Hour, "-1": 1000 * time.Hour,
		-1: 1000 * time.Hour} {
		ask(keep)
		if d := expires(); d < want-time.Minute {
			t.Errorf("keep_alive %v: expires in %v", keep, d)
		}
	}
	if m := f.post("/api/generate", dict{"model": "qwen35", "keep_alive": 0}); text(m, "done_reason") != "unload" ||
		len(loaded()) != 0 {
		t.Errorf("unloading: %v, then %v is loaded", m, loaded())
	}
	for _, keep := range []any{"0s", 0} { // with a prompt: after its answer
		ask(keep)
		for range 500 { // it is unloaded in the background
			if len(loaded()) == 0 {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if got := loaded(); len(got) > 0 {
			t.Errorf("after keep_alive %v %v is loaded", keep, got)
		}
	}
	f.post("/models/load", dict{"model": "qwen3"})
	f.post("/models/unload", dict{"model": "qwen3"})
	f.post("/models/unload", dict{"model": "qwen3"})
	if got := loaded(); len(got) > 0 {
		t.Errorf("after unloading %v is loaded", got)
	}
	for body, want := range map[string]int{`{"model":"none"}`: 404, `{}`: 400} {
		if status, b := f.do("POST", "/models/unload", body); status != want {
			t.Errorf("%s: %d %s", body, status, b)
		}
	}
	if status, b := f.do("POST", "/api/chat", `{"model":"qwen3","messages":[],"keep_alive":"soon"}`); status != 400 ||
		!strings.Contains(string(b), "keep_alive") {
		t.Errorf("%d %s", status, b)
	}
	one := start(t, options{})
	if status, b := one.do("POST", "/models/unload", `{"model":"x"}`); status != 501 ||
		!strings.Contains(string(b), "stays loaded") {
		t.Errorf("the only model: %d %s", status, b)
	}
}

// TestPull: clients see how far a download is, and have the model afterwards. A client that leaves ends it.
func TestPull(t *testing.T) {
	p, err := engine.NewPool(engine.PoolConfig{
		Files: []string{goldenWith(t, "qwen3", hermesTemplate), goldenWith(t, "gemma4", gemmaTemplate)},
		Load:  engine.Options{Threads: 1, Drafter: "none"}, Engine: engine.Config{Context: 512},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close(context.Background()) })
	f := &fixture{t: t}
	s := New(Config{Models: Pool(p, "")})
	f.serve(s)
	if status, b := f.do("POST", "/api/pull", `{"model":"a/b"}`); status != 501 || !strings.Contains(string(b), "--pull") {
		t.Errorf("%d %s", status, b)
	}
	s.SetPull(func(ctx context.Context, name string, report func(string, int64, int64)) error {
		if name == "a/none" {
			return fmt.Errorf("no such repository")
		}
		for i := range int64(5) {
			report("model.gguf", 25*i, 100)
		}
		if name == "a/broken" {
			return fmt.Errorf("the connection broke")
		}
		return p.Add(ctx, name, testkit.Golden(t, "qwen35/model.gguf"))
	})
	lines := f.lines("/api/pull", dict{"model": "hf.co/a/b:latest"})
	if n := len(lines); n < 2 || text(lines[n-1], "status") != "success" ||
		text(lines[0], "status") != "pulling model.gguf" ||
		number(lines[n-2], "completed") != 100 {
		t.Errorf("lines %v", lines)
	}
	f.post("/api/generate", dict{"model": "hf.co/a/b", "prompt": "x", "stream": false, "options": dict{"num_predict": 1}})
	if m := f.post("/api/pull", dict{"model": "hf.co/a/b", "stream": false}); text(m, "status") != "success" {
		t.Errorf("again: %v", m)
	}
	if status, b := f.do("POST", "/api/pull", `{"model":"a/none"}`); status != 500 ||
		!strings.Contains(string(b), "no such repository") {
		t.Errorf("%d %s", status, b)
	}
	if lines := f.lines("/api/pull", dict{"model": "a/broken"}); text(
		lines[len(lines)-1],
		"error",
	) != "the connection broke" {
		t.Errorf("lines %v", lines)
	}
}
