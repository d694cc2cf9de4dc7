package bench

import (
	"context"
	"time"

	"strobe/internal/backend/gpu"
	"strobe/internal/bench/floor"
	"strobe/internal/engine"
)

// MachineConfig says how to measure passes and floors. The zero value works.
type MachineConfig struct {
	ReadBytes int // buffer whose reading speed counts as that of memory; 0 means 512 MiB
	Rounds    int // 0 means 9; large models get fewer, see Budget
	// Budget is the time after which no further round begins, once there are three; 0 means 20 s.
	Budget  time.Duration
	Rows    []int
	Prompt  int // length of the prompt to time; 0 means 512
	Chunk   int // prompt tokens per pass; 0 means 128
	Context int // tokens in the cache before a pass; 0 means 64, and 1024 on a GPU
}

func (c MachineConfig) withDefaults(m *engine.Model) MachineConfig {
	set := func(v *int, def int) {
		if *v <= 0 {
			*v = def
		}
	}
	set(&c.ReadBytes, 512<<20)
	set(&c.Rounds, 9)
	set(&c.Prompt, 512)
	set(&c.Chunk, 128)
	set(&c.Context, 64)
	if c.Budget <= 0 {
		c.Budget = 20 * time.Second
	}
	if len(c.Rows) == 0 {
		c.Rows = []int{1, 2, 4, 8, 16, 32}
	}
	c.Context = min(c.Context, m.Target.Context/4)
	c.Prompt = min(c.Prompt, m.Target.Context-1)
	return c
}

// Machine compares passes of the target with what the machine can do. Rates are medians over the
// rounds; all of them were measured in the same rounds.
type Machine struct {
	Threads int `json:"threads"`
	// ReadOne and ReadAll are the speed of reading memory with one and all threads, bytes per second.
	ReadOne Spread `json:"read_bytes_per_second_1_thread"`
	ReadAll Spread `json:"read_bytes_per_second"`
	// ReadWeights is the speed of reading as many bytes as a token needs over and over. It is higher than
	// ReadAll when they fit the processor's caches, and the floor that counts then.
	ReadWeights Spread `json:"read_weights_bytes_per_second"`
	Dot         Spread `json:"integer_macs_per_second"`

	Passes []Pass `json:"passes"`
	// DecodeShare is the floor of a pass of one token divided by its time.
	DecodeShare      float64 `json:"decode_share_of_floor"`
	QuietDecodeShare float64 `json:"quiet_decode_share_of_floor"` // of the fastest rounds

	PromptTokens          int    `json:"prompt_tokens"`
	PromptTokensPerSecond Spread `json:"prompt_tokens_per_second"`

	// Of a GPU: where the time of passes goes.
	Profiles []PassProfile `json:"profiles,omitempty"`
}

// PassProfile is where the time of a pass goes on a GPU. Kernels are timed one by one, so their sum is more than the
// pass takes.
type PassProfile struct {
	Rows    int              `json:"rows"`
	Kernels []gpu.KernelTime `json:"kernels"`
}

// gpuDevice is a GPU as the measurements see it.
type gpuDevice interface {
	Bandwidth() (float64, error)
	Profile(fn func() error) ([]gpu.KernelTime, error)
}

// Pass is the cost of a pass of several tokens of one sequence.
type Pass struct {
	Rows         int     `json:"rows"`
	Milliseconds Spread  `json:"milliseconds"`
	Ratio        float64 `json:"ratio"` // to one row, inside a round
	// The two floors: reading the weights, and multiplying. The pass cannot beat the larger one.
	ReadFloor        float64 `json:"read_floor_milliseconds"`
	DotFloor         float64 `json:"integer_floor_milliseconds"`
	Share            float64 `json:"share_of_floor"`    // the larger floor divided by the time
	HostMilliseconds float64 `json:"host_milliseconds"` // of them, until the device has its work
	// The same from the fastest rounds: what a quiet machine would show.
	QuietRatio float64 `json:"quiet_ratio"`
	QuietShare float64 `json:"quiet_share_of_floor"`
}

// threadsOf is the number of processor threads that run the model; one for other devices.
func threadsOf(m *engine.Model) int {
	if b, ok := m.Backend().(interface{ Threads() int }); ok {
		return b.Threads()
	}
	return 1
}

