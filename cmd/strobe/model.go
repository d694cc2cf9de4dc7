package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"strobe/internal/cache"
	"strobe/internal/device"
	"strobe/internal/draft/dflash"
	"strobe/internal/engine"
	"strobe/internal/sample"
	"strobe/internal/speculate"
	pictures "strobe/internal/vision/picture"
	"strobe/models"
)

// modelFlags are the flags of every command that runs a model.
type modelFlags struct {
	cmd            *cobra.Command
	model, drafter string
	moreDrafters   []string // beside that one
	threads        int
	device         string
	gpuLayers      string
	cpuExperts     string
	gpuMemory      byteSize
	draftDevice    string
	draftGPULayers string
	kv, kvk, kvv   string
	kvLayers       string
	kvDraft        string
	draftWindow    string
	ctx            int
	draft          string
	draftMax       int
	tree           string
	causal         string
	mtp            bool
	mmproj         string
	mmprojDevice   string
	noMMProj       bool
	imageRows      int
	like           pictures.Like
	prefill        prefillFlags
}

func (m *modelFlags) add(cmd *cobra.Command) {
	m.cmd = cmd
	f := cmd.Flags()
	f.VarP(&once{to: &m.model}, "model", "m",
		"the model: a name that \"strobe list --known\" shows, OWNER/REPO[:TYPE] of the Hugging Face hub, or a GGUF file "+
			"(default: the one built in, which completes Go code)")
	f.VarP(&several{&m.drafter, &m.moreDrafters}, "drafter", "d",
		"its drafter, likewise, or a folder with a checkpoint, or none; "+drafterTurns+
			" (default: the one made for the model, the one beside it, or what its own file has)")
	f.IntVar(&m.threads, "threads", 0,
		"CPU threads, at most as many as there are cores (default: all, or all performance cores)")
	f.StringVar(
		&m.device,
		"device",
		"auto",
		"what runs the model: auto (the first GPUs that have room, or the processor), cpu, cuda, cuda:N, cuda:0,cuda:1, vulkan",
	)
	f.IntVarP(&m.ctx, "ctx", "c", 0, "context length in tokens (default: the model's)")
	f.Var(&once{to: &m.mmproj}, "mmproj",
		"the model's image encoder: a file, or OWNER/REPO:FILE of the hub (default: the file beside the model that has "+
			"mmproj in its name)")
	f.BoolVar(&m.noMMProj, "no-mmproj", false, "load no image encoder")
	f.IntVar(&m.imageRows, "image-max-tokens", 0,
		"tokens an image may have, unless a request says otherwise (default: what suits model and device)")
	end := group(f, memoryFlags)
	f.StringVar(&m.gpuLayers, "gpu-layers", "auto",
		"layers on GPUs, the others run on the processor: auto (as many as fit) or a number")
	f.StringVar(&m.cpuExperts, "cpu-experts", "auto",
		"whose experts the processor keeps: auto (of as few layers as it takes to fit), all, or those of the first N layers")
	f.Var(&m.gpuMemory, "gpu-memory", "use no more than so much of each GPU's memory, as if it had no more (default: all)")
	f.StringVar(&m.mmprojDevice, "mmproj-device", "auto",
		"what runs the image encoder: auto (where the model's output is), cpu, cuda, cuda:N or vulkan:N")
	f.StringVar(&m.kv, "kv", "f16",
		"type of cached keys and values: f32, f16, q8_0, q4_1, q4_0, turbo4 or turbo3 (3 bits)")
	f.StringVar(&m.kvk, "kv-k", "", "type of cached keys (default: as --kv)")
	f.StringVar(&m.kvv, "kv-v", "", "type of cached values (default: as --kv)")
	f.StringVar(&m.kvLayers, "kv-layers", "", "other types for layers, such as 0=f16,4-7=q8_0/turbo4 (keys/values)")
	f.StringVar(&m.kvDraft, "kv-draft", "", "type of the drafter's cache (default: f16, or f32 with --kv f32)")
	end()
	end = group(f, draftingFlags)
	f.StringVar(&m.draft, "draft", "auto", "what drafts: auto, off, dflash, eagle3, mtp or ngram")
	f.IntVar(&m.draftMax, "draft-max", 0, "most tokens drafted per round (default: what the drafter was trained for)")
	f.StringVar(&m.draftDevice, "draft-device", "auto",
		"what runs the drafter: auto (where the model's output is), cpu, cuda, cuda:N or vulkan:N")
	f.StringVar(&m.draftGPULayers, "draft-gpu-layers", "auto",
		"layers of a DFlash drafter on its GPU, the others run on the processor: auto (all) or a number")
	f.StringVar(&m.draftWindow, "draft-window", "auto",
		"tokens back that a DFlash drafter looks: auto (the file, known drafters, or by trial; 4096 at most), "+
			"off (as the file says) or a number")
	f.StringVar(&m.tree, "tree", "auto", "verify a tree of drafts: auto, off, or a number of nodes")
	f.BoolVar(&m.mtp, "mtp", false, "use the model's layer for multi-token prediction beside a drafter, too")
	f.StringVar(&m.causal, "draft-causal", "auto", "attention inside the drafter's block: auto, on (causal) or off")
	end()
	m.prefill.add(cmd)
	cmd.ValidArgsFunction = completeModel
	for name, complete := range map[string]cobra.CompletionFunc{
		"model": completeModel, "drafter": completeModel, "prefill-scorer": completeModel,
		"draft": cobra.FixedCompletions([]string{"auto", "off", "dflash", "eagle3", "mtp", "ngram"},
			cobra.ShellCompDirectiveNoFileComp),
	} {
		_ = cmd.RegisterFlagCompletionFunc(name, complete) // fails for flags that are not there
	}
}

