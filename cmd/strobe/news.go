package main

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"strobe/internal/termtext"
)

const (
	patience     = time.Second            // nothing is said before: most things are over by then
	newsInterval = 250 * time.Millisecond // between two drawings on a terminal
)

// news says on standard error what a command does when that takes longer than a second: on a terminal in one line that
// goes away again, in a log in a line now and then, not at all with --quiet. A nil *news is silent.
type news struct {
	over chan struct{}
	once sync.Once
	wait sync.WaitGroup
}

// tell begins to say what text returns, which may be called from another goroutine; "" is nothing to say.
func tell(cmd *cobra.Command, text func() string) *news {
	if cmd == nil || isQuiet(cmd) {
		return nil
	}
	n := &news{over: make(chan struct{})}
	w := cmd.ErrOrStderr()
	n.wait.Go(func() { n.run(w, canDraw(w), text, patience, newsInterval, logInterval) })
	return n
}

func (n *news) run(w io.Writer, draws bool, text func() string, first, drawing, logging time.Duration) {
	next := time.NewTimer(first)
	defer next.Stop()
	shown := false
	for {
		select {
		case <-n.over:
			if shown && draws {
				fmt.Fprint(w, "\r\x1b[K")
			}
			return
		case <-next.C:
		}
		s := termtext.Lines(text())
		switch {
		case draws:
			if s != "" || shown {
				fmt.Fprint(w, "\r\x1b[K"+s)
			}
			next.Reset(drawing)
		case s == "":
			next.Reset(drawing) // something may begin any time
		default:
			fmt.Fprintln(w, s)
			next.Reset(logging)
		}
		shown = shown || s != ""
	}
}

// end stops it and takes its line away. What is printed after that stands alone.
func (n *news) end() {
	if n == nil {
		return
	}
	n.once.Do(func() { close(n.over) })
	n.wait.Wait()
}

// reading says how far a prompt is, "" when it was read.
func reading(read, prompt int) string {
	if read >= prompt {
		return ""
	}
	return fmt.Sprintf("reading the prompt: %s of %s tokens", thousands(read), thousands(prompt))
}

// thousands is a number with commas: 12,345.
func thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
