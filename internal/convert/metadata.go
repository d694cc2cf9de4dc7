package convert

import (
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"strobe/internal/gguf"
)

// authorship is what the general.* keys say about a model. Most of it is guessed
// from the model card and from names like "Qwen3-8B-Instruct"; the guesses
// follow the reference converter, because people search by them.
type authorship struct {
	sampling []samplingValue
	text     map[string]string // "name", "author", ... -> value
	bases    []map[string]string
	hasBases bool
	datasets []map[string]string
	hasData  bool
	tags     []string
	langs    []string
}

type samplingValue struct {
	key   string
	value any
}

// textKeys are the single-valued keys in file order; source_url and its like
// come from the model card's url, doi, uuid and repo_url.
var textKeys = []struct{ name, key string }{
	{"name", "general.name"}, {"author", "general.author"}, {"version", "general.version"},
	{"organization", "general.organization"}, {"finetune", "general.finetune"}, {"basename", "general.basename"},
	{"description", "general.description"}, {"size_label", "general.size_label"}, {"license", "general.license"},
	{"license_name", "general.license.name"}, {"license_link", "general.license.link"},
	{"url", "general.source.url"}, {"doi", "general.source.doi"}, {"uuid", "general.source.uuid"},
	{"repo_url", "general.source.repo_url"},
}

// params counts parameters the way size labels need them.
type params struct {
	total, shared, expert, experts int
}

func countParams(tensors []gguf.TensorSpec) params {
	var p params
	sum, n := 0, 0
	for _, t := range tensors {
		size, shape := 1, t.Shape
		for _, d := range shape {
			size *= d
		}
		p.total += size
		if strings.Contains(t.Name, "_exps.") && len(shape) >= 3 {
			count := shape[2]
			p.expert += size / count
			sum += count
			n++
		} else {
			p.shared += size
		}
	}
	if n > 0 {
		p.experts = sum / n
	}
	return p
}

// SizeLabel is the size people know a model by, such as "27B" or "256x2.6B".
func SizeLabel(tensors []gguf.TensorSpec) string { return countParams(tensors).sizeLabel() }

func (p params) sizeLabel() string {
	if p.experts > 0 {
		return fmt.Sprintf("%dx%s", p.experts, roundedCount(p.shared+p.expert))
	}
	return roundedCount(p.total)
}

func roundedCount(n int) string {
	scaled, suffix := float64(n)*1e-3, "K"
	switch {
	case float64(n) >= 1e12:
		scaled, suffix = float64(n)*1e-12, "T"
	case float64(n) >= 1e9:
		scaled, suffix = float64(n)*1e-9, "B"
	case float64(n) >= 1e6:
		scaled, suffix = float64(n)*1e-6, "M"
	}
	digits := strings.TrimLeft(strconv.FormatFloat(math.RoundToEven(scaled), 'f', 0, 64), "0")
	return strconv.FormatFloat(scaled, 'f', max(0, 2-len(digits)), 64) + suffix
}

