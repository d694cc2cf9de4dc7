package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// Set by release builds with -ldflags "-X main.version=v1.2.3 ...": the version, the commit and its date.
var version, commit, date string

func newVersionCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program, its commit and how it was built",
		Args:  positional(),
		RunE:  func(cmd *cobra.Command, _ []string) error { return printVersion(cmd) },
	}
}

func printVersion(cmd *cobra.Command) error {
	_, err := fmt.Fprintln(cmd.OutOrStdout(), versionText())
	return err
}

// versionText is the version with what a report of a problem needs: the commit, its date, the compiler, the platform,
// and what was left out.
func versionText() string {
	commit, date, tags := buildDetails()
	var about []string
	if commit != "" {
		about = append(about, strings.TrimSpace("commit "+commit+" "+date))
	}
	about = append(about, runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH)
	if tags != "" {
		about = append(about, "built with "+tags)
	}
	return fmt.Sprintf("strobe %s (%s)", buildVersion(), strings.Join(about, ", "))
}

// buildVersion is the release version, else the commit the binary was built from.
func buildVersion() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	if commit, _, _ := buildDetails(); commit != "" {
		return "devel-" + commit
	}
	return "devel"
}

// buildDetails are the commit in short, its date and the build tags, "" where they are not known.
func buildDetails() (hash, day, tags string) {
	hash, day = commit, date
	changed := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision" && hash == "":
				hash = s.Value
			case s.Key == "vcs.time" && day == "":
				day = s.Value
			case s.Key == "vcs.modified" && s.Value == "true":
				changed = "-changed"
			case s.Key == "-tags":
				tags = s.Value
			}
		}
	}
	if len(hash) > 12 {
		hash = hash[:12]
	}
	if hash != "" {
		hash += changed
	}
	day, _, _ = strings.Cut(day, "T")
	return hash, day, tags
}
