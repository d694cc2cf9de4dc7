package parse

import (
	"bytes"
	"strings"
)

// qwenXML reads the notation of Qwen3-Coder and Qwen3.5:
//
//	<tool_call>
//	<function=NAME>
//	<parameter=KEY>
//	VALUE
//	</parameter>
//	</function>
//	</tool_call>
//
// Values are text; the tool's schema says which are numbers, objects and so
// on. Strings stream, the others are judged at their end. These models at
// times leave out the opening tag or a closing one.
type qwenXML struct {
	p      *Parser
	bare   bool
	state  xmlState
	want   string // rest of the literal being matched
	name   strings.Builder
	schema *schema
	params int
	keys   map[string]bool

	typ   types
	first bool   // the value has not begun: one line break is layout
	held  []byte // may be the end of the value
	value strings.Builder
}

type xmlState uint8

const (
	xmlFunction xmlState = iota // the literal "<function="
	xmlName
	xmlBody // between parameters
	xmlTag  // after '<' in the body
	xmlKey
	xmlValue
	xmlTail // the literal "</tool_call>"
)

type bareXML struct{ qwenXML }

func (*bareXML) bareCall() {}

func newQwenXML(p *Parser, bare bool) call {
	x := qwenXML{p: p, bare: bare, state: xmlFunction, want: "<function=", keys: map[string]bool{}}
	if bare {
		x.state = xmlName
		return &bareXML{x}
	}
	return &x
}

const (
	xmlParamOpen  = "<parameter="
	xmlParamClose = "</parameter>"
	xmlFuncClose  = "</function>"
	xmlCallClose  = "</tool_call>"
	maxName       = 256
	maxGap        = 64 // white space between the tags of a call
)

func (x *qwenXML) feed(c byte) status {
	switch x.state {
	case xmlFunction, xmlTail:
		full := "<function="
		if x.state == xmlTail {
			full = xmlCallClose
		}
		if isJSONSpace(c) && x.want == full {
			return more
		}
		if x.want[0] != c {
			return bad
		}
		if x.want = x.want[1:]; x.want != "" {
			return more
		}
		if x.state == xmlTail {
			return done
		}
		x.state = xmlName
	case xmlName:
		if c != '>' {
			return x.nameByte(c)
		}
		name := strings.TrimSpace(x.name.String())
		// Without the marker of a call, only the name tells one from text.
		if x.bare && x.p.tools[name] == nil || !x.p.begin(name) {
			return bad
		}
		x.schema = x.p.schemaOf(name)
		x.state = xmlBody
	case xmlBody:
		if isJSONSpace(c) {
			return more
		}
		if c != '<' {
			return bad
		}
		x.held = append(x.held[:0], c)
		x.state = xmlTag
	case xmlTag:
		x.held = append(x.held, c)
		switch tag := string(x.held); {
		case tag == xmlParamOpen:
			x.startKey()
		case tag == xmlFuncClose:
			return x.endFunction()
		case !strings.HasPrefix(xmlParamOpen, tag) && !strings.HasPrefix(xmlFuncClose, tag):
			return bad
		}
	case xmlKey:
		if c != '>' {
			return x.nameByte(c)
		}
		x.startValue(strings.TrimSpace(x.name.String()))
	case xmlValue:
		if x.first && c == '\n' {
			x.first = false
			return more
		}
		x.first = false
		x.held = append(x.held, c)
		return x.inValue()
	}
	return more
}

func (x *qwenXML) nameByte(c byte) status {
	if c == '<' || c == '\n' || x.name.Len() >= maxName {
		return bad
	}
	x.name.WriteByte(c)
	return more
}

func (x *qwenXML) startKey() {
	x.name.Reset()
	x.state = xmlKey
}

func (x *qwenXML) startValue(key string) {
	sep := "{"
	if x.params++; x.params > 1 {
		sep = ", "
	}
	x.keys[key] = true
	x.p.arguments(sep + quote(key) + ": ")
	x.typ = x.schema.props[key]
	if x.typ.plainText() {
		x.p.arguments(`"`)
	}
	x.value.Reset()
	x.held = x.held[:0]
	x.first = true
	x.state = xmlValue
}

