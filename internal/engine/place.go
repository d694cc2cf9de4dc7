package engine

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"strobe/internal/backend"
	"strobe/internal/device"
	"strobe/internal/gguf"
	"strobe/internal/model"
	"strobe/internal/platform"
)

// reserve is the memory a GPU keeps free for what a model needs beside its weights, where that cannot be counted.
const reserve = 1 << 30

// AllExperts, as Options.CPUExperts, leaves the experts of all layers to the processor.
const AllExperts = 1 << 20

// gpu is a device with memory of its own. The processor has none: it maps the file.
type gpu interface {
	backend.Backend
	Memory() (free, total int)
}

// device opens a device, or returns the one of that name that is open already.
func (m *Model) device(name string, opt Options) (backend.Backend, error) {
	if i := slices.Index(m.names, name); i >= 0 {
		return m.backends[i], nil
	}
	return m.another(name, opt)
}

// another opens a device, a second time if need be.
func (m *Model) another(name string, opt Options) (backend.Backend, error) {
	open := opt.open
	if open == nil {
		open = device.Open
	}
	b, err := open(name, device.Options{Threads: opt.Threads, Memory: opt.GPUMemory})
	if err == nil {
		m.names, m.backends = append(m.names, name), append(m.backends, b)
	}
	return b, err
}

// place opens the target's devices and decides what lies where: GPUs first, then the processor, if it has a part.
func (m *Model) place(src Source, opt Options, mo *model.Options) ([]backend.Backend, error) {
	names, auto := device.Names(opt.Device), false
	if names == nil {
		names, auto = []string{device.Auto(0)}, true
	}
	if names[0] == "cpu" || opt.GPULayers < 0 {
		b, err := m.device("cpu", opt)
		return []backend.Backend{b}, err
	}
	var n need
	var d division
	var room []int // of each GPU
	for i := 0; i < len(names); i++ {
		b, err := m.another(names[i], opt)
		if err != nil && auto {
			if opt.Say != nil && !device.Missing(err) {
				opt.Say(fmt.Sprintf("%s cannot be used: %v", names[i], err))
			}
			break
		} else if err != nil {
			return nil, err
		}
		free := 0
		if g, ok := b.(gpu); ok {
			free, _ = g.Memory()
		}
		if n.dense == nil {
			draft := device.Names(opt.DraftDevice)
			n = needs(b, src, draft == nil || draft[0] == names[len(names)-1])
			n.rest += visionBytes(b, src.Target, opt, names[len(names)-1])
			n.beside = beside(b, src, opt, free)
		}
		same := 0 // a GPU that is named twice has its memory once
		for _, name := range names {
			if name == names[i] {
				same++
			}
		}
		room = append(room, free/same-n.beside)
		m.announced = append(m.announced, DeviceMemory{Name: b.Name(), before: free / same})
		if d = n.divide(room, opt); auto && (d.layers < len(n.dense) || d.experts > 0) {
			names = append(names, device.Auto(i+1)) // perhaps there is another
		}
	}
	gpus := m.backends[:len(room):len(room)]
	if d.layers == 0 && room != nil && (!auto || opt.GPULayers > 0) {
		return nil, fmt.Errorf("%s: %s", m.Path, n.tooLarge(room, gpus, opt))
	}
	if d.layers == 0 {
		if room != nil && opt.Say != nil {
			opt.Say(n.tooLarge(room, gpus, opt) + "; the processor runs it")
		}
		for _, b := range gpus {
			b.Close()
		}
		m.names, m.backends, m.announced = nil, nil, nil
		b, err := m.device("cpu", opt)
		return []backend.Backend{b}, err
	}
	on, _ := n.sums(d, len(gpus))
	for i := range gpus {
		m.announced[i].Announced = on[i] + n.beside
	}
	if opt.Say != nil {
		opt.Say(n.say(d, room, gpus))
	}
	mo.Place = func(layer int) int { return d.place[layer] }
	mo.Experts = func(layer int) int {
		if layer < d.experts {
			return len(gpus)
		}
		return d.place[layer]
	}
	if d.layers == len(n.dense) && d.experts == 0 {
		return gpus, nil
	}
	_, err := m.device("cpu", opt)
	return m.backends, err
}

