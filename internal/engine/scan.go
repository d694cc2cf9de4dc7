package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"strobe/internal/draft/dflash"
	"strobe/internal/draft/eagle3"
	"strobe/internal/draft/mtp"
	"strobe/internal/gguf"
	"strobe/internal/model"
	"strobe/internal/platform"
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
		if name == Any { // which means another one
			name = filepath.Base(path)
		}
		if found[name] == "" {
			found[name] = path
		}
	}
	var errs []error
	for i, f := range p.cfg.Files {
		name := modelName(filepath.Base(f))
		if i == 0 && p.cfg.Alias != "" {
			name = p.cfg.Alias
		}
		add(name, f)
	}
	p.mu.Lock()
	for name, path := range p.added {
		add(name, path)
	}
	p.mu.Unlock()
	if p.cfg.Dir != "" {
		errs = append(errs, filepath.WalkDir(p.cfg.Dir, func(path string, e fs.DirEntry, err error) error {
			rel, relErr := filepath.Rel(p.cfg.Dir, path)
			switch {
			case err != nil && path == p.cfg.Dir:
				return err
			case err != nil || relErr != nil:
				return nil
			case e.IsDir():
				if rel != "." && (strings.HasPrefix(e.Name(), ".") ||
					strings.Count(rel, string(filepath.Separator)) >= maxDepth-1) {
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
		if (errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNoFile)) && !slices.Contains(p.cfg.Files, path) {
			continue // a link to nowhere, a pipe
		}
		if !s.skip || slices.Contains(p.cfg.Files, path) {
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

// errNoFile reports a pipe, a device or a folder that is named like a model.
var errNoFile = errors.New("is not a regular file")

// scanTime is how long callers wait for the folder. One on a network drive that does not answer must not
// keep them from the models that are known.
const scanTime = time.Second

// rescan looks for models as scan does, and returns after scanTime at the latest; the scan goes on
// without its caller then.
func (p *Pool) rescan(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, scanTime, fmt.Errorf("%s does not answer", p.cfg.Dir))
	defer cancel()
	for {
		p.mu.Lock()
		running, mine := p.scanning, p.scanning == nil
		if mine {
			running = &scanning{done: make(chan struct{})}
			p.scanning = running
			go func() {
				running.err = p.scan()
				p.mu.Lock()
				p.scanning = nil
				p.mu.Unlock()
				close(running.done)
			}()
		}
		p.mu.Unlock()
		select {
		case <-running.done:
			if mine {
				return running.err
			}
			// It may have begun before what the caller looks for was there: once more.
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// scanning is a look at the folder in progress.
type scanning struct {
	done chan struct{}
	err  error
}

// look finds out what a file is. A model file that cannot be read is listed with its error.
func (p *Pool) look(path string) (scan, error) {
	st, err := p.stat(path)
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s: %w", path, errNoFile)
	}
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
	s.info.Err = platform.Reading(path, func() error {
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
	s.skip = dflash.Supported(f) || eagle3.Supported(f) || mtp.Supported(f) ||
		arch == "clip" || kind == "adapter" || kind == "mmproj"
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
	var beside []string
	if d != "none" && d != "" {
		s.info.Drafter, s.info.MoreDrafters = d, cfg.Load.MoreDrafters
		beside = append([]string{d}, cfg.Load.MoreDrafters...)
	}
	v := cfg.Load.Vision
	if v == "" {
		v = FindVision(s.info.Path, f)
	}
	if v != "none" && v != "" {
		s.info.Vision = v
		beside = append(beside, v)
	}
	for _, path := range beside {
		if st, err := os.Stat(path); err == nil {
			s.info.Size += st.Size()
		}
	}
	return nil
}
