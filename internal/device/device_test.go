package device

import (
	"fmt"
	"runtime"
	"testing"

	"strobe/internal/backend/cpu"
)

// TestNames: names that people give devices, right and wrong.
func TestNames(t *testing.T) {
	for name, want := range map[string]string{
		"": "", "auto": "", "cpu": "", "cuda": "", "cuda:3": "",
		"cpu:1":         `device "cpu:1": cpu has no number`,
		"cuda:x":        `device "cuda:x": want a number after cuda:`,
		"cuda:-1":       `device "cuda:-1": want a number after cuda:`,
		"cuda:0,cuda:1": "",
		"cuda,cpu":      `device "cuda,cpu": only GPUs share a model; the processor gets what they have no room for`,
		"cuda:0,":       `device "cuda:0,": only GPUs share a model; the processor gets what they have no room for`,
		"vulkan":        "",
		"vulkan:1":      "",
		"vulkan:":       `device "vulkan:": want a number after vulkan:`,
		"metal":         `device "metal": want auto, cpu, cuda, cuda:N, vulkan or vulkan:N`,
	} {
		got := ""
		if err := Check(name); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

// TestSeveral: names are taken apart as Open takes them.
func TestSeveral(t *testing.T) {
	for names, want := range map[string]string{
		"": "[]", "auto": "[]", "cpu": "[cpu]", "cuda": "[cuda:0]", "cuda:2": "[cuda:2]",
		"cuda:1,cuda,cuda:1": "[cuda:1 cuda:0 cuda:1]",
	} {
		if got := fmt.Sprint(Names(names)); got != want {
			t.Errorf("%q: %s, want %s", names, got, want)
		}
	}
}

// TestOpen: the processor is always there, and last in the list; a GPU that is not there is an error only if it was
// asked for.
func TestOpen(t *testing.T) {
	b, err := Open("cpu", Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
	list := List()
	if last := list[len(list)-1]; last.Name != "cpu" || last.Err != nil {
		t.Errorf("the last device is %+v", last)
	}
	if _, err := Open("cuda:99", Options{}); err == nil {
		t.Error("GPU 99 was opened")
	}
	if b, err = Open("auto", Options{Threads: 1}); err != nil {
		t.Fatal(err)
	}
	b.Close()
}

// TestThreads: whoever asks for more workers than there are cores gets one for each.
func TestThreads(t *testing.T) {
	for asked, want := range map[int]int{0: runtime.GOMAXPROCS(0), 1: 1, 1 << 10: runtime.GOMAXPROCS(0)} {
		b, err := Open("cpu", Options{Threads: asked})
		if err != nil {
			t.Fatal(err)
		}
		if got := b.(*cpu.Backend).Threads(); got != want {
			t.Errorf("%d threads asked for: %d, want %d", asked, got, want)
		}
		b.(*cpu.Backend).Close()
	}
}
