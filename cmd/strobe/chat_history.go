package main

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"

	"strobe/internal/platform"
)

// historyLimit is how many messages are remembered from one chat to the next.
const historyLimit = 500

// historyFile is where messages are kept, "" if the system has no place for such files.
func historyFile() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "strobe", "chat_history.jsonl")
}

// readHistory returns the messages of earlier chats, oldest first. A file that cannot be read counts as
// empty: history is a comfort, not a reason to fail.
func readHistory(path string) []string {
	f, err := platform.OpenRegular(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	var lines []string
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 16<<20)
	for sc.Scan() {
		var s string
		if json.Unmarshal(sc.Bytes(), &s) == nil && s != "" {
			lines = append(lines, s)
		}
	}
	return lines[max(0, len(lines)-historyLimit):]
}

// writeHistory keeps the newest messages for the next chat. Only the user can read the file.
func writeHistory(path string, lines []string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), "chat_history*") // created with mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	w := bufio.NewWriter(tmp)
	for _, s := range lines[max(0, len(lines)-historyLimit):] {
		b, err := json.Marshal(s)
		if err != nil {
			continue
		}
		w.Write(b)
		w.WriteByte('\n')
	}
	if err := w.Flush(); err != nil {
		tmp.Close()
		return err
	}
	if err := tmp.Close(); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}
