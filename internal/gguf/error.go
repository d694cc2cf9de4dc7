package gguf

import (
	"errors"
	"fmt"
)

// Error says what is wrong with which part of a file. It prints as
// "path: field: what".
type Error struct {
	Path  string // the file, or the part of a split file, it is about
	Field string // a key, `tensor "name"`, or a header field; empty for the whole file
	Err   error
}

func (e *Error) Error() string {
	if e.Field == "" {
		return fmt.Sprintf("%s: %v", e.Path, e.Err)
	}
	return fmt.Sprintf("%s: %s: %v", e.Path, e.Field, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// ErrType is the cause when a key holds a value of another type than was asked
// for.
var ErrType = errors.New("wrong type")

// ErrTruncated is the cause when a file ends before its header or its tensor
// data do.
var ErrTruncated = errors.New("file is truncated")

func fieldErr(path, field, format string, args ...any) error {
	return &Error{Path: path, Field: field, Err: fmt.Errorf(format, args...)}
}

// tensorField and keyField quote names from the file, which may hold anything,
// and keep them short.
func tensorField(name string) string { return fmt.Sprintf("tensor %s", clip(name)) }

func keyField(key string) string {
	for _, c := range []byte(key) {
		if c <= ' ' || c >= 0x7f || c == '"' {
			return clip(key)
		}
	}
	if key == "" || len(key) > maxShown {
		return clip(key)
	}
	return key
}

const maxShown = 100

func clip(s string) string {
	if len(s) > maxShown {
		return fmt.Sprintf("%q...", s[:maxShown])
	}
	return fmt.Sprintf("%q", s)
}
