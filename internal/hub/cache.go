package hub

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"strobe/internal/platform"
)

func (c *Client) repoDir(repo string) string {
	return filepath.Join(c.Cache, "models--"+strings.ReplaceAll(repo, "/", "--"))
}

func (c *Client) snapshot(repo, commit string) string {
	return filepath.Join(c.repoDir(repo), "snapshots", commit)
}

func (c *Client) refFile(r Ref) string {
	return filepath.Join(c.repoDir(r.Repo), "refs", filepath.FromSlash(r.Revision))
}

func (c *Client) lockFile(repo, hash string) string {
	return filepath.Join(c.Cache, ".locks", filepath.Base(c.repoDir(repo)), hash+".lock")
}

var hashPattern = regexp.MustCompile(`^[0-9a-zA-Z][0-9a-zA-Z._-]{0,127}$`)

// blob is where content of that hash is kept. The hash comes from the server
// and becomes a file name.
func (c *Client) blob(repo, hash string) (string, error) {
	if !hashPattern.MatchString(hash) || strings.HasSuffix(hash, ".incomplete") {
		return "", fmt.Errorf("the server's hash %q is not one", clip(hash))
	}
	return filepath.Join(c.repoDir(repo), "blobs", hash), nil
}

// pulled is the commit that the revision stood for when it was last pulled, "" if it never was.
func (c *Client) pulled(r Ref) string {
	commit := r.Revision
	if b, err := platform.ReadFile(c.refFile(r), platform.MaxText); err == nil {
		commit = strings.TrimSpace(string(b))
	}
	if !commitPattern.MatchString(commit) {
		return ""
	}
	return commit
}

// logChanged says which files have another hash than when they were last pulled: their author, or somebody else, has
// replaced them. The links of the cache have the hashes; where it has copies instead, nothing is known.
func (c *Client) logChanged(p *Plan) {
	commit := c.pulled(p.Ref)
	if commit == "" {
		return
	}
	for _, f := range p.Files {
		link, err := os.Readlink(filepath.Join(c.snapshot(p.Ref.Repo, commit), filepath.FromSlash(f.Name)))
		if was := filepath.Base(link); err == nil && hashPattern.MatchString(f.Hash) && was != f.Hash {
			c.log("note: %s: %s has changed at the hub since it was pulled: hash %.12s, was %.12s", p.Ref.Repo, f.Name,
				f.Hash, was)
		}
	}
}

// cached lists what the cache has of a repository at a revision.
func (c *Client) cached(r Ref) (commit string, files []File, err error) {
	commit = c.pulled(r)
	none := fmt.Errorf("%s: not in the cache at %s, and the hub is switched off (HF_HUB_OFFLINE)", r.Repo, c.Cache)
	if commit == "" {
		return "", nil, none
	}
	root := c.snapshot(r.Repo, commit)
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		st, err := os.Stat(path) // follows the link
		if err != nil {
			return nil // a link whose content is gone is not in the cache
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		files = append(files, File{Name: filepath.ToSlash(rel), Size: st.Size()})
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(files) == 0 {
		return "", nil, none
	}
	return commit, files, err
}

// link makes the blob appear in the snapshot: as a relative symbolic link like
// the Python tools make, or where that is not possible a hard link or a copy.
func (c *Client) link(blob, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	target, err := filepath.Rel(filepath.Dir(path), blob)
	if err != nil {
		return err
	}
	symlink := c.symlink
	if symlink == nil {
		symlink = os.Symlink
	}
	// A dangling link or a file of another size is in the way of the new one.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if symlink(target, path) == nil || os.Link(blob, path) == nil {
		return nil
	}
	return copyFile(blob, path)
}

func copyFile(from, to string) error {
	in, err := platform.OpenRegular(from)
	if err != nil {
		return err
	}
	defer in.Close()
	temp := to + ".incomplete"
	out, err := os.Create(temp)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Close()); err == nil {
		err = os.Rename(temp, to)
	}
	if err != nil {
		os.Remove(temp)
	}
	return err
}

// writeRef remembers which commit the revision stood for.
func (c *Client) writeRef(r Ref, commit string) error {
	if r.Revision == commit {
		return nil
	}
	path := c.refFile(r)
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(commit), 0o666)
}
