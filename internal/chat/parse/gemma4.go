package parse

import (
	"encoding/json"
	"strings"
)

// gemma4 reads call:NAME{key:value,...}<tool_call|>. Strings stand between
// <|"|> marks; numbers, booleans, lists and objects are written plainly and
// keys carry no marks.
type gemma4 struct {
	p      *Parser
	state  gemmaState
	want   string // rest of the literal being matched
	name   strings.Builder
	schema *schema
	stack  []byte // '{' or '['
	fresh  bool   // nothing in the innermost container yet
	key    string // at the top level, the parameter
	word   strings.Builder
	held   []byte    // may be a string mark
	isKey  bool      // the string being read is a key
	json   *jsonScan // reads a string in JSON quotes, nil otherwise
}

type gemmaState uint8

const (
	gemmaCall gemmaState = iota // the literal "call:"
	gemmaName
	gemmaKey
	gemmaColon
	gemmaValue
	gemmaMark // inside a string mark that starts a string
	gemmaString
	gemmaWord
	gemmaAfter
	gemmaTail // the literal "<tool_call|>"
)

const gemmaQuote = `<|"|>`

func newGemma4(p *Parser, _ bool) call { return &gemma4{p: p, want: "call:"} }

func (g *gemma4) feed(c byte) status {
	switch g.state {
	case gemmaCall, gemmaTail:
		if isJSONSpace(c) && (g.want == "call:" || g.want == "<tool_call|>") {
			return more
		}
		if g.want[0] != c {
			return bad
		}
		if g.want = g.want[1:]; g.want != "" {
			return more
		}
		if g.state == gemmaTail {
			return done
		}
		g.state = gemmaName
	case gemmaName:
		if c != '{' {
			if c == '<' || c == '\n' || g.name.Len() >= maxName {
				return bad
			}
			g.name.WriteByte(c)
			return more
		}
		name := strings.TrimSpace(g.name.String())
		if !g.p.begin(name) {
			return bad
		}
		g.schema = g.p.schemaOf(name)
		g.openContainer('{')
	case gemmaKey:
		return g.inKey(c)
	case gemmaColon:
		if isJSONSpace(c) {
			return more
		}
		if c != ':' {
			return bad
		}
		g.state = gemmaValue
	case gemmaValue:
		return g.startValue(c)
	case gemmaMark:
		g.held = append(g.held, c)
		switch {
		case string(g.held) == gemmaQuote:
			g.startString(false)
		case !strings.HasPrefix(gemmaQuote, string(g.held)):
			return bad
		}
	case gemmaString:
		return g.inString(c)
	case gemmaWord:
		if c == ',' || c == '}' || c == ']' {
			g.endWord()
			g.state = gemmaAfter
			return g.feed(c)
		}
		if c == '<' {
			return bad
		}
		g.word.WriteByte(c)
	case gemmaAfter:
		top := g.stack[len(g.stack)-1]
		switch {
		case isJSONSpace(c):
		case c == ',':
			if top == '{' {
				g.startKey()
			} else {
				g.state = gemmaValue
			}
		case c == '}' && top == '{', c == ']' && top == '[':
			return g.closeContainer(c)
		default:
			return bad
		}
	}
	return more
}

func (g *gemma4) openContainer(c byte) status {
	if len(g.stack) >= maxDepth {
		return bad
	}
	g.stack = append(g.stack, c)
	g.fresh = true
	g.p.arguments(string(c))
	if c == '{' {
		g.startKey()
	} else {
		g.state = gemmaValue
	}
	return more
}

func (g *gemma4) closeContainer(c byte) status {
	g.p.arguments(string(c))
	g.stack = g.stack[:len(g.stack)-1]
	g.fresh = false
	g.state = gemmaAfter
	if len(g.stack) == 0 {
		g.state, g.want = gemmaTail, "<tool_call|>"
		g.p.settle()
	}
	return more
}

func (g *gemma4) startKey() {
	g.state = gemmaKey
	g.word.Reset()
}

