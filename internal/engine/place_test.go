package engine

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/backend/cuda"
	"strobe/internal/device"
	"strobe/internal/draft/dflash"
	"strobe/internal/gguf"
	"strobe/internal/model"
	"strobe/internal/platform"
	"strobe/internal/speculate"
	"strobe/internal/testkit"
)

// weighing is a device that says what weights would take.
type weighing struct{ backend.Backend }

func (weighing) WeightBytes(m backend.Matrix) int { return len(m.Data) }

// TestNeeds: layers are counted from the end, what belongs to none is always there, and a block for multi-token
// prediction lies with the output.
func TestNeeds(t *testing.T) {
	b := cpu.New(cpu.Options{Threads: 1})
	defer b.Close()
	f, err := gguf.Open(testkit.Golden(t, "qwen35/model.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n := needs(weighing{b}, Source{Target: f}, true)
	all := 0
	for _, x := range f.Tensors() {
		all += len(x.Data)
	}
	layers := len(n.dense)
	on, _ := n.sums(division{layers: layers, place: make([]int, layers)}, 1)
	if layers == 0 || on[0] != all || n.rest == 0 {
		t.Fatalf("%d layers take %d, what belongs to none %d, of %d bytes", layers, on, n.rest, all)
	}
	size := n.rest
	for i := range layers + 1 {
		if i > 0 {
			size += n.of(layers-i, 0)
		}
		if got := n.divide([]int{size}, Options{}).layers; got != i {
			t.Errorf("%d layers fit where %d do", got, i)
		}
		if got := n.divide([]int{size - 1}, Options{}).layers; got != max(0, i-1) {
			t.Errorf("%d layers fit in a byte less than %d need", got, i)
		}
	}
}

// TestDivide: experts leave a GPU before layers do, several GPUs are filled alike, and what the options say is done or
// refused.
func TestDivide(t *testing.T) {
	n := need{dense: []int{10, 10, 10, 10}, experts: []int{100, 100, 100, 100}, rest: 20} // 460 in all
	for _, c := range []struct {
		room            []int
		opt             Options
		layers, experts int
		place           []int
	}{
		{[]int{460}, Options{}, 4, 0, []int{0, 0, 0, 0}},
		{[]int{459}, Options{}, 4, 1, []int{0, 0, 0, 0}},
		{[]int{60}, Options{}, 4, 4, []int{0, 0, 0, 0}},
		{[]int{59}, Options{}, 3, 4, []int{1, 0, 0, 0}},
		{[]int{29}, Options{}, 0, 0, nil},
		{[]int{-5}, Options{}, 0, 0, nil},
		{[]int{460}, Options{GPULayers: 2}, 2, 0, []int{1, 1, 0, 0}},
		{[]int{239}, Options{GPULayers: 2}, 2, 3, []int{1, 1, 0, 0}},
		{[]int{459}, Options{CPUExperts: -1}, 3, 0, []int{1, 0, 0, 0}},
		{[]int{460}, Options{CPUExperts: AllExperts}, 4, 4, []int{0, 0, 0, 0}},
		{[]int{460}, Options{CPUExperts: 2}, 4, 2, []int{0, 0, 0, 0}},
		{[]int{60}, Options{GPULayers: 4, CPUExperts: 3}, 0, 0, nil},
		{[]int{1000, 1000}, Options{}, 4, 0, []int{0, 0, 1, 1}},
		{[]int{1000, 400}, Options{}, 4, 0, []int{0, 0, 0, 1}},
		{[]int{220, 240}, Options{}, 4, 0, []int{0, 0, 1, 1}},
		{[]int{220, 239}, Options{}, 4, 2, []int{0, 0, 0, 1}},
		{[]int{500, 10}, Options{}, 0, 0, nil}, // the output lies on the last one
	} {
		if d := n.divide(c.room, c.opt); d.layers != c.layers || d.experts != c.experts || !slices.Equal(d.place, c.place) {
			t.Errorf("room %v, %d layers, %d experts: %+v, want %d layers without experts of %d at %v", c.room, c.opt.GPULayers,
				c.opt.CPUExperts, d, c.layers, c.experts, c.place)
		}
	}
}

// roomy is the processor, which says to be a GPU with so much memory for weights.
type roomy struct {
	weighing
	name string
	free int
}

func (r *roomy) Memory() (free, total int) { return r.free, r.free }
func (r *roomy) Name() string              { return r.name }

// broken is the room of a GPU that does not open.
const broken = -1

// machine opens devices of a machine whose GPUs have so much memory beyond what is kept free, and counts who was
// opened.
func machine(room ...int) (open func(string, device.Options) (backend.Backend, error), names *[]string) {
	names = &[]string{}
	return func(name string, _ device.Options) (backend.Backend, error) {
		b := cpu.New(cpu.Options{Threads: 1})
		if i, ok := strings.CutPrefix(name, "cuda:"); ok {
			n, _ := strconv.Atoi(i)
			if n >= len(room) {
				b.Close()
				return nil, cuda.NoDevice{Index: n, Count: len(room)}
			}
			if room[n] == broken {
				b.Close()
				return nil, errors.New("it is broken")
			}
			*names = append(*names, name)
			return &roomy{weighing{b}, "GPU " + i, room[n] + reserve}, nil
		}
		*names = append(*names, name)
		return b, nil
	}, names
}

// TestPlaced: whatever lies where, target or drafter, an answer is the same, and so are the guesses. What lies where is
// said before.
func TestPlaced(t *testing.T) {
	const name = "qwen35moe"
	req := Request{Tokens: randomPrompt(3, 40), MaxTokens: 12, IgnoreEOG: true, Spec: fixed}
	f, err := gguf.Open(testkit.Golden(t, name+"/model.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	n := needs(weighing{}, Source{Target: f}, false)
	f.Close()
	dense, experts := n.rest, 0
	for i := range n.dense {
		dense += n.dense[i]
		experts += n.experts[i]
	}
	layers := len(n.dense)
	first := n.experts[0]
	drafter := testkit.Golden(t, "dflash-"+name+"/model.gguf")
	var want Event
	for _, c := range []struct {
		what, device, draft string
		room                []int
		opened, said        string // devices, and what has to be said
	}{
		{"the processor", "cpu", "", nil, "cpu", ""},
		{"no GPU", "auto", "", nil, "cpu", ""},
		{"a GPU that does not open", "auto", "", []int{broken}, "cpu", "cuda:0 cannot be used: it is broken"},
		{"room for nothing", "auto", "", []int{0}, "cuda:0 cpu",
			"on GPU 0, which has 1.07 GB free; nothing of it would fit; the processor runs it"},
		{"room for all", "auto", "cpu", []int{dense + experts, 1 << 30}, "cuda:0 cpu",
			fmt.Sprintf("GPU 0: %d of %d layers, %s of weights", layers, layers, Bytes(dense+experts))},
		{"room but for experts of a layer", "cuda", "cpu", []int{dense + experts - 1}, "cuda:0 cpu",
			"processor: the experts of the first 1 layers, which saves " + Bytes(first)},
		{"room but for experts", "cuda", "cpu", []int{dense}, "cuda:0 cpu",
			fmt.Sprintf("the experts of the first %d layers, which saves %s", layers, Bytes(experts))},
		{"room for some layers", "cuda:0", "cpu", []int{dense - 1}, "cuda:0 cpu",
			"processor: the first 1 layers and the experts"},
		{"two GPUs", "cuda:1,cuda:0", "cuda:1", []int{dense + experts, dense + experts}, "cuda:1 cuda:0", "GPU 0: "},
		{"one GPU twice", "cuda:0,cuda:0", "cuda:0", []int{reserve + 3*(dense+experts)}, "cuda:0 cuda:0", "GPU 0: "},
		{"a second GPU where one is too small", "auto", "cuda:1", []int{dense, dense + experts}, "cuda:0 cuda:1", "GPU 1: "},
		{"drafter on a GPU", "cpu", "cuda:0", []int{1 << 30}, "cpu cuda:0", ""},
	} {
		open, names := machine(c.room...)
		said := ""
		m, err := Load(testkit.Golden(t, name+"/model.gguf"), Options{Threads: 1, Drafter: drafter,
			Causal: dflash.CausalOff, Device: c.device, DraftDevice: c.draft, open: open, Say: func(s string) { said += s }})
		if err != nil {
			t.Errorf("%s: %v", c.what, err)
			continue
		}
		if got := strings.Join(*names, " "); got != c.opened {
			t.Errorf("%s: opened %s, want %s", c.what, got, c.opened)
		}
		if !strings.Contains(said, c.said) || (said == "") != (c.said == "") {
			t.Errorf("%s: said %q, want %q", c.what, said, c.said)
		}
		if gpu := strings.HasPrefix(m.Backend().Name(), "GPU"); gpu != (m.Chunk() == model.MaxRows/2) { // little is free
			t.Errorf("%s: prompts in pieces of %d", c.what, m.Chunk())
		}
		got := generate(t, startModel(t, m, Config{Parallel: 1}), req)
		if c.device == "cpu" && c.draft == "" {
			want = got
			if want.Result.Stats.Accepted == 0 {
				t.Error("nothing was guessed right: the comparison says nothing")
			}
			continue
		}
		if !slices.Equal(ids(got.Tokens), ids(want.Tokens)) {
			t.Errorf("%s: another text", c.what)
		}
		a, b := got.Result.Stats, want.Result.Stats
		if a.Accepted != b.Accepted || a.Guessed != b.Guessed || a.DraftErr != nil {
			t.Errorf("%s: %d of %d guesses accepted, want %d of %d (error %v)", c.what, a.Accepted, a.Guessed,
				b.Accepted, b.Guessed, a.DraftErr)
		}
	}
}

// TestAnnouncedMemory: what was announced for a GPU can be compared with what its driver says is used.
func TestAnnouncedMemory(t *testing.T) {
	m, d := lenderModel(t, "qwen35", 8<<30, Options{})
	e := startModel(t, m, Config{Parallel: 1})
	get := func() DeviceMemory {
		t.Helper()
		generate(t, e, Request{Tokens: randomPrompt(1, 20), MaxTokens: 2, IgnoreEOG: true})
		var s Snapshot
		waitFor(t, "the device is asked", func() bool {
			s = e.Snapshot()
			return len(s.Devices) == 1 && s.Devices[0].Free == int(d.left.Load()-d.used.Load())
		})
		return s.Devices[0]
	}
	weights := int(d.used.Load())
	x := get()
	if x.Name != d.Name() || x.Used != weights || x.Free != 8<<30-weights || x.Total != lenderTotal ||
		x.Announced < weights+reserve || x.Announced > weights+weights/4+reserve {
		t.Errorf("%+v; the weights take %d", x, weights)
	}
	d.left.Add(-1000) // another program, or memory that was not announced
	if x := get(); x.Used != weights+1000 {
		t.Errorf("%+v", x)
	}
	stop(t, e)
	if s := startModel(t, loadGolden(t, "qwen3", false), Config{}).Snapshot(); s.Devices != nil {
		t.Errorf("the processor: %+v", s.Devices)
	}
}

// TestTooLarge: what does not fit is refused in one line that says what would.
func TestTooLarge(t *testing.T) {
	for _, c := range []struct {
		name, device    string
		layers, experts int
		draft           string
		room            int
		want            string
	}{
		{"qwen35moe", "cuda", 0, 0, "", 0, "layers need .* on GPU 0, which has 1.07 GB free; nothing of it would fit"},
		{"qwen35moe", "auto", 4, -1, "", 450 << 10, "4 of 4 layers need .*; --gpu-layers 3 --cpu-experts 3 would fit"},
		{"qwen3", "cuda:0", 2, 0, "", 200 << 10, "2 of . layers need .*; --gpu-layers 1 would fit"},
		{"qwen3", "cuda:7", 0, 0, "", 0, "no GPU 7: there are 1"},
		{"qwen3", "cpu", 0, 0, "cuda:0", -reserve, "dflash-qwen3.* needs .* on GPU 0, which has 0 B free"},
	} {
		open, _ := machine(c.room)
		_, err := Load(testkit.Golden(t, c.name+"/model.gguf"), Options{Device: c.device, GPULayers: c.layers,
			CPUExperts: c.experts,
			Drafter:    testkit.Golden(t, "dflash-"+c.name+"/model.gguf"), DraftDevice: cmp.Or(c.draft, "cpu"), open: open})
		if err == nil || !regexp.MustCompile(c.want).MatchString(err.Error()) {
			t.Errorf("%+v: error %v", c, err)
		}
	}
}

// TestMTPElsewhere: a block for multi-token prediction on another device guesses the same; an assistant, which reads
// the target's keys, stays with them.
func TestMTPElsewhere(t *testing.T) {
	req := Request{Tokens: randomPrompt(3, 30), MaxTokens: 12, IgnoreEOG: true,
		Spec: speculate.Options{Draft: "mtp", Fixed: true}}
	for _, name := range []string{"qwen35moe", "alone"} {
		target, drafter := mtpPairs[name](t)
		var want Event
		for i, at := range []string{"", "cuda:0"} {
			open, names := machine(1 << 30)
			m, err := Load(target, Options{Device: "cpu", Drafter: drafter, MTP: true, DraftDevice: at, open: open})
			if err != nil {
				t.Fatal(err)
			}
			got := generate(t, startModel(t, m, Config{Parallel: 1}), req)
			if len(*names) != i+1 {
				t.Errorf("%s: opened %s", name, *names)
			}
			if i == 0 {
				want = got
			}
			if a, b := got.Result.Stats, want.Result.Stats; !slices.Equal(ids(got.Tokens), ids(want.Tokens)) || a.Guessed == 0 ||
				a.Guessed != b.Guessed || a.Accepted != b.Accepted || a.DraftErr != nil {
				t.Errorf("%s: %d of %d guesses accepted, want %d of %d (error %v)", name, a.Accepted, a.Guessed,
					b.Accepted, b.Guessed, a.DraftErr)
			}
		}
	}
	target, drafter := mtpPairs["gemma4"](t)
	open, _ := machine(1 << 30)
	_, err := Load(target, Options{Device: "cpu", Drafter: drafter, DraftDevice: "cuda", open: open})
	if err == nil || !strings.Contains(err.Error(), "which lie on another device") {
		t.Errorf("an assistant apart from its target: error %v", err)
	}
}

// TestPhases: loading names its parts, and what GPUs had to do.
func TestPhases(t *testing.T) {
	m, err := Load(testkit.Golden(t, "qwen3/model.gguf"), Options{Threads: 1, Device: "cpu", Drafter: "none"})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var names []string
	for _, p := range m.Phases {
		names = append(names, p.Name)
		if p.Took < 0 {
			t.Errorf("%s took %v", p.Name, p.Took)
		}
	}
	if got := strings.Join(names, " "); got != "open tokenizer device weights drafters kernels scorer" {
		t.Errorf("phases: %s", got)
	}
	if repack, upload := m.Uploads(); repack != 0 || upload != 0 {
		t.Errorf("the processor has weights repacked for %v and copied for %v", repack, upload)
	}
}

// TestDefaultCache: the prefix cache takes a part of what is free, on GPUs that of the fullest for each, and what the
// configuration says where it says something.
func TestDefaultCache(t *testing.T) {
	for _, c := range []struct {
		gpus      []int
		available int
		set, want int64
	}{
		{[]int{100 << 30}, 1 << 40, 0, 50 << 30},
		{[]int{100 << 30, 40 << 30}, 1 << 40, 0, 40 << 30},
		{[]int{1 << 20}, 1 << 40, 0, leastCache},
		{nil, 0, 0, unknownCache},
		{nil, 1 << 20, 0, leastCache},
		{nil, 1 << 20, 3 << 20, 3 << 20},
		{[]int{100 << 30}, 0, -1, -1},
	} {
		m := loadGolden(t, "qwen3", false)
		for _, free := range c.gpus {
			m.backends = append(m.backends, &roomy{weighing{cpu.New(cpu.Options{Threads: 1})}, "GPU", free})
		}
		availableMemory = func() int { return c.available }
		if got := (Config{CacheBytes: c.set}).withDefaults(m).CacheBytes; got != c.want {
			t.Errorf("%+v: %d bytes", c, got)
		}
		availableMemory = func() int { return 64<<30 + m.Target.WeightBytes() }
		if got := (Config{}).withDefaults(m).CacheBytes; len(c.gpus) == 0 && got != 16<<30 {
			t.Errorf("%d bytes of 64 GiB beyond the weights", got)
		}
		availableMemory = platform.AvailableMemory
		m.Close()
	}
	m := loadGolden(t, "qwen3", false)
	defer m.Close()
	twice := &roomy{weighing{cpu.New(cpu.Options{Threads: 1})}, "GPU", 10 << 30}
	m.names, m.backends = append(m.names, "cuda:0", "cuda:0"), append(m.backends, twice, twice)
	if got := m.cacheBytes(); got != 5<<30 {
		t.Errorf("%d bytes where a GPU with 10 GiB is named twice", got)
	}
	p := newPool(t, PoolConfig{Dir: modelDir(t, "a=qwen3"), MemoryBytes: 400 << 20})
	l := acquire(t, p, "a")
	defer l.Release()
	if got := l.Engine.Config().CacheBytes; got != 100<<20 {
		t.Errorf("a pool of 400 MiB has a cache of %d bytes", got)
	}
}
