package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// listed is what go list says of a package.
type listed struct {
	ImportPath, Name, Dir, Export               string
	GoFiles, Imports, TestImports, XTestImports []string
	DepOnly                                     bool
}

// goCommand runs the go command until the context ends.
func goCommand(ctx context.Context, args ...string) ([]byte, error) {
	c := exec.CommandContext(ctx, "go", args...)
	if slices.Contains(args, "-race") {
		c.Env = append(os.Environ(), "CGO_ENABLED=1")
	}
	c.Cancel = func() error { return errors.Join(c.Process.Signal(os.Interrupt)) }
	c.WaitDelay = 10 * time.Second
	var out, said bytes.Buffer
	c.Stdout, c.Stderr = &out, &said
	err := c.Run()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return nil, err
	}
	if err != nil {
		return append(out.Bytes(), said.Bytes()...), fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err,
			lastLines(append(said.Bytes(), out.Bytes()...)))
	}
	return out.Bytes(), nil
}

func lastLines(b []byte) string {
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}

func list(ctx context.Context, args ...string) (out []listed, err error) {
	raw, err := goCommand(ctx, append([]string{"list",
		"-json=ImportPath,Name,Dir,Export,GoFiles,Imports,TestImports,XTestImports,DepOnly"}, args...)...)
	if err != nil {
		return nil, err
	}
	for d := json.NewDecoder(bytes.NewReader(raw)); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return out, nil
		} else if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
}

// source is a package that is parsed and checked.
type source struct {
	path  string
	fset  *token.FileSet
	files map[string]*ast.File
	text  map[string][]byte
	imp   types.Importer
}

// load reads a package. What it imports comes compiled from the build cache.
func load(ctx context.Context, pattern string) (*source, []mutant, error) {
	all, err := list(ctx, "-export", "-deps", pattern)
	if err != nil {
		return nil, nil, err
	}
	exports := map[string]string{}
	var own []listed
	for _, p := range all {
		if exports[p.ImportPath] = p.Export; !p.DepOnly {
			own = append(own, p)
		}
	}
	if len(own) != 1 {
		return nil, nil, fmt.Errorf("%s is %d packages, want one", pattern, len(own))
	}
	s := &source{path: own[0].ImportPath, fset: token.NewFileSet(), files: map[string]*ast.File{},
		text: map[string][]byte{}}
	s.imp = importer.ForCompiler(s.fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for _, name := range own[0].GoFiles {
		path := filepath.Join(own[0].Dir, name)
		src, err := os.ReadFile(path)
		if err != nil {
			return nil, nil, err
		}
		file, err := parser.ParseFile(s.fset, path, src, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, nil, err
		}
		s.files[path], s.text[path] = file, src
	}
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{},
		Defs: map[*ast.Ident]types.Object{}}
	if err := s.check(info, s.files); err != nil {
		return nil, nil, err
	}
	var out []mutant
	for path, file := range s.files {
		if !ast.IsGenerated(file) {
			out = append(out, find(s.fset, info, file, s.text[path])...)
		}
	}
	return s, out, nil
}

func (s *source) check(info *types.Info, files map[string]*ast.File) error {
	list := make([]*ast.File, 0, len(files))
	for _, f := range files {
		list = append(list, f)
	}
	_, err := (&types.Config{Importer: s.imp}).Check(s.path, s.fset, list, info)
	return err
}

// compiles reports whether a package compiles with a file changed.
func (s *source) compiles(path string, src []byte) bool {
	file, err := parser.ParseFile(s.fset, path, src, parser.SkipObjectResolution)
	if err != nil {
		return false
	}
	files := map[string]*ast.File{}
	for p, f := range s.files {
		files[p] = f
	}
	files[path] = file
	return s.check(nil, files) == nil
}

// shuffled orders mutants by chance, the operators in turn: a sample has as many of each as there are.
func shuffled(all []mutant, seed uint64) []mutant {
	slices.SortFunc(all, func(a, b mutant) int {
		if c := strings.Compare(a.File, b.File); c != 0 {
			return c
		}
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		if a.edits[0].from != b.edits[0].from {
			return a.edits[0].from - b.edits[0].from
		}
		return strings.Compare(a.Operator+a.What, b.Operator+b.What)
	})
	r := rand.New(rand.NewPCG(seed, 0))
	r.Shuffle(len(all), func(i, k int) { all[i], all[k] = all[k], all[i] })
	groups := map[string][]mutant{}
	var names []string
	for _, m := range all {
		if groups[m.Operator] == nil {
			names = append(names, m.Operator)
		}
		groups[m.Operator] = append(groups[m.Operator], m)
	}
	slices.Sort(names)
	out := make([]mutant, 0, len(all))
	for turn := 0; len(out) < len(all); turn++ {
		for _, n := range names {
			if turn < len(groups[n]) {
				out = append(out, groups[n][turn])
			}
		}
	}
	return out
}

