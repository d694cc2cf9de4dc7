package main

import (
	"context"
	"errors"
	"slices"
	"strings"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
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
	name    string
	numbers []string
	tokens  []raceToken
	n       int
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

// Below wide columns the boxes would have no room for words beside each other.
const wide = 56

// draw is the whole picture: two boxes beside each other, or one above the other where it is narrow, between the
// title and what there is to say. Text gets the rows that are left.
func (s *raceScreen) draw() string {
	width := min(s.width, 180)
	title, below := strings.Split(wrapWords(s.view.title, width), "\n"), s.below(width)
	beside := width >= wide
	box, stacked := width-4, 2 // a border and a space on both sides
	if beside {
		box, stacked = (width-1)/2-4, 1
	}
	var heads [2][]string
	high := 0
	for i := range heads {
		heads[i] = s.head(&s.view.lanes[i], box)
		high = max(high, len(heads[i]))
	}
	rows := (s.height-len(title)-len(below)-1)/stacked - high - 2 // 2: borders; 1: the cursor stands below
	rows = max(1, min(40, rows))
	var boxes []string
	for i := range heads {
		for len(heads[i]) < high {
			heads[i] = slices.Insert(heads[i], len(heads[i])-1, "")
		}
		boxes = append(boxes, s.lane(&s.view.lanes[i], heads[i], box, rows))
	}
	body := lipgloss.JoinVertical(lipgloss.Left, boxes...)
	if beside {
		body = lipgloss.JoinHorizontal(lipgloss.Top, boxes[0], " ", boxes[1])
	}
	lines := append([]string{s.look.strong(strings.Join(title, "\n")), body}, below...)
	return strings.Join(lines, "\n") + "\n"
}

// below is the text under the boxes, as high while the race runs as at its end.
func (s *raceScreen) below(width int) []string {
	wrap := func(text string) []string { return strings.Split(wrapWords(text, width), "\n") }
	live := wrap("Both take turns on the same processor; each clock counts its own turns only. " +
		"Green: drafted and accepted. q quits.")
	who := wrap(s.view.verdict[0])
	same := wrap(s.view.verdict[1])
	high := max(len(live), len(who)+len(same))
	var lines []string
	if s.view.over {
		look := s.look.strong
		if s.view.identical {
			look = s.look.drafted
		}
		lines = append(who, strings.Split(look(strings.Join(same, "\n")), "\n")...)
	} else {
		lines = strings.Split(s.look.dim(strings.Join(live, "\n")), "\n")
	}
	for len(lines) < high {
		lines = append(lines, "")
	}
	return lines
}

// head is what a box says above its text: the name and the numbers of the lane, and a bar. Numbers that do not fit
// beside the name stand below it.
func (s *raceScreen) head(l *laneView, width int) []string {
	numbers := strings.Join(l.numbers, ", ")
	gap := width - lipgloss.Width(l.name) - lipgloss.Width(numbers)
	lines := []string{s.look.strong(l.name)}
	if gap > 0 {
		lines[0] += strings.Repeat(" ", gap) + numbers
	} else {
		lines = append(lines, flow(l.numbers, width)...)
	}
	return append(lines, s.bar(l, width))
}

// lane draws one box of the given inner width and rows of text.
func (s *raceScreen) lane(l *laneView, head []string, width, rows int) string {
	all := layout(s.view.prompt, l.tokens, width)
	lines := slices.Clone(head)
	for _, row := range all[max(0, len(all)-rows):] {
		lines = append(lines, s.row(row))
	}
	for len(lines) < len(head)+rows {
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
