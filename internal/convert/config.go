package convert

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"

	"strobe/internal/platform"
)

// An Error says what is wrong with which field of which file. It prints as
// "path: field: what".
type Error struct {
	Path  string
	Field string
	Err   error
}

func (e *Error) Error() string {
	if e.Field == "" {
		return fmt.Sprintf("%s: %v", e.Path, e.Err)
	}
	return fmt.Sprintf("%s: %s: %v", e.Path, e.Field, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

func fieldErr(path, field, format string, args ...any) error {
	return &Error{path, field, fmt.Errorf(format, args...)}
}

// config is a JSON object of a checkpoint. Its getters treat null like a
// missing key, as configurations use both for "not set". The first wrong type is
// remembered in err, so that a run of getters needs one check at the end.
type config struct {
	path string
	at   string // path inside the file, for messages: "text_config."
	m    map[string]any
	err  *error
}

// maxFile is the size limit of a checkpoint's text files. The largest are tokenizer.json, of some 30 MB.
const maxFile = 256 << 20

func readFile(path string) ([]byte, error) { return platform.ReadFile(path, maxFile) }

// readJSON reads a file that must hold one JSON object. A missing file gives
// ok=false.
func readJSON(path string) (c config, ok bool, err error) {
	data, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return config{}, false, nil
	}
	if err != nil {
		return config{}, false, err
	}
	c, err = parseObject(path, data)
	return c, err == nil, err
}

func parseObject(path string, data []byte) (config, error) {
	var m map[string]any
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode(&m); err != nil {
		return config{}, fieldErr(path, "", "not valid JSON: %v", shortJSON(err))
	}
	if m == nil {
		return config{}, fieldErr(path, "", "is not a JSON object")
	}
	return config{path: path, m: m, err: new(error)}, nil
}

// readConfig reads the config.json of a checkpoint and moves the text part of a
// multimodal model to the top, where it wins over what is there.
func readConfig(dir string) (config, error) {
	path := filepath.Join(dir, "config.json")
	c, ok, err := readJSON(path)
	if err != nil {
		return config{}, err
	}
	if !ok {
		return config{}, fmt.Errorf("%s: no config.json in this folder; expected a Hugging Face checkpoint", dir)
	}
	return c.mergeText(), nil
}

// parseConfig is readConfig for a config that is not in a file.
func parseConfig(name string, data []byte) (config, error) {
	c, err := parseObject(name, data)
	if err != nil {
		return config{}, err
	}
	return c.mergeText(), nil
}

// mergeText moves the text part of a configuration to the top, and so the layers of a speculator's.
func (c config) mergeText() config {
	text, ok := c.m["text_config"].(map[string]any)
	if !ok {
		text, ok = c.m["transformer_layer_config"].(map[string]any)
	}
	if ok {
		merged := make(map[string]any, len(c.m)+len(text))
		for k, v := range c.m {
			merged[k] = v
		}
		for k, v := range text {
			if k == "architectures" {
				continue // the class of the whole checkpoint is the outer one
			}
			merged[k] = v
		}
		c.m = merged
	}
	return c
}

func (c config) fail(key, format string, args ...any) {
	if c.err != nil && *c.err == nil {
		*c.err = fieldErr(c.path, c.at+key, format, args...)
	}
}

// first returns the first of the keys that is set.
func (c config) first(keys ...string) (string, any) {
	for _, k := range keys {
		if v := c.m[k]; v != nil {
			return k, v
		}
	}
	return keys[0], nil
}

func (c config) has(key string) bool { return c.m[key] != nil }

// int returns the first key that is set, which must be a whole number.
func (c config) int(keys ...string) (int, bool) {
	k, v := c.first(keys...)
	if v == nil {
		return 0, false
	}
	n, ok := asInt(v)
	if !ok {
		c.fail(k, "is %s, expected a whole number", show(v))
		return 0, false
	}
	return n, true
}

// need is int for a key the model cannot do without.
func (c config) need(keys ...string) int {
	n, ok := c.int(keys...)
	switch {
	case !ok:
		c.fail(keys[0], "is missing")
	case n <= 0:
		c.fail(keys[0], "is %d, expected a positive number", n)
	case n > math.MaxInt32:
		c.fail(keys[0], "is %d, too large", n)
	default:
		return n
	}
	return 1 // never used: the error is checked before anything is written
}

func (c config) float(keys ...string) (float64, bool) {
	k, v := c.first(keys...)
	if v == nil {
		return 0, false
	}
	if n, ok := v.(json.Number); ok {
		if f, err := n.Float64(); err == nil {
			return f, true
		}
	}
	c.fail(k, "is %s, expected a number", show(v))
	return 0, false
}

func (c config) bool(key string) (value, ok bool) {
	v := c.m[key]
	if v == nil {
		return false, false
	}
	b, ok := v.(bool)
	if !ok {
		c.fail(key, "is %s, expected true or false", show(v))
	}
	return b, ok
}

func (c config) str(key string) (string, bool) {
	v := c.m[key]
	if v == nil {
		return "", false
	}
	s, ok := v.(string)
	if !ok {
		c.fail(key, "is %s, expected a string", show(v))
	}
	return s, ok
}

// strings is a list of strings.
func (c config) strings(key string) ([]string, bool) {
	list, ok := c.list(key)
	if !ok {
		return nil, false
	}
	out := make([]string, len(list))
	for i, v := range list {
		if out[i], ok = v.(string); !ok {
			c.fail(key, "entry %d is %s, expected a string", i, show(v))
			return nil, false
		}
	}
	return out, true
}

// ints is a list of whole numbers.
func (c config) ints(key string) ([]int, bool) {
	list, ok := c.list(key)
	if !ok {
		return nil, false
	}
	out := make([]int, len(list))
	for i, v := range list {
		if out[i], ok = asInt(v); !ok {
			c.fail(key, "entry %d is %s, expected a whole number", i, show(v))
			return nil, false
		}
	}
	return out, true
}

func (c config) list(key string) ([]any, bool) {
	v := c.m[key]
	if v == nil {
		return nil, false
	}
	list, ok := v.([]any)
	if !ok {
		c.fail(key, "is %s, expected a list", show(v))
	}
	return list, ok
}

// object is a nested object; empty when the key is not set.
func (c config) object(key string) config {
	sub := config{path: c.path, at: c.at + key + ".", err: c.err}
	if v := c.m[key]; v != nil {
		m, ok := v.(map[string]any)
		if !ok {
			c.fail(key, "is %s, expected an object", show(v))
		}
		sub.m = m
	}
	return sub
}

func (c config) failed() error {
	if c.err == nil {
		return nil
	}
	return *c.err
}

func asInt(v any) (int, bool) {
	n, ok := v.(json.Number)
	if !ok {
		return 0, false
	}
	if i, err := n.Int64(); err == nil {
		return int(i), true
	}
	// 4096.0 is a whole number too.
	f, err := n.Float64()
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return 0, false
	}
	return int(f), true
}

// show prints a value in a message, shortened.
func show(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	if len(b) > 60 {
		b = append(b[:57], "..."...)
	}
	return string(b)
}
