package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// nfpm makes packages for Debian and Red Hat.
const nfpm = "github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.43.0"

// Scripts of packages. systemd may not be there, in a container for instance.
const (
	beforeRemove = `#!/bin/sh
set -e
# An update keeps the service.
case "$1" in upgrade | 1) exit 0 ;; esac
if [ -d /run/systemd/system ]; then
	systemctl disable --now strobe.service || true
fi
`
	afterRemove = `#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload || true
fi
# Debian keeps settings until the package is purged; Red Hat's managers know no such thing.
case "$1" in purge | 0) rm -rf /etc/strobe /var/cache/strobe /var/cache/private/strobe ;; esac
`
	afterInstall = `#!/bin/sh
set -e
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
	"man/strobe.1":            "/usr/share/man/man1/strobe.1.gz",
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
		if f.name == "man/strobe.1" {
			if f.data, err = zippedFile(f.data); err != nil {
				return "", nil, err
			}
		}
		src, err := put(strings.ReplaceAll(f.name, "/", "-"), string(f.data), 0o644)
		if err != nil {
			return "", nil, err
		}
		content := r.content(src, place, f.mode)
		if format == "rpm" && (strings.HasPrefix(place, "/usr/share/doc/") || strings.HasPrefix(place, "/usr/share/man/")) {
			content["type"] = "doc"
		}
		contents = append(contents, content)
	}
	scripts := map[string]string{}
	for name, text := range map[string]string{"preremove": beforeRemove, "postremove": afterRemove,
		"postinstall": afterInstall} {
		if scripts[name], err = put(name, text, 0o755); err != nil {
			return "", nil, err
		}
	}
	number := strings.TrimPrefix(r.version, "v")
	contact := maintainer + " <strobe@" + host(r.module) + ">"
	note := "Changes are in CHANGELOG.md, and on " + homepage(r.module) + "."
	info := map[string]any{
		"name": "strobe", "arch": t.arch, "platform": "linux", "version": number, "version_schema": "semver", "mtime": r.date,
		"section": "utils", "priority": "optional", "maintainer": contact,
		"description": summary + "\n" + wrap(description, 78), "homepage": homepage(r.module),
		"contents": contents, "scripts": scripts, "recommends": []string{"ca-certificates"},
	}
	arch := t.arch
	if format == "rpm" {
		arch = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[t.arch]
		name = fmt.Sprintf("strobe-%s-1.%s.rpm", number, arch)
		news, err := json.Marshal([]map[string]any{{"semver": number + "-1", "date": r.date, "packager": contact,
			"changes": []map[string]any{{"note": note}}}})
		if err != nil {
			return "", nil, err
		}
		if info["changelog"], err = put("changelog.yaml", string(news), 0o644); err != nil {
			return "", nil, err
		}
		info["license"], info["depends"], info["release"] = licenseID, []string{"glibc"}, "1"
		info["rpm"] = map[string]any{"compression": "gzip", "buildhost": "strobe", "group": "Applications/System"}
	} else { // Debian's licence is the file copyright; nfpm's changelog is not in Debian's format
		news, err := zippedFile(fmt.Appendf(nil, "strobe (%s) unstable; urgency=medium\n\n  * %s\n\n -- %s  %s\n", number,
			note, contact, r.date.Format(time.RFC1123Z)))
		if err != nil {
			return "", nil, err
		}
		src, err := put("changelog.gz", string(news), 0o644)
		if err != nil {
			return "", nil, err
		}
		info["contents"] = append(contents, r.content(src, "/usr/share/doc/strobe/changelog.gz", 0o644))
		name = fmt.Sprintf("strobe_%s_%s.deb", number, arch)
		info["depends"] = []string{"libc6"}
		info["deb"] = map[string]any{"compression": "gzip"}
	}
	config, err := json.MarshalIndent(info, "", " ") // YAML's subset
	if err != nil {
		return "", nil, err
	}
	description, err := put("nfpm.yaml", string(config), 0o644)
	if err != nil {
		return "", nil, err
	}
	path := filepath.Join(dir, name)
	env := []string{fmt.Sprintf("SOURCE_DATE_EPOCH=%d", r.date.Unix()), "GOFLAGS="}
	if _, err := command(ctx, r.root, env, "go", "run", nfpm, "package", "-f", description, "-p", format,
		"-t", path); err != nil {
		return "", nil, err
	}
	data, err = os.ReadFile(path)
	return name, data, err
}

// content is how nfpm is asked to put a file into a package.
func (r *release) content(from, to string, mode int64) map[string]any {
	return map[string]any{"src": from, "dst": to,
		"file_info": map[string]any{"mode": mode, "mtime": r.date, "owner": "root", "group": "root"}}
}

// zippedFile is a file as gzip -n writes it: without a name and a date.
func zippedFile(data []byte) ([]byte, error) {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := z.Write(data); err != nil {
		return nil, err
	}
	err = z.Close()
	return b.Bytes(), err
}

// wrap breaks a text into lines of at most width letters.
func wrap(text string, width int) string {
	var b strings.Builder
	column := 0
	for _, word := range strings.Fields(text) {
		if column > 0 && column+1+len(word) > width {
			b.WriteByte('\n')
			column = 0
		} else if column > 0 {
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	return b.String()
}

// host is the first part of a module's path, or a name that is reserved for documentation.
func host(module string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(homepage(module), "https://"), "/")
	return name
}
