package server

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"strobe/internal/cache"
	"strobe/internal/engine"
	"strobe/internal/upstream"
)

// meter counts requests and writes /metrics. What the engines count themselves is read from their
// snapshots, under the names that dashboards for llama.cpp and vLLM know.
type meter struct {
	started   time.Time
	models    func() Models
	upstreams *upstream.Fleet
	set       *metrics.Set

	mu    sync.Mutex
	hists map[string]*histogram // by name and labels
	rates map[string]*rate      // by model
	marks map[string]*[2]mark   // by model; the first at least paceTime before now
	most  map[string]int        // by model: tokens of the longest prompt with its answer
}

func newMeter(started time.Time, models func() Models, upstreams *upstream.Fleet) *meter {
	return &meter{started: started, models: models, upstreams: upstreams, set: metrics.NewSet(),
		hists: map[string]*histogram{}, rates: map[string]*rate{}, marks: map[string]*[2]mark{}, most: map[string]int{}}
}

// request counts an HTTP request.
func (m *meter) request(r *http.Request, status int, took time.Duration) {
	// The pattern, not the path: a path may be anything.
	_, path, _ := strings.Cut(r.Pattern, " ")
	if path == "" {
		path = "other"
	}
	m.set.GetOrCreateCounter(fmt.Sprintf(`strobe:http_requests_total{path=%q,code="%d"}`, path, status)).Inc()
	m.observe("strobe:http_request_seconds", fmt.Sprintf("path=%q", path), took)
}

// generation counts a generation that ended.
func (m *meter) generation(model string, res *engine.Result) {
	label := fmt.Sprintf("model_name=%q", model)
	m.mu.Lock()
	m.most[model] = max(m.most[model], res.Prompt+res.Generated)
	m.mu.Unlock()
	m.observe("vllm:e2e_request_latency_seconds", label, res.Total)
	m.observe("vllm:request_queue_time_seconds", label, res.Queued)
	if res.First > 0 {
		m.observe("vllm:time_to_first_token_seconds", label, res.First)
	}
	if n := res.Generated - 1; n > 0 {
		m.observe("vllm:time_per_output_token_seconds", label, res.Stats.DecodeTime/time.Duration(n))
	}
}

// embedded counts texts that became vectors, and their tokens.
func (m *meter) embedded(model string, texts, tokens int) {
	label := fmt.Sprintf("{model_name=%q}", model)
	m.set.GetOrCreateCounter("strobe:embeddings_total" + label).Add(texts)
	m.set.GetOrCreateCounter("strobe:embedding_tokens_total" + label).Add(tokens)
}

// histogram is one of Prometheus' own kind, which every dashboard reads.
type histogram struct {
	counts [len(bounds) + 1]uint64
	sum    float64
}

var bounds = [...]float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300}

func (m *meter) observe(name, labels string, d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := name + "{" + labels
	h := m.hists[key]
	if h == nil {
		h = &histogram{}
		m.hists[key] = h
	}
	i, _ := slices.BinarySearch(bounds[:], d.Seconds())
	h.counts[i]++
	h.sum += d.Seconds()
}

func (m *meter) writeHistograms(w *page) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(m.hists)) {
		name, labels, _ := strings.Cut(key, "{")
		h := m.hists[key]
		w.head(name, "histogram", "Time in seconds.")
		total := uint64(0)
		for i, n := range h.counts {
			total += n
			le := "+Inf"
			if i < len(bounds) {
				le = strconv.FormatFloat(bounds[i], 'g', -1, 64)
			}
			fmt.Fprintf(w, "%s_bucket{%s,le=\"%s\"} %d\n", name, labels, le, total)
		}
		fmt.Fprintf(w, "%s_sum{%s} %g\n%s_count{%s} %d\n", name, labels, h.sum, name, labels, total)
	}
}

// rate is the state of gauges that are averages since the last scrape.
type rate struct {
	prompt, tokens, steps, rows int64
	promptTime, tokenTime       time.Duration
}

// page writes the text format, with one HELP and TYPE per name.
type page struct {
	io.Writer
	seen map[string]bool
}

func (w *page) head(name, kind, help string) {
	if !w.seen[name] {
		w.seen[name] = true
		fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
	}
}

// point is a value of one model.
type point struct {
	label string
	value float64
}

// family is a metric with a value per model.
type family struct {
	name, kind, help string
	points           []point
}

