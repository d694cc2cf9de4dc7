package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func newManCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "man",
		Short:   "Print the manual page",
		Long:    "Print the manual page of all commands, in the format of man (roff).",
		Example: `  strobe man > strobe.1 && man ./strobe.1`,
		Args:    positional(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := io.WriteString(cmd.OutOrStdout(), manPage(cmd.Root()))
			return err
		},
	}
}

// manPage is the manual of a program: a section for each command, with its flags.
func manPage(root *cobra.Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH STROBE 1 %q %q \"User Commands\"\n", date, "strobe "+buildVersion())
	fmt.Fprintf(&b, ".SH NAME\nstrobe \\- %s\n", roff(strings.ToLower(root.Short[:1])+root.Short[1:]))
	b.WriteString(".SH SYNOPSIS\n.B strobe\n.I COMMAND\n[\\fIARGUMENTS\\fR] [\\fIFLAGS\\fR]\n")
	fmt.Fprintf(&b, ".SH DESCRIPTION\n%s\n", roff(root.Long))
	b.WriteString(".SH COMMANDS\n")
	manCommands(&b, root)
	b.WriteString(".SH ENVIRONMENT\nEvery flag can be set by a variable STROBE_FLAG and in a file of settings; " +
		"\\fBstrobe config\\fR shows both.\n")
	return b.String()
}

func manCommands(b *strings.Builder, of *cobra.Command) {
	for _, c := range of.Commands() {
		if c.Hidden || !c.IsAvailableCommand() {
			continue
		}
		fmt.Fprintf(b, ".SS \"%s\"\n", roff(c.UseLine()))
		text := c.Long
		if text == "" {
			text = c.Short
		}
		fmt.Fprintf(b, "%s\n", roff(text))
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Hidden {
				return
			}
			name := "--" + f.Name
			if f.Shorthand != "" {
				name = "-" + f.Shorthand + ", " + name
			}
			value, usage := pflag.UnquoteUsage(f)
			fmt.Fprintf(b, ".TP\n\\fB%s\\fR %s\n%s\n", roff(name), roff(value), roff(usage))
		})
		if c.Example != "" {
			fmt.Fprintf(b, ".PP\nExamples:\n.nf\n%s\n.fi\n", roff(c.Example))
		}
		manCommands(b, c)
	}
}

// roff escapes what man would obey: backslashes, hyphens that are to stay hyphens, and dots and quotes at the beginning
// of a line. A line that begins with a tab is an example; with spaces man gives it a line of its own.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "\t", "    ").Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
