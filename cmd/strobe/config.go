package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// modelTables is the name of the tables in a file of settings that speak of one model each.
const modelTables = "defaults"

// configVariable names the environment variable with another file of settings.
const configVariable = "STROBE_CONFIG"

func newConfigCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "config",
		Short: "Show where settings come from",
		Long: `Config shows the files with this user's settings and the variables that are set. It fails if a file is wrong.

Every flag of every command can be set in the environment (STROBE_TOP_K for --top-k) and in the file config.toml,
for all commands that have it or for one of them. The command line goes before the environment, that before the file:

  model = "qwen3.5-4b"
  temp = 0.6

  [serve]
  port = 9000

The file models.toml beside it gives names to models ("strobe list --help"). STROBE_CONFIG names another file than
config.toml, XDG_CONFIG_HOME another folder for both.`,
		Example: `  strobe config`,
		Args:    positional(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := configDir()
			var b strings.Builder
			if err != nil {
				fmt.Fprintf(&b, "%-10s none: %v\n", "settings", err)
			}
			show := func(what, file string) {
				note := ""
				if _, err := os.Stat(file); err != nil {
					note = " (not there)"
				}
				fmt.Fprintf(&b, "%-10s %s%s\n", what, file, note)
			}
			var broken error
			if file := configFile(dir); err == nil || os.Getenv(configVariable) != "" {
				show("settings", file)
				broken = checkSettings(file)
			}
			if err == nil {
				show("names", filepath.Join(dir, "models.toml"))
			}
			if _, err := knownModels(); broken == nil {
				broken = err
			}
			for _, v := range slices.Sorted(slices.Values(os.Environ())) {
				name, value, _ := strings.Cut(v, "=")
				if strings.HasSuffix(name, "_KEY") || strings.HasSuffix(name, "_TOKEN") {
					value = "(a secret)"
				}
				if strings.HasPrefix(name, "STROBE_") {
					fmt.Fprintf(&b, "%-10s %s=%s\n", "variable", name, value)
				}
			}
			if _, err := io.WriteString(cmd.OutOrStdout(), b.String()); err != nil {
				return err
			}
			return broken
		},
	}
}

// checkSettings is what a command would say of a file of settings; nil for one that is good or not there.
func checkSettings(file string) error {
	var settings map[string]any
	if _, err := decodeTOML(file, &settings); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	root, _ := newRootCmd()
	for _, c := range root.Commands() {
		if _, err := apply(c, settings, nil); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	return nil
}

// configFile is the user's file of settings.
func configFile(dir string) string {
	if f := os.Getenv(configVariable); f != "" {
		return f
	}
	return filepath.Join(dir, "config.toml")
}

// variable is the environment variable that mirrors a flag, "" for flags that have none.
func variable(f *pflag.Flag) string {
	name := "STROBE_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
	switch name {
	case keyVariable, // the keys of all places count
		"STROBE_PROMPTS", // is that of --prompts-dir
		configVariable, "STROBE_HELP", "STROBE_VERSION":
		return ""
	}
	return name
}

// fillFlags sets the flags that were not given: from the environment (--cache-dir is STROBE_CACHE_DIR), then from a
// file in TOML with a line cache-dir = "/var/cache/strobe" for each; a flag that may be repeated takes a list, and
// tables named like commands speak to one of them. Without a file it is the user's, if there is one. It returns the
// file's tables of single models, [defaults."NAME"].
func fillFlags(cmd *cobra.Command, file string) (map[string]map[string]any, error) {
	flags := cmd.Flags()
	given := map[string]bool{} // the command line, then the environment
	flags.Visit(func(f *pflag.Flag) { given[f.Name] = true })
	var failed error
	flags.VisitAll(func(f *pflag.Flag) {
		v, ok := os.LookupEnv(variable(f))
		if !ok || given[f.Name] || failed != nil {
			return
		}
		given[f.Name] = true
		if err := flags.Set(f.Name, v); err != nil {
			failed = usagef("%s: %w", variable(f), flagError(cmd, err))
		}
	})
	if failed != nil {
		return nil, failed
	}
	mine := file == "" && os.Getenv(configVariable) == "" // nobody named it, so it need not be there
	if file == "" {
		dir, err := configDir()
		if err != nil && mine {
			return nil, nil // no home, no settings
		}
		file = configFile(dir)
	}
	var settings map[string]any
	_, err := decodeTOML(file, &settings)
	switch {
	case mine && errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	}
	tables, err := apply(cmd, settings, given)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return tables, nil
}

// apply sets flags to the settings of a file, except those given.
func apply(cmd *cobra.Command, settings map[string]any, given map[string]bool) (map[string]map[string]any, error) {
	flags := cmd.Flags()
	own, _ := settings[cmd.Name()].(map[string]any)
	tables := map[string]map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		table, isTable := settings[name].(map[string]any)
		switch {
		case name == modelTables:
			for model, x := range table {
				t, ok := x.(map[string]any)
				if !ok {
					return nil, fmt.Errorf("%s.%s: must be a table", name, model)
				}
				tables[model] = t
			}
		case isTable && hasCommand(cmd.Root(), name):
		case name == "config" || name == "help" || !hasFlag(cmd.Root(), name) && flags.Lookup(name) == nil:
			return nil, fmt.Errorf("there is no setting %q", name)
		case flags.Lookup(name) != nil && !given[name] && own[name] == nil:
			if err := setFlag(flags, name, settings[name]); err != nil {
				return nil, err
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(own)) {
		if given[name] {
			continue
		}
		if err := setFlag(flags, name, own[name]); err != nil {
			return nil, fmt.Errorf("[%s]: %w", cmd.Name(), err)
		}
	}
	return tables, nil
}

func hasCommand(root *cobra.Command, name string) bool {
	return slices.ContainsFunc(root.Commands(), func(c *cobra.Command) bool { return c.Name() == name })
}

// hasFlag reports whether any command has the flag.
func hasFlag(root *cobra.Command, name string) bool {
	return root.PersistentFlags().Lookup(name) != nil ||
		slices.ContainsFunc(root.Commands(), func(c *cobra.Command) bool { return c.Flags().Lookup(name) != nil })
}
