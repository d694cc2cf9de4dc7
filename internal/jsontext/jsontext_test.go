package jsontext_test

import (
	"encoding/json"
	"testing"

	"strobe/internal/jsontext"
)

// Every character comes back through a JSON parser, and only those that must be are escaped.
func TestEscape(t *testing.T) {
	for r := range rune(0x3000) {
		s := jsontext.Escape(r)
		var got string
		if err := json.Unmarshal([]byte(`"`+s+`"`), &got); err != nil || got != string(r) {
			t.Errorf("%q is spelled %s, which reads %q, %v", r, s, got, err)
		}
		if must := r < 0x20 || r == '"' || r == '\\'; must != (s != string(r)) {
			t.Errorf("%q is spelled %s", r, s)
		}
	}
}
