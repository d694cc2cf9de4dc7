package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
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
	if !bytes.Contains(moving, []byte("animation-delay")) || bytes.Contains(still, []byte("animation")) {
		t.Error("only the first picture should move")
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
