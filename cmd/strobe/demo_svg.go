package main

import (
	"fmt"
	"strings"
	"time"
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

	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%.0f" viewBox="0 0 %.0f %.0f" `+
		`font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace" font-size="12">`+"\n",
		width, height, width, height)
	b.WriteString(svgStyle(moving))
	fmt.Fprintf(&b, `<rect width="%.0f" height="%.0f" rx="10" fill="#14181d"/>`+"\n", width, height)
	svgText(&b, svgMargin, 34, "h", 0, r.title)
	svgText(&b, svgMargin, 54, "d", 0,
		"the same prompt twice, each lane by its own clock; green: drafted and accepted in one pass")
	for i, l := range r.lanes {
		x := svgMargin + float64(i)*(pane+svgMargin)
		fmt.Fprintf(&b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="6" fill="#1b2026" stroke="#343c45"/>`+"\n", x,
			top, pane, 52+float64(rows)*svgLine)
		l.svg(&b, x+svgMargin, top, pane-2*svgMargin, texts[i], rows, moving)
	}
	y := height - 34
	for i, v := range r.verdict() {
		class := "h"
		if i == 1 {
			class = "g"
		}
		svgText(&b, svgMargin, y+float64(i)*20, class, delay(last, moving), v)
	}
	b.WriteString("</svg>\n")
	return []byte(b.String())
}

// svg draws one lane into its pane.
func (l *lane) svg(b *strings.Builder, x, top, width float64, rows [][]textRun, most int, moving bool) {
	svgText(b, x, top+22, "h", 0, l.name)
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" class="n" text-anchor="end"%s>%s</text>`+"\n", x+width, top+22,
		svgDelay(delay(l.elapsed, moving)), svgEscape(l.numbers()))
	fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="3" fill="#343c45"/>`+"\n", x, top+31, width)
	grow := ""
	if moving {
		grow = fmt.Sprintf(` class="bar" style="animation-duration:%.3fs"`, max(0.01, l.elapsed.Seconds()))
	}
	fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="3" fill="#5fd38d"%s/>`+"\n", x, top+31, width, grow)
	for i, row := range rows {
		if i == most {
			break
		}
		if i == most-1 && len(rows) > most {
			svgText(b, x, top+54+float64(i)*svgLine, "d", 0, "…")
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
			svgText(b, x+float64(col)*svgChar, top+54+float64(i)*svgLine, class, delay(r.at, moving), text)
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

func svgDelay(at time.Duration) string {
	if at <= 0 {
		return ""
	}
	return fmt.Sprintf(` style="animation-delay:%.3fs"`, at.Seconds())
}

func svgText(b *strings.Builder, x, y float64, class string, at time.Duration, text string) {
	text = strings.TrimRight(text, " ")
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" class="%s"%s xml:space="preserve">%s</text>`+"\n", x, y, class, svgDelay(at),
		svgEscape(text))
}

func svgStyle(moving bool) string {
	s := "<style>\n.t{fill:#d7dde4}.d{fill:#8b96a3}.g{fill:#5fd38d}.h{fill:#f2f5f8;font-weight:600}.n{fill:#f2f5f8}\n"
	if moving {
		// What waits is hidden before its time; without animation everything is there at once.
		s += "text[style]{animation:come .01s linear backwards}\n.bar{animation:grow linear " +
			"backwards;transform-box:fill-box;transform-origin:left}\n" +
			"@keyframes come{from{visibility:hidden}to{visibility:hidden}}\n@keyframes " +
			"grow{from{transform:scaleX(0)}to{transform:scaleX(1)}}\n" +
			"@media (prefers-reduced-motion:reduce){text[style],.bar{animation:none}}\n"
	}
	return s + "</style>\n"
}

// svgEscape makes text safe inside an element; harmless and layout have removed control characters.
func svgEscape(s string) string {
	s = strings.ToValidUTF8(harmless(s), "\ufffd")
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(s)
}
