package hub

import (
	"cmp"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A Ref names what to fetch.
type Ref struct {
	Repo     string // "owner/repo"
	Revision string // branch, tag or commit; "main" when none is given
	File     string // a path in the repository, or a type such as "Q4_K_M"; empty for the default
}

var repoPattern = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,95}/[A-Za-z0-9_][A-Za-z0-9._-]{0,95}$`)

// ParseRef reads OWNER/REPO[@REVISION][:FILE].
func ParseRef(s string) (Ref, error) {
	rest, file, hasFile := strings.Cut(s, ":")
	repo, rev, hasRev := strings.Cut(rest, "@")
	r := Ref{Repo: repo, Revision: "main", File: file}
	if !repoPattern.MatchString(repo) || strings.Contains(repo, "..") || strings.Contains(repo, "--") {
		return Ref{}, fmt.Errorf("%q: expected OWNER/REPO, OWNER/REPO:FILE or OWNER/REPO:TYPE", s)
	}
	if hasFile {
		if err := checkPath(file); err != nil {
			return Ref{}, fmt.Errorf("%q: file: %w", s, err)
		}
	}
	if hasRev {
		if err := checkPath(rev); err != nil {
			return Ref{}, fmt.Errorf("%q: revision: %w", s, err)
		}
		r.Revision = rev
	}
	return r, nil
}

// checkPath accepts only names that stay inside whatever folder they are put in,
// on every system.
func checkPath(p string) error {
	bad := p == "" || len(p) > 1000 || strings.ContainsAny(p, `\:*?"<>|`) || !filepath.IsLocal(filepath.FromSlash(p))
	for _, c := range p {
		bad = bad || c < ' ' || c == 0x7f || c == '\uFFFD'
	}
	for seg := range strings.SplitSeq(p, "/") {
		bad = bad || seg == "" || seg == "." || seg == ".." || strings.HasSuffix(seg, ".") || strings.HasSuffix(seg, " ")
	}
	if bad {
		return fmt.Errorf("%q is not a safe relative path", clip(p))
	}
	return nil
}

func clip(s string) string {
	if len(s) > 100 {
		return s[:100] + "..."
	}
	return s
}

// DefaultType is the quantisation that is fetched when a reference names none:
// close to the full model at about a third of its size.
const DefaultType = "Q4_K_M"

// drafterTypes are what is fetched of a drafter when a reference names no type, the first one there is: a drafter is
// small, and guesses worse when it is made smaller.
var drafterTypes = []string{"Q8_0", DefaultType}

// drafterKinds are how names of drafters can be told, by how much the drafters gain.
var drafterKinds = []*regexp.Regexp{regexp.MustCompile("dflash"), regexp.MustCompile("^mtp-|assistant"),
	regexp.MustCompile("draft|^dspark-|eagle-?3")}

// IsDrafter reports whether a file's name says that it drafts for a model and is none itself.
func IsDrafter(name string) bool { return drafterKind(name) < len(drafterKinds) }

func drafterKind(name string) int {
	base := strings.ToLower(name[strings.LastIndexByte(name, '/')+1:])
	for i, p := range drafterKinds {
		if p.MatchString(base) {
			return i
		}
	}
	return len(drafterKinds)
}

// IsVision reports whether a file's name says that it is the image encoder of a model.
func IsVision(name string) bool {
	base := strings.ToLower(name[strings.LastIndexByte(name, '/')+1:])
	return strings.HasPrefix(base, "mmproj") && strings.HasSuffix(base, ".gguf")
}

// visionTypes are what is fetched of an image encoder, the first one there is. An encoder is small beside its model and
// runs once for an image, so precision comes before size; float32 has no more of it than checkpoints have.
var visionTypes = []string{"F16", "BF16", "Q8_0", "F32"}

// chooseVision is the image encoder among the files of a repository, "" if there is none.
func chooseVision(files []string) string {
	var all []string
	for _, f := range files {
		if IsVision(f) {
			all = append(all, f)
		}
	}
	if len(all) == 0 {
		return ""
	}
	rank := func(name string) int {
		if i := slices.IndexFunc(visionTypes, func(t string) bool { return hasType(name, t) }); i >= 0 {
			return i
		}
		return len(visionTypes)
	}
	return slices.MinFunc(all, func(a, b string) int {
		return cmp.Or(rank(a)-rank(b), len(a)-len(b), strings.Compare(a, b))
	})
}

// only keeps the models, or the best kind of drafter; everything where there is none of them.
func only(all []choice, drafter bool) []choice {
	kinds := []int{len(drafterKinds)}
	if drafter {
		kinds = []int{0, 1, 2}
	}
	for _, k := range kinds {
		other := func(c choice) bool { return drafterKind(c.name) != k }
		if some := slices.DeleteFunc(slices.Clone(all), other); len(some) > 0 {
			return some
		}
	}
	return all
}

var splitPattern = regexp.MustCompile(`^(.*)-(\d{5})-of-(\d{5})\.gguf$`)

// A choice is one model in a repository: a file, or the parts of a split one.
type choice struct {
	name  string // without the part number
	parts []string
}

