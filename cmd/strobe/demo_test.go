package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"strobe/internal/engine"
	"strobe/internal/testkit"
)

func TestLayout(t *testing.T) {
	tokens := []raceToken{{text: "ab", drafted: true, at: 5}, {text: "cdefgh\n\t"}, {text: "日本語日本"}, {text: "\x1b"}}
	var rows []string
	for _, row := range layout("p\nq", tokens, 8) {
		s := ""
		for _, r := range row {
			switch {
			case r.prompt:
				s += "[" + r.text + "]"
			case r.drafted:
				s += "<" + r.text + ">"
			default:
				s += r.text
			}
		}
		rows = append(rows, s)
	}
	// The prompt's q, then seven columns are left; a word that is too long is cut. A tab is four.
	want := []string{"[p]", "[q]<ab>cdefg", "h", "    日本", "語日本\ufffd"}
	if got := strings.Join(rows, "|"); got != strings.Join(want, "|") {
		t.Errorf("rows %q, want %q", rows, want)
	}
}

// wellFormed parses a picture and returns its text.
func wellFormed(t *testing.T, b []byte) string {
	t.Helper()
	d := xml.NewDecoder(bytes.NewReader(b))
	text := ""
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			return text
		}
		if err != nil {
			t.Fatalf("not well-formed: %v", err)
		}
		if c, ok := tok.(xml.CharData); ok {
			text += string(c)
		}
	}
}

func testRace(t *testing.T, prompt string, n int) *race {
	t.Helper()
	m, err := engine.Load(testkit.Golden(t, "qwen35/model.gguf"),
		engine.Options{Drafter: testkit.Golden(t, "dflash-qwen35/model.gguf")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	opt := &demoOptions{n: n}
	opt.draft, opt.tree = "auto", "auto"
	r, err := newRace(m, opt, prompt, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.close)
	return r
}

func TestRace(t *testing.T) {
	r := testRace(t, "x := <y> & z\n", 60)
	if v := r.verdict()[1]; !strings.HasPrefix(v, "stopped before the end") {
		t.Errorf("verdict at the start: %s", v)
	}
	shown := 0
	if err := r.run(t.Context(), func() { shown++ }); err != nil {
		t.Fatal(err)
	}
	if shown < 2 || !r.identical() || r.lanes[0].hash() != r.lanes[1].hash() {
		t.Errorf("shown %d times, identical %v", shown, r.identical())
	}
	for _, l := range r.lanes {
		var text string
		last := time.Duration(0)
		for _, tok := range l.tokens {
			text += tok.text
			if tok.at < last {
				t.Errorf("%s: time goes back from %v to %v", l.name, last, tok.at)
			}
			last = tok.at
		}
		if text != string(l.output) || l.speed() <= 0 || last > l.elapsed {
			t.Errorf("%s: tokens %q, output %q, %s", l.name, text, l.output, l.numbers())
		}
	}
	if r.lanes[0].stats.Guessed != 0 {
		t.Error("the plain lane guessed")
	}

	moving, still := r.svg(true), r.svg(false)
	for _, b := range [][]byte{moving, still} {
		text := wellFormed(t, b)
		for _, want := range []string{"x := <y> & z", "plain", "DFlash", "identical: sha256"} {
			if !strings.Contains(text, want) {
				t.Errorf("the picture lacks %q", want)
			}
		}
	}
	if !bytes.Contains(moving, []byte("infinite")) || bytes.Contains(still, []byte("animation")) {
		t.Error("the first picture should play again and again, the second not move")
	}
	named := regexp.MustCompile(`animation-name:(\w+)`).FindAllSubmatch(moving, -1)
	for _, m := range named {
		if bytes.Count(moving, []byte("@keyframes "+string(m[1])+"{")) != 1 {
			t.Errorf("the picture does not have the keyframes %s once", m[1])
		}
	}
	moments := regexp.MustCompile(`@keyframes t(\d+)\{0%\{visibility:hidden\}([0-9.]+)%`).FindAllSubmatch(moving, -1)
	if len(moments) < 10 {
		t.Errorf("only %d moments at which something appears", len(moments))
	}
	for _, m := range moments {
		percent, err := strconv.ParseFloat(string(m[2]), 64)
		if err != nil || percent > 50.01 {
			t.Errorf("something appears at %s %% of the loop, when half of it should show the end", m[2])
		}
		if string(m[1]) != fmt.Sprintf("%.0f", 100*percent) {
			t.Errorf("the keyframes of %s %% are called t%s, which others may be, too", m[2], m[1])
		}
	}
	if !bytes.Equal(moving, r.svg(true)) {
		t.Error("the same race gives different pictures")
	}

	// A defect must not go unnoticed.
	r.lanes[1].output = append(r.lanes[1].output, '!')
	if v := r.verdict()[1]; !strings.HasPrefix(v, "THE TEXTS DIFFER") {
		t.Errorf("verdict on different texts: %s", v)
	}
}

// TestDemoText: what the built-in model writes for demoCode is Go, from the first token to the last.
func TestDemoText(t *testing.T) {
	var out, log bytes.Buffer
	if code := run(t.Context(), []string{"demo", "-q", "--device", "cpu"}, nil, &out, &log); code != exitOK {
		t.Fatalf("exit code %d: %s", code, log.String())
	}
	_, text, ok := strings.Cut(out.String(), "\nplain: 140 tokens, ")
	_, text, cut := strings.Cut(text, "\n")
	text, _, end := strings.Cut(text, "\nDFlash: 140 tokens, ")
	if !ok || !cut || !end {
		t.Fatalf("the lanes are not there: %s", out.String())
	}
	file, err := parser.ParseFile(token.NewFileSet(), "cache.go", demoCode+text, parser.AllErrors)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			if names[f.Name.Name] {
				t.Errorf("%s is there twice", f.Name.Name)
			}
			names[f.Name.Name] = true
		}
	}
	if len(names) != 6 || !names["Clear"] {
		t.Errorf("functions %v", names)
	}
}

