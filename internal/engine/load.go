// Package engine turns model files into running generations.
//
// Load opens a target with its drafter, tokenizer and chat template; a Model belongs to one goroutine
// at a time. New gives it to an Engine, which runs many generations at once:
//
//	m, err := engine.Load("model.gguf", engine.Options{})
//	e := engine.New(m, engine.Config{})
//	defer e.Close(ctx)
//	ids := m.Tokenizer.Encode("Hello", tokenizer.EncodeOptions{AddSpecial: true})
//	g, err := e.Submit(ctx, engine.Request{Tokens: ids})
//	for {
//		ev, err := g.Next(ctx) // text as it comes
//		if err != nil || ev.Result != nil {
//			break // ev.Result is set in the last event
//		}
//	}
//
// A Pool keeps several models, each with its engine, within a memory budget.
//
// For one loaded model the answer to a request depends on its tokens, parameters and seed alone: not on what runs
// beside it, on speculation, or on what the prefix cache holds.
//
// Goroutines: an Engine has one that owns the model and everything computed with it (loop.go). That one starts others
// which write cache files or read them ahead (disk.go, restore.go), and waits for them before it ends; Close waits for
// it. A Pool starts one per load, per eviction and per scan of its folder; its Close waits for evictions. Loads and
// scans cannot be interrupted and end on their own.
package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/cache"
	"strobe/internal/device"
	"strobe/internal/draft"
	"strobe/internal/draft/dflash"
	"strobe/internal/draft/eagle3"
	"strobe/internal/draft/mtp"
	"strobe/internal/gguf"
	"strobe/internal/model"
	"strobe/internal/nn"
	"strobe/internal/pflash"
	"strobe/internal/platform"
	"strobe/internal/sample"
	"strobe/internal/speculate"
	"strobe/internal/tokenizer"
	"strobe/internal/vision/picture"
)

// Options says how to load a model. The zero value uses all cores, an F16 cache and the drafter
// that lies beside the target.
type Options struct {
	Threads int
	// Device runs the model: "cpu", "cuda", "cuda:N", "vulkan", or several GPUs with commas between, which share the
	// layers. "" and "auto" mean the first GPUs that have room for it, with the help of the processor, or the processor
	// alone.
	Device string
	// GPULayers is how many layers GPUs get, the last ones; the processor runs the others. 0 means as many as fit,
	// negative none.
	GPULayers int
	// CPUExperts is of how many layers, the first ones, the processor keeps the experts. 0 means as many as it takes for
	// the other parts of layers to fit, negative none.
	CPUExperts int
	// DraftDevice runs the drafter; "" and "auto" mean the one that has the target's output.
	DraftDevice string
	// DraftGPULayers is how many of a DFlash drafter's layers that one runs, if it is a GPU, the last ones; the processor
	// runs the others. 0 means all, negative none.
	DraftGPULayers int
	// GPUMemory, if above 0, makes each GPU behave as one with so many bytes.
	GPUMemory int
	// Say, if set, is told before weights are loaded to a GPU what will lie where, and how much memory that takes; and
	// what looks wrong with the files.
	Say func(line string)
	// Progress, if set, is told how many bytes of weights a GPU has got, of how many.
	Progress func(done, total int)
	// KV is the type of cached keys and values (quant.CacheTypes), f16 by default; KVKey and KVValue choose for one of
	// the two, and KVLayers makes exceptions for layers (cache.ParseTypes).
	KV, KVKey, KVValue, KVLayers string
	// KVDraft is the type of the drafter's cache: f16 by default, and f32 where KV is f32.
	KVDraft string
	// DraftWindow is how many tokens back a DFlash drafter looks; see dflash.Options.
	DraftWindow int
	// Drafter is the file of the drafter. "" looks beside the target and takes what the target's own file has
	// otherwise; "none" uses none.
	Drafter string
	// MoreDrafters are files of drafters beside that one, each of another kind. Every round uses the one that promises
	// most.
	MoreDrafters []string
	// MTP uses the block for multi-token prediction in the target's file beside another drafter, too.
	MTP    bool
	Causal dflash.Causal
	// Scorer is the file of a small model that shortens long prompts, "self" for the target; "" leaves prompts as they
	// are. Prefill says how; its device is the target's unless it names one.
	Scorer string
	// SparsePrefill, if above 0, makes prompts attend to chosen blocks (backend.Sparse.Alpha), where the device can do
	// it.
	SparsePrefill float32
	// DecodeWindow, if above 0, is how many tokens back generated tokens look, besides the first message.
	DecodeWindow int
	Prefill      pflash.Options
	// NoPark keeps the weights of scorer and drafters on their device. Otherwise they leave it while they are not needed
	// and less than a tenth of it is free.
	NoPark bool
	open   func(name string, opt device.Options) (backend.Backend, error) // device.Open, but in tests
	// Vision is the file of the image encoder (mmproj). "" looks beside the target, "none" uses none. VisionDevice runs
	// it; "" and "auto" mean the one that has the target's output.
	Vision, VisionDevice string
	// ImageRows is how many rows an image has at most, unless a request says otherwise; 0 means what suits the model and
	// the device. ImageLike says whose way of reading images is followed where programs differ.
	ImageRows int
	ImageLike picture.Like
	// Template is the chat template to use instead of the file's; "" leaves that.
	Template string
}

