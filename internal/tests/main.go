// Command tests runs the tests, shows how far they are, and lists at the end which ones were skipped and why: go test
// alone does not mention them, and a test that does not run proves nothing.
//
//	go run ./internal/tests          what go test ./... runs
//	go run ./internal/tests -long    the long tests too
//
// With -list FILE the list is also written to a file. What follows goes to go test instead of ./..., for example
// -run TestText ./internal/backend/vulkan.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"strobe/internal/testkit"
)

func main() {
	long, list, args, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "tests:", err)
		os.Exit(2)
	}
	code, err := run(os.Stdout, long, list, args)
	if err != nil {
		fmt.Fprintln(os.Stderr, "tests:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// parse takes our own flags off the front of the arguments; package flag would refuse those of go test.
func parse(args []string) (long bool, list string, rest []string, err error) {
	for len(args) > 0 {
		switch args[0] {
		case "-long":
			long = true
		case "-list":
			if len(args) < 2 {
				return false, "", nil, errors.New("-list needs the name of a file")
			}
			list, args = args[1], args[1:]
		case "-h", "-help", "--help":
			return false, "", nil, errors.New("usage: go run ./internal/tests [-long] [-list FILE] [ARGUMENTS OF go test]")
		default:
			return long, list, args, nil
		}
		args = args[1:]
	}
	return long, list, nil, nil
}

// run runs go test and returns its exit code.
func run(w io.Writer, long bool, list string, args []string) (int, error) {
	cmd := exec.Command("go", arguments(args)...)
	cmd.Env = append(os.Environ(), testkit.LongVariable+"=")
	if long {
		cmd.Env = append(cmd.Env, testkit.LongVariable+"=1") // the last one counts
	}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 1, err
	}
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	r := newReport(w)
	quiet := time.NewTicker(30 * time.Second)
	defer quiet.Stop()
	go func() {
		for range quiet.C {
			r.progress()
		}
	}()
	err = r.read(out)
	failed := cmd.Wait()
	if err != nil {
		return 1, fmt.Errorf("reading what go test says: %w", err)
	}
	skips := r.skips()
	fmt.Fprint(w, "\n"+skips)
	if list != "" {
		err = os.WriteFile(list, []byte(skips), 0o644)
	}
	if failed != nil {
		fmt.Fprintln(w, "\nFAIL")
	}
	return cmd.ProcessState.ExitCode(), err
}

// arguments are those of go.
func arguments(args []string) []string {
	// Long tests take more than the ten minutes that a package has on a machine that does other things. The same limit for
	// all lets a long run find results of a short one in Go's cache.
	// go vet is a step of its own in .ci/run, and takes a minute.
	all := []string{"test", "-json", "-timeout=30m", "-vet=off"}
	if len(args) == 0 {
		// The packages with the longest tests first, so that not one of them runs alone at the end.
		args = []string{"./internal/backend/cuda", "./internal/backend/vulkan", "./internal/backend/gpu", "./..."}
	}
	return append(all, args...)
}

// event is a line of go test -json.
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

// test names a test, or with an empty name its package.
type test struct{ pkg, name string }

// report shows what go test says, shorter. Its methods can be called at the same time.
type report struct {
	w io.Writer

	mu      sync.Mutex
	output  map[test][]string  // of tests that are not done
	running map[string]started // by package
	quiet   bool               // nothing was shown since the last call of progress
	done    int                // packages
	skipped []skip
}

type started struct {
	last string // the test that was begun last
	at   time.Time
}

type skip struct {
	test
	why string
}

func newReport(w io.Writer) *report {
	return &report{w: w, output: map[test][]string{}, running: map[string]started{}}
}

// read shows what people want to see of the events.
func (r *report) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		r.line(line)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *report) line(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var e event
	if json.Unmarshal([]byte(line), &e) != nil {
		r.show(line) // go itself, in plain words
		return
	}
	id := test{e.Package, e.Test}
	switch e.Action {
	case "start":
		r.running[e.Package] = started{at: time.Now()}
		return
	case "run":
		r.running[e.Package] = started{e.Test, r.running[e.Package].at}
		return
	case "output":
		r.output[id] = append(r.output[id], e.Output)
		return
	case "build-output":
		r.show(e.Output)
		return
	case "skip":
		if e.Test != "" {
			r.skipped = append(r.skipped, skip{id, reason(r.output[id])})
		}
	case "fail":
		if e.Test == "" {
			r.rest(e.Package)
		}
		r.show(r.output[id]...)
	case "pass":
		if e.Test == "" {
			r.show(r.output[id][max(0, len(r.output[id])-1):]...) // ok, how long it took, or that it is cached
		}
	default:
		return
	}
	delete(r.output, id)
	if e.Test == "" {
		delete(r.running, e.Package)
		r.done++
	}
}

// rest shows what tests said that did not end: one of them ended the process.
func (r *report) rest(pkg string) {
	for id, out := range r.output {
		if id.pkg == pkg && id.name != "" {
			r.show(out...)
			delete(r.output, id)
		}
	}
}

func (r *report) show(lines ...string) {
	fmt.Fprint(r.w, strings.Join(lines, ""))
	r.quiet = r.quiet && len(lines) == 0
}

// progress says what is running, if nothing was shown since it was called last.
func (r *report) progress() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.quiet {
		var now []string
		for pkg, s := range r.running {
			now = append(now, fmt.Sprintf("%s (%.0f s, now %s)", pkg, time.Since(s.at).Seconds(), s.last))
		}
		slices.Sort(now)
		if len(now) == 0 {
			now = []string{"go, which compiles"}
		}
		fmt.Fprintf(r.w, "... packages done: %d, at work: %s\n", r.done, strings.Join(now, ", "))
	}
	r.quiet = true
}

// skips lists the tests that were skipped: the long ones by package, the others with their reasons.
func (r *report) skips() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var long, other []string
	count := map[string]int{}
	for _, s := range r.skipped {
		if s.why == testkit.LongReason {
			count[s.pkg]++
		} else {
			other = append(other, fmt.Sprintf("  %s %s: %s\n", s.pkg, s.name, s.why))
		}
	}
	for pkg, n := range count {
		long = append(long, fmt.Sprintf("  %s: %d\n", pkg, n))
	}
	slices.Sort(long)
	slices.Sort(other)
	var b strings.Builder
	if n := len(r.skipped) - len(other); n > 0 {
		fmt.Fprintf(&b, "skipped because they are long, %s runs them: %d\n%s", testkit.LongCommand, n,
			strings.Join(long, ""))
	}
	if len(other) > 0 {
		fmt.Fprintf(&b, "skipped for other reasons: %d\n%s", len(other), strings.Join(other, ""))
	}
	if b.Len() == 0 {
		return "no test was skipped\n"
	}
	return b.String()
}

// reason finds what a test said when it was skipped: the line with the place in its source.
func reason(output []string) string {
	for _, line := range slices.Backward(output) {
		line = strings.TrimSpace(line)
		if _, why, ok := strings.Cut(line, ": "); ok && strings.Contains(line, ".go:") {
			return why
		}
	}
	return "no reason given"
}
