package grammar

import (
	"fmt"
	"slices"
)

// CompileXML turns the parameters of a tool into a grammar of the notation that Qwen3-Coder and Qwen3.5 write calls in,
// from after the function's name to its end:
//
//	<parameter=KEY>
//	VALUE
//	</parameter>
//	</function>
//
// Values of strings are free text, or one of a list; all others are JSON that fits their schema. Parameters come in the
// order of the schema, the required ones always. Errors are of type *Error.
func CompileXML(schema []byte) (*Grammar, error) {
	root, err := decodeSchema(schema)
	if err != nil {
		return nil, err
	}
	c := newCompiler(root)
	rule := c.b.newRule()
	start, err := c.parameters(c.b.lit("</function>", endState))
	if err == nil {
		c.b.rules[rule].start = start
		err = c.compileRules()
	}
	if err != nil {
		return nil, err
	}
	p, err := c.b.finish(rule)
	if err != nil {
		return nil, errAt("#", "%v", err)
	}
	return &Grammar{p: p, bases: map[baseKey]*base{}}, nil
}

func (c *compiler) parameters(next int32) (int32, error) {
	flat, err := c.flatten(c.root, "#", 0)
	if err != nil {
		return 0, err
	}
	o, _ := flat.(*object)
	if o == nil {
		return 0, errAt("#", "must be an object")
	}
	for _, k := range []string{"anyOf", "oneOf", "enum", "const"} {
		if _, ok := o.get(k); ok {
			return 0, errAt(o.at(k), "is not supported for parameters")
		}
	}
	props, ok := o.m["properties"].(*object)
	if !ok {
		return 0, errAt(o.at("properties"), "is missing")
	}
	required := o.required()
	if i := slices.IndexFunc(required, func(k string) bool { _, ok := props.get(k); return !ok }); i >= 0 {
		return 0, errAt(o.at("required"), "there is no property %q", required[i])
	}
	for _, name := range slices.Backward(props.keys) {
		s, err := c.parameter(props.m[name], props.at(name), next)
		if err != nil {
			return 0, err
		}
		s = c.b.lit(fmt.Sprintf("<parameter=%s>\n", name), s)
		if !slices.Contains(required, name) {
			s = c.b.alt(s, next)
		}
		next = s
	}
	return next, nil
}

// parameter reads a value and the tag that ends it.
func (c *compiler) parameter(v any, path string, next int32) (int32, error) {
	const end = "\n</parameter>\n"
	flat, err := c.flatten(v, path, 0)
	if err != nil {
		return 0, err
	}
	o, ok := flat.(*object)
	if !ok {
		return c.b.textUntil(end, next), nil
	}
	for _, k := range []string{"anyOf", "oneOf"} {
		if _, ok := o.get(k); ok {
			return c.b.textUntil(end, next), nil // a string may be among them, and has no quotes here
		}
	}
	if list, ok := o.values(); ok {
		var words []string
		for _, v := range list {
			if s, isString := v.(string); isString {
				words = append(words, s)
			} else {
				words = append(words, scalar(v))
			}
		}
		return c.b.words(words, c.b.lit(end, next)), nil
	}
	t, err := o.allTypes()
	if err != nil {
		return 0, err
	}
	if t&tString != 0 {
		return c.b.textUntil(end, next), nil
	}
	return c.value(flat, path, c.b.lit(end, next))
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