// Model is a loaded target with everything needed to generate text.
type Model struct {
	Target    *model.Model
	Drafter   *dflash.Drafter // nil for none
	MTP       *mtp.Drafter    // nil for none
	Eagle     *eagle3.Drafter // nil for none
	Tokenizer *tokenizer.Tokenizer
	Runner    *speculate.Runner
	Template  string          // chat template, "" for none
	Sampling  sample.Defaults // what its makers recommend
	Prefill   *pflash.Prefill // shortens prompts; nil if they are left as they are
	Vision    *Vision         // reads images; nil if the model does not

	Path, DrafterPath string
	MoreDrafterPaths  []string          // of drafters beside the one of DrafterPath
	Phases            []LoadPhase       // of loading, in their order
	names             []string          // of the devices, as they were opened
	window            int               // of generated tokens; 0 for none
	noPark            bool              // drafters stay on their device
	announced         []DeviceMemory    // of the target's GPUs
	lossy             string            // settings that change what is remembered of a prompt
	drafterFiles      map[string]string // paths, by the names of the sources
	backends          []backend.Backend
	files             []*gguf.File
}

// LoadPhase is a part of loading and what it took.
type LoadPhase struct {
	Name string        `json:"name"`
	Took time.Duration `json:"ns"`
}

// Uploads is how long weights were repacked for GPUs and copied to them. Both happen at the same time.
func (m *Model) Uploads() (repack, upload time.Duration) {
	for _, b := range m.backends {
		if l, ok := b.(interface {
			Loading() (repack, upload time.Duration)
		}); ok {
			r, u := l.Loading()
			repack, upload = repack+r, upload+u
		}
	}
	return repack, upload
}

// ParseDraft reads the choice of a source of drafts: auto, off, or the name of one that models may have.
func ParseDraft(s string) (string, error) {
	switch s {
	case "auto":
		return speculate.Auto, nil
	case speculate.Off, "dflash", "eagle3", "mtp", "ngram":
		return s, nil
	}
	return "", fmt.Errorf("draft source %q: want auto, off, dflash, eagle3, mtp or ngram", s)
}

// Small models, and those that GPUs run, are calibrated when they are loaded: that takes less time than starting the
// program, and kernels are compiled before the first user comes. Large ones on a processor would make him wait, and
// learn from what they do for him instead.
const (
	calibrateBelow = 512 << 20 // bytes of weights
	calibrateTime  = 200 * time.Millisecond
)

// Source is an opened model file and, when known, its drafter, and more of them.
type Source struct {
	Target, Drafter *gguf.File
	More            []*gguf.File // drafters of other kinds
}