func (m *meter) serve(w http.ResponseWriter, _ *http.Request) {
	var buf bytes.Buffer
	p := &page{&buf, map[string]bool{}}
	for _, f := range m.families() {
		p.head(f.name, f.kind, f.help)
		for _, s := range f.points {
			fmt.Fprintf(p, "%s{%s} %s\n", f.name, s.label, strconv.FormatFloat(s.value, 'g', -1, 64))
		}
	}
	m.writeHistograms(p)
	m.set.WritePrometheus(&buf)
	metrics.WriteProcessMetrics(&buf)
	h := w.Header()
	h.Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	h.Set("Process-Start-Time-Unix", strconv.FormatInt(m.started.Unix(), 10))
	_, _ = w.Write(buf.Bytes())
}

// families reads the snapshots of all loaded models.
func (m *meter) families() []*family {
	var order []*family
	byName := map[string]*family{}
	engines := m.models().Resident()
	putterOf := func(model string) putter {
		label := fmt.Sprintf("model_name=%q", model)
		return func(name, kind, help string, value float64, more ...string) {
			f := byName[name]
			if f == nil {
				f = &family{name: name, kind: kind, help: help}
				byName[name] = f
				order = append(order, f)
			}
			f.points = append(f.points, point{strings.Join(append([]string{label}, more...), ","), value})
		}
	}
	for _, model := range slices.Sorted(maps.Keys(engines)) {
		e := engines[model]
		snap := e.Snapshot()
		m.put(putterOf(model), model, &snap)
		putMemory(putterOf(model), e, &snap)
		putSources(putterOf(model), e, &snap)
	}
	for _, u := range m.upstreams.States() {
		for _, r := range u.Replicas {
			putReplica(putterOf(u.Name), &r)
		}
	}
	return order
}

// putMemory says how full a model's slots are. Routers know it by vLLM's names.
func putMemory(put putter, e *engine.Engine, s *engine.Snapshot) {
	cfg := e.Config()
	room := cfg.Parallel * cfg.Context
	used := 0
	for _, slot := range s.Slots {
		if slot.Busy {
			used += slot.State.Processed + slot.State.Generated
		}
	}
	put("vllm:kv_cache_usage_perc", "gauge", "Tokens in slots, as a part (0 to 1) of what all slots hold.", ratio(used, room))
	pages := room / cache.PageTokens
	if b := e.Model().Target.Memory().TokenBytes() * cache.PageTokens; b > 0 {
		pages += int(max(0, cfg.CacheBytes)) / b
	}
	put("vllm:cache_config_info", "gauge", "Tokens of a page of the cache, and pages of slots and prefix cache.", 1,
		fmt.Sprintf(`block_size="%d",num_gpu_blocks="%d"`, cache.PageTokens, pages))
}

// putSources says what each source of drafts did. Drafters that were never asked are there, too.
func putSources(put putter, e *engine.Engine, s *engine.Snapshot) {
	for _, src := range e.Model().Runner.Sources {
		x, label := s.Stats.BySource[src.Name()], fmt.Sprintf("source=%q", src.Name())
		for _, c := range []struct {
			name, help string
			value      float64
		}{
			{"drafts_total", "Times that the source was asked for guesses.", float64(x.Drafts)},
			{"drafts_bad_total", "Of them, those without a usable token, such as guesses that are no numbers.", float64(x.Bad)},
			{"drafts_right_total", "Of them, those whose first guess was right, verified or not.", float64(x.Right)},
			{"draft_failures_total", "Answers that went on without the source because of errors.", float64(x.Failed)},
			{"draft_tokens_total", "Guesses of the source that were verified.", float64(x.Guessed)},
			{"draft_tokens_accepted_total", "Of them, those that were right.", float64(x.Accepted)},
			{"draft_seconds_total", "Time of the source's drafts.", x.Draft.Seconds()},
		} {
			put("strobe:source_"+c.name, "counter", c.help, c.value, label)
		}
	}
}

// putReplica says how an upstream's replica does, as seen from here.
func putReplica(put putter, r *upstream.ReplicaState) {
	label := fmt.Sprintf("replica=%q", r.URL)
	up := 1.0
	if r.Err != nil {
		up = 0
	}
	put("strobe:upstream_up", "gauge", "1 if the replica gets requests.", up, label)
	put("strobe:upstream_requests_running", "gauge", "Requests of this server that the replica works on.", float64(r.Load), label)
	for _, c := range []struct {
		name, help string
		value      int64
	}{
		{"requests_total", "Requests sent to the replica.", r.Sent},
		{"failures_total", "Of them, those that it broke off before an answer began.", r.Failed},
		{"prompt_tokens_total", "Prompt tokens of its answers that say so, those in its cache included.", r.Usage.Prompt},
		{"prompt_tokens_cached_total", "Of them, those that were in its cache.", r.Usage.Cached},
		{"generation_tokens_total", "Tokens of its answers that say so.", r.Usage.Generated},
		{"draft_tokens_total", "Drafted tokens it verified, if it says so.", r.Usage.Guessed},
		{"accepted_tokens_total", "Of them, those that were accepted.", r.Usage.Accepted},
	} {
		put("strobe:upstream_"+c.name, "counter", c.help, float64(c.value), label)
	}
}

