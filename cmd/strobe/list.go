package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"strobe/internal/hub"
	"strobe/internal/platform"
)

func newListCmd() *cobra.Command {
	var known, asJSON bool
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the models on this machine, or those with a name",
		Long: `List shows the models, drafters and mmproj files in the cache, by the names that -m, -d and "strobe rm"
take, and the drafters that were made from checkpoints.

With --known it shows the short names: which model and which drafter they bring together, how large the model is, about
how much memory both take, and what of this machine has so much free: a GPU, a GPU with the help of the processor
(GPU+CPU), the processor (CPU), or nothing (no). A file models.toml in the folder that "strobe config" names adds more:

  ["my-model"]
  model = "OWNER/REPO:FILE"
  mirrors = ["OWNER/REPO:FILE"]
  drafters = ["OWNER/REPO:FILE"]`,
		Example: `  strobe list
  strobe list --known`,
		Args: positional(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if known {
				return listKnown(cmd, asJSON)
			}
			return listCached(cmd, asJSON)
		},
	}
	cmd.Flags().BoolVar(&known, "known", false, "list the names of models that can be downloaded")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func listKnown(cmd *cobra.Command, asJSON bool) error {
	known, err := knownModels()
	if err != nil {
		return err
	}
	here := thisMachine()
	if asJSON {
		type item struct {
			namedModel
			Memory float64 // gigabytes
			Fits   string
		}
		items := map[string]item{}
		for name, x := range known {
			items[name] = item{x, x.memory(), here.fits(x.memory())}
		}
		return json.NewEncoder(cmd.OutOrStdout()).Encode(items)
	}
	order := builtinOrder()
	for _, name := range slices.Sorted(maps.Keys(known)) { // the user's own
		if !slices.Contains(order, name) {
			order = append(order, name)
		}
	}
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tSIZE\tMEMORY\tFITS\tMODEL\tDRAFTER")
	for _, name := range order {
		x := known[name]
		drafter := "none"
		if len(x.Drafters) > 0 {
			drafter, _, _ = strings.Cut(x.Drafters[0], ":")
		} else if x.MTP {
			drafter = "in the model's file"
		}
		size, memory := "", ""
		if x.Size > 0 {
			size, memory = fmt.Sprintf("%.1f GB", x.Size), fmt.Sprintf("%.0f GB", math.Ceil(x.memory()))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", name, size, memory, here.fits(x.memory()), x.Model, drafter)
	}
	return w.Flush()
}

// memory is about what a model takes while it runs with a few thousand tokens of context, in gigabytes; 0 if its size
// is not known. A drafter of the usual type is a tenth of its model; a tenth and a gigabyte are for the rest. "strobe
// fit" says it exactly, and needs the file.
func (x namedModel) memory() float64 {
	switch {
	case x.Size == 0:
		return 0
	case len(x.Drafters) > 0:
		return 1.2*x.Size + 1
	}
	return 1.1*x.Size + 1
}

// machine is the memory of this machine, in gigabytes.
type machine struct{ gpu, ram float64 }

func thisMachine() (m machine) {
	for _, d := range listDevices() {
		if d.Err == nil {
			m.gpu = max(m.gpu, float64(d.Free)/1e9)
		}
	}
	m.ram = float64(platform.AvailableMemory()) / 1e9
	return m
}

// fits says where a model that takes so much memory would run; "" if that is not known.
func (m machine) fits(need float64) string {
	switch {
	case need == 0 || m.gpu == 0 && m.ram == 0:
		return ""
	case need <= m.gpu:
		return "GPU"
	case m.gpu > 0 && need <= m.gpu+m.ram:
		return "GPU+CPU"
	case need <= m.ram:
		return "CPU"
	}
	return "no"
}

// stored is a file, or a folder with a checkpoint, that strobe put into its caches.
type stored struct {
	name, path, kind string
	size             int64
	since            time.Time
	remove           func() error
}

// fetched turns what the hub's cache has into such a thing.
func fetched(c *hub.Client, x hub.Cached) stored {
	kind := "model"
	switch {
	case x.File == "":
		kind = "checkpoint"
	case x.Drafter:
		kind = "drafter"
	case x.Vision:
		kind = "mmproj"
	}
	return stored{name: x.Ref(), path: x.Path, kind: kind, size: x.Size, since: x.Fetched,
		remove: func() error { return c.Remove(x) }}
}

func listCached(cmd *cobra.Command, asJSON bool) error {
	c, err := hub.FromEnv()
	if err != nil {
		return err
	}
	cached, err := c.List()
	if err != nil {
		return err
	}
	var list []stored
	for _, x := range cached {
		list = append(list, fetched(c, x))
	}
	made, err := convertedFiles("")
	if err != nil {
		return err
	}
	list = append(list, made...)
	if asJSON {
		type item struct {
			Name    string `json:"name"`
			Path    string `json:"path"`
			Bytes   int64  `json:"bytes"`
			Kind    string `json:"kind"`
			Fetched string `json:"fetched"`
		}
		items := []item{}
		for _, x := range list {
			items = append(items, item{x.name, x.path, x.size, x.kind, x.since.UTC().Format("2006-01-02T15:04:05Z")})
		}
		return json.NewEncoder(cmd.OutOrStdout()).Encode(items)
	}
	if len(list) == 0 {
		infof(cmd, "nothing was downloaded yet; \"strobe list --known\" shows what has a name, for instance\n"+
			"  strobe chat qwen3.5-4b")
		return nil
	}
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tSIZE\tKIND\tFETCHED")
	for _, x := range list {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", x.name, formatBytes(x.size), x.kind, x.since.Format("2006-01-02"))
	}
	return w.Flush()
}

func newRmCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "rm NAME...",
		Short: "Delete downloaded models",
		Long: `Rm deletes models from the cache. A short name stands for the model and the drafters it brings,
OWNER/REPO for everything of that repository and what was made from it, OWNER/REPO:FILE for one file. Drafters that were
made from checkpoints are files, by the names that "strobe list" shows.`,
		Example: `  strobe rm qwen3.5-4b
  strobe rm Qwen/Qwen3-0.6B-GGUF:Qwen3-0.6B-Q8_0.gguf`,
		Args: positional("NAME..."),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := hub.FromEnv()
			if err != nil {
				return err
			}
			for _, name := range args {
				list, err := cachedOf(c, name)
				if err != nil {
					return err
				}
				for _, x := range list {
					if err := x.remove(); err != nil {
						return err
					}
					infof(cmd, "deleted %s, %s", x.name, formatBytes(x.size))
				}
			}
			return nil
		},
	}
}

