package device

import "testing"

// TestNames: names that people give devices, right and wrong.
func TestNames(t *testing.T) {
	for name, want := range map[string]string{
		"": "", "auto": "", "cpu": "", "cuda": "", "cuda:3": "",
		"cpu:1":   `device "cpu:1": cpu has no number`,
		"cuda:x":  `device "cuda:x": want a number after cuda:`,
		"cuda:-1": `device "cuda:-1": want a number after cuda:`,
		"vulkan":  "", "vulkan:1": "",
		"vulkan:": `device "vulkan:": want a number after vulkan:`,
		"metal":   `device "metal": want auto, cpu, cuda, cuda:N, vulkan or vulkan:N`,
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
	for _, name := range []string{"cuda:99", "vulkan:99"} {
		if _, err := Open(name, Options{}); err == nil {
			t.Errorf("%s was opened", name)
		}
	}
	if b, err = Open("auto", Options{Threads: 1}); err != nil {
		t.Fatal(err)
	}
	b.Close()
}
