package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"strobe/internal/engine"
	"strobe/internal/gguf"
	"strobe/internal/hub"
)

// knownModels are the built-in names and those of the user's file models.toml.
func knownModels() (map[string]hub.Named, error) {
	known, err := hub.Known()
	if err != nil {
		return nil, err
	}
	dir, err := configDir()
	if err != nil {
		return known, nil
	}
	own, file := map[string]hub.Named{}, filepath.Join(dir, "models.toml")
	meta, err := decodeTOML(file, &own)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return known, nil
	case err != nil:
		return nil, err
	case len(meta.Undecoded()) > 0:
		return nil, fmt.Errorf("%s: there is no setting %q; want model, mirrors, drafters, mtp and size", file,
			meta.Undecoded()[0])
	}
	for name, x := range own {
		for _, ref := range slices.Concat([]string{x.Model}, x.Mirrors, x.Drafters) {
			if _, err := hub.ParseRef(ref); err != nil && !isFile(ref) {
				return nil, fmt.Errorf("%s: %s: %w", file, name, err)
			}
		}
		known[strings.ToLower(name)] = x
	}
	return known, nil
}

// configDir is the folder of this user's settings.
func configDir() (string, error) {
	dir := os.Getenv("XDG_CONFIG_HOME") // on every system, for people who set it
	if dir == "" {
		var err error
		if dir, err = os.UserConfigDir(); err != nil {
			return "", err
		}
	}
	return filepath.Join(dir, "strobe"), nil
}

func isFile(path string) bool {
	st, err := os.Stat(path)
	return err == nil && !st.IsDir()
}

// ggufFiles are some of the GGUF files in a folder and the folders in it; none if it is no folder.
func ggufFiles(dir string) (files []string) {
	const most = 5 // enough for a message
	for _, pattern := range []string{"*", "*/*"} {
		found, _ := fs.Glob(os.DirFS(dir), pattern) // fails for bad patterns only
		for _, f := range found {
			if strings.EqualFold(filepath.Ext(f), ".gguf") && len(files) < most {
				files = append(files, filepath.Join(dir, filepath.FromSlash(f)))
			}
		}
	}
	return files
}

// meaning is what a name stands for: a file, a folder with a checkpoint, or something of the hub.
type meaning struct {
	file       string
	checkpoint string
	ref        string
	mirrors    []string // other references to the same
	drafters   []string // that were made for it
	named      bool     // by a short name, which brings everything that goes with the model
}

// lookUp says what a name stands for. It asks nobody but the table.
func lookUp(name string) (meaning, error) {
	if isFile(name) || strings.HasSuffix(strings.ToLower(name), ".gguf") && !strings.Contains(name, ":") {
		return meaning{file: name}, nil
	}
	if isCheckpoint(name) {
		return meaning{checkpoint: name}, nil
	}
	if files := ggufFiles(name); len(files) > 0 {
		return meaning{}, usagef("%s: is a folder; give one of its files (%s), or all of them with \"strobe serve --models %s\"",
			name, strings.Join(files, ", "), name)
	}
	known, err := knownModels()
	if err != nil {
		return meaning{}, err
	}
	alias, typ, _ := strings.Cut(strings.ToLower(name), ":")
	if x, ok := known[alias]; ok {
		ref := x.Model
		if isFile(ref) {
			return meaning{file: ref, drafters: x.Drafters}, nil
		}
		mirrors := slices.Clone(x.Mirrors)
		if typ != "" {
			ref = ofType(ref, typ)
			for i := range mirrors {
				mirrors[i] = ofType(mirrors[i], typ)
			}
		}
		return meaning{ref: ref, mirrors: mirrors, drafters: x.Drafters, named: true}, nil
	}
	r, err := hub.ParseRef(name)
	if st, serr := os.Stat(name); err != nil && serr == nil && st.IsDir() {
		return meaning{}, usagef("%s: is a folder without GGUF files; \"strobe convert\" makes one from a checkpoint, "+
			"which has config.json and *.safetensors", name)
	}
	if err != nil {
		msg := fmt.Sprintf("%q is no file and no name of a model", name)
		if s := nearest(alias, slices.Sorted(maps.Keys(known))); s != "" {
			msg += fmt.Sprintf(", did you mean %q?", s)
		}
		return meaning{}, usagef("%s (\"strobe list --known\" shows the names; OWNER/REPO names one of the hub)", msg)
	}
	m := meaning{ref: name}
	for _, alias := range slices.Sorted(maps.Keys(known)) {
		if x, err := hub.ParseRef(known[alias].Model); err == nil && strings.EqualFold(x.Repo, r.Repo) {
			m.drafters = known[alias].Drafters
		}
	}
	return m, nil
}

