package strobe

import (
	"sync"

	"strobe/internal/sample/grammar"
)

// Format is what an answer has to fit, token by token. The zero value is free text. A Format is compiled once and may
// be used for any number of answers, models and goroutines.
type Format struct {
	compile func() (*grammar.Grammar, error)
}

// JSONSchema is JSON that fits a schema. A schema that cannot be used is a *FormatError of the first answer that uses
// it.
func JSONSchema(schema []byte) Format {
	text := string(schema) // the caller's slice may change
	return Format{sync.OnceValues(func() (*grammar.Grammar, error) { return grammar.Compile([]byte(text)) })}
}

// JSON is any JSON object.
func JSON() Format {
	return Format{func() (*grammar.Grammar, error) { return grammar.Object(), nil }}
}

// Grammar is text that fits a grammar in llama.cpp's notation (GBNF). One that cannot be used is a *FormatError of the
// first answer that uses it.
func Grammar(gbnf string) Format {
	return Format{sync.OnceValues(func() (*grammar.Grammar, error) { return grammar.CompileGBNF(gbnf) })}
}