func (g *gemma4) inKey(c byte) status {
	switch {
	case c == ':':
		g.endKey(strings.TrimSpace(g.word.String()))
		g.state = gemmaValue
	case g.word.Len() == 0 && c == '}' && g.fresh:
		return g.closeContainer(c)
	case g.word.Len() == 0 && isJSONSpace(c):
	case g.word.Len() == 0 && (c == '<' || c == '"'):
		g.isKey = true
		if c == '"' {
			g.startString(true)
			break
		}
		g.held = append(g.held[:0], c)
		g.state = gemmaMark
	case c == '<' || c == '}' || c == ',' || c == '\n' || g.word.Len() >= maxName:
		return bad
	default:
		g.word.WriteByte(c)
	}
	return more
}

func (g *gemma4) endKey(key string) {
	g.separate()
	if len(g.stack) == 1 {
		g.key = key
	}
	g.p.arguments(quote(key) + ": ")
}

// separate writes the comma before all but the first item of a container.
func (g *gemma4) separate() {
	if !g.fresh {
		g.p.arguments(", ")
	}
	g.fresh = false
}

// typ is the type of the value being read, known at the top level only.
func (g *gemma4) typ() types {
	if len(g.stack) == 1 {
		return g.schema.props[g.key]
	}
	return 0
}

func (g *gemma4) startValue(c byte) status {
	if isJSONSpace(c) {
		return more
	}
	inList := g.stack[len(g.stack)-1] == '['
	if inList {
		if c == ']' && g.fresh {
			return g.closeContainer(c)
		}
		g.separate()
	}
	switch c {
	case '<':
		g.isKey = false
		g.held = append(g.held[:0], c)
		g.state = gemmaMark
	case '"':
		g.isKey = false
		g.startString(true)
	case '{', '[':
		return g.openContainer(c)
	case ',', '}', ']':
		// Nothing where a value belongs: Python's None may print like this.
		g.p.arguments("null")
		g.state = gemmaAfter
		return g.feed(c)
	default:
		g.word.Reset()
		g.word.WriteByte(c)
		g.state = gemmaWord
	}
	return more
}

func (g *gemma4) endWord() {
	s := strings.TrimSpace(g.word.String())
	t := g.typ()
	switch {
	case t != 0:
		g.p.arguments(t.coerce(s))
	case validWord(s):
		g.p.arguments(s)
	case s == "None":
		g.p.arguments("null")
	case s == "True" || s == "False":
		g.p.arguments(strings.ToLower(s))
	default:
		g.p.arguments(quote(s))
	}
}

func (g *gemma4) startString(quoted bool) {
	g.state = gemmaString
	g.held = g.held[:0]
	g.word.Reset()
	g.json = nil
	if quoted {
		out := g.p.arguments
		if g.isKey {
			out = func(s string) { g.word.WriteString(s) }
		}
		g.json = &jsonScan{out: out}
		g.json.feed('"')
	} else if !g.isKey {
		g.p.arguments(`"`)
	}
}

func (g *gemma4) inString(c byte) status {
	if g.json != nil {
		switch g.json.feed(c) {
		case scanBad:
			return bad
		case scanDone:
			return g.endString()
		}
		return more
	}
	g.held = append(g.held, c)
	for len(g.held) > 0 {
		if string(g.held) == gemmaQuote {
			return g.endString()
		}
		if strings.HasPrefix(gemmaQuote, string(g.held)) {
			return more
		}
		if g.isKey {
			g.word.WriteByte(g.held[0])
		} else {
			g.p.arguments(escapeByte(g.held[0]))
		}
		g.held = g.held[1:]
	}
	return more
}

func (g *gemma4) endString() status {
	g.held = g.held[:0]
	if g.isKey {
		key := g.word.String()
		if g.json != nil && json.Unmarshal([]byte(key), &key) != nil {
			return bad
		}
		g.endKey(key)
		g.state = gemmaColon
		return more
	}
	if g.json == nil {
		g.p.arguments(`"`)
	}
	g.state = gemmaAfter
	return more
}