// choices groups the GGUF files of a repository. Files that only accompany a
// model (vision projectors, importance matrices) are left out.
func choices(files []string) []choice {
	var out []choice
	index := map[string]int{}
	for _, f := range files {
		base := strings.ToLower(f[strings.LastIndexByte(f, '/')+1:])
		if !strings.HasSuffix(base, ".gguf") || IsVision(f) || strings.Contains(base, "imatrix") {
			continue
		}
		name := f
		if m := splitPattern.FindStringSubmatch(f); m != nil {
			name = m[1] + ".gguf"
		}
		at, ok := index[name]
		if !ok {
			at = len(out)
			index[name] = at
			out = append(out, choice{name: name})
		}
		out[at].parts = append(out[at].parts, f)
	}
	return out
}

// choose decides which of a repository's files a reference means. The first one
// returned is the one to open; folder is true when they are a checkpoint folder
// to convert instead. Repositories may hold models beside their drafters.
func choose(r Ref, files []string, drafter bool) (chosen []string, folder bool, err error) {
	if r.File != "" && slices.Contains(files, r.File) {
		chosen, err = withParts(r.Repo, r.File, files)
		return chosen, false, err
	}
	all := only(choices(files), drafter)
	types := []string{r.File}
	if r.File == "" {
		types = []string{DefaultType}
		if drafter {
			types = drafterTypes
		}
		if len(all) == 1 {
			chosen, err = withParts(r.Repo, all[0].parts[0], files)
			return chosen, false, err
		}
		if len(all) == 0 {
			if chosen = checkpoint(files); len(chosen) > 0 {
				return chosen, true, nil
			}
			return nil, false, fmt.Errorf("%s: no GGUF file and no safetensors checkpoint in the repository", r.Repo)
		}
	}
	var match []choice
	want := ""
	for _, want = range types {
		for _, c := range all {
			if hasType(c.name, want) {
				match = append(match, c)
			}
		}
		if len(match) > 0 {
			break
		}
	}
	// Variants of a type have longer names ("UD-Q4_K_M"): the plain one wins.
	slices.SortStableFunc(match, func(a, b choice) int { return len(a.name) - len(b.name) })
	if len(match) == 1 || len(match) > 1 && len(match[0].name) < len(match[1].name) {
		chosen, err = withParts(r.Repo, match[0].parts[0], files)
		return chosen, false, err
	}
	names := make([]string, len(all))
	for i, c := range all {
		names[i] = c.name
	}
	what := fmt.Sprintf("no file %q", want)
	switch {
	case r.File == "" && len(match) == 0:
		what = fmt.Sprintf("%d models and none of type %s", len(all), want)
	case len(match) > 1:
		what = fmt.Sprintf("%d files of type %s", len(match), want)
	}
	list := "it has no GGUF files"
	if len(names) > 0 {
		list = "add :FILE with one of " + strings.Join(names, ", ")
	}
	return nil, false, fmt.Errorf("%s: %s in the repository; %s", r.Repo, what, list)
}

// hasType reports whether a file name says that type, between separators.
func hasType(name, typ string) bool {
	name, typ = strings.ToLower(name), strings.ToLower(typ)
	for at := 0; ; {
		i := strings.Index(name[at:], typ)
		if i < 0 {
			return false
		}
		i += at
		end := i + len(typ)
		sep := func(j int) bool { return j < 0 || j >= len(name) || strings.IndexByte("-._/", name[j]) >= 0 }
		// An underscore goes on with the type: Q4_K is not Q4_K_M.
		if sep(i-1) && sep(end) && (end == len(name) || name[end] != '_') {
			return true
		}
		at = i + 1
	}
}

// withParts is file, or all parts in order when it is one part of several.
func withParts(repo, file string, files []string) ([]string, error) {
	m := splitPattern.FindStringSubmatch(file)
	if m == nil {
		return []string{file}, nil
	}
	total, _ := strconv.Atoi(m[3])
	have := make(map[string]bool, len(files))
	for _, f := range files {
		have[f] = true
	}
	var out []string
	for i := 1; i <= total; i++ {
		part := fmt.Sprintf("%s-%05d-of-%05d.gguf", m[1], i, total)
		if !have[part] {
			return nil, fmt.Errorf("%s: %s is missing in the repository", repo, part)
		}
		out = append(out, part)
	}
	if total == 0 {
		return []string{file}, nil
	}
	return out, nil
}

// checkpoint lists what converting a checkpoint needs: weights at the top of the
// repository and the small text files beside them.
func checkpoint(files []string) []string {
	var out []string
	weights := false
	for _, f := range files {
		if strings.Contains(f, "/") {
			continue
		}
		switch {
		case strings.HasSuffix(f, ".safetensors"):
			weights = true
			out = append(out, f)
		case strings.HasSuffix(f, ".json"), strings.HasSuffix(f, ".jinja"), strings.HasSuffix(f, ".model"), f == "merges.txt",
			f == "vocab.txt":
			out = append(out, f)
		}
	}
	if !weights {
		return nil
	}
	return out
}
