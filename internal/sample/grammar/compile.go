package grammar

import (
	"fmt"
	"regexp/syntax"
	"slices"
	"strings"
)

// Object returns the grammar of any JSON object, for "JSON mode".
func Object() *Grammar { return builtin(ruleObject) }

func builtin(rule int32) *Grammar {
	p, err := withBuiltins().finish(rule)
	if err != nil {
		panic("grammar: built-in rules: " + err.Error())
	}
	return newGrammar(p)
}

// Compile turns a JSON Schema into a grammar. Errors are of type *Error.
func Compile(schema []byte) (g *Grammar, err error) { return compile(schema, false) }

// CompileLoose does that, and takes oneOf for anyOf where its alternatives may overlap: what is generated may fit
// several of them.
func CompileLoose(schema []byte) (g *Grammar, err error) { return compile(schema, true) }

func compile(schema []byte, loose bool) (g *Grammar, err error) {
	err = catch(func() {
		root := decodeSchema(schema)
		c := newCompiler(root)
		c.loose = loose
		rule := c.b.newRule()
		start := c.value(root, "#", endState) // may add rules
		c.b.rules[rule].start = start
		c.compileRules()
		g = c.grammar(rule)
	})
	return g, err
}

// catch runs f and returns the *Error that ended it. Compiling ends by a panic: most steps can fail, at any depth.
func catch(f func()) (err error) {
	defer func() {
		switch failure := recover().(type) {
		case nil:
		case *Error:
			err = failure
		default:
			panic(failure)
		}
	}()
	f()
	return nil
}

// grammar finishes the grammar of a rule.
func (c *compiler) grammar(rule int32) *Grammar {
	p, err := c.b.finish(rule)
	if err != nil {
		panic(errAt("#", "%v", err))
	}
	return newGrammar(p)
}

// compileRules builds the rules that were mentioned. They are taken from a list, not recursively, so nesting through
// references costs no stack.
func (c *compiler) compileRules() {
	for len(c.todo) > 0 && c.b.err == nil {
		o := c.todo[len(c.todo)-1]
		c.todo = c.todo[:len(c.todo)-1]
		start := c.body(o, endState) // may add rules
		c.b.rules[c.rules[o]].start = start
	}
}

type compiler struct {
	b      *builder
	root   any
	rules  map[*object]int32
	todo   []*object
	merged map[string]*object // merged schemas by content, so that recursion through them closes
	work   int
	std    standard
	text   int32 // rule of a text in tags, up to and with the tag that ends it
	// anyOrder lets properties come in any order, not only in the schema's.
	anyOrder bool
	// loose takes oneOf for anyOf where its alternatives may overlap.
	loose bool
}

// standard are the rules of what a schema does not restrict.
type standard struct {
	str, char, value, object, key, member, itemNext int32
}

func newCompiler(root any) *compiler {
	c := &compiler{
		b:   withBuiltins(),
		std: standard{ruleString, ruleChar, ruleValue, ruleObject, ruleKey, ruleMember, ruleItemNext},
	}
	c.begin(root)
	return c
}

// begin starts with another schema, whose references are its own.
func (c *compiler) begin(root any) {
	c.root, c.rules, c.merged, c.work, c.todo = root, map[*object]int32{}, map[string]*object{}, maxWork, nil
}

func (c *compiler) spend(path string) {
	if c.work--; c.work < 0 {
		panic(errAt(path, "the schema is too complex"))
	}
	if c.b.err != nil {
		panic(errAt(path, "%v", c.b.err))
	}
}

// shared returns an earlier merged schema with the same content.
func (c *compiler) shared(o *object) *object {
	var b strings.Builder
	if !writeKey(&b, o, 1<<16) {
		panic(errAt(o.path, "the combined schema is too complex"))
	}
	if old, ok := c.merged[b.String()]; ok {
		return old
	}
	c.merged[b.String()] = o
	return o
}

// writeKey writes a text that is the same for equal schemas.
func writeKey(b *strings.Builder, v any, limit int) bool {
	if b.Len() > limit {
		return false
	}
	switch v := v.(type) {
	case *object:
		b.WriteByte('{')
		for _, k := range v.keys {
			fmt.Fprintf(b, "%q:", k)
			if !writeKey(b, v.m[k], limit) {
				return false
			}
			b.WriteByte(',')
		}
		b.WriteByte('}')
	case []any:
		b.WriteByte('[')
		for _, e := range v {
			if !writeKey(b, e, limit) {
				return false
			}
			b.WriteByte(',')
		}
		b.WriteByte(']')
	case string:
		fmt.Fprintf(b, "%q", v)
	default:
		fmt.Fprint(b, v)
	}
	return true
}

func (c *compiler) nothing() int32 { return c.b.add(state{kind: kindBytes}) }