// ratio is a part of a whole; nothing of nothing is nothing.
func ratio[T int | int64](part, whole T) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}

type putter func(name, kind, help string, value float64, more ...string)

func (m *meter) put(put putter, model string, s *engine.Snapshot) {
	counter := func(name, help string, v float64, more ...string) { put(name, "counter", help, v, more...) }
	gauge := func(name, help string, v float64, more ...string) { put(name, "gauge", help, v, more...) }
	st := &s.Stats

	counter("llamacpp:prompt_tokens_total", "Prompt tokens processed, those found in the cache not counted.", float64(st.Prompt))
	counter("llamacpp:prompt_tokens_cached_total", "Prompt tokens found in the cache.", float64(st.Cached))
	counter("llamacpp:prompt_seconds_total", "Time spent on prompts.", st.PromptTime.Seconds())
	counter("llamacpp:tokens_predicted_total", "Tokens generated.", float64(st.Tokens))
	counter("llamacpp:tokens_predicted_seconds_total", "Time spent on generating.", st.DecodeTime.Seconds())
	m.mu.Lock()
	most := m.most[model]
	m.mu.Unlock()
	counter("llamacpp:n_tokens_max", "Tokens of the longest prompt with its answer.", float64(most))
	counter("llamacpp:n_decode_total", "Passes of the target.", float64(s.Steps))
	counter("vllm:prompt_tokens_total", "Prompt tokens processed, those found in the cache included.", float64(st.Prompt+st.Cached))
	counter("vllm:generation_tokens_total", "Tokens generated.", float64(st.Tokens))

	for _, prefix := range []string{"llamacpp:", "vllm:"} {
		counter(prefix+"spec_decode_num_drafts_total", "Passes of the drafter.", float64(st.Drafts))
		counter(prefix+"spec_decode_num_draft_tokens_total", "Drafted tokens that were verified.", float64(st.Guessed))
		counter(prefix+"spec_decode_num_accepted_tokens_total", "Drafted tokens that were accepted.", float64(st.Accepted))
		for pos, n := range st.Reached {
			if n > 0 {
				counter(prefix+"spec_decode_num_accepted_tokens_per_pos_total", "Accepted tokens by their place in the draft.",
					float64(st.Hit[pos]), fmt.Sprintf(`position="%d"`, pos))
			}
		}
	}
	for _, r := range slices.Sorted(maps.Keys(s.Requests)) {
		counter("vllm:request_success_total", "Generations that ended, by reason.", float64(s.Requests[r]), fmt.Sprintf("finished_reason=%q", r.String()))
	}
	counter("strobe:nonfinite_logits_total", "Generations ended because the model's output was not a finite number.", float64(s.NotFinite))
	counter("strobe:requests_rejected_total", "Requests refused because the queue was full.", float64(s.Rejected))

	gauge("llamacpp:requests_processing", "Requests in slots.", float64(s.Active()))
	gauge("llamacpp:requests_deferred", "Requests waiting for a slot.", float64(s.Queued))
	gauge("vllm:num_requests_running", "Requests in slots.", float64(s.Active()))
	gauge("vllm:num_requests_waiting", "Requests waiting for a slot.", float64(s.Queued))

	prompt, tokens, busy := m.averages(model, s)
	gauge("llamacpp:prompt_tokens_seconds", "Prompt tokens per second since the last scrape.", prompt)
	gauge("llamacpp:predicted_tokens_seconds", "Generated tokens per second since the last scrape.", tokens)
	gauge("llamacpp:n_busy_slots_per_decode", "Streams per pass of the target since the last scrape.", busy)

	c := &s.Cache
	counter("vllm:prefix_cache_queries_total", "Prompt tokens that were looked for in the prefix cache.", float64(c.Asked))
	counter("vllm:prefix_cache_hits_total", "Of them, those that were found.", float64(c.Found))
	counter("strobe:prefix_cache_requests_total", "Requests that looked for a cached beginning.", float64(c.Hits+c.Misses))
	counter("strobe:prefix_cache_requests_hit_total", "Requests that found one.", float64(c.Hits))
	gauge("strobe:prefix_cache_hit_ratio", "Prompt tokens found in the prefix cache, as a part of all (0 to 1).", ratio(c.Found, c.Asked))
	gauge("strobe:draft_acceptance_ratio", "Verified guesses that were right, as a part of all (0 to 1).", ratio(st.Accepted, st.Guessed))
	gauge("strobe:tokens_per_second", "Tokens generated per second in the last 10 to 20 seconds, by all streams together.", m.pace(model, s))
	counter("strobe:prefix_cache_evicted_total", "Entries dropped for others.", float64(c.Evicted))
	counter("strobe:prefix_cache_shortened_total", "Entries of which only a beginning was kept.", float64(c.Shortened))
	counter("strobe:prefix_cache_too_large_total", "Entries that did not fit and could not be shortened.", float64(c.TooLarge))
	counter("strobe:prefix_cache_disk_hits_total", "Entries read from disk.", float64(c.DiskHits))
	counter("strobe:prefix_cache_disk_written_total", "Entries written to disk.", float64(c.DiskWritten))
	counter("strobe:prefix_cache_disk_corrupted_total", "Damaged files dropped.", float64(c.DiskCorrupted))
	gauge("strobe:prefix_cache_entries", "Entries in memory.", float64(c.Entries))
	gauge("strobe:prefix_cache_bytes", "Memory of the entries.", float64(c.Bytes))
	gauge("strobe:prefix_cache_limit_bytes", "Limit of that memory.", float64(c.Limit))
	gauge("strobe:prefix_cache_disk_entries", "Entries on disk.", float64(c.DiskEntries))
	gauge("strobe:prefix_cache_disk_bytes", "Size of the entries on disk.", float64(c.DiskBytes))
	gauge("strobe:kv_bytes", "Keys, values and states in memory, of streams and cache.", float64(s.TargetBytes+s.DrafterBytes))
	counter("strobe:generations_paused_total", "Times that a generation gave its memory back and began anew.", float64(s.Paused))
	for _, d := range s.Devices {
		on := fmt.Sprintf("device=%q", d.Name)
		gauge("strobe:device_memory_announced_bytes", "Weights and reserve that were announced before the model was loaded.", float64(d.Announced), on)
		gauge("strobe:device_memory_used_bytes", "Memory of the device that is no longer free since then.", float64(d.Used), on)
		gauge("strobe:device_memory_free_bytes", "Free memory of the device when there was last nothing to do.", float64(d.Free), on)
	}
	counter("strobe:busy_seconds_total", "Time spent in steps.", s.Busy.Seconds())
}

