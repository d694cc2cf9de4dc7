package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"strobe/draft/dflash"
	"strobe/draft/mtp"
	"strobe/gguf"
	"strobe/model"
)

// scan is what a file is, remembered while its size and time stay the same.
type scan struct {
	size     int64
	modified time.Time
	skip     bool // no model of its own: a drafter, a projector, an adapter
	info     ModelInfo
}

// maxDepth is how deep below its folder a pool looks for models.
const maxDepth = 4

var splitPart = regexp.MustCompile(`-(\d{5})-of-\d{5}$`)

// scan looks for models and updates the list. Loaded models stay, also when their file is gone.
func (p *Pool) scan() error {
	found := make(map[string]string) // path by name
	add := func(name, path string) {
		if found[name] == "" && name != Any {
			found[name] = path
		}
	}
	var errs []error
	for _, f := range p.cfg.Files {
		add(modelName(filepath.Base(f)), f)
	}
	if p.cfg.Dir != "" {
		errs = append(errs, filepath.WalkDir(p.cfg.Dir, func(path string, e fs.DirEntry, err error) error {
			rel, relErr := filepath.Rel(p.cfg.Dir, path)
			switch {
			case err != nil && path == p.cfg.Dir:
				return err
			case err != nil || relErr != nil:
				return nil
			case e.IsDir():
				if rel != "." && (strings.HasPrefix(e.Name(), ".") || strings.Count(rel, string(filepath.Separator)) >= maxDepth-1) {
					return fs.SkipDir
				}
			case strings.EqualFold(filepath.Ext(path), ".gguf"):
				if m := splitPart.FindStringSubmatch(strings.TrimSuffix(path, filepath.Ext(path))); m == nil || m[1] == "00001" {
					add(modelName(filepath.ToSlash(rel)), path)
				}
			}
			return nil
		}))
	}
	infos := make(map[string]ModelInfo)
	for name, path := range found {
		s, err := p.look(path)
		if errors.Is(err, fs.ErrNotExist) && !slices.Contains(p.cfg.Files, path) {
			continue // a link to nowhere
		}
		if !s.skip {
			s.info.Name = name
			infos[name] = s.info
		}
	}
	p.update(infos)
	return errors.Join(errs...)
}

// modelName is the name of the model in a file.
func modelName(rel string) string {
	rel = strings.TrimSuffix(rel, filepath.Ext(rel))
	return splitPart.ReplaceAllString(rel, "")
}

// update merges what was found into the list.
func (p *Pool) update(infos map[string]ModelInfo) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.models = slices.DeleteFunc(p.models, func(m *resident) bool {
		_, ok := infos[m.Name]
		return !ok && m.engine == nil && m.loading == nil
	})
	for _, m := range p.models {
		info, ok := infos[m.Name]
		if ok && m.engine == nil && m.loading == nil {
			info.LastUsed = m.LastUsed
			if m.State == StateFailed && info.State != StateFailed && info.Modified.Equal(m.Modified) {
				info.State, info.Err = m.State, m.Err
			}
			m.ModelInfo = info
		}
		delete(infos, m.Name)
	}
	for _, info := range infos {
		p.models = append(p.models, &resident{ModelInfo: info})
	}
	slices.SortFunc(p.models, func(a, b *resident) int { return strings.Compare(a.Name, b.Name) })
}

// look finds out what a file is. A model file that cannot be read is listed with its error.
func (p *Pool) look(path string) (scan, error) {
	st, err := os.Stat(path)
	s := scan{info: ModelInfo{Path: path, State: StateFailed, Err: err}}
	if err != nil {
		return s, err
	}
	p.mu.Lock()
	old, ok := p.scanned[path]
	p.mu.Unlock()
	if ok && old.size == st.Size() && old.modified.Equal(st.ModTime()) {
		return old, nil
	}
	s.size, s.modified = st.Size(), st.ModTime()
	s.info.Size, s.info.Modified = st.Size(), st.ModTime()
	s.info.Err = reading(path, func() error {
		f, err := gguf.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		return s.describe(f, p.cfg)
	})
	p.mu.Lock()
	p.scanned[path] = s
	p.mu.Unlock()
	return s, nil
}

// describe reads what the list shows of a model file. The error is why it cannot be loaded.
func (s *scan) describe(f *gguf.File, cfg PoolConfig) error {
	arch := f.Arch()
	kind, _, _ := f.String("general.type")
	s.skip = dflash.Supported(f) || mtp.Supported(f) || arch == "clip" || kind == "adapter" || kind == "mmproj"
	s.info.Arch, s.info.Size = arch, f.Size()
	if n, ok, _ := f.Uint(arch + ".context_length"); ok && n < 1<<31 {
		s.info.Context = int(n)
		if c := cfg.Engine.Context; c > 0 {
			s.info.Context = min(c, int(n))
		}
	}
	if s.skip {
		return nil
	}
	if !model.Supported(arch) {
		return fmt.Errorf("%s: architecture %q is not supported", f.Path(), arch)
	}
	s.info.State = StateUnloaded
	d := cfg.Load.Drafter
	if d == "" {
		d = FindDrafter(s.info.Path, f)
	}
	if d != "none" && d != "" {
		s.info.Drafter = d
		if st, err := os.Stat(d); err == nil {
			s.info.Size += st.Size()
		}
	}
	return nil
}
