//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"strobe/internal/testkit"
	"strobe/internal/testkit/edit"
)

var soakTime = flag.Duration("soak", 0, "how long TestSoak runs; 0 skips it")

// TestSoak puts a server under mixed load for as long as -soak says: whole answers, streams, clients that leave, models
// that take each other's place in memory, a cache on disk, a hostile model in the folder, a model file that is
// replaced, overwritten or cut short every 20 seconds, and a server that is stopped or killed and started again at
// random. Every answer must be the one the same request gets alone, or a clear error. It prints what it counted.
//
//	go test ./cmd/strobe -run TestSoak -soak 10m -timeout 0 -v
func TestSoak(t *testing.T) {
	if *soakTime == 0 {
		t.Skip("no duration was given: run it with -soak 10m, for so long")
	}
	s := newSoak(t)
	t.Cleanup(func() {
		if s.cmd != nil {
			s.cmd.Process.Kill()
			s.cmd.Wait()
		}
	})
	s.start()
	s.learn()
	end := time.Now().Add(*soakTime)
	var wg sync.WaitGroup
	for i := range 8 {
		r := rand.New(rand.NewPCG(uint64(i), uint64(time.Now().UnixNano())))
		wg.Go(func() {
			for time.Now().Before(end) {
				s.ask(r)
			}
		})
	}
	wg.Go(func() { s.every(end, 20*time.Second, s.change) })
	wg.Go(func() { s.every(end, 13*time.Second, s.restart) })
	wg.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, what := range slices.Sorted(maps.Keys(s.counts)) {
		t.Logf("%6d %s", s.counts[what], what)
	}
	changed := s.counts["file changes"] > 0 || *soakTime < time.Minute
	if s.counts["right"] == 0 || s.counts["kills and stops"] == 0 || !changed {
		t.Error("it shows little: run it longer")
	}
}

type soak struct {
	t      *testing.T
	dir    string
	cache  string
	files  map[string][]byte   // versions of the file that changes
	bodies map[string][]string // requests by model
	want   map[string][]string // texts that are right, by model and body

	server sync.RWMutex // held for writing while there is none
	cmd    *exec.Cmd
	log    *bytes.Buffer
	url    string
	life   atomic.Int64 // changes when the server is about to go, and when it is back

	mu     sync.Mutex
	counts map[string]int
	turn   int
}

func (s *soak) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[what]++
}

