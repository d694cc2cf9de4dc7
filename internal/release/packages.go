package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// nfpm makes packages for Debian and Red Hat.
const nfpm = "github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.43.0"

// Scripts of packages. systemd may not be there, in a container for instance.
const (
	beforeRemove = `#!/bin/sh
# An update keeps the service.
case "$1" in upgrade | 1) exit 0 ;; esac
if [ -d /run/systemd/system ]; then
	systemctl disable --now strobe.service || true
fi
`
	afterRemove = `#!/bin/sh
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload || true
fi
# Debian keeps settings until the package is purged; Red Hat's managers know no such thing.
case "$1" in purge | 0) rm -rf /etc/strobe /var/cache/strobe /var/cache/private/strobe ;; esac
`
	afterInstall = `#!/bin/sh
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload || true
fi
`
)

// places are where packages put the files of an archive.
var places = map[string]string{
	"strobe":                  "/usr/bin/strobe",
	"LICENSE":                 "/usr/share/doc/strobe/copyright",
	"LICENSES.txt":            "/usr/share/doc/strobe/LICENSES.txt",
	"README.md":               "/usr/share/doc/strobe/README.md",
	"CHANGELOG.md":            "/usr/share/doc/strobe/CHANGELOG.md",
	"strobe.service":          "/usr/lib/systemd/system/strobe.service",
	"man/strobe.1":            "/usr/share/man/man1/strobe.1",
	"completions/strobe.bash": "/usr/share/bash-completion/completions/strobe",
	"completions/_strobe":     "/usr/share/zsh/vendor-completions/_strobe",
	"completions/strobe.fish": "/usr/share/fish/vendor_completions.d/strobe.fish",
}

// pack makes a package of the files of an archive.
func (r *release) pack(ctx context.Context, t target, format string, files []file) (name string, data []byte,
	err error) {
	dir, err := os.MkdirTemp("", "strobe-package")
	if err != nil {
		return "", nil, err
	}
	defer os.RemoveAll(dir)
	put := func(name, text string, mode os.FileMode) (string, error) {
		p := filepath.Join(dir, filepath.Base(name))
		return p, os.WriteFile(p, []byte(text), mode)
	}
	var contents []map[string]any
	for _, f := range files {
		place, ok := places[f.name]
		if !ok {
			continue
		}
		if f.name == "strobe.service" {
			f.data = []byte(strings.ReplaceAll(string(f.data), "/usr/local/bin/", "/usr/bin/"))
		}
		if f.name == "completions/_strobe" && format == "rpm" {
			place = "/usr/share/zsh/site-functions/_strobe"
		}
		src, err := put(strings.ReplaceAll(f.name, "/", "-"), string(f.data), 0o644)
		if err != nil {
			return "", nil, err
		}
		contents = append(contents, map[string]any{"src": src, "dst": place,
			"file_info": map[string]any{"mode": f.mode, "mtime": r.date, "owner": "root", "group": "root"}})
	}
	scripts := map[string]string{}
	for name, text := range map[string]string{"preremove": beforeRemove, "postremove": afterRemove,
		"postinstall": afterInstall} {
		if scripts[name], err = put(name, text, 0o755); err != nil {
			return "", nil, err
		}
	}
	number := strings.TrimPrefix(r.version, "v")
	config, err := json.MarshalIndent(map[string]any{ // YAML's subset
		"name": "strobe", "arch": t.arch, "platform": "linux", "version": number, "version_schema": "semver", "mtime": r.date,
		"section": "utils", "priority": "optional", "maintainer": maintainer + " <strobe@" + host(r.module) + ">",
		"description": summary + "\n" + description, "homepage": homepage(r.module), "license": licenseID,
		"contents": contents, "scripts": scripts,
		"depends": []string{"libc6"}, "recommends": []string{"ca-certificates"},
		"overrides": map[string]any{"rpm": map[string]any{"depends": []string{"glibc"}}},
		"deb":       map[string]any{"compression": "gzip"}, "rpm": map[string]any{"compression": "gzip",
			"buildhost": "strobe"},
	}, "", " ")
	if err != nil {
		return "", nil, err
	}
	description, err := put("nfpm.yaml", string(config), 0o644)
	if err != nil {
		return "", nil, err
	}
	arch := t.arch
	if format == "rpm" {
		arch = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[t.arch]
	}
	name = fmt.Sprintf("strobe_%s_%s.%s", number, arch, format)
	path := filepath.Join(dir, name)
	env := []string{fmt.Sprintf("SOURCE_DATE_EPOCH=%d", r.date.Unix()), "GOFLAGS="}
	if _, err := command(ctx, r.root, env, "go", "run", nfpm, "package", "-f", description, "-p", format,
		"-t", path); err != nil {
		return "", nil, err
	}
	data, err = os.ReadFile(path)
	return name, data, err
}

// host is the first part of a module's path, or a name that is reserved for documentation.
func host(module string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(homepage(module), "https://"), "/")
	return name
}
