package engine

import (
	"fmt"
	"log/slog"
	"slices"
	"time"

	"strobe/internal/device"
	"strobe/internal/nn"
)

// Drafters give the memory of their weights back when little is left on their device: while nobody generates, which is
// when a scorer reads, and when a pass was refused memory. They come back with the first pass that needs them.

// park gives back what drafters have on devices where little is left, and reports whether that was anything. Say is
// told of each.
func (m *Model) park(say func(drafter string, bytes int, took time.Duration)) (any bool) {
	try := func(name string, w *nn.Weights) {
		if !m.noPark && slices.ContainsFunc(w.Devices(), device.Tight) {
			began := time.Now()
			bytes := w.Park()
			say(name, bytes, time.Since(began))
			any = true
		}
	}
	for _, d := range m.Drafters() {
		try(d.Name(), d.Weights())
	}
	if m.Vision != nil && !m.Vision.busy {
		try("for images", m.Vision.enc.Weights())
	}
	return any
}

// parkAtLoad makes room for what else is to be loaded.
func (m *Model) parkAtLoad(opt Options) {
	m.park(func(drafter string, bytes int, took time.Duration) {
		if opt.Say != nil {
			opt.Say(fmt.Sprintf("drafter %s parked in %v until it is needed, which gives %s back", drafter,
				took.Round(time.Millisecond), Bytes(bytes)))
		}
	})
}

// parkDrafters is park for an engine.
func (l *loop) parkDrafters() bool {
	return l.m.park(func(drafter string, bytes int, took time.Duration) {
		l.e.cfg.Log.Info("drafter parked", "drafter", drafter, "bytes", bytes, "took", took.Round(time.Millisecond))
	})
}

// hold says whether parked drafters must stay away. Those that made room for a text would take it again otherwise.
func (m *Model) hold(held bool) {
	for _, d := range m.Drafters() {
		d.Weights().Hold(held)
	}
}

// watchDrafters logs what it takes to bring drafters back.
func (m *Model) watchDrafters(log *slog.Logger) {
	for _, d := range m.Drafters() {
		d.Weights().Returned = func(bytes int, took time.Duration) {
			log.Info("drafter back on its device", "drafter", d.Name(), "bytes", bytes, "took", took.Round(time.Millisecond))
		}
	}
}
