package tokenizer

import "slices"

// End-of-generation tokens. Files often name only one of them, so the set is
// completed by token text, in the way llama.cpp does it.

// eogTexts end generation whatever the file says.
var eogTexts = []string{
	"<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
	"<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
	"<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
	"<｜end▁of▁sentence｜>", "[e~[",
}

// roleTexts find a role by text when the file has no key for it.
var roleTexts = []struct {
	role  Role
	texts []string
}{
	{RoleEOM, []string{"<|eom_id|>"}},
	{RoleFIMPre, []string{"<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>",
		"<|code_prefix|>", "<|prefix|>"}},
	{RoleFIMSuf, []string{"<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>",
		"<|code_suffix|>", "<|suffix|>"}},
	{RoleFIMMid, []string{"<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>",
		"<|code_middle|>", "<|middle|>"}},
	{RoleFIMPad, []string{"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"}},
	{RoleFIMRep, []string{"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"}},
	{RoleFIMSep, []string{"<|file_sep|>"}},
}

// assignRoles reads the roles, completes them by text, and makes the
// end-of-generation set. Tokens found by text become control tokens in kinds: a
// converter that left them normal or user-defined made a mistake.
func (t *Tokenizer) assignRoles(c Config, kinds []TokenKind) {
	known := wellKnown(c.Tokens)
	t.roles = map[Role]ID{}
	for r, id := range c.Special {
		if id >= 0 && int(id) < len(kinds) {
			t.roles[r] = id
		}
	}
	if c.Model == "llama" { // SentencePiece's own order, which files may leave out
		for id, r := range []Role{RoleUnknown, RoleBOS, RoleEOS} {
			if _, ok := t.roles[r]; !ok && id < len(kinds) {
				t.roles[r] = ID(id)
			}
		}
	}
	for _, rt := range roleTexts {
		if _, ok := t.roles[rt.role]; ok {
			continue
		}
		for _, text := range rt.texts {
			if id, ok := known[text]; ok {
				t.roles[rt.role] = id
				kinds[id] = Control
				break
			}
		}
	}

	t.eogSet = map[ID]struct{}{}
	for _, r := range []Role{RoleFIMPad, RoleFIMRep, RoleFIMSep, RoleEOS, RoleEOT, RoleEOM} {
		if id, ok := t.roles[r]; ok {
			t.eogSet[id] = struct{}{}
		}
	}
	for _, text := range eogTexts {
		if id, ok := known[text]; ok {
			t.eogSet[id] = struct{}{}
			kinds[id] = Control
		}
	}

	has := func(text string) bool {
		id, ok := known[text]
		return ok && t.IsEOG(id)
	}
	call := has("<|call|>") || has("<|calls|>")
	if has("<|end|>") && call && (has("<|return|>") || has("<|flush|>")) {
		delete(t.eogSet, known["<|end|>"]) // ends a message there, not the turn
	}
	if has("</s>") && has("<|tool_response>") {
		delete(t.eogSet, known["</s>"]) // the HTML tag in Gemma 4
		kinds[known["</s>"]] = Normal
	}
	for id := range t.eogSet {
		t.eog = append(t.eog, id)
	}
	slices.Sort(t.eog)
}

// wellKnown maps the texts of the tables above to their ids, where present.
func wellKnown(tokens []string) map[string]ID {
	want := map[string]ID{}
	for _, s := range eogTexts {
		want[s] = -1
	}
	for _, rt := range roleTexts {
		for _, s := range rt.texts {
			want[s] = -1
		}
	}
	found := map[string]ID{}
	for i, s := range tokens {
		// All of them end in a bracket; looking up only those keeps loading quick.
		if n := len(s); n < 4 || n > 32 || s[n-1] != '>' && s[n-1] != ']' && s[n-1] != '[' {
			continue
		}
		if _, ok := want[s]; ok {
			found[s] = ID(i)
		}
	}
	// Keys of found may alias the file's mapping, but found does not outlive New.
	return found
}
