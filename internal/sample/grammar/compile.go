package grammar

import (
	"encoding/json"
	"fmt"
	"math/big"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode/utf8"
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
func Compile(schema []byte) (*Grammar, error) {
	root, err := decodeSchema(schema)
	if err != nil {
		return nil, err
	}
	c := newCompiler(root)
	rule := c.b.newRule()
	start, err := c.value(root, "#", endState)
	if err != nil {
		return nil, err
	}
	c.b.rules[rule].start = start
	if err := c.compileRules(); err != nil {
		return nil, err
	}
	p, err := c.b.finish(rule)
	if err != nil {
		return nil, errAt("#", "%v", err)
	}
	return newGrammar(p), nil
}

// compileRules builds the rules that were mentioned. They are taken from a list, not recursively, so nesting through
// references costs no stack.
func (c *compiler) compileRules() error {
	for len(c.todo) > 0 && c.b.err == nil {
		o := c.todo[len(c.todo)-1]
		c.todo = c.todo[:len(c.todo)-1]
		start, err := c.body(o, endState)
		if err != nil {
			return err
		}
		c.b.rules[c.rules[o]].start = start
	}
	return nil
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

func (c *compiler) spend(path string) error {
	if c.work--; c.work < 0 {
		return errAt(path, "the schema is too complex")
	}
	if c.b.err != nil {
		return errAt(path, "%v", c.b.err)
	}
	return nil
}

// shared returns the merged schema made before with the same content.
func (c *compiler) shared(o *object) (*object, error) {
	var b strings.Builder
	if !writeKey(&b, o, 1<<16) {
		return nil, errAt(o.path, "the combined schema is too complex")
	}
	if old, ok := c.merged[b.String()]; ok {
		return old, nil
	}
	c.merged[b.String()] = o
	return o, nil
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
func (c *compiler) value(v any, path string, next int32) (int32, error) {
	flat, err := c.flatten(v, path, 0)
	if err != nil {
		return 0, err
	}
	o, ok := flat.(*object)
	if !ok {
		if flat == true {
			return c.b.call(c.std.value, next), nil
		}
		return c.nothing(), nil
	}
	r, ok := c.rules[o]
	if !ok {
		r = c.b.newRule()
		c.rules[o] = r
		c.todo = append(c.todo, o)
	}
	return c.b.call(r, next), nil
}

// body builds the rule of a flat schema.
func (c *compiler) body(o *object, next int32) (int32, error) {
	if err := c.spend(o.path); err != nil {
		return 0, err
	}
	for _, k := range o.keys {
		if sub, isObject := o.m[k].(*object); k == "not" && (o.m[k] == true || isObject && !sub.constrained()) {
			return c.nothing(), nil // libraries write "never" like this
		}
		if unsupported[k] {
			return 0, errAt(o.at(k), "keyword %q is not supported", k)
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
			return 0, errAt(o.at("enum"), "must be a list")
		}
		return c.literals(o, list, "enum", next)
	}
	t, err := o.types()
	if err != nil {
		return 0, err
	}
	var starts []int32
	add := func(s int32, err error) error {
		starts = append(starts, s)
		return err
	}
	if t&tObject != 0 {
		err = add(c.object(o, next))
	}
	if err == nil && t&tArray != 0 {
		err = add(c.array(o, next))
	}
	if err == nil && t&tString != 0 {
		err = add(c.string(o, next))
	}
	if err == nil && t&(tNumber|tInteger) != 0 {
		err = add(c.number(o, t&tNumber == 0, next))
	}
	if err != nil {
		return 0, err
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
		return c.nothing(), nil
	}
	return c.b.alt(starts...), nil
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
func (o *object) types() (types, error) {
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
	return t, nil
}

// alternatives builds anyOf and oneOf. What stands beside them holds for each.
func (c *compiler) alternatives(o *object, key string, next int32) (int32, error) {
	list, ok := o.m[key].([]any)
	if !ok || len(list) == 0 {
		return 0, errAt(o.at(key), "must be a list with at least one schema")
	}
	rest := o.without(key)
	var starts []int32
	var flats []any
	for i, sub := range list {
		path := fmt.Sprintf("%s/%d", o.at(key), i)
		flat, err := c.flatten(sub, path, 0)
		if err != nil {
			return 0, err
		}
		if rest.constrained() {
			if err := seesAll(flat); err != nil {
				return 0, err
			}
			if flat, err = c.merge(rest, flat, path); err != nil {
				return 0, err
			}
		}
		flats = append(flats, flat)
		s, err := c.value(flat, path, next)
		if err != nil {
			return 0, err
		}
		starts = append(starts, s)
	}
	if key == "oneOf" {
		// A value of two alternatives is valid for neither; only alternatives
		// that cannot meet can be generated blindly.
		if len(flats) > 100 {
			return 0, errAt(o.at(key), "more than 100 alternatives are not supported; use anyOf")
		}
		for i := range flats {
			for j := range i {
				apart, err := c.apart(flats[i], flats[j], 0)
				if err != nil {
					return 0, err
				}
				if !apart {
					return 0, errAt(o.at(key), "alternatives %d and %d may overlap, which is not supported; use anyOf", j, i)
				}
			}
		}
	}
	return c.b.alt(starts...), nil
}

// apart reports whether no value generated for one schema is valid for the
// other. It errs on the side of false.
func (c *compiler) apart(a, b any, depth int) (bool, error) {
	if a == false || b == false {
		return true, nil
	}
	x, ok1 := a.(*object)
	y, ok2 := b.(*object)
	if !ok1 || !ok2 || depth > 4 {
		return false, nil
	}
	if p, ok := x.values(); ok {
		if q, ok := y.values(); ok {
			for _, v := range p {
				if slices.ContainsFunc(q, func(w any) bool { return equal(v, w) }) {
					return false, nil
				}
			}
			return true, nil
		}
	}
	tx, err := x.allTypes()
	if err != nil {
		return false, err
	}
	ty, err := y.allTypes()
	if err != nil {
		return false, err
	}
	if tx&ty == 0 {
		return true, nil
	}
	if tx != tObject || ty != tObject {
		return false, nil
	}
	px, _ := x.m["properties"].(*object)
	py, _ := y.m["properties"].(*object)
	if px == nil || py == nil {
		return false, nil
	}
	rx, ry := x.required(), y.required()
	// A property both require whose values never agree tells them apart.
	for _, k := range rx {
		sx, ok1 := px.get(k)
		sy, ok2 := py.get(k)
		if !ok1 || !ok2 || !slices.Contains(ry, k) {
			continue
		}
		fx, err := c.flatten(sx, px.at(k), 0)
		if err != nil {
			return false, err
		}
		fy, err := c.flatten(sy, py.at(k), 0)
		if err != nil {
			return false, err
		}
		if apart, err := c.apart(fx, fy, depth+1); apart || err != nil {
			return apart, err
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
	return lacks(rx, py, y, ry) && lacks(ry, px, x, rx), nil
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
func (o *object) allTypes() (types, error) {
	if v, ok := o.get("type"); ok {
		return typeSet(v, o.at("type"))
	}
	if l, ok := o.values(); ok {
		var t types
		for _, v := range l {
			t |= typeOf(v)
		}
		return t, nil
	}
	return tAll, nil
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

// literals builds const and enum: the listed values that meet the other keywords.
func (c *compiler) literals(o *object, list []any, key string, next int32) (int32, error) {
	t := tAll
	if v, ok := o.get("type"); ok {
		var err error
		if t, err = typeSet(v, o.at("type")); err != nil {
			return 0, err
		}
	}
	if other, ok := o.get("enum"); ok && key == "const" {
		l, _ := other.([]any)
		if !slices.ContainsFunc(l, func(w any) bool { return equal(list[0], w) }) {
			return c.nothing(), nil
		}
	}
	var words []string
	var starts []int32
	for _, v := range list {
		if err := c.spend(o.path); err != nil {
			return 0, err
		}
		vt := typeOf(v)
		if vt&t == 0 || vt == tNumber && t&tNumber == 0 {
			continue
		}
		ok, err := o.admits(v, vt)
		if err != nil {
			return 0, err
		}
		if !ok {
			continue
		}
		switch v.(type) {
		case *object, []any:
			starts = append(starts, c.literal(v, next))
		default:
			words = append(words, c.b.scalar(v))
		}
	}
	if len(words) > 0 {
		starts = append(starts, c.b.words(words, next))
	}
	if len(starts) == 0 {
		return c.nothing(), nil
	}
	return c.b.alt(starts...), nil
}

// admits checks a listed value against the keywords beside the list.
func (o *object) admits(v any, t types) (bool, error) {
	for _, g := range typeKeywords {
		if g.t&t == 0 {
			continue
		}
		for _, k := range g.keys {
			arg, ok := o.get(k)
			if !ok {
				continue
			}
			if t&(tObject|tArray) != 0 {
				return false, errAt(o.at(k), "beside a list of objects or lists it is not supported")
			}
			ok, err := o.admitsScalar(v, k, arg)
			if !ok || err != nil {
				return false, err
			}
		}
	}
	return true, nil
}

func (o *object) admitsScalar(v any, k string, arg any) (bool, error) {
	if k == "pattern" {
		s, _ := arg.(string)
		re, err := parsePattern(s)
		if err == nil {
			var found bool
			if found, err = re.matches(v.(string)); err == nil {
				return found, nil
			}
		}
		return false, errAt(o.at(k), "%v", err)
	}
	n, ok := rat(arg)
	if !ok {
		return false, errAt(o.at(k), "must be a number")
	}
	var x *big.Rat
	if s, isString := v.(string); isString {
		x = new(big.Rat).SetInt64(int64(utf8.RuneCountInString(s)))
	} else if x, ok = rat(v); !ok {
		return false, errAt(o.at(k), "does not go with so large a number")
	}
	switch k {
	case "minLength", "minimum":
		return x.Cmp(n) >= 0, nil
	case "maxLength", "maximum":
		return x.Cmp(n) <= 0, nil
	case "exclusiveMinimum":
		return x.Cmp(n) > 0, nil
	case "exclusiveMaximum":
		return x.Cmp(n) < 0, nil
	}
	if n.Sign() <= 0 {
		return false, errAt(o.at(k), "must be above 0")
	}
	return new(big.Rat).Quo(x, n).IsInt(), nil // multipleOf
}

// scalar is the JSON text of a value that is no object or list.
func (b *builder) scalar(v any) string {
	switch v := v.(type) {
	case string:
		if b.plain {
			return b.quote + v + b.quote
		}
		return encode(v)
	case json.Number:
		return string(v)
	case bool:
		if v {
			return "true"
		}
		return "false"
	}
	return "null"
}

// literal reads one given value.
func (c *compiler) literal(v any, next int32) int32 {
	b := c.b
	switch v := v.(type) {
	case *object:
		s := b.space(b.lit("}", next))
		for i := len(v.keys) - 1; i >= 0; i-- {
			s = b.lit(b.key(v.keys[i]), b.colon(c.literal(v.m[v.keys[i]], s)))
			if i > 0 {
				s = b.comma(s)
			}
		}
		if len(v.keys) > 0 {
			s = b.space(s)
		}
		return b.lit("{", s)
	case []any:
		s := b.space(b.lit("]", next))
		for i := len(v) - 1; i >= 0; i-- {
			s = c.literal(v[i], s)
			if i > 0 {
				s = b.comma(s)
			}
		}
		if len(v) > 0 {
			s = b.space(s)
		}
		return b.lit("[", s)
	}
	return b.lit(b.scalar(v), next)
}

// count reads a keyword that is a number of things.
func (o *object) count(key string, def int) (int, error) {
	v, ok := o.get(key)
	if !ok {
		return def, nil
	}
	r, ok := rat(v)
	if !ok || !r.IsInt() || r.Sign() < 0 {
		return 0, errAt(o.at(key), "must be an integer, 0 or more")
	}
	if !r.Num().IsInt64() || r.Num().Int64() > 1<<30 {
		return 1 << 30, nil // as good as no limit
	}
	return int(r.Num().Int64()), nil
}

func (o *object) bounds(minKey, maxKey string) (lo, hi int, err error) {
	if lo, err = o.count(minKey, 0); err != nil {
		return
	}
	if hi, err = o.count(maxKey, -1); err != nil {
		return
	}
	if hi == 1<<30 {
		hi = -1
	}
	return
}

func (c *compiler) string(o *object, next int32) (int32, error) {
	lo, hi, err := o.bounds("minLength", "maxLength")
	if err != nil {
		return 0, err
	}
	if hi >= 0 && lo > hi {
		return c.nothing(), nil
	}
	p, ok := o.get("pattern")
	if f, _ := o.m["format"].(string); formats[f] != "" {
		expr, _ := p.(string)
		if _, err := syntax.Parse(expr, syntax.Perl); !ok || err != nil { // the library's own may be beyond us
			p, ok = formats[f], true
		}
	}
	if ok {
		expr, isString := p.(string)
		if !isString {
			return 0, errAt(o.at("pattern"), "must be a string")
		}
		if lo > 10_000 || hi > 10_000 {
			return 0, errAt(o.at("pattern"), "together with a length over 10000 it is not supported")
		}
		s, err := c.b.pattern(expr, lo, hi, next)
		if err != nil {
			return 0, errAt(o.at("pattern"), "%v", err)
		}
		return s, nil
	}
	if lo == 0 && hi < 0 {
		return c.b.call(c.std.str, next), nil
	}
	return c.b.lit(c.b.quote, c.b.repeat(c.std.char, lo, hi, c.b.lit(c.b.quote, next))), nil
}

func (c *compiler) number(o *object, integer bool, next int32) (int32, error) {
	var multiple *big.Rat
	if m, ok := o.get("multipleOf"); ok {
		r, isNum := rat(m)
		if !isNum || r.Sign() <= 0 {
			return 0, errAt(o.at("multipleOf"), "must be a number above 0")
		}
		if multiple = r; r.Cmp(big.NewRat(1, 1)) == 0 {
			multiple, integer = nil, true
		}
	}
	lo, err := o.limit("minimum", "exclusiveMinimum", 1)
	if err != nil {
		return 0, err
	}
	hi, err := o.limit("maximum", "exclusiveMaximum", -1)
	if err != nil {
		return 0, err
	}
	switch {
	case multiple != nil:
		return c.multiples(o, multiple, integer, lo, hi, next)
	case lo == nil && hi == nil && integer:
		return c.b.call(ruleInteger, next), nil
	case lo == nil && hi == nil:
		return c.b.call(ruleNumber, next), nil
	case integer:
		return c.b.integerRange(lo, hi, next), nil
	}
	return c.b.numberRange(lo, hi, next), nil
}

// limit combines an inclusive and an exclusive bound; sign is 1 for lower ones.
func (o *object) limit(key, exKey string, sign int) (*limit, error) {
	var l *limit
	if v, ok := o.get(key); ok {
		r, ok := rat(v)
		if !ok {
			return nil, errAt(o.at(key), "must be a number of reasonable size")
		}
		l = &limit{v: r}
	}
	v, ok := o.get(exKey)
	if !ok {
		return l, nil
	}
	if b, isBool := v.(bool); isBool { // draft 4 spelling
		if l != nil {
			l.exclusive = b
		}
		return l, nil
	}
	r, ok := rat(v)
	if !ok {
		return nil, errAt(o.at(exKey), "must be a number of reasonable size")
	}
	if l == nil || r.Cmp(l.v)*sign >= 0 {
		l = &limit{r, true}
	}
	return l, nil
}

func (c *compiler) array(o *object, next int32) (int32, error) {
	if _, ok := o.get("contains"); ok {
		return 0, errAt(o.at("contains"), "keyword \"contains\" is not supported")
	}
	lo, hi, err := o.bounds("minItems", "maxItems")
	if err != nil {
		return 0, err
	}
	if v, ok := o.get("uniqueItems"); ok && v == true && (hi < 0 || hi > 1) {
		return c.unique(o, lo, hi, next)
	}
	items, hasItems := o.get("items")
	itemsPath := o.at("items")
	prefix, hasPrefix := o.m["prefixItems"].([]any)
	prefixPath := o.at("prefixItems")
	if _, ok := o.get("prefixItems"); ok && !hasPrefix {
		return 0, errAt(prefixPath, "must be a list")
	}
	if list, ok := items.([]any); ok && !hasPrefix { // the spelling before draft 2020-12
		prefix, hasPrefix, prefixPath = list, true, itemsPath
		items, hasItems = o.get("additionalItems")
		itemsPath = o.at("additionalItems")
	}
	if !hasItems {
		items, hasItems = o.get("unevaluatedItems")
	}
	if !hasItems {
		items = !hasPrefix // a tuple has no more items than it lists
	}
	if items == false {
		if hi < 0 || hi > len(prefix) {
			hi = len(prefix)
		}
	}
	if hi >= 0 && lo > hi {
		return c.nothing(), nil
	}
	if hi >= 0 && hi < len(prefix) {
		prefix = prefix[:hi]
	}
	b := c.b
	closing := b.space(b.lit("]", next))
	// After the prefix: repetitions of ", item".
	tail := closing
	if hi < 0 || hi > len(prefix) {
		more := max(lo-len(prefix), 0)
		most := -1
		if hi >= 0 {
			most = hi - len(prefix)
		}
		if len(prefix) > 0 {
			r, err := c.nextItem(items, itemsPath)
			if err != nil {
				return 0, err
			}
			tail = c.times(r, more, most, closing)
		} else {
			r, err := c.nextItem(items, itemsPath)
			if err != nil {
				return 0, err
			}
			if most > 0 {
				most--
			}
			first, err := c.value(items, itemsPath, c.times(r, max(more-1, 0), most, closing))
			if err != nil {
				return 0, err
			}
			start := b.space(first)
			if lo == 0 {
				start = b.alt(start, closing)
			}
			return b.lit("[", start), nil
		}
	}
	for i := len(prefix) - 1; i >= 0; i-- {
		s, err := c.value(prefix[i], fmt.Sprintf("%s/%d", prefixPath, i), tail)
		if err != nil {
			return 0, err
		}
		if i > 0 {
			s = b.comma(s)
		} else {
			s = b.space(s)
		}
		if lo <= i {
			s = b.alt(s, closing)
		}
		tail = s
	}
	return b.lit("[", tail), nil
}

// unique builds a list without repetitions: one of a list of values, in any order. What was written before decides what
// may come, which an automaton can remember of few values only.
func (c *compiler) unique(o *object, lo, hi int, next int32) (int32, error) {
	refuse := func(why string) (int32, error) { return 0, errAt(o.at("uniqueItems"), "is not supported %s", why) }
	for _, k := range []string{"prefixItems", "additionalItems"} {
		if _, ok := o.get(k); ok {
			return refuse("together with " + k)
		}
	}
	items, ok := o.get("items")
	if !ok {
		items = true
	}
	flat, err := c.flatten(items, o.at("items"), 0)
	if err != nil {
		return 0, err
	}
	item, ok := flat.(*object)
	if !ok {
		return refuse("for lists of anything; an enum of items is")
	}
	list, ok := item.values()
	if t, err := item.allTypes(); err != nil {
		return 0, err
	} else if !ok && t&^(tBoolean|tNull) == 0 {
		ok = true
		if t&tBoolean != 0 {
			list = append(list, true, false)
		}
		if t&tNull != 0 {
			list = append(list, nil)
		}
	}
	if !ok || len(list) > maxMembers {
		return refuse(fmt.Sprintf("for items other than an enum of up to %d values", maxMembers))
	}
	b := c.b
	members := &set{extra: -1, extraLater: -1}
	for i, v := range list {
		if slices.ContainsFunc(list[:i], func(w any) bool { return equal(v, w) }) {
			continue
		}
		one := item.without("enum", "const")
		one.set("const", v)
		rule := b.newRule()
		if b.rules[rule].start, err = c.body(one, endState); err != nil {
			return 0, err
		}
		members.add(b, rule)
	}
	closing := b.space(b.lit("]", next))
	return b.lit(
		"[",
		b.add(state{kind: kindSet, set: members, min: int32(lo), max: int32(hi), next: []int32{closing}}),
	), nil
}

// times runs a rule min to max times; a plain loop where no count is needed.
func (c *compiler) times(rule int32, min, max int, next int32) int32 {
	if min == 0 && max < 0 {
		return c.b.star(rule, next)
	}
	return c.b.repeat(rule, min, max, next)
}

// nextItem is the rule ", item".
func (c *compiler) nextItem(items any, path string) (int32, error) {
	if items == true {
		return c.std.itemNext, nil
	}
	r := c.b.newRule()
	s, err := c.value(items, path, endState)
	if err != nil {
		return 0, err
	}
	c.b.rules[r].start = c.b.comma(s)
	return r, nil
}

func (c *compiler) object(o *object, next int32) (int32, error) {
	props := &object{m: map[string]any{}, path: o.at("properties")}
	v, hasProps := o.get("properties")
	if hasProps {
		p, ok := v.(*object)
		if !ok {
			return 0, errAt(o.at("properties"), "must be an object")
		}
		props = p
	}
	required := o.required()
	if v, ok := o.get("required"); ok {
		list, isList := v.([]any)
		if !isList {
			return 0, errAt(o.at("required"), "must be a list")
		}
		for _, e := range list {
			if _, ok := e.(string); !ok {
				return 0, errAt(o.at("required"), "must be a list of strings")
			}
		}
	}
	extra, hasExtra := o.extra()
	if !hasExtra {
		extra = !hasProps // a plain {"type": "object"} is any object
	}
	extraPath := o.at("additionalProperties")

	// Required properties without a schema of their own come last.
	names := slices.Clone(props.keys)
	for _, k := range required {
		if _, ok := props.get(k); !ok {
			names = append(names, k)
		}
	}
	added, key, ok, err := c.keyNames(o, names, required)
	if err != nil {
		return 0, err
	}
	if !ok {
		return c.nothing(), nil
	}
	names = append(names, added...)
	patternKey, patternValue, err := c.patternKeys(o, names)
	if err != nil {
		return 0, err
	}
	// What keys without a name are, and their values: false for none.
	open, openPath := extra, extraPath
	switch {
	case key == false:
		open, key = false, nil
	case patternKey != nil && key != nil:
		return 0, errAt(o.at("patternProperties"), "together with propertyNames it is not supported")
	case patternKey != nil:
		key, open, openPath = patternKey, patternValue, o.at("patternProperties")
	}
	least, most, err := o.bounds("minProperties", "maxProperties")
	if err != nil {
		return 0, err
	}
	if least > len(required) && !(least == 1 && len(names) == 0) {
		return 0, errAt(o.at("minProperties"), "keyword \"minProperties\" is not supported beyond the required properties")
	}
	if most >= 0 && most < len(names) {
		return 0, errAt(o.at("maxProperties"), "keyword \"maxProperties\" below the number of properties is not supported")
	}

	b := c.b
	closing := b.space(b.lit("}", next))
	if c.anyOrder && len(names) > 1 && len(names) <= maxMembers {
		members := &set{extra: -1, extraLater: -1}
		for i, name := range names {
			member, err := c.member(name, props, extra, extraPath, hasExtra)
			if err != nil {
				return 0, err
			}
			members.add(b, member)
			if slices.Contains(required, name) {
				members.required |= 1 << i
			}
		}
		if open != false && most < 0 {
			if members.extra, err = c.extraMember(names, key, open, openPath); err != nil {
				return 0, err
			}
			members.extra, members.extraLater = members.pair(b, members.extra)
		}
		return b.lit(
			"{",
			b.add(state{kind: kindSet, set: members, min: int32(least), max: int32(most), next: []int32{closing}}),
		), nil
	}
	// With n the properties before, first[n] goes on when none has been
	// written, later[n] when one has and a comma is due.
	first, later := int32(-1), closing
	if least == 0 || len(required) > 0 {
		first = closing
	}
	if open != false && (most < 0 || most > len(names)) {
		room := -1
		if most >= 0 {
			room = most - len(names)
		}
		member, err := c.extraMember(names, key, open, openPath)
		if err != nil {
			return 0, err
		}
		again := b.newRule()
		b.rules[again].start = b.comma(b.call(member, endState))
		later = c.times(again, 0, room, closing)
		rest := closing
		if room < 0 || room > 1 {
			left := room
			if left > 0 {
				left--
			}
			rest = c.times(again, 0, left, closing)
		}
		one := b.space(b.call(member, rest))
		if first < 0 {
			first = one
		} else {
			first = b.alt(one, first)
		}
	}
	if first < 0 {
		return c.nothing(), nil
	}
	for i := len(names) - 1; i >= 0; i-- {
		member, err := c.member(names[i], props, extra, extraPath, hasExtra)
		if err != nil {
			return 0, err
		}
		f := b.space(b.call(member, later))
		l := b.comma(b.call(member, later))
		if slices.Contains(required, names[i]) {
			first, later = f, l
		} else {
			first, later = b.alt(f, first), b.alt(l, later)
		}
	}
	return b.lit("{", first), nil
}

// member is the rule of a property.
func (c *compiler) member(name string, props *object, extra any, extraPath string, hasExtra bool) (int32, error) {
	schema, ok := props.get(name)
	path := props.at(name)
	if !ok {
		// No schema of its own: additionalProperties speaks for it.
		schema, path = extra, extraPath
		if !hasExtra {
			schema = true
		}
	}
	r := c.b.newRule()
	s, err := c.value(schema, path, endState)
	if err != nil {
		return 0, err
	}
	c.b.rules[r].start = c.b.lit(c.b.key(name), c.b.colon(s))
	return r, nil
}

// add adds a member whose text is a rule's.
func (s *set) add(b *builder, rule int32) {
	first, later := s.pair(b, rule)
	s.first, s.later = append(s.first, first), append(s.later, later)
}

// pair is a rule as the first member of an object or list, and after a comma.
func (*set) pair(b *builder, rule int32) (first, later int32) {
	first, later = b.newRule(), b.newRule()
	b.rules[first].start, b.rules[later].start = b.space(b.call(rule, endState)), b.comma(b.call(rule, endState))
	return first, later
}

// extraMember is a rule for a member that is none of the named ones. Its key has a schema, or is any other name.
func (c *compiler) extraMember(names []string, key, schema any, path string) (int32, error) {
	if len(names) == 0 && schema == true && key == nil {
		return c.std.member, nil
	}
	r := c.b.newRule()
	s, err := c.value(schema, path, endState)
	if err != nil {
		return 0, err
	}
	start := c.b.colon(s)
	switch {
	case key != nil:
		p := key.(*object)
		start, err = c.string(p, start)
	case len(names) == 0:
		start = c.b.call(c.std.key, start)
	default:
		start = c.b.otherKey(names, start)
	}
	c.b.rules[r].start = start
	return r, err
}
