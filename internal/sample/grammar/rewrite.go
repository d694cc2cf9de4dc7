package grammar

import "slices"

// maxDepends is how many dependencies of an object are told apart: each doubles the alternatives.
const maxDepends = 4

// rewrite replaces "not" and dependencies by a list of schemas without them; a value must fit one of the list. It is
// nil for a schema that has neither, and where no such list is known.
func (c *compiler) rewrite(o *object) []any {
	for _, k := range []string{"dependentRequired", "dependentSchemas", "dependencies"} {
		v, ok := o.get(k)
		if !ok {
			continue
		}
		deps, isObject := v.(*object)
		if !isObject {
			panic(errAt(o.at(k), "must be an object"))
		}
		if len(deps.keys) > maxDepends {
			panic(errAt(o.at(k), "more than %d of them are not supported", maxDepends))
		}
		rest := o.without(k)
		if len(deps.keys) == 0 {
			return []any{rest}
		}
		name := deps.keys[0]
		if len(deps.keys) > 1 {
			rest.set(k, deps.without(name))
		}
		// The property is not there, or it is and what depends on it holds.
		with := rest.requires(name)
		if list, isList := deps.m[name].([]any); isList {
			for _, e := range list {
				s, isString := e.(string)
				if !isString {
					panic(errAt(deps.at(name), "must be a list of strings"))
				}
				with = with.requires(s)
			}
			return []any{rest.lacks(name), with}
		}
		return []any{rest.lacks(name), allOf(o.path, with, deps.m[name])}
	}
	if v, ok := o.get("not"); ok {
		if not, isObject := v.(*object); isObject {
			return o.without("not").except(not)
		}
	}
	return nil
}

// requires adds a property to those that are required.
func (o *object) requires(name string) *object {
	out := o.without()
	list, _ := o.m["required"].([]any)
	out.set("required", append(slices.Clone(list), name))
	return out
}

// lacks forbids a property.
func (o *object) lacks(name string) *object {
	out := o.without()
	props, ok := o.m["properties"].(*object)
	if !ok {
		props = &object{m: map[string]any{}, path: o.at("properties")}
		if _, given := o.extra(); !given { // it did not say which properties there are, and does not now
			out.set("additionalProperties", true)
		}
	}
	props = props.without()
	props.set(name, false)
	out.set("properties", props)
	return out
}

// except is a list of schemas: a value that fits o but not the other schema fits one of them. It is nil where no such
// list is known.
func (o *object) except(not *object) []any {
	var keys []string
	for _, k := range not.keys {
		if constraints[k] || unsupported[k] {
			keys = append(keys, k)
		}
	}
	if len(keys) != 1 {
		return nil
	}
	switch key := keys[0]; key {
	case "required": // of an object, and one of them is missing
		if len(not.required()) == 0 {
			return nil
		}
		narrow := o.without()
		narrow.set("type", typeList(o.types()&tObject))
		var out []any
		for _, name := range not.required() {
			out = append(out, narrow.lacks(name))
		}
		return out
	case "anyOf": // none of them
		list, _ := not.m["anyOf"].([]any)
		out := []any{o}
		for _, e := range list {
			sub, ok := e.(*object)
			if !ok || len(out) != 1 {
				return nil
			}
			if out = out[0].(*object).except(sub); out == nil {
				return nil
			}
		}
		return out
	case "type":
		t := typeSet(not.m[key], not.at(key))
		if t&(tNumber|tInteger) == tInteger && o.types()&tNumber != 0 {
			return nil // numbers that are no integers
		}
		out := o.without()
		out.set("type", typeList(o.types()&^t))
		return []any{out}
	case "enum", "const":
		values, _ := not.values()
		list, ok := o.values()
		if !ok {
			return nil
		}
		left := []any{}
		for _, v := range list {
			if !slices.ContainsFunc(values, func(w any) bool { return equal(v, w) }) {
				left = append(left, v)
			}
		}
		out := o.without("const", "enum")
		out.set("enum", left)
		return []any{out}
	}
	return nil
}
