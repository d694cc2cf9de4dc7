package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"strobe/internal/cache"
	"strobe/internal/model"
	"strobe/internal/platform"
	"strobe/internal/speculate"
)

// loop is what the engine's goroutine works with. Nothing of it is shared.
type loop struct {
	e        *Engine
	m        *Model
	r        *speculate.Runner
	drafters []*cache.Memory // per source; nil for those that keep nothing
	jobs     []*job          // in slots, oldest first
	slots    []*job
	cache    *prefixes // nil when off
	disk     *disk     // nil without a folder
	restores []*restore
	embeds   []*embedding
	encoding *encoding // the image that is being encoded; nil for none
	soon     []*entry  // to be on disk soon
	steps    int64
	pace     pace
	defects  int   // panics since the last step that went well
	full     int64 // bytes that running jobs had when one of them was paused

	texts  []text   // by slot: that of its last generation
	slotAt *disk    // how files of slots are written and read; nil without a folder
	copies []*entry // of slots, on their way to their files
}

func newLoop(e *Engine) *loop {
	l := &loop{
		e:     e,
		m:     e.model,
		r:     e.model.Runner,
		slots: make([]*job, e.cfg.Parallel),
		texts: make([]text, e.cfg.Parallel),
		pace:  pace{e.cfg.Chunk, e.cfg.Chunk},
	}
	if e.cfg.paced {
		l.pace = newPace(e.cfg.Chunk)
	}
	return l
}

// prepare makes what the loop needs of the model. It reads the model's file.
func (l *loop) prepare() {
	e := l.e
	l.m.watchDrafters(e.cfg.Log)
	l.askDevices()
	for _, d := range l.e.Snapshot().Devices {
		e.cfg.Log.Info("memory", "device", d.Name, "announced", d.Announced, "used", d.Used, "free", d.Free)
	}
	l.drafters = memories(l.r)
	if e.cfg.CacheBytes > 0 {
		l.cache = &prefixes{target: l.m.Target.Memory(), drafters: l.drafters, limit: e.cfg.CacheBytes}
	}
	folder := func(root string) *disk {
		return &disk{
			root: root, dir: root, model: l.m.Fingerprint(), limit: e.cfg.CacheDiskBytes, cuttable: l.cache.cuttable,
			sources: wanted(l.r, speculate.Options{}),
			log:     e.cfg.Log, stats: &l.cache.stats, wake: e.wake,
		}
	}
	if l.cache != nil && e.cfg.SlotDir != "" {
		l.slotAt = folder(e.cfg.SlotDir)
	}
	if l.cache != nil && e.cfg.CacheDir != "" {
		d, err := openDisk(folder(e.cfg.CacheDir))
		if err != nil {
			e.cfg.Log.Warn("prefix cache: no folder", "error", err)
		} else {
			l.disk = d
		}
	}
}

// run admits, steps and ends generations until the engine closes.
func (l *loop) run() {
	defer close(l.e.done)
	debug.SetPanicOnFault(true) // a model file that was cut short; see platform.IsFault
	err := l.guard(func() error {
		l.prepare()
		for l.admit() {
			busy, err := l.turn()
			if err != nil {
				return err
			}
			if !busy {
				l.rest()
			}
		}
		return nil
	})
	if err != nil {
		l.fail(err)
	}
	l.close()
}

// turn does everything there is to do once, and reports whether that was anything. An error is the end of the engine.
func (l *loop) turn() (busy bool, err error) {
	l.runTasks()
	l.dropEnded()
	l.resume()
	restored := l.restoreStep()
	encoded := l.encodeStep()
	stepped, err := l.step()
	if err != nil {
		return true, err
	}
	embedded, err := l.embedStep()
	if err != nil {
		return true, err
	}
	saved := l.saveStep()
	l.publish()
	return restored || encoded || stepped || embedded || saved, nil
}

// errDefect is what a panic becomes.
var errDefect = errors.New("the engine was stopped by a defect")

