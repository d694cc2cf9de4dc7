package engine

import (
	"maps"
	"slices"
	"time"

	"strobe/internal/speculate"
)

// Slot is what one of the Parallel places of an engine does.
type Slot struct {
	ID    int
	Busy  bool
	State State     // of the generation in it, or of the last one; its tokens counts are zero before the first
	Draft string    // as in speculate.Options
	Since time.Time // when the generation was admitted
}

// Snapshot is the state and the counters of an engine, as of its last step. Counters only grow.
type Snapshot struct {
	Started time.Time
	Slots   []Slot
	Queued  int

	Requests  map[Reason]int64 // that ended, by reason
	Rejected  int64            // refused because the queue was full
	Paused    int64            // times that a generation gave its memory back and began anew
	NotFinite int64            // ended because the model's output was no number
	Steps     int64            // passes of the target
	BatchRows int64            // streams in these passes; divided by Steps it is the mean batch
	Busy      time.Duration    // time in steps

	// Stats sums the streams that ended: Prompt, Cached, Tokens, Guessed, Accepted and so on.
	Stats speculate.Stats

	Cache CacheStats

	Devices []DeviceMemory // GPUs, as of the last time that there was nothing to do

	TargetBytes, DrafterBytes int // keys, values and states in memory: running streams and cache
}

// CacheStats is the state and the counters of the prefix cache.
type CacheStats struct {
	Entries       int
	Bytes         int64 // memory that entries hold, shared pages counted once
	Limit         int64
	Hits, Misses  int64 // requests
	Asked, Found  int64 // tokens of prompts, and how many of them were there
	Evicted       int64 // entries dropped for others
	Shortened     int64 // entries of which only a beginning was kept, for others or because the whole does not fit
	TooLarge      int64 // entries that do not fit and cannot be shortened
	DiskEntries   int
	DiskBytes     int64
	DiskHits      int64
	DiskWritten   int64 // files
	DiskCorrupted int64 // files dropped because they were damaged
}

// Active is the number of busy slots.
func (s *Snapshot) Active() int {
	n := 0
	for _, x := range s.Slots {
		if x.Busy {
			n++
		}
	}
	return n
}

func (s *Snapshot) free() int { return len(s.Slots) - s.Active() }

func (s *Snapshot) count(r Reason) {
	if s.Requests == nil {
		s.Requests = make(map[Reason]int64)
	}
	s.Requests[r]++
}

// Snapshot returns the engine's state and counters.
func (e *Engine) Snapshot() Snapshot {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.snap
	s.Queued = len(e.queue)
	s.Slots = slices.Clone(s.Slots)
	s.Requests = maps.Clone(s.Requests)
	s.Stats.BySource = maps.Clone(s.Stats.BySource)
	s.Devices = slices.Clone(s.Devices)
	return s
}
