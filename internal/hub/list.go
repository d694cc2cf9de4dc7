package hub

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"strobe/internal/platform"
)

// A Cached is a model, a drafter or an image encoder in the cache.
type Cached struct {
	Repo, Commit string
	File         string // without the number of a part; empty for a checkpoint folder
	Current      bool   // what "main" stood for when it was last asked
	Path         string // what to open
	Size         int64
	Fetched      time.Time
	Drafter      bool // by its name
	Vision       bool // an image encoder, by its name
	paths        []string
}

// Ref is the reference that means it.
func (x *Cached) Ref() string {
	s := x.Repo
	if !x.Current {
		s += "@" + x.Commit
	}
	if x.File != "" {
		s += ":" + x.File
	}
	return s
}

// List returns the models of the cache by their names. A cache that is not there is empty.
func (c *Client) List() ([]Cached, error) {
	dirs, err := os.ReadDir(c.Cache)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var out []Cached
	for _, d := range dirs {
		name, ok := strings.CutPrefix(d.Name(), "models--")
		if !ok {
			continue
		}
		r, err := ParseRef(strings.Replace(name, "--", "/", 1))
		if err != nil {
			continue // not a name of ours
		}
		main, _ := platform.ReadFile(c.refFile(r), platform.MaxText)
		commits, err := os.ReadDir(filepath.Join(c.repoDir(r.Repo), "snapshots"))
		if err != nil {
			continue
		}
		for _, s := range commits {
			r.Revision = s.Name()
			if list := c.listCommit(r); commitPattern.MatchString(r.Revision) {
				for i := range list {
					list[i].Current = strings.TrimSpace(string(main)) == r.Revision
				}
				out = append(out, list...)
			}
		}
	}
	slices.SortFunc(out, func(a, b Cached) int { return cmp.Or(cmp.Compare(a.Repo, b.Repo), cmp.Compare(a.File, b.File)) })
	return out, nil
}

// listCommit lists one commit of a repository.
func (c *Client) listCommit(r Ref) (out []Cached) {
	commit, files, err := c.cached(r)
	if err != nil {
		return nil
	}
	names := make([]string, len(files))
	sizes := map[string]int64{}
	for i, f := range files {
		names[i], sizes[f.Name] = f.Name, f.Size
	}
	add := func(file string, parts []string) {
		root := c.snapshot(r.Repo, commit)
		x := Cached{Repo: r.Repo, Commit: commit, File: file, Path: root, Drafter: IsDrafter(file), Vision: IsVision(file)}
		for _, p := range parts {
			x.Size += sizes[p]
			x.paths = append(x.paths, filepath.Join(root, filepath.FromSlash(p)))
		}
		if file != "" {
			x.Path = x.paths[0]
		}
		if st, err := os.Stat(x.paths[0]); err == nil {
			x.Fetched = st.ModTime()
		}
		out = append(out, x)
	}
	all := choices(names)
	for _, m := range all {
		slices.Sort(m.parts)
		add(m.name, m.parts)
	}
	for _, name := range names {
		if IsVision(name) {
			add(name, []string{name})
		}
	}
	if parts := checkpoint(names); len(all) == 0 && len(parts) > 0 {
		add("", parts)
	}
	return out
}

// Remove deletes a model from the cache. Content that another commit has, too, stays.
func (c *Client) Remove(x Cached) error {
	dir := c.repoDir(x.Repo)
	entries, err := os.ReadDir(filepath.Join(dir, "blobs"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	blobs := map[string]os.FileInfo{}
	for _, e := range entries {
		if st, err := os.Stat(filepath.Join(dir, "blobs", e.Name())); err == nil {
			blobs[filepath.Join(dir, "blobs", e.Name())] = st
		}
	}
	// blob is the content that a file of a snapshot links to, symbolically or hard.
	blob := func(path string) string {
		st, err := os.Stat(path)
		for name, b := range blobs {
			if err == nil && os.SameFile(st, b) {
				return name
			}
		}
		return ""
	}
	gone := map[string]bool{}
	for _, p := range x.paths {
		gone[blob(p)] = true
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	left := false
	err = filepath.WalkDir(filepath.Join(dir, "snapshots"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			left = true
			delete(gone, blob(path))
		}
		return err
	})
	if err != nil {
		return err
	}
	if !left {
		return errors.Join(os.RemoveAll(dir), os.RemoveAll(filepath.Join(c.Cache, ".locks", filepath.Base(dir))))
	}
	for name := range gone {
		if name != "" {
			err = errors.Join(err, os.Remove(name))
		}
	}
	return err
}
