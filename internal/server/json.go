package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"strobe/internal/chat"
)

// goNames are the names of embedded structs, which errors of package json mention though requests have no such keys.
var goNames = []string{"commonSampling", "samplingFields", "thinkingFields", "formatFields",
	"refusedFields", "namedTool"}

// decodeJSON is json.Unmarshal with errors for people. path is where the value stands in the request.
func decodeJSON(data []byte, path string, v any) error {
	err := unmarshal(data, v)
	if err == nil {
		return nil
	}
	var (
		wrong  *json.UnmarshalTypeError
		syntax *json.SyntaxError
		api    *apiError
		field  *chat.FieldError
	)
	join := func(name string) string {
		if path != "" && name != "" {
			return path + "." + name
		}
		return path + name
	}
	switch {
	case errors.As(err, &api):
		return err
	case errors.As(err, &field):
		return invalid(join(field.Field), "%s", field.Msg)
	case errors.As(err, &wrong):
		what, _, _ := strings.Cut(wrong.Value, " ")
		name := wrong.Field
		name = strings.Join(slices.DeleteFunc(strings.Split(name, "."), func(s string) bool {
			return slices.Contains(goNames, s)
		}), ".")
		if name := join(name); name != "" {
			return invalid(name, "must be %s, not %s", typeName(wrong.Type), valueName(what))
		}
		return invalid("", "the request must be %s, not %s", typeName(wrong.Type), valueName(what))
	case errors.As(err, &syntax):
		return invalid(path, "malformed JSON at byte %d: %v", syntax.Offset, err)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return invalid(path, "malformed JSON: it ends too early")
	}
	return invalid(path, "%v", err)
}

// decodeFields is decodeJSON for a value that must be an object.
func decodeFields(data json.RawMessage, path string, v any) error {
	if kindOf(data) != "object" {
		return invalid(path, "must be an object")
	}
	return decodeJSON(data, path, v)
}

// unmarshal is json.Unmarshal for clients whose language has one kind of number: 8.0 is an integer, too.
func unmarshal(data []byte, v any) error {
	for range maxIntegers {
		err := json.Unmarshal(data, v)
		var wrong *json.UnmarshalTypeError
		if !errors.As(err, &wrong) {
			return err
		}
		text, isNumber := strings.CutPrefix(wrong.Value, "number ")
		end := int(wrong.Offset)
		at := end - len(text)
		x, err := strconv.ParseFloat(text, 64)
		whole := isNumber && err == nil && x == math.Trunc(x) && math.Abs(x) <= 1<<53 && strings.ContainsAny(text, ".eE")
		if !whole || at < 0 || end > len(data) || string(data[at:end]) != text {
			return wrong
		}
		data = slices.Concat(data[:at], strconv.AppendInt(nil, int64(x), 10), data[end:])
	}
	return json.Unmarshal(data, v)
}

// maxIntegers is how many such numbers a request may have; each is another attempt at reading it.
const maxIntegers = 8

func typeName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return "an integer"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "an integer of at least 0"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.String:
		return "a string"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Pointer:
		return typeName(t.Elem())
	}
	return "an object"
}

// valueName is the kind of a JSON value as errors of package json call it.
func valueName(v string) string {
	switch v {
	case "bool":
		return "true or false"
	case "array":
		return "a list"
	case "object":
		return "an object"
	case "number":
		return "this number"
	}
	return "a " + v
}

// kindOf is the kind of a JSON value by its first byte.
func kindOf(raw json.RawMessage) string {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || raw[0] == 'n' {
		return "null"
	}
	switch raw[0] {
	case '"':
		return "string"
	case '[':
		return "array"
	case '{':
		return "object"
	case 't', 'f':
		return "bool"
	}
	return "number"
}

// texts is a string or a list of strings.
type texts []string

func (t *texts) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil {
		if kindOf(data) != "null" {
			*t = texts{one}
		}
		return nil
	}
	var list []string
	if json.Unmarshal(data, &list) != nil {
		return fmt.Errorf("must be a string or a list of strings")
	}
	*t = list
	return nil
}

// index is the way errors name an element of a list.
func index(i int) string { return "[" + strconv.Itoa(i) + "]" }

// decodeBlocks reads a string, which textBlock turns into one block, or a list of blocks.
func decodeBlocks[T any](raw json.RawMessage, at string, textBlock func(*string) T) ([]T, error) {
	switch kindOf(raw) {
	case "null":
		return nil, nil
	case "string":
		var text string
		err := decodeJSON(raw, at, &text)
		return []T{textBlock(&text)}, err
	case "array":
		var list []json.RawMessage
		if err := decodeJSON(raw, at, &list); err != nil {
			return nil, err
		}
		out := make([]T, len(list))
		for i, x := range list {
			if err := decodeFields(x, at+index(i), &out[i]); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	return nil, invalid(at, "must be a string or a list of blocks")
}

// objectOr is the arguments of a call as JSON, whatever the model wrote.
func objectOr(args string) json.RawMessage {
	if raw := json.RawMessage(args); json.Valid(raw) && kindOf(raw) == "object" {
		return raw
	}
	return json.RawMessage("{}")
}
