package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"strobe/internal/hub"
)

func newListCmd() *cobra.Command {
	var known, asJSON bool
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the models on this machine, or those with a name",
		Long: `List shows the models and drafters in the cache, by the names that -m, -d and "strobe rm" take.

With --known it shows the short names: which model and which drafter they bring together, and how large
the model is. A file models.toml in the folder that "strobe config" names adds more:

  ["my-model"]
  model = "OWNER/REPO:FILE"
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
	if asJSON {
		return json.NewEncoder(cmd.OutOrStdout()).Encode(known)
	}
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tSIZE\tMODEL\tDRAFTER")
	for _, name := range slices.Sorted(maps.Keys(known)) {
		x := known[name]
		drafter := "none"
		if len(x.Drafters) > 0 {
			drafter, _, _ = strings.Cut(x.Drafters[0], ":")
		}
		size := ""
		if x.Size > 0 {
			size = fmt.Sprintf("%.1f GB", x.Size)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", name, size, x.Model, drafter)
	}
	return w.Flush()
}

func listCached(cmd *cobra.Command, asJSON bool) error {
	c, err := hub.FromEnv()
	if err != nil {
		return err
	}
	list, err := c.List()
	if err != nil {
		return err
	}
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
			items = append(items, item{x.Ref(), x.Path, x.Size, kindOf(&x), x.Fetched.UTC().Format("2006-01-02T15:04:05Z")})
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
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", x.Ref(), formatBytes(x.Size), kindOf(&x), x.Fetched.Format("2006-01-02"))
	}
	return w.Flush()
}

func kindOf(x *hub.Cached) string {
	switch {
	case x.File == "":
		return "checkpoint"
	case x.Drafter:
		return "drafter"
	}
	return "model"
}

func newRmCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "rm NAME...",
		Short: "Delete downloaded models",
		Long: `Rm deletes models from the cache. A short name stands for the model and the drafters it brings,
OWNER/REPO for everything of that repository, OWNER/REPO:FILE for one file.`,
		Example: `  strobe rm qwen3.5-4b
  strobe rm Qwen/Qwen3-0.6B-GGUF:Qwen3-0.6B-Q8_0.gguf`,
		Args: cobra.MinimumNArgs(1),
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
					if err := c.Remove(x); err != nil {
						return err
					}
					infof(cmd, "deleted %s, %s", x.Ref(), formatBytes(x.Size))
				}
			}
			return nil
		},
	}
}

// cachedOf is what a name stands for in the cache; an error if that is nothing.
func cachedOf(c *hub.Client, name string) (found []hub.Cached, err error) {
	of, err := lookUp(name)
	if err != nil {
		return nil, err
	}
	if of.ref == "" {
		return nil, usagef("%s: a file that strobe did not download", name)
	}
	refs := []string{of.ref}
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
				found = append(found, x)
			}
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
		Long: `Show says which files a name stands for, whether they are on this machine, which drafter goes with them,
and what "strobe inspect" says of the model. It downloads nothing.`,
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
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			path := of.file
			if of.ref != "" {
				path = ""
				if p, err := c.Local(of.ref, false); err == nil {
					path = p.Path
				}
				fmt.Fprintf(out, "model      %s%s\n", of.ref, here(path))
			}
			for _, d := range of.drafters {
				where := d
				if !isFile(d) {
					where = ""
					if p, err := c.Local(d, true); err == nil {
						where = p.Path
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
