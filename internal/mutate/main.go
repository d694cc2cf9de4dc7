// Command mutate puts small bugs into a package, one at a time, and runs its tests: what they do not notice is printed
// as a diff. Nothing in the tree is changed (go test -overlay).
//
//	go run ./internal/mutate -n 30 -seed 1 ./internal/pflash
//	go run ./internal/mutate -n 15 ./internal/engine -- -short -run 'Pool|Restore'
//
// Every test runs alone first, so that a mutant is tried with the tests that run its line and no others. Mutants are
// chosen by the seed, the operators in turn. Those that do not compile are skipped. Flags after -- go to go test.
// The exit status is 1 when mutants survive and -strict is set.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if len(os.Args) > 1 && os.Args[1] == eachFlag {
		err = runEach(ctx, os.Args[2:])
	} else {
		err = run(ctx, os.Args[1:], os.Stdout)
	}
	if err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "mutate:", err)
		}
		stop()
		os.Exit(1)
	}
}

// A tried mutant.
type tried struct {
	mutant
	Result string `json:"result"`
	Diff   string `json:"diff"`
}

// A report is what -json writes.
type report struct {
	Package  string           `json:"package"`
	Seed     uint64           `json:"seed"`
	Possible int              `json:"possible"` // mutants there are
	Scores   map[string]score `json:"scores"`   // by operator
	All      score            `json:"all"`
	Mutants  []tried          `json:"mutants"`
}

type score struct {
	Killed int `json:"killed"`
	Tried  int `json:"tried"`
}

func (s score) String() string {
	return fmt.Sprintf("%d of %d (%.0f %%)", s.Killed, s.Tried, 100*float64(s.Killed)/float64(max(1, s.Tried)))
}

var errSurvivors = errors.New("mutants survived")

func run(ctx context.Context, args []string, w io.Writer) error {
	fs := flag.NewFlagSet("mutate", flag.ContinueOnError)
	fs.Usage = func() {
		fmt.Fprintln(fs.Output(), "usage: mutate [flags] PACKAGE [-- flags of go test]")
		fs.PrintDefaults()
	}
	n := fs.Int("n", 30, "mutants to try; 0 means all")
	seed := fs.Uint64("seed", 1, "chooses them")
	only := fs.String("op", "", "operators to use, with commas; empty means all: border, error, lock, cleanup, key, negate, "+
		"branch, swap")
	file := fs.String("file", "", "files to change, with commas; empty means all")
	timeout := fs.Duration("timeout", 0, "longest run of the tests; 0 means 30 s and five times what the chosen ones take")
	dependants := fs.Bool("dependants", false, "also run the tests of packages that import it")
	jsonOut := fs.String("json", "", "file for the results")
	listOnly := fs.Bool("list", false, "print the mutants and run nothing")
	strict := fs.Bool("strict", false, "exit with status 1 when mutants survive")
	if err := fs.Parse(args); err != nil {
		return err
	}
	rest := fs.Args()
	if len(rest) == 0 || len(rest) > 1 && rest[1] != "--" {
		fs.Usage()
		return errors.New("want one package")
	}
	src, all, err := load(ctx, rest[0])
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(m mutant) bool {
		return *only != "" && !slices.Contains(strings.Split(*only, ","), m.Operator) ||
			*file != "" && !slices.Contains(strings.Split(*file, ","), filepath.Base(m.File))
	})
	all = shuffled(all, *seed)
	if *n <= 0 {
		*n = len(all)
	}
	wd, err := os.Getwd()
	if err != nil {
		return err
	}
	place := func(m *mutant) string {
		name := m.File
		if rel, err := filepath.Rel(wd, m.File); err == nil {
			name = filepath.ToSlash(rel)
		}
		return fmt.Sprintf("%s:%d", name, m.Line)
	}
	if *listOnly {
		for i := range all {
			fmt.Fprintf(w, "%-8s %s: %s\n", all[i].Operator, place(&all[i]), all[i].What)
		}
		return nil
	}
	t := &tests{packages: []string{src.path}, timeout: *timeout}
	if len(rest) > 1 {
		t.args = rest[2:]
	}
	if *dependants {
		others, err := list(ctx, "./...")
		if err != nil {
			return err
		}
		for _, p := range others {
			if slices.Contains(slices.Concat(p.Imports, p.TestImports, p.XTestImports), src.path) && p.ImportPath != src.path {
				t.packages = append(t.packages, p.ImportPath)
			}
		}
	}
	if t.dir, err = os.MkdirTemp("", "mutate"); err != nil {
		return err
	}
	defer os.RemoveAll(t.dir)
	if err := t.begin(ctx, src.path); err != nil {
		return err
	}
	r := report{Package: src.path, Seed: *seed, Possible: len(all), Scores: map[string]score{}, Mutants: []tried{}}
	start := time.Now()
	var stopped error
	for i := range all {
		if r.All.Tried == *n {
			break
		}
		m := &all[i]
		before := src.text[m.File]
		after := m.apply(before)
		if !src.compiles(m.File, after) {
			continue
		}
		result, err := t.try(ctx, m, after)
		if err != nil { // Ctrl-C may end go test before this program hears of it
			fmt.Fprintf(w, "stopped after %d mutants\n", r.All.Tried)
			stopped = err
			break
		}
		if result == "" {
			continue // tests do not compile with it
		}
		s := r.Scores[m.Operator]
		s.Tried++
		r.All.Tried++
		if result == killed || result == timedOut {
			s.Killed++
			r.All.Killed++
		}
		r.Scores[m.Operator] = s
		x := tried{*m, result, hunk(before, after)}
		x.File, _, _ = strings.Cut(place(m), ":")
		r.Mutants = append(r.Mutants, x)
		if result == survived || result == notRun {
			fmt.Fprintf(w, "%s: %s: %s: %s\n%s\n", place(m), result, m.Operator, m.What, x.Diff)
		}
	}
	fmt.Fprintf(w, "%s, seed %d: %v of %d mutants killed in %.0f s\n", src.path, *seed, r.All, len(all),
		time.Since(start).Seconds())
	for _, op := range slices.Sorted(maps.Keys(r.Scores)) {
		fmt.Fprintf(w, "  %-8s %v\n", op, r.Scores[op])
	}
	if *jsonOut != "" {
		raw, err := json.MarshalIndent(r, "", "  ")
		if err == nil {
			err = os.WriteFile(*jsonOut, append(raw, '\n'), 0o666)
		}
		if err != nil {
			return err
		}
	}
	if stopped != nil {
		return stopped
	}
	if *strict && r.All.Killed < r.All.Tried {
		return errSurvivors
	}
	return nil
}