// guard turns a panic into an error: a defect must not end the process and everybody's work.
func (l *loop) guard(fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = l.defect(p)
		}
	}()
	return fn()
}

// defect is the error that a recovered panic becomes.
func (l *loop) defect(p any) error {
	if platform.IsFault(p) {
		return fmt.Errorf("%s: %w", l.m.Path, ErrFileChanged)
	}
	stack := debug.Stack()
	if w, ok := p.(interface{ Stack() []byte }); ok { // of a worker, where it happened
		stack = w.Stack()
	}
	l.e.cfg.Log.Error("engine: a defect", "panic", p, "stack", string(stack))
	return fmt.Errorf("%w: %v", errDefect, p)
}

// fatal tells errors after which the engine cannot go on: its weights are gone, or a defect comes back. After
// a single defect those concerned end and the others go on.
func (l *loop) fatal(err error) bool {
	if errors.Is(err, errDefect) {
		l.defects++
	}
	return errors.Is(err, ErrFileChanged) || l.defects > 1
}

// ending returns what the engine ends with after a pass failed: an error that is fatal, or that of a device which is
// lost. It returns nil when the engine can go on.
func (l *loop) ending(err error) error {
	if l.fatal(err) {
		return err
	}
	_ = l.m.Target.Sync() // reports what made the pass fail, if the pass did not
	// A device that still fails does so for good; whoever loads the model anew opens it anew.
	return l.m.Target.Sync()
}

// fail ends everything after a defect.
func (l *loop) fail(err error) {
	l.e.mu.Lock()
	l.e.failed = err
	queued, calls := l.e.queue, l.e.calls
	l.e.queue, l.e.calls = nil, nil
	l.e.mu.Unlock()
	for _, g := range queued {
		l.refuse(g, ReasonError, err)
	}
	for _, c := range append(calls, l.embeds...) {
		c.finish(nil, err)
	}
	for _, j := range slices.Clone(l.jobs) {
		j.g.finish(nil, Result{Reason: ReasonError, Err: err, Slot: j.slot, Stats: j.stats})
	}
	for _, x := range slices.Concat(l.soon, l.copies) {
		x.abort()
	}
	l.jobs, l.embeds, l.soon, l.copies, l.cache = nil, nil, nil, nil, nil
}

// admit moves requests from the queue into free slots. It returns false when the engine is to end.
func (l *loop) admit() bool {
	for {
		g, slot, end := l.take()
		if end {
			return false
		}
		if g == nil {
			return true
		}
		l.start(g, slot)
	}
}

// take takes the next request from the queue and the slot for it.
func (l *loop) take() (g *Generation, slot int, end bool) {
	e := l.e
	e.mu.Lock()
	defer e.mu.Unlock()
	l.embeds = append(l.embeds, e.calls...)
	e.calls = nil
	if e.abort || e.closing && len(e.queue) == 0 && len(l.jobs) == 0 && len(l.embeds) == 0 {
		return nil, 0, true
	}
	free := slices.Index(l.slots, nil)
	if free < 0 || slices.ContainsFunc(l.jobs, func(j *job) bool { return j.paused }) {
		return nil, 0, false // those who were paused come first
	}
	i := slices.IndexFunc(e.queue, func(g *Generation) bool {
		return (g.req.Slot == nil || l.slots[*g.req.Slot] == nil) && !l.follows(g)
	})
	if i < 0 {
		return nil, 0, false
	}
	g = e.queue[i]
	if slot = free; g.req.Slot != nil {
		slot = *g.req.Slot
	}
	e.queue = slices.Delete(e.queue, i, i+1)
	e.snap.Slots[slot] = Slot{ID: slot, Busy: true, State: g.State(), Draft: g.req.Spec.Draft, Since: time.Now()}
	return g, slot, false
}

// refuse ends a generation that was never admitted.
func (l *loop) refuse(g *Generation, r Reason, err error) {
	l.e.mu.Lock()
	l.e.snap.count(r)
	l.e.mu.Unlock()
	g.finish(nil, Result{Reason: r, Err: err, Slot: -1, Queued: time.Since(g.submitted)})
}

