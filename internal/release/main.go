// Command release makes everything that people install, from one description: archives, packages, manifests for package
// managers, a list of materials (SBOM) and checksums. It is run in the repository, with "go run ./internal/release".
//
//	release build VERSION      everything, into the folder dist
//	release reproduce          makes everything twice, from two folders, and compares the bytes
//	release size               prints what is in the program, in megabytes
//	release licenses           writes cmd/strobe/licenses.txt
//	release rename PATH        gives the module another path, in all files
//	release vulnerabilities    looks for known holes in what the program uses (GOVULNDB names a copy of the database)
//	release api REVISION       compares what the library exports with a revision, and fails where programs would break
//
// VERSION is a semantic version with a v in front. -only takes some targets (linux/amd64, or linux/amd64/static), -o
// another folder. Packages are made by nfpm, which Go fetches as a module; -packages=false does without.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		stop()
		os.Exit(1)
	}
}

const usage = "usage: release build VERSION | reproduce | size | licenses [-check] | rename PATH | vulnerabilities | " +
	"api REVISION"

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New(usage)
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	out := flags.String("o", "dist", "folder for what is made")
	only := flags.String("only", "", "targets, with commas between (default: all)")
	packages := flags.Bool("packages", true, "make deb and rpm packages, too")
	check := flags.Bool("check", false, "only say whether the file is as it should be")
	var words []string
	for rest := args[1:]; len(rest) > 0; { // flags may stand after words
		if err := flags.Parse(rest); err != nil {
			return err
		}
		if rest = flags.Args(); len(rest) > 0 {
			words, rest = append(words, rest[0]), rest[1:]
		}
	}
	targets, err := choose(*only)
	if err != nil {
		return err
	}
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(root, licensesFile)); err != nil && args[0] != "licenses" {
		return fmt.Errorf("run it at the root of the repository: %w", err)
	}
	switch {
	case args[0] == "build" && len(words) == 1:
		r, err := newRelease(ctx, root, words[0], *out)
		if err != nil {
			return err
		}
		return r.build(ctx, targets, *packages)
	case args[0] == "reproduce" && len(words) == 0:
		return reproduce(ctx, root, targets, *packages)
	case args[0] == "size" && len(words) == 0:
		return size(ctx, root, os.Stdout)
	case args[0] == "licenses" && len(words) == 0:
		if *check {
			return checkLicenses(ctx, root)
		}
		text, err := licenses(ctx, root)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(root, licensesFile), []byte(text), 0o666)
	case args[0] == "vulnerabilities" && len(words) == 0:
		return vulnerabilities(ctx, root)
	case args[0] == "api" && len(words) == 1:
		return api(ctx, root, words[0])
	case args[0] == "rename" && len(words) == 1:
		return rename(ctx, root, words[0])
	}
	return errors.New(usage)
}

// choose are the targets that names stand for; all for "".
func choose(names string) ([]target, error) {
	if names == "" {
		return targets, nil
	}
	var some []target
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(targets, func(t target) bool { return t.String() == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no target %q; want one such as %s or %s", name, targets[0], targets[1])
		}
		some = append(some, targets[i])
	}
	return some, nil
}

// command runs a program and returns what it prints. Its errors are part of the error.
func command(ctx context.Context, dir string, env []string, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", filepath.Base(name), strings.Join(args, " "), err,
			strings.TrimSpace(problems.String()))
	}
	return out, nil
}
