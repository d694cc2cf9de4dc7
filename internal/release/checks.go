package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Tools that Go fetches as modules.
const (
	govulncheck = "golang.org/x/vuln/cmd/govulncheck@v1.1.4"
	apidiff     = "golang.org/x/exp/cmd/apidiff@v0.0.0-20260908205506-85c1c2202aba"
)

// vulnerabilities fails when the program uses something with a known hole, and, with another text, when that could not
// be found out.
func vulnerabilities(ctx context.Context, root string) error {
	out, err := command(ctx, root, []string{"CGO_ENABLED=0"}, "go", "run", govulncheck, "./...")
	os.Stdout.Write(out)
	if err != nil && strings.Contains(err.Error(), "fetching vulnerabilities") {
		return fmt.Errorf("not checked: the database of vulnerabilities cannot be reached; "+
			"set GOVULNDB=file:///FOLDER to a copy of it (%w)", err)
	}
	return err
}

// api compares the packages that others import with those of a revision.
func api(ctx context.Context, root, revision string) error {
	dir, err := os.MkdirTemp("", "strobe-api")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	old := filepath.Join(dir, "old")
	if _, err := command(ctx, root, nil, "git", "worktree", "add", "--detach", old, revision); err != nil {
		return err
	}
	defer func() { // what is left of it would be listed by git
		_, _ = command(context.WithoutCancel(ctx), root, nil, "git", "worktree", "remove", "--force", old)
	}()
	var broken []error
	for _, folder := range []string{".", "./models"} {
		before := filepath.Join(dir, "before")
		if _, err := command(ctx, old, nil, "go", "run", apidiff, "-w", before, folder); err != nil {
			return err
		}
		out, err := command(ctx, root, nil, "go", "run", apidiff, "-incompatible", before, folder)
		if err != nil {
			return err
		}
		if text := strings.TrimSpace(string(out)); text != "" {
			broken = append(broken, fmt.Errorf("%s: programs would break:\n%s", folder, text))
		}
	}
	return errors.Join(broken...)
}
