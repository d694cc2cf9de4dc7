package convert

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// roleKeys are the special-token roles in the order they are looked up, with
// the key each has in the file ("" for roles the format has no key for).
var roleKeys = []struct{ role, key string }{
	{"bos", "bos_token_id"}, {"eos", "eos_token_id"}, {"unk", "unknown_token_id"}, {"sep", "seperator_token_id"},
	{"pad", "padding_token_id"}, {"cls", ""}, {"mask", "mask_token_id"},
	// Only when the post-processor ends texts with something that is not EOS.
	{"eot", "eot_token_id"}, {"eom", "eom_token_id"},
}

// specialKeys writes special token ids, the add_… flags and the chat template.
func (t *hfTokenizer) specialKeys(l *keyList) error {
	roles := []string{"bos", "eos", "unk", "sep", "pad", "cls", "mask"}
	named := map[string]string{} // role -> text, as tokenizer_config.json has it
	for _, r := range roleKeys {
		if text, ok := tokenContent(t.cfg.m[r.role+"_token"]); ok {
			named[r.role] = text
		}
	}
	add := &flags{}
	roles = t.postProcessor(named, add, roles)

	ids := map[string]int{}
	var order []string
	setID := func(role string, id int) {
		if _, ok := ids[role]; !ok && id >= 0 {
			ids[role] = id
			order = append(order, role)
		}
	}
	if len(t.cfg.m) > 0 {
		for _, role := range roles {
			if v, ok := t.cfg.m["add_"+role+"_token"].(bool); ok {
				add.set(role, v)
			}
			text, ok := named[role]
			if !ok {
				continue
			}
			// Roles are resolved among the added tokens only.
			if i := slices.IndexFunc(t.added, func(a addedToken) bool { return a.Content == text }); i >= 0 {
				setID(role, t.added[i].ID)
			}
		}
	}
	c, _, err := readJSON(filepath.Join(t.dir, "config.json"))
	if err != nil {
		return err
	}
	text, _ := c.m["text_config"].(map[string]any)
	for _, role := range roles {
		v := c.m[role+"_token_id"]
		if v == nil {
			v = text[role+"_token_id"]
		}
		// A list of end tokens is common and has no place in the format.
		if id, ok := asInt(v); ok {
			if id < 0 {
				return fieldErr(c.path, role+"_token_id", "is %d", id)
			}
			setID(role, id)
		}
	}
	for _, role := range order {
		if key := roleKey(role); key != "" {
			l.set("tokenizer.ggml."+key, uint32(ids[role]))
		}
	}
	for _, f := range add.list {
		if f.role == "bos" || f.role == "eos" || f.role == "sep" {
			l.set("tokenizer.ggml.add_"+f.role+"_token", f.on)
		}
	}
	return t.templateKeys(l)
}

func roleKey(role string) string {
	for _, r := range roleKeys {
		if r.role == role {
			return r.key
		}
	}
	return ""
}

// flags remembers add_… settings in the order they were first seen.
type flags struct {
	list []flag
}

type flag struct {
	role string
	on   bool
}

func (f *flags) set(role string, on bool) {
	for i := range f.list {
		if f.list[i].role == role {
			f.list[i].on = on
			return
		}
	}
	f.list = append(f.list, flag{role, on})
}

// tokenContent reads a token given as text or as an object.
func tokenContent(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case map[string]any:
		s, ok := v["content"].(string)
		return s, ok
	}
	return "", false
}

// template parts of a TemplateProcessing post-processor.
type templateItem struct {
	Special *struct {
		ID string `json:"id"`
	} `json:"SpecialToken"`
	Sequence *struct {
		ID string `json:"id"`
	} `json:"Sequence"`
}

func (i templateItem) special() string {
	if i.Special == nil {
		return ""
	}
	return i.Special.ID
}

