package main

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"strobe/internal/hub"
)

func newPullCmd() *cobra.Command {
	var token, endpoint, cache string
	cmd := &cobra.Command{
		Use:   "pull NAME | OWNER/REPO[:FILE]",
		Short: "Download a model from the Hugging Face hub",
		Long: `Download a model from the Hugging Face hub and print its path. A NAME that
"strobe list --known" shows brings the model's drafter and image encoder (mmproj), too.

Without FILE the repository's ` + hub.DefaultType + ` file is fetched, or its only GGUF file;
where that leaves a choice, the choices are listed. FILE is a file name in the
repository or just a type such as Q8_0. All parts of a split file are fetched.
A repository without GGUF files is fetched as a checkpoint folder for
"strobe convert". OWNER/REPO@REVISION:FILE takes a branch, tag or commit.

Files go to the cache that the Python tools of the hub use, so nothing is
fetched twice. A download that was cut off goes on where it stopped, and every
file is checked against the hub's hash. A note says which files have another
hash than when they were last fetched.

Environment: HF_TOKEN (access token for private or gated models), HF_HOME or
HF_HUB_CACHE (where the cache is), HF_ENDPOINT (another hub), HF_HUB_OFFLINE=1
(use the cache only).`,
		Example: `  strobe pull qwen3.5-4b                        a model with its drafter and image encoder
  strobe pull Qwen/Qwen3-0.6B-GGUF              the default file
  strobe pull Qwen/Qwen3-0.6B-GGUF:Q8_0         by type
  strobe inspect "$(strobe pull -q Qwen/Qwen3-0.6B-GGUF:Q8_0)"`,
		Args: positional("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			of, err := lookUp(args[0])
			if err != nil || of.ref == "" {
				return usageError{cmp.Or(err, fmt.Errorf("%s is a file, expected OWNER/REPO", args[0]))}
			}
			c, err := hub.FromEnv()
			if err != nil {
				return err
			}
			if endpoint != "" {
				c.Endpoint = endpoint
			}
			if !strings.HasPrefix(c.Endpoint, "http://") && !strings.HasPrefix(c.Endpoint, "https://") {
				return usagef("%q is no address of a hub; want one like %s (--endpoint or HF_ENDPOINT)", c.Endpoint, hub.DefaultEndpoint)
			}
			if cache != "" {
				c.Cache = cache
			}
			if token != "" {
				c.Token = token
			}
			if of.ref == args[0] { // one file was asked for
				of.drafters = nil
			}
			return runPull(cmd, c, of)
		},
	}
	cmd.Flags().StringVar(&endpoint, "endpoint", "",
		"address of the hub (default $HF_ENDPOINT or "+hub.DefaultEndpoint+")")
	cmd.Flags().StringVar(&cache, "cache", "", "cache folder (default $HF_HUB_CACHE or $HF_HOME/hub)")
	cmd.Flags().StringVar(&token, "token", "", "access token (default $HF_TOKEN)")
	return cmd
}

// runPull fetches a model and the first of its drafters that the hub has, and the image encoder beside the model if
// that is asked for.
func runPull(cmd *cobra.Command, c *hub.Client, of meaning) error {
	c.Log = func(line string) { infof(cmd, "%s", line) }
	model, err := of.resolve(cmd, c)
	if err != nil {
		return err
	}
	plans := []*hub.Plan{model}
	fetch := func(plan *hub.Plan) error {
		path, err := pull(cmd, c, plan)
		if err == nil {
			fmt.Fprintln(cmd.OutOrStdout(), path)
		}
		return err
	}
	for _, ref := range of.drafters {
		plan, err := c.ResolveDrafter(cmd.Context(), ref)
		if err == nil {
			plans = append(plans, plan)
			break
		}
		if cmd.Context().Err() != nil {
			return err
		}
		infof(cmd, "drafter %s: %s", ref, oneLine(err))
	}
	if of.named && model.Vision != nil {
		plans = append(plans, model.Vision)
	}
	for _, plan := range plans {
		if err := fetch(plan); err != nil {
			return err
		}
	}
	return nil
}

// pull downloads what was planned and shows how far it is.
func pull(cmd *cobra.Command, c *hub.Client, plan *hub.Plan) (path string, err error) {
	infof(cmd, "%s: %s, commit %.12s", plan.Ref.Repo, describeFiles(plan.Files), plan.Commit)
	p := newProgress(cmd, "pull", plan.Size())
	c.Log = p.Line
	var done int64
	path, err = c.Pull(cmd.Context(), plan, func(s hub.Progress) {
		p.Add(s.Done - done)
		done = s.Done
	})
	if err != nil {
		p.Stop()
		return "", err
	}
	p.Finish()
	return path, nil
}

func describeFiles(files []hub.File) string {
	var total int64
	for _, f := range files {
		total += f.Size
	}
	if len(files) == 1 {
		return fmt.Sprintf("%s (%s)", files[0].Name, formatBytes(total))
	}
	return fmt.Sprintf("%s and %d more (%s)", files[0].Name, len(files)-1, formatBytes(total))
}