// ofType is a reference to the file of another type in the same repository.
func ofType(ref, typ string) string {
	repo, _, _ := strings.Cut(ref, ":")
	return repo + ":" + typ
}

// cached is the model in the cache, from whichever of its repositories; nil if it is not there.
func (of meaning) cached(c *hub.Client) *hub.Plan {
	for _, ref := range append([]string{of.ref}, of.mirrors...) {
		if p, err := c.Local(ref, false); err == nil {
			return p
		}
	}
	return nil
}

// resolve asks the hub for the model: one repository after the other until one has it.
func (of meaning) resolve(cmd *cobra.Command, c *hub.Client) (p *hub.Plan, err error) {
	refs := append([]string{of.ref}, of.mirrors...)
	for i, ref := range refs {
		if p, err = c.Resolve(cmd.Context(), ref); err == nil || cmd.Context().Err() != nil || i == len(refs)-1 {
			break
		}
		infof(cmd, "%s; looking for %s", oneLine(err), refs[i+1])
	}
	return p, err
}

// local makes what a name of a model stands for a local file.
func (of meaning) local(cmd *cobra.Command) (path string, err error) { return of.fetch(cmd, false) }

// fetch is local; vision also fetches the image encoder of a model that has to be downloaded by its short name. The
// encoder lies beside the model then, where it is found when the model is loaded.
func (of meaning) fetch(cmd *cobra.Command, vision bool) (path string, err error) {
	switch {
	case of.file != "":
		return of.file, nil
	case of.checkpoint != "":
		return "", usagef("%s: a checkpoint and no GGUF file; \"strobe convert\" makes one", of.checkpoint)
	}
	c, err := hub.FromEnv()
	if err != nil {
		return "", err
	}
	// What the cache has is taken without asking the hub.
	if p := of.cached(c); p != nil {
		return p.Path, nil
	}
	infof(cmd, "looking for %s", of.ref)
	p, err := of.resolve(cmd, c)
	if err != nil {
		return "", err
	}
	if p.Folder {
		return "", fmt.Errorf(
			"%s: a checkpoint and no GGUF file; \"strobe pull\" fetches it and \"strobe convert\" makes one", of.ref)
	}
	if path, err = pull(cmd, c, p); err == nil && vision && of.named && p.Vision != nil {
		if _, verr := pull(cmd, c, p.Vision); verr != nil && cmd.Context().Err() == nil {
			infof(cmd, "mmproj %s: %s", p.Vision.Ref.File, oneLine(verr))
		}
	}
	return path, err
}

// fetchDrafter makes a reference to a drafter for the model in the file target a local file.
func fetchDrafter(cmd *cobra.Command, ref, target string) (path string, err error) {
	c, err := hub.FromEnv()
	if err != nil {
		return "", err
	}
	p, err := c.Local(ref, true)
	if err == nil {
		return p.Path, nil
	}
	if p != nil && p.Folder { // the cache does not know whether a checkpoint is complete, but what was made from it is
		if path := convertedBefore(p.Path, target); path != "" {
			return path, nil
		}
	}
	infof(cmd, "looking for %s", ref)
	if p, err = c.ResolveDrafter(cmd.Context(), ref); err != nil {
		return "", err
	}
	if path, err = pull(cmd, c, p); err == nil && p.Folder {
		return converted(cmd, path, target)
	}
	return path, err
}

// positionalModel accepts the model as the only argument, in place of -m.
func (m *modelFlags) positionalModel() cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return nil
		case m.model != "":
			return usagef("%s: give the model with -m or as %q, not both", cmd.Name(), args[0])
		case len(args) > 1:
			return usagef("%s: unexpected argument %q", cmd.Name(), args[1])
		}
		if _, err := lookUp(args[0]); err != nil {
			return err
		}
		return cmd.Flags().Set("model", args[0]) // as if -m had been given, also for what fills in the others
	}
}

// find replaces names in the flags by files: it downloads what is not here, and says which drafter it found.
func (m *modelFlags) find() error {
	var of meaning
	var err error
	if m.model != "" {
		if of, err = lookUp(m.model); err != nil {
			return err
		}
		if m.model, err = of.fetch(m.cmd, !m.noMMProj && m.mmproj == ""); err != nil {
			return err
		}
	}
	if s := m.prefill.scorer; s != "" && s != "self" {
		scorer, err := lookUp(s)
		if err != nil {
			return err
		}
		if m.prefill.scorer, err = scorer.local(m.cmd); err != nil {
			return err
		}
	}
	if m.mmproj != "" {
		encoder, err := lookUp(m.mmproj)
		if err != nil {
			return err
		}
		if m.mmproj, err = encoder.local(m.cmd); err != nil {
			return err
		}
	}
	switch {
	case m.draft == "off" || m.draft == "ngram" || m.drafter == "none":
		return nil
	case m.drafter != "":
		return m.findDrafters(m.cmd, m.model)
	case m.model != "":
		m.drafter = m.findDrafter(of)
	}
	return nil
}