// newSoak makes a folder of models: three that stay, one that changes between two versions, one that is hostile.
func newSoak(t *testing.T) *soak {
	s := &soak{
		t: t, dir: t.TempDir(), cache: t.TempDir(), counts: map[string]int{}, files: map[string][]byte{},
		bodies: map[string][]string{}, want: map[string][]string{},
	}
	golden := func(name string) []byte {
		b, err := os.ReadFile(testkit.Golden(t, name+"/model.gguf"))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for name, from := range map[string]string{
		"plain": "qwen3", "hybrid": "qwen35", "hybrid-dflash": "dflash-qwen35", "window": "gemma4",
		"changing": "qwen3", "v1": "qwen3", "v2": "qwen35moe",
	} {
		s.write(name, golden(from))
	}
	s.files["v1"], s.files["v2"] = golden("qwen3"), golden("qwen35moe")
	hostile := edit.Golden(t, "qwen3").Set("qwen3.rope.dimension_count", uint64(1<<32-2))
	hostile.WriteTo(t, filepath.Join(s.dir, "hostile.gguf"))
	if err := syscall.Mkfifo(filepath.Join(s.dir, "pipe.gguf"), 0o600); err != nil {
		t.Fatal(err)
	}
	base := strings.Repeat("It was a dark and stormy night; the rain fell in torrents. ", 6)
	for _, model := range []string{"plain", "hybrid", "window", "v1", "v2"} {
		for i := range 10 {
			sampling := `"temperature":0`
			if i%2 == 1 {
				sampling = fmt.Sprintf(`"temperature":1,"seed":%d,"repeat_penalty":1.1`, i)
			}
			body := fmt.Sprintf(`"prompt":%q,"max_tokens":%d,"ignore_eos":true,%s`, base[:30+i*33], 5+9*i, sampling)
			s.bodies[model] = append(s.bodies[model], body)
		}
	}
	s.bodies["changing"] = s.bodies["v1"]
	return s
}

func (s *soak) write(name string, b []byte) {
	if err := os.WriteFile(filepath.Join(s.dir, name+".gguf"), b, 0o644); err != nil {
		s.t.Error(err)
	}
}

// start runs the server until it answers.
func (s *soak) start() {
	args, err := json.Marshal([]string{"serve", "--port", "0", "--models", s.dir, "--models-memory", "4MiB",
		"--cache-dir", s.cache, "--cache-disk", "20MiB", "--parallel", "3", "--queue", "8", "--shutdown-timeout", "2s",
		"--max-conns", "12"})
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestProcess$")
	cmd.Env = append(os.Environ(), argsVariable+"="+string(args))
	s.log = &bytes.Buffer{}
	cmd.Stderr = s.log
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		s.t.Fatalf("the server does not start: %v", err)
	}
	s.cmd, s.url = cmd, strings.TrimSpace(line)
	for {
		resp, err := http.Get(s.url + "/health")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// learn asks every request alone.
func (s *soak) learn() {
	for model, bodies := range s.bodies {
		if model == "changing" {
			continue
		}
		for _, body := range bodies {
			text, _, err := s.request(s.t.Context(), s.url, model, body, false, -1)
			if err != nil {
				s.t.Fatalf("%s alone: %v", model, err)
			}
			s.want[model+body] = []string{text}
		}
	}
	for _, body := range s.bodies["changing"] {
		s.want["changing"+body] = append(slices.Clone(s.want["v1"+body]), s.want["v2"+body]...)
	}
}

// clearError is an answer that says what is wrong.
type clearError struct{ what string }

func (e *clearError) Error() string { return e.what }

var errLeft = errors.New("the client left")

// request asks and returns the text; leave is the number of pieces after which the client goes.
func (s *soak) request(ctx context.Context, url, model, body string, stream bool, leave int) (
	text string, pieces int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	q := fmt.Sprintf(`{"model":%q,"stream":%v,%s}`, model, stream, body)
	req, err := http.NewRequestWithContext(ctx, "POST", url+"/v1/completions", strings.NewReader(q))
	if err != nil {
		return "", 0, err
	}
	reused := false
	trace := &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) { reused = c.Reused }}
	resp, err := http.DefaultClient.Do(req.WithContext(httptrace.WithClientTrace(ctx, trace)))
	if reused && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) ||
		err != nil && strings.Contains(err.Error(), "server closed idle connection")) {
		// The server closed an idle connection in the moment it was used again, as every server may. Clients ask once
		// more.
		s.count("asked again on another connection")
		return s.request(ctx, url, model, body, stream, leave)
	}
	if err != nil {
		return "", 0, err
	}
	defer resp.Body.Close()
	type answer struct {
		Choices []struct{ Text string }
		Error   *struct{ Message, Type string }
	}
	parse := func(b []byte) error {
		var a answer
		if err := json.Unmarshal(b, &a); err != nil {
			return fmt.Errorf("not JSON: %q", b)
		}
		switch {
		case a.Error != nil && a.Error.Message != "" && a.Error.Type != "":
			return &clearError{fmt.Sprintf("%d %s", resp.StatusCode, a.Error.Type)}
		case a.Error != nil || resp.StatusCode != http.StatusOK:
			return fmt.Errorf("status %d without a clear error: %s", resp.StatusCode, b)
		}
		for _, c := range a.Choices {
			text += c.Text
		}
		return nil
	}
	if !stream || resp.StatusCode != http.StatusOK {
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			return text, 0, err
		}
		return text, 0, parse(b)
	}
	lines := bufio.NewReader(resp.Body)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return text, pieces, fmt.Errorf("the stream broke off: %w", err)
		}
		data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			return text, pieces, nil
		}
		if err := parse([]byte(data)); err != nil {
			return text, pieces, err
		}
		if pieces++; pieces == leave {
			return text, pieces, errLeft
		}
	}
}

