package grammar

import (
	"slices"
)

// Notation is how a model writes calls of tools.
type Notation int

// The notations. What stands between the marker that opens a call, which is not part of the grammar, and the one that
// closes it, which is:
const (
	// JSON: {"name": "NAME", "arguments": {...}}</tool_call>
	CallJSON Notation = iota
	// Tags: <function=NAME>, then <parameter=KEY>, VALUE and </parameter> on lines of their own, </function></tool_call>
	CallTags
	// Gemma 4's: call:NAME{KEY:VALUE,...}<tool_call|>, with strings between <|"|> and keys without quotes
	CallGemma
	// Llama 3's, without a marker behind: {"name": "NAME", "parameters": {...}}
	CallLlama
	// An element of Mistral's lists: {"name": "NAME", "arguments": {...}}, and an id in it if the model likes
	CallList
	// Mistral's newer one: NAME[ARGS]{...}, with [CALL_ID]ID before [ARGS] if the model likes
	CallArgs
	// DeepSeek's: NAME, a separator, {...} and a marker
	CallDeepSeek
	// Its older one: function, a separator, NAME, {...} as fenced code, and a marker
	CallDeepSeekFenced
	// gpt-oss's: functions.NAME, perhaps a channel, perhaps the type of the arguments, <|message|>{...}
	CallHarmony
)

// Markers of DeepSeek's calls, in its own characters.
const (
	deepSeekSep = "<｜tool▁sep｜>"
	deepSeekEnd = "<｜tool▁call▁end｜>"
)

// Tool is a function that may be called.
type Tool struct {
	Name       string
	Parameters []byte // a schema; nil for anything
}

// CompileCalls turns tools into the grammar of a call of one of them. Arguments come in any order, the required ones
// always. In tags, strings are free text, or one of a list, and everything else is JSON. A tool whose schema cannot
// be honoured takes any arguments, and so do all when there are too many.
func CompileCalls(n Notation, tools []Tool) (g *Grammar, err error) {
	err = catch(func() { g = compileCalls(n, tools) })
	if err != nil {
		loose := make([]Tool, len(tools))
		for i, t := range tools {
			loose[i].Name = t.Name
		}
		err = catch(func() { g = compileCalls(n, loose) })
	}
	return g, err
}

func compileCalls(n Notation, tools []Tool) *Grammar {
	c := newCompiler(nil)
	c.anyOrder, c.loose = true, true
	c.text = c.b.newRule()
	c.b.rules[c.text].start = c.b.textUntil(endParameter, endState)
	if n == CallGemma {
		c.gemma()
	}
	rule := c.b.newRule()
	var starts []int32
	for _, t := range tools {
		starts = append(starts, c.call(n, t))
	}
	c.b.rules[rule].start = c.b.space(c.b.alt(starts...))
	return c.grammar(rule)
}

// call reads a call of one tool.
func (c *compiler) call(n Notation, t Tool) int32 {
	b := c.b
	var head, tail string
	next := endState
	switch n {
	case CallJSON:
		next = b.space(b.lit("}", b.space(b.lit("</tool_call>", endState))))
	case CallTags:
		head, tail = "<function="+t.Name+">\n", "</function>\n</tool_call>"
	case CallGemma:
		head, tail = "call:"+t.Name, "<tool_call|>"
	case CallLlama:
		next = b.space(b.lit("}", endState))
	case CallList:
		end := b.space(b.lit("}", endState))
		id := b.lit(`"id"`, b.colon(b.call(c.std.str, end)))
		next = b.alt(end, b.space(b.comma(id)))
	case CallArgs:
		head = t.Name
	case CallDeepSeek:
		head, tail = t.Name+deepSeekSep, deepSeekEnd
	case CallDeepSeekFenced:
		head, tail = "function"+deepSeekSep+t.Name+"\n```json\n", "\n```"+deepSeekEnd
	case CallHarmony:
		head = "functions." + t.Name
	}
	next = b.lit(tail, next)
	var s int32
	if err := catch(func() { s = c.arguments(n, t.Parameters, next) }); err != nil { // whatever it takes
		if n == CallTags {
			any, name := b.newRule(), b.hole()
			b.fill(name, b.class(nameClass, name), b.lit(">\n", b.call(c.text, endState)))
			b.rules[any].start = b.lit("<parameter=", b.class(nameClass, name))
			s = b.star(any, next)
		} else {
			s = b.call(c.std.object, next)
		}
	}
	switch n {
	case CallJSON, CallLlama, CallList:
		key := "arguments"
		if n == CallLlama {
			key = "parameters"
		}
		s = b.lit(encode(key), b.colon(s))
		s = b.lit("{", b.space(b.lit("\"name\"", b.colon(b.lit(encode(t.Name), b.comma(s))))))
	case CallArgs:
		s = b.lit("[ARGS]", b.space(s))
		id := b.newRule()
		b.rules[id].start = b.class(idClass, endState)
		s = b.alt(s, b.lit("[CALL_ID]", b.repeat(id, 1, 64, s)))
	case CallHarmony:
		s = b.lit("<|message|>", b.space(s))
		s = b.alt(s, b.lit(" json", s), b.lit(" <|constrain|>json", s))
		s = b.alt(s, b.lit("<|channel|>commentary", s), b.lit("<|channel|>analysis", s))
	}
	if b.err != nil {
		panic(errAt("#", "%v", b.err))
	}
	return b.lit(head, s)
}

