package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"strobe/internal/convert"
	"strobe/internal/gguf"
)

// isCheckpoint reports whether path is a folder with a model as training leaves it.
func isCheckpoint(path string) bool { return isFile(filepath.Join(path, "config.json")) }

// converted is the GGUF file of a drafter that is a checkpoint, for the model in the file target. It is made once, at
// 8 bits, and kept in the cache: drafters are published like this, and guess hardly worse.
func converted(cmd *cobra.Command, dir, target string) (string, error) {
	if target == "" {
		return "", usagef("-d %s: a checkpoint; name the model it drafts for with -m", dir)
	}
	f, err := gguf.Open(target)
	if err != nil {
		return "", err
	}
	defer f.Close()
	out, err := convertedName(dir, f)
	if err != nil || isFile(out) {
		return out, err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o777); err != nil {
		return "", err
	}
	opt := convert.Options{Type: "q8_0", TargetFile: f}
	opt.Warn = func(msg string) { infof(cmd, "note: %s", msg) }
	return out, writeModel(cmd, out, func(plan func(convert.Plan), progress func(int64)) error {
		opt.Plan, opt.Progress = plan, progress
		return convert.HF(cmd.Context(), dir, out, opt)
	})
}

// convertedBefore is the file that was made from a checkpoint, "" if there is none.
func convertedBefore(dir, target string) string {
	f, err := gguf.Open(target)
	if err != nil {
		return ""
	}
	defer f.Close()
	if out, err := convertedName(dir, f); err == nil && isFile(out) {
		return out
	}
	return ""
}

// convertedName is where the file that is made from a checkpoint is kept: another one when the checkpoint changes, or
// when it is for a model with other layers or another vocabulary.
func convertedName(dir string, target *gguf.File) (string, error) {
	cache, err := convertedDir()
	if err != nil {
		return "", err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return "", err
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintln(h, dir)
	for _, e := range files {
		st, err := os.Stat(filepath.Join(dir, e.Name())) // of a hub's cache they are links
		if err != nil {
			return "", err
		}
		fmt.Fprintln(h, e.Name(), st.Size(), st.ModTime().UnixNano())
	}
	arch := target.Arch()
	fmt.Fprintln(h, arch)
	for _, key := range []string{"embedding_length", "block_count", "nextn_predict_layers"} {
		n, _, err := target.Uint(arch + "." + key)
		if err != nil {
			return "", err
		}
		fmt.Fprintln(h, key, n)
	}
	tokens, _, err := target.Strings("tokenizer.ggml.tokens")
	if err != nil {
		return "", err
	}
	fmt.Fprintf(h, "%q", tokens)
	name := filepath.Base(dir)
	if repo, ok := strings.CutPrefix(filepath.Base(filepath.Dir(filepath.Dir(dir))), "models--"); ok {
		name = repo // of the hub's cache, whose folders are called by their commits
	}
	return filepath.Join(cache, fmt.Sprintf("%s-%x.gguf", name, h.Sum(nil)[:6])), nil
}

// convertedDir is the folder of the files that were made from checkpoints.
func convertedDir() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no folder for drafters that are converted: %w", err)
	}
	return filepath.Join(cache, "strobe", "drafters"), nil
}

// cacheFolder says why nothing can be kept in the user's folder for caches; nil if it can.
func cacheFolder() error {
	dir, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	dir = filepath.Join(dir, "strobe")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "writable*")
	if err != nil {
		return err
	}
	f.Close()
	return os.Remove(f.Name())
}

// convertedPattern matches the names that convertedName makes.
var convertedPattern = regexp.MustCompile(`^(.+)-[0-9a-f]{12}\.gguf$`)

// convertedFiles lists the files that were made from checkpoints; repo, if not "", leaves those from a repository.
func convertedFiles(repo string) (out []stored, err error) {
	dir, err := convertedDir()
	if err != nil {
		return nil, nil // no folder, no files
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		name := convertedPattern.FindStringSubmatch(e.Name())
		st, err := e.Info()
		if err != nil || name == nil { // being written, or not ours
			continue
		}
		if repo != "" && !strings.EqualFold(name[1], strings.ReplaceAll(repo, "/", "--")) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		out = append(out, stored{name: path, path: path, kind: "converted drafter", size: st.Size(), since: st.ModTime(),
			remove: func() error { return os.Remove(path) }})
	}
	return out, nil
}
