package gpu_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"
	"unsafe"

	"strobe/internal/backend"
	"strobe/internal/backend/gpu"
	"strobe/internal/cache"
	"strobe/internal/convert"
	"strobe/internal/draft"
	"strobe/internal/draft/dflash"
	"strobe/internal/draft/mtp"
	"strobe/internal/model"
	"strobe/internal/quant"
	"strobe/internal/sample"
	"strobe/internal/synth"
	"strobe/internal/testkit"
	"strobe/internal/testkit/edit"
)

// listFile has a line for every model and device of TestLaunchLists: how many launches its passes are, and their hash.
const listFile = "testdata/launches.txt"

// listsVariable names a folder. If it is set, TestLaunchLists writes all lists there as text and writes listFile anew.
// To see what a change does to the lists, write them before and after it and compare the folders.
const listsVariable = "STROBE_LAUNCHES"

// listed is a device that keeps what is launched as text. Addresses are written as the number of an allocation, in the
// order in which a list names them, and the distance from its start: text does not depend on the order of allocations.
type listed struct {
	idleDriver
	props gpu.Props
	mem   []allocation // by address
	next  gpu.Addr
	seen  map[gpu.Addr]int
	text  strings.Builder
	count int
}

type allocation struct {
	at    gpu.Addr
	bytes int
}

func (d *listed) Props() gpu.Props { return d.props }

// Alloc hands out addresses that no pair of small integers looks like.
func (d *listed) Alloc(bytes int) (gpu.Addr, error) {
	at := 0x7e57_0000_0000 + d.next
	d.next += gpu.Addr(bytes+511) / 256 * 256
	d.mem = append(d.mem, allocation{at, bytes})
	return at, nil
}

func (d *listed) Launch(l *gpu.Launch) {
	d.count++
	fmt.Fprintf(&d.text, "%s %v threads %d shared %d early %t beside %t cluster %d alone %t:", l.Name, l.Grid, l.Threads,
		l.Shared, l.Early, l.Beside, l.Cluster, l.Alone)
	for i := 0; i < len(l.Args); i += 8 {
		if i+8 > len(l.Args) {
			fmt.Fprintf(&d.text, " %x", l.Args[i:])
			break
		}
		d.word(binary.LittleEndian.Uint64(l.Args[i:]))
	}
	d.text.WriteByte('\n')
}

// word writes eight bytes of arguments: an address, or two numbers.
func (d *listed) word(v uint64) {
	a := gpu.Addr(v)
	if i := sort.Search(len(d.mem), func(i int) bool { return d.mem[i].at > a }) - 1; i >= 0 &&
		a <= d.mem[i].at+gpu.Addr(d.mem[i].bytes) {
		m := d.mem[i]
		if _, ok := d.seen[m.at]; !ok {
			d.seen[m.at] = len(d.seen)
		}
		fmt.Fprintf(&d.text, " #%d+%d", d.seen[m.at], a-m.at)
		return
	}
	fmt.Fprintf(&d.text, " %x.%x", uint32(v), uint32(v>>32))
}

// take returns what was launched since it was last asked.
func (d *listed) take() (text string, launches int) {
	text, launches = d.text.String(), d.count
	d.text.Reset()
	d.count, d.seen = 0, map[gpu.Addr]int{}
	return text, launches
}

// hollow is a backend whose weights have addresses, but no values: nothing is repacked.
type hollow struct{ *gpu.Backend }

func (b hollow) Weight(m backend.Matrix) (backend.Weight, error) { return b.Reserve(m) }

