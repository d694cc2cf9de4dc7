// Package device opens what models run on by the names people give it: cpu, cuda, cuda:1, vulkan, auto.
package device

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/backend/cuda"
	"strobe/internal/backend/gpu"
	"strobe/internal/backend/vulkan"
)

// DriverBytes is the memory of a GPU that its driver takes for itself once a model runs.
const DriverBytes = gpu.DriverBytes

// Options says how to use a device.
type Options struct {
	Threads int // of the processor; 0 means all cores (all fast ones where some are slow); all are also the most
	Memory  int // of a GPU: bytes that may be used, as if it had no more; 0 means all
}

// Info describes a device that this machine has.
type Info struct {
	Name        string // as Open takes it
	Description string
	Free, Total int   // bytes of its own memory; 0 for the processor
	Err         error // why it cannot be used
}

// List returns the devices of this machine, the processor last.
func List() []Info {
	var list []Info
	ds, err := cuda.Devices()
	if err != nil && !Missing(err) {
		list = append(list, Info{Name: "cuda", Description: "NVIDIA", Err: err})
	}
	for _, d := range ds {
		i := Info{Name: fmt.Sprintf("cuda:%d", d.Index), Total: d.Memory, Err: d.Supported(),
			Description: fmt.Sprintf("%s, compute capability %d.%d", d.Name, d.Major, d.Minor)}
		if i.Err == nil {
			if drv, err := cuda.Open(d.Index); err == nil {
				i.Free, _ = drv.Free()
				i.Description += tested(drv)
				drv.Close()
			} else {
				i.Err = err
			}
		}
		list = append(list, i)
	}
	list = append(list, listVulkan()...)
	b := cpu.New(cpu.Options{})
	defer b.Close()
	return append(list, Info{Name: "cpu", Description: b.Name()})
}

// tested says what the self-test of an open device chose.
func tested(d gpu.Driver) string {
	if p, ok := d.(interface{ Paths() string }); ok {
		return ", self-test passed: " + p.Paths()
	}
	return ""
}

// listVulkan lists Vulkan's devices, with what their self-test says. Software is not opened: it is there for tests.
func listVulkan() (list []Info) {
	ds, _ := vulkan.Devices() // without a driver there is none
	for _, d := range ds {
		i := Info{Name: fmt.Sprintf("vulkan:%d", d.Index), Total: d.Memory, Err: d.Supported(),
			Description: fmt.Sprintf("%s, %s", d.Name, d.Driver)}
		if d.Software {
			i.Total, i.Description = 0, i.Description+", the processor in disguise, for tests"
		} else if i.Err == nil {
			if drv, err := openVulkan(d.Index); err == nil {
				i.Free, _ = drv.Free()
				i.Description += tested(drv)
				drv.Close()
			} else {
				i.Err = err
			}
		}
		list = append(list, i)
	}
	return list
}

// openVulkan opens one of Vulkan's devices, to be used without what the environment names, where a driver promises too
// much.
func openVulkan(index int) (gpu.Driver, error) {
	opt := vulkan.Options{Cache: compiled()}
	for word := range strings.SplitSeq(os.Getenv("STROBE_VULKAN_WITHOUT"), ",") {
		switch word {
		case "matrices":
			opt.Plain = true
		case "shuffles":
			opt.Shared = true
		case "":
		default:
			return nil, fmt.Errorf("STROBE_VULKAN_WITHOUT: %q: want matrices or shuffles", word)
		}
	}
	return vulkan.Open(index, opt)
}

// compiled is the folder that compiled kernels are kept in; without a home there is none.
func compiled() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "strobe")
}

// Auto is the name of the i-th GPU that "auto" tries; opening it shows whether it is there. Of Vulkan's devices it has
// cards only, where there is no CUDA: what shares the processor's memory may well be slower than the processor, so that
// is for whoever names it.
func Auto(i int) string {
	var names []string
	ds, _ := cuda.Devices()
	for _, d := range ds {
		if d.Supported() == nil {
			names = append(names, fmt.Sprintf("cuda:%d", d.Index))
		}
	}
	if names == nil {
		vs, _ := vulkan.Devices()
		for _, d := range vs {
			if d.Card {
				names = append(names, fmt.Sprintf("vulkan:%d", d.Index))
			}
		}
	}
	if i < len(names) {
		return names[i]
	}
	return fmt.Sprintf("cuda:%d", len(ds)+i) // which is not there
}

