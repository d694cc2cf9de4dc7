package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"strobe/internal/engine"
)

// several is a flag that may be repeated: -m of a server, whose models they are, and -d.
type several struct {
	first *string
	more  *[]string
}

func (s *several) Type() string   { return "string" }
func (s *several) String() string { return *s.first }

func (s *several) Set(name string) error {
	if *s.first == "" {
		*s.first = name
	} else {
		*s.more = append(*s.more, name)
	}
	return nil
}

// preset is what a table [defaults."NAME"] says of how a model is loaded.
type preset struct {
	modelFlags
	templateFile string
	aliases      []string
	loads        bool // it says something of that kind

	options engine.Options // made of it, once the files are known
}

// notPerModel are flags of models that speak of all requests to a server.
var notPerModel = []string{"draft", "draft-max", "tree"}

// add adds the settings that a table may have.
func (p *preset) add(cmd *cobra.Command) {
	p.modelFlags.add(cmd)
	f := cmd.Flags()
	f.StringVar(&p.templateFile, "chat-template-file", "", "")
	f.StringArrayVar(&p.aliases, "alias", nil, "")
}

// inherit takes over what the command line says of all models, but for what the table says itself.
func (p *preset) inherit(from *pflag.FlagSet, table map[string]any) error {
	own := p.cmd.Flags()
	var failed error
	from.VisitAll(func(f *pflag.Flag) {
		_, given := table[f.Name]
		if !f.Changed || given || f.Name == "model" || f.Name == "drafter" || f.Name == "alias" ||
			f.Name == "chat-template-file" || loadingFlags().Lookup(f.Name) == nil {
			return
		}
		if err := own.Set(f.Name, f.Value.String()); err != nil {
			failed = errors.Join(failed, err)
		}
	})
	return failed
}

// loadingFlags are the settings of presets.
var loadingFlags = sync.OnceValue(func() *pflag.FlagSet {
	cmd := &cobra.Command{}
	new(preset).add(cmd)
	return cmd.Flags()
})

// resolve finds the files of a preset for the model in a file.
func (p *preset) resolve(cmd *cobra.Command, path string) (err error) {
	p.model, p.modelFlags.cmd = path, cmd
	if d := p.drafter; d != "" && d != "none" {
		if err = p.findDrafters(cmd, path); err != nil {
			return err
		}
	}
	if p.mmproj != "" {
		encoder, err := lookUp(p.mmproj)
		if err != nil {
			return err
		}
		if p.mmproj, err = encoder.local(cmd); err != nil {
			return err
		}
	}
	if p.options, err = p.modelFlags.options(); err != nil || p.templateFile == "" {
		return err
	}
	p.options.Template, err = readTemplate(p.templateFile)
	return err
}

// namedModels are the files of a server with several models, by name: those of -m, and of tables with a model of their
// own. It downloads what is not here.
func (o *serveOptions) namedModels() (map[string]string, error) {
	out := map[string]string{}
	o.drafters = map[string]string{}
	add := func(what, name, model string) error {
		of, err := lookUp(model)
		if err != nil {
			return err
		}
		path, err := of.fetch(o.modelFlags.cmd, !o.noMMProj && o.mmproj == "")
		if err != nil {
			return err
		}
		if name == "" {
			name = strings.TrimSuffix(filepath.Base(path), ".gguf")
		}
		if name == engine.Any {
			return fmt.Errorf("%s %s: the name %q stands for the model used last; give it another one", what, model, name)
		}
		if other, taken := out[name]; taken {
			return fmt.Errorf("%s %s: %s has the same name; give one of them a table [%s.\"NAME\"] with model = %q",
				what, model, other, modelTables, model)
		}
		out[name] = path
		if o.draft != "off" && o.draft != "ngram" && o.drafter != "none" {
			one := o.modelFlags
			one.model = path
			o.drafters[name] = one.findDrafter(of)
		}
		return nil
	}
	for _, m := range o.allModels() {
		if err := add("-m", "", m); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(o.presets)) {
		if m := o.presets[name].model; m != "" {
			if err := add(fmt.Sprintf("%s.%q", modelTables, name), name, m); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// allModels are the models of -m.
func (o *serveOptions) allModels() []string {
	if o.model == "" {
		return nil
	}
	return append([]string{o.model}, o.more...)
}

// many reports whether the server offers models by their names, besides those of a folder.
func (o *serveOptions) many() bool {
	for _, p := range o.presets {
		if p.model != "" {
			return true
		}
	}
	return len(o.more) > 0
}

// applyPresets makes the options of tables for the models that are offered, and finds their other names.
func (o *serveOptions) applyPresets(models []engine.ModelInfo) (aliases map[string]string, err error) {
	aliases = map[string]string{}
	for _, m := range models {
		p := o.presets[m.Name]
		if p == nil {
			continue
		}
		at := fmt.Sprintf("%s.%q", modelTables, m.Name)
		if p.loads {
			if p.templateFile = cmp.Or(p.templateFile, o.templateFile); p.drafter == "" {
				p.drafter, p.moreDrafters = o.drafter, o.moreDrafters
			}
			if err := p.resolve(o.modelFlags.cmd, m.Path); err != nil {
				return nil, fmt.Errorf("%s: %w", at, err)
			}
		}
		for _, name := range p.aliases {
			if slices.ContainsFunc(models, func(x engine.ModelInfo) bool { return x.Name == name }) || name == engine.Any ||
				aliases[name] != "" {
				return nil, fmt.Errorf("%s: alias %q: a model has this name already", at, name)
			}
			aliases[name] = m.Name
		}
	}
	return aliases, nil
}
