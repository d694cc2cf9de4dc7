// Package grammar constrains sampling to JSON that fits a schema, or to text that fits a grammar.
//
//	v := grammar.NewVocab(pieces, eog)       // once per model
//	g, err := grammar.Compile(schema)        // once per schema; CompileGBNF for a grammar, CompileCalls for tools
//	m := g.NewMatcher(v)                     // per sequence
//	m.Mask(logits); id := ...; m.Accept(id)  // per token
//
// A schema becomes rules, the rules become one automaton over bytes whose
// rules call each other through a stack, and a [Matcher] walks the
// vocabulary's trie with it to find which tokens may come next. Work is shared
// on three levels: what a state of the automaton allows whatever surrounds it
// (stored with the vocabulary or the grammar), steps between configurations
// (stored with the matcher and its forks), and finished masks.
//
// Work is counted and has a limit for each token ([ErrWork]), tables and caches have one in bytes.
// [Matcher.Prepare] does the work of a mask ahead of it, on another goroutine if need be.
//
// Everything the grammar emits validates against the schema. The reverse does
// not hold in full: objects keep the order of the schema's properties (but
// those of calls do not) and have no others unless additionalProperties says so, white space is limited to
// what printers write, numbers have at most 16 digits before and after the
// point, common formats of strings are a little narrower than their standards.
// A keyword that would change the language and is not supported is a [*Error]
// that names it and where it stands; unknown formats are ignored.
//
// A [Grammar] and a [Vocab] may be shared by goroutines; a Matcher and its
// forks belong to one.
package grammar
