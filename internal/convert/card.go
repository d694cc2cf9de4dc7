package convert

import (
	"os"
	"strconv"
	"strings"
)

// readCard reads the YAML front matter of a model card: the part of YAML that
// cards use at the top level, which is scalars and lists of scalars. Nested
// structures (evaluation results) are skipped; nothing here needs them.
func readCard(path string) (map[string]any, error) {
	data, err := readFile(path)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	lines := strings.Split(strings.ReplaceAll(string(data), "\r\n", "\n"), "\n")
	if lines[0] != "---" {
		return nil, nil
	}
	lines = lines[1:]
	for i, line := range lines {
		if line == "---" {
			return parseCard(lines[:i]), nil
		}
	}
	return parseCard(lines), nil
}

func parseCard(lines []string) map[string]any {
	card := map[string]any{}
	for i := 0; i < len(lines); {
		line := strings.ReplaceAll(lines[i], "\t", "  ")
		i++
		key, rest, ok := strings.Cut(line, ":")
		if !ok || line == "" || line[0] == ' ' || line[0] == '#' || line[0] == '-' {
			continue
		}
		// The key's block: everything indented, and list items at the margin.
		first := i
		for i < len(lines) && (lines[i] == "" || strings.HasPrefix(lines[i], " ") || strings.HasPrefix(lines[i], "\t") ||
			strings.HasPrefix(lines[i], "- ") || lines[i] == "-" || strings.HasPrefix(lines[i], "#")) {
			i++
		}
		key = strings.Trim(strings.TrimSpace(key), `"'`)
		if v := cardValue(strings.TrimSpace(rest), lines[first:i]); v != nil {
			card[key] = v
		}
	}
	return card
}

func cardValue(text string, block []string) any {
	text = dropComment(text)
	switch {
	case text == "|" || text == "|-" || text == ">" || text == ">-":
		sep := "\n"
		if text[0] == '>' {
			sep = " "
		}
		var out []string
		for _, line := range block {
			out = append(out, strings.TrimSpace(line))
		}
		s := strings.TrimSpace(strings.Join(out, sep))
		if !strings.HasSuffix(text, "-") {
			s += "\n"
		}
		return s
	case strings.HasPrefix(text, "["):
		// A list on one line, or running over several.
		for _, line := range block {
			text += " " + dropComment(strings.TrimSpace(line))
		}
		inner, _, ok := strings.Cut(text[1:], "]")
		if !ok {
			return nil
		}
		var out []any
		for _, item := range strings.Split(inner, ",") {
			if v := scalar(strings.TrimSpace(item)); v != nil {
				out = append(out, v)
			}
		}
		return out
	case text != "":
		// A plain scalar may continue on indented lines.
		for _, line := range block {
			line = strings.TrimSpace(dropComment(line))
			if line == "" || strings.HasPrefix(line, "- ") {
				break
			}
			text += " " + line
		}
		return scalar(text)
	}
	var out []any
	indent := -1
	for _, line := range block {
		line = strings.ReplaceAll(line, "\t", "  ")
		item := strings.TrimLeft(line, " ")
		depth := len(line) - len(item)
		if item == "" || item[0] == '#' {
			continue
		}
		if !strings.HasPrefix(item, "- ") {
			if indent < 0 {
				return nil // a nested object
			}
			continue
		}
		if indent < 0 {
			indent = depth
		}
		if depth != indent {
			continue
		}
		text := dropComment(strings.TrimSpace(item[2:]))
		if strings.Contains(text, ": ") || strings.HasSuffix(text, ":") {
			continue // a list of objects
		}
		if v := scalar(text); v != nil {
			out = append(out, v)
		}
	}
	if out == nil {
		return nil
	}
	return out
}

// dropComment cuts " # ..." outside of quotes.
func dropComment(s string) string {
	if strings.HasPrefix(s, `"`) || strings.HasPrefix(s, "'") {
		return s
	}
	if i := strings.Index(s, " #"); i >= 0 {
		s = s[:i]
	}
	if strings.HasPrefix(s, "#") {
		return ""
	}
	return strings.TrimSpace(s)
}

// scalar is a string; numbers, booleans and null are not, and the keys read
// from cards are all strings.
func scalar(s string) any {
	n := len(s)
	if n >= 2 && s[0] == '"' && s[n-1] == '"' {
		if u, err := strconv.Unquote(s); err == nil {
			return u
		}
		return s[1 : n-1]
	}
	if n >= 2 && s[0] == '\'' && s[n-1] == '\'' {
		return strings.ReplaceAll(s[1:n-1], "''", "'")
	}
	switch strings.ToLower(s) {
	case "", "~", "null", "true", "false", "yes", "on", "off":
		return nil
	}
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		return nil
	}
	return s
}
