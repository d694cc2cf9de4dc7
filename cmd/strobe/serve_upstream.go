package main

import (
	"fmt"
	"log/slog"
	"strings"

	"strobe/internal/platform"
	"strobe/internal/upstream"
)

// fleet is the upstreams that the flags name, nil without any.
func (o *serveOptions) fleet(log *slog.Logger) (*upstream.Fleet, error) {
	keys := map[string]string{}
	for _, s := range o.upstreamKeys {
		name, key, ok := strings.Cut(s, "=")
		if !ok || name == "" || key == "" {
			return nil, usagef("--upstream-key: want NAME=KEY or NAME=@FILE")
		}
		if file, isFile := strings.CutPrefix(key, "@"); isFile {
			b, err := platform.ReadFile(file, platform.MaxText)
			if err != nil {
				return nil, err
			}
			if key = strings.TrimSpace(string(b)); key == "" {
				return nil, fmt.Errorf("%s: there is no key in it", file)
			}
		}
		keys[name] = key
	}
	var models []upstream.Model
	for _, s := range o.upstreams {
		m, err := upstream.ParseModel(s)
		if err != nil {
			return nil, usagef("--%v", err)
		}
		m.Key = keys[m.Name]
		models = append(models, m)
	}
	for name := range keys {
		used := false
		for _, m := range models {
			used = used || m.Name == name
		}
		if !used {
			return nil, usagef("--upstream-key: there is no --upstream %s", name)
		}
	}
	if len(models) == 0 {
		return nil, nil
	}
	f, err := upstream.New(models, upstream.Options{Log: log})
	if err != nil {
		return nil, usagef("--%v", err)
	}
	return f, nil
}
