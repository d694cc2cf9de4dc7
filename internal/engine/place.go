package engine

import (
	"fmt"
	"strconv"
	"strings"

	"strobe/internal/backend"
	"strobe/internal/device"
	"strobe/internal/gguf"
	"strobe/internal/model"
)

// reserve is the memory a GPU keeps free for what the weights of a model do not say: sequences, activations, the
// drafter's cache.
const reserve = 1 << 30

// openDevices opens what the options name and decides which layers lie where.
func (m *Model) openDevices(src Source, opt Options, mo *model.Options) error {
	b, err := device.Open(opt.Device, device.Options{Threads: opt.Threads})
	if err != nil {
		return err
	}
	m.backends = []backend.Backend{b}
	g, ok := b.(interface{ Memory() (free, total int) })
	if !ok {
		return nil // the processor, whose memory the file maps
	}
	if opt.Progress != nil {
		done, total := 0, 0
		for _, t := range src.Target.Tensors() {
			total += len(t.Data)
		}
		mo.Bound = func(bytes int) {
			done += bytes
			opt.Progress(min(done, total), total)
		}
	}
	free, _ := g.Memory()
	need := needs(b, src)
	layers := len(need.layers)
	want := opt.GPULayers
	fit := need.fit(free - reserve)
	auto := opt.Device == "" || opt.Device == "auto"
	switch {
	case want < 0 || want == 0 && fit == 0 && auto:
		want = 0
	case want == 0 && fit < layers && auto:
		want = fit
	case want == 0:
		want = layers
	}
	want = min(want, layers)
	if want > fit {
		return fmt.Errorf("%s: %d of %d layers need %s on %s, which has %s free; --gpu-layers %d would fit", m.Path, want,
			layers, Bytes(need.of(want)+reserve), b.Name(), Bytes(free), fit)
	}
	if want == layers {
		return nil
	}
	processor, err := device.Open("cpu", device.Options{Threads: opt.Threads})
	if err != nil {
		return err
	}
	if want == 0 {
		b.Close()
		m.backends = []backend.Backend{processor}
		return nil
	}
	m.backends = append(m.backends, processor)
	mo.Place = func(layer int) int {
		if layer < layers-want {
			return 1
		}
		return 0
	}
	return nil
}

// need is the memory that a model's weights take on a device.
type need struct {
	layers []int
	rest   int // with the output: what every division has
}

// needs asks a device what the weights of a target and its drafter would take.
func needs(b backend.Backend, src Source) need {
	var n need
	for _, t := range src.Target.Tensors() {
		size := weightBytes(b, t)
		layer := -1
		if rest, ok := strings.CutPrefix(t.Name, "blk."); ok {
			num, _, _ := strings.Cut(rest, ".")
			if i, err := strconv.Atoi(num); err == nil && i >= 0 && i < 1<<12 {
				layer = i
			}
		}
		if layer < 0 {
			n.rest += size
			continue
		}
		for len(n.layers) <= layer {
			n.layers = append(n.layers, 0)
		}
		n.layers[layer] += size
	}
	// A block for multi-token prediction counts as one of the file's blocks, and lies with the output.
	if v, ok, _ := src.Target.Uint(src.Target.Arch() + ".nextn_predict_layers"); ok && v < uint64(len(n.layers)) {
		own := len(n.layers) - int(v)
		for _, b := range n.layers[own:] {
			n.rest += b
		}
		n.layers = n.layers[:own]
	}
	if src.Drafter != nil {
		for _, t := range src.Drafter.Tensors() {
			n.rest += weightBytes(b, t)
		}
	}
	return n
}

func weightBytes(b backend.Backend, t *gguf.Tensor) int {
	m := backend.Matrix{Type: t.Type, Cols: 1, Rows: 1, Experts: 1, Data: t.Data}
	for i, n := range t.Shape {
		switch i {
		case 0:
			m.Cols = n
		case 1:
			m.Rows = n
		default:
			m.Experts *= n
		}
	}
	return b.WeightBytes(m)
}

// of is what the last n layers take.
func (n need) of(layers int) int {
	sum := n.rest
	for _, b := range n.layers[len(n.layers)-layers:] {
		sum += b
	}
	return sum
}

// fit is how many of the last layers find room in so many bytes.
func (n need) fit(bytes int) int {
	for i := len(n.layers); i > 0; i-- {
		if n.of(i) <= bytes {
			return i
		}
	}
	return 0
}

// Chunk is how many prompt tokens should run in one pass when nobody else waits: enough to use the device well, few
// enough to show progress and to stop soon.
func (m *Model) Chunk() int {
	if _, ok := m.Backend().(interface{ Memory() (free, total int) }); ok {
		return model.MaxRows // a GPU has room for all of them at once
	}
	return 128
}

// deviceName names the devices that run the model.
func (m *Model) deviceName() string {
	var names []string
	for _, b := range m.backends {
		names = append(names, b.Name())
	}
	return strings.Join(names, " and ")
}
