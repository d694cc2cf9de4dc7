package main

import (
	"strings"

	"charm.land/lipgloss/v2"

	"strobe/internal/dialog"
)

// paint colours text, or leaves it alone. Colours are the terminal's own, so they fit its background.
type paint struct {
	on                        bool
	faint, green, bold, mark_ lipgloss.Style
}

func newPaint(on bool) paint {
	return paint{
		on:    on,
		faint: lipgloss.NewStyle().Faint(true),
		green: lipgloss.NewStyle().Foreground(lipgloss.Green),
		bold:  lipgloss.NewStyle().Bold(true),
		mark_: lipgloss.NewStyle().Foreground(lipgloss.Cyan).Bold(true),
	}
}

// styled applies a style line by line: a style must not reach over a line feed, and lipgloss would
// pad the lines to equal width.
func (p paint) styled(s lipgloss.Style, text string) string {
	if !p.on || text == "" {
		return text
	}
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		if l != "" {
			lines[i] = s.Inline(true).TabWidth(lipgloss.NoTabConversion).Render(l)
		}
	}
	return strings.Join(lines, "\n")
}

func (p paint) dim(s string) string     { return p.styled(p.faint, s) }
func (p paint) drafted(s string) string { return p.styled(p.green, s) }
func (p paint) strong(s string) string  { return p.styled(p.bold, s) }
func (p paint) mark(s string) string    { return p.styled(p.mark_, s) }

// piece colours a part of an answer.
func (p paint) piece(x dialog.Piece, drafts bool) string {
	switch {
	case x.Reasoning:
		return p.dim(x.Text)
	case drafts && x.Drafted:
		return p.drafted(x.Text)
	}
	return x.Text
}
