package main

import (
	"fmt"
	"io"
	"strings"
)

// print writes the result as plain text. Without colours, each pass of the drafted lane is shown by the number
// of tokens it yielded.
func (r *race) print(w io.Writer) error {
	fast := r.lanes[1]
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", r.title)
	fmt.Fprintf(&b, "prompt\n%s\n", indent(r.prompt))
	for _, l := range r.lanes {
		fmt.Fprintf(&b, "%s: %s, %s\n%s\n", l.name, count(l.stats.Tokens, "token"), strings.Join(l.numbers(), ", "),
			indent(string(l.output)))
	}
	if fast.stats.Guessed > 0 {
		fmt.Fprintf(&b, "%d of %d drafted tokens accepted; accepted by position %s\n", fast.stats.Accepted,
			fast.stats.Guessed, fast.stats.Bars())
	}
	b.WriteString(strings.Join(r.verdict(), "\n") + "\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func indent(s string) string {
	return "    " + strings.ReplaceAll(strings.TrimRight(s, "\n"), "\n", "\n    ") + "\n"
}
