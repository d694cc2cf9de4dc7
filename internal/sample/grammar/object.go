package grammar

import "slices"

// objectShape is what a schema says about the members of an object.
type objectShape struct {
	names    []string // of the properties, in the order they are written in
	required []string
	props    *object // schemas of names
	// extra is the schema of names without one.
	extra    any
	hasExtra bool
	path     string // of extra
	// Members without a name: the schema of their keys, nil for any, and of their values, false for none.
	key      any
	open     any
	openPath string
	// How many members there are; most < 0 for no bound.
	least, most int
	counted     bool // only counting members tells whether there are enough or too many
}

func (c *compiler) object(o *object, next int32) int32 {
	s := c.shape(o)
	if s == nil {
		return c.nothing()
	}
	if (c.anyOrder || s.counted) && len(s.names) > 1 && len(s.names) <= maxMembers {
		return c.unordered(s, next)
	}
	return c.ordered(s, next)
}

// shape reads the keywords about objects; nil if no object fits them.
func (c *compiler) shape(o *object) *objectShape {
	s := &objectShape{
		props:    &object{m: map[string]any{}, path: o.at("properties")},
		required: o.required(),
		path:     o.at("additionalProperties"),
	}
	v, hasProps := o.get("properties")
	if hasProps {
		p, ok := v.(*object)
		if !ok {
			panic(errAt(o.at("properties"), "must be an object"))
		}
		s.props = p
	}
	if v, ok := o.get("required"); ok {
		list, isList := v.([]any)
		if !isList {
			panic(errAt(o.at("required"), "must be a list"))
		}
		if slices.ContainsFunc(list, func(e any) bool { _, ok := e.(string); return !ok }) {
			panic(errAt(o.at("required"), "must be a list of strings"))
		}
	}
	if s.extra, s.hasExtra = o.extra(); !s.hasExtra {
		s.extra = !hasProps // {"type": "object"} alone is any object
	}
	// Required properties without a schema of their own come last.
	s.names = slices.Clone(s.props.keys)
	for _, k := range s.required {
		if _, ok := s.props.get(k); !ok {
			s.names = append(s.names, k)
		}
	}
	if !c.openMembers(o, s) {
		return nil
	}
	s.counts(o)
	return s
}

// openMembers finds what members without a name are like; false if no object fits.
func (c *compiler) openMembers(o *object, s *objectShape) bool {
	added, key, fits := c.keyNames(o, s.names, s.required)
	if !fits {
		return false
	}
	s.names = append(s.names, added...)
	patternKey, patternValue := c.patternKeys(o, s.names)
	s.key, s.open, s.openPath = key, s.extra, s.path
	switch {
	case key == false:
		s.key, s.open = nil, false
	case patternKey != nil && key != nil:
		panic(errAt(o.at("patternProperties"), "together with propertyNames it is not supported"))
	case patternKey != nil:
		s.key, s.open, s.openPath = patternKey, patternValue, o.at("patternProperties")
	}
	return true
}

// counts reads how many members an object may have.
func (s *objectShape) counts(o *object) {
	s.least, s.most = o.bounds("minProperties", "maxProperties")
	// What an automaton cannot tell by the members that must be there, it counts, and then they come in any order.
	open := s.open != false && s.most < 0
	s.counted = (s.least > len(s.required) || s.most >= 0 && s.most < len(s.names)) && len(s.names) > 1 &&
		len(s.names) <= maxMembers && (open || s.least <= len(s.names)) && (s.most < 0 || s.most >= len(s.required))
	if s.counted {
		return
	}
	if s.least > len(s.required) && !(s.least == 1 && len(s.names) == 0) {
		panic(errAt(o.at("minProperties"), "keyword \"minProperties\" is not supported beyond the required properties"))
	}
	if s.most >= 0 && s.most < len(s.names) {
		panic(errAt(o.at("maxProperties"), "keyword \"maxProperties\" below the number of properties is not supported"))
	}
}

// unordered builds an object whose members come in any order.
func (c *compiler) unordered(s *objectShape, next int32) int32 {
	b := c.b
	closing := b.space(b.lit("}", next))
	members := &set{extra: -1, extraLater: -1}
	for i, name := range s.names {
		members.add(b, c.member(name, s))
		if slices.Contains(s.required, name) {
			members.required |= 1 << i
		}
	}
	if s.open != false && s.most < 0 {
		members.extra, members.extraLater = members.pair(b, c.extraMember(s))
	}
	return b.lit("{", b.add(state{
		kind: kindSet, set: members, min: int32(s.least), max: int32(s.most), next: []int32{closing},
	}))
}

// ordered builds an object whose members come in the order of the schema.
func (c *compiler) ordered(s *objectShape, next int32) int32 {
	b := c.b
	closing := b.space(b.lit("}", next))
	first, later := c.openTail(s, closing)
	if first < 0 {
		return c.nothing()
	}
	for _, name := range slices.Backward(s.names) {
		member := c.member(name, s)
		start, after := b.space(b.call(member, later)), b.comma(b.call(member, later))
		if slices.Contains(s.required, name) {
			first, later = start, after
		} else {
			first, later = b.alt(start, first), b.alt(after, later)
		}
	}
	return b.lit("{", first)
}

// openTail is what follows the named members: first goes on when none has been written, or is negative when that is
// not allowed; later goes on when one has been and a comma is due.
func (c *compiler) openTail(s *objectShape, closing int32) (first, later int32) {
	b := c.b
	first, later = -1, closing
	if s.least == 0 || len(s.required) > 0 {
		first = closing
	}
	if s.open == false || s.most >= 0 && s.most <= len(s.names) {
		return first, later
	}
	room := -1
	if s.most >= 0 {
		room = s.most - len(s.names)
	}
	member := c.extraMember(s)
	again := b.newRule()
	b.rules[again].start = b.comma(b.call(member, endState))
	later = c.times(again, 0, room, closing)
	rest := closing
	switch {
	case room < 0:
		rest = c.times(again, 0, room, closing)
	case room > 1:
		rest = c.times(again, 0, room-1, closing)
	}
	one := b.space(b.call(member, rest))
	if first < 0 {
		return one, later
	}
	return b.alt(one, first), later
}

// member is the rule of a property.
func (c *compiler) member(name string, s *objectShape) int32 {
	schema, ok := s.props.get(name)
	path := s.props.at(name)
	if !ok {
		// No schema of its own: additionalProperties speaks for it.
		schema, path = s.extra, s.path
		if !s.hasExtra {
			schema = true
		}
	}
	r := c.b.newRule()
	value := c.value(schema, path, endState)
	c.b.rules[r].start = c.b.lit(c.b.key(name), c.b.colon(value))
	return r
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
func (c *compiler) extraMember(s *objectShape) int32 {
	if len(s.names) == 0 && s.open == true && s.key == nil {
		return c.std.member
	}
	r := c.b.newRule()
	value := c.value(s.open, s.openPath, endState)
	start := c.b.colon(value)
	switch {
	case s.key != nil:
		start = c.string(s.key.(*object), start)
	case len(s.names) == 0:
		start = c.b.call(c.std.key, start)
	default:
		start = c.b.otherKey(s.names, start)
	}
	c.b.rules[r].start = start
	return r
}