// TestFitRows: a long prompt loses its beginning, a long answer its end, and both lanes the same rows.
func TestFitRows(t *testing.T) {
	rows := func(prompt, answer int) (all [][]textRun) {
		for i := range prompt + answer {
			all = append(all, []textRun{{text: fmt.Sprint(i), prompt: i < prompt}})
		}
		return all
	}
	show := func(r [][]textRun) string { return r[0][0].text + " " + r[1][0].text + " " + r[len(r)-1][0].text }
	for _, c := range []struct {
		prompt, answer, longest int
		rows                    int
		want                    string
	}{
		{5, 25, 30, 30, "0 1 29"},
		{6, 25, 31, 30, "… 2 30"},
		{30, 25, 55, 30, "… 26 54"},
		{30, 20, 55, 25, "… 26 49"}, // the other lane has five rows more
		{1, 40, 41, 30, "0 1 …"},
		{5, 40, 45, 30, "… 4 …"},
	} {
		got := fitRows(rows(c.prompt, c.answer), c.longest)
		if len(got) != c.rows || show(got) != c.want {
			t.Errorf("%d and %d rows: %d rows, %s; want %d, %s", c.prompt, c.answer, len(got), show(got), c.rows, c.want)
		}
	}
}

// TestRaceScreen: the picture fits every terminal, live and at the end.
func TestRaceScreen(t *testing.T) {
	r := testRace(t, "hello\n", 30)
	s := &raceScreen{look: newPaint(true), view: r.snapshot(), cancel: func() {}}
	if err := r.run(t.Context(), func() { s.Update(r.snapshot()) }); err != nil {
		t.Fatal(err)
	}
	over := r.snapshot()
	over.over = true
	for _, v := range []raceView{s.view, over} {
		s.Update(v)
		for _, size := range [][2]int{{40, 24}, {71, 30}, {72, 20}, {100, 30}, {250, 70}} {
			s.Update(tea.WindowSizeMsg{Width: size[0], Height: size[1]})
			rows := strings.Split(strings.TrimRight(s.draw(), "\n"), "\n")
			if len(rows) > size[1] {
				t.Errorf("%v: %d rows", size, len(rows))
			}
			for _, row := range rows {
				if w := ansi.StringWidth(row); w > size[0] {
					t.Errorf("%v: a row of %d columns: %q", size, w, row)
				}
			}
			if v.over && !strings.Contains(s.draw(), "identical") {
				t.Errorf("%v: no verdict", size)
			}
		}
	}
	cancelled := false
	s.cancel = func() { cancelled = true }
	s.Update(tea.KeyPressMsg{Code: 'q', Text: "q"})
	if !cancelled {
		t.Error("q does not end the race")
	}
	if _, cmd := s.Update(over); cmd == nil {
		t.Error("the end of the race does not end the screen")
	}
}