// DeviceMemory compares what was announced for a GPU before a model was loaded with what its driver says. What other
// programs take or give back meanwhile counts as the model's.
type DeviceMemory struct {
	Name      string
	Announced int // weights, passes and what the driver takes for itself; the tokens of sequences come to that
	Used      int // less is free by that much than before the model was loaded
	Free      int
	Total     int
	before    int // free before the model was loaded
}

// deviceMemory asks the drivers of the target's GPUs.
func (m *Model) deviceMemory() []DeviceMemory {
	out := slices.Clone(m.announced)
	for i := range out {
		if g, ok := m.backends[i].(gpu); ok {
			out[i].Free, out[i].Total = g.Memory()
			out[i].Used = out[i].before - out[i].Free
		}
	}
	return out
}

// need is the memory that a model's weights take on a GPU.
type need struct {
	dense, experts []int // of each layer
	rest           int   // what every division has on the last GPU: the output, the drafter, the image encoder
	beside         int   // what each GPU needs beside weights
}

// beside is what a GPU with so much free memory needs for a model beside its weights. Prompts run in chunks of all rows
// that a pass may have if there is plenty of memory, see Chunk.
func beside(b backend.Backend, src Source, opt Options, free int) int {
	f, err := Measure(b, src, opt, model.MaxRows, model.MaxRows)
	if err != nil { // loading will say what is wrong with the file
		return reserve
	}
	if free-f.Bytes()-f.Contexts[0] >= ample {
		return f.Passes + f.Driver + f.Contexts[0]
	}
	return f.Passes + f.Driver
}

// needs asks a device what the weights of a target would take, and those of its drafters if they are to lie there, too.
func needs(b backend.Backend, src Source, drafter bool) need {
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
		for len(n.dense) <= layer {
			n.dense, n.experts = append(n.dense, 0), append(n.experts, 0)
		}
		if strings.Contains(t.Name, "_exps.") {
			n.experts[layer] += size
		} else {
			n.dense[layer] += size
		}
	}
	// A block for multi-token prediction counts as one of the file's blocks, and lies with the output.
	if v, ok, _ := src.Target.Uint(src.Target.Arch() + ".nextn_predict_layers"); ok && v < uint64(len(n.dense)) {
		own := len(n.dense) - int(v)
		for i := own; i < len(n.dense); i++ {
			n.rest += n.dense[i] + n.experts[i]
		}
		n.dense, n.experts = n.dense[:own], n.experts[:own]
	}
	if drafter {
		for _, f := range src.drafters() {
			n.rest += fileBytes(b, f)
		}
	}
	return n
}

// visionBytes is what the weights of the image encoder would take on a device, if it is to lie on the last one.
func visionBytes(b backend.Backend, target *gguf.File, opt Options, last string) int {
	if names := device.Names(opt.VisionDevice); names != nil && names[0] != last {
		return 0
	}
	path := opt.Vision
	if path == "" {
		path = FindVision(target.Path(), target)
	}
	if path == "" || path == "none" {
		return 0
	}
	f, err := gguf.Open(path)
	if err != nil {
		return 0 // which is said when it is loaded
	}
	defer f.Close()
	return fileBytes(b, f)
}

// fileBytes is what all weights of a file would take on a device.
func fileBytes(b backend.Backend, f *gguf.File) (sum int) {
	for _, t := range f.Tensors() {
		sum += weightBytes(b, t)
	}
	return sum
}