// drafters lists the files of all drafters.
func (s Source) drafters() []*gguf.File {
	if s.Drafter == nil {
		return s.More
	}
	return append([]*gguf.File{s.Drafter}, s.More...)
}

// close closes all files.
func (s Source) close() {
	s.Target.Close()
	for _, f := range s.drafters() {
		f.Close()
	}
}

// ErrFileChanged reports a model whose file another program changed while it was read. It has to be loaded anew.
var ErrFileChanged = platform.ErrFileChanged

// Load opens the model at path.
func Load(path string, opt Options) (*Model, error) {
	var src Source
	began := time.Now()
	err := platform.Reading(path, func() (err error) {
		src, err = open(path, opt)
		return err
	})
	if err != nil {
		return nil, err
	}
	opened := time.Since(began)
	m, err := LoadFiles(src, opt)
	if err == nil {
		m.Phases = slices.Insert(m.Phases, 0, LoadPhase{"open", opened})
	}
	return m, err
}

// open opens a model file and its drafter's.
func open(path string, opt Options) (src Source, err error) {
	if src.Target, err = gguf.Open(path); err != nil {
		return src, err
	}
	drafter := opt.Drafter
	if drafter == "" {
		drafter = FindDrafter(path, src.Target)
	}
	if drafter == "none" {
		return src, nil
	}
	if drafter != "" {
		if src.Drafter, err = gguf.Open(drafter); err != nil {
			src.Target.Close()
			return src, err
		}
	}
	err = src.AddDrafters(opt.MoreDrafters...)
	return src, err
}

// AddDrafters opens files of further drafters. If one cannot be opened, it closes all files of the source.
func (s *Source) AddDrafters(paths ...string) error {
	for _, path := range paths {
		f, err := gguf.Open(path)
		if err != nil {
			s.close()
			return err
		}
		s.More = append(s.More, f)
	}
	return nil
}

// LoadFiles loads a model from opened files, which it owns from then on.
func LoadFiles(src Source, opt Options) (*Model, error) {
	m := &Model{Path: src.Target.Path(), files: append([]*gguf.File{src.Target}, src.drafters()...)}
	complete := false
	defer func() {
		if !complete { // also after a panic, which a pool recovers
			m.Close()
		}
	}()
	if err := platform.Reading(m.Path, func() error { return m.load(src, opt) }); err != nil {
		return nil, err
	}
	complete = true
	return m, nil
}