// Missing reports whether an error says that there is no such GPU, and not that something is wrong with it.
func Missing(err error) bool { return cuda.Missing(err) }

// Check reports what is wrong with a name, or with several with commas between, without opening a device.
func Check(names string) error {
	list := strings.Split(names, ",")
	for _, name := range list {
		kind, _, err := parse(name)
		if err != nil {
			return err
		}
		if len(list) > 1 && kind != "cuda" && kind != "vulkan" {
			return fmt.Errorf("device %q: only GPUs share a model; the processor gets what they have no room for", names)
		}
	}
	return nil
}

// Names takes apart what Check has found right: each name as Open takes it, with its number. It returns nil for "auto".
func Names(names string) (list []string) {
	for _, name := range strings.Split(names, ",") {
		switch kind, index, _ := parse(name); kind {
		case "cpu":
			list = append(list, kind)
		case "cuda", "vulkan":
			list = append(list, fmt.Sprintf("%s:%d", kind, index))
		}
	}
	return list
}

// parse splits a name into a kind and a number.
func parse(name string) (kind string, index int, err error) {
	kind, number, numbered := strings.Cut(name, ":")
	switch kind {
	case "", "auto", "cpu":
		if numbered {
			return "", 0, fmt.Errorf("device %q: %s has no number", name, kind)
		}
		if kind == "" {
			kind = "auto"
		}
		return kind, 0, nil
	case "cuda", "vulkan":
		if numbered {
			if index, err = strconv.Atoi(number); err != nil || index < 0 {
				return "", 0, fmt.Errorf("device %q: want a number after %s:", name, kind)
			}
		}
		return kind, index, nil
	}
	return "", 0, fmt.Errorf("device %q: want auto, cpu, cuda, cuda:N, vulkan or vulkan:N", name)
}

// Counting returns a GPU that only counts memory, as common cards of so many bytes would need it: backend.Counted says
// how much is in use. If it is strict it runs out of memory as such a card does.
func Counting(memory int, strict bool) (backend.Backend, error) {
	limit := 0
	if strict {
		limit = max(1, memory-DriverBytes)
	}
	// An RTX 3090 or 4090: what shared memory a block gets and how many multiprocessors there are decides how products
	// are cut, and so how much memory they need.
	return gpu.New(gpu.NewCounter(gpu.Props{Name: "GPU", Major: 8, Minor: 6, Units: 82, SharedBlock: 99 << 10,
		Memory: memory}, limit))
}

// Tight reports whether less than a tenth of a device's own memory is free: what is not needed just now should leave.
// The processor has none of its own.
func Tight(b backend.Backend) bool {
	m, ok := b.(interface{ Memory() (free, total int) })
	if !ok {
		return false
	}
	free, total := m.Memory()
	return free < total/10
}

// Open opens a device. "auto" (and "") is the first GPU that can be used, or the processor.
func Open(name string, opt Options) (backend.Backend, error) {
	kind, index, err := parse(name)
	if err != nil {
		return nil, err
	}
	auto := kind == "auto"
	if auto {
		kind, index, _ = parse(Auto(0))
	}
	var d gpu.Driver
	switch kind {
	case "cuda":
		d, err = cuda.Open(index)
	case "vulkan":
		d, err = openVulkan(index)
	}
	if d != nil && err == nil {
		if opt.Memory > 0 {
			d = gpu.Limit(d, opt.Memory)
		}
		var b *gpu.Backend
		if b, err = gpu.New(d); err == nil {
			return b, nil
		}
	}
	if auto {
		err = nil
	}
	if errors.Is(err, cuda.ErrNoDriver) || errors.Is(err, vulkan.ErrNoDriver) {
		if !withGPUs {
			err = fmt.Errorf("this program was built without GPUs (%w)", err)
		}
		return nil, fmt.Errorf("device %s: %w", name, err)
	}
	if err != nil {
		return nil, err
	}
	// More workers than cores only wait for each other; tens of thousands would do nothing else.
	return cpu.New(cpu.Options{Threads: min(opt.Threads, runtime.GOMAXPROCS(0))}), nil
}