// What became of a mutant.
const (
	killed   = "killed"
	timedOut = "timed out" // which counts as killed
	survived = "survived"
	notRun   = "not run" // it survived: no test runs the line
)

// tests runs the tests that are to find mutants.
type tests struct {
	dir      string // for temporary files
	packages []string
	args     []string // of go test
	timeout  time.Duration
	alone    []alone        // every test by itself, the fastest first
	lines    map[string]int // all lines, FILE:LINE, and how many tests run them
	race     bool           // there is a C compiler, which the race detector needs
}

// alone says what one test runs when nothing else runs in its process.
type alone struct {
	Dir, Test string
	Seconds   float64
	Lines     map[string]int // lines of the package, FILE:LINE, and how often they run
}

// begin runs every test by itself without a mutant: they have to pass, and say how long they take and what they run.
// go test builds a package once and gives its binary to this program (runEach) instead of running it.
func (t *tests) begin(ctx context.Context, of string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	args := append([]string{"test", "-count=1", "-vet=off", "-timeout=0", "-coverprofile=" + filepath.Join(t.dir, "cover"),
		"-coverpkg=" + of, "-exec=" + strconv.Quote(self) + " " + eachFlag + " " + strconv.Quote(t.dir)}, t.args...)
	if _, err := goCommand(ctx, append(args, t.packages...)...); err != nil {
		return fmt.Errorf("the tests fail without any mutant: %w", err)
	}
	found, err := filepath.Glob(filepath.Join(t.dir, "*.alone"))
	if err != nil {
		return err
	}
	if cc, err := goCommand(ctx, "env", "CC"); err == nil && len(bytes.Fields(cc)) > 0 {
		_, err = exec.LookPath(string(bytes.Fields(cc)[0]))
		t.race = err == nil
	}
	t.lines = map[string]int{}
	for _, name := range found {
		raw, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		var one alone
		if err := json.Unmarshal(raw, &one); err != nil {
			return err
		}
		t.alone = append(t.alone, one)
		for at, n := range one.Lines {
			t.lines[at] += min(n, 1)
		}
	}
	slices.SortFunc(t.alone, func(a, b alone) int {
		return cmp.Or(cmp.Compare(a.Seconds, b.Seconds), strings.Compare(a.Test, b.Test))
	})
	return nil
}

// eachFlag is how begin has go test call this program: mutate -each DIR BINARY FLAGS.
const eachFlag = "-each"

// runEach runs every test of a test binary in a process of its own and leaves a file for each in the folder.
func runEach(ctx context.Context, args []string) error {
	if len(args) < 2 {
		return errors.New("want a folder and a test binary")
	}
	dir, binary, flags := args[0], args[1], args[2:]
	wd, err := os.Getwd()
	if err != nil {
		return err
	}
	names := "."
	for _, f := range flags {
		if pattern, ok := strings.CutPrefix(f, "-test.run="); ok {
			names, _, _ = strings.Cut(pattern, "/")
		}
	}
	listed, err := exec.CommandContext(ctx, binary, "-test.list="+names).Output()
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(string(listed)) {
		if strings.HasPrefix(name, "Benchmark") {
			continue
		}
		file, err := os.CreateTemp(dir, "*.alone")
		if err != nil {
			return err
		}
		profile := file.Name() + ".cover"
		test := exec.CommandContext(ctx, binary, append(slices.Clone(flags), "-test.run=^"+name+"$",
			"-test.coverprofile="+profile)...)
		test.Cancel = func() error { return test.Process.Signal(os.Interrupt) }
		test.WaitDelay = 10 * time.Second
		start := time.Now()
		if out, err := test.CombinedOutput(); err != nil {
			return fmt.Errorf("%s alone: %w\n%s", name, err, lastLines(out))
		}
		one := alone{Dir: wd, Test: name, Seconds: time.Since(start).Seconds()}
		one.Lines, err = readProfile(profile)
		if err == nil {
			err = json.NewEncoder(file).Encode(one)
		}
		if err := errors.Join(err, file.Close(), os.Remove(profile)); err != nil {
			return err
		}
	}
	return nil
}

// readProfile reads how often lines were run, the most of all blocks that a line has.
func readProfile(path string) (map[string]int, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	ran := map[string]int{}
	for sc := bufio.NewScanner(f); sc.Scan(); {
		// package/file.go:1.2,3.4 5 6
		i := strings.LastIndexByte(sc.Text(), ':')
		var from, to, column, statements, count int
		if i < 0 {
			continue
		}
		if _, err := fmt.Sscanf(sc.Text()[i+1:], "%d.%d,%d.%d %d %d", &from, &column, &to, &column, &statements,
			&count); err != nil {
			continue // the first line
		}
		for n := from; n <= to; n++ {
			at := fmt.Sprintf("%s:%d", filepath.Base(sc.Text()[:i]), n)
			ran[at] = max(ran[at], count)
		}
	}
	return ran, nil
}

