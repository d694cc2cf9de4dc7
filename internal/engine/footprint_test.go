package engine

import (
	"errors"
	"testing"

	"strobe/internal/backend"
	driver "strobe/internal/backend/gpu"
	"strobe/internal/device"
	"strobe/internal/gguf"
	"strobe/internal/model"
	"strobe/internal/sample"
	"strobe/internal/speculate"
	"strobe/internal/testkit"
)

// footprintProps is a card whose memory is not the point.
var footprintProps = driver.Props{Name: "card", Major: 9, Units: 132, SharedBlock: 227 << 10, Memory: 64 << 30}

// TestFootprint: what is announced before a model is loaded is what it allocates when it is loaded, runs a prompt, and
// grows.
func TestFootprint(t *testing.T) {
	for _, name := range []string{"qwen3", "qwen35", "gemma4"} {
		var card *driver.Counter
		opt := Options{Device: "cuda", Drafter: testkit.Golden(t, "dflash-"+name+"/model.gguf")}
		opt.open = func(string, device.Options) (backend.Backend, error) {
			card = driver.NewCounter(footprintProps, 0)
			return driver.New(card)
		}
		m, err := Load(testkit.Golden(t, name+"/model.gguf"), opt)
		if err != nil {
			t.Fatal(err)
		}
		run := func(tokens int) int {
			stream, err := m.Runner.NewStream(speculate.Config{Seq: m.Target.NewSeq(), Contexts: m.Runner.NewContexts(),
				Prompt: make([]int32, tokens), Context: tokens + 1, Sampler: sample.New(sample.Params{}, m.Target.Vocab),
				Emit: func(speculate.Token) bool { return false }})
			for err == nil && !stream.Done() {
				err = m.Runner.Step([]*speculate.Stream{stream}, m.Chunk())
			}
			if err != nil {
				t.Fatal(err)
			}
			return card.Used()
		}
		if got, want := run(model.MaxRows), m.announced[0].Announced-device.DriverBytes; !near(got, want) {
			t.Errorf("%s: %d bytes are used, %d were announced", name, got, want)
		}
		src, err := open(m.Path, opt)
		if err != nil {
			t.Fatal(err)
		}
		f, err := Measure(m.backends[0], src, opt, m.Chunk(), 2000, 9000)
		if err != nil {
			t.Fatal(err)
		}
		// The sequence before has kept its pages.
		if got, want := run(9000), f.Weights+f.Passes+f.Contexts[1]; !near(got, want) {
			t.Errorf("%s with 9,000 tokens: %d bytes are used, %d were counted", name, got, want)
		}
		if f.Contexts[0] > f.Contexts[1] || f.Contexts[1] < 9000*m.Target.Memory().TokenBytes()/2 {
			t.Errorf("%s: 2,000 and 9,000 tokens take %v bytes", name, f.Contexts)
		}
		src.Target.Close()
		src.Drafter.Close()
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}

// near allows for what the driver rounds sizes to, and for memory that an earlier sequence left.
func near(got, want int) bool { return got > want*95/100 && got < want*105/100 }

// TestMeasureProcessor: the processor has no memory of its own, and says so.
func TestMeasureProcessor(t *testing.T) {
	m := loadGolden(t, "qwen3", false)
	if _, err := Measure(m.Backend(), Source{Target: m.Target.File()}, Options{}, 512); err == nil {
		t.Error("the processor's memory was counted")
	}
}

// TestFitTable: more memory holds more of a model, a longer context needs more, and where all of it fits a card of that
// size has room for it.
func TestFitTable(t *testing.T) {
	path := testkit.Golden(t, "qwen35moe/model.gguf")
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	card, err := device.Counting(8<<30, false)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := Measure(card, Source{Target: f}, Options{Drafter: "none"}, model.MaxRows/2, 512, 20000)
	if err != nil {
		t.Fatal(err)
	}
	least := whole.Bytes() + whole.Contexts[0] - whole.Weights
	sizes := []int{device.DriverBytes + 1, least + whole.Weights/2, least + 2*whole.Weights,
		least + 2*whole.Weights + whole.Contexts[1]}
	fits, parts, err := FitTable(path, Options{Drafter: "none"}, sizes, []int{512, 20000})
	if err != nil || len(fits) != 8 {
		t.Fatalf("%d cells, error %v", len(fits), err)
	}
	if parts.Weights != whole.Weights || parts.Driver != device.DriverBytes {
		t.Errorf("parts %+v, want the weights of %+v", parts, whole)
	}
	for i, x := range fits {
		if x.Memory != sizes[i/2] || x.All && x.Need > x.Memory {
			t.Errorf("cell %d: %+v", i, x)
		}
		if i >= 2 && fits[i-2].All && !x.All {
			t.Errorf("%+v fits, %+v does not", fits[i-2], x)
		}
		if i%2 == 1 && x.All && !fits[i-1].All {
			t.Errorf("%+v fits, %+v does not", x, fits[i-1])
		}
	}
	if fits[0].Layers != 0 || fits[0].All || !fits[4].All || fits[5].All || !fits[7].All {
		t.Errorf("%+v", fits)
	}
}

// TestLimit: a GPU that pretends to be smaller refuses what does not fit there, and says how much is left.
func TestLimit(t *testing.T) {
	const size = device.DriverBytes + 1000<<10
	d := driver.Limit(driver.NewCounter(footprintProps, 0), size)
	if free, total := d.Free(); free != 1000<<10 || total != size || d.Props().Memory != size {
		t.Errorf("%d of %d free", free, total)
	}
	a, err := d.Alloc(600 << 10)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Alloc(401 << 10); !errors.Is(err, backend.ErrNoMemory) {
		t.Errorf("401 of 400 kB that are left: error %v", err)
	}
	b, err := d.Alloc(400 << 10)
	if free, _ := d.Free(); err != nil || free != 0 {
		t.Errorf("%d bytes free, error %v", free, err)
	}
	d.Release(a)
	d.Release(b)
	if free, _ := d.Free(); free != 1000<<10 {
		t.Errorf("%d bytes free when all was given back", free)
	}
	if free, _ := driver.Limit(driver.NewCounter(footprintProps, 1<<20), 64<<30).Free(); free != 1<<20 {
		t.Errorf("%d bytes free of a device that has less than its limit", free)
	}
}
