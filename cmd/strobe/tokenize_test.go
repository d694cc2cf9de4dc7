package main

import (
	"bytes"
	"strings"
	"testing"

	"strobe/internal/testkit"
)

func TestTokenizeCommands(t *testing.T) {
	model := testkit.Golden(t, "qwen35/model.gguf")
	for _, tc := range []struct {
		name, args, in string
		code           int
		out, errs      string
	}{
		{"plain", "tokenize -m MODEL", "ab", 0, "64 65\n", ""},
		{"empty", "tokenize -m MODEL", "", 0, "\n", ""},
		{"line feed counts", "tokenize -m MODEL", "a\n", 0, "64 198\n", ""},
		{"invalid UTF-8", "tokenize -m MODEL", "a\xff", 0, "64 187\n", ""},
		{"control token", "tokenize -m MODEL", "a<|im_end|>", 0, "64 504\n", ""},
		{"json", "tokenize -m MODEL --json", "ab", 0, "[64,65]\n", ""},
		{"empty json", "tokenize -m MODEL --json", "", 0, "[]\n", ""},
		{"show", "tokenize -m MODEL --show", "a\xff", 0, "64\t\"a\"\n187\t\"\\xff\"\n", ""},
		{"show json", "tokenize -m MODEL --show --json", "a<", 0, `[{"id":64,"piece":"a"},{"id":27,"piece":"<"}]` + "\n", ""},
		{"batch", "tokenize -m MODEL --batch", `["a", "", "b<|im_end|>"]`, 0, "[[64],[],[65,504]]\n", ""},
		{"batch plain", "tokenize -m MODEL --batch --no-special --no-bos", `["a"]`, 0, "[[64]]\n", ""},
		{"batch not json", "tokenize -m MODEL --batch", "a", 1, "", "standard input: not a JSON array of strings"},
		{"batch show", "tokenize -m MODEL --batch --show", "[]", 2, "", "--show"},
		{"missing file", "tokenize -m no-such-file.gguf", "a", 1, "", "no-such-file.gguf"},
		{"extra argument", "tokenize -m MODEL x", "a", 2, "", `unexpected argument "x"`},

		{"ids", "detokenize -m MODEL", "64, 65\n198", 0, "ab\n", ""},
		{"ids as json", "detokenize -m MODEL", "[64,65]\n", 0, "ab", ""},
		{"no ids", "detokenize -m MODEL", "", 0, "", ""},
		{"control rendered", "detokenize -m MODEL", "64 504", 0, "a<|im_end|>", ""},
		{"control left out", "detokenize -m MODEL --no-special", "64 504", 0, "a", ""},
		{"raw byte", "detokenize -m MODEL", "187", 0, "\xff", ""},
		{"batch of ids", "detokenize -m MODEL --batch", "[[64],[],[65,27]]", 0, `["a","","b<"]` + "\n", ""},
		{"bad id", "detokenize -m MODEL", "1 x 2", 1, "", `"x" is not a token id`},
		{"negative id", "detokenize -m MODEL", "-1", 1, "", "id -1 is outside the vocabulary of 512 tokens"},
		{"large id", "detokenize -m MODEL", "512", 1, "", "id 512 is outside"},
		{"huge id", "detokenize -m MODEL --batch", "[[1],[4294967296]]", 1, "", "list 1: id 4294967296 is outside"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			args := strings.Fields(tc.args)
			for i, a := range args {
				if a == "MODEL" {
					args[i] = model
				}
			}
			var out, errs bytes.Buffer
			code := run(t.Context(), args, strings.NewReader(tc.in), &out, &errs)
			if code != tc.code || out.String() != tc.out || !strings.Contains(errs.String(), tc.errs) ||
				(tc.errs == "") != (errs.Len() == 0) {
				t.Errorf("exit %d, out %q, errors %q; want %d, %q, %q", code, &out, &errs, tc.code, tc.out, tc.errs)
			}
		})
	}
	t.Run("no-special", func(t *testing.T) {
		var out, back, errs bytes.Buffer
		if code := run(t.Context(), []string{"tokenize", "-m", model, "--no-special"}, strings.NewReader("a<|im_end|>"), &out,
			&errs); code != 0 || strings.Contains(out.String(), "504") {
			t.Fatalf("exit %d: %s%s", code, &out, &errs)
		}
		if code := run(t.Context(), []string{"detokenize", "-m", model}, &out, &back, &errs); code != 0 ||
			back.String() != "a<|im_end|>" {
			t.Fatalf("exit %d: %q %s", code, &back, &errs)
		}
	})
}
