package main

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"strobe/internal/platform"
	"strobe/internal/server"
	"strobe/internal/upstream"
)

// namedKeys reads the values of a flag that gives other servers their keys: NAME=KEY or NAME=@FILE.
func namedKeys(flag string, values []string) (map[string]string, error) {
	keys := map[string]string{}
	for _, s := range values {
		name, key, ok := strings.Cut(s, "=")
		if !ok || name == "" || key == "" {
			return nil, usagef("%s: want NAME=KEY or NAME=@FILE", flag)
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
	return keys, nil
}

// fleet is the upstreams that the flags name, nil without any.
func (o *serveOptions) fleet(log *slog.Logger) (*upstream.Fleet, error) {
	keys, err := namedKeys("--upstream-key", o.upstreamKeys)
	if err != nil {
		return nil, err
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

// mcpServers are the MCP servers that the flags name. Their tools can do more than a model can, so a server that other
// machines reach offers them to those with a key only.
func (o *serveOptions) mcpServers(keyed bool) (list []server.MCPServer, err error) {
	keys, err := namedKeys("--mcp-key", o.mcpKeys)
	if err != nil {
		return nil, err
	}
	for _, s := range o.mcp {
		name, address, ok := strings.Cut(s, "=")
		if !ok {
			return nil, usagef("--mcp %s: want NAME=URL", s)
		}
		m := server.MCPServer{Name: name, URL: address, Key: keys[name]}
		if err := m.Check(); err != nil {
			return nil, usagef("--%v", err)
		}
		if slices.ContainsFunc(list, func(o server.MCPServer) bool { return o.Name == name }) {
			return nil, usagef("--mcp: there are two servers %s", name)
		}
		delete(keys, name)
		list = append(list, m)
	}
	for name := range keys {
		return nil, usagef("--mcp-key: there is no --mcp %s", name)
	}
	if len(list) > 0 && !keyed && !isLoopback(o.host) {
		return nil, usagef("--mcp on an address that other machines reach needs --api-key")
	}
	return list, nil
}
