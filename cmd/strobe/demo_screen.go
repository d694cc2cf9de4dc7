package main

import (
	"context"
	"errors"
	"strings"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/spf13/cobra"
)

// errQuit says that the user left before the end.
var errQuit = errors.New("left before the end")

// demoScreen shows the race while it runs. The last picture stays in the terminal.
func demoScreen(cmd *cobra.Command, r *race) error {
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	p := tea.NewProgram(&raceScreen{look: newPaint(true), cancel: cancel, view: r.snapshot(), width: 100, height: 30},
		tea.WithInput(cmd.InOrStdin()), tea.WithOutput(cmd.OutOrStdout()), tea.WithContext(cmd.Context()))
	result := make(chan error, 1)
	go func() { // ends with the race, which cancel stops
		err := r.run(ctx, func() { p.Send(r.snapshot()) })
		v := r.snapshot()
		v.over = true
		p.Send(v)
		result <- err
	}()
	_, err := p.Run()
	cancel()
	raceErr := <-result
	switch {
	case errors.Is(raceErr, context.Canceled) && cmd.Context().Err() == nil:
		return errQuit
	case raceErr != nil:
		return raceErr
	}
	return err
}

// raceView is a picture of a race that does not change any more.
type raceView struct {
	title, prompt string
	max           int
	lanes         [2]laneView
	over          bool
	verdict       []string
	identical     bool
}

type laneView struct {
	name, numbers string
	tokens        []raceToken
	n             int
}

func (r *race) snapshot() raceView {
	v := raceView{title: r.title, prompt: r.prompt, max: r.max, identical: r.identical(), verdict: r.verdict()}
	for i, l := range r.lanes {
		// Tokens are only ever added, so the slice can be shared.
		v.lanes[i] = laneView{name: l.name, numbers: l.numbers(), tokens: l.tokens[:len(l.tokens):len(l.tokens)],
			n: l.stats.Tokens}
	}
	return v
}

type raceScreen struct {
	look          paint
	cancel        func()
	view          raceView
	width, height int
}

func (s *raceScreen) Init() tea.Cmd { return nil }

func (s *raceScreen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch m := msg.(type) {
	case tea.WindowSizeMsg:
		s.width, s.height = m.Width, m.Height
	case raceView:
		s.view = m
		if m.over {
			return s, tea.Quit
		}
	case tea.KeyPressMsg:
		if k := m.String(); k == "ctrl+c" || k == "q" || k == "esc" {
			s.cancel()
		}
	}
	return s, nil
}

func (s *raceScreen) View() tea.View { return tea.NewView(s.draw()) }

// draw is the whole picture: two boxes beside each other, or one above the other where it is narrow.
func (s *raceScreen) draw() string {
	width := min(s.width, 180)
	beside := width >= 72
	box, rows := width-4, max(4, min(30, (s.height-12)/2))
	if beside {
		box, rows = (width-1)/2-4, max(6, min(40, s.height-9))
	}
	var boxes []string
	for i := range s.view.lanes {
		boxes = append(boxes, s.lane(&s.view.lanes[i], box, rows))
	}
	body := lipgloss.JoinVertical(lipgloss.Left, boxes...)
	if beside {
		body = lipgloss.JoinHorizontal(lipgloss.Top, boxes[0], " ", boxes[1])
	}
	lines := []string{s.look.strong(ansi.Truncate(s.view.title, width, "…")), body}
	if s.view.over {
		for i, v := range s.view.verdict {
			v = ansi.Truncate(v, width, "…")
			if i == 1 && s.view.identical {
				v = s.look.drafted(v)
			} else if i == 1 {
				v = s.look.strong(v)
			}
			lines = append(lines, v)
		}
	} else {
		lines = append(lines, s.look.dim(ansi.Truncate("Both take turns on the same processor; each clock counts its own "+
			"turns only. Green: drafted and accepted. q quits.", width, "…")), "")
	}
	return strings.Join(lines, "\n") + "\n"
}

// lane draws one box of the given inner size.
func (s *raceScreen) lane(l *laneView, width, rows int) string {
	head := s.look.strong(l.name)
	numbers := ansi.Truncate(l.numbers, max(0, width-lipgloss.Width(head)-1), "")
	head += strings.Repeat(" ", max(1, width-lipgloss.Width(head)-lipgloss.Width(numbers))) + numbers

	all := layout(s.view.prompt, l.tokens, width)
	all = all[max(0, len(all)-rows):]
	lines := []string{head, s.bar(l, width)}
	for _, row := range all {
		lines = append(lines, s.row(row))
	}
	for len(lines) < rows+2 {
		lines = append(lines, "")
	}
	return lipgloss.NewStyle().Border(lipgloss.RoundedBorder()).Padding(0,
		1).Width(width + 4).Render(strings.Join(lines, "\n"))
}

func (s *raceScreen) row(runs []textRun) string {
	var b strings.Builder
	for _, r := range runs {
		switch {
		case r.prompt:
			b.WriteString(s.look.dim(r.text))
		case r.drafted:
			b.WriteString(s.look.drafted(r.text))
		default:
			b.WriteString(r.text)
		}
	}
	return b.String()
}

// bar shows how much of the text is there.
func (s *raceScreen) bar(l *laneView, width int) string {
	full := min(width, width*l.n/max(1, s.view.max))
	return strings.Repeat("━", full) + s.look.dim(strings.Repeat("─", width-full))
}
