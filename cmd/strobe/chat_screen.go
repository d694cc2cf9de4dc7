package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/spf13/cobra"

	"strobe/internal/dialog"
)

// chatScreen talks in a terminal: an editor at the bottom, the conversation above it in the terminal's own
// scrollback, so that it stays there afterwards.
func chatScreen(cmd *cobra.Command, t *talk) error {
	s := &screen{talk: t, look: newPaint(true), width: 80}
	// Ctrl-C arrives as a key; the context would end with signals only.
	s.ctx = context.WithoutCancel(cmd.Context())
	if path := historyFile(); path != "" && !t.opt.noHistory {
		s.edit.history = readHistory(path)
		s.edit.past = len(s.edit.history)
		defer func() {
			if err := writeHistory(path, s.edit.history); err != nil {
				infof(cmd, "note: the messages are not kept for the next chat: %s", oneLine(err))
			}
		}()
	}
	_, err := tea.NewProgram(s, tea.WithInput(cmd.InOrStdin()), tea.WithOutput(cmd.OutOrStdout()),
		tea.WithContext(cmd.Context())).Run()
	if s.turn != nil { // the program was ended from outside
		s.turn.Stop()
	}
	if errors.Is(err, tea.ErrProgramKilled) && cmd.Context().Err() != nil {
		return cmd.Context().Err()
	}
	return err
}

// screen is the state of the chat on a terminal.
type screen struct {
	talk *talk
	ctx  context.Context
	look paint
	edit editor

	turn    *turn // nil while the user writes
	line    string
	thought bool   // the last piece was reasoning
	hint    string // below the editor
	slow    string // how far the prompt is, if that takes long
	loaded  string // what /model says in the end

	width, height int
}

// What happens besides keys.
type (
	piecesMsg struct {
		pieces []dialog.Piece
		err    error
	}
	turnMsg struct {
		turn *turn
		err  error
	}
	loadedMsg struct{ err error } // by /model
	tickMsg   struct{ turn *turn }
)

func (s *screen) Init() tea.Cmd { return nil } // the greeting waits for the size of the screen

func (s *screen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch m := msg.(type) {
	case tea.WindowSizeMsg:
		first := s.height == 0
		s.width, s.height = m.Width, m.Height
		if first {
			return s, s.print(s.look.dim(s.talk.greeting()))
		}
	case tea.PasteMsg:
		s.edit.insert(m.Content)
	case tea.KeyPressMsg:
		return s, s.key(m.String(), m.Text)
	case turnMsg:
		if m.err != nil {
			return s, s.print(s.look.strong("strobe: " + oneLine(m.err)))
		}
		s.turn, s.line, s.thought, s.slow = m.turn, "", false, ""
		return s, tea.Batch(s.next(), s.tick(patience))
	case tickMsg:
		if m.turn != s.turn { // it is over
			break
		}
		if s.slow = reading(s.turn.Progress()); s.slow != "" {
			return s, s.tick(newsInterval)
		}
	case loadedMsg:
		if m.err != nil {
			return s, s.print(s.look.strong("strobe: " + oneLine(m.err)))
		}
		return s, s.print(s.look.dim(s.loaded))
	case piecesMsg:
		return s, s.show(m)
	}
	return s, nil
}

// key acts on a key press.
func (s *screen) key(name, text string) tea.Cmd {
	s.hint = ""
	switch name {
	case "ctrl+c":
		switch {
		case s.turn != nil:
			s.turn.Stop()
		case len(s.edit.text) > 0:
			s.edit.take()
		default:
			s.hint = "Ctrl-D or /quit leaves"
		}
		return nil
	case "ctrl+d":
		if len(s.edit.text) == 0 {
			return s.quit()
		}
	case "ctrl+l":
		return tea.ClearScreen
	case "esc":
		if s.turn != nil {
			s.turn.Stop()
		}
		return nil
	}
	if !s.edit.key(name, text) || s.turn != nil {
		return nil
	}
	return s.send(s.edit.take())
}

func (s *screen) quit() tea.Cmd {
	if s.turn != nil {
		s.turn.Stop()
	}
	return tea.Quit
}

// send runs a command or asks for an answer.
func (s *screen) send(text string) tea.Cmd {
	if strings.TrimSpace(text) == "" {
		return nil
	}
	said := strings.ReplaceAll(wrapWords(harmless(text), s.width-3), "\n", "\n  ")
	echo := s.print(s.look.mark("> ") + s.look.strong(said))
	text, command := isCommand(text)
	if !command {
		return tea.Sequence(echo, func() tea.Msg {
			u, err := s.talk.say(s.ctx, text)
			return turnMsg{u, err}
		})
	}
	if name, arg, _ := strings.Cut(text, " "); name == "/model" && strings.TrimSpace(arg) != "" {
		// Loading takes long and shows how far it is: the terminal is its own meanwhile.
		return tea.Sequence(echo, tea.Exec(&loading{run: func() (err error) {
			s.loaded, _, _, err = s.talk.command(text)
			return err
		}}, func(err error) tea.Msg { return loadedMsg{err} }))
	}
	out, quit, again, err := s.talk.command(text)
	switch {
	case err != nil:
		return tea.Sequence(echo, s.print(s.look.strong("strobe: "+oneLine(err))))
	case quit:
		return s.quit()
	case again:
		return tea.Sequence(echo, func() tea.Msg {
			u, err := s.talk.retry(s.ctx)
			return turnMsg{u, err}
		})
	}
	return tea.Sequence(echo, s.print(s.look.dim(out)))
}

