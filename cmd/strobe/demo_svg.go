package main

import (
	"fmt"
	"strings"
	"time"

	"strobe/internal/svg"
)

// The picture: two panes of text in a dark window. Sizes are pixels.
const (
	svgColumns = 60   // of text in a pane
	svgRows    = 40   // at most
	svgChar    = 7.25 // width of a character at 12 px in common fixed-width fonts
	svgLine    = 16.0
	svgMargin  = 18.0
)

// svg draws the end of the race. With moving set, tokens appear when they did, each lane by its own
// clock; programs that do not animate show the end. The layout depends on the text alone.
func (r *race) svg(moving bool) []byte {
	pane := svgColumns*svgChar + 2*svgMargin
	width := 2*pane + 3*svgMargin
	rows := 0
	var texts [2][][]textRun
	for i, l := range r.lanes {
		texts[i] = layout(r.prompt, l.tokens, svgColumns)
		rows = max(rows, len(texts[i]))
	}
	rows = min(rows, svgRows)
	top := 74.0
	height := top + 64 + float64(rows)*svgLine + 66
	last := max(r.lanes[0].elapsed, r.lanes[1].elapsed)

	b := picture{svg.New(width, height,
		"font-family", "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace", "font-size", "12")}
	b.Style(svgStyle(moving))
	b.Rect(0, 0, width, height, "rx", "10", "fill", "#14181d")
	b.text(svgMargin, 34, "h", 0, r.title)
	b.text(svgMargin, 54, "d", 0,
		"the same prompt twice, each lane by its own clock; green: drafted and accepted in one pass")
	for i, l := range r.lanes {
		x := svgMargin + float64(i)*(pane+svgMargin)
		b.Rect(x, top, pane, 52+float64(rows)*svgLine, "rx", "6", "fill", "#1b2026", "stroke", "#343c45")
		l.svg(b, x+svgMargin, top, pane-2*svgMargin, texts[i], rows, moving)
	}
	y := height - 34
	for i, v := range r.verdict() {
		class := "h"
		if i == 1 {
			class = "g"
		}
		b.text(svgMargin, y+float64(i)*20, class, delay(last, moving), v)
	}
	return b.Bytes()
}

// svg draws one lane into its pane.
func (l *lane) svg(b picture, x, top, width float64, rows [][]textRun, most int, moving bool) {
	b.text(x, top+22, "h", 0, l.name)
	b.text(x+width, top+22, "n", delay(l.elapsed, moving), strings.Join(l.numbers(), ", "),
		"text-anchor", "end")
	b.Rect(x, top+31, width, 3, "fill", "#343c45")
	bar := []string{"fill", "#5fd38d"}
	if moving {
		bar = append(bar, "class", "bar", "style", fmt.Sprintf("animation-duration:%.3fs", max(0.01, l.elapsed.Seconds())))
	}
	b.Rect(x, top+31, width, 3, bar...)
	for i, row := range rows {
		if i == most {
			break
		}
		if i == most-1 && len(rows) > most {
			b.text(x, top+54+float64(i)*svgLine, "d", 0, "…")
			break
		}
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
			b.text(x+float64(col)*svgChar, top+54+float64(i)*svgLine, class, delay(r.at, moving), text)
		}
	}
}

// delay is when something appears; nothing waits in a picture that does not move.
func delay(at time.Duration, moving bool) time.Duration {
	if !moving {
		return 0
	}
	return at
}

// picture is one whose text may wait for its time.
type picture struct{ *svg.Picture }

func (p picture) text(x, y float64, class string, at time.Duration, text string, attributes ...string) {
	attributes = append(attributes, "class", class, "xml:space", "preserve")
	if at > 0 {
		attributes = append(attributes, "style", fmt.Sprintf("animation-delay:%.3fs", at.Seconds()))
	}
	p.Text(x, y, strings.TrimRight(harmless(text), " "), attributes...)
}

func svgStyle(moving bool) string {
	s := ".t{fill:#d7dde4}.d{fill:#8b96a3}.g{fill:#5fd38d}.h{fill:#f2f5f8;font-weight:600}.n{fill:#f2f5f8}\n"
	if moving {
		// What waits is hidden before its time; without animation everything is there at once.
		s += "text[style]{animation:come .01s linear backwards}\n.bar{animation:grow linear " +
			"backwards;transform-box:fill-box;transform-origin:left}\n" +
			"@keyframes come{from{visibility:hidden}to{visibility:hidden}}\n@keyframes " +
			"grow{from{transform:scaleX(0)}to{transform:scaleX(1)}}\n" +
			"@media (prefers-reduced-motion:reduce){text[style],.bar{animation:none}}\n"
	}
	return s
}
