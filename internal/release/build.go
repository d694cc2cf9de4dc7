package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// release is one version in the making.
type release struct {
	root, out string
	version   string // with a v
	commit    string
	date      time.Time // of the commit: nothing in a release depends on when it is built
	module    string
	cache     string // Go's, "" for the usual one
}

func newRelease(ctx context.Context, root, version, out string) (*release, error) {
	if !semver.MatchString(version) {
		return nil, fmt.Errorf("version %q: want one like v1.2.3", version)
	}
	module, err := modulePath(root)
	if err != nil {
		return nil, err
	}
	if out, err = filepath.Abs(out); err != nil {
		return nil, err
	}
	r := &release{root: root, out: out, version: version, module: module}
	stamp := []byte(os.Getenv("SOURCE_DATE_EPOCH"))
	if hash, err := command(ctx, root, nil, "git", "rev-parse", "HEAD"); err == nil {
		r.commit = strings.TrimSpace(string(hash))
		if len(stamp) == 0 {
			if stamp, err = command(ctx, root, nil, "git", "log", "-1", "--format=%ct"); err != nil {
				return nil, err
			}
		}
	}
	seconds, err := strconv.ParseInt(strings.TrimSpace(string(stamp)), 10, 64)
	if err != nil {
		return nil, errors.New("the date of the commit is not known; without git, set SOURCE_DATE_EPOCH")
	}
	r.date = time.Unix(seconds, 0).UTC()
	return r, os.MkdirAll(out, 0o777)
}

// file is a file of an archive.
type file struct {
	name string
	data []byte
	mode int64
}

// build makes everything. What other files need the checksums of comes last.
func (r *release) build(ctx context.Context, targets []target, packages bool) error {
	extras, err := r.extras(ctx)
	if err != nil {
		return err
	}
	sums := map[string]string{}
	add := func(name string, data []byte) error {
		sums[name] = fmt.Sprintf("%x", sha256.Sum256(data))
		return os.WriteFile(filepath.Join(r.out, name), data, 0o666)
	}
	for _, t := range targets {
		program, err := r.compile(ctx, t)
		if err != nil {
			return err
		}
		fmt.Printf("%s: the program has %d bytes\n", r.name(t), len(program))
		files := append([]file{{t.program(), program, 0o755}}, extras...)
		if t.os != "linux" {
			files = slices.DeleteFunc(files, func(f file) bool { return f.name == "strobe.service" })
		}
		name := r.archive(t)
		pack := tarball
		if t.os == "windows" {
			pack = zipped
		}
		data, err := pack(strings.TrimSuffix(strings.TrimSuffix(name, ".tar.gz"), ".zip"), files, r.date)
		if err != nil {
			return err
		}
		if err := add(name, data); err != nil {
			return err
		}
		if packages && t.os == "linux" && t.variant == "" {
			for _, format := range []string{"deb", "rpm"} {
				name, data, err := r.pack(ctx, t, format, files)
				if err != nil {
					return err
				}
				if err := add(name, data); err != nil {
					return err
				}
			}
		}
	}
	materials, err := r.materials()
	if err != nil {
		return err
	}
	if err := add("strobe-"+r.version+".cdx.json", materials); err != nil {
		return err
	}
	installer, err := os.ReadFile(filepath.Join(r.root, "install.sh"))
	if err != nil {
		return err
	}
	installer = bytes.Replace(installer, []byte("\nreleases=\n"), []byte("\nreleases="+r.downloads()+"\n"), 1)
	if err := add("install.sh", installer); err != nil {
		return err
	}
	if err := r.manifests(sums); err != nil {
		return err
	}
	var list strings.Builder
	names := make([]string, 0, len(sums))
	for name := range sums {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(&list, "%s  %s\n", sums[name], name)
	}
	return os.WriteFile(filepath.Join(r.out, "SHA256SUMS"), []byte(list.String()), 0o666)
}

// name of what is built for a target, without the ending.
func (r *release) name(t target) string {
	return "strobe-" + r.version + "-" + strings.ReplaceAll(t.String(), "/", "-")
}

func (r *release) archive(t target) string {
	if t.os == "windows" {
		return r.name(t) + ".zip"
	}
	return r.name(t) + ".tar.gz"
}

// downloads is the folder on the web that has the files of all versions in folders of their own.
func (r *release) downloads() string { return homepage(r.module) + "/releases/download" }

// compile builds the program for a target.
func (r *release) compile(ctx context.Context, t target) ([]byte, error) {
	dir, err := os.MkdirTemp("", "strobe-release")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, t.program())
	flags := fmt.Sprintf("-s -w -buildid= -X main.commit=%s -X main.date=%s -X main.version=%s", r.commit,
		r.date.Format(time.DateOnly), r.version)
	env := []string{"CGO_ENABLED=0", "GOOS=" + t.os, "GOARCH=" + t.arch, "GOAMD64=v1", "GOARM64=v8.0", "GOFLAGS="}
	if r.cache != "" {
		env = append(env, "GOCACHE="+r.cache)
	}
	if _, err := command(ctx, r.root, env, "go", "build", "-trimpath", "-buildvcs=false", "-tags", t.tags(), "-ldflags",
		flags, "-o", path, "./cmd/strobe"); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

