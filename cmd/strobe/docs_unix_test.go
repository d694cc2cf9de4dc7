//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"strobe/internal/hub"
	"strobe/internal/testkit"
	"strobe/internal/testkit/edit"
)

// pages are the documents whose commands are run.
func pages(t *testing.T) []string {
	t.Helper()
	docs, err := filepath.Glob(filepath.Join(testkit.Root(t), "docs", "*.md"))
	if err != nil || len(docs) < 5 {
		t.Fatal(docs, err)
	}
	return append([]string{filepath.Join(testkit.Root(t), "README.md")}, docs...)
}

// docCommand is a command of a page, as the shell gets it.
type docCommand struct {
	text   string
	line   int
	notRun string // why, from a comment before the block
}

var fence = regexp.MustCompile("(?ms)^(?:<!-- not run: ([^\n]*) -->\n)?```([^\n]*)\n(.*?)^```$")

// commandsOf are the commands of a page: those in its shell blocks, where a command ends with its line unless a quote
// is open or a backslash stands at the end, and those that a block shows with what they print, behind a dollar sign.
func commandsOf(page string) (all []docCommand) {
	for _, m := range fence.FindAllStringSubmatchIndex(page, -1) {
		kind := page[m[4]:m[5]]
		if kind != "sh" && kind != "" {
			continue
		}
		c := docCommand{}
		if m[2] >= 0 {
			c.notRun = page[m[2]:m[3]]
		}
		line := strings.Count(page[:m[6]], "\n") + 1
		for text := range strings.SplitSeq(strings.TrimSpace(page[m[6]:m[7]]), "\n") {
			if c.text == "" {
				c.line = line
			}
			line++
			if kind == "" {
				shown := false
				if text, shown = strings.CutPrefix(text, "$ "); !shown {
					continue
				}
			}
			if c.text += text + "\n"; strings.HasSuffix(text, "\\") || strings.Count(c.text, "'")%2 == 1 {
				continue
			}
			if c.text = strings.TrimSpace(c.text); c.text != "" {
				all = append(all, c)
			}
			c.text = ""
		}
	}
	return all
}

// docRunner runs the commands of a page in a folder of its own.
type docRunner struct {
	root      string // of the repository
	dir, port string
	server    *exec.Cmd
	log       bytes.Buffer
}

// notHere are programs whose commands a page may show without a test that runs them there.
var notHere = []string{"docker", "systemctl", "./install.sh", "apt", "dnf"}

// elsewhere are commands that other tests stand for: the first is TestRelease, the second this run, the next two change
// the module that they stand in, and the last are tested in their package.
var elsewhere = []string{"./try", "go run ./internal/tests", "go mod edit -require strobe@v0.0.0 -replace strobe=../strobe",
	"go mod tidy", "go run ./internal/mutate -n 30 -seed 1 ./internal/pflash",
	"go run ./internal/mutate -n 15 ./internal/engine -- -run 'Pool|Restore'", ".ci/arm all",
	"go run ./internal/backend/cpu/kernel/cost -llama llama.cpp"}