// inValue passes on what cannot be the end of the value.
func (x *qwenXML) inValue() status {
	for len(x.held) > 0 {
		if x.held[0] != '\n' && x.held[0] != '<' {
			x.valueByte()
			continue
		}
		switch end, maybe := x.valueEnd(); {
		case end == xmlParamOpen:
			x.endValue()
			x.startKey()
			return more
		case end == xmlFuncClose:
			x.endValue()
			return x.endFunction()
		case end == xmlCallClose:
			x.endValue()
			x.p.arguments("}")
			return done
		case end != "": // the key of the next parameter, the closing tag left out
			x.endValue()
			x.startValue(end[len(xmlParamOpen):])
			return more
		case maybe:
			return more
		default:
			x.valueByte()
		}
	}
	return more
}

func (x *qwenXML) valueByte() {
	if x.typ.plainText() {
		x.p.arguments(escapeByte(x.held[0]))
	} else {
		x.value.WriteByte(x.held[0])
	}
	x.held = x.held[1:]
}

func (x *qwenXML) endValue() {
	if x.typ.plainText() {
		x.p.arguments(`"`)
	} else {
		x.p.arguments(x.typ.coerce(x.value.String()))
	}
	x.held = x.held[:0]
}

// valueEnd tells whether the held text ends the value. A closing tag counts
// only when the next tag of a call follows, so a value may talk about tags.
// The forms, each after an optional line break:
//
//	</parameter> <parameter=                  xmlParamOpen
//	</parameter> </function>                  xmlFuncClose
//	</function> </tool_call>                  xmlCallClose, </parameter> left out
//	<parameter=KEY>  for a KEY not given yet  "<parameter=KEY", </parameter> left out
func (x *qwenXML) valueEnd() (end string, maybe bool) {
	h := x.held
	broken := h[0] == '\n'
	if broken {
		h = h[1:]
	}
	if rest, ok, part := cut(h, xmlParamClose); part {
		return "", true
	} else if ok {
		rest = trimGap(rest)
		for _, next := range []string{xmlParamOpen, xmlFuncClose} {
			if _, ok, part := cut(rest, next); ok {
				return next, false
			} else if part {
				maybe = true
			}
		}
		return "", maybe
	}
	if !broken {
		return "", false
	}
	if rest, ok, part := cut(h, xmlFuncClose); part {
		return "", true
	} else if ok {
		_, ok, part := cut(trimGap(rest), xmlCallClose)
		if ok {
			return xmlCallClose, false
		}
		return "", part
	}
	if rest, ok, part := cut(h, xmlParamOpen); part {
		return "", true
	} else if ok {
		i := bytes.IndexByte(rest, '>')
		if i < 0 {
			return "", len(rest) < maxName
		}
		key := string(rest[:i])
		if _, known := x.schema.props[key]; known && !x.keys[key] {
			return xmlParamOpen + key, false
		}
	}
	return "", false
}

// cut removes prefix from b; part says that b is only the beginning of it.
func cut(b []byte, prefix string) (rest []byte, ok, part bool) {
	if len(b) < len(prefix) {
		return b, false, strings.HasPrefix(prefix, string(b))
	}
	if string(b[:len(prefix)]) == prefix {
		return b[len(prefix):], true, false
	}
	return b, false, false
}

// trimGap removes the white space between two tags, up to a bound that keeps
// the work per byte small.
func trimGap(b []byte) []byte {
	for n := 0; n < maxGap && len(b) > 0 && isJSONSpace(b[0]); n++ {
		b = b[1:]
	}
	return b
}

func (x *qwenXML) endFunction() status {
	if x.params == 0 {
		x.p.arguments("{")
	}
	x.p.arguments("}")
	if x.bare {
		return done
	}
	x.state, x.want = xmlTail, xmlCallClose
	x.p.settle()
	return more
}
