package main

import (
	_ "embed"
	"io"

	"github.com/spf13/cobra"
)

// licenses are the licences of everything in the program. "go run ./internal/release licenses" writes the file.
//
//go:embed licenses.txt
var licenses string

func newLicensesCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "licenses",
		Short: "Print the licences of everything in this program",
		Long: `Print the licences of Strobe and of everything that is part of this program: Go's
standard library, the modules it uses, and the libraries of the web page.`,
		Example: `  strobe licenses | less
  strobe licenses | grep "^== "        names, versions and kinds of licences`,
		Args: positional(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := io.WriteString(cmd.OutOrStdout(), licenses)
			return err
		},
	}
}
