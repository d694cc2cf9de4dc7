package jinja

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"

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

// FromGo converts Go data: nil, booleans, numbers, strings, slices,
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
		d := NewDict()
		for _, k := range slices.Sorted(maps.Keys(v)) {
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

func (w *jsonWriter) newline(depth int) {
	if !w.pretty {
		return
	}
	w.r.charge(1 + depth*len(w.indent))
	w.b.WriteByte('\n')
	for range depth {
		w.b.WriteString(w.indent)
	}
}

func (w *jsonWriter) value(v any, depth int) {
	w.r.spend(1)
	w.r.nested(depth)
	if s, ok := scalarJSON(v); ok {
		w.b.WriteString(s)
		return
	}
	switch v := v.(type) {
	case string:
		w.string(v)
		return
	case Markup:
		w.string(string(v))
		return
	case *Dict:
		w.dict(v, depth)
		return
	case *List:
		if v.kind == isList || v.kind == isTuple {
			w.group('[', len(v.Items), ']', depth, func(i int) { w.value(v.Items[i], depth+1) })
			return
		}
	}
	panic(errorf("object of type %s is not JSON serializable", typeName(v)))
}

// group writes n elements between brackets.
func (w *jsonWriter) group(open byte, n int, end byte, depth int, element func(i int)) {
	w.b.WriteByte(open)
	for i := range n {
		if i > 0 {
			w.b.WriteString(w.itemSep)
		}
		w.newline(depth + 1)
		element(i)
	}
	if n > 0 {
		w.newline(depth)
	}
	w.b.WriteByte(end)
	w.r.charge(n * (1 + len(w.itemSep) + len(w.keySep)))
}

func (w *jsonWriter) dict(d *Dict, depth int) {
	order := make([]int, d.Len())
	for i := range order {
		order[i] = i
	}
	if w.sortedKeys {
		slices.SortStableFunc(order, func(i, j int) int { return w.r.order("<", d.keys[i], d.keys[j], 0) })
	}
	w.group('{', len(order), '}', depth, func(i int) {
		key := d.keys[order[i]]
		s, ok := text(key)
		if !ok {
			s, ok = scalarJSON(key)
		}
		if !ok {
			panic(errorf("keys must be str, int, float, bool or None, not %s", typeName(key)))
		}
		w.string(s)
		w.b.WriteString(w.keySep)
		w.value(d.values[order[i]], depth+1)
	})
}

// scalarJSON is the JSON form of a value that is neither text nor a container.
func scalarJSON(v any) (string, bool) {
	switch v := v.(type) {
	case nil:
		return "null", true
	case bool:
		return strconv.FormatBool(v), true
	case int64, *big.Int:
		return scalarRepr(v), true
	case float64:
		switch {
		case math.IsNaN(v):
			return "NaN", true
		case math.IsInf(v, 0):
			return strings.TrimSuffix(pyFloat(v), "inf") + "Infinity", true
		}
		return pyFloat(v), true
	}
	return "", false
}

func (w *jsonWriter) string(s string) {
	w.r.charge(len(s) + 2)
	w.b.WriteByte('"')
	for _, r := range s {
		switch {
		case w.ascii && r > 0xffff:
			hi, lo := utf16.EncodeRune(r)
			fmt.Fprintf(&w.b, `\u%04x\u%04x`, hi, lo)
		case w.ascii && r > 0x7e:
			fmt.Fprintf(&w.b, `\u%04x`, r)
		default:
			w.b.WriteString(jsontext.Escape(r))
		}
	}
	w.b.WriteByte('"')
}
