package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// fillFlags sets the flags that were not given: from the environment (--cache-dir is STROBE_CACHE_DIR), then from a file
// with a line "cache-dir = /var/cache/strobe" for each. A flag that may be repeated may have several lines.
func fillFlags(cmd *cobra.Command, file string) error {
	flags := cmd.Flags()
	given := map[string]bool{} // the command line, then the environment
	flags.Visit(func(f *pflag.Flag) { given[f.Name] = true })
	var failed error
	flags.VisitAll(func(f *pflag.Flag) {
		name := "STROBE_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		v, ok := os.LookupEnv(name)
		if !ok || given[f.Name] || failed != nil || name == keyVariable { // the keys of all places count
			return
		}
		given[f.Name] = true
		if err := flags.Set(f.Name, v); err != nil {
			failed = usagef("%s: %v", name, err)
		}
	})
	if failed != nil {
		return failed
	}
	if file == "" {
		file, _ = flags.GetString("config") // from the environment
	}
	if file == "" {
		return nil
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	for n := 1; sc.Scan(); n++ {
		line := strings.TrimSpace(sc.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		switch {
		case !ok:
			return fmt.Errorf("%s:%d: want a line like name = value", file, n)
		case flags.Lookup(name) == nil || name == "config" || name == "help":
			return fmt.Errorf("%s:%d: there is no setting %q", file, n, name)
		case given[name]:
			continue
		}
		if err := flags.Set(name, value); err != nil {
			return fmt.Errorf("%s:%d: %v", file, n, err)
		}
	}
	if err := sc.Err(); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}