// start puts a generation into a slot.
func (l *loop) start(g *Generation, slot int) {
	j := newJob(l.m, g)
	j.slot = slot
	l.slots[slot] = j
	l.jobs = append(l.jobs, j)
	if j.loading = l.wanted(j); j.loading == nil {
		l.begin(j)
	}
}

// begin gives a job its memory and its first stream.
func (l *loop) begin(j *job) {
	l.lookup(j)
	if j.kept = j.seq.Len(); !j.again {
		j.cached = j.kept
	}
	l.mark(j)
	j.g.update(func(s *State) {
		s.Phase, s.Slot, s.Cached, s.Processed = PhasePrompt, j.slot, j.cached, min(j.kept, s.Prompt)
	})
	if j.g.req.Progress && j.generated() == 0 {
		j.g.progress() // at once: a pass over a chunk may take seconds
	}
	l.proceed(j)
}

// proceed gives a job its next stream if all images are encoded that it needs for its prompt.
func (l *loop) proceed(j *job) {
	if len(j.g.req.Images) > 0 {
		if j.images, j.waits = j.forTarget(l.m.Vision, j.seq.Len()); j.waits != nil {
			return
		}
		j.rows = nil
		j.g.update(func(s *State) { s.Encoding = 0 })
	}
	if err := j.next(l.r, l.e.cfg.Context); err != nil {
		l.end(j, ReasonError, err)
	}
}

// lookup gives a job its memory: a copy of the longest cached beginning of its prompt, or an empty one.
func (l *loop) lookup(j *job) {
	req := &j.g.req
	want := wanted(l.r, req.Spec)
	if l.cache != nil && !req.NoCache {
		if e, n := l.cache.find(text{j.g.salt, j.all()}, l.needs(req.Spec)); e != nil {
			var err error
			if j.seq, j.drafts, err = l.cache.take(e, n, want); err != nil {
				l.e.cfg.Log.Warn("prefix cache: entry not usable", "error", err)
				l.cache.drop(e)
				j.seq, j.drafts = nil, nil
			}
		}
	}
	if j.seq == nil {
		j.seq, j.drafts = l.m.Target.NewSeq(), newContexts(l.drafters, want)
	}
	if l.cache != nil && !req.NoCache && !j.again {
		l.cache.stats.Asked += int64(len(req.Tokens))
		l.cache.stats.Found += int64(j.seq.Len())
		if j.seq.Len() > 0 {
			l.cache.stats.Hits++
		} else {
			l.cache.stats.Misses++
		}
	}
}

// needs is the sources whose memory a prefix must have to serve a request: those that may draft for it, and none while
// drafters do not follow what runs. They do not follow this request either then, and keep nothing of it.
func (l *loop) needs(o speculate.Options) set {
	if !o.Fixed && l.r.Paused(len(l.jobs)) {
		return 0
	}
	return wanted(l.r, o)
}

// dropEnded ends the jobs whose request was cancelled.
func (l *loop) dropEnded() {
	for _, j := range slices.Clone(l.jobs) {
		if j.g.ctx.Err() != nil {
			l.end(j, ReasonCancelled, context.Cause(j.g.ctx))
		}
	}
}

// askDevices notes how much memory the GPUs have left. Drivers take their time to say, so running steps do not ask.
func (l *loop) askDevices() {
	if d := l.m.deviceMemory(); d != nil {
		l.e.mu.Lock()
		l.e.snap.Devices = d
		l.e.mu.Unlock()
	}
}

// rest waits for work. Time that nobody needs goes into saving the cache.
func (l *loop) rest() {
	e := (*entry)(nil)
	if len(l.jobs) == 0 {
		l.parkDrafters()
		l.askDevices()
		e = l.unsaved()
	}
	if e == nil {
		<-l.e.work
		return
	}
	select {
	case <-l.e.work:
	case <-time.After(l.e.saveDelay):
		l.save(e, func() bool {
			l.e.mu.Lock()
			defer l.e.mu.Unlock()
			return l.e.closing || len(l.e.queue) > 0 || len(l.e.calls) > 0
		})
	}
}