// readAuthorship collects everything known about the checkpoint in dir.
func readAuthorship(dir string, p params) (*authorship, error) {
	a := &authorship{text: map[string]string{}}
	if err := a.readSampling(dir); err != nil {
		return nil, err
	}
	card, err := readCard(filepath.Join(dir, "README.md"))
	if err != nil {
		return nil, err
	}
	a.readModelCard(card, p.total)
	c, _, err := readJSON(filepath.Join(dir, "config.json"))
	if err != nil {
		return nil, err
	}
	if id, ok := c.m["_name_or_path"].(string); ok && strings.Count(id, "/") <= 1 {
		a.fromName(id, p.total)
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	a.fromName(filepath.Base(abs), p.total)
	if a.text["name"] == "" {
		a.text["name"] = filepath.Base(abs)
	}
	if _, ok := a.text["size_label"]; !ok && p.total > 0 {
		a.text["size_label"] = p.sizeLabel()
	}
	return a, nil
}

// readSampling takes the recommended sampling parameters from
// generation_config.json. A broken file is ignored, as the reference does.
func (a *authorship) readSampling(dir string) error {
	gen, ok, err := readJSON(filepath.Join(dir, "generation_config.json"))
	if err != nil || !ok {
		return nil
	}
	for _, s := range []struct {
		from, to string
		whole    bool
	}{
		{"top_k", "top_k", true}, {"top_p", "top_p", false}, {"min_p", "min_p", false},
		{"xtc_probability", "xtc_probability", false}, {"xtc_threshold", "xtc_threshold", false},
		{"temperature", "temp", false}, {"penalty_last_n", "penalty_last_n", true},
		{"penalty_repeat", "penalty_repeat", false}, {"mirostat", "mirostat", true},
		{"mirostat_tau", "mirostat_tau", false}, {"mirostat_eta", "mirostat_eta", false},
	} {
		key := "general.sampling." + s.to
		if s.whole {
			if v, ok := gen.int(s.from); ok {
				a.sampling = append(a.sampling, samplingValue{key, int32(v)})
			}
		} else if v, ok := gen.float(s.from); ok {
			a.sampling = append(a.sampling, samplingValue{key, float32(v)})
		}
	}
	return gen.failed()
}

// use sets a value that is not set yet.
func (a *authorship) use(name, value string) {
	if _, ok := a.text[name]; !ok && value != "" {
		a.text[name] = value
	}
}

// readModelCard reads the front matter of README.md.
func (a *authorship) readModelCard(card map[string]any, total int) {
	str := func(key string) string {
		switch v := card[key].(type) {
		case string:
			return v
		case []any:
			if key == "license" {
				return strings.Join(stringsOf(v), ",")
			}
		}
		return ""
	}
	names := []string{"name", "author", "version", "organization", "description", "finetune", "basename", "size_label",
		"url", "doi", "uuid", "repo_url"}
	for _, prefix := range []string{"", "model_"} {
		for _, n := range names {
			a.use(n, str(prefix+n))
		}
	}
	a.use("author", str("model_creator"))
	a.use("basename", str("model_type"))
	a.bases, a.hasBases = related(card, total, "base_model", "base_models", "base_model_sources")
	a.datasets, a.hasData = related(card, total, "datasets", "dataset", "dataset_sources")
	for _, n := range []string{"license", "license_name", "license_link"} {
		a.use(n, str(n))
	}
	for _, key := range []string{"tags", "pipeline_tag"} {
		a.tags = append(a.tags, stringsOf(card[key])...)
	}
	for _, key := range []string{"languages", "language"} {
		a.langs = append(a.langs, stringsOf(card[key])...)
	}
}

func stringsOf(v any) []string {
	switch v := v.(type) {
	case string:
		return []string{v}
	case []any:
		var out []string
		for _, e := range v {
			if s, ok := e.(string); ok {
				out = append(out, s)
			}
		}
		return out
	}
	return nil
}

var hubURL = regexp.MustCompile(`^https?://huggingface.co/([^/]+/[^/]+)$`)

// related describes the models or datasets a card refers to.
func related(card map[string]any, total int, keys ...string) ([]map[string]string, bool) {
	found := false
	var value any
	for i := len(keys) - 1; i >= 0; i-- {
		if v, ok := card[keys[i]]; ok {
			found, value = true, v
		}
	}
	if !found {
		return nil, false
	}
	out := []map[string]string{}
	for _, id := range stringsOf(value) {
		e := map[string]string{}
		describe := func(id string, link bool) {
			n := splitName(id, total)
			if n.full != "" {
				e["name"] = title(n.full)
			}
			if n.org != "" {
				e["organization"] = title(n.org)
			}
			if n.version != "" {
				e["version"] = n.version
			}
			if link && n.org != "" && n.full != "" {
				e["repo_url"] = "https://huggingface.co/" + n.org + "/" + n.full
			}
		}
		if strings.HasPrefix(id, "http://") || strings.HasPrefix(id, "https://") || strings.HasPrefix(id, "ssh://") {
			e["repo_url"] = id
			if m := hubURL.FindStringSubmatch(id); m != nil {
				describe(m[1], false)
			}
		} else {
			describe(id, true)
		}
		out = append(out, e)
	}
	return out, true
}

// fromName fills gaps from a model id such as "Qwen/Qwen3-8B".
func (a *authorship) fromName(id string, total int) {
	n := splitName(id, total)
	if n.full != "" {
		a.use("name", title(n.full))
	}
	if n.org != "" {
		a.use("organization", title(n.org))
	}
	a.use("basename", n.base)
	a.use("finetune", n.finetune)
	a.use("version", n.version)
	a.use("size_label", n.size)
}

var versionWord = regexp.MustCompile(`^(v\d+(?:\.\d+)*|\d.*)$`)

// title turns an id into a name: dashes to spaces, lower-case words capitalised.
func title(id string) string {
	words := strings.Fields(strings.ReplaceAll(strings.TrimSpace(id), "-", " "))
	for i, w := range words {
		if isLower(w) && !versionWord.MatchString(w) {
			words[i] = titleWord(w)
		}
	}
	return strings.Join(words, " ")
}

// isLower reports whether w has letters and none of them is upper case.
func isLower(w string) bool {
	lower := false
	for _, r := range w {
		if unicode.IsUpper(r) || unicode.IsTitle(r) {
			return false
		}
		lower = lower || unicode.IsLower(r)
	}
	return lower
}

// titleWord capitalises every letter that does not follow another one.
func titleWord(w string) string {
	prev := false
	return strings.Map(func(r rune) rune {
		out := unicode.ToLower(r)
		if !prev {
			out = unicode.ToTitle(r)
		}
		prev = unicode.IsLetter(r)
		return out
	}, w)
}

// nameParts is a model id taken apart.
type nameParts struct {
	full, org, base, finetune, version, size string
}

var (
	versionPart  = regexp.MustCompile(`(?i)^(v|iter)?\d+([.]\d+)*$`)
	typePart     = regexp.MustCompile(`(?i)^(i?q\d(_\w)*|b?fp?(16|32))$`)
	sizePart     = regexp.MustCompile(`(?i)^(([A]|\d+[x])?\d+([._]\d+)?[KMBT][\d]?|small|mini|medium|large|x?xl)$`)
	finetunePart = regexp.MustCompile(`(?i)^(chat|instruct|vision|lora)$`)
	activePart   = regexp.MustCompile(`(?i)^A\d+([._]\d+)?[KMBT][\d]?$`)
)

// splitName takes a model id apart. total is the number of parameters: a part
// that looks like a size but is far from it is probably a context length.
func splitName(id string, total int) nameParts {
	if id == "" {
		return nameParts{}
	}
	if strings.Contains(id, " ") {
		return nameParts{full: id} // a sentence, not an id
	}
	n := nameParts{full: id}
	if org, rest, ok := strings.Cut(id, "/"); ok {
		n.full = rest
		if !strings.HasPrefix(org, ".") {
			n.org = org
		}
	}
	parts := slices.DeleteFunc(strings.Split(n.full, "-"), func(s string) bool { return s == "" })
	kinds := make([]map[string]bool, len(parts))
	for i := range parts {
		kinds[i] = map[string]bool{}
		markPart(parts, kinds, i, total)
	}
	dropWordSizes(parts, kinds)

	start := true
	for i, p := range parts {
		k := kinds[i]
		first := []rune(p)[0]
		if start && (len(k) == 0 && unicode.IsLetter(first) || k["version"]) {
			k["basename"] = true
			continue
		}
		start = false
		if len(k) == 0 {
			k["finetune"] = true
		}
	}
	for i := len(parts) - 1; i >= 0 && kinds[i]["basename"] && len(kinds[i]) > 1; i-- {
		delete(kinds[i], "basename")
	}

	join := func(pick func(k map[string]bool) bool) string {
		var out []string
		for i, p := range parts {
			if pick(kinds[i]) {
				out = append(out, p)
			}
		}
		return strings.Join(out, "-")
	}
	n.base = join(func(k map[string]bool) bool { return k["basename"] })
	n.finetune = join(func(k map[string]bool) bool { return k["finetune"] })
	n.version = join(func(k map[string]bool) bool { return k["version"] && !k["basename"] })
	var sizes []string
	for i, p := range parts {
		if kinds[i]["size_label"] && !slices.Contains(sizes, p) {
			sizes = append(sizes, p)
		}
	}
	n.size = strings.Join(sizes, "-")
	if n.size == "" && n.finetune == "" && n.version == "" {
		n.base = "" // too ambiguous
	}
	return n
}

// markPart decides what part i of a name is, and may respell it.
func markPart(parts []string, kinds []map[string]bool, i, total int) {
	part := parts[i]
	switch {
	case versionPart.MatchString(part):
		kinds[i]["version"] = true
	case typePart.MatchString(part):
		kinds[i]["type"] = true
		parts[i] = strings.ToUpper(part)
	case i > 0 && sizePart.MatchString(part):
		part = respellSize(part)
		if count, ok := sizeCount(part); ok && total > 0 {
			next := ""
			if i+1 < len(parts) {
				next = respellSize(parts[i+1])
			}
			// "26B-A4B": the first is a size even where the second is closer.
			active := false
			if activePart.MatchString(next) {
				if n, ok := sizeCount(next[1:]); ok {
					active = math.Abs(n-float64(total)) <= float64(7*total/8)
				}
			}
			if !active && math.Abs(count-float64(total)) > float64(7*total/8) {
				kinds[i]["finetune"] = true
				part = part[:len(part)-1] + strings.ToLower(part[len(part)-1:])
			}
		}
		if len(kinds[i]) == 0 {
			kinds[i]["size_label"] = true
		}
		parts[i] = part
	case i > 0 && finetunePart.MatchString(part):
		kinds[i]["finetune"] = true
	}
}

// respellSize normalises "7b1" to "7.1B" and "0_6b" to "0.6B".
func respellSize(s string) string {
	s = strings.ReplaceAll(s, "_", ".")
	isDigit := func(b byte) bool { return b >= '0' && b <= '9' }
	if n := len(s); n > 1 && isDigit(s[n-1]) {
		s = s[:n-2] + "." + s[n-1:] + s[n-2:n-1]
	}
	if n := len(s); n > 1 && isDigit(s[n-2]) && strings.ContainsRune("kmbt", rune(s[n-1])) {
		s = s[:n-1] + strings.ToUpper(s[n-1:])
	}
	return s
}

// sizeCount is the number of parameters "0.6B" stands for.
func sizeCount(s string) (float64, bool) {
	if s == "" {
		return 0, false
	}
	v, err := strconv.ParseFloat(s[:len(s)-1], 64)
	power := strings.IndexByte(" KMBT", s[len(s)-1])
	if err != nil || power < 0 {
		return 0, false
	}
	return v * math.Pow(1000, float64(power)), true
}

// dropWordSizes forgets sizes like "mini" when there is one with a number.
func dropWordSizes(parts []string, kinds []map[string]bool) {
	numbered := false
	for i, p := range parts {
		numbered = numbered || kinds[i]["size_label"] && strings.ContainsAny(p, "0123456789")
	}
	if !numbered {
		return
	}
	for i, p := range parts {
		if kinds[i]["size_label"] && !strings.ContainsAny(p, "0123456789.") {
			delete(kinds[i], "size_label")
		}
	}
}

// setKeys writes the general.* keys in file order.
func (a *authorship) setKeys(l *keyList) {
	for _, s := range a.sampling {
		l.set(s.key, s.value)
	}
	for _, k := range textKeys {
		l.setString(k.key, a.text[k.name])
	}
	entries := func(prefix string, list []map[string]string) {
		l.set("general."+prefix+".count", uint32(len(list)))
		for i, e := range list {
			for _, f := range []string{"name", "author", "version", "organization", "description", "url", "doi", "uuid",
				"repo_url"} {
				l.setString(fmt.Sprintf("general.%s.%d.%s", prefix, i, f), e[f])
			}
		}
	}
	if a.hasBases {
		entries("base_model", a.bases)
	}
	if a.hasData {
		entries("dataset", a.datasets)
	}
	setList(l, "general.tags", a.tags)
	setList(l, "general.languages", a.langs)
}
