package parse

import (
	"encoding/json"
	"strconv"
	"strings"
)

// schema is what coercion needs of a tool's parameters.
type schema struct {
	props map[string]types
}

// types is the set of JSON types a parameter may have; zero means unknown.
type types uint8

const (
	tString types = 1 << iota
	tInteger
	tNumber
	tBoolean
	tObject
	tArray
	tNull
)

var typeNames = map[string]types{
	"string": tString, "integer": tInteger, "number": tNumber, "boolean": tBoolean,
	"object": tObject, "array": tArray, "null": tNull,
	// spellings that frameworks write into schemas
	"str": tString, "int": tInteger, "float": tNumber, "bool": tBoolean, "dict": tObject, "list": tArray,
}

// toolSchema reads the name and parameters of a tool: OpenAI's
// {"function":{"name","parameters"}}, the flat form of the Responses API and
// Anthropic's {"name","input_schema"}.
func toolSchema(raw json.RawMessage) (string, *schema) {
	type fn struct {
		Name        string
		Parameters  json.RawMessage
		InputSchema json.RawMessage `json:"input_schema"`
	}
	var t struct {
		fn
		Function *fn
	}
	if json.Unmarshal(raw, &t) != nil {
		return "", nil
	}
	f := t.fn
	if t.Function != nil {
		f = *t.Function
	}
	if f.Parameters == nil {
		f.Parameters = f.InputSchema
	}
	s := &schema{props: map[string]types{}}
	var root any
	if json.Unmarshal(f.Parameters, &root) == nil {
		if obj, ok := deref(root, root, 0).(map[string]any); ok {
			if props, ok := obj["properties"].(map[string]any); ok {
				for name, p := range props {
					s.props[name] = typesOf(p, root, 0)
				}
			}
		}
	}
	return f.Name, s
}

const maxRefs = 16

// deref follows local references.
func deref(v, root any, depth int) any {
	obj, ok := v.(map[string]any)
	if !ok {
		return v
	}
	ref, ok := obj["$ref"].(string)
	if !ok || depth > maxRefs {
		return v
	}
	path, ok := strings.CutPrefix(ref, "#/")
	if !ok {
		return v
	}
	at := root
	for part := range strings.SplitSeq(path, "/") {
		part = strings.ReplaceAll(strings.ReplaceAll(part, "~1", "/"), "~0", "~")
		m, ok := at.(map[string]any)
		if !ok {
			return v
		}
		at = m[part]
	}
	return deref(at, root, depth+1)
}

// typesOf collects the types a schema allows, as far as it says so.
func typesOf(v, root any, depth int) types {
	obj, ok := deref(v, root, 0).(map[string]any)
	if !ok || depth > maxRefs {
		return 0
	}
	var t types
	switch x := obj["type"].(type) {
	case string:
		t |= typeNames[strings.ToLower(x)]
	case []any:
		for _, e := range x {
			if s, ok := e.(string); ok {
				t |= typeNames[strings.ToLower(s)]
			}
		}
	}
	if obj["nullable"] == true {
		t |= tNull
	}
	if t != 0 {
		return t
	}
	for _, key := range []string{"anyOf", "oneOf", "allOf"} {
		if list, ok := obj[key].([]any); ok {
			for _, e := range list {
				t |= typesOf(e, root, depth+1)
			}
		}
	}
	values, _ := obj["enum"].([]any)
	if c, ok := obj["const"]; ok {
		values = append(values, c)
	}
	for _, e := range values {
		switch e.(type) {
		case string:
			t |= tString
		case float64:
			t |= tNumber
		case bool:
			t |= tBoolean
		case nil:
			t |= tNull
		}
	}
	if t == 0 {
		if _, ok := obj["properties"]; ok {
			t = tObject
		} else if _, ok := obj["items"]; ok {
			t = tArray
		}
	}
	return t
}

// plainText reports whether a value of these types is its text and nothing else,
// so that it can be passed on while it streams.
func (t types) plainText() bool { return t == 0 || t == tString }

// coerce turns the text of a value into JSON of one of the types; text that
// fits none of them is a string.
func (t types) coerce(text string) string {
	if t.plainText() {
		return quote(text)
	}
	word := strings.TrimSpace(text)
	if t&tNull != 0 || t&tString == 0 {
		switch word {
		case "null", "None":
			return "null"
		}
	}
	if t&tBoolean != 0 {
		switch strings.ToLower(word) {
		case "true", "false":
			return strings.ToLower(word)
		}
	}
	if t&(tInteger|tNumber) != 0 && validNumber(word) {
		if t&tNumber != 0 {
			return word
		}
		if !strings.ContainsAny(word, ".eE") {
			return word
		}
		if f, err := strconv.ParseFloat(word, 64); err == nil && f == float64(int64(f)) && f > -1e15 && f < 1e15 {
			return strconv.FormatInt(int64(f), 10)
		}
	}
	if t&tObject != 0 && strings.HasPrefix(word, "{") || t&tArray != 0 && strings.HasPrefix(word, "[") {
		if s, ok := repairJSON(word); ok {
			return s
		}
	}
	return quote(text)
}

// repairJSON returns s if it is one JSON value, with raw line breaks in
// strings escaped.
func repairJSON(s string) (string, bool) {
	var b strings.Builder
	j := &jsonScan{out: func(s string) { b.WriteString(s) }}
	for i := range len(s) {
		switch j.feed(s[i]) {
		case scanBad, scanDoneBefore:
			return "", false
		case scanDone:
			return b.String(), i == len(s)-1
		}
	}
	return "", false
}