// extras are what goes with every program: licences, manual, completions.
func (r *release) extras(ctx context.Context) (files []file, err error) {
	for from, to := range map[string]string{"LICENSE": "LICENSE", "README.md": "README.md", "CHANGELOG.md": "CHANGELOG.md",
		licensesFile: "LICENSES.txt", "packaging/strobe.service": "strobe.service"} {
		b, err := os.ReadFile(filepath.Join(r.root, from))
		if err != nil {
			return nil, err
		}
		files = append(files, file{to, b, 0o644})
	}
	// The program for this machine writes its own manual and completions.
	dir, err := os.MkdirTemp("", "strobe-release")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	here := target{runtime.GOOS, runtime.GOARCH, "static-small"}
	program, err := r.compile(ctx, here)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, here.program())
	if err := os.WriteFile(path, program, 0o777); err != nil {
		return nil, err
	}
	for name, args := range map[string][]string{
		"man/strobe.1":            {"man"},
		"completions/strobe.bash": {"completion", "bash"},
		"completions/_strobe":     {"completion", "zsh"},
		"completions/strobe.fish": {"completion", "fish"},
		"completions/strobe.ps1":  {"completion", "powershell"},
	} {
		out, err := command(ctx, dir, nil, path, args...)
		if err != nil {
			return nil, err
		}
		files = append(files, file{name, out, 0o644})
	}
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.name, b.name) })
	return files, nil
}

// tarball packs files below a folder, with the same bytes each time.
func tarball(folder string, files []file, date time.Time) ([]byte, error) {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	w := tar.NewWriter(z)
	for _, f := range files {
		h := &tar.Header{Name: folder + "/" + f.name, Mode: f.mode, Size: int64(len(f.data)), ModTime: date,
			Format: tar.FormatUSTAR}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	err = errors.Join(w.Close(), z.Close())
	return b.Bytes(), err
}

// zipped is tarball for Windows.
func zipped(folder string, files []file, date time.Time) ([]byte, error) {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, f := range files {
		h := &zip.FileHeader{Name: folder + "/" + f.name, Method: zip.Deflate, Modified: date}
		h.SetMode(os.FileMode(f.mode))
		to, err := w.CreateHeader(h)
		if err != nil {
			return nil, err
		}
		if _, err := to.Write(f.data); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}

// reproduce makes the release of some targets here, and again from a copy of the sources in another folder with an
// empty cache, and compares all files.
func reproduce(ctx context.Context, root string, targets []target, packages bool) error {
	dir, err := os.MkdirTemp("", "strobe-again")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	first, err := newRelease(ctx, root, "v0.0.0", filepath.Join(dir, "first"))
	if err != nil {
		return err
	}
	second := *first
	second.root, second.out = filepath.Join(dir, "sources"), filepath.Join(dir, "second")
	second.cache = filepath.Join(dir, "cache")
	if err := copySources(ctx, root, second.root); err != nil {
		return err
	}
	for _, r := range []*release{first, &second} {
		if err := os.MkdirAll(r.out, 0o777); err != nil {
			return err
		}
		if err := r.build(ctx, targets, packages); err != nil {
			return err
		}
	}
	return compare(first.out, second.out)
}

// compare says of every file in two folders whether it is the same in both, and fails when one is not.
func compare(first, second string) error {
	seen := map[string]bool{}
	var differ []error
	for _, dir := range []string{first, second} {
		err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			name, err := filepath.Rel(dir, path)
			if err != nil || seen[name] {
				return err
			}
			seen[name] = true
			a, err := os.ReadFile(filepath.Join(first, name))
			b, again := os.ReadFile(filepath.Join(second, name))
			if err != nil || again != nil || !bytes.Equal(a, b) {
				differ = append(differ, fmt.Errorf("%s: two builds differ", name))
			}
			fmt.Printf("%x %9d %s\n", sha256.Sum256(a), len(a), name)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return errors.Join(differ...)
}

// copySources copies the files that git tracks.
func copySources(ctx context.Context, root, to string) error {
	list, err := command(ctx, root, nil, "git", "ls-files", "-z")
	if err != nil {
		return err
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(list), "\x00"), "\x00") {
		if err := copyFile(filepath.Join(root, name), filepath.Join(to, name)); err != nil && !errors.Is(err,
			os.ErrNotExist) {
			return err
		}
	}
	return nil
}

func copyFile(from, to string) error {
	st, err := os.Stat(from)
	if err != nil {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	if err := os.MkdirAll(filepath.Dir(to), 0o777); err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, st.Mode())
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
