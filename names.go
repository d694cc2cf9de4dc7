package strobe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"strobe/internal/hub"
)

// fetch makes the names of a model and its drafter files of this machine.
func fetch(ctx context.Context, name string, opt *Options, report *reporter) (path, drafter string, err error) {
	ref, drafters, err := lookUp(name)
	if err != nil {
		return "", "", err
	}
	if ref == "" {
		path = name
	} else if path, err = download(ctx, ref, false, opt, report); err != nil {
		return "", "", err
	}
	switch drafter = opt.Drafter; drafter {
	case "none":
		return path, drafter, nil
	case "":
		for _, d := range drafters { // one that cannot be had is no reason to have no model
			if drafter, err = download(ctx, d, true, opt, report); err == nil || ctx.Err() != nil {
				break
			}
		}
		return path, drafter, ctx.Err()
	}
	ref, drafters, err = lookUp(drafter)
	if err != nil || ref == "" {
		return path, drafter, err
	}
	if _, err := hub.ParseRef(drafter); err != nil && len(drafters) > 0 {
		ref = drafters[0] // the short name of a model stands for the drafter made for it
	}
	drafter, err = download(ctx, ref, true, opt, report)
	return path, drafter, err
}

// lookUp says what a name stands for: a reference to the hub with the drafters that were made for that model, or a file
// of this machine, for which ref is "".
func lookUp(name string) (ref string, drafters []string, err error) {
	_, err = os.Stat(name)
	if err == nil || strings.HasSuffix(strings.ToLower(name), ".gguf") && !strings.Contains(name, ":") {
		return "", nil, nil
	}
	known, err := hub.Known()
	if err != nil {
		return "", nil, err
	}
	alias, typ, _ := strings.Cut(strings.ToLower(name), ":")
	if x, ok := known[alias]; ok {
		ref = x.Model
		if typ != "" {
			ref, _, _ = strings.Cut(ref, ":")
			ref += ":" + typ
		}
		return ref, x.Drafters, nil
	}
	if _, err := hub.ParseRef(name); err != nil {
		return "", nil, fmt.Errorf("%q: %w; want a GGUF file, OWNER/REPO[:FILE] of the hub, or a short name", name,
			ErrUnknownName)
	}
	return name, nil, nil
}

// download makes what a reference to the hub means a local file.
func download(ctx context.Context, ref string, drafter bool, opt *Options, report *reporter) (string, error) {
	c, err := hub.FromEnv()
	if err != nil {
		return "", err
	}
	// What the cache has is taken without asking the hub.
	p, err := c.Local(ref, drafter)
	if err == nil {
		return p.Path, nil
	}
	if c.Offline = c.Offline || opt.Offline; c.Offline {
		return "", err
	}
	resolve := c.Resolve
	if drafter {
		resolve = c.ResolveDrafter
	}
	if p, err = resolve(ctx, ref); err != nil {
		return "", err
	}
	if p.Folder {
		return "", errors.New(ref + `: a checkpoint and no GGUF file; "strobe convert" makes one`)
	}
	return c.Pull(ctx, p, func(s hub.Progress) {
		report.say(Progress{Stage: "download", File: s.File, Done: s.Done, Total: s.Total})
	})
}
