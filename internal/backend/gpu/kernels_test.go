package gpu_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"strobe/internal/backend/gpu"
)

// sourceFile is a source of kernels with what it includes, without comments.
func sourceFile(t *testing.T, path string, seen map[string]bool) string {
	t.Helper()
	if seen[path] {
		return ""
	}
	seen[path] = true
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`).ReplaceAllString(string(b), "")
	include := regexp.MustCompile(`#include "([^"]+)"`)
	return include.ReplaceAllStringFunc(text, func(line string) string {
		name := filepath.Join(filepath.Dir(path), include.FindStringSubmatch(line)[1])
		if _, err := os.Stat(name); err != nil {
			return "" // of the compiler
		}
		return sourceFile(t, name, seen)
	})
}

// fields is a structure: what lies at an offset, and its size and alignment.
type fields struct {
	at          map[int]string // "address", "int" or "float"
	size, align int
}

// put appends a field at the next place where it may lie.
func (f *fields) put(x fields) {
	f.align = max(f.align, x.align)
	f.size = (f.size + x.align - 1) / x.align * x.align
	for at, kind := range x.at {
		f.at[f.size+at] = kind
	}
	f.size += x.size
}

var scalars = map[string]string{"int": "int", "uint": "int", "u32": "int", "float": "float", "uint64_t": "address",
	"u64": "address"}

// parseFields reads the fields of a structure in C or GLSL; structs are those it may name.
func parseFields(t *testing.T, text, body string) fields {
	t.Helper()
	all := fields{at: map[int]string{}, align: 1}
	for _, decl := range strings.Split(body, ";") {
		decl = strings.TrimSpace(strings.ReplaceAll(decl, "const ", ""))
		if decl == "" || strings.HasPrefix(decl, "static") {
			continue
		}
		m := regexp.MustCompile(`^(\w+)([\s*]+.*)$`).FindStringSubmatch(strings.Join(strings.Fields(decl), " "))
		if m == nil {
			t.Fatalf("field %q", decl)
		}
		for _, name := range strings.Split(m[2], ",") {
			count := 1
			for _, n := range regexp.MustCompile(`\[(\d+)\]`).FindAllStringSubmatch(name, -1) {
				k, _ := strconv.Atoi(n[1])
				count *= k
			}
			// int* a, b would be a pointer and an integer; the sources write int *a, *b.
			pointer := strings.Contains(name, "*")
			one := fields{map[int]string{0: "address"}, 8, 8}
			if m[1] == "uvec2" {
				one.at = map[int]string{0: "unread", 4: "unread"} // room for what only CUDA's kernels read
			} else if kind := scalars[m[1]]; kind != "" && kind != "address" && !pointer {
				one = fields{map[int]string{0: kind}, 4, 4}
			} else if kind == "" && !pointer {
				one = parseStruct(t, text, m[1])
			}
			for range count {
				all.put(one)
			}
		}
	}
	all.size = (all.size + all.align - 1) / all.align * all.align
	return all
}

// parseStruct finds a structure.
func parseStruct(t *testing.T, text, name string) fields {
	t.Helper()
	m := regexp.MustCompile(`struct ` + name + `(?: : (\w+))? \{([^}]*)\}`).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("there is no structure %s", name)
	}
	all := parseFields(t, text, m[2])
	if m[1] != "" {
		base := parseStruct(t, text, m[1])
		base.put(all)
		base.size = (base.size + base.align - 1) / base.align * base.align
		return base
	}
	return all
}

// goFields is a structure of this package. Fields without a name are left out.
func goFields(v reflect.Type, at int, all map[int]string) map[int]string {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); f.Name != "_" {
				goFields(f.Type, at+int(f.Offset), all)
			}
		}
	case reflect.Array:
		for i := range v.Len() {
			goFields(v.Elem(), at+i*int(v.Elem().Size()), all)
		}
	default:
		all[at] = map[reflect.Kind]string{reflect.Uint64: "address", reflect.Int32: "int", reflect.Float32: "float"}[v.Kind()]
	}
	return all
}

// compareFields reports where the structure of a kernel's source differs from the catalogue's. What only the source has
// must be padding.
func compareFields(t *testing.T, what string, got fields, args reflect.Type) {
	t.Helper()
	want := goFields(args, 0, map[int]string{})
	for _, at := range slices.Sorted(maps.Keys(want)) {
		if got.at[at] != want[at] && got.at[at] != "unread" {
			t.Errorf("%s: at byte %d its source has %q, the catalogue %q", what, at, got.at[at], want[at])
			return
		}
	}
	if size := (got.size + 7) / 8 * 8; size != int(args.Size()) {
		t.Errorf("%s: its source has %d bytes of arguments, the catalogue %d", what, size, args.Size())
	}
}

