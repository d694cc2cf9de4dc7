package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"github.com/spf13/cobra"

	"strobe/internal/termtext"
)

// chatLines talks over plain lines: messages from standard input, answers to standard output,
// everything else to standard error. A backslash at the end of a line continues the message.
func chatLines(cmd *cobra.Command, t *talk) error {
	c := &lineChat{cmd: cmd, talk: t, look: newPaint(canDraw(cmd.OutOrStdout()) && os.Getenv("NO_COLOR") == "")}
	c.human = isTerminal(cmd.InOrStdin())
	in := &lineReader{r: bufio.NewReader(cmd.InOrStdin())}
	if c.human {
		in.prompt = cmd.ErrOrStderr()
		infof(cmd, "%s", t.greeting())
	}
	// The context of the command ends with the first interrupt; a chat survives it.
	c.ctx = context.WithoutCancel(cmd.Context())
	c.signals = make(chan os.Signal, 1)
	notifyEnd(c.signals)
	defer signal.Stop(c.signals)

	// Reading cannot be interrupted, so it has a goroutine; it ends with its input or the process.
	ask, messages := make(chan struct{}), make(chan message)
	defer close(ask)
	go func() {
		for range ask {
			text, err := in.message()
			messages <- message{text, err}
		}
	}()
	for {
		ask <- struct{}{}
		text, err := c.wait(messages)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		quit, err := c.handle(text)
		if quit {
			return err
		}
		if err != nil {
			if !c.human {
				return err // whoever wrote the input cannot react
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "strobe: %s\n", oneLine(err))
		}
	}
}

type lineChat struct {
	cmd     *cobra.Command
	ctx     context.Context
	talk    *talk
	look    paint
	human   bool // someone types
	signals chan os.Signal
}

type message struct {
	text string
	err  error
}

// wait returns the next message, or io.EOF when the process was asked to end.
func (c *lineChat) wait(messages <-chan message) (string, error) {
	for {
		select {
		case m := <-messages:
			return m.text, m.err
		case s := <-c.signals:
			if s != os.Interrupt || !c.human {
				return "", io.EOF
			}
			fmt.Fprint(c.cmd.ErrOrStderr(), "\n(Ctrl-D or /quit leaves)\n> ")
		}
	}
}

// handle runs a command or gets an answer. With quit set, the chat is over.
func (c *lineChat) handle(text string) (quit bool, err error) {
	if strings.TrimSpace(text) == "" {
		return false, nil
	}
	var u *turn
	if text, command := isCommand(text); command {
		out, quit, again, err := c.talk.command(text)
		if out != "" {
			infof(c.cmd, "%s", out)
		}
		if quit || !again || err != nil {
			return quit, err
		}
		if u, err = c.talk.retry(c.ctx); err != nil {
			return false, err
		}
	} else if u, err = c.talk.say(c.ctx, text); err != nil {
		return false, err
	}
	slow := tell(c.cmd, func() string { return reading(u.Progress()) })
	err = u.print(c.cmd.OutOrStdout(), c.look, c.talk.opt.colorDrafts, c.signals, slow)
	if slow.end(); err != nil {
		return !errors.Is(err, u.failure()), err
	}
	if !c.talk.opt.hideStats && !isQuiet(c.cmd) {
		fmt.Fprintln(c.cmd.ErrOrStderr(), c.look.dim("["+u.footer()+"]"))
	}
	return false, nil
}

// print writes the answer as it comes, after what was said of the prompt. A signal stops it.
func (u *turn) print(out io.Writer, look paint, drafts bool, stop <-chan os.Signal, slow *news) error {
	ended := make(chan struct{})
	defer close(ended)
	go func() { // ends with print
		select {
		case <-stop:
			u.Stop()
		case <-ended:
		}
	}()
	reasoning := false
	for {
		ps, err := u.next()
		for _, p := range ps {
			slow.end()
			if reasoning && !p.Reasoning {
				fmt.Fprint(out, "\n\n")
			}
			reasoning = p.Reasoning
			if isTerminal(out) {
				p.Text = termtext.Lines(p.Text)
			}
			if _, werr := io.WriteString(out, look.piece(p, drafts)); werr != nil {
				u.Stop()
				return werr
			}
		}
		if errors.Is(err, io.EOF) {
			_, err = fmt.Fprintln(out)
			return err
		}
		if err != nil {
			return err
		}
	}
}

// lineReader puts lines together to messages.
type lineReader struct {
	r      *bufio.Reader
	prompt io.Writer // nil: no prompt
}

// message reads the next message. A last line without a line feed counts.
func (l *lineReader) message() (string, error) {
	var b strings.Builder
	mark := "> "
	for {
		if l.prompt != nil {
			fmt.Fprint(l.prompt, mark)
		}
		line, err := l.r.ReadString('\n')
		if err != nil && (!errors.Is(err, io.EOF) || line == "" && b.Len() == 0) {
			return "", err
		}
		line = strings.TrimRight(line, "\r\n")
		more := strings.HasSuffix(line, "\\")
		b.WriteString(strings.TrimSuffix(line, "\\"))
		if !more || err != nil {
			return b.String(), nil
		}
		b.WriteByte('\n')
		mark = "| "
	}
}
