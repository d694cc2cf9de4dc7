package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
)

// Groups of flags in the order in which help shows them. What is in no group is basic.
const (
	basicFlags    = "Flags"
	samplingFlags = "Sampling"
	draftingFlags = "Drafting"
	memoryFlags   = "Memory and devices"
	serverFlagsOf = "Server"
	trialFlags    = "Experimental"
)

var flagGroups = []string{basicFlags, serverFlagsOf, samplingFlags, draftingFlags, memoryFlags, trialFlags}

const groupKey = "group" // of a flag's annotations

// group puts the flags that are defined from now on into a group, until the function it returns is called.
func group(f *pflag.FlagSet, name string) (end func()) {
	before := map[string]bool{}
	f.VisitAll(func(x *pflag.Flag) { before[x.Name] = true })
	return func() {
		f.VisitAll(func(x *pflag.Flag) {
			if !before[x.Name] && x.Annotations[groupKey] == nil {
				_ = f.SetAnnotation(x.Name, groupKey, []string{name}) // it exists
			}
		})
	}
}

// otherNames are names that other programs have for flags, and those that had another name here.
var otherNames = map[string]string{
	"temperature": "temp", "ctx-size": "ctx", "max-model-len": "ctx", "n-gpu-layers": "gpu-layers", "n-predict": "predict",
	"max-tokens": "predict", "predict": "max-tokens", "n": "predict", "ignore-end": "ignore-eos",
	"quant": "type", "out": "output",
}

// alias finds a flag by the name that another program has for it.
func alias(f *pflag.FlagSet, name string) pflag.NormalizedName {
	to, ok := otherNames[name]
	if ok && hasOwn(f, to) && !hasOwn(f, name) {
		return pflag.NormalizedName(to)
	}
	return pflag.NormalizedName(name)
}

func hasOwn(f *pflag.FlagSet, name string) (found bool) {
	f.VisitAll(func(x *pflag.Flag) { found = found || x.Name == name })
	return found
}

// longShorthands are flags of llama.cpp with one dash and several letters, which would be read as several flags.
var longShorthands = map[string]string{"-ngl": "--gpu-layers", "-ub": "--ubatch-size"}

// expand replaces them in a command line.
func expand(args []string) []string {
	out := slices.Clone(args)
	for i, a := range out {
		name, value, has := strings.Cut(a, "=")
		switch long := longShorthands[name]; {
		case a == "--":
			return out
		case long != "" && has:
			out[i] = long + "=" + value
		case long != "":
			out[i] = long
		}
	}
	return out
}

// flagError says in a sentence what is wrong with a value, and which flag may have been meant by one that does not
// exist.
func flagError(cmd *cobra.Command, err error) error {
	if wrong := (*pflag.InvalidValueError)(nil); errors.As(err, &wrong) {
		return badValue(wrong)
	}
	return suggestFlag(cmd, err)
}

func badValue(wrong *pflag.InvalidValueError) error {
	f := wrong.GetFlag()
	want := map[string]string{
		"float32": "a number", "float64": "a number", "int": "a whole number", "int64": "a whole number",
		"uint64": "a whole number of 0 or more", "bool": "true or false", "duration": "a time such as 30s or 5m",
	}[f.Value.Type()]
	if want == "" {
		return fmt.Errorf("--%s: %w", f.Name, wrong.Unwrap())
	}
	return fmt.Errorf("--%s %q: want %s", f.Name, wrong.GetValue(), want)
}

// once is a string flag that may be given once: the first of two values would be forgotten.
type once struct {
	to  *string
	set bool
}

func (o *once) Type() string   { return "string" }
func (o *once) String() string { return *o.to }

func (o *once) Set(s string) error {
	if o.set {
		return fmt.Errorf("%q and %q: give one of them", *o.to, s)
	}
	*o.to, o.set = s, true
	return nil
}

// helpWidth is how many columns help may take.
func helpWidth(out io.Writer) int {
	const most = 110 // longer lines are hard to read
	if f, ok := out.(*os.File); ok {
		if n, _, err := term.GetSize(int(f.Fd())); err == nil && n > 0 {
			return min(n, most)
		}
	}
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 {
		return min(n, most)
	}
	return 80
}

// showHelp prints all there is to know about a command.
func showHelp(cmd *cobra.Command, _ []string) {
	out := cmd.OutOrStdout()
	text := cmd.Long
	if text == "" {
		text = cmd.Short
	}
	fmt.Fprintf(out, "%s\n\n%s", wrap(text, helpWidth(out)), usageText(cmd, helpWidth(out)))
}

