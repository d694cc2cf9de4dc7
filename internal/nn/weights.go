package nn

import (
	"errors"
	"slices"
	"time"

	"strobe/internal/backend"
)

// Weights are the matrices of a network that is not needed all the time: they can leave their device and be loaded from
// the file again. Vectors are small and stay. Weights belong to the goroutine that drives their devices.
type Weights struct {
	// Returned, if set, is called with the bytes that were loaded again and the time that took.
	Returned func(bytes int, took time.Duration)

	on     []parkable
	parked bool
	held   bool // they must not return
}

// parkable is the weights on one device that can park them.
type parkable struct {
	device   backend.Backend
	weights  []backend.Weight
	matrices []backend.Matrix
}

func (p parkable) park() { p.device.(backend.Parker).Park(p.weights...) }

// ErrHeld reports that weights may not return to their device now.
var ErrHeld = errors.New("its weights are parked until no generation runs: their memory was needed")

// add remembers a matrix, unless its device keeps it in any case, as the processor does.
func (w *Weights) add(b backend.Backend, x backend.Weight, m backend.Matrix) {
	if _, ok := b.(backend.Parker); !ok {
		return
	}
	i := slices.IndexFunc(w.on, func(p parkable) bool { return p.device == b })
	if i < 0 {
		i = len(w.on)
		w.on = append(w.on, parkable{device: b})
	}
	w.on[i].weights, w.on[i].matrices = append(w.on[i].weights, x), append(w.on[i].matrices, m)
}

// Devices are those that Park would give memory back to; there are none while the weights are parked.
func (w *Weights) Devices() (bs []backend.Backend) {
	for _, p := range w.on {
		if !w.parked {
			bs = append(bs, p.device)
		}
	}
	return bs
}

// Hold says whether weights that are parked must stay so.
func (w *Weights) Hold(held bool) { w.held = held }

// Park gives the memory of the weights back and says how much that was.
func (w *Weights) Park() (bytes int) {
	if w.parked {
		return 0
	}
	for _, p := range w.on {
		p.park()
		for _, x := range p.weights {
			bytes += x.Bytes()
		}
	}
	w.parked = true
	return bytes
}

// Return brings the weights back where they are parked. When it fails they still are, also when it panics, as it does
// when another program has cut the file short.
func (w *Weights) Return() error {
	switch {
	case !w.parked:
		return nil
	case w.held:
		return ErrHeld
	}
	defer func() {
		if w.parked { // some may be loaded already
			for _, p := range w.on {
				p.park()
			}
		}
	}()
	began, bytes := time.Now(), 0
	for _, p := range w.on {
		if err := p.unpark(); err != nil {
			return err
		}
		for _, x := range p.weights {
			bytes += x.Bytes()
		}
	}
	if w.parked = false; w.Returned != nil {
		w.Returned(bytes, time.Since(began))
	}
	return nil
}

func (p parkable) unpark() error {
	for i, x := range p.weights {
		if err := p.device.(backend.Parker).Unpark(x, p.matrices[i]); err != nil {
			return err
		}
	}
	return p.device.Sync()
}
