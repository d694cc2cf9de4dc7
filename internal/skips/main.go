// Command skips shows what go test -json says as go test would, and lists the tests that were skipped in the file it is
// given: go test alone does not mention them, and a test that never runs proves nothing.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go test -json ./... | go run ./internal/skips FILE")
		os.Exit(2)
	}
	list, err := report(os.Stdin, os.Stdout)
	if err == nil {
		err = os.WriteFile(os.Args[1], []byte(strings.Join(list, "")), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "skips:", err)
		os.Exit(1)
	}
}

// event is a line of go test -json.
type event struct {
	Action, Package, ImportPath, Test, Output string
	Elapsed                                   float64
}

// report copies what people want to see of the events to w, and returns a line for every skipped test.
func report(r io.Reader, w io.Writer) (skipped []string, err error) {
	output := map[string][]string{} // by package and test
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadString('\n')
		var e event
		if json.Unmarshal([]byte(line), &e) != nil {
			fmt.Fprint(w, line) // go itself, in plain words
		}
		id := e.Package + " " + e.Test
		switch e.Action {
		case "output":
			output[id] = append(output[id], e.Output)
		case "build-output":
			fmt.Fprint(w, e.Output)
		case "skip":
			if e.Test == "" {
				fmt.Fprintf(w, "?   \t%s\t[no test files]\n", e.Package)
				break
			}
			skipped = append(skipped, fmt.Sprintf("%s: %s\n", id, reason(output[id])))
		case "fail":
			fmt.Fprint(w, strings.Join(output[id], ""))
		case "pass":
			if e.Test == "" {
				fmt.Fprintf(w, "ok  \t%s\t%.3fs\n", e.Package, e.Elapsed)
			}
		}
		if err == io.EOF {
			slices.Sort(skipped)
			return skipped, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// reason finds what a test said when it was skipped: the line with the place in its source.
func reason(output []string) string {
	for _, line := range slices.Backward(output) {
		line = strings.TrimSpace(line)
		if _, why, ok := strings.Cut(line, ": "); ok && strings.Contains(line, ".go:") {
			return why
		}
	}
	return "no reason given"
}