// drafterTurns is what -d says of several drafters, in commands that use them together.
const drafterTurns = "repeated, drafters of different kinds that take turns"

// load opens the model the flags name.
func (m *modelFlags) load() (*engine.Model, error) {
	if _, err := m.options(); err != nil { // before anything is downloaded
		return nil, err
	}
	if err := m.find(); err != nil {
		return nil, err
	}
	opt, err := m.options()
	if err != nil {
		return nil, err
	}
	var bar *progress
	last, start := 0, time.Now()
	name := models.Name
	if m.model != "" {
		name = filepath.Base(m.model)
	}
	slow := tell(m.cmd, func() string { return fmt.Sprintf("loading %s: %.0f s", name, time.Since(start).Seconds()) })
	opt.Progress = func(done, total int) { // a GPU gets the weights; the processor maps them
		slow.end()
		if bar == nil && m.cmd != nil {
			bar = newProgress(m.cmd, "loading", int64(total))
		}
		bar.Add(int64(done - last))
		last = done
	}
	opt.Say = func(line string) { infof(m.cmd, "%s", line) }
	if opt.Prefill.Log == nil {
		opt.Prefill.Log = opt.Say
	}
	e, err := m.openOrLeave(opt)
	slow.end()
	bar.Stop()
	if err != nil {
		return nil, err
	}
	if n := e.Target.Context; m.ctx > n {
		e.Close()
		return nil, usagef("--ctx %d: the model's context holds at most %d tokens", m.ctx, n)
	}
	if err := m.checkDrafter(e); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

// options is how the flags want a model to be loaded.
func (m *modelFlags) options() (engine.Options, error) {
	opt := engine.Options{
		Threads: m.threads, Device: m.device, DraftDevice: m.draftDevice, Drafter: m.drafter, MoreDrafters: m.moreDrafters,
		KV: m.kv, KVKey: m.kvk, KVValue: m.kvv, KVLayers: m.kvLayers, KVDraft: m.kvDraft, MTP: m.mtp || m.draft == "mtp",
		Vision: m.mmproj, VisionDevice: m.mmprojDevice, ImageRows: m.imageRows, ImageLike: m.like,
	}
	if len(m.moreDrafters) > 0 && (m.drafter == "none" || slices.Contains(m.moreDrafters, "none")) {
		return opt, usagef("-d none: there are other drafters, too; give none or the others")
	}
	if m.noMMProj {
		if m.mmproj != "" {
			return opt, usagef("--mmproj and --no-mmproj exclude each other")
		}
		opt.Vision = "none"
	}
	if err := device.Check(m.mmprojDevice); err != nil {
		return opt, usagef("--mmproj-device: %w", err)
	}
	if strings.Contains(m.mmprojDevice, ",") {
		return opt, usagef("--mmproj-device %q: an image encoder has one device", m.mmprojDevice)
	}
	for _, kv := range [][4]string{{m.kv, m.kvk, m.kvv, m.kvLayers}, {m.kvDraft}} {
		if _, err := cache.ParseTypes(kv[0], kv[1], kv[2], kv[3]); err != nil {
			return opt, usageError{err}
		}
	}
	opt.GPUMemory = int(m.gpuMemory)
	switch m.draftWindow {
	case "auto":
	case "off":
		opt.DraftWindow = dflash.WindowOff
	default:
		n, err := strconv.Atoi(m.draftWindow)
		if err != nil || n < 1 {
			return opt, usagef("--draft-window %q: want auto, off or a number of tokens", m.draftWindow)
		}
		opt.DraftWindow = n
	}
	if err := device.Check(m.device); err != nil {
		return opt, usageError{err}
	}
	if err := device.Check(m.draftDevice); err != nil {
		return opt, usagef("--draft-device: %w", err)
	}
	if strings.Contains(m.draftDevice, ",") {
		return opt, usagef("--draft-device %q: a drafter has one device", m.draftDevice)
	}
	for name, v := range map[string]int{"ctx": m.ctx, "threads": m.threads, "draft-max": m.draftMax,
		"image-max-tokens": m.imageRows} {
		if v < 0 {
			return opt, usagef("--%s %d: want 0 or more", name, v)
		}
	}
	var ok bool
	if opt.GPULayers, ok = layerCount(m.gpuLayers); !ok {
		return opt, usagef("--gpu-layers %q: want auto or a number", m.gpuLayers)
	}
	if opt.DraftGPULayers, ok = layerCount(m.draftGPULayers); !ok {
		return opt, usagef("--draft-gpu-layers %q: want auto or a number", m.draftGPULayers)
	}
	if m.cpuExperts == "all" {
		opt.CPUExperts = engine.AllExperts
	} else if opt.CPUExperts, ok = layerCount(m.cpuExperts); !ok {
		return opt, usagef("--cpu-experts %q: want auto, all or a number of layers", m.cpuExperts)
	}
	switch m.causal {
	case "auto":
	case "on":
		opt.Causal = dflash.CausalOn
	case "off":
		opt.Causal = dflash.CausalOff
	default:
		return opt, usagef("--draft-causal %q: want auto, on or off", m.causal)
	}
	if m.draft == "off" || m.draft == "ngram" {
		opt.Drafter, opt.MoreDrafters = "none", nil
	}
	if err := m.prefill.apply(&opt); err != nil {
		return opt, err
	}
	_, err := m.spec()
	return opt, err
}

// layerCount reads a number of layers as options have it: 0 stands for auto, -1 for none.
func layerCount(s string) (n int, ok bool) {
	if s == "auto" {
		return 0, true
	}
	n, err := strconv.Atoi(s)
	if n == 0 {
		return -1, err == nil
	}
	return n, err == nil && n > 0
}

// checkDrafter refuses a model without the source of guesses that the flags insist on.
func (m *modelFlags) checkDrafter(e *engine.Model) error {
	spec, err := m.spec()
	if err != nil {
		return err
	}
	if (m.mtp || m.draft == "mtp") && e.MTP == nil {
		return fmt.Errorf("%s: no layer for multi-token prediction: the model has none, or was converted without; "+
			"give one with -d FILE", e.Path)
	}
	if err := e.Runner.Check(spec.Draft); err != nil {
		return usageError{err}
	}
	return nil
}

// openOrLeave is open, given up when the command is interrupted. Nothing can interrupt the loading itself, so nobody
// waits for it; the process ends.
func (m *modelFlags) openOrLeave(opt engine.Options) (*engine.Model, error) {
	ctx := m.cmd.Context()
	if ctx == nil {
		return m.open(opt)
	}
	type opened struct {
		e   *engine.Model
		err error
	}
	done := make(chan opened, 1)
	go func() {
		e, err := m.open(opt)
		done <- opened{e, err}
	}()
	select {
	case o := <-done:
		return o.e, o.err
	case <-ctx.Done():
		go func() {
			if o := <-done; o.err == nil {
				o.e.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

// open loads the file the flags name, or the pair that is part of the program.
func (m *modelFlags) open(opt engine.Options) (*engine.Model, error) {
	if m.model != "" {
		return engine.Load(m.model, opt)
	}
	var src engine.Source
	var err error
	if src.Target, src.Drafter, err = models.Open(); err != nil {
		return nil, err
	}
	switch opt.Drafter {
	case "":
	case "none":
		src.Drafter = nil
	default:
		src.Drafter = nil
		if err = src.AddDrafters(append([]string{opt.Drafter}, opt.MoreDrafters...)...); err != nil {
			return nil, err
		}
	}
	return engine.LoadFiles(src, opt)
}

// spec returns how the flags want drafts to be made and verified.
func (m *modelFlags) spec() (opt speculate.Options, err error) {
	if opt.Draft, err = engine.ParseDraft(m.draft); err != nil {
		return opt, usageError{err}
	}
	opt.Max = m.draftMax
	switch m.tree {
	case "auto":
	case "off":
		opt.Tree = speculate.TreeOff
	default:
		if _, err := fmt.Sscanf(m.tree, "%d", &opt.Tree); err != nil || opt.Tree < 1 {
			return opt, usagef("--tree %q: want auto, off or a number of nodes", m.tree)
		}
	}
	return opt, nil
}

// sampleFlags are the flags that choose tokens.
type sampleFlags struct {
	sample.Params
	seed int64
}

func (s *sampleFlags) add(cmd *cobra.Command, temp float32) {
	f := cmd.Flags()
	defer group(f, samplingFlags)()
	f.Float32Var(&s.Temp, "temp", temp, "temperature; 0 always takes the most likely token")
	f.IntVar(&s.TopK, "top-k", 40, "choose among the k most likely tokens; 0 means all")
	f.Float32Var(&s.TopP, "top-p", 0.95, "choose among the most likely tokens that reach this probability")
	f.Float32Var(&s.MinP, "min-p", 0.05, "drop tokens less likely than this fraction of the best")
	f.Float32Var(&s.TypicalP, "typical-p", 1, "locally typical sampling; 1 turns it off")
	f.Float32Var(&s.RepeatPenalty, "repeat-penalty", 1, "penalty for tokens that occurred; 1 turns it off")
	f.Float32Var(&s.PresencePenalty, "presence-penalty", 0, "subtracted once from tokens that occurred")
	f.Float32Var(&s.FrequencyPenalty, "frequency-penalty", 0, "subtracted per occurrence")
	f.IntVar(&s.RepeatLastN, "repeat-last-n", 64, "tokens the penalties look back")
	f.Float32Var(&s.DRY.Multiplier, "dry-multiplier", 0, "penalty for continuing a repetition (DRY); 0 turns it off")
	f.Int64Var(&s.seed, "seed", -1, "seed of the random numbers; negative takes a new one each time")
}

// check names the flag whose value makes no sense.
func (s *sampleFlags) check() error {
	for _, f := range []struct {
		name    string
		v, most float32
	}{
		{"temp", s.Temp, math.MaxFloat32}, {"top-p", s.TopP, 1}, {"min-p", s.MinP, 1}, {"typical-p", s.TypicalP, 1},
		{"top-k", float32(s.TopK), math.MaxFloat32}, {"repeat-penalty", s.RepeatPenalty, math.MaxFloat32},
		{"dry-multiplier", s.DRY.Multiplier, math.MaxFloat32},
	} {
		switch {
		case f.v >= 0 && f.v <= f.most: // not so for what is no number
		case f.most == 1:
			return usagef("--%s %v: want 0 to 1", f.name, f.v)
		default:
			return usagef("--%s %v: want 0 or more", f.name, f.v)
		}
	}
	if err := s.Params.Validate(); err != nil {
		return usageError{err}
	}
	return nil
}

// params are the settings of the turn-th answer, each with a seed of its own.
func (s *sampleFlags) params(turn int) (sample.Params, error) {
	p := s.Params
	p.Seed = uint64(s.seed) + uint64(turn)
	if s.seed < 0 {
		p.Seed = rand.Uint64()
	}
	return p, s.check()
}
