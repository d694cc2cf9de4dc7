package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"strobe/internal/svg"
)

// The picture: two panes of text in a dark window. Sizes are pixels.
const (
	svgColumns = 54   // of text in a pane; both panes then fit a page of 910 pixels
	svgRows    = 30   // at most
	svgChar    = 7.25 // width of a character at 12 px in common fixed-width fonts
	svgLine    = 16.0
	svgMargin  = 18.0
)

// A picture that moves plays in a loop. A short race is slowed down to svgPlay, so that it can be followed; the end
// stays for svgHold, so that it can be read.
const (
	svgPlay = 6 * time.Second
	svgHold = 6 * time.Second
)

// svg draws the end of the race. With moving set, tokens appear when they did, each lane by its own clock, again and
// again; programs that do not animate show the end. The layout depends on the text alone.
func (r *race) svg(moving bool) []byte {
	pane := svgColumns*svgChar + 2*svgMargin
	width := 2*pane + 3*svgMargin
	rows := 0
	var texts [2][][]textRun
	for i, l := range r.lanes {
		texts[i] = layout(r.prompt, l.tokens, svgColumns)
		rows = max(rows, len(texts[i]))
	}
	for i := range texts {
		texts[i] = fitRows(texts[i], rows)
	}
	rows = min(rows, svgRows)
	top := 74.0
	height := top + 64 + float64(rows)*svgLine + 66

	b := picture{Picture: svg.New(width, height,
		"font-family", "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace", "font-size", "12")}
	last := max(r.lanes[0].elapsed, r.lanes[1].elapsed)
	how := "the same prompt twice, each lane by its own clock"
	if moving {
		b.film = &film{slower: max(1, svgPlay.Seconds()/max(last.Seconds(), 1e-3)), frames: map[string]string{}}
		b.film.length = time.Duration(float64(last)*b.film.slower) + svgHold
		if b.film.slower >= 1.5 {
			how += fmt.Sprintf(", %.0f times slower than it ran", b.film.slower)
		}
	}
	b.Rect(0, 0, width, height, "rx", "10", "fill", "#14181d")
	b.text(svgMargin, 34, "h", 0, r.title)
	b.text(svgMargin, 54, "d", 0, how+"; green: drafted and accepted")
	for i, l := range r.lanes {
		x := svgMargin + float64(i)*(pane+svgMargin)
		b.Rect(x, top, pane, 52+float64(rows)*svgLine, "rx", "6", "fill", "#1b2026", "stroke", "#343c45")
		l.svg(b, x+svgMargin, top, pane-2*svgMargin, texts[i])
	}
	y := height - 34
	for i, v := range r.verdict() {
		class := "h"
		if i == 1 {
			class = "g"
		}
		b.text(svgMargin, y+float64(i)*20, class, last, v)
	}
	b.Style(svgStyle + b.film.style())
	return b.Bytes()
}

// fitRows shortens a text to svgRows by leaving out the beginning of the prompt, then the end of what was generated.
// rows is the length of the longer text, so that both lanes begin with the same row.
func fitRows(text [][]textRun, rows int) [][]textRun {
	more := []textRun{{text: "…", prompt: true}}
	prompt := 0
	for prompt < len(text) && (len(text[prompt]) == 0 || text[prompt][0].prompt) {
		prompt++
	}
	if drop := min(rows-svgRows+1, prompt-1); rows > svgRows && drop > 1 {
		text = append([][]textRun{more}, text[drop:]...)
	}
	if len(text) > svgRows {
		text = append(text[:svgRows-1:svgRows-1], more)
	}
	return text
}

// svg draws one lane into its pane.
func (l *lane) svg(b picture, x, top, width float64, rows [][]textRun) {
	b.text(x, top+22, "h", 0, l.name)
	b.text(x+width, top+22, "n", l.elapsed, strings.Join(l.numbers(), ", "), "text-anchor", "end")
	b.Rect(x, top+31, width, 3, "fill", "#343c45")
	b.Rect(x, top+31, width, 3, append([]string{"fill", "#5fd38d"}, b.film.grow(l.elapsed)...)...)
	for i, row := range rows {
		for _, r := range row {
			if strings.TrimSpace(r.text) == "" {
				continue
			}
			class := "t"
			switch {
			case r.prompt:
				class = "d"
			case r.drafted:
				class = "g"
			}
			// Leading spaces become distance: every run stands where it belongs in any font.
			text := strings.TrimLeft(r.text, " ")
			col := r.col + len(r.text) - len(text)
			b.text(x+float64(col)*svgChar, top+54+float64(i)*svgLine, class, r.at, text)
		}
	}
}

// film says when the parts of a moving picture appear. One that is nil is a picture that does not move.
//
// A part that appears late in the loop must vanish at its beginning, and CSS has no delay inside a loop. So each moment
// has keyframes of its own, named by their position in the loop.
type film struct {
	slower float64           // than the race
	length time.Duration     // of a loop
	frames map[string]string // keyframes by name
}

// animate returns the attributes of a part that changes at a moment. The verb in keyframes is the place of that moment.
func (f *film) animate(kind string, at time.Duration, keyframes string) []string {
	percent := 100 * f.slower * at.Seconds() / f.length.Seconds()
	name := fmt.Sprintf("%s%.0f", kind, 100*percent)
	f.frames[name] = fmt.Sprintf(keyframes, percent)
	return []string{"style", "animation-name:" + name}
}

// appear returns the attributes of what is seen from a moment on.
func (f *film) appear(at time.Duration) []string {
	if f == nil || at <= 0 {
		return nil
	}
	return f.animate("t", at, "0%%{visibility:hidden}%.2f%%{visibility:visible}")
}

// grow returns the attributes of a bar that is full at a moment.
func (f *film) grow(at time.Duration) []string {
	if f == nil {
		return nil
	}
	return append(f.animate("b", at, "0%%{transform:scaleX(0)}%.2f%%,to{transform:none}"), "class", "bar")
}

// svgStyle are the colours: text, prompt and notes, drafted tokens, headings, numbers.
const svgStyle = ".t{fill:#d7dde4}.d{fill:#8b96a3}.g{fill:#5fd38d}.h{fill:#f2f5f8;font-weight:600}.n{fill:#f2f5f8}\n"

// style is the part of the style sheet that moves. Without animation everything is there at once.
func (f *film) style() string {
	if f == nil {
		return ""
	}
	var s strings.Builder
	fmt.Fprintf(&s, "[style]{animation:%.2fs step-end infinite}\n", f.length.Seconds())
	s.WriteString(".bar{animation-timing-function:linear;transform-box:fill-box;transform-origin:left}\n")
	s.WriteString("@media (prefers-reduced-motion:reduce){[style]{animation:none}}\n")
	for _, name := range slices.Sorted(maps.Keys(f.frames)) {
		fmt.Fprintf(&s, "@keyframes %s{%s}\n", name, f.frames[name])
	}
	return s.String()
}

// picture is one whose text may wait for its time.
type picture struct {
	*svg.Picture
	film *film
}

func (p picture) text(x, y float64, class string, at time.Duration, text string, attributes ...string) {
	attributes = append(append(attributes, "class", class, "xml:space", "preserve"), p.film.appear(at)...)
	p.Text(x, y, strings.TrimRight(harmless(text), " "), attributes...)
}