// value reads a value of a schema: a call of the schema's rule.
func (c *compiler) value(v any, path string, next int32) int32 {
	flat := c.flatten(v, path, 0)
	o, ok := flat.(*object)
	if !ok {
		if flat == true {
			return c.b.call(c.std.value, next)
		}
		return c.nothing()
	}
	r, ok := c.rules[o]
	if !ok {
		r = c.b.newRule()
		c.rules[o] = r
		c.todo = append(c.todo, o)
	}
	return c.b.call(r, next)
}

// body builds the rule of a flat schema.
func (c *compiler) body(o *object, next int32) int32 {
	c.spend(o.path)
	for _, k := range o.keys {
		if sub, isObject := o.m[k].(*object); k == "not" && (o.m[k] == true || isObject && !sub.constrained()) {
			return c.nothing() // libraries write "never" like this
		}
	}
	if list := c.rewrite(o); list != nil {
		var starts []int32
		for _, s := range list {
			starts = append(starts, c.value(s, o.path, next))
		}
		return c.b.alt(starts...)
	}
	for _, k := range o.keys {
		if unsupported[k] {
			panic(errAt(o.at(k), "keyword %q is not supported", k))
		}
	}
	for _, k := range []string{"anyOf", "oneOf"} {
		if _, ok := o.get(k); ok {
			return c.alternatives(o, k, next)
		}
	}
	if v, ok := o.get("const"); ok {
		return c.literals(o, []any{v}, "const", next)
	}
	if v, ok := o.get("enum"); ok {
		list, isList := v.([]any)
		if !isList {
			panic(errAt(o.at("enum"), "must be a list"))
		}
		return c.literals(o, list, "enum", next)
	}
	t := o.types()
	var starts []int32
	if t&tObject != 0 {
		starts = append(starts, c.object(o, next))
	}
	if t&tArray != 0 {
		starts = append(starts, c.array(o, next))
	}
	if t&tString != 0 {
		starts = append(starts, c.string(o, next))
	}
	if t&(tNumber|tInteger) != 0 {
		starts = append(starts, c.number(o, t&tNumber == 0, next))
	}
	var words []string
	if t&tBoolean != 0 {
		words = append(words, "true", "false")
	}
	if t&tNull != 0 {
		words = append(words, "null")
	}
	if len(words) > 0 {
		starts = append(starts, c.b.words(words, next))
	}
	if len(starts) == 0 {
		return c.nothing()
	}
	return c.b.alt(starts...)
}

