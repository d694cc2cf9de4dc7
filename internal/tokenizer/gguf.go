package tokenizer

import (
	"fmt"
	"math"

	"strobe/internal/gguf"
)

// FromGGUF reads the tokenizer of a model file. The file may be closed afterwards.
func FromGGUF(f *gguf.File) (*Tokenizer, error) {
	c, err := configFromGGUF(f)
	if err != nil {
		return nil, err
	}
	t, err := New(c)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Path(), err)
	}
	return t, nil
}

// configFromGGUF collects the tokenizer keys. Strings may alias the mapped file.
func configFromGGUF(f *gguf.File) (c Config, err error) {
	get := func(dst *string, key string) {
		if s, _, e := f.String(key); e != nil {
			err = e
		} else {
			*dst = s
		}
	}
	strs := func(dst *[]string, key string) {
		if s, _, e := f.Strings(key); e != nil {
			err = e
		} else {
			*dst = s
		}
	}
	flag := func(dst **bool, key string) {
		if b, ok, e := f.Bool(key); e != nil {
			err = e
		} else if ok {
			*dst = &b
		}
	}
	get(&c.Model, "tokenizer.ggml.model")
	get(&c.Pre, "tokenizer.ggml.pre")
	strs(&c.Tokens, "tokenizer.ggml.tokens")
	strs(&c.Merges, "tokenizer.ggml.merges")
	flag(&c.AddBOS, "tokenizer.ggml.add_bos_token")
	flag(&c.AddEOS, "tokenizer.ggml.add_eos_token")
	if c.Model == "llama" { // others may have them and do not use them
		flag(&c.AddSpace, "tokenizer.ggml.add_space_prefix")
		if err == nil {
			c.Scores, _, err = f.Floats("tokenizer.ggml.scores")
		}
	}
	if err != nil {
		return c, err
	}
	if (c.Model == "gpt2" || c.Model == "gemma4") && !f.Has("tokenizer.ggml.merges") {
		return c, fmt.Errorf("%s: tokenizer.ggml.merges: missing, so text could only be spelled in single bytes", f.Path())
	}
	types, ok, err := f.Ints("tokenizer.ggml.token_type")
	if err != nil {
		return c, err
	}
	if ok {
		c.Types = make([]TokenKind, len(types))
		for i, k := range types {
			if k >= int64(Normal) && k <= int64(Byte) {
				c.Types[i] = TokenKind(k)
			}
		}
	}
	c.Special = map[Role]ID{}
	for _, r := range Roles {
		id, ok, err := f.Uint("tokenizer.ggml." + string(r) + "_token_id")
		if err != nil {
			return c, err
		}
		if ok && id <= math.MaxInt32 {
			c.Special[r] = ID(id)
		}
	}
	suppress, _, err := f.Ints("tokenizer.ggml.suppress_tokens")
	if err != nil {
		return c, err
	}
	for _, id := range suppress {
		if id >= 0 && id <= math.MaxInt32 {
			c.Suppress = append(c.Suppress, ID(id))
		}
	}
	return c, nil
}