func (m *Model) load(src Source, opt Options) error {
	began := time.Now()
	phase := func(name string) {
		now := time.Now()
		m.Phases = append(m.Phases, LoadPhase{name, now.Sub(began)})
		began = now
	}
	kv, err := cache.ParseTypes(opt.KV, opt.KVKey, opt.KVValue, opt.KVLayers)
	if err != nil {
		return err
	}
	if dflash.Supported(src.Target) {
		return fmt.Errorf("%s: this is a DFlash drafter; give it with -d beside its target", m.Path)
	}
	if eagle3.Supported(src.Target) {
		return fmt.Errorf("%s: this is an EAGLE-3 drafter; give it with -d beside its target", m.Path)
	}
	if mtp.Supported(src.Target) {
		return fmt.Errorf("%s: this is a drafter for multi-token prediction; give it with -d beside its target", m.Path)
	}
	if m.Tokenizer, err = tokenizer.FromGGUF(src.Target); err != nil {
		return err
	}
	if w := m.Tokenizer.Warning(); w != "" && opt.Say != nil {
		opt.Say("warning: " + w)
	}
	phase("tokenizer")
	mo := model.Options{KV: kv}
	if opt.SparsePrefill > 0 {
		s := pflash.DefaultSparse()
		s.Alpha, mo.Sparse = opt.SparsePrefill, &s
	}
	m.noPark = opt.NoPark
	m.window, m.lossy = opt.DecodeWindow, fmt.Sprint(opt.SparsePrefill, opt.DecodeWindow)
	devices, err := m.place(src, opt, &mo)
	if err != nil {
		return err
	}
	phase("device")
	if opt.Progress != nil && mo.Place != nil { // the processor maps its weights
		total := 0
		for _, t := range src.Target.Tensors() {
			total += len(t.Data)
		}
		done := 0
		mo.Bound = func(bytes int) {
			done += bytes
			opt.Progress(min(done, total), total)
		}
	}
	if m.Target, err = model.Open(src.Target, devices[0], mo, devices[1:]...); err != nil {
		return err
	}
	phase("weights")
	if err := m.loadDrafters(src, opt); err != nil {
		return err
	}
	phase("drafters")
	if err := m.loadVision(opt); err != nil {
		return err
	}
	if m.Vision != nil {
		if m.MTP != nil {
			m.MTP.SeeImages()
		}
		if m.Eagle != nil {
			m.Eagle.SeeImages()
		}
		phase("vision")
	}
	if m.Runner, err = m.newRunner(); err != nil {
		return err
	}
	onGPU := !slices.ContainsFunc(m.backends, onProcessor)
	if onGPU || len(m.Drafters()) > 0 && m.Target.WeightBytes() < calibrateBelow {
		if err := m.Runner.Calibrate(calibrateTime); err != nil {
			// A GPU may be short of memory, for which an engine makes room when it needs it. One that is lost stays lost.
			if lost := m.Target.Sync(); lost != nil || !onGPU {
				return err
			}
		}
		m.sayCompiled(opt.Say)
	}
	phase("kernels")
	if m.Template = opt.Template; m.Template == "" {
		if m.Template, _, err = src.Target.String("tokenizer.chat_template"); err != nil {
			return err
		}
	}
	if m.Sampling, err = modelSampling(src.Target, m.Path); err != nil {
		return err
	}
	err = m.loadScorer(src.Target, opt)
	phase("scorer")
	return err
}

// sayCompiled says why a first start took long.
func (m *Model) sayCompiled(say func(string)) {
	for _, b := range m.backends {
		c, ok := b.(backend.Compiler)
		if ok && say != nil && c.Compiling() > time.Second {
			say(fmt.Sprintf("%s: compiling kernels took %.1f s; the driver keeps them", b.Name(), c.Compiling().Seconds()))
		}
	}
}

// loadScorer opens the model that shortens prompts.
func (m *Model) loadScorer(f *gguf.File, opt Options) (err error) {
	if opt.Scorer == "" || opt.Prefill.Mode == pflash.Off {
		return nil
	}
	if opt.Scorer != "self" {
		if f, err = gguf.Open(opt.Scorer); err != nil {
			return err
		}
		m.files = append(m.files, f)
	}
	m.parkAtLoad(opt)
	p := opt.Prefill
	p.NoPark = opt.NoPark
	if p.Threads = opt.Threads; p.Device == "" {
		p.Device = m.names[0]
	}
	m.Prefill, err = pflash.Open(f, p)
	return err
}