// cachedOf is what a name stands for in the cache; an error if that is nothing.
func cachedOf(c *hub.Client, name string) (found []stored, err error) {
	of, err := lookUp(name)
	if err != nil {
		return nil, err
	}
	if of.ref == "" {
		made, err := convertedFiles("")
		for _, x := range made {
			if abs, aerr := filepath.Abs(of.file); aerr == nil && abs == x.path {
				return []stored{x}, nil
			}
		}
		if err == nil {
			err = usagef("%s: a file that strobe did not download", name)
		}
		return nil, err
	}
	refs := append([]string{of.ref}, of.mirrors...)
	if of.ref != name {
		refs = append(refs, of.drafters...)
	}
	list, err := c.List()
	if err != nil {
		return nil, err
	}
	for _, ref := range refs {
		r, err := hub.ParseRef(ref)
		if err != nil {
			continue // a file of the user's
		}
		p, perr := c.Local(ref, false)
		for _, x := range list {
			if strings.EqualFold(x.Repo, r.Repo) && (r.File == "" || perr == nil && x.Path == p.Path) {
				found = append(found, fetched(c, x))
			}
		}
		if r.File == "" {
			made, err := convertedFiles(r.Repo)
			if err != nil {
				return nil, err
			}
			found = append(found, made...)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s: not in the cache at %s", name, c.Cache)
	}
	return found, nil
}

func newShowCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "show NAME",
		Short: "Show what a name stands for and what is in the model",
		Long: `Show says which files a name stands for, whether they are on this machine, which drafter and which mmproj
file go with them, and what "strobe inspect" says of the model. It downloads nothing.`,
		Example: `  strobe show qwen3.5-4b`,
		Args:    positional("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			of, err := lookUp(args[0])
			if err == nil && of.checkpoint != "" {
				_, err = of.local(cmd) // says what it is
			}
			if err != nil {
				return err
			}
			c, err := hub.FromEnv()
			if err != nil && of.file == "" {
				return err
			}
			out := cmd.OutOrStdout()
			path := of.file
			if of.ref != "" {
				path = ""
				var vision *hub.Plan
				if p := of.cached(c); p != nil {
					path, vision = p.Path, p.Vision
				}
				fmt.Fprintf(out, "model      %s%s\n", of.ref, here(path))
				if vision != nil {
					fmt.Fprintf(out, "mmproj     %s:%s\n", vision.Ref.Repo, vision.Ref.File)
				}
			}
			for _, d := range of.drafters {
				where := d
				if !isFile(d) {
					where = ""
					p, err := c.Local(d, true)
					switch {
					case err == nil:
						where = p.Path
					case p != nil && p.Folder && path != "":
						where = convertedBefore(p.Path, path)
					}
				}
				fmt.Fprintf(out, "drafter    %s%s\n", d, here(where))
			}
			if path == "" {
				return nil
			}
			f, err := openGGUF(cmd, path)
			if err != nil {
				return err
			}
			defer f.Close()
			r, err := inspectFile(f)
			if err != nil {
				return err
			}
			return r.print(out)
		},
	}
}

func here(path string) string {
	if path == "" {
		return " (not downloaded)"
	}
	return ""
}