// drafterDevice opens the device that the options want the drafters on, nil for the target's, and sees that there is
// room.
func (m *Model) drafterDevice(src Source, opt Options) (backend.Backend, error) {
	names := device.Names(opt.DraftDevice)
	if opt.DraftGPULayers < 0 {
		names = []string{"cpu"}
	}
	if names == nil {
		return nil, nil
	}
	b, err := m.device(names[0], opt)
	if g, ok := b.(gpu); ok {
		free, _ := g.Memory()
		for _, f := range src.drafters() {
			size := fileBytes(b, f)
			if size > free {
				return b, fmt.Errorf("%s: needs %s on %s, which has %s free", f.Path(), Bytes(size), b.Name(), Bytes(free))
			}
			free -= size
		}
	}
	return b, err
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

// division says what GPUs get: the last layers, without the experts of the model's first ones. The processor has the
// others, as a device after the GPUs.
type division struct {
	layers, experts int   // layers on GPUs; first layers whose experts are not
	place           []int // device of each layer
}

// divide finds the division that leaves least to the processor, of those that the options allow; none has 0 layers.
// Experts go before layers: they are most of a model's bytes, and of each only those are read that a token needs.
func (n need) divide(room []int, opt Options) division {
	all := len(n.dense)
	most, least := all, 1
	if opt.GPULayers > 0 {
		most = min(opt.GPULayers, all)
		least = most
	}
	few, many := 0, all
	if opt.CPUExperts != 0 {
		few = max(0, min(opt.CPUExperts, all))
		many = few
	}
	if !slices.ContainsFunc(n.experts, func(b int) bool { return b > 0 }) {
		few, many = 0, 0
	}
	for layers := most; layers >= least; layers-- {
		for experts := few; experts <= many; experts++ {
			if place, ok := n.spread(room, layers, experts); ok {
				return division{layers, experts, place}
			}
		}
	}
	return division{}
}

// spread gives layers to GPUs so that all are filled to about the same part.
func (n need) spread(room []int, layers, experts int) ([]int, bool) {
	if place, ok := n.fill(room, layers, experts); !ok || len(room) == 1 {
		return place, ok
	}
	const parts = 50
	for p := 1; p <= parts; p++ {
		part := make([]int, len(room))
		for i, r := range room {
			part[i] = int(float64(r) * float64(p) / parts)
		}
		if place, ok := n.fill(part, layers, experts); ok {
			return place, ok
		}
	}
	return nil, false
}

// fill gives the last layers to the last GPU, those before to the one before, and so on.
func (n need) fill(room []int, layers, experts int) ([]int, bool) {
	place := slices.Repeat([]int{len(room)}, len(n.dense))
	at := len(room) - 1
	left := room[at] - n.rest
	for i := len(n.dense) - 1; i >= len(n.dense)-layers && left >= 0; i-- {
		size := n.of(i, experts)
		for at > 0 && left < size {
			at--
			left = room[at]
		}
		left -= size
		place[i] = at
	}
	return place, left >= 0
}

// of is what a layer takes on a GPU.
func (n need) of(layer, experts int) int {
	if layer < experts {
		return n.dense[layer]
	}
	return n.dense[layer] + n.experts[layer]
}

// sums is what a division puts on each GPU, and what it saves by leaving experts to the processor.
func (n need) sums(d division, gpus int) (on []int, saved int) {
	on = make([]int, gpus)
	on[gpus-1] = n.rest
	for i, at := range d.place {
		if at < gpus {
			on[at] += n.of(i, d.experts)
			saved += n.dense[i] + n.experts[i] - n.of(i, d.experts)
		}
	}
	return on, saved
}

// say describes a division.
func (n need) say(d division, room []int, gpus []backend.Backend) string {
	on, saved := n.sums(d, len(gpus))
	var parts []string
	for i, b := range gpus {
		layers := 0
		for _, at := range d.place {
			if at == i {
				layers++
			}
		}
		parts = append(parts, fmt.Sprintf("%s: %d of %d layers, %s of weights and %s for passes, %s free", b.Name(), layers, len(n.dense),
			Bytes(on[i]), Bytes(n.beside), Bytes(room[i]+n.beside)))
	}
	var rest []string
	if k := len(n.dense) - d.layers; k > 0 {
		rest = append(rest, fmt.Sprintf("the first %d layers", k))
	}
	if d.experts > 0 {
		rest = append(rest, fmt.Sprintf("the experts of the first %d layers, which saves %s", d.experts, Bytes(saved)))
	}
	if rest != nil {
		parts = append(parts, "processor: "+strings.Join(rest, " and "))
	}
	return strings.Join(parts, "; ")
}

// tooLarge says why nothing that the options allow fits, and what would.
func (n need) tooLarge(room []int, gpus []backend.Backend, opt Options) string {
	all := len(n.dense)
	want := division{layers: all, experts: min(max(0, opt.CPUExperts), all), place: make([]int, all)}
	if opt.GPULayers > 0 {
		want.layers = min(opt.GPULayers, all)
	}
	for i := range all - want.layers {
		want.place[i] = 1
	}
	on, _ := n.sums(want, 1)
	free := 0
	var names []string
	for i, b := range gpus {
		free += room[i] + n.beside
		names = append(names, b.Name())
	}
	s := fmt.Sprintf("%d of %d layers need %s on %s, which has %s free", want.layers, all, Bytes(on[0]+len(gpus)*n.beside),
		strings.Join(names, " and "), Bytes(free))
	fit := n.divide(room, Options{})
	switch {
	case fit.layers == 0:
		return s + "; nothing of it would fit"
	case fit.experts > 0:
		return fmt.Sprintf("%s; --gpu-layers %d --cpu-experts %d would fit", s, fit.layers, fit.experts)
	}
	return fmt.Sprintf("%s; --gpu-layers %d would fit", s, fit.layers)
}

// Chunk is how many prompt tokens should run in one pass when nobody else waits: enough to use the device well, few
// enough to show progress and to stop soon.
func (m *Model) Chunk() int {
	g, ok := m.Backend().(gpu)
	if !ok {
		return 128
	}
	if free, _ := g.Memory(); free < ample {
		return model.MaxRows / 2
	}
	return model.MaxRows
}

// ample is free memory of a GPU of which the largest batch takes little: about a gigabyte more than one of half the
// rows, for a model of 27B parameters. Where there is less, sequences need it more.
const ample = 8 << 30

// leastCache and unknownCache are the sizes of the prefix cache where next to nothing is free, and where the system
// does not say what is.
const leastCache, unknownCache = 256 << 20, 2 << 30

// cacheBytes is the size of the prefix cache unless the options say one: on GPUs half of what is free once the model is
// loaded, since running sequences need the other half; on the processor a quarter of what programs may still take
// beyond the weights, whose mapped pages the system counts as free.
func (m *Model) cacheBytes() int64 {
	least, gpus := 0, 0
	for i, b := range m.backends {
		if i < len(m.names) && slices.Index(m.names, m.names[i]) < i {
			continue // a GPU that is named twice has its memory once
		}
		if g, ok := b.(gpu); ok {
			if free, _ := g.Memory(); gpus == 0 || free < least {
				least = free
			}
			gpus++
		}
	}
	if gpus > 0 {
		return max(leastCache, int64(least)*int64(gpus)/2)
	}
	free := availableMemory()
	if free == 0 {
		return unknownCache
	}
	return max(leastCache, int64(free-m.Target.WeightBytes())/4)
}

// availableMemory is platform.AvailableMemory, but in tests.
var availableMemory = platform.AvailableMemory

// onProcessor reports whether a device is the processor.
func onProcessor(b backend.Backend) bool {
	_, ok := b.(gpu)
	return !ok
}

// lossyDecoding reports whether what is remembered of a token depends on whether it was generated.
func (m *Model) lossyDecoding() bool { return m.lossy != "" && m.lossy != fmt.Sprint(float32(0), 0) }

// deviceName names the devices that run the model.
func (m *Model) deviceName() string {
	var names []string
	for _, b := range m.backends {
		names = append(names, b.Name())
	}
	return strings.Join(names, " and ")
}