// hollowFile is a synthetic model of any size whose weights are a hole in the file. Nothing may read them.
func hollowFile(t testing.TB, shape, mix string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "model.gguf")
	head := int64(0)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// Headers of large models are longer than the writer's buffer, so they are in its file when it says what follows.
	err := synth.Write(ctx, path, shape, mix, 1, synth.Options{Plan: func(p convert.Plan) {
		cancel()
		names, err := filepath.Glob(path + ".tmp-*")
		if err != nil || len(names) != 1 {
			t.Fatalf("the writer's files are %v, error %v", names, err)
		}
		b, err := os.ReadFile(names[0])
		if err == nil {
			err = os.WriteFile(path, b, 0o644)
		}
		head = int64(len(b))
		if err == nil { // with room for what aligns tensors
			err = os.Truncate(path, head+p.Bytes+int64(64*p.Tensors))
		}
		if err != nil {
			t.Fatal(err)
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("writing a header: error %v", err)
	}
	// The only values that must not be zero.
	f := opened(t, path)
	if freqs := f.Tensor("rope_freqs.weight"); freqs != nil {
		out, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		at := head + int64(uintptr(unsafe.Pointer(&freqs.Data[0]))-uintptr(unsafe.Pointer(&f.Tensors()[0].Data[0])))
		if _, err := out.WriteAt(bytes.Repeat([]byte{0, 0, 0x80, 0x3f}, len(freqs.Data)/4), at); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// listedDevices are the devices that lists are made for.
var listedDevices = []gpu.Props{
	{Name: "hopper", Major: 9, Units: 132, SharedBlock: 227 << 10},
	{Name: "blackwell", Major: 12, Units: 188, SharedBlock: 99 << 10},
	{Name: "ampere", Major: 8, Units: 108, SharedBlock: 163 << 10},
	{Name: "ada", Major: 8, Minor: 9, Units: 76, SharedBlock: 99 << 10},
	{Name: "vulkan", NoTensorCores: true, Matrices: true, Units: 132, SharedBlock: 48 << 10, Threads: 1024},
	{Name: "vulkan-small", NoTensorCores: true, Units: 12, SharedBlock: 16 << 10, Threads: 256},
}

// modelLists is a model with its drafter on a device, and what was written of its passes.
type modelLists struct {
	t       testing.TB
	d       *listed
	name    string
	m       *model.Model
	drafter draft.Source

	text     strings.Builder
	launches int
}

func (l *modelLists) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatalf("%s: %v", l.name, err)
	}
}

func (l *modelLists) done(pass string) {
	if text, n := l.d.take(); n > 0 {
		fmt.Fprintf(&l.text, "== %s\n%s", pass, text)
		l.launches += n
	}
}

// pass runs segments and, for a chain, lets the drafter see it and draft.
func (l *modelLists) pass(name string, segs ...model.Segment) {
	l.t.Helper()
	out, err := l.m.Forward(segs)
	l.must(err)
	l.done(name)
	var rows []draft.Rows
	var requests []draft.Request
	at := int32(0)
	for _, s := range segs {
		if s.Parents == nil {
			l.must(s.Seq.CommitAll())
		} else {
			l.must(s.Seq.Commit([]int32{0, 2}))
		}
		if l.drafter != nil && s.Parents == nil {
			r := draft.Rows{Seq: l.drafter.NewContext(), Tokens: s.Tokens}
			for range s.Tokens {
				r.Rows = append(r.Rows, at)
				at++
			}
			rows = append(rows, r)
			requests = append(requests, draft.Request{Seq: r.Seq, Target: s.Seq, N: min(8, l.drafter.Max())})
		}
	}
	l.done(name + ", commit")
	if len(rows) == 0 {
		return
	}
	l.must(l.drafter.Extend(out.Features, rows))
	l.done(name + ", extend")
	_, err = l.drafter.Draft(requests, 4)
	l.must(err)
	l.done(name + ", draft")
	for _, r := range rows {
		r.Seq.Close()
	}
}

// passes runs the kinds of passes there are.
func (l *modelLists) passes(sizes ...int) {
	segment := func(seq *cache.Seq, n int, want sample.Want) model.Segment {
		return model.Segment{Seq: seq, Tokens: make([]int32, n), Logits: model.LogitsAll, Want: want}
	}
	seq, other := l.m.NewSeq(), l.m.NewSeq()
	defer seq.Close()
	defer other.Close()
	for _, n := range []int{512, 40} {
		l.pass(fmt.Sprintf("prompt %d", n), model.Segment{Seq: seq, Tokens: make([]int32, n), Prompt: true,
			Logits: model.LogitsLast})
	}
	for _, n := range sizes {
		l.pass(fmt.Sprintf("chain %d", n), segment(seq, n, sample.WantBest))
	}
	for _, want := range []sample.Want{sample.WantRow, sample.WantShort, sample.WantWeighed} {
		l.pass(fmt.Sprintf("sampled %d", want), segment(seq, 2, want))
	}
	tree := segment(seq, 15, sample.WantBest)
	for i := range tree.Tokens {
		tree.Parents = append(tree.Parents, int32(i+1)/2-1)
	}
	l.pass("tree 15", tree)
	l.pass("streams", segment(seq, 3, sample.WantBest), segment(other, 5, sample.WantBest))
	// A long context has splits.
	for range 6 {
		l.pass("further prompt", model.Segment{Seq: seq, Tokens: make([]int32, 1000), Prompt: true, Logits: model.LogitsLast})
	}
	l.pass("late 1", segment(seq, 1, sample.WantBest))
	l.pass("late 8", segment(seq, 8, sample.WantBest))
	fork, err := seq.Fork()
	l.must(err)
	l.pass("forked", segment(fork, 2, sample.WantBest))
	fork.Close()
}

// listedModels are the models that lists are made for: a file, and that of a drafter.
func listedModels(t testing.TB) (cs []listedModel) {
	for _, name := range testkit.GoldenModels(t) {
		if !strings.HasPrefix(name, "dflash-") && name != "gemma4-assistant" {
			c := listedModel{name: "golden " + name, path: testkit.Golden(t, name+"/model.gguf")}
			if _, err := os.Stat(filepath.Join(testkit.Root(t), "testdata/golden/dflash-"+name)); err == nil {
				c.dflash = testkit.Golden(t, "dflash-"+name+"/model.gguf")
			}
			cs = append(cs, c)
		}
	}
	for _, arch := range []string{"qwen35", "qwen35moe", "qwen3next"} {
		cs = append(cs, listedModel{name: "golden mtp " + arch, path: edit.MTP(t, arch).Write(t), mtp: true})
	}
	root := testkit.Root(t)
	pair := listedModel{name: "built-in pair", path: filepath.Join(root, "models/strobe-go-66m.gguf"),
		dflash: filepath.Join(root, "models/strobe-go-66m-dflash.gguf")}
	kv := func(types ...quant.Type) (all []cache.Types) {
		for _, typ := range types {
			all = append(all, cache.Uniform(typ))
		}
		return all
	}
	pair.kv = kv(quant.F32, quant.Q8_0, quant.Q4_0)
	cs = append(cs, pair)
	cs = append(cs, listedModel{name: "sparse pair", path: pair.path,
		sparse: &backend.Sparse{Block: 128, Sink: 1, Window: 2, Last: 1, Alpha: 0.5}, kv: kv(quant.Q8_0)})
	big := func(shape, mix string, suffix string, kvs ...cache.Types) {
		c := listedModel{name: shape + " " + mix, path: hollowFile(t, shape, mix), kv: kvs}
		switch suffix {
		case "-dflash":
			c.dflash = hollowFile(t, shape+suffix, "q8_0")
		case "-mtp":
			c.name, c.path, c.mtp = c.name+" mtp", hollowFile(t, shape+suffix, mix), true
		case "-assistant":
			c.name, c.assistant = c.name+" assistant", hollowFile(t, shape+suffix, mix)
		}
		cs = append(cs, c)
	}
	big("qwen3.6-27b", "q4_k_m", "-dflash", kv(quant.Q8_0)...)
	big("qwen3.6-27b", "q4_k_m", "-mtp")
	big("qwen3.5-4b", "q6_k", "-dflash")
	big("qwen3.6-35b-a3b", "q4_k_m", "-dflash")
	big("qwen3.6-35b-a3b", "q8_0", "-mtp")
	big("qwen3-coder-next", "q5_k_m", "")
	big("qwen3-30b-a3b", "q4_k_m", "")
	big("qwen3-0.6b", "q4_0", "")
	big("qwen2.5-7b", "q3_k_m", "")
	big("gemma-4-31b", "q4_k_m", "-dflash")
	big("gemma-4-26b-a4b", "q4_k_m", "-dflash", kv(quant.Q4_0)...)
	big("gemma-4-26b-a4b", "q4_k_m", "-assistant")
	return cs
}

type listedModel struct {
	name, path        string
	dflash, assistant string
	mtp               bool
	kv                []cache.Types // beside the usual ones
	sparse            *backend.Sparse
}

// TestLaunchLists: passes of models of all kinds, from the golden ones to those of 35B, are the launches that they
// were: kernels, grids and arguments on every kind of device. A change that is meant to change them writes the file
// anew.
func TestLaunchLists(t *testing.T) {
	testkit.Long(t)
	dir := os.Getenv(listsVariable)
	var lines []string
	for _, c := range listedModels(t) {
		for _, props := range listedDevices {
			for i, kv := range append([]cache.Types{{}}, c.kv...) {
				name := c.name + " on " + props.Name
				if i > 0 {
					name += fmt.Sprintf(" kv %d", i)
				}
				l := &modelLists{t: t, name: name}
				l.open(c, props, kv)
				l.passes(1, 2, 8, 16, 32)
				lines = append(lines, fmt.Sprintf("%s: %d %.8x", name, l.launches, sha256.Sum256([]byte(l.text.String()))))
				if dir != "" {
					l.must(os.WriteFile(filepath.Join(dir, strings.ReplaceAll(name, " ", "_")), []byte(l.text.String()), 0o644))
				}
			}
		}
	}
	got := strings.Join(lines, "\n") + "\n"
	if dir != "" {
		if err := os.WriteFile(listFile, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(listFile)
	if err != nil {
		t.Fatal(err)
	}
	before := strings.Split(string(want), "\n")
	for i, line := range lines {
		if i >= len(before) || line != before[i] {
			t.Fatalf("line %d of %s is %q, now it is %q; %s=folder writes all lists", i+1, listFile,
				cmp.Or(slices.Concat(before, make([]string, i+1))[i], "missing"), line, listsVariable)
		}
	}
	if len(before) != len(lines)+1 {
		t.Errorf("%s has %d lines, now there are %d", listFile, len(before)-1, len(lines))
	}
}

// open loads a model and its drafter on a device.
func (l *modelLists) open(c listedModel, props gpu.Props, kv cache.Types) {
	l.t.Helper()
	props.Memory = 1 << 40
	l.d = &listed{idleDriver: idleDriver{&idle{}}, props: props, seen: map[gpu.Addr]int{}}
	dev, err := gpu.New(l.d)
	l.must(err)
	l.m, err = model.Open(opened(l.t, c.path), hollow{dev}, model.Options{KV: kv, Sparse: c.sparse})
	l.must(err)
	switch {
	case c.dflash != "":
		l.drafter, err = dflash.Open(opened(l.t, c.dflash), l.m, dflash.Options{})
	case c.assistant != "":
		l.drafter, err = mtp.Open(opened(l.t, c.assistant), l.m, mtp.Options{})
	case c.mtp:
		l.drafter, err = mtp.Open(l.m.File(), l.m, mtp.Options{})
	}
	l.must(err)
	if l.drafter != nil {
		l.must(l.m.Capture(l.drafter.Capture()))
	}
	l.d.take()
}