// usageText is the part of help that follows the explanation.
func usageText(cmd *cobra.Command, width int) string {
	var b strings.Builder
	b.WriteString("Usage:\n")
	if cmd.Runnable() {
		fmt.Fprintf(&b, "  %s\n", cmd.UseLine())
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "  %s COMMAND\n", cmd.CommandPath())
	}
	if len(cmd.Aliases) > 0 {
		fmt.Fprintf(&b, "\nAlso called: %s\n", strings.Join(cmd.Aliases, ", "))
	}
	if cmd.HasExample() {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", cmd.Example)
	}
	groups := cmd.Groups()
	if len(groups) == 0 && cmd.HasAvailableSubCommands() {
		groups = []*cobra.Group{{Title: "Commands:"}}
	}
	for _, g := range groups {
		fmt.Fprintf(&b, "\n%s\n", g.Title)
		for _, c := range cmd.Commands() {
			if c.GroupID == g.ID && c.IsAvailableCommand() {
				fmt.Fprintf(&b, "  %-12s %s\n", c.Name(), c.Short)
			}
		}
	}
	all := cmd.LocalFlags()
	all.AddFlagSet(cmd.InheritedFlags())
	for _, g := range flagGroups {
		set := pflag.NewFlagSet(g, pflag.ContinueOnError)
		set.SortFlags = false
		all.VisitAll(func(f *pflag.Flag) {
			if in := f.Annotations[groupKey]; g == basicFlags && in == nil || in != nil && in[0] == g {
				set.AddFlag(f)
			}
		})
		if set.HasAvailableFlags() {
			fmt.Fprintf(&b, "\n%s:\n%s", g, flagLines(set, width))
		}
	}
	return b.String()
}

// flagLines is what pflag says of flags, with their explanations in lines that fit. Its own lines do not.
func flagLines(set *pflag.FlagSet, width int) string {
	var b strings.Builder
	lines := strings.SplitAfter(set.FlagUsages(), "\n")
	set.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || len(lines) == 0 {
			return
		}
		line := lines[0]
		lines = lines[1:]
		_, usage := pflag.UnquoteUsage(f)
		at := strings.Index(line, usage)
		if usage == "" || at < 0 {
			b.WriteString(line)
			return
		}
		b.WriteString(line[:at] + strings.ReplaceAll(wrap(line[at:], width-at), "\n", "\n"+strings.Repeat(" ", at)) + "\n")
	})
	return b.String()
}

// wrap breaks paragraphs into lines of at most width columns. Lines that begin with a space stay as they are.
func wrap(text string, width int) string {
	var b strings.Builder
	column := 0
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || line[0] == ' ' {
			if column > 0 {
				b.WriteByte('\n')
			}
			b.WriteString(line + "\n")
			column = 0
			continue
		}
		for _, word := range strings.Fields(line) {
			n := len([]rune(word))
			switch {
			case column == 0:
			case column+1+n > width:
				b.WriteByte('\n')
				column = 0
			default:
				b.WriteByte(' ')
				column++
			}
			b.WriteString(word)
			column += n
		}
	}
	return strings.TrimRight(b.String(), "\n")
}

// count is a number of things: 1 token, 2 tokens.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// otherVariables are read by name, here or by tests, and belong to no flag.
var otherVariables = []string{keyVariable, configVariable, "STROBE_PROMPTS", "STROBE_CPU", "STROBE_CUDA",
	"STROBE_CUDA_AS",
	"STROBE_RACES", "STROBE_SHARED", "STROBE_LONG", "STROBE_GPU", "STROBE_PAIR", "STROBE_E2E", "STROBE_JS",
	"STROBE_AGENTS", "STROBE_SHOTS", "STROBE_SCREENS", "STROBE_AXE", "STROBE_LAUNCHES"}

// variablePrefixes begin variables that are not settings: those of tests and drivers, and what Kubernetes
// sets for a service of the name strobe.
var variablePrefixes = []string{"STROBE_TEST_", "STROBE_REQUIRE_", "STROBE_VULKAN", "STROBE_SERVICE_", "STROBE_PORT_"}

// warnVariables says which variables of the environment look like settings and are none.
func warnVariables(cmd *cobra.Command) {
	known := slices.Clone(otherVariables)
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, variable(f)) })
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(cmd.Root())
	cmd.Root().PersistentFlags().VisitAll(func(f *pflag.Flag) { known = append(known, variable(f)) })
	for _, v := range slices.Sorted(slices.Values(os.Environ())) {
		name, _, _ := strings.Cut(v, "=")
		if !strings.HasPrefix(name, "STROBE_") || slices.Contains(known, name) ||
			slices.ContainsFunc(variablePrefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
			continue
		}
		hint := ""
		if s := nearest(name, known); s != "" {
			hint = ", did you mean " + s + "?"
		}
		infof(cmd, "note: no flag reads the variable %s%s", name, hint)
	}
}
