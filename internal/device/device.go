// Package device opens what models run on by the names people give it: cpu, cuda, cuda:1, auto.
package device

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/backend/cuda"
	"strobe/internal/backend/gpu"
)

// Options says how to use a device.
type Options struct {
	Threads int // of the processor; 0 means all cores
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
	ds, _ := cuda.Devices() // without a driver there is none
	for _, d := range ds {
		i := Info{Name: fmt.Sprintf("cuda:%d", d.Index), Total: d.Memory, Err: d.Supported(),
			Description: fmt.Sprintf("%s, compute capability %d.%d", d.Name, d.Major, d.Minor)}
		if i.Err == nil {
			if drv, err := cuda.Open(d.Index); err == nil {
				i.Free, _ = drv.Free()
				drv.Close()
			} else {
				i.Err = err
			}
		}
		list = append(list, i)
	}
	b := cpu.New(cpu.Options{})
	defer b.Close()
	return append(list, Info{Name: "cpu", Description: b.Name()})
}

// Check reports what is wrong with a name, or with several with commas between, without opening a device.
func Check(names string) error {
	list := strings.Split(names, ",")
	for _, name := range list {
		kind, _, err := parse(name)
		if err != nil {
			return err
		}
		if len(list) > 1 && kind != "cuda" {
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
		case "cuda":
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
	case "cuda":
		if numbered {
			if index, err = strconv.Atoi(number); err != nil || index < 0 {
				return "", 0, fmt.Errorf("device %q: want a number after cuda:", name)
			}
		}
		return kind, index, nil
	}
	return "", 0, fmt.Errorf("device %q: want auto, cpu, cuda or cuda:N", name)
}

// Open opens a device. "auto" (and "") is the first GPU that can be used, or the processor.
func Open(name string, opt Options) (backend.Backend, error) {
	kind, index, err := parse(name)
	if err != nil {
		return nil, err
	}
	if kind != "cpu" {
		b, err := openCUDA(index)
		if err == nil {
			return b, nil
		}
		if kind == "cuda" {
			if errors.Is(err, cuda.ErrNoDriver) {
				return nil, fmt.Errorf("device %s: %w", name, err)
			}
			return nil, err
		}
	}
	return cpu.New(cpu.Options{Threads: opt.Threads}), nil
}

func openCUDA(index int) (backend.Backend, error) {
	d, err := cuda.Open(index)
	if err != nil {
		return nil, err
	}
	b, err := gpu.New(d)
	if err != nil {
		return nil, err
	}
	return b, nil
}