// findDrafters replaces the names of drafters by files for the model in the file target.
func (m *modelFlags) findDrafters(cmd *cobra.Command, target string) (err error) {
	if m.drafter, err = drafterFile(cmd, m.drafter, target); err != nil {
		return err
	}
	m.moreDrafters = slices.Clone(m.moreDrafters) // flags may be those of several models
	for i, name := range m.moreDrafters {
		if m.moreDrafters[i], err = drafterFile(cmd, name, target); err != nil {
			return err
		}
	}
	return nil
}

// drafterFile is the file of a drafter that was asked for, for the model in the file target. The name of a model stands
// for the drafters made for it.
func drafterFile(cmd *cobra.Command, name, target string) (string, error) {
	of, err := lookUp(name)
	if err != nil || of.file != "" {
		return of.file, err
	}
	if of.checkpoint != "" {
		return converted(cmd, of.checkpoint, target)
	}
	if _, err := hub.ParseRef(name); err == nil {
		return fetchDrafter(cmd, name, target)
	}
	for _, ref := range of.drafters {
		if path, ferr := fetchDrafter(cmd, ref, target); ferr == nil {
			return path, nil
		} else if err == nil {
			err = ferr
		}
	}
	if err == nil {
		err = fmt.Errorf("%s: no drafter is known for it", name)
	}
	return "", err
}

// findDrafter looks for a drafter nobody asked for: one that was made for the model, or one in the cache that fits.
// "" leaves it to what lies beside the model. What goes wrong is said, and the model runs without.
func (m *modelFlags) findDrafter(of meaning) string {
	target, err := gguf.Open(m.model)
	if err != nil {
		return "" // loading the model says why
	}
	defer target.Close()
	for _, ref := range of.drafters {
		path := ref
		if !isFile(ref) {
			if path, err = fetchDrafter(m.cmd, ref, m.model); err != nil {
				if m.cmd.Context().Err() != nil {
					return ""
				}
				infof(m.cmd, "drafter %s: %s", ref, oneLine(err))
				continue
			}
		}
		kind := engine.Fits(path, target)
		if kind == "" {
			infof(m.cmd, "drafter %s: does not fit %s", ref, filepath.Base(m.model))
			continue
		}
		if m.draft != "auto" && m.draft != kind {
			continue
		}
		infof(m.cmd, "drafter %s", ref)
		return path
	}
	if m.draft == "mtp" || engine.FindDrafter(m.model, target) != "" {
		return ""
	}
	c, err := hub.FromEnv()
	if err != nil {
		return ""
	}
	cached, _ := c.List()
	cached = slices.DeleteFunc(cached, func(x hub.Cached) bool {
		return !x.Drafter || !x.Current || engine.Fits(x.Path, target) != "dflash"
	})
	switch len(cached) {
	case 0:
	case 1:
		infof(m.cmd, "drafter %s: it fits", cached[0].Ref())
		return cached[0].Path
	default:
		var refs []string
		for _, x := range cached {
			refs = append(refs, x.Ref())
		}
		infof(m.cmd, "several drafters fit, choose one with -d: %s", strings.Join(refs, ", "))
	}
	return ""
}

// fileOf is the GGUF file that a name of a model stands for.
func fileOf(cmd *cobra.Command, name string) (string, error) {
	of, err := lookUp(name)
	if err != nil {
		return "", err
	}
	return of.local(cmd)
}

// completeModel offers names and what the cache has; files are the shell's matter.
func completeModel(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	known, _ := knownModels()
	names := slices.Sorted(maps.Keys(known))
	if c, err := hub.FromEnv(); err == nil {
		cached, _ := c.List()
		for i := range cached {
			if !cached[i].Vision {
				names = append(names, cached[i].Ref())
			}
		}
	}
	return names, cobra.ShellCompDirectiveDefault
}

// nearest is the name that a mistyped one may have meant, "" if none is near.
func nearest(name string, names []string) string {
	best, least := "", 1+len(name)/3
	for _, n := range names {
		if d := distance(name, n); d <= least {
			best, least = n, d-1
		}
	}
	return best
}

// distance is how many letters have to be changed, added or removed to make one word the other.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		left := row[0] // of the row above
		row[0]++
		for j := range len(b) {
			change := left
			if a[i] != b[j] {
				change++
			}
			left = row[j+1]
			row[j+1] = min(change, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
