package pflash

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// span is a range of bytes.
type span [2]int

// keptText returns a text of which only some ranges are kept, moved outwards to ends of lines where one is near. Where
// something is missing, a line says how much. Code fences that a range touches stay complete.
func keptText(text string, kept []span, snap, minGap int) string {
	b := []byte(text)
	kept = merge(kept, 0)
	for i := range kept {
		kept[i] = snapped(b, kept[i], snap)
	}
	kept = merge(kept, 0)
	for _, f := range fences(b) {
		if slices.ContainsFunc(kept, func(k span) bool { return k[0] < f.end[1] && k[1] > f.begin[0] }) {
			kept = append(kept, f.begin, f.end)
		}
	}
	kept = merge(kept, 0)
	// Gaps that are hardly longer than the line about them are kept, at the ends of the text as well.
	all := []span{{0, 0}}
	for _, k := range append(kept, span{len(b), len(b)}) {
		if last := &all[len(all)-1]; k[0]-last[1] < minGap {
			last[1] = max(last[1], k[1])
		} else {
			all = append(all, k)
		}
	}
	var out strings.Builder
	at := 0
	for _, k := range append(all, span{len(b), len(b)}) {
		if k[0] > at {
			if s := out.String(); s != "" && !strings.HasSuffix(s, "\n") {
				out.WriteByte('\n')
			}
			fmt.Fprintf(&out, "[... %d characters omitted ...]\n", utf8.RuneCount(b[at:k[0]]))
		}
		if k[1] > k[0] {
			out.Write(b[k[0]:k[1]])
		}
		at = max(at, k[1])
	}
	return out.String()
}

// merge sorts ranges and joins those that touch or have so few bytes between them.
func merge(spans []span, gap int) []span {
	spans = slices.DeleteFunc(slices.Clone(spans), func(s span) bool { return s[1] <= s[0] })
	slices.SortFunc(spans, func(a, b span) int { return a[0] - b[0] })
	var out []span
	for _, s := range spans {
		if n := len(out) - 1; n >= 0 && s[0]-out[n][1] <= gap {
			out[n][1] = max(out[n][1], s[1])
		} else {
			out = append(out, s)
		}
	}
	return out
}

// snapped moves a range outwards to the end of a line, or else to white space, or else to the end of a character.
func snapped(b []byte, s span, window int) span {
	split := func(p int) bool { return p > 0 && p < len(b) && !utf8.RuneStart(b[p]) }
	if s[0] > 0 && b[s[0]-1] != '\n' {
		from := max(0, s[0]-window)
		near := b[from:s[0]]
		p := bytes.LastIndexByte(near, '\n')
		if p < 0 {
			p = bytes.LastIndexAny(near, " \t")
		}
		switch {
		case p >= 0:
			s[0] = from + p + 1
		case from == 0:
			s[0] = 0
		}
		for split(s[0]) {
			s[0]--
		}
	}
	if s[1] < len(b) && b[s[1]-1] != '\n' {
		to := min(len(b), s[1]+window)
		near := b[s[1]:to]
		p := bytes.IndexByte(near, '\n')
		if p < 0 {
			p = bytes.IndexAny(near, " \t")
		}
		switch {
		case p >= 0:
			s[1] += p + 1
		case to == len(b):
			s[1] = len(b)
		}
		for split(s[1]) {
			s[1]++
		}
	}
	return s
}

// fence is the first and the last line of a fenced block of code.
type fence struct{ begin, end span }

// fences finds fenced blocks as CommonMark has them. One that is not closed ends with an empty line at the end.
func fences(b []byte) (found []fence) {
	var open *fence
	var mark []byte
	at := 0
	for line := range bytes.Lines(b) {
		m, rest := fenceMark(bytes.TrimSuffix(line, []byte("\n")))
		here := span{at, at + len(line)}
		at += len(line)
		switch {
		case m == nil:
		case open == nil:
			if m[0] != '`' || !bytes.ContainsRune(rest, '`') {
				open, mark = &fence{begin: here}, m
			}
		case m[0] == mark[0] && len(m) >= len(mark) && len(bytes.TrimSpace(rest)) == 0:
			open.end = here
			found = append(found, *open)
			open = nil
		}
	}
	if open != nil {
		open.end = span{len(b), len(b)}
		found = append(found, *open)
	}
	return found
}

// fenceMark splits a line that may begin or end a fenced block: three or more backticks or tildes after at most three
// spaces.
func fenceMark(line []byte) (mark, rest []byte) {
	s := bytes.TrimLeft(line, " ")
	if len(line)-len(s) > 3 || len(s) < 3 || s[0] != '`' && s[0] != '~' {
		return nil, nil
	}
	n := 0
	for n < len(s) && s[n] == s[0] {
		n++
	}
	if n < 3 {
		return nil, nil
	}
	return s[:n], s[n:]
}