// MeasureMachine times passes of m and the machine's floors.
func MeasureMachine(ctx context.Context, m *engine.Model, cfg MachineConfig) (*Machine, error) {
	if d, ok := m.Backend().(gpuDevice); ok {
		if cfg.Context == 0 {
			cfg.Context = 1024
		}
		cfg = cfg.withDefaults(m)
		return measureGPU(ctx, m, d, cfg)
	}
	cfg = cfg.withDefaults(m)
	threads := threadsOf(m)
	w := weightsOf(m.Target.File(), &m.Target.Config)
	memory := floor.NewReader(cfg.ReadBytes)
	weights := memory
	if int(w.bytes(1)) < cfg.ReadBytes/2 { // else they do not fit the caches either
		weights = floor.NewReader(int(w.bytes(1)))
	}
	p, err := newProbe(m, cfg)
	if err != nil {
		return nil, err
	}
	defer p.close()

	var one, all, cached, dot, prompt []float64
	times := make([][]float64, len(cfg.Rows))
	start := time.Now()
	for round := range cfg.Rounds {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		late := time.Since(start) > cfg.Budget
		if late && round >= 3 {
			break
		}
		one = append(one, readRate(memory, 1, cfg.ReadBytes/16))
		all = append(all, readRate(memory, threads, cfg.ReadBytes/8))
		cached = append(cached, readRate(weights, threads, max(weights.Size(), 16<<20)))
		n, took := floor.Dot(threads, 4*time.Millisecond)
		dot = append(dot, rate(n, took))
		if err := p.settle(); err != nil {
			return nil, err
		}
		for i, rows := range cfg.Rows {
			d, err := p.pass(rows)
			if err != nil {
				return nil, err
			}
			times[i] = append(times[i], d.Seconds()*1e3)
		}
		if round%4 == 0 && (round == 0 || !late) { // a prompt takes as long as all of the above
			s, err := p.prompt(ctx, cfg.Prompt, cfg.Chunk)
			if err != nil {
				return nil, err
			}
			prompt = append(prompt, s)
		}
	}
	mc := &Machine{Threads: threads, ReadOne: NewSpread(one), ReadAll: NewSpread(all), ReadWeights: NewSpread(cached),
		Dot: NewSpread(dot), PromptTokens: cfg.Prompt, PromptTokensPerSecond: NewSpread(prompt)}
	for i, rows := range cfg.Rows {
		mc.Passes = append(mc.Passes, mc.pass(rows, times[i], times[0], &w))
	}
	if len(mc.Passes) > 0 && mc.Passes[0].Rows == 1 {
		mc.DecodeShare, mc.QuietDecodeShare = mc.Passes[0].Share, mc.Passes[0].QuietShare
	}
	return mc, nil
}

// warmRounds is how many passes of a size go by until a GPU has their launches recorded.
const warmRounds = 4

// measureGPU times passes of m on a GPU, whose floor is reading the weights.
func measureGPU(ctx context.Context, m *engine.Model, d gpuDevice, cfg MachineConfig) (*Machine, error) {
	w := weightsOf(m.Target.File(), &m.Target.Config)
	speed, err := d.Bandwidth()
	if err != nil {
		return nil, err
	}
	p, err := newProbe(m, cfg)
	if err != nil {
		return nil, err
	}
	defer p.close()
	read := NewSpread([]float64{speed})
	mc := &Machine{ReadOne: read, ReadAll: read, ReadWeights: read, PromptTokens: cfg.Prompt}
	times, hosts := make([][]float64, len(cfg.Rows)), make([][]float64, len(cfg.Rows))
	var prompt []float64
	for round := range cfg.Rounds + warmRounds {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		for i, rows := range cfg.Rows {
			if _, err := p.pass(rows); err != nil { // as in decoding, a pass follows one like it
				return nil, err
			}
			took, err := p.pass(rows)
			if err != nil {
				return nil, err
			}
			if round >= warmRounds {
				times[i] = append(times[i], took.Seconds()*1e3)
				hosts[i] = append(hosts[i], p.host.Seconds()*1e3)
			}
		}
		if round < warmRounds+6 {
			s, err := p.prompt(ctx, cfg.Prompt, cfg.Chunk)
			if err != nil {
				return nil, err
			}
			if round >= warmRounds {
				prompt = append(prompt, s)
			}
		}
	}
	mc.PromptTokensPerSecond = NewSpread(prompt)
	for i, rows := range cfg.Rows {
		mc.Passes = append(mc.Passes, mc.pass(rows, times[i], times[0], &w))
		mc.Passes[i].HostMilliseconds = median(hosts[i])
	}
	mc.DecodeShare, mc.QuietDecodeShare = mc.Passes[0].Share, mc.Passes[0].QuietShare
	for _, rows := range []int{1, 16, cfg.Prompt} {
		ks, err := d.Profile(func() error {
			if rows == cfg.Prompt {
				_, err := p.prompt(ctx, rows, cfg.Chunk)
				return err
			}
			_, err := p.pass(rows)
			return err
		})
		if err != nil {
			return nil, err
		}
		mc.Profiles = append(mc.Profiles, PassProfile{rows, ks})
	}
	return mc, nil
}

func (mc *Machine) pass(rows int, times, one []float64, w *weights) Pass {
	p := Pass{Rows: rows, Milliseconds: NewSpread(times), Ratio: median(ratios(times, one))}
	p.ReadFloor = milliseconds(w.bytes(rows), max(mc.ReadWeights.Median, mc.ReadAll.Median))
	p.DotFloor = milliseconds(float64(rows)*w.macs(), mc.Dot.Median)
	quiet := max(milliseconds(w.bytes(rows), max(mc.ReadWeights.Max, mc.ReadAll.Max)),
		milliseconds(float64(rows)*w.macs(), mc.Dot.Max))
	if t := p.Milliseconds; t.Min > 0 {
		p.Share = max(p.ReadFloor, p.DotFloor) / t.Median
		p.QuietShare = quiet / t.Min
		p.QuietRatio = t.Min / NewSpread(one).Min
	}
	return p
}

// milliseconds is the time of n things at a rate per second.
func milliseconds(n, rate float64) float64 {
	if rate <= 0 {
		return 0
	}
	return n / rate * 1e3
}

func readRate(r *floor.Reader, threads, n int) float64 {
	got, took := r.Read(threads, n)
	return rate(got, took)
}