// step advances every job by a round or a piece of its prompt. It reports whether there was any. An
// error is the end of the engine.
func (l *loop) step() (bool, error) {
	live, streams := l.batch()
	if len(live) == 0 {
		return false, nil
	}
	start := time.Now()
	l.steps++
	if err := l.advance(streams); err != nil {
		if err := l.recover(live, err); err != nil {
			return true, err
		}
	}
	l.e.mu.Lock()
	l.e.snap.Steps++
	l.e.snap.BatchRows += int64(len(streams))
	l.e.snap.Busy += time.Since(start)
	l.e.mu.Unlock()
	for _, j := range live {
		if j.stream != nil {
			if j.g.req.Watch != nil {
				j.watch(start)
			}
			l.settle(j)
		}
	}
	return true, nil
}

// advance runs one step of the streams. A panic is its error, and so are weights that were written to while it ran:
// what it computed is worth nothing then.
func (l *loop) advance(streams []*speculate.Stream) error {
	generating := slices.ContainsFunc(streams, func(s *speculate.Stream) bool { return !s.Prefilling() })
	start, before := l.e.cfg.now(), unread(streams)
	err := l.guard(func() error { return l.r.Step(streams, l.chunk(generating)) })
	if n := before - unread(streams); l.e.cfg.paced && generating && n > 0 {
		l.pace.learn(n, l.e.cfg.now().Sub(start))
	}
	if l.e.change() == platform.Overwritten {
		err = fmt.Errorf("%s: %w", l.m.Path, ErrFileChanged)
	}
	if err == nil {
		l.defects = 0
	}
	return err
}

// chunk is how many prompt tokens a step may have.
func (l *loop) chunk(generating bool) int {
	if generating {
		return l.pace.chunk
	}
	return l.e.cfg.alone
}

// unread is the prompt tokens that are still to be run.
func unread(streams []*speculate.Stream) (n int) {
	for _, s := range streams {
		n += len(s.Prompt)
	}
	return n
}

// batch chooses who takes part in the next step: everyone who generates, and as many prompts as
// fit into a chunk. The prompt that waited longest comes first, so that none waits for another
// longer than a chunk per prompt.
func (l *loop) batch() (live []*job, streams []*speculate.Stream) {
	var prompts []*job
	for _, j := range l.jobs {
		if !j.running() || !j.ready(l.e.wake) {
			continue
		}
		if j.prefilling() {
			prompts = append(prompts, j)
		} else {
			live = append(live, j)
		}
	}
	slices.SortStableFunc(prompts, func(a, b *job) int { return cmp.Compare(a.served, b.served) })
	room := min(l.chunk(len(live) > 0), model.MaxRows-len(live))
	for i, j := range prompts {
		if room <= 0 {
			break
		}
		if i == 0 {
			j.served = l.steps + 1
		}
		live = append(live, j)
		room -= len(j.stream.Prompt)
	}
	for _, j := range live {
		streams = append(streams, j.stream)
	}
	return live, streams
}

// settle books what a step did for a job: its text, its checkpoints, its end.
func (l *loop) settle(j *job) {
	j.g.emit(j.out)
	j.out = j.out[:0]
	at := min(j.seq.Len(), len(j.g.req.Tokens))
	j.g.update(func(s *State) {
		s.Processed = min(at, s.Prompt)
		if len(j.tokens) > 0 {
			s.Phase = PhaseGenerate
		}
	})
	if j.g.req.Progress && j.generated() == 0 {
		j.g.progress()
	}
	l.checkpoint(j)
	if !j.prefilling() {
		for i := range j.images {
			j.images[i].Rows = nil // no later leg reads them
		}
	}
	if !j.stream.Done() {
		return
	}
	switch {
	case j.sampler.err != nil:
		l.end(j, ReasonError, j.sampler.err)
	case j.stream.Err() != nil:
		l.end(j, ReasonError, j.stream.Err())
	case j.last && j.reason == 0 && l.shift(j):
	case j.last:
		if j.reason == 0 {
			j.reason = ReasonLength
		}
		l.end(j, j.reason, nil)
	case j.seq.Len() == len(j.g.req.Tokens): // PromptOnly
		l.end(j, ReasonLength, nil)
	default:
		if err := j.next(l.r, l.e.cfg.Context); err != nil {
			l.end(j, ReasonError, err)
		}
	}
}