// ask makes one request of the load and judges the answer.
func (s *soak) ask(r *rand.Rand) {
	models := []string{"plain", "hybrid", "window", "changing", "changing", "hostile", "missing"}
	model := models[r.IntN(len(models))]
	body := `"prompt":"x","max_tokens":3`
	if list := s.bodies[model]; list != nil {
		body = list[r.IntN(len(list))]
	}
	stream, leave := r.IntN(3) > 0, -1
	if stream && r.IntN(4) == 0 {
		leave = 1 + r.IntN(10)
	}
	s.server.RLock() // it is there when the request begins
	url, life := s.url, s.life.Load()
	s.server.RUnlock()
	text, _, err := s.request(s.t.Context(), url, model, body, stream, leave)
	// What was sent before an error or before the client left is right, too.
	begins := slices.ContainsFunc(s.want[model+body], func(w string) bool { return strings.HasPrefix(w, text) })
	var clear *clearError
	switch {
	case err == nil && slices.Contains(s.want[model+body], text):
		s.count("right")
	case err == nil:
		s.wrong("%s, %s: the answer is %q, alone it is %q", model, body, text, s.want[model+body])
	case text != "" && !begins:
		s.wrong("%s, %s: before %v came %q, alone it is %q", model, body, err, text, s.want[model+body])
	case errors.Is(err, errLeft):
		s.count("right as far as the client stayed")
	case errors.As(err, &clear):
		s.count("clear error: " + model + ": " + clear.what)
	case s.life.Load() != life:
		s.count("lost with a server that was stopped or killed")
	default:
		s.wrong("%s, %s: %v", model, body, err)
	}
}

func (s *soak) wrong(format string, args ...any) {
	s.count("WRONG")
	s.t.Errorf(format, args...)
}

// every calls fn about once in d until the end.
func (s *soak) every(end time.Time, d time.Duration, fn func()) {
	for {
		wait := d/2 + rand.N(d)
		if time.Until(end) < wait {
			return
		}
		time.Sleep(wait)
		fn()
	}
}

// change gives the file that changes its other content, by one of the ways people do that. A cut file is completed at
// once, so that there is something to load.
func (s *soak) change() {
	s.turn++
	next := s.files[[]string{"v1", "v2"}[s.turn%2]]
	path := filepath.Join(s.dir, "changing.gguf")
	switch s.turn % 3 {
	case 0:
		s.write("changing.new", next)
		if err := os.Rename(filepath.Join(s.dir, "changing.new.gguf"), path); err != nil {
			s.t.Error(err)
		}
	case 1:
		s.write("changing", next)
	default:
		if err := os.Truncate(path, 5000); err != nil {
			s.t.Error(err)
		}
		time.Sleep(200 * time.Millisecond)
		s.write("changing", next)
	}
	s.count("file changes")
}

// restart ends the server, politely or not, and starts another one.
func (s *soak) restart() {
	s.life.Add(1)
	s.server.Lock()
	defer s.server.Unlock()
	sig := []os.Signal{syscall.SIGKILL, syscall.SIGTERM, os.Interrupt}[rand.IntN(3)]
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.wrong("the server is gone before its time: %v\n%s", err, s.log)
	}
	err := s.cmd.Wait()
	var exit *exec.ExitError
	killed := errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
	if sig == syscall.SIGKILL != killed || !killed && err != nil {
		log := s.log.Bytes()
		s.wrong("after %v the server ended with %v\n%s", sig, err, log[max(0, len(log)-4000):])
	}
	s.count("kills and stops")
	http.DefaultClient.CloseIdleConnections()
	s.start()
	s.life.Add(1)
}
