package grammar

import (
	"fmt"
	"slices"
)

func (c *compiler) array(o *object, next int32) int32 {
	if _, ok := o.get("contains"); ok {
		panic(errAt(o.at("contains"), "keyword \"contains\" is not supported"))
	}
	lo, hi := o.bounds("minItems", "maxItems")
	if v, ok := o.get("uniqueItems"); ok && v == true && (hi < 0 || hi > 1) {
		return c.unique(o, lo, hi, next)
	}
	items, hasItems := o.get("items")
	itemsPath := o.at("items")
	prefix, hasPrefix := o.m["prefixItems"].([]any)
	prefixPath := o.at("prefixItems")
	if _, ok := o.get("prefixItems"); ok && !hasPrefix {
		panic(errAt(prefixPath, "must be a list"))
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
		return c.nothing()
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
			r := c.nextItem(items, itemsPath)
			tail = c.times(r, more, most, closing)
		} else {
			r := c.nextItem(items, itemsPath)
			if most > 0 {
				most--
			}
			first := c.value(items, itemsPath, c.times(r, max(more-1, 0), most, closing))
			start := b.space(first)
			if lo == 0 {
				start = b.alt(start, closing)
			}
			return b.lit("[", start)
		}
	}
	for i := len(prefix) - 1; i >= 0; i-- {
		s := c.value(prefix[i], fmt.Sprintf("%s/%d", prefixPath, i), tail)
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
	return b.lit("[", tail)
}

// unique builds a list without repetitions: one of a list of values, in any order. What was written before decides what
// may come, which an automaton can remember of few values only.
func (c *compiler) unique(o *object, lo, hi int, next int32) int32 {
	refuse := func(why string) { panic(errAt(o.at("uniqueItems"), "is not supported %s", why)) }
	for _, k := range []string{"prefixItems", "additionalItems"} {
		if _, ok := o.get(k); ok {
			refuse("together with " + k)
		}
	}
	items, ok := o.get("items")
	if !ok {
		items = true
	}
	flat := c.flatten(items, o.at("items"), 0)
	item, ok := flat.(*object)
	if !ok {
		refuse("for lists of anything; an enum of items is")
	}
	list, ok := item.values()
	if t := item.allTypes(); !ok && t&^(tBoolean|tNull) == 0 {
		ok = true
		if t&tBoolean != 0 {
			list = append(list, true, false)
		}
		if t&tNull != 0 {
			list = append(list, nil)
		}
	}
	if !ok || len(list) > maxMembers {
		refuse(fmt.Sprintf("for items other than an enum of up to %d values", maxMembers))
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
		start := c.body(one, endState) // may add rules
		b.rules[rule].start = start
		members.add(b, rule)
	}
	closing := b.space(b.lit("]", next))
	return b.lit("[", b.add(state{
		kind: kindSet, set: members, min: int32(lo), max: int32(hi), next: []int32{closing},
	}))
}

// times runs a rule min to max times; a loop where no count is needed.
func (c *compiler) times(rule int32, min, max int, next int32) int32 {
	if min == 0 && max < 0 {
		return c.b.star(rule, next)
	}
	return c.b.repeat(rule, min, max, next)
}

// nextItem is the rule ", item".
func (c *compiler) nextItem(items any, path string) int32 {
	if items == true {
		return c.std.itemNext
	}
	r := c.b.newRule()
	s := c.value(items, path, endState)
	c.b.rules[r].start = c.b.comma(s)
	return r
}