// onlyVulkan matches the kernels that have a shader and no CUDA source: CUDA has others for their work.
var onlyVulkan = regexp.MustCompile(`^(read|merge_pack|delta_whole|(rows|tiles|experts|attend)_\w+)$`)

// TestArguments: the structures of the kernels' sources are those of the catalogue.
func TestArguments(t *testing.T) {
	type declared struct {
		name    *regexp.Regexp
		letters int // of it that are not those of a family's member
		args    fields
	}
	var cuda []declared
	for _, pattern := range []string{"../cuda/kernel/*.cu", "../cuda/kernel/*.h"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("sources of CUDA: %v, %v", files, err)
		}
		for _, file := range files {
			if base := filepath.Base(file); base == "device.h" || base == "emulate.h" {
				continue // what KERNEL is
			}
			text := sourceFile(t, file, map[string]bool{})
			own, _ := os.ReadFile(file)
			for _, m := range regexp.MustCompile(`(?m)^[^/\n]*KERNEL\(([\w#]+), (\w+),`).FindAllStringSubmatch(string(own), -1) {
				name := regexp.MustCompile(`##\w+##|##\w+$`).ReplaceAllString(m[1], `\w+?`)
				if name == "name" { // small.cu: the macro ELEMENTS declares a kernel by its whole name
					var names []string
					for _, e := range regexp.MustCompile(`(?m)^ELEMENTS\((\w+),`).FindAllStringSubmatch(string(own), -1) {
						names = append(names, e[1])
					}
					name = "(" + strings.Join(names, "|") + ")"
				}
				letters := len(strings.ReplaceAll(name, `\w+?`, ""))
				cuda = append(cuda, declared{regexp.MustCompile(`^` + name + `$`), letters, parseStruct(t, text, m[2])})
			}
		}
	}
	modules := map[string]fields{}
	checked := 0
	for _, k := range gpu.Kernels() {
		args, name := reflect.TypeOf(k.Args()), k.Name()
		s := k.Shader()
		var source *declared // that names most of the kernel
		for i, d := range cuda {
			if d.name.MatchString(name) && (source == nil || d.letters > source.letters) {
				source = &cuda[i]
			}
		}
		switch {
		case source == nil && (s.Module == "" || !onlyVulkan.MatchString(name)):
			t.Errorf("no source declares %s", name)
		case source != nil && s.Module != "experts" && (s.Module == "" || name != "select_max_parts"): // Vulkan's own
			compareFields(t, "CUDA's "+name, source.args, args)
		}
		if s.Module == "" {
			continue
		}
		checked++
		got, ok := modules[s.Module]
		if !ok {
			text := sourceFile(t, filepath.Join("../vulkan/kernel", s.Module+".comp"), map[string]bool{})
			all := regexp.MustCompile(`(?s)\bARGS\(([^)]*)\)`).FindAllStringSubmatch(text, -1)
			if len(all) == 0 {
				t.Fatalf("%s.comp has no arguments", s.Module)
			}
			got = parseFields(t, text, all[len(all)-1][1]) // the others say what ARGS is
			modules[s.Module] = got
		}
		compareFields(t, fmt.Sprintf("Vulkan's %s (%s)", s.Module, name), got, args)
	}
	if checked < 100 || len(modules) < 40 {
		t.Errorf("%d kernels of %d modules were compared; the test says nothing", checked, len(modules))
	}
}

// TestEmit: arguments that a kernel does not take are refused, and so are kernels that the driver does not have.
func TestEmit(t *testing.T) {
	calls := gpu.NewSmall(gpu.Props{Units: 8}).Copy(nil, gpu.Out{P: 256, Stride: 4}, gpu.Rows(512, 4), 1, 4)
	d := idleDriver{&idle{}}
	if ls, err := gpu.Emit(d, calls); err != nil || len(ls) != 1 || ls[0].Name != "small_copy" || ls[0].Threads != 256 ||
		len(ls[0].Args) != int(reflect.TypeOf(calls[0].Kernel.Args()).Size()) || ls[0].Args[1] != 1 {
		t.Errorf("a copy became %+v, %v", ls, err)
	}
	calls[0].Kernel = kernelNamed(t, "small_rope")
	if _, err := gpu.Emit(d, calls); err == nil ||
		!strings.Contains(err.Error(), "kernel small_rope has arguments of type") {
		t.Errorf("a copy's arguments for a rotation: error %v", err)
	}
}

// TestKernelNames: kernels of the catalogue differ by name, or by device.
func TestKernelNames(t *testing.T) {
	seen := map[string]gpu.Kernel{}
	for _, k := range gpu.Kernels() {
		key := fmt.Sprintf("%s on Vulkan: %t", k.Name(), k.Shader().Module != "")
		if was := seen[key]; was != nil {
			t.Errorf("%s is both %#v and %#v", key, was, k)
		}
		seen[key] = k
	}
}
