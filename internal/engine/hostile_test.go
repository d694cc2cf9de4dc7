package engine

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"strobe/internal/testkit/edit"
)

// hang is far longer than any of these tiny files can take on a busy machine: whoever needs it does not end.
const hang = time.Minute

// tryHostile loads a file and generates a little. It reports what went wrong: a panic, a hang, much
// more memory than the file needs, an error that is no line.
func tryHostile(path string) (ran bool, wrong error) {
	type outcome struct {
		ran bool
		err error
	}
	done := make(chan outcome, 1)
	go func() {
		var o outcome
		defer func() {
			if p := recover(); p != nil {
				o.err = fmt.Errorf("panic: %v", p)
			}
			done <- o
		}()
		o.ran, o.err = runHostile(path)
	}()
	select {
	case o := <-done:
		return o.ran, o.err
	case <-time.After(hang):
		return false, fmt.Errorf("it does not end")
	}
}

func runHostile(path string) (ran bool, wrong error) {
	const most = 100 << 20 // what loading and a few tokens of a golden model may allocate
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	defer func() {
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > most && wrong == nil {
			wrong = fmt.Errorf("%d MB were allocated", n>>20)
		}
	}()
	m, err := Load(path, Options{Threads: 1, Drafter: "none"})
	if err != nil {
		if !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "\n") {
			return false, fmt.Errorf("the error is not one line that names the file: %q", err)
		}
		return false, nil
	}
	e := New(m, Config{Parallel: 1, CacheBytes: 1 << 20})
	defer e.Close(context.Background())
	g, err := e.Submit(context.Background(), Request{Tokens: []int32{1, 2, 3, 4, 5}, MaxTokens: 3})
	if err != nil {
		return true, nil
	}
	ev, err := g.Wait(context.Background())
	if err != nil {
		return true, err
	}
	if err := ev.Result.Err; err != nil && strings.Contains(err.Error(), errDefect.Error()) {
		return true, err
	}
	return true, nil
}

// TestHostileTargets: whatever a target's metadata says in place of one value, loading gives one line or a
// model that runs: no panic, no hang, no memory that the file merely claims to need.
func TestHostileTargets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hostile.gguf")
	files, ran := 0, 0
	for i, name := range edit.Targets(t) {
		g := edit.Golden(t, name)
		try := func(key string, v any) {
			g.Clone().Set(key, v).WriteTo(t, path)
			ok, err := tryHostile(path)
			if err != nil {
				t.Errorf("%s, %s = %.40v: %v", name, key, v, err)
			}
			files++
			if ok {
				ran++
			}
		}
		for _, kv := range g.KVs {
			if i > 0 && !strings.HasPrefix(kv.Key, g.Arch()+".") {
				continue // the tokenizer's keys and such are read in the same way for all
			}
			for _, v := range edit.HostileValues(kv.Value) {
				try(kv.Key, v)
			}
		}
		for _, key := range edit.OptionalKeys {
			for _, v := range []any{uint64(0), uint64(1 << 31), uint64(1 << 40), []int32{-1}} {
				try(g.Arch()+"."+key, v)
			}
		}
	}
	t.Logf("%d files, of which %d ran", files, ran)
	if ran < files/10 || ran > files*9/10 {
		t.Errorf("%d of %d files ran: the test shows little", ran, files)
	}
}

// TestSizesWithoutTensors: layers that the metadata describes and the file does not have need no memory.
func TestSizesWithoutTensors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	gemma := edit.Golden(t, "gemma4").Set("gemma4.expert_count", uint32(64)).
		Set("gemma4.expert_used_count", uint32(64))
	qwen := edit.Golden(t, "qwen35")
	pattern := func(recurrent bool, block string) *edit.File {
		// Four layers of one kind, made of one layer's tensors.
		e := qwen.Clone().Set("qwen35.attention.recurrent_layers", []bool{recurrent, recurrent, recurrent, recurrent})
		e.Tensors = nil
		for _, x := range qwen.Tensors {
			if !strings.HasPrefix(x.Name, "blk.") {
				e.Tensors = append(e.Tensors, x)
			} else if rest, ok := strings.CutPrefix(x.Name, block); ok {
				for i := range 4 {
					y := *x
					y.Name = fmt.Sprintf("blk.%d.%s", i, rest)
					e.Tensors = append(e.Tensors, &y)
				}
			}
		}
		return e
	}
	for name, e := range map[string]*edit.File{
		"wide experts": gemma.Clone().Set("gemma4.expert_feed_forward_length", uint64(1<<20)),
		"far too wide": gemma.Clone().Set("gemma4.expert_feed_forward_length", uint64(1<<40)),
		"attention without": pattern(true, "blk.0.").Set("qwen35.attention.head_count",
			uint32(4096)).Set("qwen35.attention.key_length", uint32(16384)),
		"recurrence without": pattern(false, "blk.3.").Set("qwen35.ssm.group_count", uint32(4096)).
			Set("qwen35.ssm.time_step_rank", uint32(4096)).Set("qwen35.ssm.state_size", uint32(4096)).
			Set("qwen35.ssm.inner_size", uint32(4096*4096)),
	} {
		e.WriteTo(t, path)
		if ran, err := tryHostile(path); err != nil || !ran {
			_, loadErr := Load(path, Options{Threads: 1, Drafter: "none"})
			t.Errorf("%s: ran: %v, error %v %v", name, ran, err, loadErr)
		}
	}
}

// FuzzTargetMetadata: the same for several values at once, chosen by the fuzzer: each four bytes name a key, a
// value from a list and a number to add to it.
func FuzzTargetMetadata(f *testing.F) {
	names := edit.Targets(f)
	goldens := make([]*edit.File, len(names))
	keys := make([][]string, len(names))
	for i, name := range names {
		goldens[i] = edit.Golden(f, name)
		for _, kv := range goldens[i].KVs {
			if edit.HostileValues(kv.Value) != nil {
				keys[i] = append(keys[i], kv.Key)
			}
		}
		for _, key := range edit.OptionalKeys {
			keys[i] = append(keys[i], goldens[i].Arch()+"."+key)
		}
		f.Add(byte(i), []byte{0, 0, 0, 0})
		f.Add(byte(i), []byte{9, 3, 0, 2, 30, 1, 0, 0})
	}
	values := []uint64{0, 1, 2, 4, 16, 32, 64, 128, 512, 1 << 16, 1 << 20, 1 << 24, 1 << 31, 1 << 32, 1 << 40, 1 << 63}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, model byte, data []byte) {
		i := int(model) % len(goldens)
		g := goldens[i].Clone()
		for n := 0; len(data) >= 4 && n < 4; n++ {
			v := values[int(data[2])%len(values)] + uint64(int64(int8(data[3])))
			key := keys[i][(int(data[0])|int(data[1])<<8)%len(keys[i])]
			g.Set(key, v)
			data = data[4:]
		}
		path := filepath.Join(dir, "fuzz.gguf")
		g.WriteTo(t, path)
		if _, err := tryHostile(path); err != nil {
			t.Error(err)
		}
	})
}