// loading is a job that has the terminal for itself.
type loading struct{ run func() error }

func (l *loading) Run() error        { return l.run() }
func (*loading) SetStdin(io.Reader)  {}
func (*loading) SetStdout(io.Writer) {}
func (*loading) SetStderr(io.Writer) {}

// tick looks after a while how far the prompt is.
func (s *screen) tick(after time.Duration) tea.Cmd {
	u := s.turn
	return tea.Tick(after, func(time.Time) tea.Msg { return tickMsg{u} })
}

// next waits for more of the answer.
func (s *screen) next() tea.Cmd {
	u := s.turn
	return func() tea.Msg {
		ps, err := u.next()
		return piecesMsg{ps, err}
	}
}

// show adds pieces to the answer. Rows that are full go above the editor for good; the next pieces are only asked
// for after that, which keeps the rows in order.
func (s *screen) show(m piecesMsg) tea.Cmd {
	s.slow = ""
	for _, p := range m.pieces {
		if s.thought && !p.Reasoning {
			s.line += "\n\n"
		}
		s.thought = p.Reasoning
		p.Text = harmless(p.Text)
		s.line += s.look.piece(p, s.talk.opt.colorDrafts)
	}
	if m.err == nil {
		rows := s.wrap(s.line)
		i := strings.LastIndexByte(rows, '\n')
		if i < 0 {
			return s.next()
		}
		full := rows[:i]
		s.line = rows[i+1:]
		if style := openStyle(full); style != "" { // goes on in the next row
			full, s.line = full+ansi.ResetStyle, style+s.line
		}
		return tea.Sequence(s.print(full), s.next())
	}
	lines, u := s.line, s.turn
	s.turn, s.line = nil, ""
	if !errors.Is(m.err, io.EOF) {
		lines += "\n" + s.look.strong("strobe: "+oneLine(m.err))
	} else if !s.talk.opt.hideStats {
		lines += "\n" + s.look.dim("["+u.footer()+"]")
	}
	return s.print(lines + "\n")
}

// openStyle is the style that is in force at the end of a text.
func openStyle(s string) string {
	i := strings.LastIndex(s, "\x1b[")
	if i < 0 {
		return ""
	}
	code, _, _ := strings.Cut(s[i:], "m")
	if code+"m" == ansi.ResetStyle {
		return ""
	}
	return code + "m"
}

// wrap leaves the last column free: a terminal that erases the rest of a full row takes its last character.
func (s *screen) wrap(text string) string { return wrapWords(text, s.width-1) }

// print puts text above the editor for good, wrapped between words, in parts that the screen can hold: what is more
// would be lost.
func (s *screen) print(text string) tea.Cmd {
	rows := strings.Split(s.wrap(text), "\n")
	part := max(1, s.height/2)
	if s.height == 0 {
		part = len(rows)
	}
	var parts []tea.Cmd
	for from := 0; from < len(rows); from += part {
		parts = append(parts, tea.Println(strings.Join(rows[from:min(len(rows), from+part)], "\n")))
	}
	if len(parts) == 1 {
		return parts[0]
	}
	return tea.Sequence(parts...)
}

// View is what stays at the bottom: the row being written, the editor, and a line about both.
func (s *screen) View() tea.View {
	var b strings.Builder
	if s.turn != nil {
		b.WriteString(s.wrap(s.line))
		b.WriteString("\n\n")
	}
	above := strings.Count(b.String(), "\n")
	rows, x, y := s.edit.rows(s.width)
	// A long text scrolls inside the lower half of the screen.
	if most := max(3, s.height/2-2); len(rows) > most {
		from := min(max(0, y-most/2), len(rows)-most)
		rows, y = rows[from:from+most], y-from
	}
	for i, r := range rows {
		mark := "  "
		if i == 0 {
			mark = s.look.mark("> ")
		}
		b.WriteString(mark + r + "\n")
	}
	b.WriteString(s.look.dim(strings.Join(flow(s.status(), max(8, s.width)), "\n")))
	v := tea.NewView(b.String())
	v.Cursor = tea.NewCursor(x, above+y)
	return v
}

// status is the line below the editor: what can be done now, or whom one talks to.
func (s *screen) status() []string {
	switch {
	case s.hint != "":
		return []string{s.hint}
	case s.turn != nil:
		if s.slow != "" {
			return []string{s.slow, "Ctrl-C stops it"}
		}
		return []string{"Ctrl-C stops the answer"}
	}
	t := s.talk
	return []string{modelName(t.model()),
		fmt.Sprintf("%d of %d tokens used", t.context, t.Engine().Config().Context), "/help lists the commands"}
}

// harmless takes out of a model's text what a terminal would act on. Tabs become spaces, because the
// width of lines has to be known.
func harmless(s string) string {
	s = strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && (r < ' ' || r >= 0x7f && r < 0xa0) {
			return '\ufffd'
		}
		return r
	}, s)
	return strings.ReplaceAll(s, "\t", "    ")
}
