package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"strobe/internal/chat"
	"strobe/internal/dialog"
	"strobe/internal/engine"
	"strobe/internal/platform"
	pictures "strobe/internal/vision/picture"
)

// withImages is the content of a message: text, after the images that it is about.
func withImages(m *engine.Model, text string, paths []string) (any, error) {
	if len(paths) == 0 {
		return text, nil
	}
	if m.Vision == nil {
		return nil, fmt.Errorf("%s: %w", m.Path, engine.ErrNoVision)
	}
	var parts []chat.Part
	for _, path := range paths {
		p, err := imageOf(path)
		if err != nil {
			return nil, err
		}
		parts = append(parts, p)
	}
	return append(parts, chat.Part{Type: "text", Text: text}), nil
}

// imageOf reads an image file.
func imageOf(path string) (p chat.Part, err error) {
	data, err := platform.ReadFile(path, int64(pictures.Defaults.Bytes))
	if err != nil {
		return p, err
	}
	if _, _, err := pictures.Config(data, pictures.Limits{}); err != nil {
		return p, fmt.Errorf("%s: %w", path, err)
	}
	p = dialog.ImagePart(data)
	p.At = path
	return p, nil
}

// draggedImage is the path of an image file if a line is nothing else: as terminals write it, in quotes or with
// backslashes before spaces. "" means that it is something else.
func draggedImage(line string) string {
	path := strings.TrimSpace(line)
	if n := len(path); n > 2 && (path[0] == '\'' || path[0] == '"') && path[n-1] == path[0] {
		path = path[1 : n-1]
	} else if filepath.Separator == '/' {
		path = strings.ReplaceAll(path, `\ `, " ")
	}
	switch strings.ToLower(filepath.Ext(path)) {
	case ".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp":
	default:
		return ""
	}
	if st, err := os.Stat(path); err != nil || !filepath.IsAbs(path) || !st.Mode().IsRegular() {
		return ""
	}
	return path
}