// TestDocCommands runs every command of the README and of docs as it stands there: with the built-in pair, golden
// models under the names that the pages use, a hub and a server on this machine.
func TestDocCommands(t *testing.T) {
	files := map[string][]byte{}
	target, drafter := golden(t, "qwen35/model.gguf"), golden(t, "dflash-qwen35/model.gguf")
	read := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join(testkit.Root(t), "models", name))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	// Drafts of trained weights come true, which "strobe check" looks for.
	trained, itsDrafter := read("strobe-go-66m.gguf"), read("strobe-go-66m-dflash.gguf")
	known, err := knownModels()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"qwen3.5-4b", "qwen3.5-9b"} { // the pages use no others
		x := known[name]
		r, err := hub.ParseRef(x.Model)
		if err != nil {
			t.Fatal(err)
		}
		for _, typ := range []string{"Q4_K_M", "Q8_0"} {
			files[r.Repo+"/model-"+typ+".gguf"] = trained
		}
		repo, file, _ := strings.Cut(x.Drafters[0], ":")
		files[repo+"/"+file] = itsDrafter
	}
	newHub(t, files)
	// Less of everything, where a command does not say how much.
	for name, v := range map[string]string{"PREDICT": "6", "N": "6", "REPEATS": "1", "LIMIT": "1",
		"MACHINE": "false", "DEVICE": "cpu", "THREADS": "2"} {
		t.Setenv("STROBE_"+name, v)
	}
	bin := t.TempDir()
	for _, name := range []string{"strobe", "curl"} { // the test binary is both
		if err := os.Symlink(os.Args[0], filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	seeing := filepath.Dir(edit.Golden(t, "qwen35").WithImages(t)) // model.gguf and its image encoder
	err = os.Rename(filepath.Join(seeing, "mmproj-qwen-small-f32.gguf"), filepath.Join(seeing, "mmproj-F16.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, path := range pages(t) {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		r := &docRunner{root: testkit.Root(t), dir: t.TempDir(), port: freePort(t)}
		for name, content := range map[string][]byte{"target.gguf": target, "drafter.gguf": drafter,
			"target-Q8_0.gguf": target, "keys.txt": []byte("secret\n"), "photo.jpg": testkit.PNG(t, 40, 33, 1)} {
			if err := os.WriteFile(filepath.Join(r.dir, name), content, 0o666); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.CopyFS(filepath.Join(r.dir, "checkpoint"), os.DirFS(testkit.Golden(t, "qwen35/hf"))); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(filepath.Join(r.dir, "qwen"), os.DirFS(seeing)); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(filepath.Join(r.dir, "docs"), os.DirFS(filepath.Join(testkit.Root(t), "docs"))); err != nil {
			t.Fatal(err)
		}
		for _, c := range commandsOf(string(b)) {
			if filepath.Base(path) == "api.md" && strings.HasPrefix(c.text, "curl ") {
				continue // internal/server runs them, with a template for tools
			}
			total++
			start := time.Now()
			err := r.run(t.Context(), &c)
			t.Logf("%s:%d: %s: %.1f s", filepath.Base(path), c.line, c.text, time.Since(start).Seconds())
			if err != nil {
				t.Errorf("%s:%d: %s: %v", filepath.Base(path), c.line, c.text, err)
			}
		}
		if err := r.stop(); err != nil {
			t.Errorf("%s: the server: %v", filepath.Base(path), err)
		}
	}
	if total < 30 {
		t.Errorf("the pages have %d commands", total)
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

func (r *docRunner) run(ctx context.Context, c *docCommand) error {
	first := strings.Fields(c.text)[0]
	switch {
	case c.notRun != "":
		if !slices.Contains(notHere, first) {
			return fmt.Errorf("is not run, though %s could be", first)
		}
		return r.describes(c.text)
	case slices.Contains(elsewhere, c.text):
		return nil
	case strings.HasPrefix(c.text, "strobe serve"):
		return r.serve(ctx, c.text)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	out, err := r.shell(ctx, c.text).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// describes checks a command that is not run, if its program is one of ours: the script is there and knows the flags.
func (r *docRunner) describes(text string) error {
	words := strings.Fields(text)
	if !strings.Contains(words[0], "/") {
		return nil
	}
	script, err := os.ReadFile(filepath.Join(r.root, words[0]))
	for _, w := range words[1:] {
		if err == nil && strings.HasPrefix(w, "-") && !bytes.Contains(script, []byte("\n\t"+w+") ")) {
			err = fmt.Errorf("%s has no flag %s", words[0], w)
		}
	}
	return err
}

func (r *docRunner) shell(ctx context.Context, text string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "sh", "-c", strings.ReplaceAll(text, "8080", r.port))
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), "STROBE_SERVER=http://localhost:"+r.port)
	return cmd
}

// serve starts the server of a page, which runs until another one or the page's end.
func (r *docRunner) serve(ctx context.Context, text string) error {
	if err := r.stop(); err != nil {
		return err
	}
	cmd := r.shell(ctx, "exec "+text)
	cmd.Env = append(cmd.Env, "STROBE_PORT="+r.port)
	r.log.Reset()
	cmd.Stderr = &r.log
	if err := cmd.Start(); err != nil {
		return err
	}
	r.server = cmd
	for range 600 {
		resp, err := http.Get("http://localhost:" + r.port + "/health")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	return errors.New("the server does not get ready")
}

// stop ends the server as systemd would.
func (r *docRunner) stop() error {
	if r.server == nil {
		return nil
	}
	s := r.server
	r.server = nil
	if err := s.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if err := s.Wait(); err != nil {
		return fmt.Errorf("%w\n%s", err, r.log.String())
	}
	return nil
}

// parse checks a command line against the real commands and flags. Arguments are not looked at.
func parse(words []string) error {
	root, _ := newRootCmd()
	root.InitDefaultCompletionCmd(words...)
	cmd, rest, err := root.Find(words)
	if err != nil {
		return err
	}
	if cmd == root && len(words) > 0 && !strings.HasPrefix(words[0], "-") {
		return fmt.Errorf("there is no command %s", words[0])
	}
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	return cmd.ParseFlags(rest)
}

// inline are commands in the running text, also where a line ends inside of them.
var inline = regexp.MustCompile("`(?:[A-Z_]+=\\S+ )*strobe( [^`]+)?`")

// TestDocFlags: whatever the documents and the examples of --help say of the command, it has such commands and flags.
func TestDocFlags(t *testing.T) {
	total := 0
	check := func(where, text string) {
		total++
		if err := parse(shellWords(text)); err != nil {
			t.Errorf("%s: strobe %s: %v", where, text, err)
		}
	}
	// Variables of flags, the others of the program, and those of tests and benchmarks in Go.
	variables := map[string]bool{configVariable: true, keyVariable: true, "STROBE_PROMPTS": true,
		"STROBE_BENCH_MODEL": true, "STROBE_CPU": true, "STROBE_CUDA": true, "STROBE_CUDA_AS": true, "STROBE_RACES": true,
		"STROBE_VULKAN_WITHOUT": true,
		testkit.LongVariable:    true}
	for _, g := range commands() {
		for _, c := range g.commands {
			c.Flags().VisitAll(func(f *pflag.Flag) { variables[variable(f)] = true })
		}
	}
	indented := regexp.MustCompile(`(?m)^    (\$ )?(strobe|go|docker|curl|\./\S+) \S.*$`)
	bare := regexp.MustCompile(`(?m)^(strobe|go|docker|curl|\./\S+) \S.*$`)
	for _, path := range pages(t) {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		page, name := string(b), filepath.Base(path)
		for _, m := range inline.FindAllStringSubmatch(page, -1) {
			check(name, strings.Join(strings.Fields(m[1]), " "))
		}
		for _, c := range commandsOf(page) {
			if text, ok := strings.CutPrefix(c.text, "strobe "); ok {
				check(name, text)
			}
		}
		for _, v := range regexp.MustCompile(`\bSTROBE_[A-Z_]+\b`).FindAllString(page, -1) {
			if !variables[v] {
				t.Errorf("%s: nothing reads the variable %s", name, v)
			}
		}
		if m := indented.FindString(page); m != "" {
			t.Errorf("%s: %q stands outside the blocks that are run; begin them with ```sh", name, strings.TrimSpace(m))
		}
		for _, m := range fence.FindAllStringSubmatch(page, -1) {
			if m[2] != "sh" && bare.MatchString(m[3]) {
				t.Errorf("%s: a command in a block of the kind %q, which is not run: %s", name, m[2], bare.FindString(m[3]))
			}
		}
	}
	root, _ := newRootCmd()
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		for line := range strings.SplitSeq(c.Example, "\n") {
			_, text, ok := strings.Cut(line, "strobe ")
			text, _, _ = strings.Cut(text, "   ") // what follows explains it
			if ok && !strings.Contains(text, " | ") {
				check(c.CommandPath()+" --help", text)
			}
		}
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(root)
	if total < 100 {
		t.Errorf("only %d command lines", total)
	}
}

// shellWords takes a command line apart as a shell does, as far as quotes go.
func shellWords(text string) (words []string) {
	word, quote, any := "", rune(0), false
	for _, r := range text {
		switch {
		case quote == 0 && (r == '"' || r == '\''):
			quote, any = r, true
		case r == quote:
			quote = 0
		case quote == 0 && (r == ' ' || r == '\n'):
			if any {
				words = append(words, word)
			}
			word, any = "", false
		default:
			word += string(r)
			any = true
		}
	}
	if any {
		words = append(words, word)
	}
	return words
}

// TestREADMETop: a number and a picture are on the first screen.
func TestREADMETop(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(testkit.Root(t), "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	top := strings.Join(strings.Split(string(b), "\n")[:10], "\n")
	if !regexp.MustCompile(`\*\*[0-9.]+( to [0-9.]+)? times`).MatchString(top) || !strings.Contains(top, "![") {
		t.Error("neither number nor picture at the top")
	}
}

// TestParseFinds: a check that accepts everything would be none.
func TestParseFinds(t *testing.T) {
	for line, ok := range map[string]bool{"run qwen3.5-4b \"why so\"": true, "bench --suite code -n 3": true,
		"--version": true, "completion bash --help": true, "run --tmep 3": false, "frobnicate": false, "bench -n x": false} {
		if err := parse(shellWords(line)); (err == nil) != ok {
			t.Errorf("%s: %v", line, err)
		}
	}
	page := "```sh\nstrobe a \\\n  b\ncurl x -d '{\n}'\n```\n<!-- not run: why -->\n```sh\ndocker\n```\n```toml\nx = 1\n```\n```\n$ strobe b\nout\n```\n"
	var got []string
	for _, c := range commandsOf(page) {
		got = append(got, fmt.Sprintf("%d %s [%s]", c.line, c.text, c.notRun))
	}
	want := []string{"2 strobe a \\\n  b []", "4 curl x -d '{\n}' []", "9 docker [why]", "15 strobe b []"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