// firstSeconds is how long the tests take, without a mutant, that are tried first. Most mutants end there.
const firstSeconds = 10

// try runs the tests that run a changed line, with a changed file in place of another. Nothing in the tree is touched.
func (t *tests) try(ctx context.Context, m *mutant, src []byte) (string, error) {
	changed, overlay := filepath.Join(t.dir, filepath.Base(m.File)), filepath.Join(t.dir, "overlay.json")
	raw, err := json.Marshal(map[string]any{"Replace": map[string]string{m.File: changed}})
	if err == nil {
		err = errors.Join(os.WriteFile(changed, src, 0o666), os.WriteFile(overlay, raw, 0o666))
	}
	if err != nil {
		return "", err
	}
	first, rest := t.choose(fmt.Sprintf("%s:%d", filepath.Base(m.File), m.runs))
	if len(first) == 0 {
		return notRun, nil
	}
	if m.Operator == opLock && t.race {
		return t.runMutant(ctx, overlay, first, "-race") // any test with two goroutines shows it; others take minutes
	}
	result, err := t.runMutant(ctx, overlay, first)
	if result == survived && len(rest) > 0 {
		result, err = t.runMutant(ctx, overlay, rest)
	}
	return result, err
}

// choose finds the tests that run a line, the fastest apart. What no profile knows (a declaration) is for all tests.
func (t *tests) choose(line string) (first, rest []alone) {
	_, known := t.lines[line]
	sum := 0.0
	for _, one := range t.alone {
		if known && one.Lines[line] == 0 {
			continue
		}
		if sum += one.Seconds; len(first) == 0 || sum <= firstSeconds {
			first = append(first, one)
		} else {
			rest = append(rest, one)
		}
	}
	return first, rest
}

// runMutant runs some tests with a mutant.
func (t *tests) runMutant(ctx context.Context, overlay string, chosen []alone, flags ...string) (string, error) {
	var names, dirs []string
	seconds := 0.0
	for _, one := range chosen {
		names = append(names, one.Test)
		if !slices.Contains(dirs, one.Dir) {
			dirs = append(dirs, one.Dir)
		}
		seconds += one.Seconds
	}
	timeout := t.timeout
	if timeout == 0 {
		timeout = (30*time.Second + time.Duration(5*seconds*float64(time.Second))).Round(time.Second)
		if slices.Contains(flags, "-race") {
			timeout *= 5
		}
	}
	args := slices.Concat([]string{"test", "-count=1", "-vet=off", "-failfast", "-overlay=" + overlay}, flags, t.args,
		[]string{"-timeout=" + timeout.String(), "-run=^(" + strings.Join(names, "|") + ")$"}, dirs)
	out, err := goCommand(ctx, args...)
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case err == nil:
		return survived, nil
	case bytes.Contains(out, []byte("[build failed]")) || bytes.Contains(out, []byte("[setup failed]")):
		return "", nil
	case bytes.Contains(out, []byte("panic: test timed out")):
		return timedOut, nil
	case !bytes.Contains(out, []byte("FAIL")):
		return "", err
	}
	return killed, nil
}

// hunk shows a mutant as a diff without context.
func hunk(before, after []byte) string {
	a, b := strings.Split(string(before), "\n"), strings.Split(string(after), "\n")
	from := 0
	for from < min(len(a), len(b)) && a[from] == b[from] {
		from++
	}
	end := 0
	for end < min(len(a), len(b))-from && a[len(a)-1-end] == b[len(b)-1-end] {
		end++
	}
	a, b = a[from:len(a)-end], b[from:len(b)-end]
	var out strings.Builder
	for len(a) > 0 || len(b) > 0 {
		// As many lines as before: those in between that are equal are left out.
		same, n := len(a) == len(b), 0
		for same && n < len(a) && a[n] == b[n] {
			n++
		}
		from, a, b = from+n, a[n:], b[n:]
		na, nb := len(a), len(b)
		for n = 0; same && n < len(a) && a[n] != b[n]; n++ {
			na, nb = n+1, n+1
		}
		fmt.Fprintf(&out, "@@ -%d,%d +%d,%d @@\n", from+1, na, from+1, nb)
		for _, l := range a[:na] {
			out.WriteString("-" + l + "\n")
		}
		for _, l := range b[:nb] {
			out.WriteString("+" + l + "\n")
		}
		from, a, b = from+na, a[na:], b[nb:]
	}
	return out.String()
}
