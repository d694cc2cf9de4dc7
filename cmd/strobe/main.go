// Command strobe runs, serves and prepares local language models.
//
// The program is a list of subcommands, one file each; root.go holds the list.
// main only connects run to the process, so that tests can call run
// with their own arguments and streams.
package main

import (
	"context"
	"os"
)

func main() { os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