// arguments reads what fits the schema of a tool.
func (c *compiler) arguments(n Notation, schema []byte, next int32) int32 {
	root := decodeSchema(schema)
	c.begin(root)
	var s int32
	if n == CallTags {
		s = c.parameters(next)
	} else {
		o, ok := c.flatten(root, "#", 0).(*object)
		if !ok {
			panic(errAt("#", "must be an object"))
		}
		o = o.without("type") // some leave it out, and nothing else can be meant
		o.set("type", "object")
		s = c.value(o, "#", next)
	}
	c.compileRules()
	return s
}

// gemma changes the notation of values to Gemma's.
func (c *compiler) gemma() {
	b := c.b
	b.plain, b.quote = true, `<|"|>`
	r := &c.std
	for _, p := range []*int32{&r.str, &r.char, &r.value, &r.object, &r.key, &r.member, &r.itemNext} {
		*p = b.newRule()
	}
	b.rules[r.str].start = b.lit(b.quote, b.textUntil(b.quote, endState))
	b.rules[r.char].start = b.class(fullClass, endState)
	b.rules[r.key].start = b.otherKey(nil, endState)
	b.rules[r.member].start = b.call(r.key, b.colon(b.call(r.value, endState)))
	b.rules[r.itemNext].start = b.comma(b.call(r.value, endState))
	memberNext := b.newRule()
	b.rules[memberNext].start = b.comma(b.call(r.member, endState))
	b.rules[r.object].start = b.object(b.optional(b.call(r.member, b.star(memberNext, b.closing('}')))))
	list := b.array(b.optional2(b.call(r.value, b.star(r.itemNext, b.closing(']'))), ']'))
	b.rules[r.value].start = b.alt(b.call(r.str, endState), b.call(ruleNumber, endState), b.call(r.object, endState), list,
		b.words([]string{"true", "false", "null"}, endState))
}

// idClass are the characters of ids of calls.
var idClass = []rune{'0', '9', 'A', 'Z', 'a', 'z'}

// endParameter ends the value of a parameter in tags.
const endParameter = "\n</parameter>\n"

// parameters reads the parameters of a schema in tags.
func (c *compiler) parameters(next int32) int32 {
	flat := c.flatten(c.root, "#", 0)
	o, _ := flat.(*object)
	if o == nil {
		panic(errAt("#", "must be an object"))
	}
	for _, k := range []string{"anyOf", "oneOf", "enum", "const"} {
		if _, ok := o.get(k); ok {
			panic(errAt(o.at(k), "is not supported for parameters"))
		}
	}
	props, ok := o.m["properties"].(*object)
	if !ok {
		panic(errAt(o.at("properties"), "is missing"))
	}
	required := o.required()
	if i := slices.IndexFunc(required, func(k string) bool { _, ok := props.get(k); return !ok }); i >= 0 {
		panic(errAt(o.at("required"), "there is no property %q", required[i]))
	}
	if len(props.keys) > maxMembers {
		panic(errAt(o.at("properties"), "are too many"))
	}
	members := &set{extra: -1, extraLater: -1}
	for i, name := range props.keys {
		r := c.b.newRule()
		s := c.parameter(props.m[name], props.at(name), endState)
		c.b.rules[r].start = c.b.lit("<parameter="+name+">\n", s)
		members.first, members.later = append(members.first, r), append(members.later, r)
		if slices.Contains(required, name) {
			members.required |= 1 << i
		}
	}
	return c.b.add(state{kind: kindSet, set: members, max: -1, next: []int32{next}})
}

// parameter reads a value and the tag that ends it.
func (c *compiler) parameter(v any, path string, next int32) int32 {
	flat := c.flatten(v, path, 0)
	o, ok := flat.(*object)
	if !ok {
		return c.b.call(c.text, next)
	}
	for _, k := range []string{"anyOf", "oneOf"} {
		if _, ok := o.get(k); ok {
			return c.b.call(c.text, next) // a string may be among them, and has no quotes here
		}
	}
	if list, ok := o.values(); ok {
		var words []string
		for _, v := range list {
			if s, isString := v.(string); isString {
				words = append(words, s)
			} else {
				words = append(words, c.b.scalar(v))
			}
		}
		return c.b.words(words, c.b.lit(endParameter, next))
	}
	t := o.allTypes()
	if t&tString != 0 {
		return c.b.call(c.text, next)
	}
	return c.value(flat, path, c.b.lit(endParameter, next))
}

// textUntil reads any text up to the first time that end occurs in it, end included.
func (b *builder) textUntil(end string, next int32) int32 {
	states := make([]int32, len(end))
	for i := range states {
		states[i] = b.add(state{kind: kindBytes})
	}
	if b.err != nil {
		return endState
	}
	// to[i][c] is how much of end stands at the end of the text after i bytes of it and then c.
	to := make([][256]int, len(end))
	fail := 0
	for i := range end {
		if i > 0 {
			to[i] = to[fail]
		}
		to[i][end[i]] = i + 1
		if i > 0 {
			fail = to[fail][end[i]]
		}
	}
	target := func(n int) int32 {
		if n == len(end) {
			return next
		}
		return states[n]
	}
	for i, s := range states {
		var edges []edge
		for c := 0; c < 256; {
			last := c
			for last+1 < 256 && to[i][last+1] == to[i][c] {
				last++
			}
			edges = append(edges, edge{byte(c), byte(last), target(to[i][c])})
			c = last + 1
		}
		b.states[s].edges = edges
	}
	return states[0]
}
