package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"

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
	cache, err := os.UserCacheDir()
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
	return filepath.Join(cache, "strobe", "drafters", fmt.Sprintf("%s-%x.gguf", filepath.Base(dir), h.Sum(nil)[:6])), nil
}