// postProcessor derives from the tokenizer's template whether texts begin and
// end with special tokens. It may change which token counts as EOS, and returns
// the roles to look up.
func (t *hfTokenizer) postProcessor(named map[string]string, add *flags, roles []string) []string {
	if !t.fast {
		return roles
	}
	if named["bos"] == "" && named["cls"] != "" {
		named["bos"] = named["cls"]
	}
	if named["eos"] == "" && named["sep"] != "" {
		named["eos"] = named["sep"]
	}
	type processor struct {
		Type       string            `json:"type"`
		Single     []templateItem    `json:"single"`
		Pair       []templateItem    `json:"pair"`
		Processors []json.RawMessage `json:"processors"`
	}
	var outer processor
	if json.Unmarshal(t.post, &outer) != nil {
		return roles
	}
	list := []processor{outer}
	if outer.Processors != nil {
		list = nil
		for _, raw := range outer.Processors {
			var p processor
			if json.Unmarshal(raw, &p) == nil {
				list = append(list, p)
			}
		}
	}
	for _, p := range list {
		if p.Type != "TemplateProcessing" {
			continue
		}
		first, last := "", ""
		if n := len(p.Single); n > 1 {
			if first = p.Single[0].special(); first != "" {
				if len(t.cfg.m) == 0 {
					named["bos"] = first
				}
				add.set("bos", first == named["bos"] || first == named["cls"])
			}
			if last = p.Single[n-1].special(); last != "" {
				if eos := named["eos"]; len(t.cfg.m) > 0 && last != eos {
					// Texts end with another token: what was EOS ends turns.
					for _, role := range []string{"eot", "eom"} {
						if !slices.Contains(roles, role) {
							roles = append(roles, role)
							named[role] = eos
							break
						}
					}
				}
				named["eos"] = last
				add.set("eos", true)
			}
		}
		t.pairTemplate(p.Pair, first, last, named, add)
	}
	return roles
}

// pairTemplate looks for a separator between two texts.
func (t *hfTokenizer) pairTemplate(pair []templateItem, first, last string, named map[string]string, add *flags) {
	if len(pair) == 0 {
		return
	}
	if first != "" && pair[0].special() == first {
		pair = pair[1:]
	}
	if n := len(pair); last != "" && n > 0 && pair[n-1].special() == last {
		pair = pair[:n-1]
	}
	n := len(pair)
	if n < 3 || pair[0].Sequence == nil || pair[0].Sequence.ID != "A" || pair[n-1].Sequence == nil ||
		pair[n-1].Sequence.ID != "B" {
		return
	}
	middle := pair[1 : n-1]
	separates := func(s string) bool { return s != "" && (s == named["sep"] || s == named["eos"]) }
	sep := separates(middle[0].special()) && last == ""
	if len(middle) == 2 && separates(middle[1].special()) {
		sep = true
	}
	add.set("sep", sep)
	if sep && named["sep"] == "" {
		named["sep"] = named["eos"]
	}
}

// templateKeys writes the chat template: the one in tokenizer_config.json, else
// the file beside it, with further named ones where they exist.
func (t *hfTokenizer) templateKeys(l *keyList) error {
	if len(t.cfg.m) == 0 {
		return nil
	}
	var v any = t.cfg.m["chat_template"]
	if _, set := t.cfg.m["chat_template"]; !set {
		var err error
		if v, err = t.templateFile(); err != nil {
			return err
		}
	}
	switch v := v.(type) {
	case string:
		l.setString("tokenizer.chat_template", v)
	case []any:
		t.namedTemplates(l, v)
	}
	return nil
}

func (t *hfTokenizer) templateFile() (any, error) {
	main, err := readFile(filepath.Join(t.dir, "chat_template.jinja"))
	if os.IsNotExist(err) {
		c, _, err := readJSON(filepath.Join(t.dir, "chat_template.json"))
		return c.m["chat_template"], err
	}
	if err != nil {
		return nil, err
	}
	more, _ := filepath.Glob(filepath.Join(t.dir, "additional_chat_templates", "*.jinja"))
	if len(more) == 0 {
		return universalNewlines(main), nil
	}
	list := []any{map[string]any{"name": "default", "template": universalNewlines(main)}}
	for _, path := range more {
		data, err := readFile(path)
		if err != nil {
			return nil, err
		}
		list = append(list, map[string]any{
			"name": strings.TrimSuffix(filepath.Base(path), ".jinja"), "template": universalNewlines(data)})
	}
	return list, nil
}

// universalNewlines reads text the way text files are read elsewhere, so that a
// checkout with CRLF gives the same file.
func universalNewlines(b []byte) string {
	return strings.ReplaceAll(strings.ReplaceAll(string(b), "\r\n", "\n"), "\r", "\n")
}

func (t *hfTokenizer) namedTemplates(l *keyList, list []any) {
	var names []string
	main := ""
	for _, e := range list {
		m, _ := e.(map[string]any)
		name, _ := m["name"].(string)
		text, _ := m["template"].(string)
		name = strings.Map(func(r rune) rune {
			if r < 128 && (r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z') {
				return r
			}
			return '_'
		}, name)
		switch {
		case name == "" || text == "":
		case name == "default":
			main = text
		default:
			names = append(names, name)
			l.setString("tokenizer.chat_template."+name, text)
		}
	}
	slices.Sort(names)
	setList(l, "tokenizer.chat_templates", slices.Compact(names))
	l.setString("tokenizer.chat_template", main)
}