// paceTime is the least time that a pace is averaged over. It must not depend on who asks how often: some routers do
// every 50 ms.
const paceTime = 10 * time.Second

// mark is how many tokens there were at a time.
type mark struct {
	at     time.Time
	tokens int
}

// pace is the tokens per second of a model now, those of running streams included.
func (m *meter) pace(model string, s *engine.Snapshot) float64 {
	now := mark{time.Now(), s.Stats.Tokens}
	for _, slot := range s.Slots {
		if slot.Busy {
			now.tokens += slot.State.Generated
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	last := m.marks[model]
	if last == nil || last[0].tokens > now.tokens { // the model was loaded anew
		last = &[2]mark{{at: s.Started}, {at: s.Started}}
		m.marks[model] = last
	}
	if now.at.Sub(last[1].at) >= paceTime {
		last[0], last[1] = last[1], now
	}
	return perSecond(now.tokens-last[0].tokens, now.at.Sub(last[0].at))
}

// averages averages over the time since it was called last for a model.
func (m *meter) averages(model string, s *engine.Snapshot) (prompt, tokens, busy float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := &rate{int64(s.Stats.Prompt), int64(s.Stats.Tokens), s.Steps, s.BatchRows, s.Stats.PromptTime,
		s.Stats.DecodeTime}
	last := m.rates[model]
	if last == nil || last.steps > now.steps { // the model was loaded anew
		last = &rate{}
	}
	m.rates[model] = now
	if n := now.steps - last.steps; n > 0 {
		busy = float64(now.rows-last.rows) / float64(n)
	}
	return perSecond(int(now.prompt-last.prompt), now.promptTime-last.promptTime),
		perSecond(int(now.tokens-last.tokens), now.tokenTime-last.tokenTime), busy
}
