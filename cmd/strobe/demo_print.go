package main

import (
	"fmt"
	"io"
	"strings"
)

// print writes the result as plain text. Without colours, each pass of the drafted lane is shown by the number
// of tokens it yielded.
func (r *race) print(w io.Writer) error {
	plain, fast := r.lanes[0], r.lanes[1]
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", r.title)
	fmt.Fprintf(&b, "prompt\n%s\n", indent(r.prompt))
	fmt.Fprintf(&b, "plain: %d tokens, %s\n%s\n", plain.stats.Tokens, plain.numbers(), indent(string(plain.output)))
	fmt.Fprintf(&b, "%s: %d tokens, %s\n%s\n", fast.name, fast.stats.Tokens, fast.numbers(), indent(string(fast.output)))
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