// typeKeywords restrict values of one type; without a "type" they suggest it.
var typeKeywords = []struct {
	t    types
	keys []string
}{
	{tObject, []string{"properties", "required", "additionalProperties", "patternProperties", "propertyNames",
		"minProperties", "maxProperties", "unevaluatedProperties"}},
	{tArray, []string{"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains",
		"unevaluatedItems"}},
	{tString, []string{"minLength", "maxLength", "pattern"}},
	{tNumber | tInteger, []string{"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}},
}

// types returns the types a schema is about. Where it does not say, the
// keywords tell: {"properties": ...} means an object, though other values
// would be valid too.
func (o *object) types() types {
	if v, ok := o.get("type"); ok {
		return typeSet(v, o.at("type"))
	}
	var t types
	for _, g := range typeKeywords {
		for _, k := range g.keys {
			if _, ok := o.get(k); ok {
				t |= g.t
			}
		}
	}
	if t == 0 {
		t = tAll
	}
	return t
}

// alternatives builds anyOf and oneOf. What stands beside them holds for each.
func (c *compiler) alternatives(o *object, key string, next int32) int32 {
	list, ok := o.m[key].([]any)
	if !ok || len(list) == 0 {
		panic(errAt(o.at(key), "must be a list with at least one schema"))
	}
	rest := o.without(key)
	var starts []int32
	var flats []any
	for i, sub := range list {
		path := fmt.Sprintf("%s/%d", o.at(key), i)
		flat := c.flatten(sub, path, 0)
		if rest.constrained() {
			seesAll(flat)
			flat = c.merge(rest, flat, path)
		}
		flats = append(flats, flat)
		s := c.value(flat, path, next)
		starts = append(starts, s)
	}
	if key == "oneOf" {
		// A value of two alternatives is valid for neither; only alternatives
		// that cannot meet can be generated blindly.
		if len(flats) > 100 && !c.loose {
			panic(errAt(o.at(key), "more than 100 alternatives are not supported; use anyOf"))
		}
		for i := range flats {
			for j := range i {
				apart := c.apart(flats[i], flats[j], 0)
				if !apart && !c.loose {
					panic(errAt(o.at(key), "alternatives %d and %d may overlap, which is not supported; use anyOf", j, i))
				}
			}
		}
	}
	return c.b.alt(starts...)
}

// apart reports whether no value generated for one schema is valid for the
// other. It errs on the side of false.
func (c *compiler) apart(a, b any, depth int) bool {
	if a == false || b == false {
		return true
	}
	x, ok1 := a.(*object)
	y, ok2 := b.(*object)
	if !ok1 || !ok2 || depth > 4 {
		return false
	}
	if p, ok := x.values(); ok {
		if q, ok := y.values(); ok {
			for _, v := range p {
				if slices.ContainsFunc(q, func(w any) bool { return equal(v, w) }) {
					return false
				}
			}
			return true
		}
	}
	tx := x.allTypes()
	ty := y.allTypes()
	if tx&ty == 0 {
		return true
	}
	if tx != tObject || ty != tObject {
		return false
	}
	px, _ := x.m["properties"].(*object)
	py, _ := y.m["properties"].(*object)
	if px == nil || py == nil {
		return false
	}
	rx, ry := x.required(), y.required()
	// A property both require whose values never agree tells them apart.
	for _, k := range rx {
		sx, ok1 := px.get(k)
		sy, ok2 := py.get(k)
		if !ok1 || !ok2 || !slices.Contains(ry, k) {
			continue
		}
		fx := c.flatten(sx, px.at(k), 0)
		fy := c.flatten(sy, py.at(k), 0)
		if c.apart(fx, fy, depth+1) {
			return true
		}
	}
	// So do properties each side requires and the other never has.
	lacks := func(req []string, props, o *object, own []string) bool {
		ap, ok := o.extra()
		if ok && ap != false {
			return false
		}
		return slices.ContainsFunc(req, func(k string) bool {
			_, has := props.get(k)
			return !has && !slices.Contains(own, k)
		})
	}
	return lacks(rx, py, y, ry) && lacks(ry, px, x, rx)
}

// values returns the list of a const or enum.
func (o *object) values() ([]any, bool) {
	if v, ok := o.get("const"); ok {
		return []any{v}, true
	}
	l, ok := o.m["enum"].([]any)
	return l, ok
}

// allTypes are the types of the values that are generated or valid.
func (o *object) allTypes() types {
	if v, ok := o.get("type"); ok {
		return typeSet(v, o.at("type"))
	}
	if l, ok := o.values(); ok {
		var t types
		for _, v := range l {
			t |= typeOf(v)
		}
		return t
	}
	return tAll
}

// extra is the schema of properties without one of their own.
func (o *object) extra() (any, bool) {
	if v, ok := o.get("additionalProperties"); ok {
		return v, true
	}
	return o.get("unevaluatedProperties")
}

func (o *object) required() []string {
	list, _ := o.m["required"].([]any)
	var out []string
	for _, v := range list {
		if s, ok := v.(string); ok && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// count reads a keyword that is a number of things.
func (o *object) count(key string, def int) int {
	v, ok := o.get(key)
	if !ok {
		return def
	}
	r, ok := rat(v)
	if !ok || !r.IsInt() || r.Sign() < 0 {
		panic(errAt(o.at(key), "must be an integer, 0 or more"))
	}
	if !r.Num().IsInt64() || r.Num().Int64() > 1<<30 {
		return 1 << 30 // as good as no limit
	}
	return int(r.Num().Int64())
}

func (o *object) bounds(minKey, maxKey string) (lo, hi int) {
	lo, hi = o.count(minKey, 0), o.count(maxKey, -1)
	if hi == 1<<30 {
		hi = -1
	}
	return lo, hi
}

func (c *compiler) string(o *object, next int32) int32 {
	lo, hi := o.bounds("minLength", "maxLength")
	if hi >= 0 && lo > hi {
		return c.nothing()
	}
	p, ok := o.get("pattern")
	if f, _ := o.m["format"].(string); formats[f] != "" {
		expr, _ := p.(string)
		if _, err := syntax.Parse(expr, syntax.Perl); !ok || err != nil { // the library's own may be beyond us
			p, ok = formats[f], true
		} else if both := formatAnd(formats[f], expr); both != "" && lo <= 10_000 && hi <= 10_000 {
			if s, err := c.b.pattern(both, lo, hi, next); err == nil {
				return s
			}
		}
	}
	if ok {
		expr, isString := p.(string)
		if !isString {
			panic(errAt(o.at("pattern"), "must be a string"))
		}
		if lo > 10_000 || hi > 10_000 {
			panic(errAt(o.at("pattern"), "together with a length over 10000 it is not supported"))
		}
		s, err := c.b.pattern(expr, lo, hi, next)
		if err != nil {
			panic(errAt(o.at("pattern"), "%v", err))
		}
		return s
	}
	if lo == 0 && hi < 0 {
		return c.b.call(c.std.str, next)
	}
	return c.b.lit(c.b.quote, c.b.repeat(c.std.char, lo, hi, c.b.lit(c.b.quote, next)))
}