// loadDrafters opens the drafters' files, and the target's own block where it is wanted.
func (m *Model) loadDrafters(src Source, opt Options) (err error) {
	files := src.drafters()
	own := mtp.InModel(src.Target) && (opt.MTP || len(files) == 0 && opt.Drafter != "none")
	if len(files) == 0 && !own {
		return nil
	}
	b, err := m.drafterDevice(src, opt)
	if err != nil {
		return err
	}
	var beside backend.Backend
	if opt.DraftGPULayers > 0 {
		if beside, err = m.device("cpu", opt); err != nil {
			return err
		}
	}
	if opt.KVDraft == "" && strings.EqualFold(opt.KV, "f32") {
		opt.KVDraft = opt.KV
	}
	kv, err := cache.ParseTypes(opt.KVDraft, "", "", "")
	if err != nil {
		return err
	}
	m.drafterFiles = map[string]string{}
	if own && !slices.ContainsFunc(files, mtp.Supported) {
		files = append(slices.Clone(files), src.Target)
	}
	for i, f := range files {
		kind := sourceOf(f)
		if f == src.Target {
			kind = "mtp"
		}
		if other, taken := m.drafterFiles[kind]; taken {
			return fmt.Errorf("%s: %s is a drafter of the same kind (%s); give one of each kind", f.Path(), other, kind)
		}
		m.drafterFiles[kind] = f.Path()
		switch kind {
		case "mtp":
			m.MTP, err = mtp.Open(f, m.Target, mtp.Options{KV: kv, Device: b})
		case "eagle3":
			m.Eagle, err = eagle3.Open(f, m.Target, eagle3.Options{KV: kv, Device: b})
		default:
			m.Drafter, err = dflash.Open(f, m.Target, dflash.Options{Causal: opt.Causal, KV: kv, Window: opt.DraftWindow,
				Device: b, Beside: beside, Layers: opt.DraftGPULayers})
		}
		if err == nil {
			err = sameVocabulary(src.Target, f)
		}
		if err != nil {
			return err
		}
		if f == src.Target {
			continue
		}
		if i == 0 {
			m.DrafterPath = f.Path()
		} else {
			m.MoreDrafterPaths = append(m.MoreDrafterPaths, f.Path())
		}
		if why := MadeForAnother(f, src.Target); why != "" && opt.Say != nil {
			opt.Say(fmt.Sprintf("warning: %s: %s; it may guess badly", filepath.Base(f.Path()), why))
		}
	}
	return nil
}

// sourceOf is the name of the source that the drafter in a file becomes.
func sourceOf(f *gguf.File) string {
	switch {
	case mtp.Supported(f):
		return "mtp"
	case eagle3.Supported(f):
		return "eagle3"
	}
	return "dflash"
}

// DrafterFile is the file that a drafter was loaded from: its own, or the model's.
func (m *Model) DrafterFile(d Drafter) string { return m.drafterFiles[d.Name()] }

// Drafter is a source with a network of its own.
type Drafter interface {
	draft.Source
	WeightBytes() int
	Weights() *nn.Weights
	Memory() *cache.Memory
}

// Drafters lists the model's drafters.
func (m *Model) Drafters() (ds []Drafter) {
	if m.Drafter != nil {
		ds = append(ds, m.Drafter)
	}
	if m.Eagle != nil {
		ds = append(ds, m.Eagle)
	}
	if m.MTP != nil {
		ds = append(ds, m.MTP)
	}
	return ds
}

// Check says why a target would not load, without keeping it.
func Check(target *gguf.File) error {
	if _, err := tokenizer.FromGGUF(target); err != nil {
		return err
	}
	var drafter *gguf.File
	if mtp.InModel(target) {
		drafter = target
	}
	return checkPair(target, drafter)
}

// CheckDrafter says why a drafter would not load beside a target.
func CheckDrafter(drafter, target *gguf.File) error {
	if err := sameVocabulary(target, drafter); err != nil {
		return err
	}
	return checkPair(target, drafter)
}

func checkPair(target, drafter *gguf.File) error {
	b := cpu.New(cpu.Options{Threads: 1})
	defer b.Close()
	m, err := model.Open(target, b, model.Options{})
	switch {
	case err != nil || drafter == nil:
	case dflash.Supported(drafter):
		_, err = dflash.Open(drafter, m, dflash.Options{})
	case eagle3.Supported(drafter):
		_, err = eagle3.Open(drafter, m, eagle3.Options{})
	default:
		_, err = mtp.Open(drafter, m, mtp.Options{})
	}
	return err
}

// sameVocabulary checks that a drafter which brings a vocabulary speaks the target's. Drafters of one
// width fit many targets by their shapes alone.
func sameVocabulary(target, drafter *gguf.File) error {
	const key = "tokenizer.ggml.tokens"
	d, ok, err := drafter.Strings(key)
	if err != nil || !ok {
		return err
	}
	t, ok, err := target.Strings(key)
	if err != nil || !ok {
		return err
	}
	if !slices.Equal(d, t) {
		return fmt.Errorf("%s: its vocabulary is not that of %s: the drafter was made for another target", drafter.Path(),
			target.Path())
	}
	return nil
}