// end takes a job out of its slot. What its sequence remembers stays in the cache.
func (l *loop) end(j *job, r Reason, err error) {
	if j.seq != nil && !j.g.req.NoCache {
		all := slices.Concat(j.g.req.Tokens, j.tokens)
		l.texts[j.slot] = text{j.g.salt, all[:min(j.seq.Len(), len(all))]}
	}
	if r != ReasonError {
		l.keepWhole(j)
	}
	if errors.Is(err, ErrNotFinite) {
		l.e.mu.Lock()
		l.e.snap.NotFinite++
		l.e.mu.Unlock()
	}
	st := j.sum()
	if j.seq != nil {
		j.seq.Close()
	}
	j.drafts.close()
	l.slots[j.slot] = nil
	if l.jobs = slices.DeleteFunc(l.jobs, func(x *job) bool { return x == j }); len(l.jobs) == 0 {
		l.m.hold(false)
	}
	rest := j.text.Flush()
	res := Result{
		Reason: r, Stop: string(j.text.Stopped), Err: err, Slot: j.slot,
		Cached: j.cached, Generated: j.generated(), Forgotten: j.forgot,
		Queued: j.since.Sub(j.g.submitted), First: j.first, Stats: st,
	}
	if len(j.text.Stopped) > 0 && (r == ReasonLength || r == ReasonEOG) {
		res.Reason = ReasonStop // the last bytes completed a stop string
	}
	j.g.emit(j.out)
	l.e.mu.Lock()
	l.e.snap.count(res.Reason)
	l.e.snap.Stats.Add(st)
	s := &l.e.snap.Slots[j.slot]
	s.Busy, s.State = false, j.g.State()
	s.State.Phase = PhaseDone
	l.e.mu.Unlock()
	l.publish()
	j.g.finish(rest, res)
}

// publish makes the state visible to Snapshot.
func (l *loop) publish() {
	target, drafter := l.m.Target.Memory().UsedBytes(), 0
	var c CacheStats
	if l.disk != nil {
		l.disk.collect()
	}
	if l.cache != nil {
		c = l.cache.stats
		c.Entries, c.Bytes, c.Limit = len(l.cache.entries), l.cache.bytes(), l.cache.limit
	}
	for _, m := range l.drafters {
		if m != nil {
			drafter += m.UsedBytes()
		}
	}
	l.e.mu.Lock()
	defer l.e.mu.Unlock()
	l.e.snap.TargetBytes, l.e.snap.DrafterBytes, l.e.snap.Cache = target, drafter, c
	for _, j := range l.jobs {
		l.e.snap.Slots[j.slot].State = j.g.State()
	}
}

// close ends what is left.
func (l *loop) close() {
	l.e.mu.Lock()
	queued := l.e.queue
	l.e.queue = nil
	l.e.mu.Unlock()
	for _, g := range queued {
		l.refuse(g, ReasonCancelled, ErrClosed)
	}
	for _, j := range slices.Clone(l.jobs) {
		l.end(j, ReasonCancelled, ErrClosed)
	}
	for _, c := range l.embeds {
		c.finish(nil, ErrClosed)
	}
	l.stopEncoding()
	if l.disk != nil {
		if l.cache != nil {
			l.saveAll()
		}
		l.disk.close()
	}
	for _, r := range slices.Clone(l.restores) {
		l.drop(r)
	}
	for _, x := range l.copies {
		x.close()
	}
	if l.cache != nil {
		l.cache.shrink(0)
	}
	l.publish()
}
