package jinja

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"sort"
	"strconv"
	"strings"

	"strobe/internal/jsontext"
)

const maxJSONDepth = 500

// FromJSON decodes one JSON value, keeping the order of keys, integers as
// integers and floats as floats.
func FromJSON(data []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	v, err := decodeJSON(d, 0)
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("text after the JSON value")
	}
	return v, nil
}

func decodeJSON(d *json.Decoder, depth int) (any, error) {
	if depth > maxJSONDepth {
		return nil, fmt.Errorf("JSON nested more than %d levels deep", maxJSONDepth)
	}
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case json.Number:
		return number(t.String()), nil
	case json.Delim:
		if t == '[' {
			l := &List{}
			for d.More() {
				v, err := decodeJSON(d, depth+1)
				if err != nil {
					return nil, err
				}
				l.Items = append(l.Items, v)
			}
			_, err := d.Token()
			return l, err
		}
		m := NewDict()
		for d.More() {
			k, err := d.Token()
			if err != nil {
				return nil, err
			}
			v, err := decodeJSON(d, depth+1)
			if err != nil {
				return nil, err
			}
			m.Set(k.(string), v) // the decoder accepts no other kind of key
		}
		_, err := d.Token()
		return m, err
	}
	return t, nil // string, bool or nil
}

// number reads a JSON number as Python does: a fraction or exponent makes a
// float, everything else is an integer of any size.
func number(s string) any {
	if strings.ContainsAny(s, ".eE") {
		f, _ := strconv.ParseFloat(s, 64) // out of range is infinity, as in Python
		return f
	}
	if i, err := strconv.ParseInt(s, 10, 64); err == nil {
		return i
	}
	b, ok := new(big.Int).SetString(s, 10)
	if !ok {
		return s
	}
	return b
}

// FromGo converts plain Go data: nil, booleans, numbers, strings, slices,
// string-keyed maps (in key order, since Go's have none), json.Number,
// json.RawMessage and values of this package.
func FromGo(v any) (any, error) { return fromGo(v, 0) }

func fromGo(v any, depth int) (any, error) {
	if depth > maxJSONDepth {
		return nil, fmt.Errorf("value nested more than %d levels deep", maxJSONDepth)
	}
	switch v := v.(type) {
	case nil, bool, int64, float64, string, Markup, *List, *Dict, *big.Int:
		return v, nil
	case int:
		return int64(v), nil
	case int32:
		return int64(v), nil
	case float32:
		return float64(v), nil
	case json.Number:
		return number(v.String()), nil
	case json.RawMessage:
		return FromJSON(v)
	case []string:
		l := &List{}
		for _, s := range v {
			l.Items = append(l.Items, s)
		}
		return l, nil
	case []any:
		l := &List{}
		for _, e := range v {
			x, err := fromGo(e, depth+1)
			if err != nil {
				return nil, err
			}
			l.Items = append(l.Items, x)
		}
		return l, nil
	case map[string]any:
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		sort.Strings(keys)
		d := NewDict()
		for _, k := range keys {
			x, err := fromGo(v[k], depth+1)
			if err != nil {
				return nil, err
			}
			d.Set(k, x)
		}
		return d, nil
	}
	// Anything else (a struct, a pointer) goes through its JSON form.
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return FromJSON(data)
}

// jsonWriter is json.dumps as the transformers library calls it.
type jsonWriter struct {
	r          *run
	b          strings.Builder
	ascii      bool
	indent     string
	pretty     bool
	itemSep    string
	keySep     string
	sortedKeys bool
}

func (w *jsonWriter) newline(depth int) error {
	if !w.pretty {
		return nil
	}
	if err := w.r.charge(1 + depth*len(w.indent)); err != nil {
		return err
	}
	w.b.WriteByte('\n')
	for range depth {
		w.b.WriteString(w.indent)
	}
	return nil
}

func (w *jsonWriter) value(v any, depth int) error {
	if err := w.r.step(); err != nil {
		return err
	}
	if err := w.r.nested(depth); err != nil {
		return err
	}
	switch v := v.(type) {
	case nil:
		w.b.WriteString("null")
	case bool:
		w.b.WriteString(strconv.FormatBool(v))
	case int64, *big.Int:
		w.b.WriteString(scalarRepr(v))
	case float64:
		w.b.WriteString(jsonFloat(v))
	case string:
		return w.string(v)
	case Markup:
		return w.string(string(v))
	case *List:
		if len(v.Items) == 0 {
			w.b.WriteString("[]")
			return nil
		}
		w.b.WriteByte('[')
		for i, e := range v.Items {
			if i > 0 {
				w.b.WriteString(w.itemSep)
			}
			if err := w.newline(depth + 1); err != nil {
				return err
			}
			if err := w.value(e, depth+1); err != nil {
				return err
			}
		}
		if err := w.newline(depth); err != nil {
			return err
		}
		w.b.WriteByte(']')
		return w.r.charge(len(v.Items) * (1 + len(w.itemSep)))
	case *Dict:
		return w.dict(v, depth)
	default:
		return fmt.Errorf("object of type %s is not JSON serializable", typeName(v))
	}
	return nil
}

func (w *jsonWriter) dict(d *Dict, depth int) error {
	if d.Len() == 0 {
		w.b.WriteString("{}")
		return nil
	}
	order := make([]int, d.Len())
	for i := range order {
		order[i] = i
	}
	if w.sortedKeys {
		var err error
		sort.SliceStable(order, func(i, j int) bool {
			c, e := w.r.order("<", d.keys[order[i]], d.keys[order[j]], 0)
			if e != nil {
				err = e
			}
			return c < 0
		})
		if err != nil {
			return err
		}
	}
	w.b.WriteByte('{')
	for n, i := range order {
		if n > 0 {
			w.b.WriteString(w.itemSep)
		}
		if err := w.newline(depth + 1); err != nil {
			return err
		}
		var err error
		switch k := d.keys[i].(type) {
		case string:
			err = w.string(k)
		case Markup:
			err = w.string(string(k))
		case nil:
			err = w.string("null")
		case bool:
			err = w.string(strconv.FormatBool(k))
		case float64:
			err = w.string(jsonFloat(k))
		case int64, *big.Int:
			err = w.string(scalarRepr(k))
		default:
			err = fmt.Errorf("keys must be str, int, float, bool or None, not %s", typeName(k))
		}
		if err != nil {
			return err
		}
		w.b.WriteString(w.keySep)
		if err := w.value(d.values[i], depth+1); err != nil {
			return err
		}
	}
	if err := w.newline(depth); err != nil {
		return err
	}
	w.b.WriteByte('}')
	return w.r.charge(d.Len() * (1 + len(w.itemSep) + len(w.keySep)))
}

func jsonFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	return pyFloat(f)
}

func (w *jsonWriter) string(s string) error {
	if err := w.r.charge(len(s) + 2); err != nil {
		return err
	}
	b := &w.b
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case w.ascii && r > 0xffff:
			r -= 0x10000
			fmt.Fprintf(b, `\u%04x\u%04x`, 0xd800+(r>>10), 0xdc00+(r&0x3ff))
		case w.ascii && r > 0x7e:
			fmt.Fprintf(b, `\u%04x`, r)
		default:
			b.WriteString(jsontext.Escape(r))
		}
	}
	b.WriteByte('"')
	return nil
}