// Close releases the model. It may be called more than once.
func (m *Model) Close() error {
	if m.Prefill != nil {
		m.Prefill.Close()
	}
	for _, b := range m.backends {
		b.Close()
	}
	if m.backends != nil {
		m.backends = nil
	}
	var first error
	for _, f := range m.files {
		if err := f.Close(); err != nil && first == nil {
			first = err
		}
	}
	m.files = nil
	return first
}

// Backend returns the device the model runs on.
func (m *Model) Backend() backend.Backend { return m.backends[0] }

// Summary states what the model needs: weights, cache per token, state per sequence.
func (m *Model) Summary() string {
	mem := m.Target.Memory()
	s := fmt.Sprintf("%s on %s: weights %s, cache (%s) %s per token, %s per sequence", m.Target.Arch, m.deviceName(),
		Bytes(m.Target.WeightBytes()), strings.Join(mem.Types(), ", "), Bytes(mem.TokenBytes()), Bytes(mem.SeqBytes()))
	for _, d := range m.Drafters() {
		s += fmt.Sprintf("; drafter %s %s, up to %d tokens", d.Name(), Bytes(d.WeightBytes()), d.Max())
		if types := d.Memory().Types(); len(types) > 0 { // an assistant reads the model's cache and has none
			s += fmt.Sprintf(", cache (%s) %s per token, %s per sequence", strings.Join(types, ", "),
				Bytes(d.Memory().TokenBytes()), Bytes(d.Memory().SeqBytes()))
		}
	}
	return s
}

// Bytes prints a size for people.
func Bytes(n int) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.2f GB", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	case n >= 1e3:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	}
	return fmt.Sprintf("%d B", n)
}

// FindDrafter looks beside a target for a drafter that fits it: the DFlash file in the same folder whose name shares
// the longest beginning with the target's, or else such an EAGLE-3 file, or else one for multi-token prediction, unless
// the target's own has a block. It returns "" when there is none.
func FindDrafter(path string, target *gguf.File) string {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return ""
	}
	best, shared := "", -1
	for _, e := range entries {
		name := e.Name()
		lower := strings.ToLower(name)
		if e.IsDir() || !strings.HasSuffix(lower, ".gguf") || name == filepath.Base(path) ||
			!drafterName.MatchString(lower) {
			continue
		}
		n := 0
		lower = strings.TrimPrefix(lower, "mtp-")
		for stem := strings.ToLower(filepath.Base(path)); n < len(stem) && n < len(lower) && stem[n] == lower[n]; n++ {
		}
		file := filepath.Join(filepath.Dir(path), name)
		switch Fits(file, target) {
		case "dflash":
			n += 2 << 16 // better than any of the others
		case "eagle3":
			n += 1 << 16
		case "mtp":
		default:
			continue
		}
		if n > shared {
			best, shared = file, n
		}
	}
	return best
}

// drafterName is what names of drafters have in them.
var drafterName = regexp.MustCompile("dflash|draft|eagle|^mtp-|assistant")

// Fits returns the kind of drafter that a file is for a target, dflash, eagle3 or mtp; "" if it is none, was made for
// another width or speaks another vocabulary.
func Fits(path string, target *gguf.File) string {
	f, err := gguf.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if sameVocabulary(target, f) != nil {
		return ""
	}
	hidden, _, _ := target.Uint(target.Arch() + ".embedding_length")
	width := func(key string) bool {
		n, _, err := f.Uint(f.Arch() + "." + key)
		return err == nil && n == hidden
	}
	switch {
	case dflash.Supported(f):
		if width("embedding_length") {
			return "dflash"
		}
	case eagle3.Supported(f):
		if width("target_hidden_size") {
			return "eagle3"
		}
	case mtp.Supported(f) && !mtp.InModel(target):
		if f.Arch() == target.Arch() && width("embedding_length") || f.Arch() == target.Arch()+"-assistant" &&
			width("embedding_length_out") {
			return "mtp"
		}
	}
	return ""
}
